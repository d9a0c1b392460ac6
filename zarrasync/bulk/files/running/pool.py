"""Reading the headers of files, and running tasks, in this process or elsewhere."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.bulk.files.running.tasks import TaskRunner
from zarrasync.bulk.files.sources.headers import FileHeader, ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.bulk.jobs.runs import Permit
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.scratch_folders import remove_abandoned_folders
from zarrasync.config import Config
from zarrasync.stores import Store

_HEADERS_PER_CALL = 8
_SHORT_SECONDS = 1.0
"""Seconds in which this process reads headers itself, because others would import the libraries for them first."""


class FileWorkers(Workers):
    """Workers that read headers and run the tasks of jobs with files, and this process with its open files.

    Args:
        executor: The argument of users; see ``engine_of``. ``None`` and 1 stand for this process.
        start_method: How processes of this machine start.
    """

    def __init__(self, executor: Any = None, start_method: str = "spawn") -> None:
        super().__init__(executor, start_method)
        self._files: dict[WayToOpen, OpenFiles] = {}
        self._shared = set[WayToOpen]()

    def local_files(self, options: ReaderOptions, config: Config) -> OpenFiles:
        """Return the open files of this process. They remain open until ``close`` is called."""
        key = options, config
        if key not in self._files:
            self._files[key] = OpenFiles(options, config)
        return self._files[key]

    def headers(
        self, files: Sequence[SourceFile], options: ReaderOptions, config: Config, chosen: Sequence[str] = ()
    ) -> list[FileHeader]:
        """Return the headers of files. Variables that belong to the chosen ones in the first file are compared in all.

        Args:
            files: The files.
            options: How to open them.
            config: The settings.
            chosen: The names of the variables to store; empty for all.
        """
        self.warm()
        if not chosen:
            return self._headers(files, options, config, ())
        first, own = list[FileHeader](), self.local_files(options, config)
        for file in files:
            first += own.headers([file], chosen)
            if first[-1].error is None:
                break
        names = sorted({*chosen}.union(*(header.linked(chosen) for header in first)))
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
        own = self._config_of_each(options, config)

        def call(start: int) -> Callable[[], list[FileHeader]]:
            return partial(read_headers, rest[start : start + _HEADERS_PER_CALL], options, own, names)

        self.run(range(0, len(rest), _HEADERS_PER_CALL), call, found.__setitem__)
        return first + [header for number in sorted(found) for header in found[number]]

    def run_tasks(
        self,
        plan: FilesPlan,
        numbers: Iterable[int],
        store: Store,
        config: Config,
        permit: Permit | None,
        *,
        verify: bool,
        mark: Callable[[int], str],
        done: Callable[[int, FilesReport], None],
    ) -> None:
        """Run tasks on other processes. Tasks whose process ended are run again by another one.

        If the processes need forks of the store, the changes of each task are merged when it has ended.

        Args:
            plan: The job.
            numbers: The numbers of the tasks.
            store: The store of the destination.
            config: The settings.
            permit: The permission to run tasks.
            verify: Whether to compare stored values with the files.
            mark: Returns the key that marks a task as finished.
            done: Called with the number and the report of each finished task.

        Raises:
            StoreError: If processes that run the same task ended several times, or the store failed.
        """
        own, forks = self._config_of_each(plan.reader, config), store.forks
        open_store = opener(store, None if forks is None else forks.fork())

        def call(number: int) -> Callable[[], tuple[FilesReport, bytes]]:
            part = plan.for_part(plan.parts[number])
            return partial(run_task, SentTask(part, mark(number), open_store, own, verify, permit))

        def ended(number: int, result: tuple[FilesReport, bytes]) -> None:
            report, changes = result
            if changes and forks is not None:
                forks.merge(changes)
            done(number, report)

        self.run(numbers, call, ended)

    def _config_of_each(self, options: ReaderOptions, config: Config) -> Config:
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


WayToOpen: TypeAlias = tuple[ReaderOptions, Config]
_MOST_WAYS = 2


@dataclass(frozen=True)
class SentTask:
    """A task as it is sent to another process.

    Attributes:
        plan: A plan that contains nothing else.
        mark: The key that marks it as finished.
        open_store: Opens the store of the destination.

    The other attributes are parameters of ``TaskRunner``.
    """

    plan: FilesPlan
    mark: str
    open_store: Callable[[], Store]
    config: Config
    verify: bool
    permit: Permit | None


def opener(store: Store, fork: Callable[[], Store] | None) -> Callable[[], Store]:
    """Return a function that opens a store, or a fork of it, in another process."""
    return fork or partial(_same, store)


def _same(store: Store) -> Store:
    return store


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


def run_task(task: SentTask) -> tuple[FilesReport, bytes]:
    """Run a task in a worker process. Return its report, and the changes of a fork of the destination."""
    store, plan = task.open_store(), task.plan
    with shared_files.use(plan.reader, task.config) as opened:
        runner = TaskRunner(plan, store, task.config, opened, task.verify)
        report = runner.run(plan.parts[0], task.mark, task.permit)
    return report, b"" if store.forks is None else store.forks.changes()
