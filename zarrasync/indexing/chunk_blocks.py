"""Blocks of an array: regions of whole stored values, which can be written without looking at what is there. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import cast

from zarrasync.errors import ShapeError
from zarrasync.indexing.regions import Region, corners
from zarrasync.metadata.types import ArrayMetadata

__all__ = ["bounds", "cut_into_units", "plan_blocks", "plan_few", "units"]


def bounds(
    shape: tuple[int, ...], whole: tuple[int, ...], region: Sequence[slice] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where in the array the source goes.

    Raises:
        ShapeError: If it does not fit there.
    """
    if region is None:
        region = tuple(slice(0, n) for n in whole)
    slices = isinstance(region, tuple | list) and all(isinstance(s, slice) and s.step in (None, 1) for s in region)
    if not slices or len(region) != len(whole):
        raise ShapeError(f"a region is a tuple of {len(whole)} slices without steps, found {region!r}")
    spans = [s.indices(n)[:2] for s, n in zip(region, whole, strict=True)]
    found = tuple(max(0, b - a) for a, b in spans)
    if found != shape:
        raise ShapeError(f"the source has shape {shape}, the region {found}", found=shape, wanted=found)
    return tuple(a for a, _ in spans), tuple(b for _, b in spans)


def plan_blocks(
    target: ArrayMetadata,
    chunks: tuple[int, ...] | None,
    limit: int,
    start: tuple[int, ...] | None = None,
    stop: tuple[int, ...] | None = None,
    least: int = 1,
) -> Iterator[Region]:
    """Regions made of whole stored values.

    Args:
        target: The array that is written.
        chunks: The shape of what the source is read by, so that it is read once if possible.
        limit: Bytes of a region at the most, unless a stored value alone is larger.
        start: Where the first region begins; at the array's beginning if not given.
        stop: Where the last one ends.
        least: How many regions there should be, if there are as many stored values.
    """
    start = start or (0,) * target.ndim
    stop = stop or target.shape
    if target.edges is not None:
        cuts = []
        for own, a, b in zip(target.grid.axes, start, stop, strict=True):
            cuts.append(_cut(a, b, [own.start(i) + own.size(i) for i in range(own.nchunks)]))
        return cast("Iterator[Region]", product(*cuts))
    room = limit // (target.dtype.itemsize or 16)
    extent = [b - a for a, b in zip(start, stop, strict=True)]

    def fits(steps: Sequence[int], axis: int) -> bool:
        longer = [2 * n if number == axis else n for number, n in enumerate(steps)]
        count = math.prod(-(-n // s) for n, s in zip(extent, longer, strict=True))
        return math.prod(longer) <= room and count >= least

    steps = _read_once(target, chunks, fits)
    for axis in reversed(range(len(steps))):
        while steps[axis] < extent[axis] and fits(steps, axis):
            steps[axis] *= 2
    cuts = [_cut(a, b, range(a // s * s + s, b + s, s)) for a, b, s in zip(start, stop, steps, strict=True)]
    return cast("Iterator[Region]", product(*cuts))


def plan_few(
    target: ArrayMetadata,
    wanted: Iterable[tuple[int, ...]],
    chunks: tuple[int, ...] | None,
    limit: int,
    start: tuple[int, ...],
    stop: tuple[int, ...],
) -> Iterator[Region]:
    """Regions made of some stored values alone; takes no longer where there are many others.

    Args:
        target: The array that is written.
        wanted: The grid coordinates of the stored values.
        chunks: As for ``plan_blocks``, as is ``limit``.
        limit: Bytes of a region at the most.
        start: Where the first stored value begins that is written.
        stop: Where the last one ends.
    """
    room = limit // (target.dtype.itemsize or 16)
    together = [1] * target.ndim
    if target.edges is None:
        steps = _read_once(target, chunks, lambda steps, axis: 2 * math.prod(steps) <= room)
        together = [n // own for n, own in zip(steps, target.write_chunks, strict=True)]
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for at in sorted(wanted):
        groups.setdefault(tuple(i // n for i, n in zip(at, together, strict=True)), []).append(at)
    everything = tuple(map(slice, start, stop))
    for group in groups.values():
        axes = list(zip(*group, strict=True))
        first, last = tuple(map(min, axes)), tuple(map(max, axes))
        whole = len(group) == math.prod(b - a + 1 for a, b in zip(first, last, strict=True))
        ends = [(first, last)] if whole else zip(group, group, strict=True)
        yield from (_within(target, a, b, everything) for a, b in ends)


def _read_once(
    target: ArrayMetadata, chunks: tuple[int, ...] | None, fits: Callable[[Sequence[int], int], bool]
) -> list[int]:
    """The shape of regions that hold whole values of the source, as far as they may be twice as long along an axis."""
    steps = list(target.write_chunks)
    wanted = [max(-(-s // t) * t, t) for s, t in zip(chunks or steps, steps, strict=True)]
    for axis in reversed(range(len(steps))):  # rather whole values of the source than many small steps
        while steps[axis] < wanted[axis] and fits(steps, axis):
            steps[axis] = min(2 * steps[axis], wanted[axis])
    return steps


def _cut(start: int, stop: int, ends: Collection[int]) -> list[slice]:
    """Parts of a range between the places at which it may be cut."""
    found = []
    for end in ends:
        if end > start and start < stop:
            found.append(slice(start, min(end, stop)))
            start = min(end, stop)
    return found


def units(
    target: ArrayMetadata, start: tuple[int, ...], stop: tuple[int, ...], *, cut: bool = False
) -> list[tuple[int, ...]]:
    """The grid coordinates of the stored values that a box touches; ``cut``: of those that it does not cover."""
    ranges, partial = [], []
    for axis, a, b in zip(target.grid.axes, start, stop, strict=True):
        if b <= a:
            return []
        first, last = axis.find(a), axis.find(b - 1)
        ranges.append(range(first, last + 1))
        ragged = {first} if a > axis.start(first) else set()
        if b < min(axis.start(last) + axis.size(last), axis.extent):
            ragged.add(last)
        partial.append(ragged)
    if cut and not any(partial):
        return []
    found = product(*ranges)
    if not cut:
        return list(found)
    return [at for at in found if any(i in ragged for i, ragged in zip(at, partial, strict=True))]


def cut_into_units(target: ArrayMetadata, region: Region) -> Iterator[tuple[tuple[int, ...], Region]]:
    """The stored values that a region touches: their grid coordinates, and their parts of the region."""
    return ((at, _within(target, at, at, region)) for at in units(target, *corners(region)))


def _within(target: ArrayMetadata, first: tuple[int, ...], last: tuple[int, ...], region: Region) -> Region:
    """The part of a region that the stored values from one to another cover."""
    box = zip(target.grid.box(first, last), region, strict=True)
    return tuple(slice(max(own.start, s.start), min(own.stop, s.stop)) for own, s in box)
