"""What can be ingested, in one form."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.bulk import hdf5
from zarrasync.errors import NodeNotFoundError, ShapeError
from zarrasync.formats import Format
from zarrasync.indexing.regions import Region
from zarrasync.nodes.access import as_async, handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open_array
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.stores import resolve

__all__ = ["Source", "opened", "pair_of", "source_of"]

_NAMES = ("dims", "dimensions")
"""What xarray and h5netcdf call the names of axes."""


@dataclass
class Source:
    """What is ingested.

    Attributes:
        shape: Its shape.
        dtype: Its data type.
        read: Makes the block of a region.
        pairs: Regions and blocks in the order in which they come, where they can not be chosen.
        asynchronous: Whether these wait for an event loop.
        instant: Whether making a block is but a view of memory.
        chunks: The shape of what it reads best.
        layout: The shapes of its chunks and shards as a creating call takes them, where it has such.
        described: Names of axes, attributes, and the fill value, where there is one.
        masks: Whether the fill value means missing, as it does in formats that can leave it undefined.
        typed: Whether it has that data type by itself, and not because somebody says so.
        converts: Whether it is asked for as another data type.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[Region], Any] | None = None
    pairs: Iterable[tuple[Region, Any]] | AsyncIterator[tuple[Region, Any]] | None = None
    asynchronous: bool = False
    instant: bool = False
    chunks: tuple[int, ...] | None = None
    layout: dict[str, Any] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)
    masks: bool = False
    typed: bool = True
    converts: bool = False

    async def get(self, region: Region) -> Any:
        """A block, on an event loop."""
        assert self.read is not None
        if self.asynchronous:
            return await self.read(region)
        if self.instant:
            return self.read(region)
        found = await run_in_worker(partial(self._get_here, region))
        return await found if inspect.isawaitable(found) else found

    async def _get_here(self, region: Region) -> Any:
        assert self.read is not None
        return self.read(region)

    def get_now(self, region: Region) -> Any:
        """A block, on a thread."""
        assert self.read is not None
        found = self.read(region)
        return bridge.run(_awaited(found), blocking=False) if inspect.isawaitable(found) else found


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


async def opened(url: str | Path) -> AsyncArray:
    """The array at a path or URL."""
    opening = open_array(store := resolve(url))
    try:
        return bridge.run(opening, blocking=store.blocking) if driven() else await opening
    except NodeNotFoundError as error:
        raise TypeError(f"{str(url)!r} is no .npy file, and no array: {error}") from error


def source_of(source: Any, options: Mapping[str, Any]) -> Source:
    """What users give, in one form.

    Raises:
        TypeError: If it is nothing that can be ingested.
    """
    if isinstance(source, str | Path):
        source = np.load(source, mmap_mode="r")
    inner = as_async(source)
    if isinstance(inner, AsyncArray):
        found = Source(
            inner.shape, inner.metadata.dtype, lambda region: inner.view[(*region, ...)].read(), asynchronous=True
        )
        regular = inner.metadata.edges is None
        _tell(found, inner, handle_of(inner).format, (inner.chunks, inner.shards) if regular else None)
        found.chunks = inner.metadata.write_chunks
        return found
    if isinstance(inner, AsyncSelection):
        return Source(inner.shape, inner.dtype, lambda region: inner[(*region, ...)].read(), asynchronous=True)
    if hasattr(source, "shape") and hasattr(source, "dtype") and hasattr(source, "__getitem__"):
        return _array_like(source)
    missing = [name for name in ("shape", "dtype") if options.get(name) is None]
    if not (callable(source) or hasattr(source, "__iter__") or hasattr(source, "__aiter__")) or isinstance(
        source, bytes
    ):
        raise TypeError(f"{type(source).__name__} can not be ingested: give an array, a function or pairs of blocks")
    if missing:
        raise TypeError(f"ingesting {type(source).__name__} needs {' and '.join(missing)}")
    shape = options["shape"]
    shape = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if callable(source):
        return Source(shape, options["dtype"], source, asynchronous=inspect.iscoroutinefunction(source), typed=False)
    return Source(shape, options["dtype"], pairs=source, asynchronous=hasattr(source, "__aiter__"), typed=False)


def _array_like(source: Any) -> Source:
    """An array of another library."""
    data = getattr(source, "variable", source)  # of a DataArray
    if any(math.isnan(n) for n in data.shape):  # NaN, says dask
        raise ShapeError(f"the source has an unknown size: {data.shape}; compute_chunk_sizes() finds it out")
    found = Source(
        tuple(int(n) for n in data.shape),
        data.dtype,
        lambda region: np.asanyarray(data[region]),  # a mask is kept: what it hides is missing
        instant=isinstance(data, np.ndarray),
    )
    if hasattr(source, "store_path"):
        _of_zarr_python(found, source)
        return found
    names = next((own for own in (getattr(source, word, None) for word in _NAMES) if isinstance(own, tuple)), None)
    if names is not None and hasattr(source, "attrs"):
        found.described = {"dimension_names": tuple(map(str, names)), "attributes": dict(source.attrs)}
    elif type(source).__module__.partition(".")[0] == "h5py" and hasattr(
        source, "dims"
    ):  # not of a view of another type
        found.described = {"dimension_names": hdf5.names_of(source), "attributes": hdf5.attributes_of(source)}
    chunks = getattr(data, "chunks", None)
    if chunks and len(chunks) == len(found.shape):  # dask's are sizes per axis
        found.chunks = tuple(max(1, *own) if isinstance(own, tuple) else own for own in chunks)
    return found


def _of_zarr_python(found: Source, array: Any) -> None:
    try:
        layout = (array.chunks, getattr(array, "shards", None))
        found.chunks = layout[1] or layout[0]
    except NotImplementedError:  # they differ in size
        layout = None
        found.chunks = tuple(map(max, array.read_chunk_sizes))
    _tell(found, array, formats.by_name(array.metadata.zarr_format), layout)


def _tell(found: Source, array: Any, format_: Format, layout: tuple[Any, Any] | None) -> None:
    """Say of a source what its array in Zarr says of itself, and the shapes of its chunks and shards if they are regular."""
    metadata = array.metadata
    names = getattr(metadata, "dimension_names", None)
    found.described = {"dimension_names": names, "attributes": dict(metadata.attributes)}
    if array.fill_value is not None:
        found.described["fill_value"] = array.fill_value
    found.masks = format_.has_undefined_fill
    if layout is not None:
        found.layout = dict(zip(("chunks", "shards"), layout, strict=True))


def pair_of(item: Any) -> tuple[Region, Any]:
    """What an iterable gives, if it is a region and its block, which is copied: it may be used for the next one.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(item, tuple | list) or len(item) != 2 or item[1] is None:
        raise TypeError(f"an iterable gives pairs of a region and its block, found {type(item).__name__}: {item!r:.80}")
    region, block = item
    return region, block.copy() if isinstance(block, np.ndarray) else block
