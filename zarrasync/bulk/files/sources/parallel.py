"""Calling a function that waits for a server with many arguments at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from zarrasync._concurrency import clock

T = TypeVar("T")
R = TypeVar("R")
_THREADS = 16


def call_each(function: Callable[[T], R], items: Sequence[T], name: str) -> list[Future[R]]:
    """Call a function with each item, on several threads. Return when all calls have ended.

    Args:
        function: The function.
        items: The items.
        name: The name of the threads.
    """
    if not items:
        return []
    executor = clock.current().executor(name, min(_THREADS, len(items)))
    try:
        calls = [executor.submit(partial(function, item)) for item in items]
        clock.current().wait_for(calls)
    finally:
        executor.shutdown(cancel_futures=True)
    return calls
