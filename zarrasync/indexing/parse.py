"""The ways of indexing, each a parser from a key to a ``Transform`` over a shape.

``numpy_style`` is what ``a[...]`` means, ``orthogonal`` what ``a.oindex[...]`` means, ``coordinate``
what ``a.vindex[...]`` means, ``block`` what ``a.blocks[...]`` means.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.indexing.chunk_selection import IntArray
from zarrasync.indexing.transform import AxisMap, Const, Gather, Stride, Transform
from zarrasync.model.chunk_grids import Grid

__all__ = ["basic", "block", "coordinate", "fields_of", "mask", "numpy_style", "orthogonal"]

Shape = tuple[int, ...]


def numpy_style(key: Any, shape: Shape) -> Transform:
    """What ``a[key]`` means in NumPy: basic indexing, or advanced indexing with its own rule.

    With index arrays, integers count among them, all are broadcast together, and the points'
    dimensions stand where the arrays did if these are adjacent, otherwise first.

    Raises:
        SelectionError: If the key has too many indices, one out of range, or one of a wrong kind.
    """
    plain = _plain(key, shape)
    if plain is not None:
        return _assemble(plain, shape)
    items = _expand(key, shape, bare_masks=True)
    if not any(_is_array(item) for item, _ in items):
        return _assemble(items, shape)
    arrays: dict[int, list[IntArray]] = {}
    for number, (item, axes) in enumerate(items):
        if _is_array(item):
            arrays[number] = _index_arrays(item, axes, shape)
        elif _is_integer(item):
            arrays[number] = [np.asarray(_integer(item, axes[0], shape))]
    over = _broadcast([values for group in arrays.values() for values in group], shape)
    where = sorted(arrays)
    adjacent = where == list(range(where[0], where[-1] + 1))
    maps: list[AxisMap | None] = [None] * len(shape)
    result: list[int] = []
    first: int | None = None
    if not adjacent:
        first = 0
        result.extend(over)
    for number, (item, axes) in enumerate(items):
        if number in arrays:
            if first is None:
                first = len(result)
                result.extend(over)
        elif item is None:
            result.append(1)
        elif axes:
            maps[axes[0]], count = _slice(item, len(result), shape[axes[0]], axes[0])
            result.append(count)
    assert first is not None
    dims = tuple(range(first, first + len(over)))
    for number, group in arrays.items():
        for axis, values in zip(items[number][1], group, strict=False):  # a mask of no axes has an array all the same
            maps[axis] = _gather(dims, values, over)
    return Transform(tuple(result), tuple(m for m in maps if m is not None))


def basic(key: Any, shape: Shape) -> Transform:
    """Integers, slices of any step, ``...`` and ``newaxis`` alone.

    Raises:
        SelectionError: As ``numpy_style``, and for index arrays.
    """
    items = _expand(key, shape)
    for item, _ in items:
        if _is_array(item):
            raise SelectionError(
                f"a basic selection takes integers and slices, found {_show(item)}; use oindex or vindex for arrays",
                shape=shape,
            )
    return _assemble(items, shape)


def orthogonal(key: Any, shape: Shape) -> Transform:
    """Each axis on its own: integers, slices, integer lists or one-dimensional masks.

    Raises:
        SelectionError: As ``numpy_style``, and for index arrays of more than one dimension.
    """
    return _assemble(_expand(key, shape, split_masks=False), shape)


def coordinate(key: Any, shape: Shape) -> Transform:
    """Points: one integer array (or mask over all axes) per axis, broadcast together.

    Slices are taken whole beside the points; the points' dimensions come first.

    Raises:
        SelectionError: As ``numpy_style``.
    """
    items = _expand(key, shape)
    arrays: dict[int, IntArray] = {}
    for item, axes in items:
        if item is None:
            raise SelectionError("a coordinate selection takes no newaxis", shape=shape)
        if axes and _is_array(item):
            arrays.update(zip(axes, _index_arrays(item, axes, shape), strict=True))
        elif axes and _is_integer(item):
            arrays[axes[0]] = np.asarray(_integer(item, axes[0], shape))
    over = _broadcast(list(arrays.values()), shape)
    dims, result = tuple(range(len(over))), list(over)
    maps: list[AxisMap] = []
    for item, axes in items:
        for axis in axes:
            if axis in arrays:
                maps.append(_gather(dims, arrays[axis], over))
            else:
                step, count = _slice(item, len(result), shape[axis], axis)
                maps.append(step)
                result.append(count)
    return Transform(tuple(result), tuple(maps))


def mask(key: Any, shape: Shape) -> Transform:
    """A boolean array of the whole shape; the result has one dimension, in C order.

    Raises:
        SelectionError: If it is not boolean or of another shape.
    """
    values = np.asarray(key)
    if values.dtype != bool or values.shape != shape:
        raise SelectionError(
            f"a mask selection takes a boolean array of shape {shape}, found {values.dtype} of shape {values.shape}",
            shape=shape,
        )
    return coordinate(_where(values), shape) if shape else _scalar_mask(bool(values))


def _scalar_mask(keep: bool) -> Transform:
    return Transform((int(keep),), ())


def block(key: Any, grid: Grid, shape: Shape) -> Transform:
    """Whole chunks of a grid by their coordinates: integers and slices of step 1.

    Raises:
        SelectionError: If a block does not exist or the step is not 1.
    """
    counts = grid.shape
    maps: list[AxisMap] = []
    result: list[int] = []
    for item, axes in _expand(key, counts):
        if item is Ellipsis:
            continue
        if item is None or _is_array(item):
            raise SelectionError(f"a block selection takes integers and slices, found {_show(item)}", shape=counts)
        number = axes[0]
        axis = grid.axes[number]
        if _is_integer(item):
            first = _integer(item, number, counts)
            last = first + 1
        else:
            try:
                first, last, step = item.indices(counts[number])
            except (TypeError, ValueError) as error:
                raise SelectionError(f"axis {number}: bad slice {item}: {error}", shape=counts) from error
            if step != 1:
                raise SelectionError(f"a block slice has step 1, found {_show(item)}", shape=counts)
        start = axis.start(first) if first < last else 0
        stop = min(axis.start(last - 1) + axis.size(last - 1), shape[number]) if first < last else 0
        maps.append(Stride(len(result), start, 1))
        result.append(stop - start)
    return Transform(tuple(result), tuple(maps))


def fields_of(key: Any, dtype: np.dtype[Any]) -> tuple[str | list[str] | None, Any]:
    """Take the names of structured fields out of a key: ``("x", slice)`` or ``["x", "y"]``.

    Raises:
        SelectionError: If the data type has no such field.
    """
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if isinstance(item, (str, list)):  # each read passes here, and a union takes longer
            break
    else:
        return None, key
    names = [item for item in items if isinstance(item, str)]
    lists = [item for item in items if isinstance(item, list) and item and all(isinstance(n, str) for n in item)]
    found = names + lists
    if not found:
        return None, key
    if len(found) > 1:
        raise SelectionError(f"a selection names its fields once, found {found!r}")
    wanted = found[0]
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if dtype.names is None or name not in dtype.names:
            has = f"its fields are {', '.join(dtype.names)}" if dtype.names else "it has no fields"
            raise SelectionError(f"no field {name!r} in data type {dtype}; {has}")
    if isinstance(wanted, str) and dtype[wanted].subdtype is not None:
        raise SelectionError(f"field {wanted!r} has a shape of its own; read the whole elements and take it from them")
    rest = tuple(item for item in items if item is not wanted)
    return wanted, rest or Ellipsis


# ------------------------------------------------------------------ the parts of a key


def _plain(key: Any, shape: Shape) -> list[tuple[Any, tuple[int, ...]]] | None:
    """What nearly every key is: an integer or slice for each axis. ``None`` for others."""
    items = key if type(key) is tuple else (key,)
    if len(items) != len(shape):
        return None
    for item in items:
        if type(item) is not int and type(item) is not slice:
            return None
    return [(item, (axis,)) for axis, item in enumerate(items)]


def _expand(
    key: Any, shape: Shape, *, split_masks: bool = True, bare_masks: bool = False
) -> list[tuple[Any, tuple[int, ...]]]:
    """A key as items with the axes each consumes: ellipsis filled in, missing axes taken whole.

    Args:
        key: The key.
        shape: What it is a key to.
        split_masks: Whether a mask takes as many axes as it has, rather than one.
        bare_masks: Whether there may be booleans, masks of no axes: they make one of their own, of size 1 or 0.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    widths = [0 if bare_masks and _is_bare_mask(item) else _width(item, shape, split_masks) for item in items]
    ellipses = [number for number, item in enumerate(items) if isinstance(item, EllipsisType)]
    if len(ellipses) > 1:
        raise SelectionError("a selection has at most one '...'", shape=shape)
    used = sum(widths)
    if used > len(shape):
        raise SelectionError(
            f"too many indices: the array has {len(shape)} dimensions (shape {shape}), the selection has {used}",
            shape=shape,
        )
    place = ellipses[0] if ellipses else len(items)
    fill: list[Any] = [slice(None)] * (len(shape) - used)
    if ellipses and not fill:
        fill = [Ellipsis]  # it takes no axis, yet NumPy lets it stand between index arrays
    items[place : place + len(ellipses)] = fill
    widths[place : place + len(ellipses)] = [0 if item is Ellipsis else 1 for item in fill]
    expanded, axis = [], 0
    for item, width in zip(items, widths, strict=True):
        expanded.append((item, tuple(range(axis, axis + width))))
        axis += width
    return expanded


