"""A common interface to the sources of an ingestion, and the parameters of new arrays for them."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._util.redact import redact
from zarrasync.bulk import hdf5
from zarrasync.bulk.files.sources.content import check_content
from zarrasync.errors import EncodingError, MetadataError, NodeNotFoundError, ShapeError, SourceFilesError
from zarrasync.formats import Format
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions import DIMENSIONS, XarrayProperties, convert_properties
from zarrasync.metadata.conventions.cf_attributes import UNSIGNED, sign_depends_on_type
from zarrasync.model import dtypes, fill_values
from zarrasync.nodes.access import as_async, handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open_array
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.stores import resolve

_DIMENSION_ATTRIBUTES = ("dims", "dimensions")
"""Attributes with the names of axes, in xarray and h5netcdf."""


@dataclass
class Source:
    """A source of values.

    Attributes:
        shape: The shape.
        dtype: The data type.
        read: A function that returns the values of a region.
        pairs: An iterable of regions and their values, instead of ``read``.
        asynchronous: Whether ``read`` returns an awaitable, or ``pairs`` is an asynchronous iterable.
        in_memory: Whether the values of a region are a view of an array in memory.
        chunks: The shape of chunks that are decoded as a whole.
        layout: ``chunks`` and ``shards`` as parameters of ``create_array``.
        properties: ``dimension_names``, ``attributes`` and ``fill_value``, if the source has them.
        fill_is_missing: Whether the fill value marks missing values, as in formats that can leave it undefined.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[Region], Any] | None = None
    pairs: Iterable[tuple[Region, Any]] | AsyncIterator[tuple[Region, Any]] | None = None
    asynchronous: bool = False
    in_memory: bool = False
    chunks: tuple[int, ...] | None = None
    layout: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    fill_is_missing: bool = False

    async def get(self, region: Region) -> Any:
        """Return the values of a region."""
        assert self.read is not None
        if driven():
            values = self.read(region)
            return bridge.run(_await(values), blocking=False) if inspect.isawaitable(values) else values
        if self.asynchronous:
            return await self.read(region)
        if self.in_memory:
            return self.read(region)
        values = await run_in_worker(partial(self._read, region))
        return await values if inspect.isawaitable(values) else values

    def take_turns(self) -> None:
        """Let only one thread at a time call ``read``."""
        if self.read is not None and not self.asynchronous:
            read, lock = self.read, thread_lock()

            def read_alone(region: Region) -> Any:
                with lock:
                    return read(region)

            self.read = read_alone

    async def _read(self, region: Region) -> Any:
        assert self.read is not None
        return self.read(region)


async def _await(values: Awaitable[Any]) -> Any:
    return await values


async def open_source(url: str | Path) -> AsyncArray:
    """Open the array at a path or URL.

    Raises:
        TypeError: If no array exists there.
    """
    opening = open_array(store := resolve(url))
    try:
        return bridge.run(opening, blocking=store.blocking) if driven() else await opening
    except NodeNotFoundError as error:
        raise TypeError(f"{redact(str(url))!r} is neither an .npy file nor an array: {error}") from error


