"""Pools of worker threads, one per purpose and size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

from zarrasync import config
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import reset_in_child, thread_lock

__all__ = ["codec_pool", "helper_pool", "pool", "submit"]

T = TypeVar("T")

logging.getLogger("zarrasync").addHandler(logging.NullHandler())

_pools: dict[tuple[str, int], Executor] = {}
_lock = thread_lock()


def pool(name: str, size: int) -> Executor:
    """Return the pool with a name and size. It is made on first use."""
    with _lock:
        executor = _pools.get((name, size))
        if executor is None:
            executor = _pools[name, size] = clock.current().executor(f"zarrasync-{name}", size)
        return executor


def helper_pool(settings: config.Config) -> Executor:
    """Return the threads that help callers on blocking stores. No call depends on them: callers work themselves."""
    return pool("helper", settings.pool_size)


def codec_pool(settings: config.Config) -> Executor:
    """Return the threads that decode and encode. Their jobs never wait for a gate, so they always finish."""
    return pool("codec", settings.pool_size)


def submit(executor: Executor, work: Callable[[], T]) -> Future[T]:
    """Run a function on a thread of a pool.

    Pools accept no work after the main thread has ended. The function then runs on a new thread.
    """
    try:
        return executor.submit(work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        future = Future[T]()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

        clock.current().start_thread("zarrasync-late", run)
        return future


@reset_in_child
def _reset() -> None:
    _pools.clear()
