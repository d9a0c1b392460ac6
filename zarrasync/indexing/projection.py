"""Selectors, the indices along one axis, projections of boxes into outputs, and fast copies between NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


_SMALLEST_STRIDE = 2048
"""With strides of a multiple of this many bytes, elements share so few cache sets that they evict each other."""

_CACHE_LINE = 64
"""The size of a cache line in bytes."""

_SMALLEST_COPY = 1 << 17
"""The size in bytes below which all values fit into the cache."""


def assign(out: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Perform ``out[...] = values`` for arrays of the same shape, also fast if the memory order of their axes differs.

    NumPy iterates along the rows of the output. If the values are in Fortran order and their sizes are powers of two, as
    chunk sizes often are, the elements of a row evict each other from the cache. Narrow strips of rows stay in the cache.
    """
    if values.nbytes >= _SMALLEST_COPY and values.itemsize <= 8 and values.ndim > 1 and out.shape == values.shape:
        axis = min(range(out.ndim), key=lambda number: (out.shape[number] == 1, abs(out.strides[number])))
        width = max(16, _CACHE_LINE // (values.itemsize or 1))
        if values.strides[axis] % _SMALLEST_STRIDE == 0 < values.strides[axis] and out.shape[axis] > 2 * width:
            for start in range(0, out.shape[axis], width):
                strip = (*(slice(None),) * axis, slice(start, start + width))
                out[strip] = values[strip]
            return
    out[...] = values


def in_c_order(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in C order: the same array if it already is in C order, otherwise a copy."""
    if values.flags.c_contiguous:
        return values
    out = np.empty(values.shape, values.dtype)
    assign(out, values)
    return out


class Projection(NamedTuple):
    """The selected elements of a box, and their destination in an output.

    Attributes:
        point_axes: The axes of the box whose index arrays are combined point by point.
        source: A selector for each axis of the box.
        target: A selector for each dimension of the output: first for the points, if any, then for each remaining axis
            in order.
        is_basic: Whether all selectors are known to be slices, so that basic NumPy indexing suffices.
    """

    point_axes: tuple[int, ...]
    source: tuple[Selector, ...]
    target: tuple[Selector, ...]
    is_basic: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for selector in self.target:
            size *= length(selector)
        return size

    # -------------------------------------------------------------- copying elements

    def read(self, box: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy elements from the box: ``out[target] = box[source]``."""
        if self.is_basic:
            out[self.target] = box[self.source]
        elif self.point_axes and len(self.point_axes) == len(self.source):
            out[self.target[0]] = box[self.source]
        else:
            out[numpy_index(self.target, 0, out.shape)] = self.pick(box)

    def pick(self, box: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the elements of the source, shaped like the target."""
        if self.is_basic:
            return np.asarray(box[self.source])
        elements: npt.NDArray[Any] = self._points_first(box)[self._source_index(box)]
        return elements

    def write(self, box: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Copy elements into the box: ``box[source] = values[target]``."""
        if self.is_basic:
            box[self.source] = values[self.target]
            return
        self._points_first(box)[self._source_index(box)] = values[numpy_index(self.target, 0, values.shape)]

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Set all elements of the target to one value."""
        out[numpy_index(self.target, 0, out.shape)] = value

    def _points_first(self, box: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the box with the point axes first, as the points are the first dimension of the target."""
        if not self.point_axes or self.point_axes == tuple(range(len(self.point_axes))):
            return box
        return box.transpose(self._order())

    def _source_index(self, box: npt.NDArray[Any]) -> tuple[Any, ...]:
        """Return the NumPy index of the source in ``_points_first(box)``."""
        if not self.point_axes:
            return numpy_index(self.source, 0, box.shape)
        order = self._order()
        source, shape = [self.source[axis] for axis in order], [box.shape[axis] for axis in order]
        return numpy_index(source, len(self.point_axes), shape)

    def _order(self) -> list[int]:
        """Return the axes of the box with the point axes first."""
        return [*self.point_axes, *(axis for axis in range(len(self.source)) if axis not in self.point_axes)]

    # -------------------------------------------------------------- the part of the box

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Return whether the source covers a whole box of the given shape, in order."""
        for selector, size in zip(self.source, shape, strict=True):
            if not isinstance(selector, slice) or selector.start or selector.stop != size or selector.step != 1:
                return False
        return True

    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Return the lowest and the highest index of the source along each axis."""
        bounds = []
        for selector in self.source:
            if isinstance(selector, slice):
                count = len(range(selector.start, selector.stop, selector.step))
                bounds.append((selector.start, selector.start + (count - 1) * selector.step))
            else:
                bounds.append((int(selector.min()), int(selector.max())))
        return tuple(bounds)

    def count_chunks(self, shape: Sequence[int]) -> int:
        """Return an upper estimate of the number of touched chunks of the given shape."""
        pairs = zip(self.bounds(), shape, strict=True)
        return min(self.size, math.prod(high // size - low // size + 1 for (low, high), size in pairs))

    # -------------------------------------------------------------- other boxes

    def shift(self, origin: Sequence[int]) -> Projection:
        """Return the projection for the part of the box that starts at ``origin``."""
        source = [
            slice(selector.start - begin, selector.stop - begin, selector.step)
            if isinstance(selector, slice)
            else selector - begin
            for selector, begin in zip(self.source, origin, strict=True)
        ]
        return Projection(self.point_axes, tuple(source), self.target, self.is_basic)

    def permute(self, order: Sequence[int], out: npt.NDArray[Any]) -> tuple[Projection, npt.NDArray[Any]]:
        """Return the projection for the transposed box ``np.transpose(box, order)``, and the output to use with it."""
        lead = 1 if self.point_axes else 0  # the points' dimension stays first
        remaining = [axis for axis in range(len(self.source)) if axis not in self.point_axes]
        dims = [lead + remaining.index(axis) for axis in order if axis not in self.point_axes]
        projection = Projection(
            tuple(sorted(order.index(axis) for axis in self.point_axes)),
            tuple(self.source[axis] for axis in order),
            (*self.target[:lead], *(self.target[dim] for dim in dims)),
            self.is_basic,
        )
        return projection, out.transpose([*range(lead), *dims])


def numpy_index(selectors: Sequence[Selector], point_count: int, shape: Sequence[int]) -> tuple[Any, ...]:
    """Return the NumPy index that takes the first ``point_count`` selectors together and the others orthogonally.

    If the selectors contain a single index array, or only adjacent ones in front, NumPy's rules have the same effect, and
    the selectors are the index. Otherwise all selectors become arrays that broadcast against each other: one dimension
    for all points, then one for each other selector. For example, the shapes for 5 points along the first two axes, a
    slice of 3 and an array of 2 indices are::

        selectors  rows       cols       slice(0, 3)  [4, 9]
        index      (5, 1, 1)  (5, 1, 1)  (1, 3, 1)    (1, 1, 2)    ->  a result of shape (5, 3, 2)
    """
    index_arrays = [not isinstance(selector, slice) for selector in selectors]
    if sum(index_arrays[point_count:]) + (point_count > 0) <= 1:
        return tuple(selectors)
    first = 1 if point_count else 0  # the dimension of the first selector after the points
    ndim = len(selectors) - point_count + first
    index: list[IntArray] = []
    for number, selector in enumerate(selectors):
        dim = 0 if number < point_count else number - point_count + first
        values = np.arange(*selector.indices(shape[number])) if isinstance(selector, slice) else selector
        index.append(values.reshape([-1 if d == dim else 1 for d in range(ndim)]))
    return tuple(index)
