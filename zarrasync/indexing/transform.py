"""Transforms: maps from the coordinates of a result to the coordinates of an array.

Each kind of indexing (basic, orthogonal, coordinate, mask, block) has a parser in ``parse`` that returns a transform.
Indexing a lazy view again composes two transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from zarrasync.indexing.layout import Layout
from zarrasync.indexing.selectors import AxisMap, Const, Gather, IntArray, Stride, broadcast_indices, dims_of
from zarrasync.model.chunk_grids import GridAxis, RegularAxis


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
    def layout(self) -> Layout:
        """The buffer that elements are copied to, and its conversion to the result."""
        return Layout.of(self.shape, self.maps)

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
