"""Projections: which elements of a box go where in an output.

The projection of a whole array is made from a selection (``Layout.projection``). ``Projection.split`` cuts it along a
chunk grid into projections of single chunks, and cuts those again along the grid of a shard's inner chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.model.chunk_grids import Axis, Grid, RegularAxis

__all__ = ["ChunkRun", "IntArray", "PointRun", "Projection", "Run", "Selector", "assign", "in_c_order"]

IntArray: TypeAlias = npt.NDArray[np.int64]
Selector: TypeAlias = slice | IntArray
"""A slice with non-negative start and stop and any non-zero step, or index values."""


_ALIASED = 2048
"""Bytes between elements, or a multiple of them, from which on these share so few lines of a cache that they drive each
other out of it."""
_STRIP = 64
"""Bytes of a strip: a line of the cache."""
_PICKED, _BESIDE = 1 << 16, 1 << 11
"""Elements of a chunk that are looked up one by one at the most: of indices, of those of one axis beside slices."""
_WALKED = 1 << 20
"""Elements of a slice that are walked like indices at the most, as these take memory."""


def assign(out: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """``out[...] = values`` for values of the same shape, also fast where the order of their axes is another one.

    Chunks have powers of two as their sizes. Where they are stored in Fortran order NumPy, which goes along the rows
    of the output, then meets elements that drive each other out of the cache. Narrow strips stay in it.
    """
    if values.nbytes >= 1 << 17 and values.itemsize <= 8 and values.ndim > 1 and out.shape == values.shape:
        axis = min(range(out.ndim), key=lambda number: (out.shape[number] == 1, abs(out.strides[number])))
        width = max(16, _STRIP // (values.itemsize or 1))
        if values.strides[axis] % _ALIASED == 0 < values.strides[axis] and out.shape[axis] > 2 * width:
            for start in range(0, out.shape[axis], width):
                strip = (*(slice(None),) * axis, slice(start, start + width))
                out[strip] = values[strip]
            return
    out[...] = values


def in_c_order(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values that lie in C order in memory; a copy where they did not."""
    if values.flags.c_contiguous:
        return values
    out = np.empty(values.shape, values.dtype)
    assign(out, values)
    return out


