"""The scheduler: it decides from a seed which client, thread or message is next, and what time it is.

A *client* stands for a process. It has an event loop of its own, which runs its callbacks in the order that asyncio
promises, and threads of its own. What is random is whose turn it is, and how long things take. Time passes only while
nothing can run. A client can be *killed* between any two steps: it never runs again, and none of its clean-up does.

Threads are real ones, because the library keeps state by thread, but only one runs at a time: it has the *baton* until
it parks, in a call of ``environment.SimulatedEnvironment`` or of the simulated operating system.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from zarrasync import config

__all__ = ["Client", "Killed", "Scheduler", "Stuck", "client_of_this_call"]

_MOST_STEPS = 200_000
"""Steps after which a simulation counts as one that never ends."""

client_of_this_call: ContextVar[Client | None] = ContextVar("client", default=None)
"""The client that the running code belongs to."""


class Killed(BaseException):
    """Raised in the threads of a killed client, so that they end."""


class Stuck(AssertionError):
    """Nothing can run any more although work is left, or it never ends."""


class _Task(asyncio.Task):
    """A task whose hash does not depend on its address, so that sets of tasks have the same order in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Loop(asyncio.AbstractEventLoop):
    """The event loop of a client. The scheduler runs its callbacks."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[int, _Task] = {}
        self.errors: list[dict[str, Any]] = []
        self._scheduler, self._closed = scheduler, False

    def __repr__(self) -> str:
        return f"<loop of {self.name}>"

    def time(self) -> float:
        return self._scheduler.now

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.ready.clear()

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self.ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        if self._closed:
            raise RuntimeError("Event loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduler.call_at(when, lambda: self._when_due(handle))
        return handle

    def _when_due(self, handle: asyncio.TimerHandle) -> None:
        if not self._closed and not handle.cancelled():
            self.ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> Any:
        task = _Task(coro, loop=self, name=name, context=context)
        number = task.number = self._scheduler.next_number()
        self.tasks[number] = task
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: Any) -> None:
        self.tasks.pop(task.number, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)


class Client:
    """A process of the simulated world.

    Attributes:
        name: Its name, for histories.
        loop: Its event loop.
        dead: Whether it was killed.
        steps: How many steps it has made.
    """

    def __init__(self, scheduler: Scheduler, name: str, number: int) -> None:
        self.scheduler, self.name, self.number = scheduler, name, number
        self.loop = Loop(scheduler, name)  # type: ignore[abstract]  # what the library calls is there
        self.dead = self.stalled = False
        self.steps, self.dies_at = 0, 0
        self.on_death: list[Callable[[], None]] = []
        self._context = copy_context()
        self._context.run(client_of_this_call.set, self)

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start a task of this client."""
        return self.loop.create_task(coroutine, name=name, context=self._context.copy())

    def configure(self, **settings: Any) -> None:
        """Change settings of the library in the tasks that this client starts from now on."""
        self._context.run(config.set(**settings).__enter__)

    def kill(self) -> None:
        """End the process. Nothing of it runs any more, and the system closes its files."""
        if not self.dead:
            self.dead = True
            self.loop.close()
            for release in self.on_death:
                release()

    def count_step(self) -> None:
        """Count a step, and die if it was the last one.

        Raises:
            Killed: If this client is dead.
        """
        self.steps += 1
        if self.steps == self.dies_at:
            self.kill()
        if self.dead:
            raise Killed

    def dispose(self) -> None:
        """Close what tasks of a killed client have left, without running it as if the client lived."""
        self.loop.close()
        asyncio._set_running_loop(self.loop)
        try:
            while self.loop.tasks:  # closing one may start another
                _, task = self.loop.tasks.popitem()
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # of C
                _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)


def _close(coroutine: Any) -> None:
    for _ in range(100):
        try:
            coroutine.close()
            return
        except BaseException:  # a handler awaits something, or raises
            continue


