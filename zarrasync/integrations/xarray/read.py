"""Stored arrays as xarray variables: lazy values, dimensions, attributes and encodings, and computed coordinates."""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable
from xarray.backends import AbstractDataStore, BackendArray
from xarray.backends.zarr import FillValueCoder
from xarray.core import indexing

from zarrasync import sync
from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather_all
from zarrasync.codecs import ObjectCodec, VlenBytesCodec, VlenUtf8Codec
from zarrasync.errors import MetadataError, ZarrError
from zarrasync.integrations.xarray.content import Content
from zarrasync.metadata.conventions import CRS, DIMENSIONS, Axis
from zarrasync.metadata.conventions.cf_attributes import FILL, MISSING_VALUE
from zarrasync.nodes.access import handle_of
from zarrasync.stores import StoreLike

FILTERS = "v2_filters"
"""The encoding with the filters of format 2; ``filters`` contains the filters of format 3."""
_NETCDF_PREFIXES = ("_nczarr", "_ncproperties", "_nc3_strict")
"""Beginnings, in lower case, of the names of netCDF's internal attributes."""
_LARGEST_COORDINATE = 4 << 20
"""Bytes of coordinates that are fetched when a dataset is opened."""
_NETCDF_ARRAY = ("_nczarr_array", "_NCZARR_ARRAY")
_SPATIAL_REF = "spatial_ref"
"""The name of the variable with the reference system, as rioxarray and GDAL expect it."""


class LazyArray(BackendArray):
    """An array that is read when it is indexed, unless its values were fetched when the dataset was opened.

    Attributes:
        stored: The array.
        values: All values, if they were fetched.
    """

    def __init__(self, array: sync.Array) -> None:
        self.stored, self.shape, self.dtype = array, array.shape, array.dtype
        self.values: npt.NDArray[Any] | None = None

    def __dask_tokenize__(self) -> Any:
        return (type(self).__name__, self.stored.__dask_tokenize__())

    def view(self, key: indexing.ExplicitIndexer) -> Any:
        """Return the array with the kind of indexing that a key of xarray means."""
        view = self.stored.view
        if isinstance(key, indexing.VectorizedIndexer):
            return view.vindex
        return view.oindex if isinstance(key, indexing.OuterIndexer) else view

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if self.values is not None:
            return _indexed(self.values, key)

        def read(selection: tuple[Any, ...]) -> Any:
            return np.asarray(self.view(key)[selection].read(), self.dtype)

        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.VECTORIZED, read)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read without blocking the event loop."""
        if self.values is not None:
            return _indexed(self.values, key)

        async def read(selection: tuple[Any, ...]) -> Any:
            return np.asarray(await self.view(key)[selection].async_.read(), self.dtype)

        return await indexing.async_explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.VECTORIZED, read
        )


def _indexed(values: npt.NDArray[Any], key: indexing.ExplicitIndexer) -> npt.NDArray[Any]:
    """Return a copy of the selected values."""
    adapter: Any = indexing.NumpyIndexingAdapter
    return np.array(indexing.apply_indexer(adapter(values), key))


class Version2Codec(dict[str, Any]):
    """The configuration of a compressor of format 2, which zarr-python also accepts as an entry of format 3.

    xarray passes the encoding of a variable to zarr-python, whichever format it writes.

    Args:
        configuration: The configuration for numcodecs. These are the items.
        entry: The entry of format 3. Its members can only be looked up.
    """

    def __init__(self, configuration: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        super().__init__(configuration)
        self.entry = entry

    def __missing__(self, name: str) -> Any:
        return self.entry[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.entry


class GroupDataStore(AbstractDataStore):
    """Arrays with the interface of xarray's data stores.

    Args:
        content: The arrays, and what conventions specify about them.
        mask: Whether fill values mean missing; ``None`` for the default of the format.
        path: The path of the group in a tree of datasets.

    Attributes:
        stored: The arrays as variables.
        computed: Coordinates and reference systems that conventions specify without storing them.
    """

    def __init__(self, content: Content, *, mask: bool | None, path: str = "") -> None:
        self.content = content
        self.stored = {
            name: stored_variable(name, array, mask=mask, path=path, axes=content.axes(name))
            for name, array in content.arrays.items()
        }
        self.computed = _computed_variables(content, self.stored)

    def get_attrs(self) -> Mapping[str, Any]:
        """Return the attributes of the dataset."""
        return _user_attributes(self.content.attributes)

    def get_variables(self) -> Mapping[str, Variable]:
        """Return the variables."""
        return {**self.stored, **self.computed}

    def close(self) -> None:
        """Close the store's connections."""
        self.content.group.close()