def _width(item: Any, shape: Shape, split_masks: bool) -> int:
    if item is None or isinstance(item, EllipsisType):
        return 0
    if isinstance(item, slice) or _is_integer(item):
        return 1
    if isinstance(item, bool | np.bool_ | str | bytes | dict | set) or not (
        isinstance(item, Sequence) or hasattr(item, "__array__")
    ):
        raise SelectionError(
            f"{_show(item)} is not an index: use integers, slices, '...', newaxis or arrays", shape=shape
        )
    try:
        values = np.asarray(item)
    except ValueError as error:
        raise SelectionError(f"{_show(item)} does not make an index array: {error}", shape=shape) from error
    if values.dtype == bool and values.ndim == 0:
        raise SelectionError(f"{_show(item)} is not an index", shape=shape)
    return values.ndim if split_masks and values.dtype == bool else 1


def _is_integer(item: Any) -> bool:
    return type(item) is int or (isinstance(item, int | np.integer) and not isinstance(item, bool))


def _is_bare_mask(item: Any) -> bool:
    return isinstance(item, bool | np.bool_) or (isinstance(item, np.ndarray) and item.dtype == bool and not item.ndim)


def _is_array(item: Any) -> bool:
    return type(item) is not slice and not (item is None or isinstance(item, slice | EllipsisType) or _is_integer(item))


