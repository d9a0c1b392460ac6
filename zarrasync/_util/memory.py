"""Memory for large values, aligned for fast copies and reused when no references to it remain, and budgets of outputs.

Every decoder receives an ``OutputBudget``: how many bytes it, a request or an archive may return. It compares the declared
size of a value with the budget before it allocates memory. If no size is declared, it stops as soon as the output exceeds
the budget. A damaged or malicious value therefore raises an error instead of exhausting the memory.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

_PAGE_SIZE, _ALIGNMENT = 4096, 64
_LARGE = 1 << 20
"""Size in bytes above which reusing memory is faster than allocating it, because the system clears new pages."""
_KEPT_SIZE = 72 << 20
"""Maximum size in bytes of a block that is kept for reuse. It suffices for shards of 64 MiB."""
_TUNING_SIZE = (32 << 20) - (64 << 10)
"""Size in bytes of the block that tunes glibc, which then keeps blocks of that size and twice as much free memory.

Larger blocks do not tune it. A program that frees one array of that size has the same effect.
"""
KEPT = 1 << 17
"""Size in bytes of a block from which on glibc returns it to the system, until it is tuned."""

_free: deque[Bytes] = deque(maxlen=2)
_lent: dict[int, weakref.ref[Bytes]] = {}
"""Results of ``join_buffers`` by their ids. PyPy calls finalizers late, so another object may have the id of a dead array."""


def aligned_empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """Return an uninitialised array, like ``np.empty``, at an address that allows copying files at full speed.

    All large blocks from malloc begin 16 bytes after a page boundary. Some processors compare addresses within a page to
    decide whether a load may precede a store. For them, a copy of page-aligned data to less than 32 bytes after a page
    boundary takes three times as long.

    Args:
        shape: The shape.
        dtype: A data type other than object.
    """
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod((shape,) if isinstance(shape, int) else shape)
    block = np.empty(size + _PAGE_SIZE, np.uint8)
    start = (_ALIGNMENT - block.__array_interface__["data"][0]) % _PAGE_SIZE
    return block[start : start + size].view(dtype).reshape(shape)


def empty_in_order(
    shape: Sequence[int], dtype: np.dtype[Any], places: Sequence[int], make: Callable[..., Any] = np.empty
) -> npt.NDArray[Any]:
    """Return an uninitialised array whose axes have an order in memory.

    Args:
        shape: The shape.
        dtype: The data type.
        places: A number for each axis, which is greater for axes that vary faster in memory.
        make: Makes an array in C order.
    """
    axes = sorted(range(len(shape)), key=places.__getitem__)
    ranks = sorted(range(len(shape)), key=axes.__getitem__)
    memory: npt.NDArray[Any] = make(tuple(shape[axis] for axis in axes), dtype)
    return memory.transpose(ranks)


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse, including memory that libraries allocate for their results.

    By default glibc returns each freed block of about 100 KB or more to the system, which must clear the pages of the
    next one. After freeing a large block, glibc keeps more (``mallopt(3)``, "dynamic adjustment of the mmap threshold").
    The pages of the block allocated here are not touched, except for its header.
    """
    with contextlib.suppress(MemoryError):
        np.empty(_TUNING_SIZE, np.uint8)


def join_buffers(parts: Iterable[Any], expected_size: int) -> bytes | Bytes:
    """Concatenate buffers into an immutable one: an array if the result is large, otherwise bytes.

    Each buffer is copied soon after the iterator yields it, so that the iterator can reuse its memory.

    Args:
        parts: The buffers.
        expected_size: An upper estimate of the total size in bytes. Pages that are not needed are not touched.
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
    if 4 * end < len(block) <= _KEPT_SIZE:  # otherwise a small result keeps a much larger block alive
        result = bytes(memoryview(block)[:end])
        _free.append(block)
        return result
    return _lend(block, end)


def _grown(block: Bytes, filled: int, size: int, expected_size: int) -> Bytes:
    """Return a block of at least ``size`` bytes that begins with the first ``filled`` bytes of the given block."""
    if size <= len(block):
        return block
    # Compression enlarges incompressible data a little.
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


class MemoryPool:
    """Memory for large arrays of a job. It is reused when no references to an array remain.

    At most as much memory is kept as arrays have used at the same time.
    """

    def __init__(self) -> None:
        self._free: deque[Bytes] = deque()  # whose methods are atomic, because finalizers run anywhere

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised array.

        Args:
            shape: The shape.
            dtype: A data type other than object.
        """
        size = dtype.itemsize * math.prod(shape)
        if size < _LARGE:
            return np.empty(shape, dtype)
        block = self._take(size)
        array = _view_with_own_base(block, size)
        weakref.finalize(array, self._free.append, block).atexit = False
        return array.view(dtype).reshape(shape)

    def _take(self, size: int) -> Bytes:
        """Return a free block that is large enough, or a new one. Free blocks that are too small are dropped."""
        with contextlib.suppress(IndexError):
            while len(block := self._free.pop()) < size:
                pass
            return block
        return aligned_empty(size)


