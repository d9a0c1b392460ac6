"""Driving: running a coroutine to its end on the calling thread, without an event loop.

A coroutine of this library runs in one of two ways. On an event loop it suspends as usual. *Driven*, it runs on the
calling thread and never suspends: everything it awaits finishes at once or blocks that thread. The caller chooses
(``drive`` or a loop). The choice is never guessed from whether a loop runs in the thread, because in Jupyter one always does.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from zarrasync._concurrency.fork import reset_in_child

T = TypeVar("T")


class _Thread(threading.local):
    depth = 0


_thread = _Thread()


def driven() -> bool:
    """Return whether the calling code runs in a driven coroutine, so that it may and must block."""
    return _thread.depth > 0


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends on this thread, and return its result.

    Raises:
        RuntimeError: If the coroutine suspends.
    """
    depth = _thread.depth
    _thread.depth = depth + 1
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # typeshed has no type for it
    finally:
        _thread.depth = depth
    coroutine.close()
    raise RuntimeError("a store with `blocking=True` waited for an event loop; set its `blocking` to False")


@reset_in_child
def _reset() -> None:
    _thread.depth = 0
