"""Selections of arrays by positions and by labels of coordinates: ``0,10:20`` or ``time=2024-03/2024-04,lat=45.5~nearest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from zarrasync._util.advice import in_terms_of
from zarrasync.display.presentation import Presentation
from zarrasync.errors import CodecError, SelectionError
from zarrasync.indexing.labels import LabelMethod, Position
from zarrasync.indexing.parse import Basic, is_position, parse_selection
from zarrasync.metadata.conventions import axis_names
from zarrasync.metadata.conventions.cf_labels import Query, WrittenLabel
from zarrasync.nodes.access import positions_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.described import Described
from zarrasync.server.limits import Unsupported
from zarrasync.server.responses import NEAREST

_METHODS = (*get_args(LabelMethod), "exact")
_OPEN = ("..", "")
"""Ends of intervals without a limit, as in ISO 8601-2 and OGC API."""


@dataclass(frozen=True)
class Selection:
    """A checked selection of an array.

    Attributes:
        array: The array.
        indices: An integer, a slice or several integers for each axis.
        view: The selected elements.
        presentation: How stored numbers are shown.
    """

    array: AsyncArray
    indices: tuple[Position, ...]
    view: AsyncSelection
    presentation: Presentation

    @property
    def names(self) -> list[str]:
        """The names of the array's axes."""
        return names_of(self.array)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the axes of the selected elements."""
        items = zip(self.names, self.indices, strict=True)
        return tuple(name for name, index in items if not isinstance(index, int))

    def is_whole(self, axis: int) -> bool:
        """Return whether all positions of an axis are selected, because the request does not name it."""
        index = self.indices[axis]  # several positions are an array, whose comparison has no truth value
        return isinstance(index, slice) and index == slice(None)

    def single(self, axis: int, default: int | None = None) -> int:
        """Return the only selected position of an axis.

        Args:
            axis: The number of the axis.
            default: The position if all are selected; ``None`` if that is an error, unless there is one.

        Raises:
            SelectionError: If several positions are selected, or none.
        """
        index, size = self.indices[axis], self.array.shape[axis]
        if default is not None and self.is_whole(axis):
            return default
        elements = np.arange(size)[index].reshape(-1)
        if len(elements) != 1:
            raise SelectionError(
                f"choose one element of the dimension {self.names[axis]!r} of {self.array.basename!r}, as in "
                f"{self.names[axis]}=0; the request selects {len(elements)} of {size}",
                shape=self.array.shape,
            )
        return int(elements[0])


async def select(
    described: Described,
    array: AsyncArray,
    text: str = "...",
    labels: Mapping[str, Query] | None = None,
    *,
    decode: bool = True,
) -> Selection:
    """Return a selection of an array, without reading its elements.

    Args:
        described: The conventions of the hierarchy.
        array: The array.
        text: Indices, slices and labels.
        labels: Further labels, by coordinate.
        decode: Whether values are shown, instead of the stored numbers.

    Raises:
        LabelError: If a label does not exist.
        SelectionError: If the selection is invalid.
    """
    names = axis_names(array.metadata) or [None] * array.ndim
    by_position, by_label = split_labels(text, [name for name in names if name])
    queries = {**by_label, **(labels or {})}
    try:
        with in_terms_of((NEAREST, "append ~nearest") if by_label else (NEAREST, NEAREST)):
            found = await positions_of(array, queries) if queries else {}
    except CodecError as error:
        if error.key:  # a chunk is damaged
            raise
        raise Unsupported(f"coordinates of {array.name} have no labels: {error}") from error
    parsed = parse_selection(by_position, array.shape, names)
    indices: list[Position] = [*_for_each_axis(parsed, array.ndim)]
    for number, name in enumerate(names):
        if name in found:
            if indices[number] != slice(None):
                raise SelectionError(f"{text!r} selects positions and labels of {name!r}", shape=array.shape)
            indices[number] = found[name]
    key: Any = tuple(indices)
    is_basic = all(isinstance(index, int | slice) for index in indices)
    view = array.view[parsed] if not found else array.view[key] if is_basic else array.view.oindex[key]
    return Selection(array, key, view, await described.presentation(array, decode=decode))


def names_of(array: AsyncArray) -> list[str]:
    """Return the names of an array's axes; their numbers for axes without a name."""
    names = axis_names(array.metadata) or [None] * array.ndim
    return [name or f"axis {number}" for number, name in enumerate(names)]


def axis_of_points(key: Sequence[Any]) -> int:
    """Return the axis of points in a result of NumPy: in the place of their axes if these are adjacent, else the first."""
    axes = [number for number, index in enumerate(key) if not isinstance(index, slice)]
    return axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0


def _for_each_axis(selection: Basic, ndim: int) -> tuple[int | slice, ...]:
    """Return an integer or a slice for each axis."""
    place = selection.index(...) if ... in selection else len(selection)
    before, after = ([item for item in part if item is not ...] for part in (selection[:place], selection[place:]))
    return (*before, *[slice(None)] * (ndim - len(before) - len(after)), *after)


# ------------------------------------------------------------------ labels


def split_labels(text: str, names: Sequence[str]) -> tuple[str, dict[str, Query]]:
    """Split a selection into positions and labels.

    Integers and slices with colons are positions. Other values are labels: one, as ``45.5`` or ``2024-03-01T06:00``, or
    both ends of an interval, as ``2024-03/2024-04`` or ``../10``. A method after ``~`` finds labels that do not exist:
    ``nearest``, ``pad``, ``backfill``. With ``~exact``, an integer is a label.

    Args:
        text: The selection.
        names: The names of the array's axes.

    Returns:
        The selection without labels, and the labels by the names of coordinates.

    Raises:
        SelectionError: If a coordinate is named twice, or a method is unknown.
    """
    positions: list[str] = []
    labels: dict[str, Query] = {}
    for item in text.strip().removeprefix("[").removesuffix("]").split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or (name in names and is_position(value)):
            positions.append(item)
        elif name in labels:
            raise SelectionError(f"{text!r} names {name!r} twice", shape=())
        else:
            labels[name] = _query(value, text)
    return ",".join(positions) or "...", labels


def _query(value: str, text: str) -> Query:
    label, tilde, method = value.partition("~")
    if tilde and method not in _METHODS:
        raise SelectionError(f"{method!r} in {text!r} is not one of {', '.join(_METHODS)}", shape=())
    first, slash, last = label.partition("/")
    parsed = slice(_limit(first), _limit(last)) if slash else WrittenLabel(label)
    return Query(parsed, None if method in ("", "exact") else method)


def _limit(text: str) -> Any:
    return None if text in _OPEN else WrittenLabel(text)
