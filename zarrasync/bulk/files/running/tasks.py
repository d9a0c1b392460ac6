"""Running the tasks of a job: reading rows from the files and writing them to the arrays, in this process or elsewhere."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.semaphores import FifoSemaphore, Held
from zarrasync.bulk.block_plan import BlockPlan, memory_limit
from zarrasync.bulk.block_writer import write_blocks
from zarrasync.bulk.files.records.plan import STORED, ArrayPlan, FilesPlan, Part, Segment
from zarrasync.bulk.files.records.target import stored_attributes
from zarrasync.bulk.files.sources.conversions import check_strings, convert_times, convert_values
from zarrasync.bulk.files.sources.headers import FileHeader, ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.bulk.jobs.claim_folder import KEPT
from zarrasync.bulk.jobs.fencing import FencingToken, TaskLease
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import FilesReport, add_reports
from zarrasync.bulk.scratch_folders import remove_abandoned_folders
from zarrasync.bulk.sources import Source
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport, ignore_progress
from zarrasync.errors import SourceFilesError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_times import TimeUnits
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import JOB_FOLDER, run_blocking
from zarrasync.stores import CountingStore, Store
from zarrasync.transfer.threads import Progress

_CONCURRENT_ARRAYS = 2
"""Arrays that a task writes to an asynchronous store at a time, if there is memory for the blocks of both."""
_HEADERS_PER_CALL = 8
_SHORT_SECONDS = 1.0
"""Seconds in which this process reads headers itself, because others would import the libraries for them first."""
WayToOpen: TypeAlias = tuple[ReaderOptions, Config]
_MOST_WAYS = 2
"""Maximum number of ways to open files whose files a process keeps open for the next task."""


def kept_array(plan: FilesPlan, array: ArrayPlan, store: Store, config: Config) -> AsyncArray:
    """Return the array with the rows of an array that move, from the first one on. Its metadata are not stored."""
    return AsyncArray(plan.handle(store, config, f"{JOB_FOLDER}/{KEPT}/{array.name}"), plan.metadata(array))


@dataclass
class TaskRunner:
    """Runs tasks of a job in this process.

    Attributes:
        plan: The job.
        store: The store of the destination.
        config: The settings.
        files: The open files.
        verify: Whether to read the values back, and to compare them with the files.
    """

    plan: FilesPlan
    store: Store
    config: Config
    files: OpenFiles
    verify: bool = False

    def run(
        self, part: Part, mark: str = "", token: FencingToken | None = None, progress: Progress = ignore_progress
    ) -> FilesReport:
        """Run a task. If files cannot be read, the report names them, and the task is not marked.

        Args:
            part: The task.
            mark: The key of the value to store when the task has ended; empty for none. The value contains the changes of a
                fork.
            token: The permission, if this process does not have the claim.
            progress: Called with the number of bytes written since the last call.

        Raises:
            ChecksumError: If the stored values differ from the values of the files.
            WriteConflictError: If the job has ended, or another process continues it.
            StoreError: If the store failed.
        """
        report = FilesReport()
        notes = self.store.notes
        with TaskLease(notes, token) as run, self.files.prepared(self._used(part)):

            def written(nbytes: int) -> None:
                run.check()
                progress(nbytes)

            try:
                self._write_arrays(part, report, written)
                self.files.check_unchanged(self._used(part))
            except SourceFilesError as error:
                report.bad_files = {**error.files, **self._find_bad(part)}
                return report
            run.check()
            if mark:
                run.mark(mark, b"" if self.store.forks is None else self.store.forks.changes())
        return report

    def _find_bad(self, part: Part) -> dict[str, str]:
        """Return the reason for each file of a task that cannot be read, by name."""
        found: dict[str, str] = {}
        for array in self.plan.arrays_of(part):
            _, target, region = self._source_of(array, part)
            for segment in self.plan.segments_of(part.start, part.stop) or [Segment(0, 0, 0, 0)]:
                own = list(region)
                if array.axis is not None:
                    own[array.axis] = slice(segment.start - part.start, segment.stop - part.start)
                try:
                    self._read(array, target, part.start, tuple(own))
                except SourceFilesError as error:
                    found = {**error.files, **found}
        return found

    def _used(self, part: Part) -> Sequence[SourceFile]:
        """Return the files that a task reads."""
        if part.array:
            return self.plan.files[:1]
        sources = {segment.source for segment in self.plan.segments_of(part.start, part.stop)} - {STORED}
        return [self.plan.files[number] for number in sorted(sources)]

    def _source_of(self, array: ArrayPlan, part: Part) -> tuple[Source, AsyncArray, Region]:
        """Return the values of a task in the files, the array, and the region of the array for them."""
        target = self.plan.open(array, CountingStore(self.store), self.config)
        shape = list(target.shape)
        region = [slice(0, n) for n in shape]
        if array.axis is not None:
            shape[array.axis] = part.stop - part.start
            region[array.axis] = slice(part.start, part.stop)
        read = partial(self._read, array, target, part.start)
        return Source(tuple(shape), target.dtype, read, chunks=array.chunks), target, tuple(region)

    def _write_arrays(self, part: Part, report: IngestReport, progress: Progress) -> None:
        """Write the arrays of a task, and add counts to a report.

        With an asynchronous store, the next array is read while values of the last one are still sent, if there is memory.
        """
        memory = FifoSemaphore(memory_limit(self.config), shared=False)

        async def write(item: tuple[ArrayPlan, Part]) -> None:
            source, target, region = self._source_of(*item)
            async with Held(memory, BlockPlan(source, target, region).nbytes):
                own = await write_blocks(
                    source,
                    target,
                    region,
                    "allow",  # no other task writes the same chunks, and no other job the same dataset
                    is_new=item[0].shape is None,
                    is_hidden=True,
                    verify=self.verify,
                    progress=progress,
                )
            add_reports(report, own)

        items = [(array, run) for array in self.plan.arrays_of(part) for run in self.plan.runs_of(part)]
        run_blocking(self.store, for_each(write, items, _CONCURRENT_ARRAYS))

    # -------------------------------------------------------------- reading

    def _read(self, array: ArrayPlan, target: AsyncArray, start: int, region: Region) -> npt.NDArray[Any]:
        """Return a region of a task's rows.

        Args:
            array: The plan of the array.
            target: The array.
            start: The row of the destination at which the region's coordinates begin.
            region: The region, relative to the first row of the task.
        """
        if array.axis is None:
            return self._read_file(array, target, 0, region)
        rows = region[array.axis]
        parts = []
        for segment in self.plan.segments_of(rows.start + start, rows.stop + start):
            offset = segment.offset - (self.plan.moved or 0 if segment.source == STORED else 0)
            own_rows = slice(offset, offset + segment.stop - segment.start)
            own = tuple(own_rows if axis == array.axis else part for axis, part in enumerate(region))
            if segment.source == STORED:
                kept = kept_array(self.plan, array, self.store, self.config)
                values = run_blocking(self.store, kept.view[own].read())
                parts.append(np.asarray(transfer.as_array(values, target.dtype, target.metadata.spec.fill_value)))
            else:
                parts.append(self._read_file(array, target, segment.source, own))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=array.axis)

    def _read_file(self, array: ArrayPlan, target: AsyncArray, number: int, region: Region) -> npt.NDArray[Any]:
        file, variable = self.plan.files[number], array.in_file(number)
        if variable.is_absent:
            shape = tuple(part.stop - part.start for part in region)
            return np.full(shape, target.metadata.spec.fill_value, target.dtype)
        parts = [(dim, part) for dim, part in zip(array.dims, region, strict=True) if dim in variable.dims]
        order = list(range(len(parts)))
        if tuple(dim for dim, _ in parts) != variable.dims:  # which may contain a name twice otherwise
            order = [variable.dims.index(dim) for dim, _ in parts]
        region = tuple(part for _, (_, part) in sorted(zip(order, parts, strict=True)))
        values = self.files.read(file, array.name, region).transpose(order)
        if values.ndim < len(array.dims):  # the file is one row
            values = np.expand_dims(values, array.axis or 0)
        check_strings(array.name, values, file.name, target.dtype)
        name = f"{array.name!r} of {file.name}"
        if array.units is None:
            are_numbers = values.dtype.kind in "biufc" and target.dtype.kind in "biufc"
            return convert_values(values, target.dtype, name) if are_numbers else values
        own, units = TimeUnits(*(variable.units or array.units)), TimeUnits(*array.units)
        attributes = stored_attributes(target.metadata, self.plan.format)
        return convert_times(values, own, units, target.dtype, name, attributes)


# ------------------------------------------------------------------ this process and others


class FileWorkers(Workers):
    """Workers that read headers and run the tasks of jobs with files, and this process with its open files.

    Args:
        executor: The argument of users; see ``executor_of``. ``None`` and 1 stand for this process.
    """

    def __init__(self, executor: Any = None) -> None:
        super().__init__(executor)
        self._files: dict[WayToOpen, OpenFiles] = {}
        self._shared = set[WayToOpen]()

    def local_files(self, options: ReaderOptions, config: Config) -> OpenFiles:
        """Return the open files of this process. They remain open until ``close`` is called."""
        key = options, config
        if key not in self._files:
            self._files[key] = OpenFiles(options, config)
        return self._files[key]

    def headers(self, files: Sequence[SourceFile], options: ReaderOptions, config: Config) -> list[FileHeader]:
        """Return the headers of files. Variables that belong to the chosen ones in the first file are compared in all.

        Args:
            files: The files.
            options: How to open them, and the variables to store.
            config: The settings.
        """
        self.warm()
        first, own, names = list[FileHeader](), self.local_files(options, config), list[str]()
        if options.variables:
            for file in files:
                first += own.headers([file], options.variables)
                if first[-1].error is None:
                    break
            names = sorted({*options.variables}.union(*(header.linked(options.variables) for header in first)))
        return first + self._headers(files[len(first) :], options, config, names)

    def _headers(
        self, files: Sequence[SourceFile], options: ReaderOptions, config: Config, names: Sequence[str]
    ) -> list[FileHeader]:
        here = partial(self.local_files(options, config).headers, chosen=names, with_linked=False)
        if self.is_local or len(files) < 2 * _HEADERS_PER_CALL:
            return here(files)
        durations, first, rest = [], list[FileHeader](), files[2:]
        for file in files[:2]:  # the first one includes the import of modules
            begin = clock.monotonic()
            first += here([file])
            durations.append(clock.monotonic() - begin)
        if min(durations) * len(rest) <= _SHORT_SECONDS:
            return first + here(rest)
        found: dict[int, list[FileHeader]] = {}
        own = self.config_of_each(options, config)

        def call(start: int) -> Callable[[], list[FileHeader]]:
            return partial(read_headers, rest[start : start + _HEADERS_PER_CALL], options, own, names)

        self.run(range(0, len(rest), _HEADERS_PER_CALL), call, found.__setitem__)
        return first + [header for number in sorted(found) for header in found[number]]

    def config_of_each(self, options: ReaderOptions, config: Config) -> Config:
        """Return the settings of a process. All processes of this machine together use the threads of the settings.

        The memory budget is not divided: with less memory, each process would decode chunks of the files several times.
        """
        if self.count == 1:
            self._shared.add((options, config))
            return config
        return replace(config, threads=max(1, config.pool_size // self.count))

    def close(self) -> None:
        """Close the files of this process, and end the processes that this object has started."""
        while self._files:
            self._files.popitem()[1].close()
        shared_files.forget(self._shared)
        super().close()
        if self.count > 1:
            remove_abandoned_folders()


# ------------------------------------------------------------------ in other processes


class SharedFiles:
    """The open files of a process that runs tasks of several jobs. They remain open from one task to the next.

    At most the files of the last two ways to open them remain open, and those that tasks read.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[WayToOpen, OpenFiles] = OrderedDict()
        self._users: Counter[OpenFiles] = Counter()
        self._lock = thread_lock()

    @contextmanager
    def use(self, options: ReaderOptions, config: Config) -> Iterator[OpenFiles]:
        """Return the open files. They are not closed before the end of this context."""
        key = options, config
        with self._lock:
            if key not in self._known:
                self._known[key] = OpenFiles(options, config)
            self._known.move_to_end(key)
            files = self._known[key]
            self._users[files] += 1
        try:
            yield files
        finally:
            with self._lock:
                self._users -= Counter([files])
                is_forgotten = self._known.get(key) is not files and files not in self._users
                idle = [known for known, other in self._known.items() if other not in self._users]
                unused = [self._known.pop(known) for known in idle[: max(len(self._known) - _MOST_WAYS, 0)]]
            for other in [*unused, files] if is_forgotten else unused:
                other.close()

    def forget(self, ways: Iterable[WayToOpen]) -> None:
        """Close the files that were opened in some ways. Tasks that still read them close them when they end."""
        with self._lock:
            forgotten = [self._known.pop(way) for way in ways if way in self._known]
            unused = [files for files in forgotten if files not in self._users]
        for files in unused:
            files.close()


shared_files = SharedFiles()
"""The files of a process that runs tasks for others. It is this process if the executor has threads."""


def read_headers(
    files: Sequence[SourceFile], options: ReaderOptions, config: Config, chosen: Sequence[str]
) -> list[FileHeader]:
    """Return the headers of files, in a worker process."""
    with shared_files.use(options, config) as opened:
        return opened.headers(files, chosen)


def run_task(
    plan: FilesPlan,
    mark: str,
    token: FencingToken | None,
    open_store: Callable[[], Store],
    config: Config,
    *,
    verify: bool,
) -> tuple[FilesReport, bytes]:
    """Run the only task of a plan in a worker process. Return its report, and the changes of a fork of the destination."""
    store = open_store()
    with shared_files.use(plan.reader, config) as opened:
        report = TaskRunner(plan, store, config, opened, verify).run(plan.parts[0], mark, token)
    return report, b"" if store.forks is None else store.forks.changes()
