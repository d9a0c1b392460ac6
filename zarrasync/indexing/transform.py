"""Selections, purely: from NumPy-style keys to which elements of which chunk go where.

Two ideas carry everything:

* A ``Transform`` maps the coordinates of a result to the coordinates of an array, one ``AxisMap``
  per array axis. Every way of indexing (basic, orthogonal, coordinate, mask, block) is a parser
  in ``selectors`` that makes a transform over a shape, and transforms compose: that is what makes
  a lazy view of a view.
* A ``Projection`` (``regions``) says which elements of a box go to which places of an output. That of a
  whole array is made from a transform, by way of a ``Layout``.

Nothing here does IO or knows of codecs.
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

from zarrasync.indexing.chunk_selection import IntArray, Projection, Selector
from zarrasync.model.chunk_grids import Axis

__all__ = ["AxisMap", "Const", "Gather", "Layout", "Stride", "Transform", "compose", "identity"]


class Const(NamedTuple):
    """The array axis is held at one index."""

    at: int


class Stride(NamedTuple):
    """The array index is ``start + step * i`` for result coordinate ``i`` along ``dim``."""

    dim: int
    start: int
    step: int


class Gather(NamedTuple):
    """The array index is looked up: ``table[i, j, …]`` for result coordinates along ``dims``."""

    dims: tuple[int, ...]
    table: IntArray


AxisMap: TypeAlias = Const | Stride | Gather


@dataclass(frozen=True, eq=False)
class Transform:
    """A map from result coordinates to array coordinates.

    Attributes:
        shape: The result's shape. A dimension that no axis refers to is one that ``newaxis`` made.
        maps: One map per array axis.
    """

    shape: tuple[int, ...]
    maps: tuple[AxisMap, ...]

    @property
    def size(self) -> int:
        """The number of elements of the result."""
        return math.prod(self.shape)

    def within(self, axes: Sequence[Axis]) -> tuple[tuple[int, ...], tuple[int | slice, ...]] | None:
        """The only chunk that is touched, and the NumPy key that picks the result from it.

        ``None`` where several are touched, or where it takes more than integers and slices that go upwards.
        """
        coords, key, dim = [], list[int | slice](), 0
        for own, axis in zip(self.maps, axes, strict=True):
            if type(own) is Const:
                chunk = axis.find(own.at)
                key.append(own.at - axis.start(chunk))
            elif type(own) is Stride and own.dim == dim and own.step > 0:
                chunk = axis.find(own.start)
                first = own.start - axis.start(chunk)
                stop = first + (self.shape[dim] - 1) * own.step + 1
                if stop > axis.size(chunk):
                    return None
                key.append(slice(first, stop, own.step))
                dim += 1
            else:
                return None
            coords.append(chunk)
        return (tuple(coords), tuple(key)) if dim == len(self.shape) else None

    @cached_property
    def layout(self) -> Layout:
        """How the result relates to the buffer that elements are placed in."""
        return Layout.of(self)


@lru_cache(maxsize=1024)
def identity(shape: tuple[int, ...]) -> Transform:
    """The transform of a whole array; the same one each time."""
    return Transform(shape, tuple(Stride(dim, 0, 1) for dim in range(len(shape))))


def compose(outer: Transform, inner: Transform) -> Transform:
    """Index a view again: ``inner`` maps new results to coordinates of ``outer``'s result."""
    if outer is identity(outer.shape):
        return inner
    return Transform(inner.shape, tuple(_follow(axis, inner) for axis in outer.maps))


def _follow(axis: AxisMap, inner: Transform) -> AxisMap:
    if isinstance(axis, Const):
        return axis
    if isinstance(axis, Stride):
        step = inner.maps[axis.dim]
        if isinstance(step, Const):
            return Const(axis.start + axis.step * step.at)
        if isinstance(step, Stride):
            return Stride(step.dim, axis.start + axis.step * step.start, axis.step * step.step)
        return Gather(step.dims, axis.start + axis.step * step.table)
    # A lookup is looked up: each of its dimensions becomes indices over the union of new dimensions.
    steps = [inner.maps[dim] for dim in axis.dims]
    dims = tuple(sorted({dim for step in steps for dim in _dims(step)}))
    found: IntArray = axis.table[tuple(_indices(step, dims, inner.shape) for step in steps)]
    return Gather(dims, found) if dims else Const(int(found))


def _dims(axis: AxisMap) -> tuple[int, ...]:
    if isinstance(axis, Const):
        return ()
    return (axis.dim,) if isinstance(axis, Stride) else axis.dims


