"""Where work runs and who waits for whom: drivers, worker threads, gates, and key locks.

A coroutine of this library runs in one of two ways. On an event loop it suspends as usual. *Driven*,
it runs on the calling thread and never suspends: everything it awaits finishes at once or blocks
that thread. Which way is said by who starts it (``drive`` or a loop) and never guessed from whether
a loop happens to run in the thread: in Jupyter one always does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from zarrasync import config
from zarrasync._concurrency.deliveries import deliveries_of

__all__ = [
    "BLOCKED_LOOP",
    "Cancel",
    "Gate",
    "KeyLock",
    "KeyLocks",
    "budget",
    "cancel_flag",
    "codec_pool",
    "drive",
    "driven",
    "in_worker",
    "name_lookup",
    "regardless",
    "submit",
    "turns",
    "under_lock",
]

T = TypeVar("T")

logging.getLogger("zarrasync").addHandler(logging.NullHandler())

# ------------------------------------------------------------------ driving


class _Thread(threading.local):
    driving = 0


_thread = _Thread()


def driven() -> bool:
    """Whether the code that asks runs on a driven coroutine, so that it may and must block."""
    return _thread.driving > 0


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, here and now."""
    _thread.driving += 1
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # typeshed has no type for it
    finally:
        _thread.driving -= 1
    coroutine.close()
    raise RuntimeError("a store that calls itself blocking waited for an event loop; set its `blocking` to False")


# ------------------------------------------------------------------ worker threads

_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


def _pool(name: str, size: int) -> ThreadPoolExecutor:
    with _pools_lock:
        pool = _pools.get((name, size))
        if pool is None:
            pool = _pools[name, size] = ThreadPoolExecutor(size, thread_name_prefix=f"zarrasync-{name}")
        return pool


def submit(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """Have a thread of a pool do something.

    Pools take nothing more once the main thread has ended; for other threads that go on one is started then.
    """
    try:
        return pool.submit(work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        job = Future[T]()

        def run() -> None:
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work())
                except BaseException as error:
                    job.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return job


async def name_lookup(host: str, port: int) -> list[Any]:
    """The addresses of a host, as ``socket.getaddrinfo`` tells them."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return await asyncio.wrap_future(submit(_pool("names", 4), ask))


def helper_pool(settings: config.Config) -> ThreadPoolExecutor:
    """The threads that help callers on blocking stores. Nobody depends on them: callers work themselves."""
    return _pool("helper", settings.pool_size)


def codec_pool(settings: config.Config) -> ThreadPoolExecutor:
    """The threads that decode and encode. Their jobs never wait for a gate, so they always get done."""
    return _pool("codec", settings.pool_size)


class Cancel:
    """A flag that jobs look at between chunks; it counts as set if the one above it is, not the other way round."""

    __slots__ = ("_above", "_own")

    def __init__(self, above: Cancel | None = None) -> None:
        self._above, self._own = above, False

    @property
    def set(self) -> bool:
        """Whether to stop."""
        return self._own or (self._above is not None and self._above.set)

    @set.setter
    def set(self, value: bool) -> None:
        self._own = value


_cancel: ContextVar[Cancel | None] = ContextVar("zarrasync_cancel", default=None)


def cancel_flag() -> Cancel:
    """A flag for a piece of work, below that of the call that it belongs to."""
    return Cancel(_cancel.get())


@contextlib.contextmanager
def regardless() -> Iterator[None]:
    """What is done inside goes on though the call that it belongs to was cancelled: it tidies up."""
    token = _cancel.set(None)
    try:
        yield
    finally:
        _cancel.reset(token)


async def in_worker(make: Callable[[], Coroutine[Any, Any, T]], *, computing: bool = False) -> T:
    """Run a coroutine of blocking work driven: here if this is driven already, else on a worker thread.

    Cancelling the caller sets the work's cancel flag and waits until the work has noticed, so that
    nothing writes into the caller's memory afterwards.

    Args:
        make: Makes the coroutine.
        computing: Whether the work hardly waits: then a thread for each core and one more is enough, so that one
            may be in the kernel; others would only take the interpreter from each other.
    """
    if driven():
        return await make()
    flag = Cancel()
    context = copy_context()
    context.run(_cancel.set, flag)
    cores = config.get().pool_size
    pool = _pool("computing", cores + 1) if computing else _pool("io", max(8, 2 * cores))
    loop = asyncio.get_running_loop()
    outcome: _Outcome[T] = _Outcome(loop, flag)
    deliveries = deliveries_of(loop)
    held = [make]  # a thread may have its job in its hands for a while after it was done, but not what it was about

    def work() -> None:
        result, error = None, None
        try:
            if flag.set:  # it was cancelled while it waited for a thread
                raise asyncio.CancelledError
            result = context.run(lambda: drive(held.pop()()))
        except BaseException as raised:
            error = raised
        deliveries.hand(outcome, result, error)

    outcome.job = submit(pool, work)
    try:
        return await outcome
    finally:
        if outcome.done() and not outcome.cancelled():
            outcome.exception()  # of a cancelled call nobody hears of it


async def aside(function: Callable[[], T]) -> T:
    """What a computation comes to that would hold up an event loop."""

    async def work() -> T:
        return function()

    return await in_worker(work, computing=True)


class _Outcome(asyncio.Future[T]):
    """What a job on a worker thread comes to. Whoever is cancelled while waiting for it waits until it has stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, flag: Cancel) -> None:
        super().__init__(loop=loop)
        self._flag = flag
        self.job: Future[None]

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask the job to stop. ``False`` if it has begun: it ends this future then, and a waiting task is cancelled."""
        self._flag.set = True
        return self.job.cancel() and super().cancel(msg)


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def thread_lock() -> threading.Lock:
    """A lock for threads that a forked child finds free, whoever of its parent's threads held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


