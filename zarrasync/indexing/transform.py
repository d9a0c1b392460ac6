"""Transforms: maps from the coordinates of a result to the coordinates of an array, and layouts of their results in memory.

Each kind of indexing (basic, orthogonal, coordinate, mask, block) has a parser in ``parse`` that returns a transform.
Indexing a lazy view again composes two transforms. A negative step is a ``Stride`` with a negative step: its elements are read
in ascending order, and placed in descending order.

Chunks are copied axis by axis, but NumPy's indexing rules determine the order of a result's dimensions. The buffer of a
``BufferLayout`` connects both. Its first dimension is for all axes that are gathered together point by point, if any. One
dimension for each remaining array axis follows, with size 1 for an axis with a fixed index.

For example, ``a.oindex[[5, 1], 3, 0:4]`` has the buffer shape (2, 1, 4) and the result shape (2, 4);
``a.vindex[[[5, 1]], :, [[0, 2]]]`` has points of shape (1, 2), the buffer shape (2, n) and the result shape (1, 2, n).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.projection import IntArray, Projection, Selector
from zarrasync.model.chunk_grids import GridAxis, RegularAxis


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


@dataclass(eq=False)
class Transform:
    """A map from result coordinates to array coordinates. It does not change; a frozen class takes longer to create.

    Attributes:
        shape: The shape of the result. ``newaxis`` adds a dimension that no axis refers to.
        maps: The axis map of each array axis.
    """

    shape: tuple[int, ...]
    maps: tuple[AxisMap, ...]

    @property
    def size(self) -> int:
        """The number of elements of the result."""
        return math.prod(self.shape)

    @cached_property
    def layout(self) -> BufferLayout:
        """The buffer that elements are copied to, and its conversion to the result."""
        return BufferLayout.of(self.shape, self.maps)

    def ranges(self) -> list[int] | None:
        """Return the start, the step and the number of the indices along each array axis, one after the other.

        Returns ``None`` unless the result has just one ascending dimension for each axis that is not indexed by an
        integer, in the order of the axes.
        """
        numbers: list[int] = []
        following = 0
        for axis_map in self.maps:
            if type(axis_map) is Const:
                numbers += (axis_map.value, 1, 1)
            elif type(axis_map) is Stride and axis_map.dim == following and axis_map.step > 0:
                numbers += (axis_map.start, axis_map.step, self.shape[following])
                following += 1
            else:
                return None
        return numbers if following == len(self.shape) else None

    def single_chunk(self, axes: Sequence[GridAxis]) -> tuple[tuple[int, ...], tuple[int | slice, ...]] | None:
        """Return the coordinates of the only touched chunk, and the NumPy key of the result in the chunk.

        Returns ``None`` if several chunks are touched, or if the key would need more than integers and ascending slices.
        All small reads call this method, so the arithmetic of regular axes is inlined to save calls.
        """
        coords: list[int] = []
        key: list[int | slice] = []
        dim = 0
        for axis_map, axis in zip(self.maps, axes, strict=True):
            step = 0
            if type(axis_map) is Const:
                start, last = axis_map.value, axis_map.value
            elif type(axis_map) is Stride and axis_map.dim == dim and axis_map.step > 0:
                start, step = axis_map.start, axis_map.step
                last = start + (self.shape[dim] - 1) * step
            else:
                return None
            if type(axis) is RegularAxis:
                size = axis.chunk
                chunk = start // size
                begin = chunk * size
            else:
                chunk = axis.find(start)
                begin, size = axis.start(chunk), axis.size(chunk)
            if last >= begin + size:
                return None
            coords.append(chunk)
            if step:
                key.append(slice(start - begin, last - begin + 1, step))
                dim += 1
            else:
                key.append(start - begin)
        return (tuple(coords), tuple(key)) if dim == len(self.shape) else None


@lru_cache(maxsize=1024)
def identity(shape: tuple[int, ...]) -> Transform:
    """Return the transform of a whole array. Calls with the same shape return the same object."""
    return Transform(shape, tuple(Stride(dim, 0, 1) for dim in range(len(shape))))


def compose(outer: Transform, inner: Transform) -> Transform:
    """Compose two transforms: ``inner`` maps the coordinates of a new result to coordinates of ``outer``'s result."""
    if outer is identity(outer.shape):
        return inner
    return Transform(inner.shape, tuple(_compose_axis(axis, inner) for axis in outer.maps))


