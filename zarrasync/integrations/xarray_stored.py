"""A group as xarray's decoding takes it: lazy arrays, names of axes, encodings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import AbstractDataStore, BackendArray
from xarray.backends.zarr import FillValueCoder
from xarray.core import indexing

from zarrasync import sync
from zarrasync.codecs import ObjectCodec, VlenBytesCodec, VlenUtf8Codec
from zarrasync.errors import MetadataError
from zarrasync.metadata.conventions import DIMENSIONS
from zarrasync.nodes.access import handle_of

__all__ = ["FILL", "FILTERS", "StoredGroup", "stored_variable"]

FILL = "_FillValue"
FILTERS = "v2_filters"
"""The encoding that has filters of format 2; ``filters`` has those of format 3."""
_MISSING = "missing_value"


class _LazyArray(BackendArray):
    """An array that is read when it is indexed."""

    def __init__(self, array: sync.Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dask_tokenize__(self) -> Any:
        return (type(self).__name__, self.array.__dask_tokenize__())

    def _view(self, key: indexing.ExplicitIndexer) -> Any:
        view = self.array.view
        if isinstance(key, indexing.VectorizedIndexer):
            return view.vindex
        return view.oindex if isinstance(key, indexing.OuterIndexer) else view

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        def read(selection: tuple[Any, ...]) -> Any:
            return np.asarray(self._view(key)[selection].read(), self.dtype)

        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.VECTORIZED, read)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read without blocking the event loop."""

        async def read(selection: tuple[Any, ...]) -> Any:
            return np.asarray(await self._view(key)[selection].async_.read(), self.dtype)

        return await indexing.async_explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.VECTORIZED, read
        )


class StoredGroup(AbstractDataStore):
    """A group as xarray's decoding takes it."""

    def __init__(self, group: sync.Group, *, mask: bool | None) -> None:
        self.group, self._mask = group, mask

    def get_attrs(self) -> Mapping[str, Any]:
        """The group's attributes."""
        return _shown(self.group.attrs)

    def get_variables(self) -> Mapping[str, Variable]:
        """The group's arrays."""
        return {name: stored_variable(name, array, mask=self._mask) for name, array in self.group.arrays()}

    def get_dimensions(self) -> Mapping[str, int]:
        """The sizes of axes by name."""
        return {str(dim): n for variable in self.get_variables().values() for dim, n in variable.sizes.items()}

    def close(self) -> None:
        """Let go of the store's connections."""
        self.group.close()


def stored_variable(name: str, array: sync.Array, *, mask: bool | None) -> Variable:
    """An array as a variable that is not decoded; ``mask`` says whether its fill value means missing, ``None`` as its format does."""
    attributes = _shown(array.attrs)
    dims = _dimensions(name, array, attributes.pop(DIMENSIONS, None))
    encoding: dict[str, Any] = {
        "chunks": array.chunks,
        "preferred_chunks": _preferred(array, dims),
        "shards": array.shards,
    }
    if handle_of(
        array.async_
    ).format.has_dimension_names:  # in a form that zarr-python takes when the dataset is written with it
        encoding["compressors"] = tuple(codec.to_json() for codec in array.compressors)
        encoding["filters"] = tuple(codec.to_json() for codec in array.filters)
    for told in _documents(array):
        compressor = told.get("compressor", {})  # of format 2; xarray leaves it out where zarr-python does not take it
        if compressor is None or "id" in compressor:
            encoding["compressor"] = _thawed(compressor)
            if filters := _filters(array, told):
                encoding[FILTERS] = filters
    if array.dtype.kind == "T":  # without it xarray makes objects of variable-length strings
        encoding["dtype"] = array.dtype
    # Where a fill value may be left undefined, one that is defined says what is missing.
    undefinable = handle_of(array.async_).format.has_undefined_fill
    mask = undefinable if mask is None else mask
    if mask and array.fill_value is not None:
        attributes[FILL] = array.fill_value
    elif FILL in attributes and not undefinable:  # elsewhere it stands as in other files
        attributes[FILL] = _decoded(attributes[FILL], array)
    if _MISSING in attributes and array.dtype.kind in "fc":
        attributes[_MISSING] = _numbers(attributes[_MISSING])
    if not mask and handle_of(array.async_).format.has_dimension_names:  # stays so if the dataset is written again
        encoding["fill_value"] = array.fill_value
    return Variable(dims, indexing.LazilyIndexedArray(_LazyArray(array)), attributes, encoding)


