"""Jobs that run on an executor: processes of this machine, or a cluster of dask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.bulk.reports import add_reports
from zarrasync.display.progress import IngestReport
from zarrasync.errors import StoreError
from zarrasync.stores import Store
from zarrasync.transfer.threads import Progress

__all__ = ["as_executor", "run_elsewhere", "share"]

T = TypeVar("T")
_MOST_JOBS = 256
"""The number of jobs of one array, which bounds the messages between processes."""
_POLL_SECONDS = 0.2


def as_executor(executor: Any) -> Executor | None:
    """Return the executor of an argument, which may be a client of dask; ``None`` for threads of this process.

    Raises:
        TypeError: If it is neither.
    """
    if executor is not None and hasattr(executor, "get_executor"):
        executor = executor.get_executor(pure=False)  # equal jobs must run again
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(
            f"executor must have a method submit, as concurrent.futures.Executor, or be a client of dask; found {executor!r}"
        )
    own: Executor | None = executor
    return own


def share(items: Sequence[T]) -> list[Sequence[T]]:
    """Divide items among jobs, in order."""
    size = -(-len(items) // _MOST_JOBS)
    return [items[start : start + size] for start in range(0, len(items), size)] if items else []


async def run_elsewhere(
    executor: Executor, jobs: Iterable[Callable[[], IngestReport]], progress: Progress, *used: Store
) -> IngestReport:
    """Run jobs in other processes.

    Args:
        executor: Runs them.
        jobs: The jobs, which are sent to other processes. Each returns a report.
        progress: Called with the number of bytes written since the last call.
        *used: The stores that they use.

    Returns:
        The sum of the reports.

    Raises:
        StoreError: If a store exists only in this process, a store failed, or a process ended.
    """
    for store in used:
        if not store.portable:
            raise StoreError(
                f"{store!r} exists only in this process, so other processes cannot use it; use files or an object store, or "
                "omit the executor"
            )
    collect = partial(_collect, executor, jobs, progress)
    return collect() if driven() else await run_in_new_thread(collect)


def _collect(executor: Executor, jobs: Iterable[Callable[[], IngestReport]], progress: Progress) -> IngestReport:
    """Run jobs and return the sum of their reports. After a failure, jobs that have not begun are cancelled."""
    report = IngestReport()
    pending: set[Future[IngestReport]] = {executor.submit(job) for job in jobs}
    try:
        while pending:
            done, pending = clock.current().wait_for_first(pending, _POLL_SECONDS)
            for future in done:
                part = future.result()
                add_reports(report, part)
                progress(part.nbytes)
            raise_if_cancelled()
    except BrokenExecutor as error:
        raise StoreError(
            "a process of the executor ended, for example because memory ran out; continue with another executor and fewer "
            "processes, or lower config.memory_budget"
        ) from error
    except BaseException:
        for future in pending:
            future.cancel()
        clock.current().wait_for(pending)  # nothing is written after this call has ended
        raise
    return report