# ------------------------------------------------------------------ gates

BLOCKED_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("zarrasync_blocked_loop", default=None)
"""The loop whose thread stands still until the present call returns, if a sync call was made there."""


_CALM = 1.0
"""Seconds between two times that a gate shrinks."""
_AS_QUICK = 2.0
"""Times as long as the quickest that an answer of an unburdened server may take."""
SLICE = 0.05
"""Seconds after which a waiting thread looks whether its call was cancelled."""


class _Waiter:
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
        """Let the waiter through; ``False`` if its loop is gone, and it with it."""
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
        if self._event is None:
            assert self._future is not None
            await self._future
            return
        while not self._event.wait(SLICE):
            if self._flag.set:
                raise asyncio.CancelledError


class Gate:
    """A counter that lets through what fits, first come first served, across threads and loops.

    Who asks for more than the whole capacity is let through alone. A call that a blocked loop waits for
    is never kept waiting: those it would wait for may be tasks of that loop.

    Args:
        capacity: What fits at first.
        most: What it may grow to while all goes well; as much as at first if 0.
    """

    def __init__(self, capacity: int, most: int = 0) -> None:
        self._usual, self._given = capacity, max(capacity, most)
        self._reset()
        _gates.add(self)

    def _reset(self) -> None:
        self.capacity = self._free = self._usual
        self._most = self._given
        self._shrunk, self._successes, self._quickest = 0.0, 0, math.inf
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    async def acquire(self, amount: int = 1) -> None:
        """Take, waiting until it fits."""
        amount = min(amount, self.capacity)
        with self._lock:
            if (not self._waiters and self._free >= amount) or BLOCKED_LOOP.get() is not None:
                self._free -= amount
                return
            waiter = _Waiter(amount)
            self._waiters.append(waiter)
        try:
            await waiter.wait()
        except BaseException:
            with self._lock:
                if waiter.granted:
                    self._free += amount
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)
                self._wake()
            raise

    def release(self, amount: int = 1) -> None:
        """Give back what was taken."""
        with self._lock:
            self._free += min(amount, self.capacity)
            self._wake()

    def shrink(self) -> None:
        """Let fewer through: the other side asked for it. At most once in a while, as many may hear it at once."""
        with self._lock:
            now = time.monotonic()
            self._most = self._usual
            if now - self._shrunk < _CALM or self.capacity < 2:
                return
            self._shrunk = now
            self._resize(self.capacity // 2)

    def calm(self) -> None:
        """Something failed: never again let more through than at first."""
        with self._lock:
            self._most = self._usual
            self._resize(min(self.capacity, self._usual))

    def grow(self, seconds: float) -> None:
        """Count a success, which took so long.

        What was shrunk grows by one after as many as the capacity. Beyond what it was at first it grows by one with each
        while the other side is as quick as ever, and only if there is a long queue: who opens more connections for a
        short one waits longer for them than for those that will be free.
        """
        if self.capacity >= self._most:
            return
        with self._lock:
            self._quickest = min(self._quickest, seconds)
            if self.capacity < self._usual:
                self._successes += 1
                ready = self._successes >= self.capacity
            else:
                long = 4 * len(self._waiters) >= self.capacity
                ready = long and seconds <= _AS_QUICK * self._quickest and self.capacity < self._most
            if ready:
                self._successes = 0
                self._resize(self.capacity + 1)

    def _resize(self, capacity: int) -> None:
        self._free += capacity - self.capacity
        self.capacity = capacity
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self._waiters[0].amount <= self._free:
            waiter = self._waiters.popleft()
            if waiter.wake():
                self._free -= waiter.amount

    @property
    def free(self) -> int:
        """What can be taken now."""
        return self._free


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_budgets: dict[int, Gate] = {}


def budget(settings: config.Config) -> Gate:
    """The process-wide gate of bytes in flight."""
    return _shared(_budgets, settings.memory_budget)


_turns: dict[int, Gate] = {}


def turns(settings: config.Config) -> Gate:
    """The process-wide gate of threads that do bulk work on blocking stores."""
    return _shared(_turns, 2 * settings.pool_size)


_shared_lock = threading.Lock()


def _shared(gates: dict[int, Gate], capacity: int) -> Gate:
    with _shared_lock:
        if capacity not in gates:
            gates[capacity] = Gate(capacity)
        return gates[capacity]


_limiters: weakref.WeakValueDictionary[Hashable, Gate] = weakref.WeakValueDictionary()
_learnt: deque[Gate] = deque(maxlen=64)
"""Gates that are kept though nobody uses them now: they know how much their servers bear."""


def limiter(identity: Hashable, capacity: int, most: int = 0) -> Gate:
    """The gate of requests in flight to one store, shared by all who opened it."""
    with _shared_lock:
        gate = _limiters.get((identity, capacity, most))
        if gate is None:
            gate = _limiters[identity, capacity, most] = Gate(capacity, most)
            _learnt.append(gate)
        return gate


# ------------------------------------------------------------------ key locks


class KeyLock:
    """A lock on one stored value, for all tasks, threads and loops of the process.

    An async context manager. Two opens of the same data share it, as its identity is physical (real
    path; endpoint, bucket and key).

    Raises:
        RuntimeError: On entering, if a task of a loop that is blocked by this very call holds the lock.
    """

    __slots__ = ("_identity",)

    def __init__(self, identity: Hashable) -> None:
        self._identity = identity

    async def __aenter__(self) -> None:
        me = None if driven() else asyncio.get_running_loop()
        with _keys_lock:
            held = _keys.get(self._identity)
            if held is None:
                _keys[self._identity] = _Held(me)
                _held_locks.set(_held_locks.get() + 1)
                return
            blocked = BLOCKED_LOOP.get()
            if blocked is not None and blocked in (held.loop, *(loop for _, loop in held.waiters)):
                raise RuntimeError(
                    "a synchronous write would wait for an asynchronous one of the event loop that it blocks; "
                    "await the other write first, or make this one asynchronous too"
                )
            waiter = _Waiter(1)
            held.waiters.append((waiter, me))
        try:
            await waiter.wait()
        except BaseException:
            with _keys_lock:
                if waiter.granted:
                    self._pass_on()
                elif (waiter, me) in held.waiters:
                    held.waiters.remove((waiter, me))
            raise
        _held_locks.set(_held_locks.get() + 1)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _held_locks.set(_held_locks.get() - 1)
        with _keys_lock:
            self._pass_on()

    def _pass_on(self) -> None:
        held = _keys[self._identity]
        while held.waiters:
            waiter, held.loop = held.waiters.popleft()
            if waiter.wake():
                return
        del _keys[self._identity]


_held_locks: ContextVar[int] = ContextVar("zarrasync_held_locks", default=0)


def under_lock() -> bool:
    """Whether the present call holds a lock on a value, so that what it reads is what it will change."""
    return _held_locks.get() > 0


class KeyLocks:
    """Locks on several values of one store. An async context manager.

    They are taken in one step if all are free, and otherwise one after the other in the order given,
    which must be the same for all who ask for several, so that nobody waits in a circle.
    """

    __slots__ = ("_held", "_identities")

    def __init__(self, identities: Sequence[Hashable]) -> None:
        self._identities = identities
        self._held: AsyncExitStack | None = None

    async def __aenter__(self) -> None:
        me = None if driven() else asyncio.get_running_loop()
        with _keys_lock:
            if _keys.keys().isdisjoint(self._identities):
                _keys.update({identity: _Held(me) for identity in self._identities})
                _held_locks.set(_held_locks.get() + 1)
                return
        async with AsyncExitStack() as stack:
            for identity in self._identities:
                await stack.enter_async_context(KeyLock(identity))
            self._held = stack.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is not None:
            await self._held.aclose()
            return
        _held_locks.set(_held_locks.get() - 1)
        with _keys_lock:
            for identity in self._identities:
                KeyLock(identity)._pass_on()


class _Held:
    __slots__ = ("loop", "waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.waiters: deque[tuple[_Waiter, asyncio.AbstractEventLoop | None]] = deque()


_keys: dict[Hashable, _Held] = {}
_keys_lock = threading.Lock()

# ------------------------------------------------------------------ fork


def _after_fork() -> None:
    """In a forked child no other thread exists: pools are gone, and what they held is free."""
    global _pools_lock, _shared_lock, _keys_lock
    _pools_lock, _shared_lock, _keys_lock = threading.Lock(), threading.Lock(), threading.Lock()
    _pools.clear()
    _keys.clear()
    _thread.driving = 0
    for gate in list(_gates):
        gate._reset()
    for lock in list(_locks):
        lock._at_fork_reinit()  # what the standard library does with its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
