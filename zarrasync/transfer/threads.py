"""How the engine's jobs run: on the caller's thread with helpers, or beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gates import thread_turns
from zarrasync._concurrency.pools import codec_pool, helper_pool, submit
from zarrasync._util.memory import empty, keep_freed
from zarrasync.config import Config
from zarrasync.errors import CodecError

__all__ = ["Computer", "Job", "Progress", "run_jobs", "scratch"]

Job: TypeAlias = Callable[[], "Iterable[Job] | None"]
"""A piece of work; it may return more of it."""

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were finished since the last call."""


def run_jobs(jobs: Iterable[Job], settings: Config, flag: CancelFlag, threads: int) -> None:
    """Do jobs on this thread, with help from other threads where there are free ones.

    The caller works itself, so it never waits for a pool that is busy with others, and a single job
    of a sequence costs no hand-over, nor does the only one that it returns. Where many threads call at once each works
    alone, and no more of them at a time than keep cores and disk busy. Each thread has a stretch of a list of jobs for itself, as neighbours
    share pages of the output: threads that touch a fresh page at the same time both have it cleared, and
    one of the two is thrown away. What a job returns is done next by the thread that did it, as its
    memory is near; a thread that has nothing takes a job from another's end. After the first failure or
    a set flag no further job is begun; helpers have stopped when this returns or raises.

    Args:
        jobs: What to do; what is not a sequence is advanced as jobs are begun.
        settings: For the pool.
        flag: Set from elsewhere to stop; set here on failure.
        threads: Threads to use at the most, this one included.

    Raises:
        CancelledError: If the flag was set from elsewhere.
    """
    while isinstance(jobs, Sequence) and len(jobs) < 2:  # nothing that others could help with
        jobs = [] if flag.cancelled else [more for job in jobs for more in job() or ()]
        if not jobs:
            _check(flag)
            return
    gate, nested = thread_turns(settings), _local.working
    if not nested:  # else a job of this thread makes this call
        drive(gate.acquire())
    try:
        _share(jobs, settings, flag, threads)
    finally:
        if not nested:
            gate.release()


def _share(jobs: Iterable[Job], settings: Config, flag: CancelFlag, threads: int) -> None:
    """Do jobs on this thread and helpers."""
    keep_freed()
    gate = thread_turns(settings)
    stretches = _stretches(jobs, threads) if isinstance(jobs, Sequence) else []
    source = iter(()) if stretches else iter(jobs)
    queues: list[deque[Job]] = []
    lock = threading.Lock()
    errors: list[BaseException] = []
    helpers: list[Future[None]] = []

    def take(own: deque[Job]) -> Job | None:
        with lock:
            if flag.cancelled:
                return None
            if not own and stretches:
                own.extend(stretches.pop(0))
            job = own.popleft() if own else next(source, None)
            if job is None:
                longest = max(queues, key=len)
                job = longest.pop() if longest else None
            return job

    def stop_helpers() -> None:
        while True:  # one that ends may have called for another one
            with lock:
                pending = [helper for helper in helpers if not helper.done() and not helper.cancel()]
            if not pending:
                return
            wait(pending)

    def work() -> None:
        own = deque[Job]()
        with lock:
            queues.append(own)
        before, _local.working = _local.working, True
        try:
            while (job := take(own)) is not None:
                more = list(job() or ())
                if more:
                    with lock:
                        own.extendleft(reversed(more))
                    call_for_help(len(own))
        except BaseException as error:
            errors.append(error)
            flag.cancel()
        finally:
            _local.working = before

    def call_for_help(amount: int) -> None:
        with lock:
            helpers[:] = [helper for helper in helpers if not helper.done()]
            missing = min(threads - 1 - len(helpers), amount, settings.pool_size - gate.capacity + gate.free)
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: then without help
                # In the caller's context: spans of traces begin below the current one.
                helpers.extend(helper_pool(settings).submit(copy_context().run, work) for _ in range(missing))

    try:
        call_for_help(len(stretches) - 1 if stretches else threads - 1)
        while True:
            work()
            stop_helpers()
            if flag.cancelled or not any(queues):
                break
    except BaseException:  # Ctrl-C on this thread
        flag.cancel()
        stop_helpers()
        raise
    if errors:
        raise errors[0]
    _check(flag)


