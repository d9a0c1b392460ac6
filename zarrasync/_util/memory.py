"""Memory for large values: aligned for fast copies, and reused once no one refers to it."""

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

__all__ = ["aligned_empty", "is_immutable", "join_buffers", "keep_freed_memory", "slows_copies"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

_PAGE_SIZE, _ALIAS_DISTANCE, _ALIGNMENT = 4096, 32, 64
_LARGE = 1 << 20
"""Size in bytes from which fresh memory, whose pages the system must clear, costs more than tracking used memory."""
_KEPT_SIZE = 72 << 20
"""Maximum size in bytes of a block that is kept for reuse; enough for shards of 64 MiB."""
_TUNING_SIZE = 8 << 20
"""Size in bytes of the block that tunes glibc: it then keeps blocks of that size, and twice as much free memory.

That is more than compressors allocate for a chunk of 4 MiB, which may grow a little.
"""

_free: deque[Bytes] = deque(maxlen=2)
_lent: set[int] = set()


def slows_copies(memory: npt.NDArray[Any]) -> bool:
    """Return whether copying data that begins at a page boundary, such as a file's, into an array is slow.

    Processors compare addresses within a page to decide whether a load may precede a store. If the target is less than
    32 bytes behind the source by that measure, a copy takes at least three times as long. All large blocks of malloc
    begin 16 bytes after a page boundary.
    """
    return 0 < memory.ctypes.data % _PAGE_SIZE < _ALIAS_DISTANCE


def aligned_empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """Return an uninitialised array, like ``np.empty``, at an address into which files are copied at full speed.

    Args:
        shape: The shape.
        dtype: A data type other than object.
    """
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod((shape,) if isinstance(shape, int) else shape)
    block = np.empty(size + _PAGE_SIZE, np.uint8)
    start = (_ALIGNMENT - block.ctypes.data) % _PAGE_SIZE
    return block[start : start + size].view(dtype).reshape(shape)


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse, also the memory that libraries allocate for their results.

    By default it returns each block of some 100 KB to the system, which must clear the pages of the next one. After it
    has freed a large block, it keeps more (``mallopt(3)``, "dynamic adjustment of the mmap threshold"). Except for its
    header, no page of the block allocated here is touched.
    """
    with contextlib.suppress(MemoryError):
        np.empty(_TUNING_SIZE, np.uint8)


def join_buffers(parts: Iterable[Any], expected_size: int) -> bytes | Bytes:
    """Concatenate buffers into an immutable one: an array if it is large, otherwise bytes.

    Each buffer is copied soon after it arrives, so that an iterator can reuse its memory for later ones.

    Args:
        parts: The buffers.
        expected_size: An upper estimate of the total size in bytes. Only pages that are needed are touched.
    """
    block, filled, size = aligned_empty(0), 0, 0
    pending: list[Any] = []
    for part in parts:
        pending.append(part)
        size += len(part)
        if size - filled >= _LARGE:
            block = _grown(block, filled, size, expected_size)
            filled = _append(block, filled, pending)
    if not filled:
        return b"".join(pending)
    block = _grown(block, filled, size, expected_size)
    end = _append(block, filled, pending)
    if 4 * end < len(block) <= _KEPT_SIZE:  # the result would keep a much larger block alive
        result = bytes(memoryview(block)[:end])
        _free.append(block)
        return result
    return _lend(block, end)


def _grown(block: Bytes, filled: int, size: int, expected_size: int) -> Bytes:
    """Return a block with room for ``size`` bytes and the same first ``filled`` bytes."""
    if size <= len(block):
        return block
    # Incompressible data grows a little.
    larger = _take_block(max(size, 2 * len(block), expected_size + expected_size // 64))
    larger[:filled] = block[:filled]
    return larger


def _append(block: Bytes, start: int, parts: list[Any]) -> int:
    """Copy buffers into a block, clear the list, and return the end position."""
    view = memoryview(block)
    for part in parts:
        view[start : start + len(part)] = memoryview(part).cast("B")
        start += len(part)
    parts.clear()
    return start


def is_immutable(data: object) -> bool:
    """Return whether a buffer is known never to change: bytes, and results of ``join_buffers``."""
    return isinstance(data, bytes) or id(data) in _lent


def _lend(block: Bytes, size: int) -> Bytes:
    """Return the first bytes of a block as a read-only array, and reuse the block when no one refers to it."""
    # A view of the array made here would refer to the block itself, and be invisible to the finalizer. A view of a
    # memoryview refers to the array made here, so that the block becomes free only when all views are gone.
    array = np.frombuffer(memoryview(block)[:size], np.uint8)
    array.flags.writeable = False
    _lent.add(id(array))
    weakref.finalize(array, _reuse, block, id(array)).atexit = False
    return array


def _take_block(size: int) -> Bytes:
    """Return a free block, unless it is too small or much too large, or a new one."""
    with contextlib.suppress(IndexError):
        block = _free.pop()
        if size <= len(block) <= 4 * size:
            return block
    return aligned_empty(max(size, min(size + size // 8, _KEPT_SIZE)))


def _reuse(block: Bytes, array_id: int) -> None:
    _lent.discard(array_id)
    if len(block) <= _KEPT_SIZE:
        _free.append(block)
