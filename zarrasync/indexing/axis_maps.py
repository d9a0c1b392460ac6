"""Axis maps, which compute the index along one axis of an array from the coordinates of a result."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from zarrasync.indexing.selectors import IntArray

__all__ = ["AxisMap", "Const", "Gather", "Stride", "broadcast_indices", "dims_of"]


class Const(NamedTuple):
    """The array index is the same for all result coordinates."""

    value: int


class Stride(NamedTuple):
    """The array index is ``start + step * i`` for the result coordinate ``i`` along the dimension ``dim``."""

    dim: int
    start: int
    step: int


class Gather(NamedTuple):
    """The array index is ``table[i, j, …]`` for result coordinates along the dimensions ``dims``."""

    dims: tuple[int, ...]
    table: IntArray


AxisMap: TypeAlias = Const | Stride | Gather


def dims_of(axis: AxisMap) -> tuple[int, ...]:
    """Return the result dimensions that the array index depends on."""
    if isinstance(axis, Const):
        return ()
    return (axis.dim,) if isinstance(axis, Stride) else axis.dims


def broadcast_indices(axis: AxisMap, dims: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Return the array indices as values that broadcast over the given result dimensions.

    For example, ``Stride(2, 10, 5)`` over the dimensions (0, 2) of the shape (4, 9, 3) is ``[[10, 15, 20]]``.

    Args:
        axis: The axis map.
        dims: The result dimensions, including all dimensions that the index depends on.
        shape: The shape of the result.
    """
    if isinstance(axis, Const):
        return axis.value
    if isinstance(axis, Stride):
        values: IntArray = axis.start + axis.step * np.arange(shape[axis.dim], dtype=np.int64)
    else:
        values = axis.table
    own_dims = dims_of(axis)
    return values.reshape([shape[dim] if dim in own_dims else 1 for dim in dims])