def _stretches(jobs: Sequence[Job], threads: int) -> list[deque[Job]]:
    """Jobs that follow each other, for each thread as many."""
    size = -(-len(jobs) // threads)
    return [deque(jobs[start : start + size]) for start in range(0, len(jobs), size)]


def _check(flag: CancelFlag) -> None:
    if flag.cancelled:  # from elsewhere: what comes after must not take the work for done
        raise asyncio.CancelledError


class _Local(threading.local):
    def __init__(self) -> None:
        self.held: dict[str, npt.NDArray[np.uint8]] = {}
        self.working = False


_local = _Local()
_KEEP = 32 << 20


class scratch:
    """Memory of this thread for the length of a block; fresh pages cost more than decoding into them.

    It is taken out of its place while in use, so whoever is called meanwhile gets another piece.

    Args:
        purpose: What for: there is one piece for each.
        size: Bytes.

    Raises:
        CodecError: On entering, if there is not so much memory.
    """

    __slots__ = ("_held", "_purpose", "_size")

    def __init__(self, purpose: str, size: int) -> None:
        self._purpose, self._size = purpose, size

    def __enter__(self) -> npt.NDArray[np.uint8]:
        held = _local.held.pop(self._purpose, None)
        if held is None or len(held) < self._size:
            try:
                held = empty(self._size)
            except MemoryError as error:
                raise CodecError(f"a chunk of {self._size:,} bytes does not fit into memory") from error
        self._held = held
        return held[: self._size]

    def __exit__(self, *error: object) -> None:
        if len(self._held) <= _KEEP:
            _local.held[self._purpose] = self._held


class Computer:
    """Runs short computations for an event loop on the codec pool, several to a hand-over.

    While all threads are busy computations gather; the next free thread takes as many as make a batch.
    """

    def __init__(self, settings: Config) -> None:
        keep_freed()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[], Any], int, asyncio.Future[Any]]] = deque()
        self._running: set[asyncio.Future[Any]] = set()
        self._starting = False

    async def run(self, function: Callable[[], Any], nbytes: int) -> Any:
        """The function's result; ``nbytes`` says how much work it is."""
        done: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((function, nbytes, done))
        if not self._starting and len(self._running) < self._settings.pool_size:
            self._starting = True
            self._loop.call_soon(self._start)  # what arrives in the same turn of the loop goes along
        return await done

    def _start(self) -> None:
        self._starting = False
        while self._waiting and len(self._running) < self._settings.pool_size:
            batch: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
            size = 0
            while self._waiting and (not batch or size < self._settings.batch_bytes):
                function, nbytes, done = self._waiting.popleft()
                if not done.cancelled():
                    batch.append((function, done))
                    size += nbytes
            if batch:
                work = partial(_compute, deque(function for function, _ in batch))
                job = asyncio.wrap_future(submit(codec_pool(self._settings), work), loop=self._loop)
                self._running.add(job)
                job.add_done_callback(lambda job, batch=batch: self._finish(job, batch))  # type: ignore[misc]  # mypy does not infer a lambda's default

    def _finish(self, job: asyncio.Future[Any], batch: list[tuple[Callable[[], Any], asyncio.Future[Any]]]) -> None:
        self._running.discard(job)
        for (_, done), (result, error) in zip(batch, job.result(), strict=True):
            if done.cancelled():
                continue
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)
        self._start()

    async def join(self) -> None:
        """Wait until nothing runs any more; what has not begun is dropped."""
        self._waiting.clear()
        while self._running:
            try:
                await asyncio.wait(set(self._running))
            except asyncio.CancelledError:
                continue  # the caller raises it again


def _compute(functions: deque[Callable[[], Any]]) -> list[tuple[Any, BaseException | None]]:
    """What functions come to. They are let go of: their thread may have its job in its hands for longer."""
    results: list[tuple[Any, BaseException | None]] = []
    while functions:
        try:
            results.append((functions.popleft()(), None))
        except BaseException as error:  # compiled code may panic with one; the caller must hear of it
            results.append((None, error))
    return results
