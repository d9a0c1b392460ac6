"""Running one task of a job: reading its rows from the files, and writing them to the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge
from zarrasync._concurrency.gates import FifoGate, Permits
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.block_plan import BlockPlan, memory_limit
from zarrasync.bulk.blocks import write_blocks
from zarrasync.bulk.files.records.plan import STORED, ArrayPlan, FilesPlan, Part, Segment
from zarrasync.bulk.files.records.target import stored_attributes
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.bulk.files.sources.conversions import check_strings, convert_times, convert_values
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.bulk.jobs.claim_folder import KEPT
from zarrasync.bulk.jobs.runs import Permit, Run
from zarrasync.bulk.reports import add_reports
from zarrasync.bulk.sources import Source
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport, ignore_progress
from zarrasync.errors import SourceFilesError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_times import TimeUnits
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import JOB_FOLDER, NodeHandle
from zarrasync.stores import CountingStore, Store
from zarrasync.transfer.threads import Progress

_CONCURRENT_ARRAYS = 2
"""Arrays that a task writes to an asynchronous store at a time, if there is memory for the blocks of both."""


def kept_array(plan: FilesPlan, array: ArrayPlan, store: Store, config: Config) -> AsyncArray:
    """Return the array with the rows of an array that move, from the first one on. Its metadata are not stored."""
    path = join(plan.path, f"{JOB_FOLDER}/{KEPT}/{array.name}")
    handle = NodeHandle(store, path, plan.format, config, is_format_known=True)
    return AsyncArray(handle, plan.metadata(array))


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
        self, part: Part, mark: str = "", permit: Permit | None = None, progress: Progress = ignore_progress
    ) -> FilesReport:
        """Run a task. If files cannot be read, the report names them, and the task is not marked.

        Args:
            part: The task.
            mark: The key of the value to store when the task has ended; empty for none. The value contains the changes of a
                fork.
            permit: The permission, if this process does not have the claim.
            progress: Called with the number of bytes written since the last call.

        Raises:
            ChecksumError: If the stored values differ from the values of the files.
            WriteConflictError: If the job has ended, or another process continues it.
            StoreError: If the store failed.
        """
        report = FilesReport()
        notes = self.store.notes
        with Run(notes, permit) as run, self.files.prepared(self._used(part)):

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
        source = Source(
            tuple(shape), target.dtype, lambda block: self._read(array, target, part.start, block), chunks=array.chunks
        )
        return source, target, tuple(region)

    def _write_arrays(self, part: Part, report: IngestReport, progress: Progress) -> None:
        """Write the arrays of a task, and add counts to a report.

        With an asynchronous store, the next array is read while values of the last one are still sent, if there is memory.
        """
        memory = FifoGate(memory_limit(self.config), shared=False)

        async def write(item: tuple[ArrayPlan, Part]) -> None:
            source, target, region = self._source_of(*item)
            async with Permits(memory, BlockPlan(source, target, region).nbytes):
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
        bridge.run(for_each(write, items, _CONCURRENT_ARRAYS), blocking=self.store.blocking)

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
                values = bridge.run(kept.view[own].read(), blocking=self.store.blocking)
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
