"""dask arrays out of Zarr, and into it: blocks follow chunks, and nothing needs a lock.

    x = from_zarr("s3://bucket/x.zarr", storage_options={...})
    to_zarr(x.mean(axis=0), "mean.zarr")

Arrays and stores travel to workers as their configuration and metadata, and open their connections there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import dask.array as da
import dask.base
import numpy as np

from zarrasync import config as settings
from zarrasync import formats, sync
from zarrasync.bulk.blocks import for_job
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.errors import ShapeError, StoreError
from zarrasync.metadata.create import check_options, plan_array
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.chunk_keys import normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import Store, StoreLike, resolve
from zarrasync.transfer.unaligned import Unaligned, check_unaligned, is_allowed, is_safe_for_jobs

__all__ = ["OfThisProcess", "check_reach", "cluster", "from_zarr", "store", "to_zarr"]

_BLOCK = 64 << 20
"""Bytes of a block, about, where it is made of several chunks."""


def from_zarr(
    store: StoreLike | sync.Array,
    *,
    path: str = "",
    chunks: Any = "auto",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: Any = None,
    name: str | None = None,
    inline_array: bool = True,
) -> Any:
    """A dask array of a stored one.

    Args:
        store: An array that is open, or a store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        chunks: The shape of blocks, as dask takes it. ``"auto"``: whole shards or chunks, several of small ones.
        zarr_format: The format, if known; found out otherwise.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        name: The name in dask's graph; by default one that tells this array from others.
        inline_array: Whether each task holds the array, which is small, or all refer to one.

    Returns:
        A ``dask.array.Array``.
    """
    if isinstance(store, sync.Array):
        array = store
    else:
        array = sync.open_array(
            store, path=path, zarr_format=zarr_format, storage_options=storage_options, config=config
        )
    wanted = _blocks(array) if isinstance(chunks, str) and chunks == "auto" else chunks
    # An array of no elements says what blocks are, so that dask need not read one.
    meta = np.empty((0,) * array.ndim, object if array.dtype.kind == "T" else array.dtype)
    if array.dtype.kind == "T":
        meta = meta.astype(array.dtype)
    make: Any = da.from_array  # it has no types
    return make(array, chunks=wanted, name=name, lock=False, asarray=False, inline_array=inline_array, meta=meta)


def _blocks(array: sync.Array) -> tuple[Any, ...]:
    """The shape of blocks: whole stored values, doubled along the last axes while they are small."""
    if array.metadata.edges is not None:
        return array.write_chunk_sizes
    steps = list(array.shards or array.chunks)
    itemsize = max(array.dtype.itemsize, 1)
    for axis in reversed(range(array.ndim)):
        while steps[axis] < array.shape[axis] and 2 * math.prod(steps) * itemsize <= _BLOCK:
            steps[axis] *= 2
    return tuple(min(step, max(n, 1)) for step, n in zip(steps, array.shape, strict=True))


def store(
    source: Any,
    target: sync.Array | AsyncArray,
    *,
    region: tuple[slice, ...] | None = None,
    unaligned: Unaligned | None = None,
    compute: bool = True,
    return_stored: bool = False,
    **options: Any,
) -> Any:
    """Write a dask array into a stored one, block by block, without a lock.

    Args:
        source: A dask array.
        target: An array that is open for writing.
        region: Where to; all of the array if not given.
        unaligned: What to do where blocks share chunks: ``"safe"`` allows it where the store can compare what it
            replaces (which is right, and costs reading and writing such chunks once for each block), ``"error"`` never,
            ``"allow"`` always: then updates are lost where blocks of different processes share chunks. The settings'
            if not given.
        compute: Whether to do it now, or return something to compute.
        return_stored: Whether to return a dask array of what is stored then.
        **options: For ``dask.array.store``.

    Raises:
        ShapeError: If the source does not fit, or blocks share chunks; says how to rechunk.
        StoreError: If other processes would write into copies of a store that is in this one's memory.
        TypeError: If the source is no dask array, or the target no array.
    """
    _check_source(source)
    if isinstance(target, AsyncArray):
        target = sync.Array(target)
    if not isinstance(target, sync.Array):
        raise TypeError(
            f"the target is an array that is open for writing, found {target!r}; to_zarr takes stores and paths"
        )
    unaligned = unaligned or target.async_.config.unaligned
    check_unaligned(unaligned)
    box: Any = tuple(slice(0, n) for n in target.shape) if region is None else region
    if not isinstance(box, tuple | list) or len(box) != target.ndim or not all(isinstance(part, slice) for part in box):
        raise ShapeError(f"a region is a tuple of {target.ndim} slices, found {box!r}", wanted=target.shape)
    spans = [part.indices(n) for part, n in zip(box, target.shape, strict=True)]
    wanted = tuple(max(0, b - a) for a, b, _ in spans)
    if source.shape != wanted or any(step != 1 for *_, step in spans):
        raise ShapeError(f"the source has shape {source.shape}, the region {wanted}", found=source.shape, wanted=wanted)
    shared = _shared_axes(source.chunks, target.metadata, tuple(a for a, *_ in spans))
    if shared:
        _judge(shared, source, target.metadata, unaligned, safe=is_safe_for_jobs(target.store))
    place = tuple(slice(a, b) for a, b, _ in spans)
    target = sync.Array(for_job(target.async_, unaligned))
    goal: Any = target if target.store.portable else OfThisProcess(target)
    options.update(lock=False, regions=place, compute=compute, return_stored=return_stored)
    try:
        return da.store(source, goal, **options)
    except Exception as error:
        if isinstance(goal, OfThisProcess) and goal.sent:  # schedulers say that something could not be serialized
            raise goal.refusal from error
        raise


def _check_source(source: Any) -> None:
    """Complain about what is no dask array, or one of unknown sizes."""
    if not isinstance(source, da.Array):
        raise TypeError(
            f"the source is a dask array, found {type(source).__name__}; dask.array.asarray makes one of it"
        )
    if any(math.isnan(n) for n in source.shape):
        raise ShapeError("the sizes of the source's blocks are not known; source.compute_chunk_sizes() finds them out")


class OfThisProcess:
    """An array in a store that other processes would have a copy of: what they wrote there would be lost."""

    def __init__(self, array: sync.Array) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self.sent = False

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[key] = value

    def __dask_tokenize__(self) -> Any:
        return self.array.__dask_tokenize__()

    def __reduce__(self) -> Any:
        self.sent = True
        raise self.refusal

    @property
    def refusal(self) -> StoreError:
        """Why it is not sent to other processes."""
        return _out_of_reach(self.array.store)


def _out_of_reach(store: Store) -> StoreError:
    return StoreError(
        f"{store!r} belongs to this process: what others write into it is lost; store into files or an "
        "object store, or compute with threads"
    )


def check_reach(store: Store) -> None:
    """Complain about a store in this process's memory where dask is set to compute in others, before anything is replaced.

    Raises:
        StoreError: If what they wrote there would be lost.
    """
    if not store.portable and _computes_elsewhere():
        raise _out_of_reach(store)


def _computes_elsewhere() -> bool:
    """Whether what is written to is serialized, which a cluster does also where its workers are threads of this process."""
    get_scheduler: Any = dask.base.get_scheduler  # it has no types
    return cluster() is not None or getattr(get_scheduler(), "__module__", "") == "dask.multiprocessing"


def cluster() -> Any:
    """The client of the cluster that dask is set to compute on, if it is."""
    get_scheduler: Any = dask.base.get_scheduler  # it has no types
    client: Any = getattr(get_scheduler(), "__self__", None)
    return client if hasattr(client, "gather") and not client.asynchronous else None


def _judge(shared: list[int], source: Any, target: ArrayMetadata, unaligned: Unaligned, *, safe: bool) -> None:
    """Complain about blocks that share chunks, if that is not allowed."""
    if is_allowed(unaligned, safe=safe):
        return
    raise ShapeError(
        f"blocks of the source share chunks along the axes {shared}; rechunk it to multiples of "
        f"{target.write_chunks}: source.rechunk({_advised(source, target)}); "
        "or pass unaligned='allow' if nobody writes at the same time",
        found=source.chunksize,
        wanted=target.write_chunks,
    )


def _shared_axes(chunks: tuple[tuple[int, ...], ...], target: ArrayMetadata, start: tuple[int, ...]) -> list[int]:
    """The axes along which two blocks, or a block and what lies outside, share a stored value."""
    found = []
    for number, (sizes, axis, begin) in enumerate(zip(chunks, target.grid.axes, start, strict=True)):
        edges, at = [begin], begin
        for size in sizes:
            at += size
            edges.append(at)
        inside = (edge for edge in edges if 0 < edge < axis.extent)
        if any(edge != axis.start(axis.find(edge)) for edge in inside):
            found.append(number)
    return found


def _advised(source: Any, target: ArrayMetadata) -> tuple[int, ...]:
    """Blocks as large as the source's, rounded up to whole stored values of the target."""
    units = target.write_chunks
    return tuple(-(-size // unit) * unit for size, unit in zip(source.chunksize, units, strict=True))


def to_zarr(
    source: Any,
    target: StoreLike,
    *,
    path: str = "",
    overwrite: bool = False,
    region: tuple[slice, ...] | None = None,
    unaligned: Unaligned | None = None,
    storage_options: Mapping[str, Any] | None = None,
    compute: bool = True,
    return_stored: bool = False,
    config: Any = None,
    **options: Any,
) -> Any:
    """Write a dask array into a new stored one, whose chunks are the source's blocks unless told otherwise.

    Args:
        source: A dask array.
        target: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        overwrite: Replace what is there.
        region: Write into this part of an array that is there.
        unaligned: As for ``store``.
        storage_options: Options for the filesystem of a URL.
        compute: Whether to do it now, or return something to compute. The array is made in any case.
        return_stored: Whether to return a dask array of what is stored then.
        config: Settings.
        **options: For creating, as for ``zarrasync.create_array``.

    Raises:
        NodeExistsError: If there is a node and ``overwrite`` is not set.
        ShapeError: If blocks share chunks; says how to rechunk.
        StoreError: If other processes would write into copies of a store that is in this one's memory.
        TypeError: If the source is no dask array, or options are not for creating one.
    """
    _check_source(source)
    check_options(set(options) - {"zarr_format"})
    if region is not None and options:
        raise TypeError(f"region= writes into an array that is there; {', '.join(sorted(options))} are for a new one")
    if "shape" in options:
        raise TypeError("the shape of a new array is the source's")
    unaligned = unaligned or settings.resolve(config).unaligned
    check_unaligned(unaligned)
    where: dict[str, Any] = {"path": path, "storage_options": storage_options, "config": config}
    if region is not None:
        array = sync.open_array(target, mode="r+", **where)
    else:
        if not options.get("shards"):
            options.setdefault("chunks", tuple(max(1, *own) for own in source.chunks))
        chosen = formats.by_name(options.get("zarr_format") or settings.resolve(config).zarr_format)
        parameters = {name: value for name, value in options.items() if name != "zarr_format"}
        parameters.setdefault("dtype", source.dtype)
        planned = plan_array(chosen, shape=source.shape, **parameters)
        shared = _shared_axes(source.chunks, planned, (0,) * source.ndim)
        if shared:  # before anything is replaced
            _judge(shared, source, planned, unaligned, safe=is_safe_for_jobs(resolve(target, storage_options)))
        if compute:
            check_reach(resolve(target, storage_options))
        if overwrite:
            refuse_self_overwrite(resolve(target, storage_options), normalize_path(path), source)
        options.setdefault("dtype", source.dtype)
        array = sync.create_array(target, shape=source.shape, overwrite=overwrite, **where, **options)
    return store(source, array, region=region, unaligned=unaligned, compute=compute, return_stored=return_stored)
