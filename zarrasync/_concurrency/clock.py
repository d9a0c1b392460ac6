"""Clock, random numbers and threads, which deterministic tests replace by one object of theirs.

The library takes the time, random pauses, sleeping, waiting, executors and threads from this module. A simulator installs
its own ``Environment``, in its own event loop for the timeouts of asyncio, and then decides what runs when. Locks of
threads are not part of the seam: they are held for moments in which nothing of this module is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Environment:
    """Time, randomness and threads of the real world. Subclass it to simulate another."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        return time.monotonic()

    def wall_time(self) -> float:
        """Return seconds since 1970-01-01 00:00 UTC."""
        return time.time()

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between two bounds."""
        return random.uniform(low, high)  # noqa: S311  # random pauses keep no secret

    def exponential(self, mean: float) -> float:
        """Return an exponentially distributed random number."""
        return random.expovariate(1 / mean)

    async def sleep(self, seconds: float) -> None:
        """Suspend the current task."""
        await asyncio.sleep(seconds)

    def sleep_blocking(self, seconds: float) -> None:
        """Suspend the current thread."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block the current thread until an event is set; ``False`` if that takes more than ``seconds``."""
        return event.wait(seconds)

    def wait_for(self, jobs: Iterable[Future[Any]]) -> None:
        """Block the current thread until jobs of executors have ended."""
        futures.wait(jobs)

    def wait_for_first(self, jobs: Iterable[Future[T]], seconds: float) -> tuple[set[Future[T]], set[Future[T]]]:
        """Block the current thread until one of several jobs has ended, or for some seconds.

        Returns:
            The jobs that have ended, and the others.
        """
        ended, running = futures.wait(jobs, seconds, futures.FIRST_COMPLETED)
        return ended, running

    def executor(self, name: str, size: int) -> Executor:
        """Return a new pool of worker threads, which know no context variables of the calls that use them."""
        return _Pool(size, thread_name_prefix=name)

    def start_thread(self, name: str, target: Callable[[], object]) -> threading.Thread:
        """Start a daemon thread, which knows no context variables of the calling one."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        Context().run(thread.start)
        return thread


class _Pool(ThreadPoolExecutor):
    """A pool whose threads start in an empty context.

    A thread that a free-threaded Python 3.14 starts keeps the context of the call that it is started for, such as its locks.
    """

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return Context().run(super().submit, function, *args, **kwargs)


_environment = Environment()


def current() -> Environment:
    """Return the environment in use."""
    return _environment


@contextlib.contextmanager
def replaced(environment: Environment) -> Iterator[None]:
    """Use another environment in this process for the length of a block."""
    global _environment
    before, _environment = _environment, environment
    try:
        yield
    finally:
        _environment = before


def monotonic() -> float:
    """Return seconds since some fixed moment; never goes back."""
    return _environment.monotonic()


def wall_time() -> float:
    """Return seconds since 1970-01-01 00:00 UTC."""
    return _environment.wall_time()