def _compose_axis(axis: AxisMap, inner: Transform) -> AxisMap:
    if isinstance(axis, Const):
        return axis
    if isinstance(axis, Stride):
        step = inner.maps[axis.dim]
        if isinstance(step, Const):
            return Const(axis.start + axis.step * step.value)
        if isinstance(step, Stride):
            return Stride(step.dim, axis.start + axis.step * step.start, axis.step * step.step)
        return Gather(step.dims, axis.start + axis.step * step.table)
    # The table is indexed with the indices from the inner maps of its dimensions, broadcast over all their dimensions.
    steps = [inner.maps[dim] for dim in axis.dims]
    dims = tuple(sorted({dim for step in steps for dim in dims_of(step)}))
    table: IntArray = axis.table[tuple(broadcast_indices(step, dims, inner.shape) for step in steps)]
    return Gather(dims, table) if dims else Const(int(table))


# ------------------------------------------------------------------ layouts


_FIRST = slice(0, 1, 1)


@dataclass(slots=True, eq=False)
class BufferLayout:
    """The buffer of a selection.

    Attributes:
        shape: The shape of the result.
        buffer_shape: The shape of the buffer.
        dims: The result dimension of each array axis that is not a point axis, or ``None`` for a fixed index.
        sources: The selector of each of these axes.
        targets: The destination of each of these axes in the buffer.
        is_basic: Whether all selectors are slices.
        is_in_order: Whether reshaping the buffer gives the result.
        point_axes: The array axes that are gathered together.
        point_dims: The result dimensions of the points.
        points: The flat indices of the points along each point axis.
    """

    shape: tuple[int, ...]
    buffer_shape: tuple[int, ...]
    dims: tuple[int | None, ...]
    sources: tuple[Selector, ...]
    targets: tuple[slice, ...]
    is_basic: bool
    is_in_order: bool
    point_axes: tuple[int, ...] = ()
    point_dims: tuple[int, ...] = ()
    points: tuple[IntArray, ...] = ()

    @classmethod
    def of(cls, shape: tuple[int, ...], maps: Sequence[AxisMap]) -> BufferLayout:
        """Return the layout of a transform.

        Nearly all transforms consist of integers and ascending slices with dimensions in order. Their layouts are
        computed here without further calls.

        Args:
            shape: The shape of the result.
            maps: The axis map of each array axis.
        """
        buffer_shape: list[int] = []
        dims: list[int | None] = []
        sources: list[slice] = []
        targets: list[slice] = []
        following = 0  # the first dimension that may come next
        for axis in maps:
            if type(axis) is Const:
                dims.append(None)
                buffer_shape.append(1)
                sources.append(slice(axis.value, axis.value + 1, 1))
                targets.append(_FIRST)
            elif type(axis) is Stride and axis.step > 0 and axis.dim >= following and (count := shape[axis.dim]):
                following = axis.dim + 1
                dims.append(axis.dim)
                buffer_shape.append(count)
                sources.append(slice(axis.start, axis.start + (count - 1) * axis.step + 1, axis.step))
                targets.append(slice(0, count, 1))
            else:
                return _general_layout(shape, maps)
        if math.prod(shape) != math.prod(buffer_shape):  # a dimension of ``newaxis`` is repeated
            return _general_layout(shape, maps)
        return cls(shape, tuple(buffer_shape), tuple(dims), tuple(sources), tuple(targets), True, True)

    def projection(self) -> Projection:
        """Return the projection of the whole array that fills the buffer."""
        if not self.point_axes:
            return tuple.__new__(Projection, ((), self.sources, self.targets, self.is_basic))
        source: list[Selector] = list(self.sources)
        for axis, indices in zip(self.point_axes, self.points, strict=True):
            source.insert(axis, indices)
        return Projection(self.point_axes, tuple(source), (slice(0, self.buffer_shape[0], 1), *self.targets))

    def to_result(self, buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the buffer as the result: a view, or a copy if a dimension of ``newaxis`` is repeated."""
        if self.is_in_order:
            return buffer.reshape(self.shape)
        order = _order(self.point_dims, self.dims)
        ranks = sorted(range(len(order)), key=order.__getitem__)
        result = buffer.reshape([self.shape[dim] for dim in order]).transpose(ranks)
        result = np.expand_dims(result, tuple(dim for dim in range(len(self.shape)) if dim not in order))
        return result if result.shape == self.shape else np.broadcast_to(result, self.shape).copy()

    def to_buffer(self, result: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a result as the buffer: a view if the strides allow it, otherwise a copy."""
        if not self.is_in_order:
            order = _order(self.point_dims, self.dims)
            kept = sorted(order)
            # Along a repeated dimension that no axis refers to, the last element counts, as in NumPy.
            result = result[(*(slice(None) if dim in order else -1 for dim in range(len(self.shape))), ...)]
            result = result.transpose([kept.index(dim) for dim in order])
        return result.reshape(self.buffer_shape)


def _order(point_dims: Sequence[int], dims: Sequence[int | None]) -> list[int]:
    """Return the result dimensions in the order of the buffer's dimensions."""
    return [*point_dims, *(dim for dim in dims if dim is not None)]


def _general_layout(shape: tuple[int, ...], maps: Sequence[AxisMap]) -> BufferLayout:
    """Return the layout of any transform."""
    point_axes = _point_axes(maps)
    point_dims = tuple(sorted({dim for number in point_axes for dim in dims_of(maps[number])}))
    points_shape = [shape[dim] for dim in point_dims]
    points = tuple(
        np.broadcast_to(broadcast_indices(maps[number], point_dims, shape), points_shape).reshape(-1)
        for number in point_axes
    )
    dims: list[int | None] = []
    sources: list[Selector] = []
    targets: list[slice] = []
    for number, axis in enumerate(maps):
        if number in point_axes:
            continue
        if isinstance(axis, Const):
            dims.append(None)
            sources.append(slice(axis.value, axis.value + 1, 1))
            targets.append(_FIRST)
        elif isinstance(axis, Stride):
            dims.append(axis.dim)
            source, target = _ascending(axis, shape[axis.dim])
            sources.append(source)
            targets.append(target)
        else:
            dims.append(axis.dims[0])
            sources.append(axis.table)
            targets.append(slice(0, shape[axis.dims[0]], 1))
    buffer_shape = tuple(1 if dim is None else shape[dim] for dim in dims)
    if point_axes:
        buffer_shape = (math.prod(points_shape), *buffer_shape)
    return BufferLayout(
        shape,
        buffer_shape,
        tuple(dims),
        tuple(sources),
        tuple(targets),
        is_basic=not any(isinstance(axis, Gather) for axis in maps),
        is_in_order=_order(point_dims, dims) == list(range(len(shape))),
        point_axes=point_axes,
        point_dims=point_dims,
        points=points,
    )


def _point_axes(maps: Sequence[AxisMap]) -> tuple[int, ...]:
    """Return the gathered axes that share a result dimension with another axis, or do not have exactly one dimension."""
    gathered = [(number, axis.dims) for number, axis in enumerate(maps) if isinstance(axis, Gather)]
    if not gathered:
        return ()
    users = Counter(dim for axis in maps for dim in dims_of(axis))
    return tuple(number for number, dims in gathered if len(dims) != 1 or users[dims[0]] > 1)


def _ascending(axis: Stride, count: int) -> tuple[slice, slice]:
    """Return the source of a strided axis as an ascending slice, and its target, which descends for a negative step."""
    if count == 0:
        return slice(0, 0, 1), slice(0, 0, 1)
    if axis.step > 0:
        return slice(axis.start, axis.start + (count - 1) * axis.step + 1, axis.step), slice(0, count, 1)
    first = axis.start + (count - 1) * axis.step
    return slice(first, axis.start + 1, -axis.step), slice(count - 1, None, -1)
