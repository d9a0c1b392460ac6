"""What other processes do for a job: reading headers and running tasks."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from zarrasync._concurrency.fork import thread_lock
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.bulk.files.running.tasks import TaskRunner
from zarrasync.bulk.files.sources.headers import FileHeader, ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.bulk.jobs.runs import Permit
from zarrasync.config import Config
from zarrasync.stores import Store
from zarrasync.transfer.unaligned import Unaligned

WayToOpen: TypeAlias = tuple[ReaderOptions, Config]
_MOST_WAYS = 2


@dataclass(frozen=True)
class SentTasks:
    """Tasks as they are sent to another process, which runs them one after the other.

    Attributes:
        plans: For each task, a plan that contains nothing else.
        marks: For each task, the key that marks it as finished.
        open_store: Opens the store of the destination.

    The other attributes are parameters of ``TaskRunner``.
    """

    plans: Sequence[FilesPlan]
    marks: Sequence[str]
    open_store: Callable[[], Store]
    config: Config
    verify: bool
    unaligned: Unaligned
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


def run_tasks(tasks: SentTasks) -> tuple[list[FilesReport], bytes]:
    """Run tasks in a worker process. Return the report of each, and the changes of a fork of the destination."""
    store, reports = tasks.open_store(), []
    for plan, mark in zip(tasks.plans, tasks.marks, strict=True):
        with shared_files.use(plan.reader, tasks.config) as opened:
            runner = TaskRunner(plan, store, tasks.config, opened, tasks.verify, tasks.unaligned)
            reports.append(runner.run(plan.parts[0], mark, tasks.permit))
    return reports, b"" if store.forks is None else store.forks.changes()