def stored_variable(
    name: str, array: sync.Array, *, mask: bool | None, path: str = "", axes: Sequence[Axis] = ()
) -> Variable:
    """Return an array as a variable that is not decoded.

    Args:
        name: The name of the variable.
        array: The array.
        mask: Whether its fill value means missing; ``None`` for the default of the format.
        path: The path of its group in a tree of datasets, which the names of unnamed dimensions begin with. Groups of a
            tree share dimensions of the same name.
        axes: The axes of the array that conventions specify; empty if they do not.

    Raises:
        MetadataError: If its dimensions or its ``_FillValue`` are invalid.
    """
    format_ = handle_of(array.async_).format
    attributes = _user_attributes(array.attrs)
    if mask is None:  # the fill values of images have no meaning
        mask = format_.has_undefined_fill and not (axes and DIMENSIONS not in attributes)
    generated_name = "_".join(filter(None, (*path.split("/"), name)))
    dims = _dimensions(generated_name, array, attributes.pop(DIMENSIONS, None), axes)
    encoding = _layout_encoding(array, dims)
    if format_.has_dimension_names:
        encoding |= _codec_encoding(array)
    encoding |= _v2_codec_encoding(array)
    if array.dtype.kind == "T":  # otherwise xarray makes objects of variable-length strings
        encoding["dtype"] = array.dtype
    if mask and array.fill_value is not None:
        attributes[FILL] = array.fill_value
    elif FILL in attributes and not format_.has_undefined_fill:  # formats that can leave it undefined store it decoded
        attributes[FILL] = _decode_fill(attributes[FILL], array)
    if MISSING_VALUE in attributes and array.dtype.kind in "fc":
        attributes[MISSING_VALUE] = _missing_numbers(attributes[MISSING_VALUE])
    if not mask and format_.has_dimension_names and array.dtype.kind not in "mM":  # kept when it is written again
        encoding["fill_value"] = array.fill_value
    return Variable(dims, indexing.LazilyIndexedArray(LazyArray(array)), attributes, encoding)


# ------------------------------------------------------------------ coordinates


def fetch_coordinates(groups: Iterable[GroupDataStore], *, scalars: bool = False) -> None:
    """Fetch the coordinates of groups that xarray reads while it opens them, all at the same time.

    xarray reads the coordinates of dimensions one after the other to build indexes, and the ends of times to choose
    their data type. A coordinate that cannot be read is left to xarray, which then raises the error.

    Args:
        groups: The groups.
        scalars: Also fetch variables without axes, by which xarray combines datasets.
    """
    arrays: list[LazyArray] = []
    for group in groups:
        for name, variable in group.stored.items():
            if (scalars and not variable.ndim) or _is_read_on_opening(name, variable):
                wrapper: Any = variable._data  # noqa: SLF001  # as stored_variable made it
                arrays.append(wrapper.array)
    remote = [lazy for lazy in arrays if not lazy.stored.store.is_local]
    if remote:
        bridge.run(gather_all([partial(_fetch, lazy) for lazy in remote]), blocking=False)


async def _fetch(lazy: LazyArray) -> None:
    with suppress(ZarrError):
        lazy.values = np.asarray(await lazy.stored.async_[...].read(), lazy.dtype)


def _is_read_on_opening(name: str, variable: Variable) -> bool:
    if variable.size * variable.dtype.itemsize > _LARGEST_COORDINATE:
        return False
    units = variable.attrs.get("units")
    return variable.dims == (name,) or (isinstance(units, str) and " since " in units)


# ------------------------------------------------------------------ encodings