class Projection(NamedTuple):
    """Which elements of a box go where in an output.

    Attributes:
        point_axes: Axes of the box whose index arrays are walked together, point by point.
        source: One selector per axis of the box.
        target: One selector per dimension of the output: first the points' (if there are point axes), then one per
            remaining axis in order.
        is_basic: Whether all selectors are known to be slices, so that basic NumPy indexing suffices.
    """

    point_axes: tuple[int, ...]
    source: tuple[Selector, ...]
    target: tuple[Selector, ...]
    is_basic: bool = False

    def gather(self, grid: Grid) -> list[PointRun] | None:
        """Cut a projection of indices along a grid into runs of which element by element is looked up.

        ``None`` for slices alone, for points beside slices, and where so much is touched that slices of the chunks
        are copied faster.
        """
        if self.point_axes:
            return self._gathered(grid, self.point_axes, 0) if len(self.point_axes) == len(self.source) else None
        arrays = sum(not isinstance(own, slice) for own in self.source)
        if not arrays:
            return None
        counts = [axis.find(high) - axis.find(low) for axis, (low, high) in zip(grid.axes, self.bounds(), strict=True)]
        axis = counts.index(max(counts))
        if not counts[axis] or (isinstance(self.source[axis], slice) and _count(self.source[axis]) > _WALKED):
            return None
        return self._gathered(grid, (axis,), axis, _PICKED if arrays > 1 or len(self.source) == 1 else _BESIDE)

    def _gathered(self, grid: Grid, axes: tuple[int, ...], dim: int, most: float = math.inf) -> list[PointRun] | None:
        """Runs of all chunks that are touched along some axes, walked together, whose places are the output's ``dim``.

        ``None`` if there are more than ``most`` elements to a chunk.
        """
        chosen = [grid.axes[axis] for axis in axes]
        ids, edges, indices, places = _split_points(
            chosen, [_numbers(self.source[axis]) for axis in axes], self.target[dim]
        )
        others = [axis for axis in range(len(self.source)) if axis not in axes]
        dims = [number for number in range(len(self.target)) if number != dim]
        cuts = [
            _split_axis(self.source[axis], self.target[to], grid.axes[axis])
            for axis, to in zip(others, dims, strict=True)
        ]
        if self.size > most * len(ids) * math.prod(map(len, cuts)):
            return None
        source, target = list(self.source), list(self.target)
        for axis, own in zip(axes, indices, strict=True):
            source[axis] = own
        target[dim] = places
        found = []
        for parts in product(*cuts):
            chunks = np.empty((len(ids), len(source)), np.int64)
            chunks[:, axes] = ids
            for axis, to, part in zip(others, dims, parts, strict=True):
                chunks[:, axis], source[axis], target[to] = part.chunk, part.source, part.target
            found.append(PointRun(chunks, edges, axes, dim, Projection(self.point_axes, tuple(source), tuple(target))))
        return found

    def split(self, grid: Grid, run: int = 1) -> Iterator[ChunkRun]:
        """Cut the projection along a grid.

        Args:
            grid: The grid.
            run: How many chunks that follow each other and are touched alike may make one part.
        """
        if self.point_axes:
            for points in self._gathered(grid, self.point_axes, 0) or ():
                yield from points.singles()
        else:
            yield from self._split_axes(grid, run)

    def _split_axes(self, grid: Grid, run: int) -> Iterator[ChunkRun]:
        """``split`` where each axis is on its own."""
        cuts = list(map(_split_axis, self.source, self.target, grid.axes))
        is_basic = set(map(type, (*self.source, *self.target))) <= {slice}
        axis, most = 0, max(map(len, cuts), default=1)
        if most == 1 and all(cuts):  # one chunk, as where single elements are read
            coords, source, target, whole, _ = zip(*(own[0] for own in cuts), strict=True) if cuts else ((),) * 5
            yield ChunkRun(coords, Projection((), source, target, is_basic), False not in whole)
            return
        if is_basic and run > 1:
            axis = max(number for number, own in enumerate(cuts) if len(own) == most)
            cuts[axis] = _join(cuts[axis], run)
        if not all(cuts):
            return
        chunks, boxes, spots, is_full, counts = zip(*(zip(*own) for own in cuts)) if cuts else ((),) * 5  # noqa: B905  # hot path
        parts = zip(product(*chunks), product(*boxes), product(*spots), product(*is_full), product(*counts))  # noqa: B905  # hot path
        for coords, source, target, whole, count in parts:
            yield ChunkRun(coords, Projection((), source, target, is_basic), False not in whole, axis, math.prod(count))

    def cut(self, grid: Grid, *, whole: bool = True) -> Iterator[tuple[int, ...]]:
        """The chunks along a grid that it touches, and does not cover; all that it touches if elements are not ``whole``."""
        if self.point_axes:
            for part in self.split(grid):
                inside = math.prod(map(_inside, grid.axes, part.coords))
                if not whole or part.projection._distinct() < inside:
                    yield part.coords
            return
        touched, ragged = [], []
        for selector, target, axis in zip(self.source, self.target, grid.axes, strict=True):
            cuts = _split_axis(selector, target, axis)
            touched.append([own.chunk for own in cuts])
            ragged.append({own.chunk for own in cuts if _distinct(own.source) < _inside(axis, own.chunk)})
        if not whole or any(ragged):
            found = product(*touched)
            yield from (at for at in found if not whole or any(i in own for i, own in zip(at, ragged, strict=True)))

    def _distinct(self) -> int:
        """The number of elements of the box that are touched, each counted once."""
        walked = np.stack([_numbers(self.source[axis]) for axis in self.point_axes], axis=-1)
        others = [_distinct(own) for axis, own in enumerate(self.source) if axis not in self.point_axes]
        return len(np.unique(walked, axis=0)) * math.prod(others)

    def read(self, source: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Place the box's elements: ``out[place] = box[elements]``."""
        if self.is_basic:
            out[self.target] = source[self.source]
        elif self.point_axes and len(self.point_axes) == len(self.source):
            out[self.target[0]] = source[self.source]
        else:
            out[_mesh(self.target, 0, out.shape)] = self._front(source)[self._elements(source)]

    def write(self, source: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """The way back: ``box[elements] = values[place]``."""
        if self.is_basic:
            source[self.source] = values[self.target]
            return
        self._front(source)[self._elements(source)] = values[_mesh(self.target, 0, values.shape)]

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Place one value everywhere the projection goes."""
        out[_mesh(self.target, 0, out.shape)] = value

    def _front(self, source: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The box with the grouped axes first, so that NumPy puts the points there too."""
        if not self.point_axes or self.point_axes == tuple(range(len(self.point_axes))):
            return source
        return source.transpose([*self.point_axes, *(a for a in range(source.ndim) if a not in self.point_axes)])

    def _elements(self, source: npt.NDArray[Any]) -> tuple[Any, ...]:
        if not self.point_axes:
            return _mesh(self.source, 0, source.shape)
        rest = [axis for axis in range(len(self.source)) if axis not in self.point_axes]
        order = [*self.point_axes, *rest]
        return _mesh(
            [self.source[axis] for axis in order], len(self.point_axes), [source.shape[axis] for axis in order]
        )

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Whether it is all of a box, in order."""
        return all(
            isinstance(s, slice) and s.start == 0 and s.step == 1 and s.stop == n
            for s, n in zip(self.source, shape, strict=True)
        )

    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The lowest and the highest index touched along each axis of the box."""
        found = []
        for selector in self.source:
            if isinstance(selector, slice):
                found.append((selector.start, selector.start + _count(selector) * selector.step - selector.step))
            else:
                found.append((int(selector.min()), int(selector.max())))
        return tuple(found)

    def blocks(self, shape: Sequence[int]) -> int:
        """About how many blocks of a shape are touched, where the box is made of such; never less than are."""
        pairs = zip(self.bounds(), shape, strict=True)
        return min(self.size, math.prod(high // length - low // length + 1 for (low, high), length in pairs))

    def shift(self, origin: Sequence[int]) -> Projection:
        """The projection in a box that begins at ``origin`` of the old one."""
        source = tuple(
            slice(s.start - o, s.stop - o, s.step) if isinstance(s, slice) else s - o
            for s, o in zip(self.source, origin, strict=True)
        )
        return Projection(self.point_axes, source, self.target, self.is_basic)

    def permute(self, order: Sequence[int], out: npt.NDArray[Any]) -> tuple[Projection, npt.NDArray[Any]]:
        """The projection of a transposed box (``np.transpose(box, order)``) and the output that goes with it."""
        rest = [axis for axis in range(len(self.source)) if axis not in self.point_axes]
        lead = 1 if self.point_axes else 0
        point_axes = tuple(order.index(axis) for axis in self.point_axes)
        ranked = sorted(range(len(point_axes)), key=point_axes.__getitem__)
        moved = [axis for axis in order if axis not in self.point_axes]
        places = [lead + rest.index(axis) for axis in moved]
        projection = Projection(
            tuple(point_axes[i] for i in ranked),
            tuple(self.source[axis] for axis in order),
            (*self.target[:lead], *(self.target[dim] for dim in places)),
            self.is_basic,
        )
        return projection, out.transpose([*range(lead), *places])

    @property
    def size(self) -> int:
        """The number of elements it places."""
        return math.prod(_count(selector) for selector in self.target)


class ChunkRun(NamedTuple):
    """The share of one chunk in a projection; or of a run: equal neighbours in a row that are touched alike.

    Attributes:
        coords: The chunk, or the first of them.
        projection: Its elements and where they go; those of the other chunks follow along the axis.
        is_full: Whether every element of a chunk that lies inside the array is touched, in order.
        axis: The axis along which the chunks of a run follow each other.
        count: The number of chunks.
    """

    coords: tuple[int, ...]
    projection: Projection
    is_full: bool
    axis: int = 0
    count: int = 1  # type: ignore[assignment]  # hides the tuple's, which nobody wants

    @property
    def size(self) -> int:
        """The number of elements it places."""
        return self.count * self.projection.size

    def section(self, start: int, stop: int) -> ChunkRun:
        """The part of some of a run's chunks."""
        if self.count == stop - start:
            return self
        axis, target = self.axis, self.projection.target[self.axis]
        assert isinstance(target, slice)
        length = target.stop - target.start
        moved = slice(target.start + start * length, target.stop + start * length, 1)
        coords = (*self.coords[:axis], self.coords[axis] + start, *self.coords[axis + 1 :])
        places = (*self.projection.target[:axis], moved, *self.projection.target[axis + 1 :])
        return ChunkRun(coords, self.projection._replace(target=places), self.is_full, axis, stop - start)

    def singles(self) -> Iterator[ChunkRun]:
        """The chunks one by one."""
        return iter((self,)) if self.count == 1 else (self.section(i, i + 1) for i in range(self.count))

    def stacked(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The places of all chunks as one view, with an axis in front that counts the chunks."""
        axis, target = self.axis, self.projection.target
        if self.count == 1:
            return out[(*target, ...)][np.newaxis]  # the ellipsis keeps a view where there are no axes
        first = target[axis]
        assert isinstance(first, slice)
        length = first.stop - first.start
        view = out[(*target[:axis], slice(first.start, first.start + self.count * length), *target[axis + 1 :])]
        shape = view.shape
        # To split an axis never takes a copy.
        view = view.reshape(*shape[:axis], self.count, length, *shape[axis + 1 :])
        return view.transpose(axis, *range(axis), *range(axis + 1, len(shape) + 1))

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Place elements of the chunks, which lie in one array, one after the other along its first axis."""
        if self.projection.is_basic:  # as all runs are
            assign(self.stacked(out), boxes[(slice(None), *self.projection.source)])
        else:
            self.projection.read(boxes[0], out)

    def write(self, boxes: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """The way back."""
        if self.projection.is_basic:
            assign(boxes[(slice(None), *self.projection.source)], self.stacked(values))
        else:
            self.projection.write(boxes[0], values)

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Place one value everywhere the chunks go."""
        if self.projection.is_basic:
            self.stacked(out)[...] = value
        else:
            self.projection.fill(out, value)


@dataclass(frozen=True, slots=True, eq=False)
class PointRun:
    """Chunks of which single elements are touched; for reading like a ``Part`` of several chunks.

    Along some axes the chunks lie anywhere and are touched anywhere, along the others all are touched alike.

    Attributes:
        chunks: The chunks' coordinates: (chunks, axes).
        edges: Where each chunk's indices begin in those of the walked axes, and where the last one's end.
        axes: The walked axes.
        dim: The dimension of the output that they go to.
        elements: The elements inside their chunks, and their places.
    """

    chunks: IntArray
    edges: IntArray
    axes: tuple[int, ...]
    dim: int
    elements: Projection

    @property
    def is_full(self) -> bool:
        """They are never known to be all elements in order."""
        return False

    @property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.chunks)

    @property
    def coords(self) -> tuple[int, ...]:
        """The first chunk."""
        return tuple(self.chunks[0].tolist())

    @property
    def projection(self) -> Projection:
        """The first chunk's elements."""
        return self._between(0, int(self.edges[1]))

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.elements.size

    def _between(self, start: int, stop: int) -> Projection:
        source, target = list(self.elements.source), list(self.elements.target)
        for axis in self.axes:
            source[axis] = _numbers(source[axis])[start:stop]
        target[self.dim] = _part_of(target[self.dim], start, stop - start)
        return self.elements._replace(source=tuple(source), target=tuple(target))

    def section(self, start: int, stop: int) -> PointRun:
        """Those of some of the chunks."""
        first, last = int(self.edges[start]), int(self.edges[stop])
        edges = self.edges[start : stop + 1] - first
        return PointRun(self.chunks[start:stop], edges, self.axes, self.dim, self._between(first, last))

    def singles(self) -> Iterator[ChunkRun]:
        """The chunks one by one."""
        for coords, (start, stop) in zip(self.chunks.tolist(), pairwise(self.edges.tolist()), strict=True):
            yield ChunkRun(tuple(coords), self._between(start, stop), False)

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Place the elements of chunks that lie in one array, one after the other along its first axis."""
        flat, steps = _flat(boxes)
        walked = np.repeat(np.arange(self.count) * steps[0], np.diff(self.edges))
        spots = [_numbers(own) * step for own, step in zip(self.elements.source, steps[1:], strict=True)]
        for axis in self.axes:
            walked = walked + spots[axis]
        spots = [own for axis, own in enumerate(spots) if axis not in self.axes]
        spots.insert(self.dim, walked)
        out[_mesh(self.elements.target, 0, out.shape)] = flat.take(reduce(np.add.outer, spots))


def _flat(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], list[int]]:
    """The elements in the order of their memory, and how far apart they are in it along each axis."""
    steps = [stride // array.itemsize for stride in array.strides]
    if 1 + sum((length - 1) * step for length, step in zip(array.shape, steps, strict=True)) != array.size:
        return _flat(np.ascontiguousarray(array))
    return array.ravel(order="K"), steps


Run: TypeAlias = ChunkRun | PointRun


class _Cut(NamedTuple):
    chunk: int
    source: Selector
    target: Selector
    is_full: bool
    count: int = 1  # type: ignore[assignment]  # as in Part


def _count(selector: Selector) -> int:
    if not isinstance(selector, slice):
        return len(selector)
    # A reversed place runs down to its stop, or to 0 where that is None.
    return len(range(selector.start, -1 if selector.stop is None else selector.stop, selector.step))


def _split_axis(selector: Selector, target: Selector, axis: Axis) -> list[_Cut]:
    if isinstance(selector, slice):
        return _split_slice(selector, target, axis)
    return _split_indices(selector, target, axis)


def _split_slice(selector: slice, target: Selector, axis: Axis) -> list[_Cut]:
    start, step = selector.start, selector.step
    count = 1 if selector.stop == start + 1 and step == 1 else _count(selector)
    if count == 0:
        return []
    chunk = axis.find(start)
    if count == 1:
        begin = axis.start(chunk)
        is_full = min(axis.size(chunk), axis.extent - begin) == 1 == step
        return [_Cut(chunk, slice(start - begin, start - begin + 1, step), target, is_full)]
    last = start + (count - 1) * step
    cuts, done = [], 0
    while done < count:
        begin, size = axis.start(chunk), axis.size(chunk)
        inside = min(size, axis.extent - begin)
        first = start + done * step
        here = (min(last, begin + inside - 1) - first) // step + 1
        source = slice(first - begin, first - begin + (here - 1) * step + 1, step)
        is_full = here == inside and step == 1
        cuts.append(_Cut(chunk, source, _part_of(target, done, here), is_full))
        done += here
        if done < count:
            follows = step <= size and isinstance(axis, RegularAxis)  # chunks of other sizes may be stepped over
            chunk = chunk + 1 if follows else axis.find(start + done * step)
    return cuts


def _join(cuts: list[_Cut], most: int) -> list[_Cut]:
    """Cuts of chunks that follow each other and are alike, as one."""
    joined: list[_Cut] = []
    for cut in cuts:
        if joined and joined[-1].count < most and _follows(cut, joined[-1]):
            joined[-1] = joined[-1]._replace(count=joined[-1].count + 1)
        else:
            joined.append(cut)
    return joined


def _follows(cut: _Cut, run: _Cut) -> bool:
    here, first = cut.target, run.target
    if not (isinstance(here, slice) and isinstance(first, slice) and isinstance(cut.source, slice)):
        return False
    alike = (
        cut.is_full is run.is_full
        and isinstance(run.source, slice)
        and cut.source == run.source
        and here.step == first.step == 1
    )
    length = first.stop - first.start if alike else 0
    moved = run.count * length
    return alike and cut.chunk == run.chunk + run.count and here == slice(first.start + moved, first.stop + moved, 1)


def _part_of(target: Selector, start: int, count: int) -> Selector:
    if not isinstance(target, slice):
        return target[start : start + count]
    first = target.start + start * target.step
    stop = first + count * target.step
    return slice(first, stop if stop >= 0 else None, target.step)


def _split_indices(indices: IntArray, target: Selector, axis: Axis) -> list[_Cut]:
    ids, edges, (local,), places = _split_points([axis], [indices], target)
    return [
        _Cut(chunk, local[start:stop], _part_of(places, start, stop - start), False)
        for chunk, (start, stop) in zip(ids[:, 0].tolist(), pairwise(edges.tolist()), strict=True)
    ]


def _inside(axis: Axis, chunk: int) -> int:
    """How much of a chunk lies inside the array."""
    return min(axis.size(chunk), axis.extent - axis.start(chunk))


def _distinct(selector: Selector) -> int:
    """The number of indices of a selector, each counted once."""
    return _count(selector) if isinstance(selector, slice) else len(np.unique(selector))


def _numbers(selector: Selector) -> IntArray:
    """The indices of a box's selector."""
    return np.arange(selector.start, selector.stop, selector.step) if isinstance(selector, slice) else selector


def _split_points(
    axes: Sequence[Axis], indices: Sequence[IntArray], target: Selector
) -> tuple[IntArray, IntArray, list[IntArray], Selector]:
    """Group points by chunk: chunks, where each one's begin, their indices inside the chunks, their places."""
    ids = [axis.find_all(values) for axis, values in zip(axes, indices, strict=True)]
    flat, count = _numbered(ids, [axis.nchunks for axis in axes])
    order, edges = _ranked(flat, count)
    local = [values - axis.start_all(own) for values, axis, own in zip(indices, axes, ids, strict=True)]
    firsts = edges[:-1]
    if order is not None:
        local, firsts = [values[order] for values in local], order[firsts]
        target = _moved(target, order)
    return np.stack([own[firsts] for own in ids], axis=1), edges, local, target


def _numbered(ids: Sequence[IntArray], sizes: Sequence[int]) -> tuple[IntArray, int]:
    """One number per chunk from its coordinates, and how many numbers there may be."""
    if math.prod(sizes) >= 1 << 63:  # number only the coordinates that occur, so that their product fits
        pairs = [np.unique(own, return_inverse=True) for own in ids]
        ids, sizes = [np.asarray(inverse) for _, inverse in pairs], [len(names) for names, _ in pairs]
    flat = ids[0]
    for own, size in zip(ids[1:], sizes[1:], strict=True):
        flat = flat * size + own
    return flat, math.prod(sizes)


def _ranked(chunks: IntArray, count: int) -> tuple[IntArray | None, IntArray]:
    """An order that puts equal chunks beside each other, and where each chunk begins in it.

    ``None`` where they stand in order already.
    """
    if not len(chunks):
        return None, np.zeros(1, np.int64)
    order: IntArray | None = None
    if bool((chunks[1:] < chunks[:-1]).any()):
        numbers: npt.NDArray[Any] = chunks.astype(np.uint16) if count <= 1 << 16 else chunks  # sorted by counting
        order = np.argsort(numbers, kind="stable")
        chunks = numbers[order]
    return order, np.concatenate([[0], np.flatnonzero(chunks[1:] != chunks[:-1]) + 1, [len(chunks)]])


def _moved(target: Selector, order: IntArray) -> IntArray:
    """Places in another order."""
    if not isinstance(target, slice):
        return target[order]
    return order if target.start == 0 and target.step == 1 else target.start + target.step * order


def _mesh(selectors: Sequence[Selector], points: int, shape: Sequence[int]) -> tuple[Any, ...]:
    """Selectors as one NumPy index: the first ``points`` of them together, the others orthogonal.

    NumPy treats one index array among slices, or adjacent ones first, as we do; with more of them
    everything becomes arrays that broadcast against each other.
    """
    arrays = [not isinstance(selector, slice) for selector in selectors]
    if sum(arrays[points:]) + (points > 0) <= 1:
        return tuple(selectors)
    ndim = len(selectors) - points + (points > 0)
    mesh: list[IntArray] = []
    for number, selector in enumerate(selectors):
        dim = 0 if number < points else number - points + (points > 0)
        values = np.arange(*selector.indices(shape[number])) if isinstance(selector, slice) else selector
        mesh.append(values.reshape([-1 if d == dim else 1 for d in range(ndim)]))
    return tuple(mesh)
