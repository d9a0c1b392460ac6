"""Regions: boxes of an array as tuples of slices."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Region", "corners"]

Region: TypeAlias = tuple[slice, ...]
"""A box of an array: per axis a slice with a start, a stop and no step."""


def corners(region: Region) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first indices of a region, and those behind its last ones."""
    return tuple(s.start for s in region), tuple(s.stop for s in region)