def _layout_encoding(array: sync.Array, dims: tuple[str, ...]) -> dict[str, Any]:
    edges = array.metadata.edges
    chunks: tuple[Any, ...] = array.chunks
    shards: tuple[Any, ...] | None = array.shards
    preferred = chunks
    if edges is not None:
        stored = tuple(
            size if sizes is None else sizes for size, sizes in zip(array.metadata.write_chunks, edges, strict=True)
        )
        chunks, shards = (stored, None) if shards is None else (chunks, stored)
        if shards is None:  # dask expects one size per axis, or all sizes
            sizes_read = zip(stored, array.read_chunk_sizes, strict=True)
            preferred = tuple(size if isinstance(size, int) else sizes or (0,) for size, sizes in sizes_read)
    return {"chunks": chunks, "preferred_chunks": dict(zip(dims, preferred, strict=True)), "shards": shards}


def _codec_encoding(array: sync.Array) -> dict[str, Any]:
    """Return the codecs of format 3 as zarr-python accepts them when the dataset is written with it."""
    return {
        "compressors": tuple(codec.to_json() for codec in array.compressors),
        "filters": tuple(codec.to_json() for codec in array.filters),
    }


def _v2_codec_encoding(array: sync.Array) -> dict[str, Any]:
    """Return the codecs of a document of format 2. xarray's own engine leaves out those that zarr-python rejects."""
    encoding: dict[str, Any] = {}
    for document in array.metadata.documents.values():
        compressor = document.get("compressor", {})
        if compressor is None or "id" in compressor:
            encoding["compressor"] = _plain(compressor)
            last = [] if compressor is None else [array.compressors[-1].to_json()]  # filters may stand before it
            encoding["compressors"] = tuple(Version2Codec(_plain(compressor), entry) for entry in last)
            if filters := _portable_filters(array, document):
                encoding[FILTERS] = filters
    return encoding


def _portable_filters(array: sync.Array, document: Mapping[str, Any]) -> list[Any]:
    """Return the filters of a document of format 2 that other arrays with the same values can use."""
    filters: list[Any] = _plain(document.get("filters") or [])
    match array.serializer:
        case VlenUtf8Codec() | VlenBytesCodec():  # the first filter encodes strings, which the data type implies
            return filters[1:]
        case ObjectCodec():  # objects are written as strings, for which the filters may not work
            return []
    return filters


# ------------------------------------------------------------------ attributes


def _user_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes except for netCDF's internal ones."""
    items = attributes.items()
    return {name: _plain(value) for name, value in items if not name.lower().startswith(_NETCDF_PREFIXES)}


def _decode_fill(fill: Any, array: sync.Array) -> Any:
    """Return the value of a ``_FillValue`` attribute, which other writers store as a plain number.

    Raises:
        MetadataError: If it is invalid for the data type.
    """
    kind = array.dtype.kind
    try:
        if kind == "S":  # xarray encodes these, but does not decode them
            return base64.b64decode(fill, validate=True)
        return FillValueCoder.decode(fill, "string" if kind in "TU" else array.dtype)
    except (TypeError, ValueError, struct.error) as error:
        if array.dtype.kind == "f" and isinstance(fill, str | int | float):
            with suppress(ValueError):
                return array.dtype.type(float(fill))
        raise MetadataError(
            f"{array.name}: the attribute {FILL}={fill!r} is invalid for {array.dtype} ({error}); correct or erase it"
        ) from error


def _missing_numbers(missing: Any) -> Any:
    """Return a ``missing_value`` with numbers instead of the strings for non-finite numbers."""
    if isinstance(missing, list):
        return [_missing_numbers(item) for item in missing]
    return float(missing) if missing in ("NaN", "Infinity", "-Infinity") else missing


def _plain(value: Any) -> Any:
    """Return an immutable JSON value as plain dicts and lists, which xarray expects."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# ------------------------------------------------------------------ dimensions


def _dimensions(name: str, array: sync.Array, attribute: Any, axes: Sequence[Axis]) -> tuple[str, ...]:
    """Return the dimensions of an array: from conventions, its metadata, xarray's attribute or netCDF, or generated."""
    names: Any = [axis.name or None for axis in axes] if axes else array.dimension_names
    if names is None:
        names = attribute if attribute is not None else _netcdf_dimensions(array)
        names = names if isinstance(names, list) else [None] * array.ndim
    if len(names) != array.ndim:
        raise MetadataError(f"{array.name}: {DIMENSIONS}={list(names)} does not match its {array.ndim} axes")
    return tuple(dim if isinstance(dim, str) else f"{name}_dim_{axis}" for axis, dim in enumerate(names))


