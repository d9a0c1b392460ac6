"""Regions: boxes of an array as tuples of slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from zarrasync.errors import ShapeError
from zarrasync.indexing.coverage import touched_chunks
from zarrasync.model.chunk_grids import Grid

__all__ = ["Region", "clip", "corners", "resolve_corners", "split_region"]

Region: TypeAlias = tuple[slice, ...]
"""A box of an array: for each axis a slice with a start, a stop and no step."""


def corners(region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the starts and the stops of a region along all axes."""
    return tuple(s.start for s in region), tuple(s.stop for s in region)


def resolve_corners(
    source_shape: tuple[int, ...], array_shape: tuple[int, ...], region: Sequence[slice] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the corners of the region that a source is written to.

    Args:
        source_shape: The shape of the source.
        array_shape: The shape of the array.
        region: The region, with slices as users pass them; ``None`` for the whole array.

    Raises:
        ShapeError: If the region does not fit the array, or its shape differs from the source's.
    """
    if region is None:
        region = tuple(slice(0, size) for size in array_shape)
    without_steps = isinstance(region, tuple | list) and all(
        isinstance(s, slice) and s.step in (None, 1) for s in region
    )
    if not without_steps or len(region) != len(array_shape):
        raise ShapeError(f"region must be a tuple of {len(array_shape)} slices without steps, found {region!r}")
    limits = [s.indices(size)[:2] for s, size in zip(region, array_shape, strict=True)]
    shape = tuple(max(0, stop - start) for start, stop in limits)
    if shape != source_shape:
        raise ShapeError(
            f"the source has shape {source_shape}, but the region has shape {shape}", found=source_shape, wanted=shape
        )
    return tuple(start for start, _ in limits), tuple(stop for _, stop in limits)


def clip(region: Region, other: Region) -> Region:
    """Return the intersection of two regions."""
    return tuple(
        slice(max(one.start, two.start), min(one.stop, two.stop)) for one, two in zip(region, other, strict=True)
    )


def split_region(region: Region, grid: Grid) -> Iterator[tuple[tuple[int, ...], Region]]:
    """Return the grid coordinates of each chunk that a region touches, and the part of the region in the chunk."""
    return ((coords, clip(grid.box(coords), region)) for coords in touched_chunks(region, grid))
