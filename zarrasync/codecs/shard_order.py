"""The order of inner chunks in a shard. The index makes any order readable; neighbours should lie close together."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import MetadataError

__all__ = ["ChunkOrder", "order_of", "storage_order"]

ChunkOrder: TypeAlias = Literal["C", "F", "morton"]
"""The last axis varies fastest, or the first one, or all take turns bit by bit (Z order, as in zarr-python)."""

_MOST_ORDERED = 1 << 24
"""Largest number of inner chunks whose order is computed, which takes 500 MB."""
_ZARR_PYTHON_ORDERS: dict[str, ChunkOrder] = {
    "morton": "morton",
    "lexicographic": "C",
    "unordered": "C",
    "colexicographic": "F",
}


def order_of(sharding: Any) -> ChunkOrder:
    """Return the order of a sharding codec of zarr-python, which has the option since zarr-python 3.2.

    Raises:
        MetadataError: If the order is unknown.
    """
    order = getattr(sharding, "subchunk_write_order", "morton")
    if order not in _ZARR_PYTHON_ORDERS:
        raise MetadataError(
            f"codec 'sharding_indexed': subchunk_write_order must be one of {', '.join(_ZARR_PYTHON_ORDERS)}, found {order!r}"
        )
    return _ZARR_PYTHON_ORDERS[order]


@lru_cache(maxsize=16)
def storage_order(order: ChunkOrder, grid_shape: tuple[int, ...]) -> npt.NDArray[np.int64] | None:
    """Return the numbers of inner chunks, counted in C order, in the order in which they are stored.

    Args:
        order: The order.
        grid_shape: The number of inner chunks along each axis.

    Returns:
        The numbers, or ``None`` if they ascend.

    Raises:
        MetadataError: If there are too many inner chunks.
    """
    if order == "C":
        return None
    if math.prod(grid_shape) > _MOST_ORDERED:
        raise MetadataError(
            f"codec 'sharding_indexed': {math.prod(grid_shape):,} inner chunks cannot be stored in the order {order!r}; "
            f"at most {_MOST_ORDERED:,} can, others only in C order"
        )
    numbers = np.arange(math.prod(grid_shape), dtype=np.int64)
    if order == "F":
        numbers = numbers.reshape(grid_shape).transpose().reshape(-1)
    elif order == "morton":
        numbers = np.argsort(_morton_codes(grid_shape), kind="stable").astype(np.int64, copy=False)
    return None if (numbers[1:] > numbers[:-1]).all() else numbers


def _morton_codes(grid_shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return for each chunk the bits of its coordinates, interleaved, without the bits that an axis does not need."""
    coords = np.indices(grid_shape, np.int64).reshape(len(grid_shape), -1)
    widths = [(size - 1).bit_length() for size in grid_shape]
    codes = np.zeros(coords.shape[1], np.int64)
    position = 0
    for bit in range(max(widths, default=0)):
        for axis, width in enumerate(widths):
            if bit < width:
                codes |= (coords[axis] >> bit & 1) << position
                position += 1
    return codes
