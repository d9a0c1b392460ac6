"""Selecting by coordinates: which arrays contain labels of dimensions, reading them once, and the resulting selections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.gather import SingleFlight, gather
from zarrasync._concurrency.offload import compute
from zarrasync._util.advice import suggest
from zarrasync.errors import LabelError
from zarrasync.formats import Format
from zarrasync.indexing.labels import Position, checked_method
from zarrasync.indexing.parse import orthogonal
from zarrasync.indexing.transform import identity
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import Axis, Meaning, axes_of, axis_names, meaning_of
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_labels import Coordinate, Query
from zarrasync.metadata.conventions.registry import encoding_of
from zarrasync.nodes.selection import AsyncSelection, SelectedArray
from zarrasync.stores import Store
from zarrasync.stores.changes import Changes

T = TypeVar("T")
A = TypeVar("A")
_POINTS = "points"
"""The name of the set of points in the argument. Points in arrays of xarray are sets by their dimensions."""
_LONG = 1 << 16
"""Labels whose order is examined on a worker thread."""


def parse_queries(
    mapping: Mapping[str, Any] | None,
    points: Mapping[str, Any] | None,
    method: str | None,
    tolerance: Any,
    labels: Mapping[str, Any],
) -> dict[str, Query]:
    """Return the queries of a call of ``sel``, by coordinate.

    Raises:
        TypeError: If labels or points are not a mapping, or a name in it is not a string.
        ValueError: If a coordinate is selected twice, the method is unknown, or a tolerance belongs to none.
        LabelError: If the labels of points do not belong together.
    """
    if mapping is not None and not isinstance(mapping, Mapping):
        raise TypeError(f"sel() takes labels by keyword, or one mapping from coordinates to labels; found {mapping!r}")
    if points is not None and not isinstance(points, Mapping):
        raise TypeError(f"points must be a mapping from coordinates to labels, found {points!r}")
    given = [*(mapping or {}), *labels, *(points or {})]
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"names of coordinates are strings, found {name!r} ({type(name).__name__})")
    repeated = sorted(name for name, count in Counter(given).items() if count > 1)
    if repeated:
        raise ValueError(f"sel() got labels of {repeated[0]!r} twice; pass them once")
    method = checked_method(method)
    is_shared = not isinstance(tolerance, Mapping)
    if not is_shared and (unknown := sorted({*tolerance} - {*given})):
        raise ValueError(f"the tolerance of {unknown[0]!r} belongs to none of the coordinates {', '.join(given)}")
    labels = {**(mapping or {}), **labels}
    sets = _points_of_xarray(labels)
    aligned = _aligned({name: label for name, label in labels.items() if name in sets}, sets)
    aligned |= _aligned(points or {}, dict.fromkeys(points or {}, _POINTS))
    sets |= dict.fromkeys(points or {}, _POINTS)
    return {
        name: Query(label, method, tolerance if is_shared else tolerance.get(name), sets.get(name))
        for name, label in {**labels, **aligned}.items()
    }


def _points_of_xarray(labels: Mapping[str, Any]) -> dict[str, Hashable]:
    """Return the names of labels that are points in xarray, because they share dimensions or have several of them."""
    dims = {name: tuple(label.dims) for name, label in labels.items() if hasattr(label, "dims")}
    uses = Counter(dim for own in dims.values() for dim in own)
    sets = {name: own for name, own in dims.items() if len(own) > 1 or any(uses[dim] > 1 for dim in own)}
    for name, own in sets.items():
        for other, others in sets.items():
            if own != others and {*own} & {*others}:
                raise LabelError(
                    f"the labels of {other!r} and {name!r} have the dimensions {', '.join(map(str, others))} and "
                    f"{', '.join(map(str, own))}; labels of points need the same dimensions",
                    name=name,
                )
    return {**sets}


def _aligned(labels: Mapping[str, Any], sets: Mapping[str, Hashable]) -> dict[str, Any]:
    """Return the labels of points as arrays, each in the shape of its set."""
    arrays: dict[str, Any] = {}
    for name, label in labels.items():
        arrays[name] = np.asarray(label)
        is_slice = isinstance(label, slice)
        if is_slice or arrays[name].dtype.kind == "b":
            found = "a slice; pass it by keyword" if is_slice else "a mask; pass it by keyword, as a NumPy array"
            raise LabelError(f"the points of {name!r} must be labels, found {found}", name=name)
    for members in ([name for name in arrays if sets[name] == one] for one in dict.fromkeys(sets.values())):
        try:
            arrays |= zip(members, np.broadcast_arrays(*(arrays[name] for name in members)), strict=True)
        except ValueError:
            shapes = ", ".join(f"{name} {arrays[name].shape}" for name in members)
            raise LabelError(f"the labels of points need the same shape, found {shapes}", name=members[0]) from None
    return arrays


class Labelled(NamedTuple):
    """An axis that labels select.

    Attributes:
        dim: The name of the dimension.
        query: The selected labels.
        coordinate: The array with the labels; ``None`` if conventions compute them, or positions are the labels.
        axis: What conventions specify about the axis.
        size: The number of positions.
    """

    dim: str
    query: Query
    coordinate: SelectedArray | None
    axis: Axis
    size: int


def wanted_axes(
    queries: Mapping[str, Query],
    arrays: Mapping[str, SelectedArray],
    coordinates: Mapping[str, SelectedArray],
    cache: CoordinateCache,
    where: str,
) -> dict[str, Labelled]:
    """Return the axes that labels select, by the name of the coordinate.

    Args:
        queries: The selected labels, by coordinate.
        arrays: The arrays to select from, by name.
        coordinates: The arrays that may contain labels, by name.
        cache: The cache of their group.
        where: The name of the group or array, for messages.

    Raises:
        LabelError: If a name is not a coordinate or dimension of the arrays, or a coordinate has several dimensions.
    """
    axes: dict[str, list[tuple[int, Axis]]] = {}
    for name, array in arrays.items():
        for axis, size in zip(cache.axes(name, array.metadata), array.metadata.shape, strict=True):
            if axis.name:
                axes.setdefault(axis.name, []).append((size, axis))
    names = axes.keys() | {name for name, array in coordinates.items() if array.metadata.ndim == 1}
    found: dict[str, Labelled] = {}
    for name, query in queries.items():
        coordinate = coordinates.get(name)
        dim = name if coordinate is None else _dimension_of(name, coordinate.metadata)
        if dim not in axes:
            hint = suggest(name, names, f"its coordinates are {', '.join(sorted(names)) or 'none'}")
            raise LabelError(f"{where} has no coordinate {name!r}; {hint}", name=name)
        if (other := next((other for other, item in found.items() if item.dim == dim), None)) is not None:
            raise LabelError(
                f"{other!r} and {name!r} both select along the dimension {dim!r}; pass one of them", name=name
            )
        sizes = {size for size, _ in axes[dim]}
        if len(sizes) > 1:
            raise LabelError(
                f"arrays of {where} have different sizes along {dim!r}: {sorted(sizes)}; use sel of one of them",
                name=name,
            )
        specified = [axis for _, axis in axes[dim] if axis.has_coordinates or axis.labels]
        same = specified and all(axis == specified[0] for axis in specified)
        found[name] = Labelled(dim, query, coordinate, specified[0] if same else Axis(dim), sizes.pop())
    return found


def _dimension_of(name: str, metadata: ArrayMetadata) -> str | None:
    """Return the dimension whose labels an array contains."""
    if metadata.ndim > 1:
        dims = axis_names(metadata) or ["unnamed"] * metadata.ndim
        raise LabelError(
            f"the coordinate {name!r} has the dimensions {', '.join(map(str, dims))}; labels along several dimensions cannot "
            "be selected: read the coordinate, and select positions with vindex",
            name=name,
        )
    return ((axis_names(metadata) or [name])[0] or name) if metadata.ndim else None


# ------------------------------------------------------------------ reading


@dataclass
class _Entry:
    metadata: ArrayMetadata
    changes: Changes
    count: int
    coordinate: Coordinate


class CoordinateCache:
    """Arrays of a group that were looked up, and coordinates that were read.

    Changes that this process makes are noticed. After other changes, refreshing a node replaces its cache.

    Args:
        store: The store.
        path: The path of the group.

    Attributes:
        above: The meaning of the group.
    """

    def __init__(self, store: Store, path: str) -> None:
        self.above = Meaning()
        self._entries: dict[str, _Entry] = {}
        self._computed: dict[str, tuple[Axis, int, Coordinate | None]] = {}
        self._watched = Changes(store, path)
        self._count = -1
        self._arrays: dict[str, SelectedArray | None] = {}
        self._axes: dict[str, tuple[ArrayMetadata, tuple[Axis, ...]]] = {}
        self._flights = SingleFlight()

    async def arrays(
        self,
        names: Sequence[str] | None,
        find: Callable[[Sequence[str] | None], Awaitable[Mapping[str, SelectedArray]]],
    ) -> dict[str, SelectedArray]:
        """Return arrays of the group by name. Those that are not known are found, with one call.

        Args:
            names: The names, ``None`` for all arrays. Those that do not exist are left out.
            find: Returns the arrays with these names.
        """
        count = self._watched.count
        is_fresh = count == self._count
        arrays = self._arrays if is_fresh else {}
        unknown = None if names is None else [name for name in names if name not in arrays]
        if unknown or (unknown is None and not is_fresh):
            names_ = None if unknown is None else tuple(unknown)
            found = await self._once(("arrays", names_, count), partial(_call, find, unknown))
            arrays = self._arrays if self._count == count else {}  # another call may have found others meanwhile
            arrays = {**arrays, **dict.fromkeys(unknown or ()), **found}
            self._arrays, self._count, self._axes = arrays, count, {}
        return {name: array for name, array in arrays.items() if array is not None}

    async def _once(self, name: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a call that several tasks may need at the same time."""
        return await (make() if driven() else self._flights.share(name, make))

    def axes(self, name: str, metadata: ArrayMetadata) -> tuple[Axis, ...]:
        """Return the axes of an array of the group, by its own metadata and the conventions that the group follows."""
        cached = self._axes.get(name)
        if cached is None or cached[0] is not metadata:
            meaning = self.above.for_member(name, meaning_of(metadata), is_array=True)
            cached = self._axes[name] = metadata, axes_of(metadata, meaning.axes)
        return cached[1]

    async def positions(self, axes: Mapping[str, Labelled], format_: Format) -> dict[str, Position]:
        """Return the positions that labels select, by dimension. Missing coordinates are read at the same time.

        Raises:
            LabelError: If a label does not exist, or a coordinate has another length than its dimension.
            CodecError: If times cannot be decoded.
            StoreError: If the store failed.
        """
        read = [partial(self._coordinate, name, item, format_) for name, item in axes.items()]
        coordinates = await gather(read)
        pairs = zip(axes.values(), coordinates, strict=True)
        return {item.dim: _located(item, coordinate) for item, coordinate in pairs}

    async def _coordinate(self, name: str, item: Labelled, format_: Format) -> Coordinate | None:
        array = item.coordinate
        if array is None:
            cached = self._computed.get(item.dim)
            if cached is None or cached[:2] != (item.axis, item.size):
                cached = self._computed[item.dim] = item.axis, item.size, _computed(item)
            return cached[2]
        entry, metadata = self._entries.get(array.path), array.metadata
        if entry is None or entry.metadata is not metadata or entry.changes.count != entry.count:
            changes = Changes(array.store, array.path)
            read = partial(self._read, name, array, changes, format_)
            entry = await self._once(("labels", array.path, id(metadata), changes.count), read)
        if len(entry.coordinate.labels) != item.size:
            raise LabelError(
                f"the coordinate {name!r} has {len(entry.coordinate.labels):,} labels for {item.size:,} positions along "
                f"{item.dim!r}; if another process has just appended, refresh and select again",
                name=name,
            )
        return entry.coordinate

    async def _read(self, name: str, array: SelectedArray, changes: Changes, format_: Format) -> _Entry:
        count, metadata = changes.count, array.metadata
        stored = np.asarray(await AsyncSelection(array, identity(metadata.shape)).read())
        make = partial(_ordered, name, encoding_of(metadata, format_), stored)
        coordinate = await compute(make) if stored.size > _LONG else make()
        entry = self._entries[array.path] = _Entry(metadata, changes, count, coordinate)
        return entry