def _filters(array: sync.Array, told: Mapping[str, Any]) -> list[Any]:
    """The filters of a document of format 2 that another array may have, too."""
    filters: list[Any] = _thawed(told.get("filters") or [])
    match array.serializer:
        case VlenUtf8Codec() | VlenBytesCodec():  # the first makes bytes of text, as the data type says
            return filters[1:]
        case ObjectCodec():  # objects are written as text, whose bytes are others
            return []
    return filters


_PRIVATE = ("_nczarr", "_ncproperties", "_nc3_strict")
"""How the attributes begin, in capitals or not, that netCDF keeps for itself."""
_NCZARR = ("_nczarr_array", "_NCZARR_ARRAY")


def _shown(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that are not netCDF's own."""
    return {name: _thawed(value) for name, value in attributes.items() if not name.lower().startswith(_PRIVATE)}


def _decoded(fill: Any, array: sync.Array) -> Any:
    """What means missing, as xarray writes it, or as a number of other writers."""
    kind = array.dtype.kind
    try:
        if kind == "S":  # xarray encodes it, and decodes neither this nor text
            return base64.b64decode(fill, validate=True)
        return FillValueCoder.decode(fill, "string" if kind in "TU" else array.dtype)
    except (TypeError, ValueError, struct.error) as error:
        if array.dtype.kind == "f" and isinstance(fill, str | int | float):
            with suppress(ValueError):
                return array.dtype.type(float(fill))
        raise MetadataError(
            f"{array.name}: the attribute {FILL} {fill!r} means nothing for {array.dtype} ({error}); correct or erase it"
        ) from error


def _numbers(missing: Any) -> Any:
    """What means missing, where JSON has texts in the place of numbers that are not finite."""
    if isinstance(missing, list):
        return [_numbers(one) for one in missing]
    return float(missing) if missing in ("NaN", "Infinity", "-Infinity") else missing


def _thawed(value: Any) -> Any:
    """Attributes as plain dicts and lists, as xarray expects them."""
    if isinstance(value, Mapping):
        return {name: _thawed(item) for name, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, list | tuple) else value


def _dimensions(name: str, array: sync.Array, listed: Any) -> tuple[str, ...]:
    names = array.dimension_names
    if names is None and listed is None:
        listed = _netcdf_dimensions(array)
    found = list(names) if names is not None else listed if isinstance(listed, list) else [None] * array.ndim
    if len(found) != array.ndim:
        raise MetadataError(f"{array.name}: {DIMENSIONS} {found} does not fit its {array.ndim} axes")
    return tuple(one if isinstance(one, str) else f"{name}_dim_{axis}" for axis, one in enumerate(found))


def _documents(array: sync.Array) -> list[Mapping[str, Any]]:
    """What is stored of an array's metadata."""
    source = array.metadata.source
    return list(source.documents.values()) if source is not None else []


def _netcdf_dimensions(array: sync.Array) -> list[str] | None:
    """The names that netCDF keeps, in the array's document or its attributes: paths of dimensions in groups."""
    for told in (*_documents(array), array.attrs):
        for own in (told.get(name) for name in _NCZARR):
            paths = own.get("dimrefs", own.get("dimension_references")) if isinstance(own, Mapping) else None
            if isinstance(paths, list | tuple) and len(paths) == array.ndim:  # scalars have an axis, and none here
                return [str(path).rpartition("/")[2] for path in paths]
    return None


def _preferred(array: sync.Array, dims: tuple[str, ...]) -> dict[str, Any]:
    """Chunks for dask: one size per axis, or all sizes where they differ."""
    edges = array.metadata.edges if array.shards is None else None
    sizes = array.read_chunk_sizes if edges is not None else array.chunks
    return dict(zip(dims, sizes, strict=True))
