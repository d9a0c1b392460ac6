"""Collections of OGC API EDR: the arrays of a group on a grid of horizontal coordinates, and its axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync.display.presentation import Presentation
from zarrasync.metadata.conventions import axis_names, meaning_of, unit_of
from zarrasync.metadata.conventions.cf_labels import Coordinate, Query
from zarrasync.metadata.conventions.meaning import is_latitude, is_longitude, role_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.limits import BadQuery, NotFound, Unsupported
from zarrasync.server.places import AxisPlaces, Index
from zarrasync.server.routes import suggestion
from zarrasync.server.service import Service

_ROOT = "root"
"""The identifier of the collection of the served group."""
_NUMBERS = "biuf"
CRS84 = "CRS84"
_CRS84_NAMES = ("crs84", "ogc:crs84", "epsg:4326", "4326", "http://www.opengis.net/def/crs/ogc/1.3/crs84")


# ------------------------------------------------------------------ axes


@dataclass(frozen=True, eq=False)
class GridAxis:
    """An axis with its coordinates.

    Attributes:
        role: ``"x"``, ``"y"``, ``"z"``, ``"t"``, or empty for another one.
        coordinate: Its labels.
        values: Its labels as users see them: numbers, ``datetime64``, or strings of other calendars.
        unit: The unit of the numbers.
        calendar: The calendar of times; empty for other axes.
        is_longitude: Whether 360 is once round the globe.
        is_latitude: Whether cells end at the poles.
        attributes: The attributes of the coordinates.
    """

    role: str
    coordinate: Coordinate
    values: npt.NDArray[Any]
    unit: str = ""
    calendar: str = ""
    is_longitude: bool = False
    is_latitude: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the dimension."""
        return self.coordinate.name

    @cached_property
    def places(self) -> AxisPlaces:
        """The places of the cells.

        Raises:
            SelectionError: If the coordinates are not sorted.
        """
        return AxisPlaces.of(self.values, self.name, is_longitude=self.is_longitude, is_latitude=self.is_latitude)

    def locate(self, query: Query | None) -> Index:
        """Return the positions that a query selects; all without one.

        Raises:
            LabelError: If a label does not exist.
        """
        if query is None:
            return slice(0, len(self.values))
        position = self.coordinate.locate(query)
        if isinstance(position, slice):
            return slice(*position.indices(len(self.values)))
        return slice(position, position + 1) if isinstance(position, int) else np.asarray(position)


# ------------------------------------------------------------------ collections


@dataclass(frozen=True, eq=False)
class Collection:
    """The arrays of a group that have horizontal coordinates.

    Attributes:
        path: The path of the group.
        attributes: Its attributes.
        arrays: The arrays by name.
        coordinates: The coordinates of their dimensions by name.
        roles: The roles of dimensions.
        crs: ``"CRS84"``, or ``"native"`` for other coordinates.
        wkt: The native reference system in well-known text; empty if it is unknown.
    """

    path: str
    attributes: Mapping[str, Any]
    arrays: Mapping[str, AsyncArray]
    coordinates: Mapping[str, AsyncArray]
    roles: Mapping[str, str]
    crs: str = CRS84
    wkt: str = ""

    @property
    def id(self) -> str:
        """The identifier in paths."""
        return collection_id(self.path)

    @classmethod
    def of(cls, path: str, attributes: Mapping[str, Any], members: Mapping[str, AsyncArray]) -> Collection | None:
        """Return the collection of a group's arrays; ``None`` if none of them has horizontal coordinates."""
        coordinates = {
            name: array
            for name, array in members.items()
            if array.ndim == 1 and array.shape[0] and array.dtype.kind in f"{_NUMBERS}mM" and dims_of(array) == [name]
        }
        roles = {name: role_of(unit_of(array.attrs), array.attrs, name) for name, array in coordinates.items()}
        arrays = {}
        for name, array in members.items():
            found = [roles.get(dim, "") for dim in dims_of(array)]
            has_all = "x" in found and "y" in found and len({*found} - {""}) == len([role for role in found if role])
            if has_all and array.dtype.kind in _NUMBERS and array.size:
                arrays[name] = array
        if not arrays:
            return None
        x = {dim for array in arrays.values() for dim in dims_of(array) if roles.get(dim) == "x"}
        is_global = all(is_longitude(unit_of(coordinates[name].attrs), coordinates[name].attrs, name) for name in x)
        systems = (meaning_of(array.metadata).crs for array in members.values() if not array.ndim)
        wkt = next((crs.wkt for crs in systems if crs is not None and crs.wkt), "")
        return cls(
            path, attributes, arrays, coordinates, roles, CRS84 if is_global else "native", "" if is_global else wkt
        )

    def choose(self, text: str, *, has_heights: bool = False) -> list[str]:
        """Return the names of requested parameters.

        Args:
            text: The names, separated by commas; empty for all parameters.
            has_heights: Whether heights are requested, so that all are only those with heights.

        Raises:
            BadQuery: If one does not exist, or is named twice.
        """
        chosen = [name.strip() for name in text.split(",")] if text else [*self.arrays]
        if has_heights and not text:
            chosen = [name for name in chosen if "z" in map(self.roles.get, dims_of(self.arrays[name]))]
            if not chosen:
                raise BadQuery("no parameter of this collection has heights; request them without z")
        for name in chosen:
            if name not in self.arrays:
                found = f"{', '.join(list(self.arrays)[:20])}{suggestion(name, self.arrays)}"
                raise BadQuery(f"there is no parameter {name[:40]!r}; found {found}")
        if len({*chosen}) != len(chosen):
            raise BadQuery("parameter-name names a parameter more than once")
        return chosen

    def check_crs(self, text: str) -> None:
        """Check the reference system of a request.

        Raises:
            BadQuery: If the collection does not have it.
        """
        allowed = (*_CRS84_NAMES, "") if self.crs == CRS84 else ("native", "")
        if text.lower() not in allowed:
            raise BadQuery(f"crs must be {self.crs}, with x before y, found {text[:40]!r}")

    async def axes(self, service: Service, name: str) -> list[GridAxis | None]:
        """Return the axes of an array; ``None`` for dimensions without coordinates."""
        found = [self.coordinates.get(dim) for dim in dims_of(self.arrays[name])]
        return await gather([partial(_axis, service, self.roles, array) for array in found])


