"""What a request of OGC API EDR reads of one array: its cells, and the blocks in which they are read. No IO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.parse import parse_selection
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.edr_grid import Collection, GridAxis, dims_of
from zarrasync.server.edr_query import Points, Region
from zarrasync.server.labels import split_labels
from zarrasync.server.limits import BadQuery, Limits, TooMuch
from zarrasync.server.service import axis_of_points

__all__ = ["Plan", "Request", "Span", "make_plan"]

Index = slice | npt.NDArray[np.intp]
Span = tuple[int, int]
"""The first of some selected times, and the one after the last; ``(0, 1)`` without times."""
_BLOCK_CELLS = 1 << 19
"""Cells that are read and formatted at a time, if chunks are not larger."""


@dataclass(frozen=True)
class Request:
    """The selection of a request, by coordinates.

    Attributes:
        where: The points, or the region.
        times: The times; ``None`` for all.
        heights: The heights; ``None`` for all.
        others: Positions and labels of further dimensions.
    """

    where: Points | Region
    times: Query | None = None
    heights: Query | None = None
    others: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """The cells to read of one array.

    Attributes:
        name: The name of the parameter.
        array: The array.
        axes: The axes of the array; ``None`` for those without coordinates.
        indices: The selected positions of each axis. For points, they have the same length on all horizontal axes.
        coordinates: The coordinates of the selected cells by role; ``"composite"`` has the numbers of points.
        points: The requested coordinates of each point by role, but heights of the grid; empty if cells are a grid.
        is_single: Whether the only cell of a grid is a point.
        mask: Which cells of a grid are inside of a polygon; ``None`` for all.
    """

    name: str
    array: AsyncArray
    axes: tuple[GridAxis | None, ...]
    indices: tuple[Index, ...]
    coordinates: Mapping[str, npt.NDArray[Any]]
    points: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    is_single: bool = False
    mask: npt.NDArray[np.bool_] | None = field(default=None, repr=False)

    @property
    def is_points(self) -> bool:
        """Whether cells are points, and not a grid."""
        return bool(self.points)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the axes of the values, in their order."""
        order = ("t", "composite") if self.is_points else ("t", "z", "y", "x")
        return tuple(role for role in order if role in self.coordinates)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return tuple(len(self.coordinates[role]) for role in self.roles)

    @property
    def domain(self) -> tuple[Any, ...]:
        """A key that arrays with the same coordinates share."""
        names = {axis.role: axis.name for axis in self.axes if axis is not None and axis.role}
        return tuple(sorted(names.items())), self.shape

    def axis(self, role: str) -> GridAxis:
        """Return the axis with a role."""
        return next(axis for axis in self.axes if axis is not None and axis.role == role)

    def _number(self, role: str) -> int:
        return next(n for n, axis in enumerate(self.axes) if axis is not None and axis.role == role)

    # -------------------------------------------------------------- blocks

    def spans(self, limits: Limits) -> list[Span]:
        """Return the blocks of times that are read one after the other, each with whole chunks.

        Raises:
            TooMuch: If a block or all of them exceed the limits.
        """
        if math.prod(self.shape) > limits.max_streamed_cells:
            raise TooMuch(
                f"the request needs {math.prod(self.shape):,} values of {self.name!r}, more than the limit of "
                f"{limits.max_streamed_cells:,}"
            )
        rest = math.prod(self.shape[1:]) if "t" in self.coordinates else math.prod(self.shape)
        if "t" not in self.coordinates:
            spans = [(0, 1)]
        else:
            times = self.indices[self._number("t")]
            assert isinstance(times, slice)
            cuts = [
                cut - times.start
                for cut in chunk_starts(self.array, self._number("t"))
                if times.start < cut < times.stop
            ]
            most = max(_BLOCK_CELLS // max(rest, 1), 1)
            if not self.is_points:
                decoded = max(self.view((0, 1)).explain().decoded_bytes, 1)
                step = cuts[0] if cuts else self.shape[0]
                most = min(most, max(limits.max_decoded_bytes // 4 // decoded, 1) * step)
            spans = _joined([0, *cuts, self.shape[0]], most)
        size = max((stop - start for start, stop in spans), default=0) * rest * max(self.array.dtype.itemsize, 4)
        if size > limits.max_result_bytes:
            raise TooMuch(
                f"a chunk of {self.name!r} along time contains {size:,} bytes of the request, more than the limit of "
                f"{limits.max_result_bytes:,}; request fewer points, or a smaller area"
            )
        return spans

    def _key(self, span: Span) -> list[Index]:
        key = list(self.indices)
        if "t" in self.coordinates:
            times = key[self._number("t")]
            assert isinstance(times, slice)
            key[self._number("t")] = slice(times.start + span[0], times.start + span[1])
        return key

    def view(self, span: Span) -> AsyncSelection:
        """Return the elements of a block of a grid."""
        key = tuple(self._key(span))
        return self.array.view[key] if all(isinstance(item, slice) for item in key) else self.array.view.oindex[key]

    def parts(
        self, span: Span, most_bytes: int, most_chunks: int
    ) -> Iterator[tuple[npt.NDArray[np.intp], AsyncSelection]]:
        """Yield the elements of some points at a time, with the numbers of the points. No chunk is in two parts.

        Args:
            span: The times.
            most_bytes: Decoded bytes of the chunks of a part, unless one point needs more.
            most_chunks: Chunks of a part, unless one point needs more.
        """
        key = self._key(span)
        cells = {axis: item for axis, item in enumerate(key) if isinstance(item, np.ndarray)}
        chunks = [np.searchsorted(chunk_starts(self.array, axis), item, "right") for axis, item in cells.items()]
        order = np.lexsort(chunks).astype(np.intp)
        changes = np.any([np.diff(chunk[order]) != 0 for chunk in chunks], axis=0)
        starts = np.concatenate([[0], np.flatnonzero(changes) + 1])

        def view(points: npt.NDArray[np.intp]) -> AsyncSelection:
            return self.array.view[
                tuple(cells[axis][points] if axis in cells else item for axis, item in enumerate(key))
            ]

        one = view(order[:1]).explain()
        most = min(most_bytes // max(one.decoded_bytes, 1), most_chunks // max(one.chunks, 1))
        for first in range(0, len(starts), max(most, 1)):
            following = first + max(most, 1)
            points = order[starts[first] : starts[following] if following < len(starts) else None]
            yield points, view(points)

    def arranged(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of a view with their axes in the order of ``roles``."""
        if self.is_points:
            values = np.moveaxis(values, axis_of_points(self.indices), -1)
            return values.reshape(-1, values.shape[-1]) if "t" in self.coordinates else values.reshape(-1)
        kept = [self._number(role) for role in self.roles]
        values = values.transpose(*kept, *(n for n in range(values.ndim) if n not in kept))
        return values.reshape(values.shape[: len(kept)])

    def masked(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values without those outside of the polygon."""
        if self.mask is None or self.mask.all():
            return values
        if values.dtype.kind == "f" and not np.ma.isMA(values):
            return np.where(self.mask, values, values.dtype.type(np.nan))
        return np.ma.masked_array(values, np.ma.getmaskarray(values) | ~self.mask)


def chunk_starts(array: AsyncArray, axis: int) -> npt.NDArray[np.int64]:
    """Return the first position of each chunk along an axis."""
    edges = (array.metadata.edges or (None,) * array.ndim)[axis]
    if edges is None or array.metadata.shards is not None:
        return np.arange(0, array.shape[axis], array.metadata.chunks[axis])
    return np.concatenate([[0], np.cumsum(edges)[:-1]])


def _joined(cuts: Sequence[int], most: int) -> list[Span]:
    """Return spans between cuts, which are joined up to a length."""
    spans: list[Span] = []
    for start, stop in pairwise(cuts):
        if spans and stop - spans[-1][0] <= most:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    return spans


# ------------------------------------------------------------------ planning


def make_plan(collection: Collection, name: str, axes: Sequence[GridAxis | None], request: Request) -> Plan:
    """Return what a request reads of one array. An array without times is the same at all times.

    Raises:
        BadQuery: If points are outside of the grid, a region has no cells, or a further dimension is not selected.
        LabelError: If a time or a height does not exist.
    """
    array = collection.arrays[name]
    indices = _others(array, axes, request.others, name)
    numbers = {axis.role: number for number, axis in enumerate(axes) if axis is not None and axis.role}
    if "t" in numbers:
        indices[numbers["t"]] = _run(axes[numbers["t"]], request.times)
    if "z" in numbers:
        indices[numbers["z"]] = _located(axes[numbers["z"]], request.heights)
    elif request.heights is not None:
        raise BadQuery(f"{name!r} has no heights; request it without z")
    make = _of_points if isinstance(request.where, Points) else _of_region
    return make(name, array, tuple(axes), indices, numbers, request.where)  # type: ignore[arg-type]


def _of_points(
    name: str,
    array: AsyncArray,
    axes: tuple[GridAxis | None, ...],
    indices: list[Index],
    numbers: Mapping[str, int],
    where: Points,
) -> Plan:
    cells: dict[str, npt.NDArray[np.intp]] = {}
    outside = np.zeros(len(where.x), np.bool_)
    for role, values in {"x": where.x, "y": where.y, "z": where.z}.items():
        if values is not None and role in numbers:
            cells[role], beyond = _axis(axes[numbers[role]]).nearest(values)
            outside |= beyond
        elif values is not None:
            raise BadQuery(f"{name!r} has no heights; request points without z")
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        ranges = ", ".join("{} from {:g} to {:g}".format(role, *_axis(axes[numbers[role]]).bounds) for role in cells)
        what = "the point" if where.is_single else f"{outside.sum():,} of {len(outside):,} points, such as"
        position = " ".join(f"{values[first]:g}" for values in (where.x, where.y, where.z) if values is not None)
        raise BadQuery(f"{what} ({position}) is outside of the grid of {name!r}: {ranges}")
    if where.is_single:
        for role, cell in cells.items():
            indices[numbers[role]] = slice(int(cell[0]), int(cell[0]) + 1)
        x = _axis(axes[numbers["x"]]).near(cells["x"], where.x)
        return Plan(name, array, axes, tuple(indices), {**_columns(axes, indices, numbers), "x": x}, is_single=True)
    points: dict[str, npt.NDArray[Any]] = {
        "x": where.x,
        "y": where.y,
    }  # as requested: two points in one cell are not the same
    if "z" in numbers and "z" not in cells:  # all heights of the first point, then of the second one
        heights = np.arange(array.shape[numbers["z"]])[indices[numbers["z"]]]
        cells = {role: np.repeat(cell, len(heights)) for role, cell in cells.items()}
        points = {role: np.repeat(values, len(heights)) for role, values in points.items()}
        cells["z"] = np.tile(heights, len(where.x))
    for role, cell in cells.items():
        indices[numbers[role]] = cell
    if "z" in cells:
        points["z"] = np.asarray(_axis(axes[numbers["z"]]).values)[cells["z"]]
    coordinates: dict[str, npt.NDArray[Any]] = {"composite": np.arange(len(cells["x"]))}
    if "t" in numbers:
        coordinates["t"] = _axis(axes[numbers["t"]]).values[indices[numbers["t"]]]
    return Plan(name, array, axes, tuple(indices), coordinates, points)


def _of_region(
    name: str,
    array: AsyncArray,
    axes: tuple[GridAxis | None, ...],
    indices: list[Index],
    numbers: Mapping[str, int],
    where: Region,
) -> Plan:
    x_axis = _axis(axes[numbers["x"]])
    east = where.east
    if where.west > east:
        if not x_axis.is_longitude:
            raise BadQuery(f"the west of bbox, {where.west:g}, must not exceed its east, {east:g}")
        east += 360.0
    if x_axis.is_longitude and east - where.west > 360.0:
        raise BadQuery("the region is wider than the globe")
    indices[numbers["x"]], x = x_axis.between(where.west, east)
    indices[numbers["y"]], y = _axis(axes[numbers["y"]]).between(where.south, where.north)
    mask = where.contains(x.astype(np.float64), y.astype(np.float64)) if where.rings else None
    if not len(x) or not len(y) or (mask is not None and not mask.any()):
        ranges = ", ".join("{} from {:g} to {:g}".format(role, *_axis(axes[numbers[role]]).bounds) for role in "xy")
        raise BadQuery(
            f"the region contains the centre of no cell of {name!r}, whose grid has {ranges}; use position for one cell"
        )
    coordinates = {**_columns(axes, indices, numbers), "x": x, "y": y}
    return Plan(name, array, axes, tuple(indices), coordinates, mask=mask)


def _columns(
    axes: Sequence[GridAxis | None], indices: Sequence[Index], numbers: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]]:
    return {role: np.asarray(_axis(axes[number]).values)[indices[number]] for role, number in numbers.items()}


def _axis(axis: GridAxis | None) -> GridAxis:
    assert axis is not None  # axes with a role have coordinates
    return axis


def _located(axis: GridAxis | None, query: Query | None) -> Index:
    position = _axis(axis).locate(query)
    count = len(np.asarray(_axis(axis).values)[position])
    if not count:
        raise BadQuery(f"no label of {_axis(axis).name!r} is in the requested interval")
    return position


def _run(axis: GridAxis | None, query: Query | None) -> slice:
    """Return the selected times as a range of positions."""
    position = _located(axis, query)
    if isinstance(position, slice):
        return position
    if (np.diff(position) != 1).any():
        raise BadQuery(f"the times of {_axis(axis).name!r} are not sorted, so that only one or all can be requested")
    return slice(int(position[0]), int(position[-1]) + 1)


def _others(array: AsyncArray, axes: Sequence[GridAxis | None], text: str, name: str) -> list[Index]:
    """Return positions on all axes, which select one element of those without a role.

    Raises:
        BadQuery: If such a dimension has several elements, and none is selected, or another dimension is.
    """
    dims = dims_of(array)
    by_position, by_label = split_labels(text, dims) if text else ("...", {})
    if by_position != "..." and "=" not in by_position:
        raise BadQuery(f"select names the dimension, as in select=number=0; found {text[:40]!r}")
    parsed = parse_selection(by_position, array.shape, dims)
    positions = dict(zip(dims, parsed, strict=True)) if by_position != "..." else {}
    indices: list[Index] = [slice(0, size) for size in array.shape]
    used = set()
    for number, (dim, axis) in enumerate(zip(dims, axes, strict=True)):
        if axis is not None and axis.role:
            continue
        index: Any = positions.get(dim, slice(None))
        if dim in by_label and axis is not None:
            index = axis.locate(by_label[dim])
        used |= {dim} & {*by_label, *(key for key, item in positions.items() if item != slice(None))}
        chosen = np.arange(array.shape[number])[
            index if not isinstance(index, int) else slice(index, index + 1 or None)
        ]
        if len(chosen) != 1:
            raise BadQuery(
                f"{name!r} has the further dimension {dim!r} of size {array.shape[number]}; choose one element, as in "
                f"select={dim}=0"
            )
        indices[number] = slice(int(chosen[0]), int(chosen[0]) + 1)
    requested = {*by_label, *(key for key, item in positions.items() if item != slice(None))}
    if unused := sorted(requested - used):
        raise BadQuery(
            f"select chooses further dimensions, but {unused[0]!r} is not one of {name!r}; use coords, datetime, z"
        )
    return indices