async def _call(find: Callable[[A], Awaitable[T]], names: A) -> T:
    return await find(names)


def _ordered(name: str, encoding: CFEncoding, stored: Any) -> Coordinate:
    coordinate = Coordinate.of(name, encoding, stored)
    _ = coordinate.labels.is_unique  # computed once, here
    return coordinate


def _computed(item: Labelled) -> Coordinate | None:
    """Return the coordinate that conventions specify for an axis; ``None`` if positions are its labels."""
    axis, size = item.axis, item.size
    if len(axis.labels) == size and size:
        values: Any = np.array(axis.labels, np.dtypes.StringDType())
    elif axis.has_coordinates:
        values = axis.coordinates(size)
    else:
        return None
    return Coordinate.of(item.dim, CFEncoding(values.dtype, values.dtype, unit=axis.unit), values)


def _located(item: Labelled, coordinate: Coordinate | None) -> Position:
    query = item.query
    if coordinate is not None:
        return coordinate.locate(query)
    label = query.label
    if isinstance(label, slice):
        parts: Any = [part for part in (label.start, label.stop, label.step) if part is not None]
    elif query.method is not None or query.tolerance is not None:
        raise ValueError(
            f"the dimension {item.dim!r} has no coordinate, so that its labels are positions without a method and tolerance"
        )
    else:
        parts = label
    positions = np.asarray(parts)
    is_mask = positions.dtype.kind == "b" and positions.shape == (item.size,) and not isinstance(label, slice)
    is_flat = positions.ndim <= 1 or query.points is not None
    if not is_flat or (positions.size and positions.dtype.kind not in "iu" and not is_mask):
        raise LabelError(
            f"the dimension {item.dim!r} has no coordinate, so that its labels are positions: integers, a slice of integers, "
            f"or a mask of {item.size:,} elements; found {label!r}",
            name=item.dim,
        )
    if isinstance(label, slice):
        return label
    if not positions.ndim and query.points is None:
        return int(positions)
    return positions if is_mask else positions.astype(np.intp)


# ------------------------------------------------------------------ selections


def selected(
    array: SelectedArray, axes: Sequence[Axis], positions: Mapping[str, Position], wanted: Mapping[str, Labelled]
) -> AsyncSelection:
    """Return the part of an array at positions along its axes. The axes of points are selected together, and others independently.

    Args:
        array: The array.
        axes: Its axes.
        positions: The selected positions by dimension.
        wanted: The axes that labels select.
    """
    sets = {item.dim: item.query.points for item in wanted.values() if item.query.points is not None}
    points = {number: sets[axis.name] for number, axis in enumerate(axes) if axis.name in sets}
    key = tuple(positions.get(axis.name, slice(None)) for axis in axes)
    return AsyncSelection(array, orthogonal(key, array.metadata.shape, points))