class SimulatedThread:
    """A thread that runs only while it has the baton."""

    def __init__(self, scheduler: Scheduler, client: Client, work: Callable[[], object]) -> None:
        self._scheduler, self.client, self._work = scheduler, client, work
        self._baton = threading.Lock()
        self._baton.acquire()
        self.is_ready: Callable[[], bool] = lambda: True
        self.done = False
        self._deadline = -1.0
        _start_worker(self._run)

    @property
    def runnable(self) -> bool:
        """Whether it can go on now."""
        if self.client.dead:
            return True
        return not self.client.stalled and (self.is_ready() or 0 <= self._deadline <= self._scheduler.now)

    def resume(self) -> None:
        """Give the baton to this thread, and return when it has parked or ended. Called by the scheduler."""
        self._baton.release()
        self._scheduler.baton.acquire()

    def park(self, is_ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Give the baton back until a condition holds or some time has passed. Called by the thread itself.

        Raises:
            Killed: If the client is dead.
        """
        if self.client.dead:
            raise Killed
        self.is_ready, self._deadline = is_ready, -1.0
        if seconds is not None:
            self._deadline = self._scheduler.now + seconds
            self._scheduler.call_at(self._deadline, lambda: None)
        self._scheduler.baton.release()
        self._baton.acquire()
        self.client.count_step()

    def _run(self) -> None:
        self._baton.acquire()
        _this_thread.thread = self
        try:
            if not self.client.dead:
                self._work()
        except Killed:
            pass
        finally:
            _this_thread.thread = None
            self.done = True
            self._scheduler.baton.release()


class _ThisThread(threading.local):
    thread: SimulatedThread | None = None


_this_thread = _ThisThread()
_idle_workers: list[Callable[[Callable[[], None]], None]] = []


def _start_worker(run: Callable[[], None]) -> None:
    """Run a function on a real thread: one that waits for more, or a new one."""
    if _idle_workers:
        _idle_workers.pop()(run)
        return
    inbox: list[Callable[[], None]] = [run]
    wake = threading.Semaphore(1)

    def hand_over(work: Callable[[], None]) -> None:
        inbox.append(work)
        wake.release()

    def loop() -> None:
        while True:
            wake.acquire()
            inbox.pop()()
            _idle_workers.append(hand_over)

    threading.Thread(target=loop, daemon=True, name="simulated").start()


class Scheduler:
    """Runs clients and threads in an order that a seed decides.

    Args:
        seed: Decides all that is random.

    Attributes:
        random: The source of what is random.
        now: The time in seconds.
        steps: How many steps were made, which is the time of histories.
        clients: All clients.
    """

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))
        self.now, self.steps = 1000.0, 0
        self.clients: list[Client] = []
        self.baton = threading.Lock()
        self.baton.acquire()
        self.most_steps = _MOST_STEPS
        self._threads: list[SimulatedThread] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0

    def next_number(self) -> int:
        """Return a number that was not returned before."""
        self._numbers += 1
        return self._numbers

    def client(self, name: str) -> Client:
        """Return a new client."""
        client = Client(self, name, len(self.clients))
        self.clients.append(client)
        return client

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        """Call a function at some time, as part of the world outside all clients."""
        heapq.heappush(self._timers, (when, self.next_number(), callback))

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call a function after some time."""
        self.call_at(self.now + seconds, callback)

    def start_thread(self, work: Callable[[], object]) -> SimulatedThread:
        """Start a thread of the client that the running code belongs to."""
        client = client_of_this_call.get()
        assert client is not None, "only clients have threads"
        context = copy_context()
        thread = SimulatedThread(self, client, lambda: context.run(work))
        self._threads.append(thread)
        return thread

    @staticmethod
    def this_thread() -> SimulatedThread | None:
        """Return the simulated thread that calls; ``None`` for the scheduler's own."""
        return _this_thread.thread

    def stall(self, client: Client, seconds: float) -> None:
        """Suspend a client for some time, like a process that is stopped or swapped out."""
        client.stalled = True

        def go_on() -> None:
            client.stalled = False

        self.call_later(seconds, go_on)

    # -------------------------------------------------------------- running

    def run(self, *tasks: asyncio.Task[Any]) -> None:
        """Run until tasks have ended, or their clients were killed.

        Raises:
            Stuck: If nothing can run any more, or it takes too many steps.
        """
        waiting = list(tasks)
        while True:
            waiting = [task for task in waiting if not task.done() and not task.get_loop().is_closed()]
            if not waiting:
                return
            if not self._step():
                names = ", ".join(f"{task.get_name()} of {task.get_loop()}" for task in waiting)
                raise Stuck(f"nothing can run any more, but these tasks have not ended: {names}")
            if self.steps > self.most_steps:
                raise Stuck(f"no end after {self.steps} steps")

    def _step(self) -> bool:
        """Let something run; ``False`` if there is nothing."""
        candidates: list[Any] = [client for client in self.clients if client.loop.ready and not client.stalled]
        if self._threads:
            candidates += [thread for thread in self._threads if thread.runnable]
        if not candidates:
            return self._pass_time()
        self.steps += 1
        chosen = candidates[int(self.random.random() * len(candidates))] if len(candidates) > 1 else candidates[0]
        if isinstance(chosen, SimulatedThread):
            chosen.resume()
            if chosen.done:
                self._threads.remove(chosen)
        else:
            self._run_callback(chosen)
        return True

    def _run_callback(self, client: Client) -> None:
        with contextlib.suppress(Killed):
            client.count_step()
            handle = client.loop.ready.popleft()
            if not handle.cancelled():
                asyncio._set_running_loop(client.loop)
                try:
                    handle._run()
                finally:
                    asyncio._set_running_loop(None)

    def _pass_time(self) -> bool:
        """Go to the time when something happens next."""
        if not self._timers:
            return False
        when, _, callback = heapq.heappop(self._timers)
        self.now = max(self.now, when)
        callback()
        return True

    def close(self) -> None:
        """End all threads and tasks that are left."""
        for client in self.clients:
            client.kill()
        for thread in self._threads:
            while not thread.done:
                thread.resume()
        self._threads.clear()
        for client in self.clients:
            copy_context().run(client.dispose)  # what it changes in its context ends with it
