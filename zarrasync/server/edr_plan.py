"""What a request of OGC API EDR reads of one array: its cells, and the blocks in which they are read. No IO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.edr_grid import GridAxis
from zarrasync.server.geometries import Points, Region
from zarrasync.server.limits import BadQuery, Limits, TooMuch
from zarrasync.server.places import Index, as_slice
from zarrasync.server.selection import Selection, axis_of_points

Span = tuple[int, int]
"""The first of some selected times, and the one after the last; ``(0, 1)`` without times."""
_BLOCK_CELLS = 1 << 19
"""Cells that are read and formatted at a time, if chunks are not larger."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The cells to read of one array.

    Attributes:
        array: The array.
        axes: The axes of the array; ``None`` for those without coordinates.
        indices: The selected positions of each axis. For points, they have the same length on all horizontal axes.
        coordinates: The coordinates of the selected cells by role; ``"composite"`` has the numbers of points.
        points: The requested coordinates of each point by role, but heights of the grid; empty if cells are a grid.
        is_single: Whether the only cell of a grid is a point.
        mask: Which cells of a grid are inside of a polygon; ``None`` for all.
        limits: The limits of its blocks.
    """

    array: AsyncArray
    axes: tuple[GridAxis | None, ...]
    indices: tuple[Index, ...]
    coordinates: Mapping[str, npt.NDArray[Any]]
    points: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    is_single: bool = False
    mask: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.array.basename

    @property
    def is_points(self) -> bool:
        """Whether cells are points, and not a grid."""
        return bool(self.points)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles of the axes of the values, in their order."""
        order = ("t", "composite") if self.is_points else ("t", "z", "y", "x")
        return tuple(role for role in order if role in self.coordinates)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return tuple(len(self.coordinates[role]) for role in self.roles)

    @property
    def domain(self) -> tuple[Any, ...]:
        """A key that arrays with the same coordinates share."""
        return tuple(sorted((role, self.axis(role).name) for role in self.numbers)), self.shape

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of axes by role."""
        return {axis.role: number for number, axis in enumerate(self.axes) if axis is not None and axis.role}

    def axis(self, role: str) -> GridAxis:
        """Return the axis with a role."""
        axis = self.axes[self.numbers[role]]
        assert axis is not None  # it has a role
        return axis

    def selecting(self, indices: Mapping[str, Index]) -> Plan:
        """Return the plan with other positions along the axes with some roles."""
        by_number = {self.numbers[role]: index for role, index in indices.items()}
        return replace(self, indices=tuple(by_number.get(n, index) for n, index in enumerate(self.indices)))

    # -------------------------------------------------------------- blocks

    @cached_property
    def spans(self) -> list[Span]:
        """The blocks of times that are read one after the other, each with whole chunks.

        Raises:
            TooMuch: If a block or all of them exceed the limits.
        """
        limits = self.limits
        if math.prod(self.shape) > limits.max_streamed_cells:
            raise TooMuch(
                f"the request needs {math.prod(self.shape):,} values of {self.name!r}, more than the limit of "
                f"{limits.max_streamed_cells:,}"
            )
        rest, spans = math.prod(self.shape), [(0, 1)]
        if "t" in self.coordinates:
            rest, number = math.prod(self.shape[1:]), self.numbers["t"]
            times: Any = self.indices[number]  # a slice
            starts = chunk_starts(self.array, number)
            cuts = [cut - times.start for cut in starts if times.start < cut < times.stop]
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
            times: Any = key[self.numbers["t"]]  # a slice
            key[self.numbers["t"]] = slice(times.start + span[0], times.start + span[1])
        return key

    def view(self, span: Span) -> AsyncSelection:
        """Return the elements of a block of a grid."""
        key = tuple(self._key(span))
        return self.array.view[key] if all(isinstance(item, slice) for item in key) else self.array.view.oindex[key]

    def parts(self, span: Span, most_bytes: int) -> list[tuple[npt.NDArray[np.intp], AsyncSelection]]:
        """Return the elements of some points at a time, with the numbers of the points. No chunk is in two parts.

        Args:
            span: The times.
            most_bytes: Decoded bytes of the chunks of a part, unless one point needs more.
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
        most = max(min(most_bytes // max(one.decoded_bytes, 1), self.limits.max_chunks // max(one.chunks, 1)), 1)
        cuts = np.append(starts[::most], len(order))
        return [(points, view(points)) for points in (order[first:stop] for first, stop in pairwise(cuts))]

    def arranged(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of a view with their axes in the order of ``roles``."""
        if self.is_points:
            values = np.moveaxis(values, axis_of_points(self.indices), -1)
            return values.reshape(-1, values.shape[-1]) if "t" in self.coordinates else values.reshape(-1)
        kept = [self.numbers[role] for role in self.roles]
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
    chunks = array.metadata.read_grid.axes[axis]
    return chunks.start_all(np.arange(chunks.nchunks))


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


def make_plan(
    chosen: Selection,
    axes: Sequence[GridAxis | None],
    where: Points | Region,
    times: Query | None,
    heights: Query | None,
    limits: Limits,
) -> Plan:
    """Return what a request reads of one array. An array without times is the same at all times.

    Args:
        chosen: The array, with one element of each further dimension.
        axes: Its axes; ``None`` for those without coordinates.
        where: The points, or the region.
        times: The times; ``None`` for all.
        heights: The heights; ``None`` for all.
        limits: The limits of requests.

    Raises:
        BadQuery: If points are outside of the grid, a region has no cells, or an axis of the grid is chosen otherwise.
        LabelError: If a time or a height does not exist.
        SelectionError: If a further dimension is not selected.
        TooMuch: If the cells exceed the limits.
    """
    array, indices = chosen.array, list[Index]()
    for number, axis in enumerate(axes):
        if axis is None or not axis.role:
            position = chosen.single(number) % array.shape[number]
            indices.append(slice(position, position + 1))
        elif not chosen.is_whole(number):
            raise BadQuery(
                f"select cannot choose elements of {axis.name!r}, which is an axis of the grid of {array.basename!r}; use coords, "
                "datetime or z"
            )
        else:
            indices.append(slice(0, array.shape[number]))
    draft = Plan(array, tuple(axes), tuple(indices), {}, limits=limits)
    if "t" in draft.numbers:
        span = as_slice(np.arange(len(draft.axis("t").values))[_located(draft.axis("t"), times)])
        if not isinstance(span, slice) or span.step not in (None, 1):
            raise BadQuery(
                f"the times of {draft.axis('t').name!r} are not sorted, so that only one or all can be requested"
            )
        draft = draft.selecting({"t": span})
    if "z" in draft.numbers:
        draft = draft.selecting({"z": _located(draft.axis("z"), heights)})
    elif heights is not None or getattr(where, "z", None) is not None:
        raise BadQuery(f"{draft.name!r} has no heights; request it without z")
    if isinstance(where, Region):
        plan = _of_region(draft, where)
    else:
        plan = (_of_point if where.is_single else _of_points)(draft, where)
    plan.spans  # noqa: B018  # checked here, on the thread that plans, and kept
    return plan


def _located(axis: GridAxis, query: Query | None) -> Index:
    position = axis.locate(query)
    if not len(axis.values[position]):
        raise BadQuery(f"no label of {axis.name!r} is in the requested interval")
    return position


def _completed(draft: Plan, coordinates: Mapping[str, npt.NDArray[Any]], **options: Any) -> Plan:
    """Return a plan with these coordinates, and with the coordinates of the selected positions: of points, only the times."""
    roles = [role for role in draft.numbers if role not in coordinates and (role == "t" or "points" not in options)]
    selected = {role: draft.axis(role).values[draft.indices[draft.numbers[role]]] for role in roles}
    return replace(draft, coordinates=selected | dict(coordinates), **options)


def _cells(draft: Plan, where: Points) -> dict[str, npt.NDArray[np.intp]]:
    """Return the positions of points by role.

    Raises:
        BadQuery: If a point is outside of the grid.
    """
    cells: dict[str, npt.NDArray[np.intp]] = {}
    outside = np.zeros(len(where.x), np.bool_)
    requested = {"x": where.x, "y": where.y, **({"z": where.z} if where.z is not None else {})}
    for role, values in requested.items():
        cells[role], beyond = draft.axis(role).places.cells(values)
        outside |= beyond
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        position = " ".join(f"{values[first]:g}" for values in requested.values())
        several = f"{outside.sum():,} of {len(outside):,} points, such as ({position}), are"
        what = f"the point ({position}) is" if where.is_single else several
        raise BadQuery(f"{what} outside of the grid of {draft.name!r}: {_ranges(draft, cells)}")
    return cells


def _ranges(draft: Plan, roles: Iterable[str]) -> str:
    """Return the extent of the grid, for messages."""
    return ", ".join("{} from {:g} to {:g}".format(role, *draft.axis(role).places.bounds) for role in roles)


def _of_point(draft: Plan, where: Points) -> Plan:
    cells, x = _cells(draft, where), draft.axis("x")
    draft = draft.selecting({role: slice(int(cell[0]), int(cell[0]) + 1) for role, cell in cells.items()})
    return _completed(draft, {"x": x.places.near(x.values[cells["x"]], where.x)}, is_single=True)


def _of_points(draft: Plan, where: Points) -> Plan:
    cells = _cells(draft, where)
    points = {"x": where.x, "y": where.y}  # as requested: two points in one cell are not the same
    if "z" in draft.numbers and "z" not in cells:  # all heights of the first point, then of the second one
        heights = np.arange(len(draft.axis("z").values))[draft.indices[draft.numbers["z"]]]
        cells = {role: np.repeat(cell, len(heights)) for role, cell in cells.items()}
        points = {role: np.repeat(values, len(heights)) for role, values in points.items()}
        cells["z"] = np.tile(heights, len(where.x))
    if "z" in cells:
        points["z"] = draft.axis("z").values[cells["z"]]
    return _completed(draft.selecting(cells), {"composite": np.arange(len(cells["x"]))}, points=points)


def _of_region(draft: Plan, where: Region) -> Plan:
    x_axis, y_axis, east = draft.axis("x"), draft.axis("y"), where.east
    if where.west > east:
        if not x_axis.is_longitude:
            raise BadQuery(f"the west of bbox, {where.west:g}, must not exceed its east, {east:g}")
        east += 360.0
    if x_axis.is_longitude and east - where.west > 360.0:
        raise BadQuery("the region is wider than the globe")
    columns, x = x_axis.places.between(x_axis.values, where.west, east)
    rows, y = y_axis.places.between(y_axis.values, where.south, where.north)
    mask = where.contains(x.astype(np.float64), y.astype(np.float64)) if where.rings else None
    if not len(x) or not len(y) or (mask is not None and not mask.any()):
        raise BadQuery(
            f"the region contains the centre of no cell of {draft.name!r}, whose grid has {_ranges(draft, 'xy')}; use position "
            "for one cell"
        )
    return _completed(draft.selecting({"x": columns, "y": rows}), {"x": x, "y": y}, mask=mask)
