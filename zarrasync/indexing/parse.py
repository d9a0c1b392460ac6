"""Parsers of keys, one for each kind of indexing. Each returns a ``Transform`` over a shape.

``numpy_style`` implements ``a[...]``, ``orthogonal`` implements ``a.oindex[...]``, ``coordinate`` and ``mask`` implement
``a.vindex[...]``, and ``block`` implements ``a.blocks[...]``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from operator import index
from types import EllipsisType, MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from zarrasync.errors import SelectionError
from zarrasync.indexing.key_items import (
    KeyItem,
    broadcast_shape,
    describe,
    expand_key,
    gather_axis,
    index_arrays,
    is_array,
    is_integer,
    nonzero,
    resolve_integer,
    resolve_slice,
)
from zarrasync.indexing.projection import IntArray
from zarrasync.indexing.transform import AxisMap, Const, Gather, Stride, Transform
from zarrasync.model.chunk_grids import Grid

Shape = tuple[int, ...]


def numpy_style(key: Any, shape: Shape) -> Transform:
    """Parse a key with NumPy's rules of basic and advanced indexing.

    In advanced indexing, index arrays and integers are broadcast together. If they are adjacent, the broadcast dimensions
    take their place in the result; otherwise they come first.

    Raises:
        SelectionError: If the key has too many indices, an index out of range, or an item of an invalid type.
    """
    transform = simple(key, shape)
    if transform is not None:
        return transform
    items = expand_key(key, shape, bare_masks=True)
    if any(is_array(value) for value, _ in items):
        return _advanced(items, shape)
    return _each_axis(items, shape)


def simple(key: Any, shape: Shape) -> Transform | None:
    """Parse a key of integers, slices, ``newaxis`` and at most one ellipsis. Return ``None`` for other or invalid keys.

    Nearly all keys are of this kind, and every read calls this function. To save calls, it has no helper functions for
    items and bypasses the Python-level constructors of named tuples.
    """
    items = key if type(key) is tuple else (key,)
    maps: list[AxisMap] = []
    result: list[int] = []
    ellipsis_count, new = 0, tuple.__new__
    for position, item in enumerate(items):
        kind, axis = type(item), len(maps)
        if item is Ellipsis:
            ellipsis_count += 1
            following = len([other for other in items[position + 1 :] if other is not None])  # each takes an axis
            for extent in shape[axis : len(shape) - following]:
                maps.append(new(Stride, (len(result), 0, 1)))
                result.append(extent)
        elif item is None:
            result.append(1)
        elif axis == len(shape):
            return None
        elif kind is slice:
            try:
                start, stop, step = item.indices(shape[axis])
            except (TypeError, ValueError):
                return None
            maps.append(new(Stride, (len(result), start, step)))
            result.append(len(range(start, stop, step)))
        elif kind is int or is_integer(item):
            number, extent = item if kind is int else index(item), shape[axis]
            if not -extent <= number < extent:
                return None
            maps.append(new(Const, (number if number >= 0 else number + extent,)))
        else:
            return None
    for extent in shape[len(maps) :]:
        maps.append(new(Stride, (len(result), 0, 1)))
        result.append(extent)
    return Transform(tuple(result), tuple(maps)) if ellipsis_count < 2 else None


def _advanced(items: list[KeyItem], shape: Shape) -> Transform:
    """Implement ``numpy_style`` for items with index arrays."""
    arrays: dict[int, list[IntArray]] = {}
    for number, (value, axes) in enumerate(items):
        if is_array(value):
            arrays[number] = index_arrays(value, axes, shape)
        elif is_integer(value):
            arrays[number] = [np.asarray(resolve_integer(value, axes[0], shape))]
    points_shape = broadcast_shape([indices for group in arrays.values() for indices in group], shape)
    positions = sorted(arrays)
    adjacent = positions == list(range(positions[0], positions[-1] + 1))
    first = None if adjacent else 0  # the first dimension of the points
    result = [] if adjacent else list(points_shape)
    maps: list[AxisMap | None] = [None] * len(shape)
    for number, (value, axes) in enumerate(items):
        if number in arrays:
            if first is None:
                first = len(result)
                result.extend(points_shape)
        elif value is None:
            result.append(1)
        elif axes:
            maps[axes[0]], count = resolve_slice(value, len(result), shape[axes[0]], axes[0])
            result.append(count)
    assert first is not None
    dims = tuple(range(first, first + len(points_shape)))
    for number, group in arrays.items():
        for axis, indices in zip(items[number].axes, group, strict=False):  # a mask without axes also has an array
            maps[axis] = gather_axis(dims, indices, points_shape)
    return Transform(tuple(result), tuple(axis_map for axis_map in maps if axis_map is not None))


def basic(key: Any, shape: Shape) -> Transform:
    """Parse a key of integers, slices of any step, ``...`` and ``newaxis``.

    Raises:
        SelectionError: As for ``numpy_style``, and if the key contains an index array.
    """
    items = expand_key(key, shape)
    for value, _ in items:
        if is_array(value):
            raise SelectionError(
                f"a basic selection accepts only integers and slices, found {describe(value)}; use oindex or vindex for "
                "arrays",
                shape=shape,
            )
    return _each_axis(items, shape)


def orthogonal(key: Any, shape: Shape, points: Mapping[int, Hashable] = MappingProxyType({})) -> Transform:
    """Parse a key with one item for each axis: an integer, slice, list of integers or one-dimensional mask.

    Args:
        key: The key.
        shape: The shape that it selects from.
        points: The axes that select points, with the set of points that each belongs to. The index arrays of a set have
            the same shape, and their dimensions take the place of the first of its axes.

    Raises:
        SelectionError: As for ``numpy_style``, and if an index array of another axis has more than one dimension.
    """
    return _each_axis(expand_key(key, shape, split_masks=False), shape, points)


def _each_axis(items: list[KeyItem], shape: Shape, points: Mapping[int, Hashable] = MappingProxyType({})) -> Transform:
    """Return the transform of items that each apply to one axis."""
    maps: list[AxisMap] = []
    result: list[int] = []
    dims_of_points: dict[Hashable, tuple[int, ...]] = {}
    for value, axes in items:
        if value is None:
            result.append(1)
            continue
        if not axes:
            continue
        axis = axes[0]
        if isinstance(value, slice):
            stride, count = resolve_slice(value, len(result), shape[axis], axis)
            maps.append(stride)
            result.append(count)
        elif is_integer(value):
            maps.append(Const(resolve_integer(value, axis, shape)))
        else:
            (indices,) = index_arrays(value, axes, shape)
            if axis in points:
                dims = dims_of_points.get(points[axis])
                if dims is None:
                    dims = dims_of_points[points[axis]] = tuple(range(len(result), len(result) + indices.ndim))
                    result.extend(indices.shape)
                maps.append(gather_axis(dims, indices, indices.shape))
                continue
            if indices.ndim > 1:
                raise SelectionError(
                    f"axis {axis}: an orthogonal selection accepts only one-dimensional index arrays, found shape "
                    f"{indices.shape}",
                    shape=shape,
                )
            if indices.ndim == 0:
                maps.append(Const(int(indices)))
            else:
                maps.append(Gather((len(result),), indices))
                result.append(len(indices))
    return Transform(tuple(result), tuple(maps))


def coordinate(key: Any, shape: Shape) -> Transform:
    """Parse the coordinates of points: an integer array for each axis, or a mask for several axes, broadcast together.

    Axes with slices are selected orthogonally to the points. The dimensions of the points come first in the result.
    An integer for each axis selects one point, with a result of shape ``(1,)``.

    Raises:
        SelectionError: As for ``numpy_style``.
    """
    items = expand_key(key, shape)
    arrays: dict[int, IntArray] = {}
    for value, axes in items:
        if value is None:
            raise SelectionError("a coordinate selection does not accept newaxis", shape=shape)
        if axes and is_array(value):
            arrays.update(zip(axes, index_arrays(value, axes, shape), strict=True))
        elif axes and is_integer(value):
            arrays[axes[0]] = np.asarray(resolve_integer(value, axes[0], shape))
    points_shape = broadcast_shape(list(arrays.values()), shape)
    if not points_shape and shape and len(arrays) == len(shape):
        points_shape = (1,)  # one point, as in zarr-python
    dims, result = tuple(range(len(points_shape))), list(points_shape)
    maps: list[AxisMap] = []
    for value, axes in items:
        for axis in axes:
            if axis in arrays:
                maps.append(gather_axis(dims, arrays[axis], points_shape))
            else:
                stride, count = resolve_slice(value, len(result), shape[axis], axis)
                maps.append(stride)
                result.append(count)
    return Transform(tuple(result), tuple(maps))


def mask(key: Any, shape: Shape) -> Transform:
    """Parse a boolean array of the whole shape. The result has one dimension, in C order.

    Raises:
        SelectionError: If the array is not boolean or has a different shape.
    """
    values = np.asarray(key)
    if values.dtype != bool or values.shape != shape:
        raise SelectionError(
            f"a mask selection needs a boolean array of shape {shape}, found {values.dtype} of shape {values.shape}",
            shape=shape,
        )
    return coordinate(nonzero(values), shape) if shape else Transform((int(values),), ())


def block(key: Any, grid: Grid, shape: Shape) -> Transform:
    """Parse the coordinates of whole chunks of a grid: integers and slices of step 1.

    Raises:
        SelectionError: If a chunk does not exist or a step is not 1.
    """
    counts = grid.shape
    maps: list[AxisMap] = []
    result: list[int] = []
    for value, axes in expand_key(key, counts):
        if value is Ellipsis:
            continue
        if value is None or is_array(value):
            raise SelectionError(
                f"a block selection accepts only integers and slices, found {describe(value)}", shape=counts
            )
        number = axes[0]
        axis = grid.axes[number]
        if is_integer(value):
            first = resolve_integer(value, number, counts)
            last = first + 1
        else:
            (_, first, step), count = resolve_slice(value, 0, counts[number], number)
            last = first + count
            if step != 1:
                raise SelectionError(
                    f"axis {number}: slices of a block selection must have step 1, found {describe(value)}",
                    shape=counts,
                )
        start = axis.start(first) if first < last else 0
        stop = min(axis.start(last - 1) + axis.size(last - 1), shape[number]) if first < last else 0
        maps.append(Stride(len(result), start, 1))
        result.append(stop - start)
    return Transform(tuple(result), tuple(maps))


Basic: TypeAlias = tuple[int | slice | EllipsisType, ...]
"""A basic selection."""
_ITEM = re.compile(
    r"(?P<index>[+-]?\d{1,18})|(?P<slice>([+-]?\d{1,18})?:([+-]?\d{1,18})?(:([+-]?\d{1,18})?)?)|(?P<rest>\.\.\.)"
)


def parse_selection(text: str, shape: Sequence[int], names: Sequence[str | None] | None = None) -> Basic:
    """Parse a string as a basic selection.

    Args:
        text: Integers, slices and at most one ``...``, separated by commas, with or without brackets. Alternatively,
            items ``name=value`` for named axes; other axes are selected completely.
        shape: The shape of the array.
        names: The names of the axes.

    Raises:
        SelectionError: If the string is malformed or has too many items.
    """
    inner = text.strip().removeprefix("[").removesuffix("]")
    items = [item.strip() for item in inner.split(",")] if inner.strip() else []
    if any("=" in item for item in items):
        return _parse_named(text, items, shape, names or ())
    selection = tuple(_item(item, text, shape) for item in items)
    axis_count = sum(item is not Ellipsis for item in selection)
    if axis_count > len(shape) or len(selection) - axis_count > 1:
        raise SelectionError(f"{text!r} has too many items for an array of shape {tuple(shape)}", shape=tuple(shape))
    return selection


def parse_number(text: str) -> float:
    """Return the number that a string of a user spells in decimal notation.

    Raises:
        ValueError: If it is not a number. Python's ``float`` also accepts ``1_000`` and digits of other scripts.
    """
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def is_position(text: str) -> bool:
    """Return whether a string is an integer, a slice or ``...``."""
    return _ITEM.fullmatch(text) is not None


def _parse_named(text: str, items: Sequence[str], shape: Sequence[int], names: Sequence[str | None]) -> Basic:
    """Parse items with the names of axes."""
    seen_names: set[str] = set()
    selection: list[int | slice | EllipsisType] = [slice(None)] * len(shape)
    for item in items:
        left, equals, value = item.partition("=")
        name = left.strip()
        if name in seen_names:
            raise SelectionError(f"{text!r} names {name!r} twice", shape=tuple(shape))
        seen_names.add(name)
        if not equals or name not in names:
            available = ", ".join(str(other) for other in names if other) or "none"
            raise SelectionError(
                f"{item!r} in {text!r} does not name an axis; the names of the axes are: {available}",
                shape=tuple(shape),
            )
        selection[names.index(name)] = _item(value.strip(), text, shape)
    return tuple(selection)


def _item(item: str, text: str, shape: Sequence[int]) -> int | slice | EllipsisType:
    """Parse an integer, a slice or ``...``."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise SelectionError(
            f"{item!r} in {text!r} must be an integer, a slice (start:stop:step) or '...'", shape=tuple(shape)
        )
    if match["index"]:
        return int(item)
    if match["rest"]:
        return ...
    limits = [int(part) if part else None for part in item.split(":")]
    if limits[2:] == [0]:
        raise SelectionError(f"{item!r} in {text!r} has a step of 0", shape=tuple(shape))
    return slice(*limits)
