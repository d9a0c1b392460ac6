"""dask arrays from Zarr and to Zarr. Blocks are aligned to chunks, so writes need no lock.

    x = from_zarr("s3://bucket/x.zarr", storage_options={...})
    to_zarr(x.mean(axis=0), "mean.zarr")

Workers receive the configuration and metadata of arrays and stores, and open their own connections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from zarrasync import config as settings
from zarrasync import formats, sync
from zarrasync._concurrency import bridge
from zarrasync.bulk.block_writer import for_job
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.errors import ShapeError
from zarrasync.indexing.regions import resolve_corners
from zarrasync.integrations.dask_targets import check_reach, seceded
from zarrasync.integrations.dask_write import DaskWrite, check_blocks, write_later, write_together
from zarrasync.metadata.create import check_options, plan_array
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import StoreLike, resolve
from zarrasync.transfer.unaligned import Unaligned, check_unaligned, is_safe_for_jobs

__all__ = ["from_zarr", "store", "to_zarr"]

_BLOCK_BYTES = 64 << 20
"""Approximate size in bytes of a block that consists of several chunks."""


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
    """Return a lazy dask array of a stored array.

    Args:
        store: An open array, or a store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        chunks: The shape of blocks, as for dask. ``"auto"`` for whole shards or chunks, or several small ones.
        zarr_format: The format; ``None`` to detect it.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        name: The name in dask's graph; by default a hash of the array.
        inline_array: Whether each task contains the array, which is small when pickled, or all refer to one.

    Returns:
        A ``dask.array.Array``.
    """
    if isinstance(store, sync.Array):
        array = store
    else:
        array = sync.open_array(
            store, path=path, zarr_format=zarr_format, storage_options=storage_options, config=config
        )
    blocks = _automatic_blocks(array) if isinstance(chunks, str) and chunks == "auto" else chunks
    # An empty array as a sample of blocks, so that dask need not read one.
    meta = np.empty((0,) * array.ndim, object if array.dtype.kind == "T" else array.dtype)
    if array.dtype.kind == "T":
        meta = meta.astype(array.dtype)
    make: Any = da.from_array  # untyped
    return make(array, chunks=blocks, name=name, lock=False, asarray=False, inline_array=inline_array, meta=meta)


def _automatic_blocks(array: sync.Array) -> tuple[Any, ...]:
    """Return the shape of blocks: whole stored values, doubled along the last axes while they are small."""
    if array.metadata.edges is not None:
        return tuple(sizes or (0,) for sizes in array.write_chunk_sizes)
    sizes = list(array.shards or array.chunks)
    itemsize = max(array.dtype.itemsize, 1)
    for axis in reversed(range(array.ndim)):
        while sizes[axis] < array.shape[axis] and 2 * math.prod(sizes) * itemsize <= _BLOCK_BYTES:
            sizes[axis] *= 2
    return tuple(min(size, max(n, 1)) for size, n in zip(sizes, array.shape, strict=True))


# ------------------------------------------------------------------ into existing arrays


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
    """Write a dask array into a stored array, block by block, without a lock.

    Args:
        source: A dask array.
        target: A stored array, opened for writing.
        region: The part of the array to write; all of it by default.
        unaligned: Whether blocks may share chunks. ``"safe"`` allows it if the store supports conditional writes; each
            block then reads and writes the chunks that it shares. ``"error"`` never allows it. ``"allow"`` always does,
            and loses updates if blocks of different processes share chunks. Default: ``config.unaligned``.
        compute: Whether to write now. Otherwise a lazy object is returned, which writes when it is computed.
        return_stored: Whether to return a dask array of the stored values, which are written now.
        **options: Options of the computation, such as ``num_workers``.

    Returns:
        A report of blocks, bytes and requests, also from ``compute()`` of the lazy object.

    Raises:
        ShapeError: If the source does not fit, or blocks share chunks; the message suggests how to rechunk.
        StoreError: If other processes would write into copies of a store in the memory of this process.
        TypeError: If the source is not a dask array, or the target not an array.
    """
    _check_source(source)
    if isinstance(target, AsyncArray):
        target = sync.Array(target)
    if not isinstance(target, sync.Array):
        raise TypeError(
            f"the target must be an array opened for writing, found {target!r}; to_zarr accepts stores and paths"
        )
    unaligned = unaligned or target.async_.config.unaligned
    check_unaligned(unaligned)
    start, stop = resolve_corners(source.shape, target.shape, region)
    check_blocks(source, target.metadata, start, unaligned, safe=is_safe_for_jobs(target.store))
    write = DaskWrite(source, for_job(target.async_, unaligned), start)
    if not (compute or return_stored):
        return delayed(itemgetter(0))(write_later([write], verify=False))
    with seceded(waits=True):
        (report,) = bridge.run(write_together([write], verify=False, options=options), blocking=False)
    return from_zarr(target)[tuple(map(slice, start, stop))].rechunk(source.chunks) if return_stored else report


def _check_source(source: Any) -> None:
    """Check that a source is a dask array with known sizes."""
    if not isinstance(source, da.Array):
        raise TypeError(
            f"the source must be a dask array, found {type(source).__name__}; dask.array.asarray converts it"
        )
    if any(math.isnan(n) for n in source.shape):
        raise ShapeError("the sizes of the source's blocks are unknown; call source.compute_chunk_sizes()")


# ------------------------------------------------------------------ into new arrays


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
    """Write a dask array into a new stored array, whose chunks are by default the source's blocks.

    Args:
        source: A dask array.
        target: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        overwrite: Replace an existing node.
        region: Write into this part of an existing array.
        unaligned: As for ``store``.
        storage_options: Options for the filesystem of a URL.
        compute: Whether to write now. Otherwise a lazy object is returned, which writes when it is computed. The array
            is created in both cases.
        return_stored: As for ``store``.
        config: Settings.
        **options: Parameters of ``zarrasync.create_array``.

    Returns:
        As ``store``.

    Raises:
        NodeExistsError: If a node exists and ``overwrite`` is not set.
        ShapeError: If blocks share chunks; the message suggests how to rechunk.
        StoreError: If other processes would write into copies of a store in the memory of this process.
        TypeError: If the source is not a dask array, or an option is not a parameter of ``create_array``.
    """
    _check_source(source)
    check_options(set(options) - {"zarr_format"})
    if region is not None and options:
        raise TypeError(
            f"region= writes into an existing array, but {', '.join(sorted(options))} applies to new arrays"
        )
    if "shape" in options:
        raise TypeError("shape= cannot be passed: a new array has the shape of the source")
    unaligned = unaligned or settings.resolve(config).unaligned
    check_unaligned(unaligned)
    node: dict[str, Any] = {"path": path, "storage_options": storage_options, "config": config}
    if region is not None:
        array = sync.open_array(target, mode="r+", **node)
    else:
        options.setdefault("dtype", source.dtype)
        blocks = tuple(max(1, *sizes) for sizes in source.chunks)
        if not options.get("shards") or _are_inner_chunks(blocks, options["shards"]):
            options.setdefault("chunks", blocks)
        resolved = resolve(target, storage_options)
        if resolved.zarr_format is not None:
            options["zarr_format"] = resolved.choose_format(options.get("zarr_format"))
        _check_creation(source, resolved, options, unaligned, config, computes=compute)
        if overwrite:
            refuse_self_overwrite(resolved, normalize_path(path), source)
        array = sync.create_array(target, shape=source.shape, overwrite=overwrite, **node, **options)
    written = store(source, array, region=region, unaligned=unaligned, compute=compute, return_stored=return_stored)
    if compute and array.store.close_after_use:
        array.close()
    return written


def _are_inner_chunks(blocks: tuple[int, ...], shards: Any) -> bool:
    """Return whether blocks can be the inner chunks of shards: several fill a shard."""
    sizes = tuple(shards) if isinstance(shards, tuple | list) else (shards,) * len(blocks)
    are_sizes = len(sizes) == len(blocks) and all(isinstance(size, int) for size in sizes)
    return are_sizes and sizes != blocks and not any(size % n for size, n in zip(sizes, blocks, strict=True))


def _check_creation(
    source: Any, store: Any, options: Mapping[str, Any], unaligned: Unaligned, config: Any, *, computes: bool
) -> None:
    """Check that a new array can be created and written, before an existing one is replaced."""
    format_ = formats.by_name(options.get("zarr_format") or settings.resolve(config).zarr_format)
    parameters = {name: value for name, value in options.items() if name != "zarr_format"}
    metadata = plan_array(format_, shape=source.shape, **parameters)
    check_blocks(source, metadata, (0,) * source.ndim, unaligned, safe=is_safe_for_jobs(store))
    if computes:
        check_reach(store)
