"""Coordinates that are stored as arrays next to an array, as in CF and xarray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync.errors import ZarrError
from zarrasync.metadata.conventions import Axis
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.hierarchy import Hierarchy
from zarrasync.server.limits import TooMuch

__all__ = ["with_stored_coordinates"]

_MOST_ELEMENTS = 100_000
"""The most elements of a coordinate that is read."""
_MOST_LABELS = 2_000
"""The most elements of a coordinate without regular steps."""
_TOLERANCE = 1e-3
"""How much a step may differ from the mean one, as a share of it."""


async def with_stored_coordinates(
    hierarchy: Hierarchy, chunks: ChunkReader, path: str, axes: Sequence[Axis], shape: Sequence[int]
) -> list[Axis]:
    """Return the axes of an array with the coordinates in arrays of the same group that have the axes' names.

    Args:
        hierarchy: The served hierarchy.
        chunks: Reads its arrays.
        path: The path of the array.
        axes: The axes. If conventions specify coordinates, they are kept.
        shape: The shape of the array.
    """
    group = path.rpartition("/")[0]
    return await gather([partial(_locate, hierarchy, chunks, group, *item) for item in zip(axes, shape, strict=True)])


async def _locate(hierarchy: Hierarchy, chunks: ChunkReader, group: str, axis: Axis, size: int) -> Axis:
    if not axis.name or axis.has_coordinates or axis.labels or not 1 < size <= _MOST_ELEMENTS:
        return axis
    try:
        node = await hierarchy.node(join(group, axis.name))
        if not isinstance(node, AsyncArray) or node.shape != (size,) or node.dtype.kind not in "iuf":
            return axis
        values = await chunks.read(node.view[:], np.asarray)
    except (ZarrError, TooMuch):  # the array can be shown without them
        return axis
    attributes = node.attrs
    unit = attributes.get("units")
    is_spatial = attributes.get("axis") in ("X", "Y", "Z") or "projection" in str(attributes.get("standard_name"))
    named = replace(axis, unit=unit if isinstance(unit, str) else "", kind=axis.kind or "space" * is_spatial)
    is_packed = CFEncoding.from_attributes(attributes, node.dtype).is_packed
    return named if is_packed else _described(named, values.astype(np.float64))


def _described(axis: Axis, values: npt.NDArray[np.float64]) -> Axis:
    """Return an axis with coordinates: as a step if it is regular, or else as the text of each element."""
    steps = np.diff(values)
    step = float(values[-1] - values[0]) / len(steps)
    if not np.isfinite(values).all():
        return axis
    if step and np.abs(steps - step).max() <= _TOLERANCE * abs(step):
        return replace(axis, step=step, origin=float(values[0]))
    return replace(axis, labels=tuple(f"{value:g}" for value in values)) if len(values) <= _MOST_LABELS else axis
