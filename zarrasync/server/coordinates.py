"""Coordinates that are stored as arrays next to an array, as in CF and xarray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync.display.presentation import Presentation, with_short_dates
from zarrasync.display.tables import Column
from zarrasync.errors import NodeNotFoundError, ZarrError
from zarrasync.indexing.labels import Position
from zarrasync.metadata.conventions import Axis
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.described import Described
from zarrasync.server.limits import TooMuch

__all__ = ["NOTE", "coordinate_columns", "is_south_first", "with_stored_coordinates"]

NOTE = "note"
"""The attribute of an axis with the reason why its times are numbers."""

_MOST_ELEMENTS = 100_000
"""The most elements of a coordinate that is read."""
_MOST_LABELS = 10_000
"""The most elements of a coordinate of dates, or without regular steps."""
_TOLERANCE = 1e-3
"""How much a step may differ from the mean one, as a share of it."""
_NORTH = ("degreesnorth", "degreenorth", "degreen", "degreesn")
"""Units of latitudes, without underscores."""
_NORTHWARD = ("latitude", "grid_latitude", "projection_y_coordinate")
"""Standard names of coordinates that increase to the north."""


async def with_stored_coordinates(
    described: Described, chunks: ChunkReader, path: str, axes: Sequence[Axis], shape: Sequence[int]
) -> list[Axis]:
    """Return the axes of an array with the coordinates in arrays of the same group that have the axes' names.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        path: The path of the array.
        axes: The axes. If conventions specify coordinates, they are kept.
        shape: The shape of the array.
    """
    group = path.rpartition("/")[0]
    return await gather([partial(_locate, described, chunks, group, *item) for item in zip(axes, shape, strict=True)])


async def coordinate_columns(
    described: Described, chunks: ChunkReader, path: str, names: Sequence[str], indices: Sequence[Position]
) -> list[Column]:
    """Return the coordinates of a selection along each axis of an array: numbers of elements where none are stored.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        path: The path of the array.
        names: The names of its axes.
        indices: The selected indices of each axis.
    """
    shape = (await described.hierarchy.array(path)).shape
    group = path.rpartition("/")[0]
    items = zip(names, shape, map(_with_axis, indices, shape), strict=True)
    return await gather([partial(_column, described, chunks, group, *item) for item in items])


async def _column(
    described: Described, chunks: ChunkReader, group: str, name: str, size: int, index: slice | npt.NDArray[np.intp]
) -> Column:
    try:
        node = await described.hierarchy.node(join(group, name))
    except NodeNotFoundError:
        return Column(name, np.arange(size)[index])
    if not isinstance(node, AsyncArray) or node.shape != (size,):
        return Column(name, np.arange(size)[index])
    presentation = await described.presentation(node)
    return Column(name, await chunks.read(node.view.oindex[index,], lambda stored: presentation.show(stored).values))


def _with_axis(index: Position, size: int) -> slice | npt.NDArray[np.intp]:
    """Return an index of the same elements that keeps the axis."""
    return slice(index % size, index % size + 1) if isinstance(index, int) else index


def is_south_first(axis: Axis) -> bool:
    """Return whether the coordinates of an axis of rows increase to the north, so that the first row is at the bottom."""
    name, letter = axis.attributes.get("standard_name"), axis.attributes.get("axis")
    if not (name in _NORTHWARD or letter == "Y" or axis.unit.lower().replace("_", "") in _NORTH):
        return False
    return axis.step > 0 if axis.step is not None else bool(axis.labels) and _is_increasing(axis.labels)


def _is_increasing(labels: Sequence[str]) -> bool:
    try:
        return float(labels[0]) < float(labels[-1])
    except ValueError:  # dates
        return False


async def _locate(described: Described, chunks: ChunkReader, group: str, axis: Axis, size: int) -> Axis:
    if not axis.name or axis.has_coordinates or axis.labels or not 1 < size <= _MOST_ELEMENTS:
        return axis
    try:
        node = await described.hierarchy.node(join(group, axis.name))
        if not isinstance(node, AsyncArray) or node.shape != (size,) or node.dtype.kind not in "iuf":
            return axis
        presentation = await described.presentation(node)
        return await chunks.read(node.view[:], partial(_described, presentation, _named(axis, node, presentation)))
    except (ZarrError, TooMuch):  # the array can be shown without them
        return axis


def _named(axis: Axis, node: AsyncArray, presentation: Presentation) -> Axis:
    """Return an axis with the unit and the attributes of its coordinates."""
    attributes = {key: node.attrs[key] for key in ("axis", "standard_name") if key in node.attrs}
    is_spatial = attributes.get("axis") in ("X", "Y", "Z") or "projection" in str(attributes.get("standard_name"))
    kind = axis.kind or "space" * is_spatial
    return replace(axis, unit=presentation.unit, kind=kind, attributes={**axis.attributes, **attributes})


def _described(presentation: Presentation, axis: Axis, stored: npt.NDArray[Any]) -> Axis:
    """Return an axis with coordinates: dates and irregular ones as the text of each element, others as a step."""
    if presentation.has_dates and len(stored) <= _MOST_LABELS:
        shown = presentation.show(stored)
        if shown.is_decoded:
            return replace(axis, labels=tuple(map(str, with_short_dates(shown.values))), unit="")
        axis = replace(axis, attributes={**axis.attributes, NOTE: shown.note})
    numbers = np.ma.filled(presentation.numbers(stored).astype(np.float64), np.nan)
    steps = np.diff(numbers)
    step = float(numbers[-1] - numbers[0]) / len(steps)
    if not np.isfinite(numbers).all():
        return axis
    if step and np.abs(steps - step).max() <= _TOLERANCE * abs(step):
        return replace(axis, step=step, origin=float(numbers[0]))
    return replace(axis, labels=tuple(f"{value:g}" for value in numbers)) if len(numbers) <= _MOST_LABELS else axis
