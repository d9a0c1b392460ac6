"""Decoding and encoding for asynchronous stores: codec threads run the computations of an event loop's tasks in batches.

``config.pool_size`` threads work. For blocking stores, ``thread_choice`` chooses the number of threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from zarrasync._concurrency.offload import codec_pool, submit
from zarrasync._util.memory import keep_freed_memory
from zarrasync.config import Config

__all__ = ["CodecRunner"]

_Computation = Callable[[], Any]


class CodecRunner:
    """Runs computations of one event loop's tasks on the codec threads.

    While all threads are busy, computations queue. The next free thread takes a batch of them.
    """

    def __init__(self, settings: Config) -> None:
        keep_freed_memory()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[_Computation, int, asyncio.Future[Any]]] = deque()
        self._running: set[asyncio.Future[Any]] = set()
        self._starting = False

    async def run(self, function: _Computation, nbytes: int) -> Any:
        """Return the result of a function.

        Args:
            function: The computation.
            nbytes: Size of its result in bytes, which determines the size of batches.
        """
        outcome: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((function, nbytes, outcome))
        if not self._starting and len(self._running) < self._settings.pool_size:
            self._starting = True
            self._loop.call_soon(self._start)  # so that computations of the same loop iteration join the batch
        return await outcome

    async def join(self) -> None:
        """Drop computations that have not begun, and wait for the others."""
        self._queue.clear()
        while self._running:
            try:
                await asyncio.wait(set(self._running))
            except asyncio.CancelledError:
                continue  # the caller raises it again

    def _start(self) -> None:
        self._starting = False
        while self._queue and len(self._running) < self._settings.pool_size:
            functions, outcomes = self._next_batch()
            if functions:
                job = asyncio.wrap_future(
                    submit(codec_pool(self._settings), partial(_compute, functions)), loop=self._loop
                )
                self._running.add(job)
                job.add_done_callback(partial(self._finish, outcomes))

    def _next_batch(self) -> tuple[deque[_Computation], list[asyncio.Future[Any]]]:
        functions, outcomes, size = deque[_Computation](), list[asyncio.Future[Any]](), 0
        while self._queue and (not functions or size < self._settings.batch_bytes):
            function, nbytes, outcome = self._queue.popleft()
            if not outcome.cancelled():
                functions.append(function)
                outcomes.append(outcome)
                size += nbytes
        return functions, outcomes

    def _finish(self, outcomes: list[asyncio.Future[Any]], job: asyncio.Future[Any]) -> None:
        self._running.discard(job)
        for outcome, (result, error) in zip(outcomes, job.result(), strict=True):
            if outcome.cancelled():
                continue
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)
        self._start()


def _compute(functions: deque[_Computation]) -> list[tuple[Any, BaseException | None]]:
    """Return results and errors. Drop references to functions at once, because a thread may keep its job longer."""
    results: list[tuple[Any, BaseException | None]] = []
    while functions:
        try:
            results.append((functions.popleft()(), None))
        except BaseException as error:  # compiled code may raise one to panic; the caller must see it
            results.append((None, error))
    return results