def dims_of(array: AsyncArray) -> list[str]:
    """Return the names of an array's dimensions; empty for one without a name."""
    return [name or "" for name in axis_names(array.metadata) or [None] * array.ndim]


async def _axis(service: Service, roles: Mapping[str, str], array: AsyncArray | None) -> GridAxis | None:
    if array is None:
        return None
    name = array.basename

    async def read() -> GridAxis:
        presentation = await service.described.presentation(array)
        return await service.chunks.read(
            array.view[:], partial(_grid_axis, name, roles[name], presentation, array.attrs)
        )

    return await service.hierarchy.cached(("edr axis", service.hierarchy.version_key(array)), read)


def _grid_axis(
    name: str, role: str, presentation: Presentation, attributes: Mapping[str, Any], stored: npt.NDArray[Any]
) -> GridAxis:
    shown = presentation.show(stored)
    if role == "t" and not shown.is_decoded:
        raise Unsupported(f"the times of {name!r} cannot be represented as dates: {shown.note}")
    coordinate = Coordinate.of(name, presentation.encoding, stored)
    values = np.ma.filled(shown.values.astype(np.float64), np.nan) if np.ma.isMA(shown.values) else shown.values
    if role in ("x", "y") and (not coordinate.labels.direction or not coordinate.labels.is_unique):
        raise Unsupported(f"the coordinate {name!r} neither increases nor decreases, so it is not one of a grid")
    unit = unit_of(attributes)
    east, north = (
        role == "x" and is_longitude(unit, attributes, name),
        role == "y" and is_latitude(unit, attributes, name),
    )
    return GridAxis(role, coordinate, values, shown.unit, shown.calendar, east, north, dict(attributes))


# ------------------------------------------------------------------ identifiers


def collection_id(path: str) -> str:
    """Return the identifier of the collection of a group: its path with colons instead of slashes."""
    parts = [quote(part, safe="") for part in path.split("/")] if path else [_ROOT]
    return "%72oot" if path == _ROOT else ":".join(parts)


def path_of(identifier: str) -> str:
    """Return the path of the group of a collection."""
    return "" if identifier == _ROOT else "/".join(unquote(part) for part in identifier.split(":"))


async def open_collection(service: Service, identifier: str) -> Collection:
    """Return a collection.

    Raises:
        NodeNotFoundError: If the group does not exist.
        NotFound: If it has no arrays on a grid.
        Unsupported: If the store cannot list the group.
    """
    path = path_of(identifier)
    node = await service.hierarchy.node(path)
    members = await service.hierarchy.members(path)
    if members is None:
        raise Unsupported("this store cannot list the arrays of a group; consolidate its metadata")
    arrays = {name: member for name, member in members if isinstance(member, AsyncArray)}
    found = Collection.of(path, node.attrs, arrays)
    if found is None:
        raise NotFound(f"the group {identifier[:60]!r} has no arrays with horizontal coordinates")
    return found


async def collections_of(service: Service) -> list[Collection]:
    """Return all collections of a service.

    Raises:
        Unsupported: If the store cannot list its nodes, or there are too many.
    """
    nodes = await service.hierarchy.descendants()
    if nodes is None:
        raise Unsupported("the nodes of this store cannot be listed, or are too many; consolidate its metadata")
    attributes: dict[str, Mapping[str, Any]] = {"": (await service.hierarchy.node("")).attrs}
    members: dict[str, dict[str, AsyncArray]] = {}
    for path, node in nodes:
        parent, _, name = path.rpartition("/")
        if isinstance(node, AsyncArray):
            members.setdefault(parent, {})[name] = node
        else:
            attributes[path] = node.attrs
    found = (Collection.of(path, attributes[path], arrays) for path, arrays in members.items() if path in attributes)
    return sorted(filter(None, found), key=lambda collection: collection.path)
