"""Coordinates that are stored as arrays next to an array, as in CF and xarray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync.display.presentation import Presentation, with_short_dates
from zarrasync.display.values import Column
from zarrasync.errors import ZarrError
from zarrasync.indexing.labels import Position
from zarrasync.metadata.conventions import Axis, axes_of
from zarrasync.metadata.conventions.meaning import HORIZONTAL, role_of, unit_of
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.described import Described
from zarrasync.server.selection import names_of

NOTE = "note"
"""The attribute of an axis with the reason why its times are numbers."""

_MOST_ELEMENTS = 100_000
"""The most elements of a coordinate that is read."""
_MOST_LABELS = 10_000
"""The most elements of a coordinate of dates, or without regular steps."""
_MOST_AXES = 64
"""The most axes of a group whose coordinates are read."""
_TOLERANCE = 1e-3
"""How much a step may differ from the mean one, as a share of it."""


async def axes_of_array(described: Described, chunks: ChunkReader, array: AsyncArray) -> list[Axis]:
    """Return the axes of an array, with the coordinates in arrays of the same group that have the axes' names.

    If conventions specify coordinates, these are returned.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        array: The array.
    """
    path = described.hierarchy.relative_path(array)

    async def locate() -> list[Axis]:
        axes = axes_of(array.metadata, (await described.meaning(path)).axes)
        return await _located(described, chunks, path.rpartition("/")[0], list(zip(axes, array.shape, strict=True)))

    return await described.hierarchy.cached(("axes", described.hierarchy.version_key(array)), locate)


async def axes_of_group(described: Described, chunks: ChunkReader, path: str) -> list[tuple[Axis, int]]:
    """Return the named axes of the arrays in a group with their sizes, each once.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        path: The path of the group.
    """
    found: dict[tuple[str, int], Axis] = {}
    members = await described.hierarchy.members(path) or ()
    arrays = [(name, member) for name, member in members if isinstance(member, AsyncArray)]
    for name, array in sorted(arrays, key=lambda item: -item[1].ndim):  # in the order of the axes of the largest one
        axes = axes_of(array.metadata, (await described.meaning(join(path, name))).axes)
        for axis, size in zip(axes, array.shape, strict=True):
            if axis.name:
                found.setdefault((axis.name, size), axis)
    items = [(axis, size) for (_, size), axis in islice(found.items(), _MOST_AXES)]
    return list(zip(await _located(described, chunks, path, items), (size for _, size in items), strict=True))


async def _located(
    described: Described, chunks: ChunkReader, group: str, items: Sequence[tuple[Axis, int]]
) -> list[Axis]:
    return await gather([partial(_locate, described, chunks, group, *item) for item in items])


def axis_facts(number: int, axis: Axis, size: int, *, with_labels: bool = True) -> dict[str, Any]:
    """Return an axis as JSON.

    Args:
        number: The number of the axis.
        axis: The axis.
        size: The number of its elements.
        with_labels: Whether to return all labels, instead of the first and the last one.
    """
    body: dict[str, Any] = {
        "name": axis.name or f"axis {number}",
        "size": size,
        "unit": unit_of(axis),
        "kind": axis.kind,
    }
    if axis.has_coordinates or (axis.step is not None and axis.unit):
        body |= {"step": axis.step, "origin": axis.origin}
    if NOTE in axis.attributes:
        body[NOTE] = axis.attributes[NOTE]
    if axis.labels:
        body["labels"] = list(axis.labels if with_labels else axis.labels[:: max(len(axis.labels) - 1, 1)])
    return body


async def stored_coordinate(described: Described, group: str, name: str, size: int) -> AsyncArray | None:
    """Return the array with the coordinates of an axis: the one in its group with its name and size. ``None`` without one."""
    node = await described.hierarchy.find(join(group, name)) if name else None
    return node if isinstance(node, AsyncArray) and node.shape == (size,) else None


async def coordinate_columns(
    described: Described, chunks: ChunkReader, array: AsyncArray, indices: Sequence[Position]
) -> list[Column]:
    """Return the coordinates of a selection along each axis of an array: numbers of elements where none are stored.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        array: The array.
        indices: The selected indices of each axis.
    """
    group = described.hierarchy.relative_path(array).rpartition("/")[0]
    items = zip(names_of(array), array.shape, map(_with_axis, indices, array.shape), strict=True)
    return await gather([partial(_column, described, chunks, group, *item) for item in items])


async def _column(
    described: Described, chunks: ChunkReader, group: str, name: str, size: int, index: slice | npt.NDArray[np.intp]
) -> Column:
    node = await stored_coordinate(described, group, name, size)
    if node is None:
        return Column(name, np.arange(size)[index])
    presentation = await described.presentation(node)
    return Column(name, await chunks.read(node.view.oindex[index,], lambda stored: presentation.show(stored).values))


def _with_axis(index: Position, size: int) -> slice | npt.NDArray[np.intp]:
    """Return an index of the same elements that keeps the axis."""
    return slice(index % size, index % size + 1) if isinstance(index, int) else index


def is_south_first(axis: Axis) -> bool:
    """Return whether the coordinates of an axis of rows increase to the north, so that the first row is at the bottom."""
    if role_of(axis.unit, axis.attributes) != "y":
        return False
    return axis.step > 0 if axis.step is not None else bool(axis.labels) and _is_increasing(axis.labels)


def _is_increasing(labels: Sequence[str]) -> bool:
    try:
        return float(labels[0]) < float(labels[-1])
    except ValueError:  # dates
        return False


async def _locate(described: Described, chunks: ChunkReader, group: str, axis: Axis, size: int) -> Axis:
    if not axis.name or axis.has_coordinates or axis.labels or not 1 <= size <= _MOST_ELEMENTS:
        return axis
    try:
        node = await stored_coordinate(described, group, axis.name, size)
        if node is None or node.dtype.kind not in "iufMOTUS":
            return axis
        presentation = await described.presentation(node)
        return await chunks.read(node.view[:], partial(_described, presentation, _named(axis, node, presentation)))
    except ZarrError as error:
        if described.hierarchy.may_recover(error):
            raise
        return axis  # the array can be shown without them


def _named(axis: Axis, node: AsyncArray, presentation: Presentation) -> Axis:
    """Return an axis with the unit and the attributes of its coordinates."""
    attributes = {key: node.attrs[key] for key in HORIZONTAL if key in node.attrs}
    is_spatial = attributes.get("axis") in ("X", "Y", "Z") or "projection" in str(attributes.get("standard_name"))
    kind = axis.kind or "space" * is_spatial
    return replace(axis, unit=presentation.unit, kind=kind, attributes={**axis.attributes, **attributes})


def _described(presentation: Presentation, axis: Axis, stored: npt.NDArray[Any]) -> Axis:
    """Return an axis with coordinates: dates, strings and irregular ones as labels of all elements, others as a step."""
    is_short = len(stored) <= _MOST_LABELS
    if presentation.has_dates and is_short:
        shown = presentation.show(stored)
        if shown.is_decoded:
            return replace(axis, labels=_texts(with_short_dates(shown.values)), unit="")
        axis = replace(axis, attributes={**axis.attributes, NOTE: shown.note})
    if stored.dtype.kind not in "iuf":
        return replace(axis, labels=_texts(with_short_dates(stored))) if is_short else axis
    numbers = np.ma.filled(presentation.numbers(stored).astype(np.float64), np.nan)
    if not np.isfinite(numbers).all():
        return axis
    steps = np.diff(numbers)
    step = float(numbers[-1] - numbers[0]) / max(len(steps), 1)
    if step and np.abs(steps - step).max() <= _TOLERANCE * abs(step):
        return replace(axis, step=step, origin=float(numbers[0]))
    return replace(axis, labels=tuple(f"{value:g}" for value in numbers)) if is_short else axis


def _texts(values: npt.NDArray[Any]) -> tuple[str, ...]:
    return tuple(value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values)
