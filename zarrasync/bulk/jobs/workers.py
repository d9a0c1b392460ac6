"""``Workers``: the one policy for calls that run elsewhere. They are repeated, cancelled and counted in one way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from typing import Any, TypeVar

from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.bulk.jobs.executors import ProcessesExecutor, executor_of
from zarrasync.bulk.jobs.fencing import FencingToken, TaskLease
from zarrasync.bulk.reports import add_reports
from zarrasync.display.progress import IngestReport, ignore_progress
from zarrasync.errors import ReadOnlyError, StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores import Store
from zarrasync.transfer.threads import Progress

T = TypeVar("T")
_MOST_ATTEMPTS = 3
_PAUSE = 0.5
"""Seconds before a call is repeated; twice as long before the next time."""
_MOST_CALLS = 256
"""The number of calls for one array, which bounds the messages between processes."""
_ALONE = 8 << 20
"""Bytes of an array that this process copies in less time than sharing the work would take."""
_POLL_SECONDS = 0.2
_SILENT_SECONDS = 30.0
"""Time without a finished call after which an executor looks for its workers."""
_DEAD = ("KilledWorker", "TerminatedWorkerError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")
"""Names of errors of dask, loky and Ray, which need not be installed."""
_FINAL = (ReadOnlyError, UnsupportedOperation, WriteConflictError)
"""Errors of stores that a repetition does not change."""


class Workers:
    """Other processes, of this machine or of others, that run calls.

    Args:
        executor: The argument of users; see ``executor_of``. ``None`` and 1 stand for this process.

    Attributes:
        is_local: Whether calls run in this process.
        is_on_this_machine: Whether calls are known to run on this machine, so that they can use its files.
        count: The number of processes that share the processors of this machine.

    Raises:
        TypeError: If the executor is not one.
        ValueError: If it is a number less than 1.
    """

    def __init__(self, executor: Any = None) -> None:
        self._executor = own = executor_of(executor)
        self._new_lease: Callable[[], TaskLease] | None = None
        self.is_local = own is None
        self.is_on_this_machine = own is None or own.is_on_this_machine
        self.count = 1 if own is None else own.count

    def check_stores(self, *used: Store) -> None:
        """Check that calls can use stores.

        Raises:
            StoreError: If a store exists only in this process, and calls do not run there.
        """
        for store in used:
            if not (self._executor is None or self._executor.may_share_memory or store.shareable):
                raise StoreError(
                    f"{store!r} exists only in this process, so other processes cannot use it; use files or an object "
                    "store, or omit the executor"
                )

    def require(self, store: Store, token: FencingToken | None) -> None:
        """Let ``share`` run calls only while a permission holds, because a cluster may repeat a call after the job has ended."""
        self._new_lease = partial(TaskLease, store, token)

    def worth(self, nbytes: int) -> Workers:
        """Return these workers for an array of a size, or this process if sharing the work would take longer."""
        return self if nbytes > _ALONE else Workers()

    def warm(self) -> None:
        """Start processes of this machine, which import modules while this one does other work."""
        if isinstance(self._executor, ProcessesExecutor):
            self._executor.warm()

    def close(self) -> None:
        """End the processes that this object has started."""
        if self._executor is not None:
            self._executor.close()

    def run(
        self, numbers: Iterable[int], call: Callable[[int], Callable[[], T]], done: Callable[[int, T], None]
    ) -> None:
        """Run calls. A call whose worker ended, or whose store failed, is repeated, each time after a longer pause.

        After a failure or a cancellation, calls that have not begun are dropped, and the others are waited for: nothing is
        written after this method has ended.

        Args:
            numbers: The numbers of the calls.
            call: Returns the call with a number.
            done: Called with the number and the result of each call.

        Raises:
            StoreError: If workers that ran the same call ended several times, or the executor cancelled a call.
            UnsupportedOperation: If the executor returns something else than the result of a call.
            Exception: What a call has raised.
        """
        executor = self._executor
        assert executor is not None
        attempts: dict[int, int] = {}
        waiting, delayed = deque(numbers), list[tuple[float, int]]()
        running: dict[Future[tuple[int, T]], int] = {}
        last = clock.monotonic()
        try:
            while waiting or delayed or running:
                raise_if_cancelled()
                now = clock.monotonic()
                waiting.extendleft(number for due, number in delayed if due <= now)
                delayed = [item for item in delayed if item[0] > now]
                own = [waiting.popleft() for _ in range(min(len(waiting), executor.width - len(running)))]
                if own:
                    calls = [partial(_numbered, number, call(number)) for number in own]
                    running.update(zip(executor.start(calls), own, strict=True))
                if not running:
                    clock.current().sleep_blocking(max(0.0, min(due for due, _ in delayed) - now))
                    continue
                ended, _ = clock.current().wait_for_first(running, _POLL_SECONDS)
                # A cancelled future does not wake a waiting thread.
                ended = ended or {future for future in running if future.cancelled()}
                if ended:
                    last = clock.monotonic()
                elif clock.monotonic() - last > _SILENT_SECONDS:
                    last = clock.monotonic()
                    executor.warn(len(running))
                for future in ended:
                    number = running.pop(future)
                    error = _cancelled(number) if future.cancelled() else future.exception()
                    if error is None:
                        done(number, _result(future.result(), number))
                        continue
                    attempts[number] = attempts.get(number, 0) + 1
                    self._check(error, number, attempts[number])
                    delayed.append((clock.monotonic() + _PAUSE * 2 ** (attempts[number] - 1), number))
        finally:
            clock.current().wait_for(executor.cancel(running))

    def _check(self, error: BaseException, number: int, attempts: int) -> None:
        """Raise an error of a call if it is not worth a repetition."""
        assert self._executor is not None
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DEAD:
            if attempts < _MOST_ATTEMPTS and self._executor.recover():
                return
            times = f" {attempts} times" if attempts > 1 else ""
            raise StoreError(
                f"the processes that ran task {number} ended{times}, for example because memory ran out; lower "
                "config.memory_budget, or use fewer processes or workers with more memory"
            ) from error
        is_fault = isinstance(error, StoreError | ConnectionError | TimeoutError)
        if not is_fault or isinstance(error, _FINAL) or attempts >= _MOST_ATTEMPTS:
            raise error

    async def share(
        self,
        work: Callable[[Iterable[T], Progress], Coroutine[Any, Any, IngestReport]],
        items: Iterable[T],
        progress: Progress | None,
        *used: Store,
    ) -> IngestReport:
        """Do work for items: in this process, or for some of them at a time in each of the others, as ``require`` demands.

        Args:
            work: Does it for some items and returns a report. Other processes receive it as a pickle.
            items: The items.
            progress: Called with the number of bytes written since the last call.
            *used: The stores that the work uses.

        Raises:
            StoreError: If a store exists only in this process, a store failed, or workers ended.
        """
        if self._executor is None:
            return await work(items, progress or ignore_progress)
        self.check_stores(*used)
        listed, is_blocking = list(items), all(store.blocking for store in used)
        size = -(-len(listed) // _MOST_CALLS)
        parts = [listed[start : start + size] for start in range(0, len(listed), size)] if listed else []
        assert self._new_lease is not None
        calls = [partial(_work, work, part, self._new_lease, is_blocking) for part in parts]
        report, send = IngestReport(), progress or ignore_progress

        def done(number: int, part: IngestReport) -> None:
            add_reports(report, part)
            send(part.nbytes)

        await run_in_new_thread(partial(self.run, range(len(calls)), calls.__getitem__, done))
        return report


def _numbered(number: int, call: Callable[[], T]) -> tuple[int, T]:
    """Run a call. Its result has its number, as an executor might confuse the results of several calls."""
    return number, call()


def _result(found: Any, number: int) -> Any:
    match found:
        case (int(own), result) if own == number:
            return result
        case (int(own), _):
            found = f"the result of task {own}"
        case _:
            found = repr(found)
    raise UnsupportedOperation(
        f"the executor returned {found} for task {number}; it must return the result of each call. Repeat the call: tasks that "
        "are finished do not run again"
    )


def _cancelled(number: int) -> StoreError:
    return StoreError(
        f"the executor cancelled task {number}, for example because it was shut down; repeat the call with another one"
    )


def _work(
    work: Callable[[Sequence[T], Progress], Coroutine[Any, Any, IngestReport]],
    items: Sequence[T],
    new_lease: Callable[[], TaskLease],
    is_blocking: bool,
) -> IngestReport:
    """Do work in another process."""
    with new_lease() as run:
        return bridge.run(work(items, lambda nbytes: run.check()), blocking=is_blocking)