def is_immutable(data: object) -> bool:
    """Return whether a buffer is known to be immutable: bytes, or a result of ``join_buffers``."""
    return isinstance(data, bytes) or ((lent := _lent.get(id(data))) is not None and lent() is data)


def _lend(block: Bytes, size: int) -> Bytes:
    """Return the first bytes of a block as a read-only array. The block is reused when no references to it remain."""
    array = _view_with_own_base(block, size)
    array.flags.writeable = False
    reference = _lent[id(array)] = weakref.ref(array)
    weakref.finalize(array, _reuse, block, id(array), reference).atexit = False
    return array


def _view_with_own_base(block: Bytes, size: int) -> Bytes:
    """Return the first bytes of a block as an array that is the base of its views.

    The base of a view of ``block[:size]`` is the block, which a finalizer of the array would miss. The base of a view of
    an array made from a memoryview is that array, so that the finalizer is called when no views remain.
    """
    return np.frombuffer(memoryview(block)[:size], np.uint8)


def _take_block(size: int) -> Bytes:
    """Return a free block, unless it is too small or much too large, or a new one."""
    with contextlib.suppress(IndexError):
        block = _free.pop()
        if size <= len(block) <= 4 * size:
            return block
    return aligned_empty(max(size, min(size + size // 8, _KEPT_SIZE)))


def _reuse(block: Bytes, array_id: int, reference: weakref.ref[Bytes]) -> None:
    if _lent.get(array_id) is reference:
        del _lent[array_id]
    if len(block) <= _KEPT_SIZE:
        _free.append(block)


# ------------------------------------------------------------------ budgets of outputs


_LEAST, _RATIO = 1 << 26, 64
"""Bytes that any value may expand to, and how many times its bytes a larger one may expand to."""


class BudgetExceeded(ValueError):
    """The output exceeds the budget."""


class OutputBudget(int):
    """The maximum number of output bytes: an integer with a description of its origin.

    Args:
        nbytes: The number of bytes.
        origin: The origin of the limit, for messages: ``"config.max_chunk_bytes is 1,000"``.
    """

    origin: str

    def __new__(cls, nbytes: int, origin: str) -> Self:
        budget = super().__new__(cls, nbytes)
        budget.origin = origin
        return budget

    def __reduce__(self) -> tuple[type[Self], tuple[int, str]]:
        return type(self), (int(self), self.origin)


def expansion_budget(nbytes: int) -> OutputBudget:
    """Return the most bytes that so many encoded ones may expand to, if nothing else limits them.

    Compressors shrink text and binary data by a factor of 3 to 20. What shrinks further is mostly empty, so it is small.
    """
    limit = max(_LEAST, _RATIO * nbytes)
    return OutputBudget(limit, f"the limit is {limit:,}, which is {_RATIO} times its stored size or {_LEAST >> 20} MiB")


def check_budget(limit: int, nbytes: int, *, at_least: bool = False, what: str = "result") -> None:
    """Check that an output size is within a budget.

    Args:
        limit: The budget.
        nbytes: The size of the output in bytes.
        at_least: Whether the output may be larger than ``nbytes``.
        what: A name of the output, for messages.

    Raises:
        BudgetExceeded: If the size exceeds the budget.
    """
    if nbytes > limit:
        size = f"more than {int(limit):,}" if at_least else f"{nbytes:,}"
        reason = limit.origin if isinstance(limit, OutputBudget) else f"the limit is {limit:,}"
        raise BudgetExceeded(f"the {what} has {size} bytes; {reason}")


def reason_of(error: Exception, *, with_kind: bool = True) -> str:
    """Return the reason in an error of a library, for messages.

    Libraries raise ``MemoryError`` for values that are not damaged, and often without a message.

    Args:
        error: The error.
        with_kind: Whether to begin with the class of the error.
    """
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    if isinstance(error, BudgetExceeded) or not with_kind:
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"
