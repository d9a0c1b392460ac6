"""Running jobs on the calling thread with the help of others. ``thread_count`` decides how many threads decode."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CancelFlag, raise_if_cancelled
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gather import first_error
from zarrasync._concurrency.offload import codec_pool, helper_pool, run_on
from zarrasync._concurrency.semaphores import FifoSemaphore, thread_turns
from zarrasync._util.memory import keep_freed_memory
from zarrasync.config import Config
from zarrasync.transfer.limits import ONE_THREAD

T = TypeVar("T")
ThreadJob: TypeAlias = Callable[[], "Iterable[ThreadJob] | None"]
"""A piece of work; it may return further jobs."""

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were finished since the last call."""


class _Thread(threading.local):
    runs_job = False


_thread = _Thread()


def thread_count(settings: Config, work: int, most: int) -> int:
    """Return the number of threads that share work.

    Args:
        settings: The settings, which limit it.
        work: Bytes to decode, or an equivalent of them.
        most: Maximum number.
    """
    return max(1, min(settings.pool_size, most, 1 + work // ONE_THREAD))


def run_jobs(jobs: Iterable[ThreadJob], settings: Config, flag: CancelFlag, threads: int) -> None:
    """Run jobs on this thread, with the help of free threads.

    The caller works too, so it never waits for a busy pool, and a single job needs no thread switch. If many threads
    call at the same time, each works alone, and only as many run at a time as keep cores and disk busy. After the
    first failure or cancellation no further job begins; helpers have stopped when this returns or raises.

    Args:
        jobs: The jobs. An iterable that is not a sequence is advanced as jobs begin.
        settings: The settings, which determine the size of the pool and the number of requests.
        flag: Set from elsewhere to stop; set here on failure.
        threads: Maximum number of threads, including this one.

    Raises:
        asyncio.CancelledError: If the flag was set from elsewhere.
    """
    while isinstance(jobs, Sequence) and len(jobs) < 2:  # nothing to share
        jobs = [] if flag.cancelled else [more for job in jobs for more in job() or ()]
        if not jobs:
            _raise_if_cancelled(flag)
            return
    if settings.concurrency:  # each thread makes one request at a time
        threads = min(threads, settings.concurrency)
    turns, nested = thread_turns(settings), _thread.runs_job
    if not nested:  # a job that calls this has its turn already
        drive(turns.acquire())
    try:
        StealingPool(jobs, settings, flag, threads, turns).run()
    finally:
        if not nested:
            turns.release()


class StealingPool:
    """Jobs that this thread and its helpers share; a thread without work steals jobs from another.

    Each thread gets a stretch of neighbouring jobs, because if two threads touch a fresh page of the output at the same
    time, the system clears two pages and discards one. Jobs that a job returns run next on the same thread, because its
    caches contain their memory. A thread without jobs takes one from the end of the longest queue.

    ``_lock`` guards the stretches, the source, the queues and the list of helpers.
    """

    def __init__(
        self, jobs: Iterable[ThreadJob], settings: Config, flag: CancelFlag, threads: int, turns: FifoSemaphore
    ) -> None:
        self._settings, self._flag, self._threads, self._turns = settings, flag, threads, turns
        self._stretches = _stretches(jobs, threads) if isinstance(jobs, Sequence) else []
        self._source = iter(()) if self._stretches else iter(jobs)
        self._queues: list[deque[ThreadJob]] = []
        self._helpers: list[Future[None]] = []
        self._starting = 0
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all jobs; raise the first error."""
        keep_freed_memory()
        try:
            self._call_helpers(len(self._stretches) - 1 if self._stretches else self._threads - 1)
            while True:
                self._work()
                self._stop_helpers()
                if self._flag.cancelled or not any(self._queues):
                    break
        except BaseException:  # Ctrl-C again, after a first one that had no effect for seconds
            self._flag.cancel()
            self._stop_helpers()
            raise
        if self._errors:
            raise self._errors[0]
        _raise_if_cancelled(self._flag)

    def _work(self) -> None:
        """Run jobs until the queue is empty. Runs on each thread."""
        queue = deque[ThreadJob]()
        with self._lock:
            self._queues.append(queue)
        nested, _thread.runs_job = _thread.runs_job, True
        try:
            while (job := self._take(queue)) is not None:
                more = list(job() or ())
                if more:
                    with self._lock:
                        queue.extendleft(reversed(more))
                    self._call_helpers(len(queue))
        except BaseException as error:
            self._errors.append(error)
            self._flag.cancel()
        finally:
            _thread.runs_job = nested

    def _take(self, queue: deque[ThreadJob]) -> ThreadJob | None:
        """Return the next job of a thread: its own, the next of a lazy source, or one of another thread."""
        with self._lock:
            if self._flag.cancelled:
                return None
            if not queue and self._stretches:
                queue.extend(self._stretches.pop(0))
            job = queue.popleft() if queue else next(self._source, None)
            if job is None:
                longest = max(self._queues, key=len)
                job = longest.pop() if longest else None
            return job

    def _call_helpers(self, jobs: int) -> None:
        """Start helpers for ``jobs`` jobs, as far as threads are free."""
        with self._lock:
            self._helpers[:] = [helper for helper in self._helpers if not helper.done()]
            # Every other thread that has a turn may need a core.
            free_threads = self._settings.pool_size - self._turns.capacity + self._turns.free
            wanted = self._threads - 1 - len(self._helpers) - self._starting
            count = max(0, min(wanted, jobs, free_threads))
            self._starting += count
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: work without help
            pool = helper_pool(self._settings)
            for _ in range(count):  # added one by one, as another submission may fail
                # In the caller's context: spans of traces begin below the current one.
                helper = pool.submit(copy_context().run, self._work)
                with self._lock:
                    self._helpers.append(helper)
        with self._lock:
            self._starting -= count

    def _stop_helpers(self) -> None:
        """Wait for helpers that work, and cancel the others."""
        while True:  # a helper that ends may have started another one
            with self._lock:
                pending = [helper for helper in self._helpers if not helper.done() and not helper.cancel()]
            if not pending:
                return
            clock.current().wait_for(pending)


def _stretches(jobs: Sequence[ThreadJob], threads: int) -> list[deque[ThreadJob]]:
    """Split jobs into stretches of neighbouring jobs, one of about equal length for each thread."""
    size = -(-len(jobs) // threads)
    return [deque(jobs[start : start + size]) for start in range(0, len(jobs), size)]


def _raise_if_cancelled(flag: CancelFlag) -> None:
    """Raise if the flag was set from elsewhere, so that no caller assumes that the work is complete."""
    if flag.cancelled:
        raise asyncio.CancelledError


@contextlib.asynccontextmanager
async def codec_runner(settings: Config) -> AsyncIterator[CodecRunner]:
    """Provide a runner of the computations of a call's tasks. At the end none of them runs, even if the call fails or is cancelled.

    Args:
        settings: The settings, which determine the number of threads and the size of batches.
    """
    keep_freed_memory()
    try:
        async with asyncio.TaskGroup() as group:
            yield CodecRunner(settings, group)
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None


class CodecRunner:
    """Runs computations of a call's tasks on the codec threads.

    While all threads are busy, computations queue, and the next free thread takes a batch of them. Passing each one to a
    thread would take longer than encoding a small chunk. Calls share the threads fairly, because each passes them only
    as many batches as keep them busy.

    Args:
        settings: The settings.
        group: The group of the tasks that wait for batches.
    """

    def __init__(self, settings: Config, group: asyncio.TaskGroup) -> None:
        self._settings, self._group = settings, group
        self._queue: deque[tuple[Callable[[], Any], int, asyncio.Future[Any]]] = deque()
        self._running = 0

    async def run(self, function: Callable[[], T], nbytes: int) -> T:
        """Return the result of a function.

        Args:
            function: The computation.
            nbytes: The bytes that it works on, which determine the size of batches.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((function, nbytes, outcome))
        if self._running < self._settings.pool_size:
            self._running += 1
            self._group.create_task(self._work())  # it begins after other tasks that are ready have added theirs
        return await outcome

    async def _work(self) -> None:
        while self._queue:
            await self._run_batch()
        self._running -= 1

    def _next_batch(self) -> tuple[deque[Callable[[], Any]], list[asyncio.Future[Any]]]:
        functions, outcomes, size = deque[Callable[[], Any]](), list[asyncio.Future[Any]](), 0
        while self._queue and size < self._settings.batch_bytes:
            function, nbytes, outcome = self._queue.popleft()
            functions.append(function)
            outcomes.append(outcome)
            size += nbytes
        return functions, outcomes

    async def _run_batch(self) -> None:
        functions, outcomes = self._next_batch()
        results = await run_on(codec_pool(self._settings), partial(_compute, functions))
        for outcome, (result, error) in zip(outcomes, results, strict=True):
            if outcome.done():  # cancelled
                continue
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)


def _compute(functions: deque[Callable[[], Any]]) -> list[tuple[Any, BaseException | None]]:
    """Return results and errors of functions. Each function is dropped after its call, to free its memory."""
    results: list[tuple[Any, BaseException | None]] = []
    while functions:
        raise_if_cancelled()
        try:
            results.append((functions.popleft()(), None))
        except BaseException as error:  # compiled code may raise one to panic; the caller must see it
            results.append((None, error))
    return results
