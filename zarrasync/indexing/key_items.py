"""The items of a key, each with the axes that it consumes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from zarrasync.errors import SelectionError
from zarrasync.indexing.axis_maps import Stride

__all__ = ["KeyItem", "describe", "expand_key", "is_array", "is_integer", "resolve_integer", "resolve_slice"]

Shape = tuple[int, ...]


class KeyItem(NamedTuple):
    """An item of a key.

    Attributes:
        value: An integer, a slice, an index array or mask, ``None`` for ``newaxis``, or an ellipsis that stands for no
            axes.
        axes: The axes that the item consumes.
    """

    value: Any
    axes: tuple[int, ...]


def expand_key(key: Any, shape: Shape, *, split_masks: bool = True, bare_masks: bool = False) -> list[KeyItem]:
    """Return the items of a key for all axes. An ellipsis becomes full slices, and so do axes without an item.

    Args:
        key: The key.
        shape: The shape of the array or selection that is indexed.
        split_masks: Whether a mask of several dimensions consumes one axis per dimension. Otherwise it consumes one.
        bare_masks: Whether booleans are allowed. They are masks without axes, which add a dimension of size 1 or 0.

    Raises:
        SelectionError: If the key has too many indices or an item of an invalid type.
    """
    values = list(key) if isinstance(key, tuple) else [key]
    widths = [0 if bare_masks and _is_bare_mask(value) else _width(value, shape, split_masks) for value in values]
    ellipses = [number for number, value in enumerate(values) if isinstance(value, EllipsisType)]
    if len(ellipses) > 1:
        raise SelectionError("a selection can have only one '...'", shape=shape)
    used = sum(widths)
    if used > len(shape):
        raise SelectionError(
            f"too many indices: the array has {len(shape)} dimensions (shape {shape}), the selection has {used}",
            shape=shape,
        )
    position = ellipses[0] if ellipses else len(values)
    fill: list[Any] = [slice(None)] * (len(shape) - used)
    if ellipses and not fill:
        fill = [Ellipsis]  # it consumes no axis, but in NumPy it separates index arrays
    values[position : position + len(ellipses)] = fill
    widths[position : position + len(ellipses)] = [0 if value is Ellipsis else 1 for value in fill]
    items, axis = [], 0
    for value, width in zip(values, widths, strict=True):
        items.append(KeyItem(value, tuple(range(axis, axis + width))))
        axis += width
    return items


def _width(value: Any, shape: Shape, split_masks: bool) -> int:
    """Return the number of axes that an item consumes."""
    if value is None or isinstance(value, EllipsisType):
        return 0
    if isinstance(value, slice) or is_integer(value):
        return 1
    if isinstance(value, bool | np.bool_ | str | bytes | dict | set) or not (
        isinstance(value, Sequence) or hasattr(value, "__array__")
    ):
        raise SelectionError(
            f"{describe(value)} is not an index: use integers, slices, '...', newaxis or arrays", shape=shape
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SelectionError(f"{describe(value)} is not a valid index array: {error}", shape=shape) from error
    if array.dtype == bool and array.ndim == 0:
        raise SelectionError(f"{describe(value)} is not an index", shape=shape)
    return array.ndim if split_masks and array.dtype == bool else 1


def is_integer(value: Any) -> bool:
    """Return whether an item is an integer. Booleans and durations do not count as integers."""
    return type(value) is int or (isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64))


def is_array(value: Any) -> bool:
    """Return whether an item is an index array or a mask."""
    return not (value is None or isinstance(value, slice | EllipsisType) or is_integer(value))


def _is_bare_mask(value: Any) -> bool:
    """Return whether an item is a mask without axes."""
    return isinstance(value, bool | np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype == bool and not value.ndim
    )


def out_of_range(index: int, axis: int, shape: Shape) -> SelectionError:
    """Return the error for an index outside of an axis."""
    extent = shape[axis]
    hint = f"use {-extent} to {extent - 1}" if extent else "the axis has no elements"
    message = f"index {index} is out of range for axis {axis} with size {extent} (shape {shape}); {hint}"
    return SelectionError(message, shape=shape)


def resolve_integer(value: Any, axis: int, shape: Shape) -> int:
    """Return a non-negative index for an integer.

    Raises:
        SelectionError: If the integer is out of range.
    """
    index, extent = operator.index(value), shape[axis]
    if not -extent <= index < extent:
        raise out_of_range(index, axis, shape)
    return index + extent if index < 0 else index


def resolve_slice(value: slice, dim: int, extent: int, axis: int) -> tuple[Stride, int]:
    """Return the axis map of a slice, and the number of its indices.

    Args:
        value: The slice.
        dim: The dimension of the result.
        extent: The size of the axis.
        axis: The axis, for messages.

    Raises:
        SelectionError: If the slice has a step of 0 or limits that are not integers.
    """
    try:
        start, stop, step = value.indices(extent)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"axis {axis}: invalid slice {value}: {error}") from error
    return Stride(dim, start, step), len(range(start, stop, step))


def describe(value: Any) -> str:
    """Return a description of an item for messages: its type and its value, shortened if it is long."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