def _assemble(items: list[tuple[Any, tuple[int, ...]]], shape: Shape) -> Transform:
    maps: list[AxisMap] = []
    result: list[int] = []
    for item, axes in items:
        if item is None:
            result.append(1)
            continue
        if not axes:
            continue
        axis = axes[0]
        if isinstance(item, slice):
            step, count = _slice(item, len(result), shape[axis], axis)
            maps.append(step)
            result.append(count)
        elif _is_integer(item):
            maps.append(Const(_integer(item, axis, shape)))
        else:
            (values,) = _index_arrays(item, axes, shape)
            if values.ndim == 0:
                maps.append(Const(int(values)))
                continue
            if values.ndim > 1:
                raise SelectionError(
                    f"axis {axis}: an orthogonal selection takes one-dimensional indices, found shape {values.shape}",
                    shape=shape,
                )
            maps.append(Gather((len(result),), values))
            result.append(len(values))
    return Transform(tuple(result), tuple(maps))


def _slice(item: slice, dim: int, extent: int, axis: int) -> tuple[Stride, int]:
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"axis {axis}: bad slice {item}: {error}") from error
    return Stride(dim, start, step), len(range(start, stop, step))


def _integer(item: Any, axis: int, shape: Shape) -> int:
    index, extent = operator.index(item), shape[axis]
    if not -extent <= index < extent:
        raise SelectionError(
            f"index {index} is out of range for axis {axis} with size {extent} (shape {shape})", shape=shape
        )
    return index + extent if index < 0 else index


def _index_arrays(item: Any, axes: tuple[int, ...], shape: Shape) -> list[IntArray]:
    """An index array or mask as non-negative integers per axis that it consumes."""
    values = np.asarray(item)
    if values.dtype == bool:
        if not values.ndim:
            return [np.zeros(int(values), np.int64)]
        extents = tuple(shape[axis] for axis in axes)
        if any(n not in (0, extent) for n, extent in zip(values.shape, extents, strict=True)):  # so does NumPy
            raise SelectionError(
                f"a boolean index of shape {values.shape} does not match axes {axes} of shape {shape}", shape=shape
            )
        return [own.astype(np.int64, copy=False) for own in _where(values)]
    if values.size == 0 and values.dtype.kind == "f":
        values = values.astype(np.int64)
    if values.dtype.kind not in "iu":
        raise SelectionError(f"index arrays hold integers or booleans, found {values.dtype}", shape=shape)
    (axis,) = axes
    extent = shape[axis]
    wide = values.astype(np.int64, copy=False)
    if wide.size:
        low, high = int(values.min()), int(values.max())
        if low < -extent or high >= extent:
            bad = low if low < -extent else high
            raise SelectionError(
                f"index {bad} is out of range for axis {axis} with size {extent} (shape {shape})", shape=shape
            )
        if low < 0:
            wide = np.where(wide < 0, wide + extent, wide)
    return [wide]


def _where(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], ...]:
    """``np.nonzero``, by way of a flat mask, in which NumPy finds few among many ten times as fast."""
    return np.unravel_index(np.flatnonzero(mask), mask.shape)


def _broadcast(arrays: Sequence[IntArray], shape: Shape) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(values.shape for values in arrays))
    except ValueError as error:
        found = " and ".join(str(values.shape) for values in arrays)
        raise SelectionError(f"index arrays of shapes {found} do not broadcast together", shape=shape) from error


def _gather(dims: tuple[int, ...], values: IntArray, over: tuple[int, ...]) -> AxisMap:
    if not dims:
        return Const(int(values))
    return Gather(dims, np.broadcast_to(values, over))


def _show(item: Any) -> str:
    text = repr(item)
    return f"{type(item).__name__} {text if len(text) < 60 else text[:57] + '...'}"
