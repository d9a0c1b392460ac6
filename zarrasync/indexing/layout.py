"""Layouts: the buffer that the elements of a selection are copied to, and its conversion to the result.

Chunks are copied axis by axis, but NumPy's indexing rules determine the order of a result's dimensions. The buffer
connects both. Its first dimension is for all axes that are gathered together point by point, if any. One dimension for
each remaining array axis follows, with size 1 for an axis with a fixed index.

For example, ``a.oindex[[5, 1], 3, 0:4]`` has the buffer shape (2, 1, 4) and the result shape (2, 4);
``a.vindex[[[5, 1]], :, [[0, 2]]]`` has points of shape (1, 2), the buffer shape (2, n) and the result shape (1, 2, n).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.projection import Projection
from zarrasync.indexing.selectors import AxisMap, Const, Gather, IntArray, Selector, Stride, broadcast_indices, dims_of

_FIRST = slice(0, 1, 1)


@dataclass(slots=True, eq=False)
class Layout:
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
    def of(cls, shape: tuple[int, ...], maps: Sequence[AxisMap]) -> Layout:
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
        order = self._order()
        ranks = sorted(range(len(order)), key=order.__getitem__)
        result = buffer.reshape([self.shape[dim] for dim in order]).transpose(ranks)
        result = np.expand_dims(result, tuple(dim for dim in range(len(self.shape)) if dim not in order))
        return result if result.shape == self.shape else np.broadcast_to(result, self.shape).copy()

    def to_buffer(self, result: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a result as the buffer: a view if the strides allow it, otherwise a copy."""
        if not self.is_in_order:
            order = self._order()
            kept = sorted(order)
            # Along a repeated dimension that no axis refers to, the last element counts, as in NumPy.
            result = result[(*(slice(None) if dim in order else -1 for dim in range(len(self.shape))), ...)]
            result = result.transpose([kept.index(dim) for dim in order])
        return result.reshape(self.buffer_shape)

    def _order(self) -> list[int]:
        """Return the result dimensions in the order of the buffer's dimensions."""
        return _order(self.point_dims, self.dims)


def _order(point_dims: Sequence[int], dims: Sequence[int | None]) -> list[int]:
    return [*point_dims, *(dim for dim in dims if dim is not None)]


def _general_layout(shape: tuple[int, ...], maps: Sequence[AxisMap]) -> Layout:
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
    return Layout(
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
