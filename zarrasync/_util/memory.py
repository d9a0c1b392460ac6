"""Memory: where it lies, and that it is used again when nobody uses it any more."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["alias", "empty", "joined", "keep_freed", "stays"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
_LARGE = 1 << 20
"""Bytes from which on fresh memory, whose pages the system has to clear, costs more than keeping track of used one."""
_KEEP = 72 << 20
"""Bytes up to which memory is kept: what shards of 64 MiB may take."""
_free: deque[Bytes] = deque(maxlen=2)
_lent: set[int] = set()


_PAGE, _NEAR, _APART = 4096, 32, 64


def alias(memory: npt.NDArray[Any]) -> bool:
    """Whether to copy what begins with a page, as files do, into memory is slow.

    Processors tell by an address inside its page whether a load may go ahead of a store. A copy to less than 32 bytes
    behind its source, counted so, takes three times as long, or more; and all large blocks of malloc begin 16 bytes
    behind a page.
    """
    return 0 < memory.ctypes.data % _PAGE < _NEAR


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """``np.empty`` of elements that are no objects, at such a place that files are copied into it at full speed."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod((shape,) if isinstance(shape, int) else shape)
    block = np.empty(size + _PAGE, np.uint8)
    start = (_APART - block.ctypes.data) % _PAGE
    return block[start : start + size].view(dtype).reshape(shape)


_TUNING = 8 << 20
"""Bytes of a block that tells glibc what to keep: blocks as large, until twice as much lies free at an arena's end.

That is more than what a compressor asks for to hold a chunk of the usual 4 MiB, which may grow a little.
"""


@cache
def keep_freed() -> None:
    """Have freed memory used again, also what libraries take for their results.

    At first glibc gives every block of some 100 KB back to the system, which has to clear the pages of the next
    one. It keeps more once it has seen a large block come and go (``mallopt(3)``, "dynamic adjustment of the mmap
    threshold"); but its header no page of this one is touched.
    """
    with contextlib.suppress(MemoryError):
        np.empty(_TUNING, np.uint8)


def joined(parts: Iterable[Any], room: int) -> bytes | Bytes:
    """Buffers in one piece, which can not be changed; arrays of bytes where much of ``room`` is taken.

    Each is copied soon after it has come, so that the memory of one serves those that come later.

    Args:
        parts: The buffers.
        room: How many bytes there will hardly be more of; no page of it is touched that is not needed.
    """
    block, filled, size = empty(0), 0, 0
    waiting: list[Any] = []
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size - filled >= _LARGE:
            block = _roomy(block, filled, size, room)
            filled = _fill(block, filled, waiting)
    if not filled:
        return b"".join(waiting)
    block = _roomy(block, filled, size, room)
    end = _fill(block, filled, waiting)
    if 4 * end < len(block) <= _KEEP:  # all of which may have been touched, and who gets this may keep it for long
        few = bytes(memoryview(block)[:end])
        _free.append(block)
        return few
    return _lend(block, end)


def _roomy(block: Bytes, filled: int, size: int, room: int) -> Bytes:
    """A block, or a larger one that begins alike, with place for ``size`` bytes."""
    if size <= len(block):
        return block
    larger = _fitting(max(size, 2 * len(block), room + room // 64))  # what can not be compressed grows a little
    larger[:filled] = block[:filled]
    return larger


def _fill(block: Bytes, start: int, parts: list[Any]) -> int:
    """Copy buffers into a block, and let go of them; where they end."""
    view = memoryview(block)
    for part in parts:
        view[start : start + len(part)] = memoryview(part).cast("B")
        start += len(part)
    parts.clear()
    return start


def stays(data: object) -> bool:
    """Whether nobody will change a buffer: bytes, and what ``joined`` has made."""
    return isinstance(data, bytes) or id(data) in _lent


def _lend(block: Bytes, size: int) -> Bytes:
    # A NumPy view of a view refers to the array that owns the memory. Not through a memoryview: so whatever is made
    # of what the caller gets keeps that alive, and the block is free when all of it is gone.
    found = np.frombuffer(memoryview(block)[:size], np.uint8)
    found.flags.writeable = False
    _lent.add(id(found))
    weakref.finalize(found, _give_back, block, id(found)).atexit = False
    return found


def _fitting(size: int) -> Bytes:
    """A block that is free, unless it is too small or much too large."""
    with contextlib.suppress(IndexError):
        block = _free.pop()
        if size <= len(block) <= 4 * size:
            return block
    return empty(max(size, min(size + size // 8, _KEEP)))


def _give_back(block: Bytes, number: int) -> None:
    _lent.discard(number)
    if len(block) <= _KEEP:
        _free.append(block)
