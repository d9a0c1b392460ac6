"""The items of a key: each with the axes that it consumes, index arrays and masks, and names of structured fields."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.indexing.projection import IntArray
from zarrasync.indexing.transform import AxisMap, Const, Gather, Stride

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


def index_arrays(value: Any, axes: tuple[int, ...], shape: Shape) -> list[IntArray]:
    """Return an index array or mask as an array of non-negative indices for each axis that it consumes.

    A mask without axes returns one array with one index or none.

    Raises:
        SelectionError: If the dtype is neither integer nor boolean, a mask does not match the shape, or an index is out
            of range.
    """
    array = np.asarray(value)
    if array.dtype == bool:
        return _mask_indices(array, axes, shape)
    if array.size == 0 and array.dtype.kind == "f":  # an empty list
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise SelectionError(f"index arrays must contain integers or booleans, found {array.dtype}", shape=shape)
    (axis,) = axes
    extent = shape[axis]
    indices = array.astype(np.int64)  # a copy, as the caller may change the array while it is used
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -extent or high >= extent:
            wrong = low if low < -extent else high
            raise out_of_range(wrong, axis, shape)
        if low < 0:
            indices = np.where(indices < 0, indices + extent, indices)
    return [indices]


def _mask_indices(mask: npt.NDArray[np.bool_], axes: tuple[int, ...], shape: Shape) -> list[IntArray]:
    """Implement ``index_arrays`` for a mask."""
    if not mask.ndim:
        return [np.zeros(int(mask), np.int64)]
    extents = [shape[axis] for axis in axes]
    if any(size not in (0, extent) for size, extent in zip(mask.shape, extents, strict=True)):  # 0 as in NumPy
        raise SelectionError(
            f"a boolean index of shape {mask.shape} does not match axes {axes} of shape {shape}", shape=shape
        )
    return [indices.astype(np.int64, copy=False) for indices in nonzero(mask)]


def nonzero(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], ...]:
    """Return ``np.nonzero(mask)``, up to ten times faster for masks with few true elements."""
    return np.unravel_index(np.flatnonzero(mask), mask.shape)


def broadcast_shape(arrays: Sequence[IntArray], shape: Shape) -> tuple[int, ...]:
    """Return the shape to which index arrays broadcast.

    Raises:
        SelectionError: If the arrays do not broadcast.
    """
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in arrays)
        message = (
            f"index arrays of shapes {shapes} do not broadcast together; oindex selects along each axis on its own"
        )
        raise SelectionError(message, shape=shape) from None


def gather_axis(dims: tuple[int, ...], indices: IntArray, points_shape: tuple[int, ...]) -> AxisMap:
    """Return the axis map for the indices of points, where ``dims`` are the result dimensions of the points."""
    if not dims:
        return Const(int(indices))
    return Gather(dims, np.broadcast_to(indices, points_shape))


def split_fields(key: Any, dtype: np.dtype[Any]) -> tuple[str | list[str] | None, Any]:
    """Separate the names of structured fields from a key such as ``("x", slice)`` or ``["x", "y"]``.

    Returns:
        The names, and the key without them.

    Raises:
        SelectionError: If the data type does not have the field, or the key names fields more than once.
    """
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if isinstance(item, (str, list)):  # faster than a union of types, and on the path of every read
            return _split_names(key, items, dtype)
    return None, key


def _split_names(key: Any, items: tuple[Any, ...], dtype: np.dtype[Any]) -> tuple[str | list[str] | None, Any]:
    """Implement ``split_fields`` for a key with strings or lists. Lists may be index arrays."""
    names = [item for item in items if isinstance(item, str)]
    lists = [item for item in items if isinstance(item, list) and item and all(isinstance(n, str) for n in item)]
    choices = names + lists
    if not choices:
        return None, key
    if len(choices) > 1:
        raise SelectionError(f"a selection can name fields only once (a name or a list of names), found {choices!r}")
    fields = choices[0]
    for name in [fields] if isinstance(fields, str) else fields:
        if dtype.names is None or name not in dtype.names:
            reason = f"its fields are {', '.join(dtype.names)}" if dtype.names else "it has no fields"
            raise SelectionError(f"no field {name!r} in data type {dtype}; {reason}")
    if isinstance(fields, str) and dtype[fields].subdtype is not None:
        raise SelectionError(
            f"cannot select field {fields!r} alone, because it is a sub-array; read all fields and select it in the result"
        )
    return fields, tuple(item for item in items if item is not fields) or Ellipsis
