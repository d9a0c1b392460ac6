"""Checksums of blocks, to compare the values read back with the written ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.projection import in_c_order

_SLAB_BYTES = 8 << 20
_LARGEST_SLAB_BYTES = 64 << 20
_WIDEST = {"b": "b1", "i": "i8", "u": "i8", "f": "f8", "c": "c16"}
"""Data types to which ``value_checksum`` converts values, by the kinds of their data types."""


def checksum(block: npt.NDArray[Any], before: int = 0) -> int:
    """Return the CRC-32C of a block's elements. Compare only checksums of blocks with the same data type.

    Args:
        block: The block.
        before: The checksum of the elements before the block, if it continues others.
    """
    from crc32c import crc32c

    data: Any
    if block.dtype.kind in "TO":
        data = "".join(f"{_plain(value)!r}\n" for value in block.astype(object).reshape(-1)).encode()
    else:
        data = in_c_order(block).reshape(-1).view(np.uint8)
    return crc32c(data, before)


def value_checksum(block: npt.NDArray[Any], before: int = 0) -> int:
    """Return a checksum that is the same for equal values of all data types with the same ``value_kind``.

    For the arguments, see ``checksum``.
    """
    block = block.astype(value_kind(block.dtype), copy=False)
    if block.dtype.kind in "fc":
        block = block + block.dtype.type(0)  # -0.0 is equal to 0.0
        block[np.isnan(block)] = np.nan
    return checksum(block, before)


def value_kind(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type that represents others in ``value_checksum``. The length of strings does not matter."""
    if dtype.kind in "SUTO":
        return np.dtype(object)
    widest = np.dtype(_WIDEST.get(dtype.kind, dtype))
    return (widest if dtype.itemsize <= widest.itemsize else dtype).newbyteorder("=")


def slabs(
    dims: Sequence[str | None],
    shape: tuple[int, ...],
    itemsize: int,
    chunks: Sequence[int] | None = None,
    slab_bytes: int = _SLAB_BYTES,
) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """Yield regions of a few megabytes that divide an array, and the order of axes in which to compare them.

    The axes are in the order of their names, so that the regions of arrays with another order of axes correspond.

    Args:
        dims: The names of the axes.
        shape: The shape.
        itemsize: The size of an element in bytes.
        chunks: The shape of stored chunks. Regions contain whole chunks, unless these take much memory.
        slab_bytes: The size of a region in bytes, if no chunk is larger.
    """
    axes = tuple(sorted(range(len(shape)), key=lambda axis: str(dims[axis])))
    first, size = axes[0], math.prod(shape) // max(shape[axes[0]], 1)
    row_bytes = max(size * max(itemsize, 1), 1)
    step = max(1, slab_bytes // row_bytes)
    if chunks is not None and 0 < chunks[first] * row_bytes <= _LARGEST_SLAB_BYTES:
        step = max(1, step // chunks[first]) * chunks[first]
    for start in range(0, shape[first], step):
        rows = slice(start, min(start + step, shape[first]))
        yield tuple(rows if axis == first else slice(None) for axis in range(len(shape))), axes


def _plain(value: Any) -> Any:
    """Return a value with a complete ``repr``, because the ``repr`` of a large array omits elements."""
    return value.tolist() if isinstance(value, np.ndarray) else value
