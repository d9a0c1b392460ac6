"""Memory that is used again when nobody uses it any more."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["joined", "keep_freed", "stays"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
_LARGE = 1 << 20
"""Bytes from which on fresh memory, whose pages the system has to clear, costs more than keeping track of used one."""
_KEEP = 64 << 20
"""Bytes up to which memory is kept."""
_free: deque[Bytes] = deque(maxlen=2)
_lent: set[int] = set()


_TUNING = 4 << 20
"""Bytes of a block that tells glibc what to keep: blocks as large, until twice as much lies free at an arena's end."""


@cache
def keep_freed() -> None:
    """Have freed memory used again, also what libraries take for their results.

    At first glibc gives every block of some 100 KB back to the system, which has to clear the pages of the next
    one. It keeps more once it has seen a large block come and go (``mallopt(3)``, "dynamic adjustment of the mmap
    threshold"); but its header no page of this one is touched.
    """
    with contextlib.suppress(MemoryError):
        np.empty(_TUNING, np.uint8)


def joined(parts: Sequence[Any]) -> bytes | Bytes:
    """Buffers in one piece, which can not be changed; arrays of bytes where that is large."""
    size = sum(map(len, parts))
    if not _LARGE <= size <= _KEEP:
        return b"".join(parts)
    found, start = _borrow(size), 0
    view = memoryview(found)
    for part in parts:
        view[start : start + len(part)] = memoryview(part).cast("B")
        start += len(part)
    found.flags.writeable = False
    return found


def stays(data: object) -> bool:
    """Whether nobody will change a buffer: bytes, and what ``joined`` has made."""
    return isinstance(data, bytes) or id(data) in _lent


def _borrow(size: int) -> Bytes:
    block = _fitting(size)
    # A NumPy view of a view refers to the array that owns the memory. Not through a memoryview: so whatever is made
    # of what the caller gets keeps that alive, and the block is free when all of it is gone.
    found = np.frombuffer(memoryview(block)[:size], np.uint8)
    _lent.add(id(found))
    weakref.finalize(found, _give_back, block, id(found)).atexit = False
    return found


def _fitting(size: int) -> Bytes:
    """A block that is free, unless it is too small or much too large."""
    with contextlib.suppress(IndexError):
        block = _free.pop()
        if size <= len(block) <= 4 * size:
            return block
    return np.empty(min(size + size // 8, _KEEP), np.uint8)


def _give_back(block: Bytes, number: int) -> None:
    _lent.discard(number)
    _free.append(block)
