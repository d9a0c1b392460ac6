"""Running tasks in this process, in processes of this machine, or on any executor, such as one of a dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.elsewhere import as_executor
from zarrasync.bulk.files.records.plan import JobPlan
from zarrasync.bulk.files.records.runs import Permit
from zarrasync.bulk.files.running.disjoint import disjoint_tasks
from zarrasync.bulk.files.running.statistics import (
    VariableStatistics,
    inline_statistics,
    merge_statistics,
    part_statistics,
)
from zarrasync.bulk.files.running.tasks import TaskRunner
from zarrasync.bulk.files.running.worker import (
    SentTasks,
    WayToOpen,
    opener,
    read_headers,
    run_tasks,
    shared_files,
    task_statistics,
)
from zarrasync.bulk.files.sources.copies import remove_abandoned_copies
from zarrasync.bulk.files.sources.headers import FileHeader, ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport
from zarrasync.display.text import counted
from zarrasync.errors import StoreError
from zarrasync.stores import Store
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import Unaligned

__all__ = ["Workers"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MOST_CRASHES = 3
"""A task whose process ends this many times fails."""
_HEADERS_PER_CALL = 8
_SHORT_SECONDS = 1.0
"""Seconds in which this process reads headers itself, because others would import the libraries for them first."""
_POLL_SECONDS = 0.5
_SILENT_SECONDS = 30.0
"""Time without a finished task after which the workers of a cluster are counted."""


def _end_with_parent() -> None:
    """End this worker process when the process that started it is killed. It would wait for tasks forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    clock.current().start_thread("zarrasync-parent", watch)


def _do_nothing() -> None:
    """Do nothing: a call that starts a process."""