def source_of(value: Any, options: Mapping[str, Any]) -> Source:
    """Return the source for a value that a user passed.

    Args:
        value: An array, a selection, the path of an ``.npy`` file, a function or an iterable.
        options: Options with the ``shape`` and ``dtype`` of functions and iterables.

    Raises:
        TypeError: If the value cannot be ingested.
        SourceFilesError: If the file is damaged.
    """
    if isinstance(value, str | Path):
        try:
            check_content(str(value))
            value = np.load(value, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise SourceFilesError(f"cannot read {value}: {error}", files={str(value): str(error)}) from error
    inner = as_async(value)
    if isinstance(inner, AsyncArray):
        return _zarr_source(inner)
    if isinstance(inner, AsyncSelection):
        return Source(inner.shape, inner.dtype, lambda region: inner[(*region, ...)].read(), asynchronous=True)
    if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__getitem__"):
        return _array_source(value)
    is_iterable = (hasattr(value, "__iter__") or hasattr(value, "__aiter__")) and not isinstance(value, bytes)
    if not (callable(value) or is_iterable):
        raise TypeError(
            f"cannot ingest an object of type {type(value).__name__}; pass an array, a function that returns the values "
            "of a region, or an iterable of pairs of a region and its values"
        )
    missing = [name for name in ("shape", "dtype") if options.get(name) is None]
    if missing:
        raise TypeError(f"ingest() needs {' and '.join(missing)} for a source of type {type(value).__name__}")
    shape = options["shape"]
    shape = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
    source = Source(shape, options["dtype"])
    if callable(value):
        source.read, source.asynchronous = value, inspect.iscoroutinefunction(value)
    else:
        pairs: Any = value
        source.pairs, source.asynchronous = pairs, hasattr(value, "__aiter__")
    return source


# ------------------------------------------------------------------ arrays


def _zarr_source(array: AsyncArray) -> Source:
    metadata = array.metadata
    source = Source(array.shape, metadata.dtype, lambda region: array.view[(*region, ...)].read(), asynchronous=True)
    layout = (array.chunks, array.shards) if metadata.edges is None else None
    _add_zarr_properties(source, array, handle_of(array).format, layout)
    source.chunks = metadata.chunks
    return source


def _array_source(value: Any) -> Source:
    """Return an array of another library as a source."""
    data = getattr(value, "variable", value)  # of a DataArray
    if any(math.isnan(n) for n in data.shape):  # in dask
        raise ShapeError(f"the source has an unknown size: {data.shape}; call compute_chunk_sizes()")
    source = Source(
        tuple(int(n) for n in data.shape),
        data.dtype,
        lambda region: np.asanyarray(data[region]),  # keeps the masks of missing values
        in_memory=isinstance(data, np.ndarray),
    )
    if hasattr(value, "store_path"):
        _add_zarr_python_properties(source, value)
        return source
    candidates = (getattr(value, name, None) for name in _DIMENSION_ATTRIBUTES)
    names = next((candidate for candidate in candidates if isinstance(candidate, tuple)), None)
    is_h5py = type(value).__module__.partition(".")[0] == "h5py" and hasattr(value, "dims")  # views have no dims
    if names is not None and hasattr(value, "attrs"):
        source.properties = {"dimension_names": tuple(map(str, names)), "attributes": dict(value.attrs)}
    elif is_h5py:
        source.properties = {"dimension_names": hdf5.names_of(value), "attributes": hdf5.attributes_of(value)}
    chunks = getattr(data, "chunks", None)
    if chunks and len(chunks) == len(source.shape):  # dask lists all sizes along each axis
        source.chunks = tuple(max(1, *sizes) if isinstance(sizes, tuple) else sizes for sizes in chunks)
    return source


def _add_zarr_python_properties(source: Source, array: Any) -> None:
    try:
        layout = (array.chunks, getattr(array, "shards", None))
        source.chunks = layout[0]
    except NotImplementedError:  # chunks of different sizes
        layout = None
        source.chunks = tuple(map(max, array.read_chunk_sizes))
    _add_zarr_properties(source, array, formats.by_name(array.metadata.zarr_format), layout)


def _add_zarr_properties(source: Source, array: Any, format_: Format, layout: tuple[Any, Any] | None) -> None:
    """Add the metadata of a Zarr array to a source, including chunks and shards if the grid is regular."""
    metadata = array.metadata
    names = getattr(metadata, "dimension_names", None)
    source.properties = {"dimension_names": names, "attributes": dict(metadata.attributes)}
    if array.fill_value is not None:
        source.properties["fill_value"] = array.fill_value
    source.fill_is_missing = format_.has_undefined_fill
    if layout is not None:
        source.layout = dict(zip(("chunks", "shards"), layout, strict=True))


# ------------------------------------------------------------------ new arrays


def creation_options(source: Source, options: Mapping[str, Any], config: ConfigLike = None) -> dict[str, Any]:
    """Return the parameters of ``create_array`` for a new array.

    Raises:
        ShapeError: If the options contain a shape that differs from the source's.
        EncodingError: If numbers of the requested data type stand for other values, by the attribute ``_Unsigned``.
    """
    explicit = {name: value for name, value in options.items() if name != "dtype" or value is not None}
    zarr_format = options.get("zarr_format")
    target = formats.by_name(settings.resolve(config).zarr_format if zarr_format is None else zarr_format)
    implied = {"dtype": source.dtype, **_properties(source, options, target), **_layout(source, options, target)}
    parameters = {**implied, **explicit}
    if parameters.get("shape") not in (None, source.shape, [*source.shape], *source.shape[:1]):
        raise ShapeError(
            f"the source has shape {source.shape}, but the option shape is {options['shape']}", found=source.shape
        )
    return {**parameters, "shape": source.shape}


def _layout(source: Source, options: Mapping[str, Any], target: Format) -> dict[str, Any]:
    """Return the source's chunks and shards if the format supports them and they fit the options."""
    layout = {} if "chunks" in options else dict(source.layout)
    if not target.has_shards:
        layout.pop("shards", None)
    shards = options.get("shards")
    sizes = [shards] if isinstance(shards, int) else shards if isinstance(shards, tuple | list) else ()
    if layout and any(n % max(chunk, 1) for n, chunk in zip(sizes, layout["chunks"], strict=False)):
        return {}  # the shards are not multiples of the chunks
    return layout


def _properties(source: Source, options: Mapping[str, Any], target: Format) -> dict[str, Any]:
    """Return the source's attributes, dimension names and fill value in the form that the format requires."""
    properties = source.properties
    if "attributes" not in properties:
        return {}
    own, dtype = dtypes.from_numpy(source.dtype), dtypes.from_numpy(options.get("dtype") or source.dtype)
    if "attributes" not in options and sign_depends_on_type(properties["attributes"], own.numpy, dtype.numpy):
        raise EncodingError(
            f"by the attribute {UNSIGNED} of the source, numbers of {dtype.name} would stand for other values than those of "
            f"{own.name}; pass the decoded array as the source, or attributes without it"
        )
    try:
        fill = fill_values.as_fill(dtype, properties.get("fill_value"))
    except MetadataError:  # the values are cast, and the fill value does not fit the new data type
        fill = None
    names = options.get("dimension_names", properties.get("dimension_names"))
    # An explicit fill value has the meaning that the target's format defines.
    fill_is_missing = target.has_undefined_fill if "fill_value" in options else source.fill_is_missing
    described = XarrayProperties(dtype, properties["attributes"], names, fill, fill_is_missing)
    converted = convert_properties(described, len(source.shape), target)
    result: dict[str, Any] = {"attributes": converted.attributes}
    if converted.dimension_names is not None:
        result["dimension_names"] = converted.dimension_names
    is_undefined = target.has_undefined_fill and converted.attributes.get(DIMENSIONS) is not None
    if converted.fill_value is not None or is_undefined:
        result["fill_value"] = converted.fill_value
    return result
