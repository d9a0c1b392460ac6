"""Regions of boxes, purely: which elements of a chunk go to which places of an output.

The region of a whole array is made from a selection (``indexing``); ``Region.split`` cuts it along a chunk
grid into the regions of single chunks, and cuts those again along the grid of a shard's inner chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.grids import Axis, Grid, RegularAxis

__all__ = ["IntArray", "Part", "Points", "Region", "Run", "Selector", "assign"]

IntArray: TypeAlias = npt.NDArray[np.int64]
Selector: TypeAlias = slice | IntArray
"""A slice with non-negative start and stop and any non-zero step, or index values."""


_ALIASED = 2048
"""Bytes between elements, or a multiple of them, from which on these share so few lines of a cache that they drive each
other out of it."""
_STRIP = 64
"""Bytes of a strip: a line of the cache."""


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


class Region(NamedTuple):
    """Which elements of a box go where in an output.

    Attributes:
        group: Axes of the box whose index arrays are walked together, point by point.
        box: One selector per axis of the box.
        place: One selector per output dimension: the points' (if there is a group), then the
            remaining axes' in order.
        plain: Whether all selectors are known to be slices, so that NumPy takes them as they are.
    """

    group: tuple[int, ...]
    box: tuple[Selector, ...]
    place: tuple[Selector, ...]
    plain: bool = False

    def gather(self, grid: Grid) -> Points | None:
        """Cut a region of points along a grid; ``None`` for one that is not of points alone."""
        if len(self.box) == 1 and not isinstance(self.box[0], slice):  # to index an axis alone makes points, too
            return _split_points(self._replace(group=(0,)), grid)
        return _split_points(self, grid) if self.group and len(self.group) == len(self.box) else None

    def split(self, grid: Grid, run: int = 1) -> Iterator[Part]:
        """Cut the region along a grid, in C order of the axes that are not grouped.

        Args:
            grid: The grid.
            run: How many chunks that follow each other and are touched alike may make one part.
        """
        if not self.group:
            yield from self._split_axes(grid, run)
            return
        gathered = _split_points(self, grid).singles()
        if len(self.group) == len(self.box):  # points and nothing else
            yield from gathered
            return
        rest = [axis for axis in range(len(self.box)) if axis not in self.group]
        cuts = [
            _split_axis(self.box[axis], place, grid.axes[axis])
            for axis, place in zip(rest, self.place[1:], strict=True)
        ]
        for own in gathered:
            for parts in product(*cuts):
                coords, box = [0] * len(self.box), list(self.box)
                for axis, chunk, values in zip(self.group, own.coords, own.region.box, strict=True):
                    coords[axis], box[axis] = chunk, values
                for axis, part in zip(rest, parts, strict=True):
                    coords[axis], box[axis] = part.chunk, part.box
                place = (*own.region.place, *(part.place for part in parts))
                yield Part(tuple(coords), Region(self.group, tuple(box), place), False)

    def _split_axes(self, grid: Grid, run: int) -> Iterator[Part]:
        """``split`` where each axis is on its own."""
        cuts = list(map(_split_axis, self.box, self.place, grid.axes))
        plain = set(map(type, (*self.box, *self.place))) <= {slice}
        axis, most = 0, max(map(len, cuts), default=1)
        if most == 1 and all(cuts):  # one chunk, as where single elements are read
            coords, box, place, whole, _ = zip(*(own[0] for own in cuts), strict=True) if cuts else ((),) * 5
            yield Part(coords, Region((), box, place, plain), False not in whole)
            return
        if plain and run > 1:
            axis = max(number for number, own in enumerate(cuts) if len(own) == most)
            cuts[axis] = _join(cuts[axis], run)
        if not all(cuts):
            return
        chunks, boxes, spots, full, counts = zip(*(zip(*own) for own in cuts)) if cuts else ((),) * 5
        parts = zip(product(*chunks), product(*boxes), product(*spots), product(*full), product(*counts))
        for coords, box, place, whole, count in parts:
            yield Part(coords, Region((), box, place, plain), False not in whole, axis, math.prod(count))

    def read(self, box: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Place the box's elements: ``out[place] = box[elements]``."""
        if self.plain:
            out[self.place] = box[self.box]
        elif self.group and len(self.group) == len(self.box):
            out[self.place[0]] = box[self.box]
        else:
            out[_mesh(self.place, 0, out.shape)] = self._front(box)[self._elements(box)]

    def write(self, box: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """The way back: ``box[elements] = values[place]``."""
        if self.plain:
            box[self.box] = values[self.place]
            return
        self._front(box)[self._elements(box)] = values[_mesh(self.place, 0, values.shape)]

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Place one value everywhere the region goes."""
        out[_mesh(self.place, 0, out.shape)] = value

    def _front(self, box: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The box with the grouped axes first, so that NumPy puts the points there too."""
        if not self.group or self.group == tuple(range(len(self.group))):
            return box
        return box.transpose([*self.group, *(a for a in range(box.ndim) if a not in self.group)])

    def _elements(self, box: npt.NDArray[Any]) -> tuple[Any, ...]:
        if not self.group:
            return _mesh(self.box, 0, box.shape)
        rest = [axis for axis in range(len(self.box)) if axis not in self.group]
        order = [*self.group, *rest]
        return _mesh([self.box[axis] for axis in order], len(self.group), [box.shape[axis] for axis in order])

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Whether it is all of a box, in order."""
        return all(
            isinstance(s, slice) and s.start == 0 and s.step == 1 and s.stop == n
            for s, n in zip(self.box, shape, strict=True)
        )

    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The lowest and the highest index touched along each axis of the box."""
        found = []
        for selector in self.box:
            if isinstance(selector, slice):
                found.append((selector.start, selector.start + _count(selector) * selector.step - selector.step))
            else:
                found.append((int(selector.min()), int(selector.max())))
        return tuple(found)

    def blocks(self, shape: Sequence[int]) -> int:
        """About how many blocks of a shape are touched, where the box is made of such; never less than are."""
        pairs = zip(self.bounds(), shape, strict=True)
        return min(self.size, math.prod(high // length - low // length + 1 for (low, high), length in pairs))

    def shift(self, origin: Sequence[int]) -> Region:
        """The region in a box that begins at ``origin`` of the old one."""
        box = tuple(
            slice(s.start - o, s.stop - o, s.step) if isinstance(s, slice) else s - o
            for s, o in zip(self.box, origin, strict=True)
        )
        return Region(self.group, box, self.place, self.plain)

    def permute(self, order: Sequence[int], out: npt.NDArray[Any]) -> tuple[Region, npt.NDArray[Any]]:
        """The region of a transposed box (``np.transpose(box, order)``) and the output that goes with it."""
        rest = [axis for axis in range(len(self.box)) if axis not in self.group]
        lead = 1 if self.group else 0
        group = tuple(order.index(axis) for axis in self.group)
        ranked = sorted(range(len(group)), key=group.__getitem__)
        moved = [axis for axis in order if axis not in self.group]
        places = [lead + rest.index(axis) for axis in moved]
        region = Region(
            tuple(group[i] for i in ranked),
            tuple(self.box[axis] for axis in order),
            (*self.place[:lead], *(self.place[dim] for dim in places)),
            self.plain,
        )
        return region, out.transpose([*range(lead), *places])

    @property
    def size(self) -> int:
        """The number of elements it places."""
        return math.prod(_count(selector) for selector in self.place)


class Part(NamedTuple):
    """A chunk's share of a region; or a run: chunks in a row that are touched alike.

    Attributes:
        coords: The chunk, or the first of them.
        region: Its elements and their places; those of the others follow along the axis.
        full: Whether every element of a chunk that lies inside the array is touched, in order.
        axis: The axis along which the chunks of a run follow each other.
        count: The number of chunks.
    """

    coords: tuple[int, ...]
    region: Region
    full: bool
    axis: int = 0
    count: int = 1  # type: ignore[assignment]  # hides the tuple's, which nobody wants

    @property
    def size(self) -> int:
        """The number of elements it places."""
        return self.count * self.region.size

    def section(self, start: int, stop: int) -> Part:
        """The part of some of a run's chunks."""
        if self.count == stop - start:
            return self
        axis, place = self.axis, self.region.place[self.axis]
        assert isinstance(place, slice)
        length = place.stop - place.start
        moved = slice(place.start + start * length, place.stop + start * length, 1)
        coords = (*self.coords[:axis], self.coords[axis] + start, *self.coords[axis + 1 :])
        places = (*self.region.place[:axis], moved, *self.region.place[axis + 1 :])
        return Part(coords, self.region._replace(place=places), self.full, axis, stop - start)

    def singles(self) -> Iterator[Part]:
        """The chunks one by one."""
        return iter((self,)) if self.count == 1 else (self.section(i, i + 1) for i in range(self.count))

    def stacked(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The places of all chunks as one view, with an axis in front that counts the chunks."""
        axis, place = self.axis, self.region.place
        if self.count == 1:
            return out[(*place, ...)][np.newaxis]  # the ellipsis keeps a view where there are no axes
        first = place[axis]
        assert isinstance(first, slice)
        length = first.stop - first.start
        view = out[(*place[:axis], slice(first.start, first.start + self.count * length), *place[axis + 1 :])]
        shape = view.shape
        # To split an axis never takes a copy.
        view = view.reshape(*shape[:axis], self.count, length, *shape[axis + 1 :])
        return view.transpose(axis, *range(axis), *range(axis + 1, len(shape) + 1))

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Place elements of the chunks, which lie in one array, one after the other along its first axis."""
        if self.region.plain:  # as all runs are
            assign(self.stacked(out), boxes[(slice(None), *self.region.box)])
        else:
            self.region.read(boxes[0], out)

    def write(self, boxes: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """The way back."""
        if self.region.plain:
            assign(boxes[(slice(None), *self.region.box)], self.stacked(values))
        else:
            self.region.write(boxes[0], values)

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Place one value everywhere the chunks go."""
        if self.region.plain:
            self.stacked(out)[...] = value
        else:
            self.region.fill(out, value)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Chunks anywhere of which single points are touched; for reading like a ``Part`` of several chunks.

    Attributes:
        chunks: The chunks' coordinates along the axes that points have: (chunks, axes).
        edges: Where each chunk's points begin in the arrays that follow, and where the last one's end.
        indices: The points' indices inside their chunks, per axis.
        places: The points' places in the output.
    """

    chunks: IntArray
    edges: IntArray
    indices: tuple[IntArray, ...]
    places: Selector

    @property
    def full(self) -> bool:
        """Points are never known to be all elements in order."""
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
    def region(self) -> Region:
        """The first chunk's points."""
        stop = int(self.edges[1])
        group = tuple(range(len(self.indices)))
        return Region(group, tuple([own[:stop] for own in self.indices]), (_part_of(self.places, 0, stop),))

    @property
    def size(self) -> int:
        """The number of points."""
        return int(self.edges[-1])

    def section(self, start: int, stop: int) -> Points:
        """Those of some of the chunks."""
        first, last = int(self.edges[start]), int(self.edges[stop])
        indices = tuple([own[first:last] for own in self.indices])
        places = _part_of(self.places, first, last - first)
        return Points(self.chunks[start:stop], self.edges[start : stop + 1] - first, indices, places)

    def singles(self) -> Iterator[Part]:
        """The chunks one by one."""
        group = tuple(range(len(self.indices)))
        for coords, (start, stop) in zip(self.chunks.tolist(), pairwise(self.edges.tolist()), strict=True):
            box = tuple([own[start:stop] for own in self.indices])
            yield Part(tuple(coords), Region(group, box, (_part_of(self.places, start, stop - start),)), False)

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Place the points of chunks that lie in one array, one after the other along its first axis."""
        numbers = np.repeat(np.arange(self.count), np.diff(self.edges))
        out[self.places] = boxes[(numbers, *self.indices)]


Run: TypeAlias = Part | Points


class _Cut(NamedTuple):
    chunk: int
    box: Selector
    place: Selector
    full: bool
    count: int = 1  # type: ignore[assignment]  # as in Part


def _count(selector: Selector) -> int:
    if not isinstance(selector, slice):
        return len(selector)
    # A reversed place runs down to its stop, or to 0 where that is None.
    return len(range(selector.start, -1 if selector.stop is None else selector.stop, selector.step))


def _split_axis(selector: Selector, place: Selector, axis: Axis) -> list[_Cut]:
    if isinstance(selector, slice):
        return _split_slice(selector, place, axis)
    return _split_indices(selector, place, axis)


def _split_slice(selector: slice, place: Selector, axis: Axis) -> list[_Cut]:
    start, step = selector.start, selector.step
    count = 1 if selector.stop == start + 1 and step == 1 else _count(selector)
    if count == 0:
        return []
    chunk = axis.find(start)
    if count == 1:
        begin = axis.start(chunk)
        full = min(axis.size(chunk), axis.extent - begin) == 1 == step
        return [_Cut(chunk, slice(start - begin, start - begin + 1, step), place, full)]
    last = start + (count - 1) * step
    cuts, done = [], 0
    while done < count:
        begin, size = axis.start(chunk), axis.size(chunk)
        inside = min(size, axis.extent - begin)
        first = start + done * step
        here = (min(last, begin + inside - 1) - first) // step + 1
        box = slice(first - begin, first - begin + (here - 1) * step + 1, step)
        full = here == inside and step == 1
        cuts.append(_Cut(chunk, box, _part_of(place, done, here), full))
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
    here, first = cut.place, run.place
    if not (isinstance(here, slice) and isinstance(first, slice) and isinstance(cut.box, slice)):
        return False
    alike = cut.full is run.full and isinstance(run.box, slice) and cut.box == run.box and here.step == first.step == 1
    length = first.stop - first.start if alike else 0
    moved = run.count * length
    return alike and cut.chunk == run.chunk + run.count and here == slice(first.start + moved, first.stop + moved, 1)


def _part_of(place: Selector, start: int, count: int) -> Selector:
    if not isinstance(place, slice):
        return place[start : start + count]
    first = place.start + start * place.step
    stop = first + count * place.step
    return slice(first, stop if stop >= 0 else None, place.step)


def _split_indices(indices: IntArray, place: Selector, axis: Axis) -> list[_Cut]:
    ids = axis.find_all(indices)
    order, edges = _ranked(ids, axis.nchunks)
    local, chunks = indices - axis.start_all(ids), ids
    if order is not None:
        local, chunks = local[order], ids[order]
        place = _moved(place, order)
    pieces = zip(chunks[edges[:-1]].tolist(), pairwise(edges.tolist()), strict=True)
    return [
        _Cut(chunk, local[start:stop], _part_of(place, start, stop - start), False) for chunk, (start, stop) in pieces
    ]


def _split_points(region: Region, grid: Grid) -> Points:
    """Group the points of a region by chunk."""
    axes = [grid.axes[axis] for axis in region.group]
    indices = [np.asarray(region.box[axis]) for axis in region.group]
    ids = [axis.find_all(values) for axis, values in zip(axes, indices, strict=True)]
    flat, count = _numbered(ids, [axis.nchunks for axis in axes])
    order, edges = _ranked(flat, count)
    local = [values - axis.start_all(own) for values, axis, own in zip(indices, axes, ids, strict=True)]
    firsts, places = edges[:-1], region.place[0]
    if order is not None:
        local, firsts = [values[order] for values in local], order[firsts]
        places = _moved(places, order)
    return Points(np.stack([own[firsts] for own in ids], axis=1), edges, tuple(local), places)


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


def _moved(place: Selector, order: IntArray) -> IntArray:
    """Places in another order."""
    if not isinstance(place, slice):
        return place[order]
    return order if place.start == 0 and place.step == 1 else place.start + place.step * order


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