class Workers:
    """Processes that run tasks; none for this process.

    Args:
        processes: The number of processes of this machine; 1 for this process.
        executor: An executor, or a client of dask, instead of processes.
        start_method: How processes start. Forked ones would inherit locks that threads of this process hold.

    Raises:
        ValueError: If both are passed.
        TypeError: If the executor is not one.
    """

    def __init__(self, processes: int = 1, executor: Any = None, start_method: str = "spawn") -> None:
        if executor is not None and processes > 1:
            raise ValueError("pass either processes or executor")
        self._client = executor if hasattr(executor, "get_executor") else None  # of dask
        self._processes, self._executor, self._start_method = processes, as_executor(executor), start_method
        self._pool: ProcessPoolExecutor | None = None
        self._files: dict[WayToOpen, OpenFiles] = {}
        self._shared = set[WayToOpen]()

    @property
    def is_local(self) -> bool:
        """Whether tasks run in this process."""
        return self._executor is None and self._processes == 1

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
        self._start()
        if not chosen:
            return self._headers(files, options, config, ())
        first = self.local_files(options, config).headers(files[:1], chosen)
        names = sorted({*chosen}.union(*(header.linked(chosen) for header in first)))
        return first + self._headers(files[1:], options, config, names)

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

        self._run(range(0, len(rest), _HEADERS_PER_CALL), call, found.__setitem__)
        return first + [header for number in sorted(found) for header in found[number]]

    def run(
        self,
        plan: JobPlan,
        numbers: Iterable[int],
        store: Store,
        config: Config,
        permit: Permit | None,
        *,
        verify: bool,
        unaligned: Unaligned,
        mark: Callable[[int], str],
        done: Callable[[int, IngestReport], None],
    ) -> None:
        """Run tasks on other processes. Tasks whose process ended are run again by another one.

        If the processes need forks of the store, the changes of each task are merged when it has ended, and tasks that
        share chunks run one after the other.

        Args:
            plan: The job.
            numbers: The numbers of the tasks.
            store: The store of the destination.
            config: The settings.
            permit: The permission to run tasks.
            verify: Whether to compare stored values with the files.
            unaligned: Whether tasks may share chunks.
            mark: Returns the key that marks a task as finished.
            done: Called with the number and the report of each finished task.

        Raises:
            StoreError: If processes that run the same task ended several times, or the store failed.
        """
        own, fork, groups = self._config_of_each(plan.reader, config), store.fork(), {n: [n] for n in numbers}
        if fork is not None:
            groups = disjoint_tasks(plan, groups)  # if two forks changed the same chunk, one version would be lost
            unaligned = "allow"
        open_store = opener(store, fork)

        def call(number: int) -> Callable[[], tuple[list[IngestReport], bytes]]:
            plans = [plan.for_part(plan.parts[n]) for n in groups[number]]
            marks = [mark(n) for n in groups[number]]
            return partial(run_tasks, SentTasks(plans, marks, open_store, own, verify, unaligned, permit))

        def ended(number: int, result: tuple[list[IngestReport], bytes]) -> None:
            reports, changes = result
            if changes:
                store.merge(changes)
            for n, report in zip(groups[number], reports, strict=True):
                done(n, report)

        self._run(groups, call, ended)

    def _config_of_each(self, options: ReaderOptions, config: Config) -> Config:
        """Return the settings of a process. All processes of this machine together use the threads of the settings.

        The memory budget is not divided: with less memory, each process would decode chunks of the files several times.
        """
        if self._executor is not None:
            self._shared.add((options, config))
            return config
        return replace(config, threads=max(1, config.pool_size // self._processes))

    def statistics(
        self, plan: JobPlan, store: Store, config: Config, progress: Progress = ignore_progress
    ) -> list[VariableStatistics]:
        """Return the statistics of all values that a plan writes, in the files and as stored.

        Args:
            plan: The plan.
            store: The store of the destination.
            config: The settings.
            progress: Called with the number of bytes that were compared since the last call.
        """
        parts: dict[int, list[VariableStatistics]] = {}

        def done(number: int, part: list[VariableStatistics]) -> None:
            parts[number] = part
            progress(plan.task_bytes(plan.parts[number]))

        if self.is_local:
            runner = TaskRunner(plan, store, config, self.local_files(plan.reader, config))
            for number, part in enumerate(plan.parts):
                done(number, part_statistics(runner, part))
        else:
            own, open_store = self._config_of_each(plan.reader, config), opener(store, store.fork())

            def call(number: int) -> Callable[[], list[VariableStatistics]]:
                return partial(task_statistics, plan.for_part(plan.parts[number]), open_store, own)

            self._run(range(len(plan.parts)), call, done)
        return merge_statistics([*(parts[number] for number in sorted(parts)), inline_statistics(plan, store, config)])

    def _run(
        self, numbers: Iterable[int], call: Callable[[int], Callable[[], T]], done: Callable[[int, T], None]
    ) -> None:
        """Run calls on other processes.

        Args:
            numbers: The numbers of the calls.
            call: Returns the call with a number. It is sent to another process.
            done: Called with the number and the result of each call.
        """
        crashes: dict[int, int] = {}
        waiting = deque(numbers)
        running: dict[Future[T], tuple[int, Any]] = {}
        last = clock.monotonic()
        try:
            while waiting or running:
                raise_if_cancelled()
                while waiting and len(running) < self._width:
                    number = waiting.popleft()
                    future = self._submit(call(number))
                    running[future] = number, self._pool
                ended, _ = clock.current().wait_for_first(running, _POLL_SECONDS)
                if ended:
                    last = clock.monotonic()
                elif clock.monotonic() - last > _SILENT_SECONDS:
                    last = clock.monotonic()
                    self._warn_without_workers(len(running))
                for future in ended:
                    number, pool = running.pop(future)
                    try:
                        done(number, future.result())
                    except BrokenProcessPool as error:
                        self._drop(pool)
                        crashes[number] = crashes.get(number, 0) + 1
                        if crashes[number] >= _MOST_CRASHES:
                            raise StoreError(
                                f"the processes that ran task {number} ended {_MOST_CRASHES} times, for example because "
                                "memory ran out; lower config.memory_budget, or use fewer processes"
                            ) from error
                        waiting.appendleft(number)
                    except Exception as error:
                        if type(error).__name__ != "KilledWorker":  # of dask, which need not be installed
                            raise
                        raise StoreError(
                            f"dask gave up task {number}, because the workers that ran it ended, for example because memory ran "
                            "out; lower config.memory_budget, or use workers with more memory"
                        ) from error
        finally:
            begun = [future for future in running if not future.cancel()]
            if self._executor is None:
                clock.current().wait_for(begun)

    def _warn_without_workers(self, count: int) -> None:
        """Log a warning if a cluster of dask has lost its workers, or has none yet. It may get some later."""
        if self._client is not None and not (known := self._client.scheduler_info())["workers"]:
            _log.warning("the cluster %s has no workers; %s waiting", known.get("address", ""), counted(count, "task"))

    @property
    def _width(self) -> int:
        """The number of tasks to submit at a time."""
        return 2 * self._processes if self._executor is None else 1 << 30

    def _start(self) -> None:
        """Start the processes of this machine, which import their modules while this one reads headers."""
        if self._executor is None and not self.is_local:
            for _ in range(self._processes):
                self._submit(_do_nothing)

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        if self._executor is not None:
            future: Future[T] = self._executor.submit(call)
            return future
        if self._pool is None:
            context = multiprocessing.get_context(self._start_method)
            self._pool = ProcessPoolExecutor(self._processes, context, _end_with_parent)
        try:
            return self._pool.submit(call)
        except BrokenProcessPool:
            self._drop(self._pool)
            return self._submit(call)

    def _drop(self, pool: ProcessPoolExecutor | None) -> None:
        """Give up a pool, one of whose processes has ended. It may have been replaced already."""
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if pool is self._pool:
            self._pool = None

    def close(self) -> None:
        """Close the files of this process, and end the processes that this object has started."""
        while self._files:
            self._files.popitem()[1].close()
        shared_files.forget(self._shared)
        pool, self._pool = self._pool, None
        if pool is not None:
            # Asking them to end can take forever: one that is killed meanwhile may hold a lock that others wait for.
            processes = list((pool._processes or {}).values())  # noqa: SLF001  # the public method needs Python 3.14
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
            remove_abandoned_copies()
