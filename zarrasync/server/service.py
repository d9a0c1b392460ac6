"""A hierarchy as a service: its selections, statistics and pictures, with caches and limits. For any web framework."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from zarrasync import stores
from zarrasync.display.values import Column
from zarrasync.errors import SelectionError, StoreError
from zarrasync.indexing.labels import LabelMethod
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.model.paths import join
from zarrasync.nodes.access import positions_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.server.as_v3 import V3Store
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.confined import confined
from zarrasync.server.coordinates import axes_of_array, axes_of_group, axis_facts, coordinate_columns
from zarrasync.server.described import Described
from zarrasync.server.hierarchy import Hierarchy
from zarrasync.server.images import Scale
from zarrasync.server.limits import Limits
from zarrasync.server.maps import Maps
from zarrasync.server.planes import Planes
from zarrasync.server.pyramid import Pyramid
from zarrasync.server.query import Colours
from zarrasync.server.selection import Selection, axis_of_points, select
from zarrasync.server.series import curves_of
from zarrasync.stores import CachingStore, ObjectStore, PrefixStore, Store, StoreLike

log = logging.getLogger("zarrasync.server")

_URL_SECONDS = 300.0
"""The time for which signed URLs are valid."""


@dataclass(frozen=True)
class SelectedValues:
    """Values of a selection.

    Attributes:
        values: The values. Missing ones are NaN, NaT or masked, and dates ``datetime64``.
        dimensions: The names of their axes.
        coordinates: The coordinates of each dimension of the array, by name; with one element if the selection has one
            index on it.
        unit: The unit of the values; empty for dates and without one.
        attributes: The attributes of the array.
    """

    values: npt.NDArray[Any]
    dimensions: tuple[str, ...]
    coordinates: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    unit: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


class ServiceOptions(TypedDict, total=False):
    """Options of a service.

    Attributes:
        path: The path of the node to serve, with all nodes below it.
        limits: Limits of one request; of several services of one server, the limits of the first one also apply to all
            requests together.
        cache_bytes: Bytes of memory for caches, by default 256 MiB: half for decoded chunks, a quarter for tiles, the rest
            for stored values.
        max_age: Seconds for which read values are reused, by default 60; ``math.inf`` for no limit. Derived results, such
            as tiles, are reused for as long again.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        follow_links: Read local files outside of the directory if symbolic links lead to them.
    """

    path: str
    limits: Limits | None
    cache_bytes: int
    max_age: float
    storage_options: Mapping[str, Any] | None
    config: ConfigLike
    follow_links: bool


class Service:
    """A hierarchy as a service, for handlers of any web framework. For one event loop.

    Results are at most as old as ``max_age`` allows, chunks are decoded once for all requests that need them, and requests are
    checked against limits before anything is read. Messages of errors may contain paths of the store; ``create_app`` replaces them.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        **options: Options; see ``ServiceOptions``.

    Attributes:
        name: The last part of the store's path or URL; empty for stores without one.
        hierarchy: The nodes.
        chunks: The decoded chunks.
        maps: Pictures of arrays on maps.

    Raises:
        ValueError: If a limit is invalid.

    Example:
        >>> store = {}
        >>> group = await za.create_group(store)
        >>> array = await group.create_array("t2m", data=np.arange(6.0).reshape(2, 3), dimension_names=["time", "x"])
        >>> service = Service(store)
        >>> (await service.read_selection("t2m", "time=1")).values
        array([3., 4., 5.])
    """

    def __init__(self, store: StoreLike, **options: Unpack[ServiceOptions]) -> None:
        cache_bytes, max_age = options.get("cache_bytes", 256 << 20), options.get("max_age", 60.0)
        if not (cache_bytes >= 0 and max_age >= 0):
            raise ValueError(f"cache_bytes and max_age must be at least 0, found {cache_bytes} and {max_age}")
        self.limits, self.max_age = options.get("limits") or Limits(), max_age
        follow_links = options.get("follow_links", False)
        source = confined(stores.resolve(store, options.get("storage_options")), follow_links=follow_links)
        path, config = options.get("path", ""), options.get("config")
        self.hierarchy = Hierarchy(source, path=path, limits=self.limits, max_age=max_age, config=config)
        self.name = _name_of(store, path)
        self.chunks = ChunkReader(self.hierarchy, cache_bytes // 2)
        self.described = Described(self.hierarchy)
        self._planes = Planes(self.described, self.chunks, cache_bytes // 4)
        self.maps = Maps(self.described, self.chunks, self._planes)
        self._stored_bytes = cache_bytes // 8
        self._as_v3 = V3Store(self.hierarchy, self.chunks, self._stored_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the store's connections."""
        await self.hierarchy.close()

    async def check_ready(self) -> None:
        """Check that the store responds. A root node need not exist, as a store may contain arrays without one.

        Raises:
            ZarrError: If it does not.
        """
        await self.hierarchy.find("")

    async def array(self, path: str) -> AsyncArray:
        """Return an array, whose metadata was read at most ``max_age`` seconds ago.

        Raises:
            NodeNotFoundError: If it does not exist.
            NodeTypeError: If it is a group.
        """
        return await self.hierarchy.array(path)

    # -------------------------------------------------------------- selections

    async def select(
        self, path: str, text: str = "...", labels: Mapping[str, Query] | None = None, *, decode: bool = True
    ) -> Selection:
        """Return a selection of an array, without reading its elements.

        Args:
            path: The path of the array.
            text: Indices, slices and labels such as ``0,10:20,::2`` or ``time=2024-03/2024-04,lat=45.5~nearest``.
            labels: Further labels, by coordinate.
            decode: Whether values are shown, instead of the stored numbers.

        Raises:
            NodeNotFoundError: If the array does not exist.
            SelectionError: If the selection is invalid.
        """
        return await select(self.described, await self.hierarchy.array(path), text, labels, decode=decode)

    async def read_selection(self, path: str, select: str = "...", *, decode: bool = True) -> SelectedValues:
        """Read a selection of an array, and its coordinates.

        Args:
            path: The path of the array.
            select: Indices, slices and labels such as ``0,10:20,::2`` or ``time=2024-03/2024-04,lat=45.5~nearest``.
            decode: Whether to return what the stored numbers stand for.

        Raises:
            NodeNotFoundError: If the array does not exist.
            SelectionError: If the selection is invalid.
            TooMuch: If it exceeds the limits.
        """
        return await self._read(await self.select(path, select, decode=decode))

    async def read_series(
        self, path: str, labels: Mapping[str, Any], *, method: LabelMethod | None = "nearest", decode: bool = True
    ) -> SelectedValues:
        """Read the values at labels of some coordinates, such as the series of all times at one place.

        Args:
            path: The path of the array.
            labels: A label or a slice of labels by coordinate: ``{"lat": 45.5, "lon": 8.2, "time": slice("2024-03", None)}``.
            method: How numbers are found that are not labels; ``None`` if they must exist. Slices and strings ignore it.
            decode: Whether to return what the stored numbers stand for.

        Raises:
            NodeNotFoundError: If the array does not exist.
            LabelError: If a coordinate or a label does not exist.
            TooMuch: If the series exceeds the limits.
        """
        queries = {name: _query(label, method) for name, label in labels.items()}
        return await self._read(await self.select(path, labels=queries, decode=decode))

    async def read_points(
        self,
        path: str,
        points: Mapping[str, npt.ArrayLike],
        labels: Mapping[str, Any] | None = None,
        *,
        method: LabelMethod | None = "nearest",
        decode: bool = True,
    ) -> SelectedValues:
        """Read the values at many points. Each chunk is read once.

        Args:
            path: The path of the array.
            points: The labels of the points by coordinate: ``{"lat": [45.5, 47.0], "lon": [8.2, 9.0]}``.
            labels: Labels of other coordinates, which all points share.
            method: How labels are found that do not exist; ``None`` if they must exist.
            decode: Whether to return what the stored numbers stand for.

        Returns:
            Values with the points along the first axis, ``"point"``. The others are the remaining axes of the array.

        Raises:
            NodeNotFoundError: If the array does not exist.
            LabelError: If a coordinate or a label does not exist.
            ValueError: If the coordinates have different numbers of labels.
            TooMuch: If the values exceed the limits.
        """
        columns = {name: np.atleast_1d(np.asarray(values)) for name, values in points.items()}
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError(f"the coordinates of points must have equal numbers of labels, found {_lengths(columns)}")
        queries = {name: _query(label, method) for name, label in (labels or {}).items()}
        selection = await self.select(path, labels=queries, decode=decode)
        array, names = selection.array, selection.names
        places = await positions_of(array, {name: Query(column, method) for name, column in columns.items()})
        key: list[Any] = [places.get(name, index) for name, index in zip(names, selection.indices, strict=True)]
        view = array.view[tuple(key)]
        kept = [name for name, item in zip(names, key, strict=True) if name not in places and not isinstance(item, int)]
        shown = await self.chunks.read(view, selection.presentation.show)
        columns_of_axes = {column.name: column.values for column in await self.read_coordinates(selection)}
        values = np.moveaxis(shown.values, axis_of_points(key), 0)
        coordinates = {name: columns_of_axes[name] for name in kept}
        coordinates |= {name: columns_of_axes[name][place] for name, place in places.items()}
        return SelectedValues(values, ("point", *kept), coordinates, shown.unit, array.attrs)

    async def _read(self, selection: Selection) -> SelectedValues:
        columns = await self.read_coordinates(selection)
        shown = await self.chunks.read(selection.view, selection.presentation.show)
        coordinates = {column.name: column.values for column in columns}
        return SelectedValues(shown.values, selection.dimensions, coordinates, shown.unit, selection.array.attrs)

    async def read_coordinates(self, selection: Selection) -> list[Column]:
        """Read the coordinates of a selection along each axis of its array: numbers of elements if none are stored."""
        return await coordinate_columns(self.described, self.chunks, selection.array, selection.indices)

    async def axes(self, path: str) -> list[dict[str, Any]]:
        """Return the axes of an array, or of the arrays in a group, with their coordinates.

        Args:
            path: The path of the node.

        Returns:
            The name, the size, and the unit of each axis; ``step`` and ``origin`` of coordinates with equal steps, and
            ``labels`` of others: all labels of an array, the first and the last one of a group.

        Raises:
            NodeNotFoundError: If the node does not exist.
        """
        node = await self.hierarchy.node(path)
        if isinstance(node, AsyncArray):
            axes = await axes_of_array(self.described, self.chunks, node)
            items = zip(axes, node.shape, strict=True)
            return [axis_facts(number, axis, size) for number, (axis, size) in enumerate(items)]
        found = await axes_of_group(self.described, self.chunks, path)
        return [axis_facts(number, axis, size, with_labels=False) for number, (axis, size) in enumerate(found)]

    async def chart(self, path: str, select: str = "...", *, points: int = 1000, decode: bool = True) -> dict[str, Any]:
        """Return the values along one axis of an array for a chart.

        Args:
            path: The path of the array.
            select: A selection with one axis.
            points: The most points. If the axis has more elements, points have the least and the greatest of several.
            decode: Whether to return what the stored numbers stand for.

        Returns:
            ``axis``, its number; ``start`` and ``step`` of the elements along it; ``width``, the elements of a point; the
            ``unit`` of values; and ``curves`` with ``values``, or with ``low`` and ``high``. Complex numbers have two curves.

        Raises:
            NodeNotFoundError: If the array does not exist.
            SelectionError: If the selection does not have one axis, or the values are not numbers.
            TooMuch: If the selection exceeds the limits.
        """
        selection = await self.select(path, select, decode=decode)
        axes = [(number, index) for number, index in enumerate(selection.indices) if isinstance(index, slice)]
        if len(axes) != 1 or selection.view.ndim != 1:
            shape = selection.view.shape
            raise SelectionError(
                f"a chart needs one axis with equal steps, found a selection of shape {shape}", shape=shape
            )
        number, index = axes[0]
        start, _, step = index.indices(selection.array.shape[number])
        width = max(-(-selection.view.size // points), 1)
        curves = partial(curves_of, selection.presentation, width)
        facts = {"axis": number, "start": start, "step": step, "width": width, "unit": selection.presentation.unit}
        return {**facts, "curves": await self.chunks.read(selection.view, curves)}

    # -------------------------------------------------------------- planes

    async def statistics(
        self, path: str, *, index: str = "", bins: int = 64, plane: str = "", decode: bool = True
    ) -> dict[str, Any]:
        """Return statistics and a histogram of a plane, which consists of two axes.

        They are computed from a sample of the plane's chunks if it is large.

        Args:
            path: The path of an array or a pyramid.
            index: The plane, as a selection of the other axes; by default the first one.
            bins: The number of bins of the histogram.
            plane: The numbers of the axes of rows and columns, such as ``"0,1"``; by default the last two.
            decode: Whether to describe what the stored numbers stand for.

        Raises:
            NodeNotFoundError: If the node does not exist.
            SelectionError: If it has no planes, or the index is invalid.
        """
        return await self._planes.statistics(path, index, bins, plane=plane, decode=decode)

    async def pyramid(self, path: str) -> Pyramid:
        """Return the levels of an array or a pyramid.

        Raises:
            NodeNotFoundError: If the node does not exist.
            SelectionError: If it has no planes.
        """
        return await self._planes.pyramid(path)

    async def view(self, path: str, *, plane: str = "", decode: bool = True) -> dict[str, Any]:
        """Return the axes, levels, zooms, unit and value range of an array or a pyramid."""
        return await self._planes.view(path, plane=plane, decode=decode)

    async def preview(self, path: str, *, index: str = "") -> bytes:
        """Return a picture of a whole plane as a PNG of at most 720 pixels along each side, as the viewer first shows it.

        Args:
            path: The path of an array or a pyramid.
            index: The plane, as a selection of the axes outside of the plane; by default the first one.

        Raises:
            NodeNotFoundError: If the node does not exist.
            SelectionError: If it has no planes, or the index is invalid.
            TooMuch: If the picture exceeds the limits.
        """
        return await self._planes.preview(path, index)

    async def render_tile(
        self,
        path: str,
        zoom: int,
        x: int,
        y: int,
        *,
        index: str = "",
        cmap: str = "viridis",
        low: float | None = None,
        high: float | None = None,
        scale: Scale = "linear",
        below: str = "",
        above: str = "",
        origin: Literal["upper", "lower", ""] = "",
        plane: str = "",
        decode: bool = True,
    ) -> bytes:
        """Return a tile of a plane as a PNG of 256 x 256 pixels. At zoom 0, one tile shows the plane.

        Args:
            path: The path of an array or a pyramid.
            zoom: The zoom; each one doubles the resolution.
            x: The column of the tile.
            y: The row of the tile, from the top.
            index: The plane, as a selection of the other axes; by default the first one.
            cmap: The name of a colour map; ``"labels"`` for integers as categories, ``"rgb"`` for channels of colours.
            low: The value of its first colour; by default one that suits the values.
            high: The value of its last colour; by default one that suits the values.
            scale: The scale of the colours in between; ``"diverging"`` has 0 in the middle.
            below: The colour of lower values, in the notation of CSS; by default the first colour.
            above: The colour of higher values; by default the last colour.
            origin: The position of the first row; by default the north is at the top.
            plane: The numbers of the axes of rows and columns, such as ``"0,1"``; by default the last two.
            decode: Whether to show what the stored numbers stand for.

        Raises:
            NodeNotFoundError: If the node does not exist.
            SelectionError: If it has no planes, or the index or the tile does not exist.
            TooMuch: If the tile exceeds the limits.
        """
        colours = Colours(cmap, low, high, scale, below, above)
        return await self._planes.tile(
            path, (zoom, x, y), index=index, colours=colours, origin=origin, plane=plane, decode=decode
        )

    # -------------------------------------------------------------- keys

    def stored_keys(self) -> Store:
        """Return the store below the served node, with a cache of values."""
        prefix = f"{self.hierarchy.path}/" if self.hierarchy.path else ""
        return self._cached(PrefixStore(self.hierarchy.store, prefix))

    def keys_as_v3(self) -> Store:
        """Return the hierarchy as a store in format 3, with a cache of values."""
        return self._cached(self._as_v3)

    async def url_of(self, key: str) -> str | None:
        """Return a URL that the object store signs for a stored key; ``None`` if it cannot.

        Args:
            key: The key below the served node.
        """
        return await self._signed(join(self.hierarchy.path, key))

    async def url_as_v3(self, key: str) -> str | None:
        """Return a URL for a key in format 3, if the stored value has the same bytes; otherwise ``None``."""
        stored = await self._as_v3.stored_key(key)
        return None if stored is None else await self._signed(stored)

    async def _signed(self, key: str) -> str | None:
        store = self.hierarchy.store.inner
        if not isinstance(store, ObjectStore):
            return None
        try:
            return await store.presigned_url(key, _URL_SECONDS)
        except StoreError as error:  # the server sends the value itself, which is slower
            log.warning("no URL can be signed: %s", error)
            return None

    def _cached(self, store: Store) -> Store:
        # Absence is not cached, as missing keys may be written at any time.
        age = None if math.isinf(self.max_age) else self.max_age
        return CachingStore(store, self._stored_bytes, max_age=age, absent=False)


def _name_of(store: StoreLike, path: str) -> str:
    """Return a name for users, without directories, hosts and secrets of a URL."""
    place: Any = os.fspath(store) if isinstance(store, str | os.PathLike) else ""
    if isinstance(store, Store):
        location: Any = store.location("")
        place = location[-1] if isinstance(location, tuple) and isinstance(location[-1], str) else ""
    parts = place.partition("?")[0].replace("\\", "/").rstrip("/").split("/")
    return path.strip("/").rpartition("/")[2] or parts[-1].rpartition("@")[2]


def _query(label: Any, method: LabelMethod | None) -> Query:
    return Query(label, None if isinstance(label, str | slice) else method)


def _lengths(columns: Mapping[str, npt.NDArray[Any]]) -> str:
    return ", ".join(f"{len(column):,} of {name!r}" for name, column in columns.items())
