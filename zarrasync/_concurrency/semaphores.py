"""Semaphores: counters that admit work first come, first served, across threads and event loops."""

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


class FifoSemaphore:
    """A counter that admits requests while they fit, in order of arrival, across threads and event loops.

    A request for more than the whole capacity is admitted alone. A call that blocks an event loop has the whole capacity
    for itself, because permits that it would wait for may be held by tasks of that loop. A call that a signal handler makes
    within another call is admitted at once, because the interrupted call may hold permits.

    Args:
        capacity: The amount that calls can hold at the same time.
        shared: Whether other calls also take permits. If not, a call that blocks an event loop waits like any other.
    """

    def __init__(self, capacity: int, *, shared: bool = True) -> None:
        self._initial, self._shared = capacity, shared
        self._reset()
        _semaphores.add(self)

    def _reset(self) -> None:
        self.capacity = self._free = self._initial
        self._waiters: deque[Waiter] = deque()
        self._lock = threading.RLock()  # a signal handler may interrupt its holder
        self._asides: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, FifoSemaphore] = weakref.WeakKeyDictionary()

    @property
    def free(self) -> int:
        """The amount that can be taken without waiting; negative while a call holds more than the capacity."""
        return self._free

    async def acquire(self, amount: int = 1) -> None:
        """Take an amount, waiting until it fits."""
        if BLOCKED_LOOP.get() is not None and (aside := self._aside()) is not None:
            await aside.acquire(amount)
            return
        with self._lock:
            is_free = not self._waiters and (amount <= self._free or self._free == self.capacity)
            if is_free or (self._shared and is_in_handler()):
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

    @property
    def _waiting(self) -> int:
        """The number of waiters, also of calls that block event loops."""
        return len(self._waiters) + sum(map(len, (aside._waiters for aside in self._asides.values())))  # noqa: SLF001  # of the same class

    def release(self, amount: int = 1) -> None:
        """Return an amount that the current call has taken."""
        if BLOCKED_LOOP.get() is not None and (aside := self._aside()) is not None:
            aside.release(amount)
            return
        with self._lock:
            self._free += amount
            if self._waiters:
                self._admit()

    def _aside(self) -> FifoSemaphore | None:
        """Return the semaphore of the current call if it blocks an event loop; there is one such call at a time."""
        loop = BLOCKED_LOOP.get() if self._shared else None
        if loop is None:
            return None
        with self._lock:
            if loop not in self._asides:
                self._asides[loop] = FifoSemaphore(self.capacity, shared=False)
            return self._asides[loop]

    def _fits(self, amount: int) -> bool:
        return amount <= self._free or self._free == self.capacity

    def _resize(self, capacity: int) -> None:
        self._free += capacity - self.capacity
        self.capacity = capacity
        self._admit()
        for aside in self._asides.values():
            with aside._lock:  # noqa: SLF001  # of the same class
                aside._resize(capacity)  # noqa: SLF001  # of the same class

    def _admit(self) -> None:
        while self._waiters and self._fits(self._waiters[0].amount):
            waiter = self._waiters.popleft()
            if waiter.wake():
                self._free -= waiter.amount


class SharedSemaphore(FifoSemaphore):
    """A semaphore of calls with different limits. Its capacity is the largest limit of the calls that use it now."""

    def __init__(self) -> None:
        super().__init__(0)

    def _reset(self) -> None:
        super()._reset()
        self._limits: dict[int, int] = {}

    async def enter(self, amount: int, limit: int) -> None:
        """Take an amount for a call with a limit, waiting until it fits."""
        with self._lock:
            self._limits[limit] = self._limits.get(limit, 0) + 1
            if limit > self.capacity or (limit < self.capacity and len(self._limits) == 1):
                self._resize(limit)
            if not self._waiters and (amount <= self._free or self._free == self.capacity):
                self._free -= amount
                return
        try:
            await self.acquire(amount)
        except BaseException:
            self.leave(0, limit)
            raise

    def leave(self, amount: int, limit: int) -> None:
        """Return the amount of a call with a limit."""
        with self._lock:
            self._free += amount
            self._limits[limit] -= 1
            if not self._limits[limit]:
                del self._limits[limit]
                if self._limits and (largest := max(self._limits)) != self.capacity:
                    self._resize(largest)
            if self._waiters:
                self._admit()


class NestedSemaphore(FifoSemaphore):
    """The semaphore of all calls with one limit, inside the semaphore of all calls: an amount is taken from both.

    Args:
        limit: The amount that the calls can hold at the same time.
        outer: The semaphore of calls with any limit.
    """

    def __init__(self, limit: int, outer: SharedSemaphore) -> None:
        super().__init__(limit)
        self._outer = outer

    async def acquire(self, amount: int = 1) -> None:
        await super().acquire(amount)
        if BLOCKED_LOOP.get() is None:
            try:
                await self._outer.enter(amount, self.capacity)
            except BaseException:
                super().release(amount)
                raise

    def release(self, amount: int = 1) -> None:
        if BLOCKED_LOOP.get() is None:
            self._outer.leave(amount, self.capacity)
        super().release(amount)


class Held:
    """An amount of a semaphore, held for the length of an ``async with`` block."""

    __slots__ = ("_amount", "_semaphore")

    def __init__(self, semaphore: FifoSemaphore, amount: int = 1) -> None:
        self._semaphore, self._amount = semaphore, amount

    async def __aenter__(self) -> None:
        await self._semaphore.acquire(self._amount)

    async def __aexit__(self, *error: object) -> None:
        self._semaphore.release(self._amount)


_semaphores: weakref.WeakSet[FifoSemaphore] = weakref.WeakSet()
_memory = SharedSemaphore()
_budgets: dict[int, NestedSemaphore] = {}
_turns: dict[int, FifoSemaphore] = {}
_lock = thread_lock()


def byte_budget(settings: config.Config) -> FifoSemaphore:
    """Return the semaphore of bytes in flight of calls with the same budget, inside the semaphore of the process."""
    limit = settings.memory_budget
    with _lock:
        if limit not in _budgets:
            _budgets[limit] = NestedSemaphore(limit, _memory)
        return _budgets[limit]


def thread_turns(settings: config.Config) -> FifoSemaphore:
    """Return the process-wide semaphore of threads that do bulk work on blocking stores."""
    capacity = 2 * settings.pool_size
    with _lock:
        if capacity not in _turns:
            _turns[capacity] = FifoSemaphore(capacity)
        return _turns[capacity]


@reset_in_child
def _reset_semaphores() -> None:
    for semaphore in list(_semaphores):
        semaphore._reset()  # noqa: SLF001  # not for users of a semaphore