def _indices(axis: AxisMap, dims: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """The array indices of a map as values that broadcast over ``dims``."""
    if isinstance(axis, Const):
        return axis.at
    if isinstance(axis, Stride):
        values: IntArray = axis.start + axis.step * np.arange(shape[axis.dim], dtype=np.int64)
    else:
        values = axis.table
    own = _dims(axis)
    return values.reshape([shape[dim] if dim in own else 1 for dim in dims])


# ------------------------------------------------------------------ results and their buffers


@dataclass(slots=True, eq=False)
class Layout:
    """The buffer that a transform's elements are placed in, and how it becomes the result.

    The buffer has one dimension for all axes that are gathered together point by point (if there
    are any), then one per remaining array axis in order, of size 1 where the axis is held.

    Attributes:
        shape: The result's shape.
        point_axes: The array axes gathered together.
        point_dims: The result dimensions that the points run over.
        dims: The result dimension of each remaining array axis (``None`` where held).
        points: Index values per group axis, flat.
        rest: A selector per remaining array axis.
        places: Where each remaining axis goes in the buffer.
    """

    shape: tuple[int, ...]
    point_axes: tuple[int, ...]
    point_dims: tuple[int, ...]
    dims: tuple[int | None, ...]
    points: tuple[IntArray, ...]
    rest: tuple[Selector, ...]
    places: tuple[slice, ...]

    @classmethod
    def of(cls, transform: Transform) -> Layout:
        """Work out the layout of a transform."""
        maps, shape = transform.maps, transform.shape
        gathered = [number for number, axis in enumerate(maps) if isinstance(axis, Gather)]
        point_axes = _grouped(maps, gathered) if gathered else ()
        point_dims = tuple(sorted({dim for number in point_axes for dim in _dims(maps[number])}))
        over = [shape[dim] for dim in point_dims]
        points = tuple(
            np.broadcast_to(_indices(maps[number], point_dims, shape), over).reshape(-1) for number in point_axes
        )
        dims: list[int | None] = []
        rest: list[Selector] = []
        places: list[slice] = []
        for number, axis in enumerate(maps):
            if number in point_axes:
                continue
            if isinstance(axis, Const):
                dims.append(None)
                rest.append(slice(axis.at, axis.at + 1, 1))
                places.append(slice(0, 1, 1))
            elif isinstance(axis, Stride):
                dims.append(axis.dim)
                selector, place = _ascending(axis, shape[axis.dim])
                rest.append(selector)
                places.append(place)
            else:
                dims.append(axis.dims[0])
                rest.append(axis.table)
                places.append(slice(0, shape[axis.dims[0]], 1))
        return cls(shape, point_axes, point_dims, tuple(dims), points, tuple(rest), tuple(places))

    @property
    def buffer_shape(self) -> tuple[int, ...]:
        """The shape of the buffer."""
        points = (math.prod(self.shape[dim] for dim in self.point_dims),) if self.point_axes else ()
        return points + tuple(1 if dim is None else self.shape[dim] for dim in self.dims)

    def projection(self) -> Projection:
        """The projection of the whole array that fills the buffer."""
        chunk: list[Selector] = list(self.rest)
        for axis, points in zip(self.point_axes, self.points, strict=True):
            chunk.insert(axis, points)
        head: tuple[Selector, ...] = (slice(0, self.buffer_shape[0], 1),) if self.point_axes else ()
        return Projection(self.point_axes, tuple(chunk), head + self.places)

    def _order(self) -> tuple[list[int], tuple[int, ...]]:
        """The result dimensions in the order of the buffer's, and the shape without ``newaxis``."""
        order = list(self.point_dims) + [dim for dim in self.dims if dim is not None]
        return order, tuple(self.shape[dim] for dim in order)

    def to_result(self, buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The buffer as the result: a view (a copy where a dimension that ``newaxis`` made was repeated)."""
        order, split = self._order()
        if order == list(range(len(self.shape))):
            return buffer.reshape(self.shape)
        ranked = sorted(range(len(order)), key=order.__getitem__)
        result = buffer.reshape(split).transpose(ranked)
        missing = [dim for dim in range(len(self.shape)) if dim not in order]
        result = np.expand_dims(result, tuple(missing))
        return result if result.shape == self.shape else np.broadcast_to(result, self.shape).copy()

    def to_buffer(self, result: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A result as the buffer: a view where the strides allow, otherwise a copy."""
        order, _ = self._order()
        if order != list(range(len(self.shape))):
            held = tuple(slice(None) if dim in order else -1 for dim in range(len(self.shape)))
            kept = sorted(order)
            result = result[(*held, ...)].transpose([kept.index(dim) for dim in order])
        return result.reshape(self.buffer_shape)


def _grouped(maps: Sequence[AxisMap], gathered: Sequence[int]) -> tuple[int, ...]:
    """Those of the gathered axes that share their dimensions with others, or have several."""
    users = Counter(dim for axis in maps for dim in _dims(axis))
    found = []
    for number in gathered:
        dims = _dims(maps[number])
        if len(dims) != 1 or users[dims[0]] > 1:
            found.append(number)
    return tuple(found)


def _ascending(axis: Stride, count: int) -> tuple[slice, slice]:
    """A strided axis with a positive step, and the place it goes to (reversed if need be)."""
    if count == 0:
        return slice(0, 0, 1), slice(0, 0, 1)
    if axis.step > 0:
        return slice(axis.start, axis.start + (count - 1) * axis.step + 1, axis.step), slice(0, count, 1)
    first = axis.start + (count - 1) * axis.step
    return slice(first, axis.start + 1, -axis.step), slice(count - 1, None, -1)
