"""Selectors, the indices along one axis, and axis maps, which a transform has for each axis of an array."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]

Selector: TypeAlias = slice | IntArray
"""A slice whose start and step are not ``None``, or an index array. Indices are never negative.

Slices in the source of a projection ascend. Slices in its target may descend; if they end at index 0, the stop is
``None``.
"""


def length(selector: Selector) -> int:
    """Return the number of indices."""
    if not isinstance(selector, slice):
        return len(selector)
    return len(range(selector.start, -1 if selector.stop is None else selector.stop, selector.step))


def indices_of(selector: Selector) -> IntArray:
    """Return the indices of a source selector as an array."""
    return np.arange(selector.start, selector.stop, selector.step) if isinstance(selector, slice) else selector


def section(selector: Selector, start: int, count: int) -> Selector:
    """Return the selector of ``count`` indices, starting with the index at position ``start``."""
    if not isinstance(selector, slice):
        return selector[start : start + count]
    first = selector.start + start * selector.step
    stop = first + count * selector.step
    return slice(first, stop if stop >= 0 else None, selector.step)


def reorder(selector: Selector, order: IntArray) -> Selector:
    """Return the indices at the positions ``order``."""
    if not isinstance(selector, slice):
        return selector[order]
    return order if selector.start == 0 and selector.step == 1 else selector.start + selector.step * order


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
