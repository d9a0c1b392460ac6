"""Gates: counters that admit work first come, first served, across threads and event loops."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from contextvars import ContextVar

from zarrasync import config
from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import reset_in_child, thread_lock
from zarrasync._concurrency.interrupts import is_in_handler

__all__ = ["BLOCKED_LOOP", "POLL_SECONDS", "FifoGate", "Permits", "Waiter", "byte_budget", "thread_turns"]

BLOCKED_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("zarrasync_blocked_loop", default=None)
"""The event loop that is blocked until the current call returns, if a sync call was made on the loop's own thread."""

POLL_SECONDS = 0.05
"""Seconds after which a waiting thread checks whether its call was cancelled."""


class Waiter:
    """A waiting thread or task. A thread waits for an event, a task for a future of its loop.

    Attributes:
        amount: The requested amount.
        granted: Whether the amount was granted.
    """

    __slots__ = ("_event", "_flag", "_future", "_loop", "amount", "granted")

    def __init__(self, amount: int) -> None:
        self.amount, self.granted = amount, False
        self._event: threading.Event | None = None
        self._future: asyncio.Future[None] | None = None
        if driven():
            self._event, self._flag = threading.Event(), cancel_flag()
        else:
            self._loop = asyncio.get_running_loop()
            self._future = self._loop.create_future()

    def wake(self) -> bool:
        """Wake the waiter; ``False`` if its event loop is closed."""
        if self._event is not None:
            self._event.set()
        else:
            try:
                self._loop.call_soon_threadsafe(self._wake_future)
            except RuntimeError:
                return False
        self.granted = True
        return True

    def _wake_future(self) -> None:
        assert self._future is not None
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait until the amount is granted.

        Raises:
            asyncio.CancelledError: If the call was cancelled.
        """
        if self._event is None:
            assert self._future is not None
            await self._future
            return
        while not clock.current().wait(self._event, POLL_SECONDS):
            if self._flag.cancelled:
                raise asyncio.CancelledError


class FifoGate:
    """A counter that admits requests while they fit, in order of arrival, across threads and event loops.

    A request for more than the whole capacity is admitted alone. A call that blocks an event loop is always admitted
    at once, because the permits it would wait for may be held by tasks of that loop. The same holds for a call that a
    signal handler makes within another call.

    Args:
        capacity: The amount that calls can hold at the same time.
        shared: Whether other calls also take permits. If not, a call that blocks an event loop waits like any other.
    """

    def __init__(self, capacity: int, *, shared: bool = True) -> None:
        self._initial, self._shared = capacity, shared
        self._reset()
        _gates.add(self)

    def _reset(self) -> None:
        self.capacity = self._free = self._initial
        self._waiters: deque[Waiter] = deque()
        self._lock = threading.RLock()  # a signal handler may interrupt its holder

    @property
    def free(self) -> int:
        """The amount that can be taken without waiting."""
        return self._free

    async def acquire(self, amount: int = 1) -> None:
        """Take an amount, waiting until it fits."""
        amount = min(amount, self.capacity)
        with self._lock:
            may_block = self._shared and (BLOCKED_LOOP.get() is not None or is_in_handler())
            if (not self._waiters and self._free >= amount) or may_block:
                self._free -= amount
                return
            waiter = Waiter(amount)
            self._waiters.append(waiter)
        try:
            await waiter.wait()
        except BaseException:
            with self._lock:
                if waiter.granted:
                    self._free += amount
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)
                self._admit()
            raise

    def release(self, amount: int = 1) -> None:
        """Return an amount that was taken."""
        with self._lock:
            self._free += min(amount, self.capacity)
            self._admit()

    def _admit(self) -> None:
        while self._waiters and self._waiters[0].amount <= self._free:
            waiter = self._waiters.popleft()
            if waiter.wake():
                self._free -= waiter.amount


class Permits:
    """An amount of a gate, held for the length of an ``async with`` block."""

    __slots__ = ("_amount", "_gate")

    def __init__(self, gate: FifoGate, amount: int) -> None:
        self._gate, self._amount = gate, amount

    async def __aenter__(self) -> None:
        await self._gate.acquire(self._amount)

    async def __aexit__(self, *error: object) -> None:
        self._gate.release(self._amount)


_gates: weakref.WeakSet[FifoGate] = weakref.WeakSet()
_budgets: dict[int, FifoGate] = {}
_turns: dict[int, FifoGate] = {}
_lock = thread_lock()


def byte_budget(settings: config.Config) -> FifoGate:
    """Return the process-wide gate of bytes in flight."""
    return _shared(_budgets, settings.memory_budget)


def thread_turns(settings: config.Config) -> FifoGate:
    """Return the process-wide gate of threads that do bulk work on blocking stores."""
    return _shared(_turns, 2 * settings.pool_size)


def _shared(gates: dict[int, FifoGate], capacity: int) -> FifoGate:
    with _lock:
        if capacity not in gates:
            gates[capacity] = FifoGate(capacity)
        return gates[capacity]


@reset_in_child
def _reset_gates() -> None:
    for gate in list(_gates):
        gate._reset()  # noqa: SLF001  # not for users of a gate