def _netcdf_dimensions(array: sync.Array) -> list[str] | None:
    """Return the dimensions that netCDF stores as paths, in the array's document or in its attributes."""
    for document in (*array.metadata.documents.values(), array.attrs):
        for entry in (document.get(name) for name in _NETCDF_ARRAY):
            paths = entry.get("dimrefs", entry.get("dimension_references")) if isinstance(entry, Mapping) else None
            if isinstance(paths, list | tuple) and len(paths) == array.ndim:  # netCDF's scalars have one axis
                return [str(path).rpartition("/")[2] for path in paths]
    return None


# ------------------------------------------------------------------ datasets that are open


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """A dataset that xarray opens without requests, in place of the store that the user passed.

    Equal to the path that the user passed, because xarray looks up paths in lists.

    Attributes:
        path: The store as the user passed it. xarray takes a path for the source of the dataset.
        outcome: The arrays, or the error of opening them.
    """

    path: StoreLike
    outcome: GroupDataStore | Exception

    def result(self) -> GroupDataStore:
        """Return the arrays, or raise the error of opening them."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, str) and other == str(self))

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return os.fspath(self.path) if isinstance(self.path, str | os.PathLike) else repr(self.path)

    def __dask_tokenize__(self) -> Any:
        return [array.__dask_tokenize__() for array in self.result().content.arrays.values()]


# ------------------------------------------------------------------ computed variables


def _computed_variables(content: Content, stored: Mapping[str, Variable]) -> dict[str, Variable]:
    """Return variables that conventions specify without storing them, and refer to the reference system.

    Coordinates that arrays specify differently are left out.

    Args:
        content: The arrays.
        stored: The variables of the arrays. Those with a reference system get the attribute ``grid_mapping``.
    """
    found: dict[str, list[tuple[Axis, int]]] = {}
    for name, variable in stored.items():
        for axis, dim, size in zip(content.axes(name), variable.dims, variable.shape, strict=False):
            same = found.setdefault(str(dim), [])
            if (axis, size) not in same:
                same.append((axis, size))
    coordinates = {
        dim: _coordinate(dim, *same[0]) for dim, same in found.items() if dim not in stored and len(same) == 1
    }
    computed = {dim: variable for dim, variable in coordinates.items() if variable is not None}
    return computed | _spatial_ref(content, stored)


def _coordinate(dim: str, axis: Axis, size: int) -> Variable | None:
    """Return the coordinates of an axis, or ``None`` if they are only numbers."""
    if len(axis.labels) == size and len({*axis.labels}) == size:
        return Variable((dim,), np.array(axis.labels, object))
    if not axis.has_coordinates:
        return None
    units = {"units": axis.unit} if axis.unit else {}
    return Variable((dim,), axis.coordinates(size), {**axis.attributes, **units})


# ------------------------------------------------------------------ reference systems


def _spatial_ref(content: Content, stored: Mapping[str, Variable]) -> dict[str, Variable]:
    """Return the variable with the reference system of the spatial arrays, unless the arrays have different ones."""
    spatial = {
        name: meaning
        for name, meaning in content.meanings.items()
        if meaning.crs is not None and _spatial_axes(content.axes(name)) and "grid_mapping" not in stored[name].attrs
    }
    systems = [(meaning.crs, meaning.affine) for meaning in spatial.values()]
    if not systems or _SPATIAL_REF in stored or any(system != systems[0] for system in systems):
        return {}
    for name in spatial:
        stored[name].attrs["grid_mapping"] = _SPATIAL_REF
    crs, affine = systems[0]
    assert crs is not None
    attributes = _crs_attributes(crs)
    if affine is not None:  # in the order of GDAL
        a, b, c, d, e, f = affine
        attributes["GeoTransform"] = " ".join(repr(number) for number in (c, a, b, f, d, e))
    return {_SPATIAL_REF: Variable((), 0, attributes)}


def _spatial_axes(axes: tuple[Axis, ...]) -> bool:
    return sum(axis.kind == "space" for axis in axes) >= 2


def _crs_attributes(crs: CRS) -> dict[str, str]:
    """Return the attributes from which rioxarray, GDAL and pyproj make a reference system."""
    if crs.wkt:
        return {"crs_wkt": crs.wkt, "spatial_ref": crs.wkt}
    return {"spatial_ref": crs.code or json.dumps(crs.projjson)}
