"""``ingest``: writing a source into an array block by block, with a record of the file that it comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.advice import OVERWRITE_BY_MODE, in_terms_of
from zarrasync.bulk.block_writer import write_blocks
from zarrasync.bulk.files.ingestion import run_ingestion
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.records.journal import FILE, change_sources, read_sources
from zarrasync.bulk.files.sources.engines import is_zarr
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.identify import has_magic, local_file, means_files, source_name
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.sources import Source, creation_options, open_source, source_of
from zarrasync.display.progress import IngestReport, ProgressLike
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata.create import check_matches, check_options, plan_array
from zarrasync.model import dtypes
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import create_array
from zarrasync.nodes.open_nodes import ConfigLike, Mode, open_array_at, open_or_create_array_at, resolve_node
from zarrasync.stores import CountingStore, StoreLike, resolve
from zarrasync.transfer.unaligned import Unaligned, check_unaligned

_NUMERIC = "biufcmM"
"""Kinds of data types whose value ranges ``numpy.can_cast`` compares."""
_COMPARED = ("chunks", "shards", "dtype")
"""Parameters of ``create_array`` that must match an existing array."""
_CHECKED = ("filters", "serializer", "compressors", "fill_value", "order", "attributes", "dimension_names")
"""Parameters of ``create_array`` that must be valid, but do not change an existing array."""
_UNFINISHED = "unfinished"
"""The stamp of a file in the record of an array that has some of its values. No file has this stamp."""
_FILES = frozenset(("concat", "labels", "engine"))
"""Arguments that only files have."""
_GROUPED = re.compile(r"\bsource=FileOptions\(([^()]*)\)")
"""Arguments of ``ingest_files`` in messages, whose fields are arguments of ``ingest``."""


async def ingest(
    source: Any,
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "a",
    region: Any = None,
    unaligned: Unaligned | None = None,
    verify: bool = False,
    concurrency: int = 0,
    threads: bool = True,
    progress: ProgressLike = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **options: Any,
) -> IngestReport:
    """Write a whole source into an array, or many files into a dataset. After an interruption, the same call resumes.

    An array is written block by block. Blocks consist of whole chunks (or shards). Several blocks are read, encoded and stored at a time, within
    ``config.memory_budget``.

    With ``mode="a"``, chunks that are already stored are skipped, because a chunk is stored completely or not at all. Do
    not resume over chunks that were written in part: by an assignment, or by a run with other regions that cut chunks.
    ``verify`` detects such chunks, and ``mode="r+"`` writes everything again. Chunks that contain only the fill value are
    not stored, so a resumed run writes them again.

    For a path or a pattern of files other than ``.npy``, or with ``concat``, this is ``ingest_files``. The fields of
    ``FileOptions`` and ``Layout`` are arguments then.

    Args:
        source: The values to write, one of:

            - an object with ``shape``, ``dtype`` and indexing: an array of NumPy, h5py, dask, zarrasync or zarr-python,
              or a variable of xarray. Dask recomputes shared intermediate results for each block; see
              ``integrations.dask.store`` to compute them once.
            - the path of an ``.npy`` file, or the path or URL of a Zarr array.
            - a function that returns the values of a region (a tuple of slices). Several threads call it at a time,
              unless ``threads`` is false.
            - an iterable of pairs of a region and its values, for all of the array or region. It may reuse the memory of
              the values.

            Functions and iterables may be asynchronous. They require the options ``shape`` and ``dtype``.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the array in the store.
        mode: ``"a"``: resume or create; ``"w"``: replace; ``"w-"``: create, and fail if a node exists; ``"r+"``: write
            all blocks into an existing array.
        region: The part of the array to write, as a tuple of slices. Default: the whole array.
        unaligned: Whether the region may cut chunks, which another process may be writing: ``"safe"``: if the store
            supports conditional writes; ``"error"``: never; ``"allow"``: always. Default: ``config.unaligned``.
        verify: Read all values back and compare them.
        concurrency: The number of blocks at a time; 0 for a default that suits the store.
        threads: Whether a function may be called on several threads at a time. Libraries such as netCDF4 and h5py do not
            allow that.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
            its last call, or a ``Monitor``.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.
        **options: Parameters of ``create_array``. The defaults for the shape, data type, dimension names and attributes
            come from the source. A Zarr array is also the default for chunks and shards.

    Returns:
        A report of the written blocks, with bytes and requests.

    Raises:
        ValueError: If ``mode``, ``unaligned`` or ``concurrency`` is invalid.
        ShapeError: If the source does not fit the array or the region, an iterable left out chunks, or the region cuts
            chunks and ``unaligned`` does not allow that.
        NodeNotFoundError: If the array does not exist and the mode is ``"r+"`` or a region is given.
        NodeExistsError: If a node exists and the mode is ``"w-"``.
        EncodingError: If the array's data type does not represent a value, other than by rounding floating-point numbers,
            or numbers of it stand for other values, by the attribute ``_Unsigned``. Blocks without such values are stored.
        NodeTypeError: If a group exists at the path, or the array's data type cannot represent the source's values.
        ChecksumError: If ``verify`` is set and the values read back differ.
        WriteConflictError: If other writers kept changing a chunk.
        StoreError: If the store failed.

    Example:
        >>> store = {}
        >>> report = await za.ingest(np.arange(100), store, chunks=(10,))
        >>> report.nbytes
        800
        >>> array = await za.open_array(store)
        >>> await array[95:]
        array([95, 96, 97, 98, 99])
    """
    if unaligned is not None:
        check_unaligned(unaligned)
    if not _FILES.isdisjoint(options) or await _means_files(source, options.get("source_options")):
        with in_terms_of((_GROUPED, r"\1")):
            parameters = parameters_of(
                files=source, store=store, path=path, mode=mode, region=region, verify=verify,
                progress=progress, storage_options=storage_options, config=config, **options,
            )  # fmt: skip
            return await run_ingestion(parameters)
    if isinstance(region, str | Mapping):
        raise TypeError(f"the region of an array must be a tuple of slices, found {region!r}; only files have labels")
    if not isinstance(concurrency, int | np.integer) or concurrency < 0:
        raise ValueError(f"concurrency must be a number of blocks, or 0 for the default; found {concurrency!r}")
    if isinstance(source, str | Path):
        source = source_name(source)
    file = _identify(source) if isinstance(source, str) and region is None else None
    if isinstance(source, str) and not source.endswith(".npy"):
        source = await open_source(source)
    begin = clock.monotonic()
    resolved = source_of(source, options)
    if not threads:
        resolved.take_turns()
    counting = CountingStore(resolve(store, storage_options, config))
    if counting.zarr_format is not None:
        options["zarr_format"] = counting.choose_format(options.get("zarr_format"))
    if mode == "w":
        refuse_self_overwrite(counting.inner, normalize_path(path), source)
    async with counting.in_use():
        target, is_new = await _open_target(resolved, counting, path, mode, region, config, options)
        is_replaced = file is not None and not is_new and mode != "a"
        if is_replaced:
            await _record(target, file, is_unfinished=True)
        elif file is not None:
            await _check_record(target, file)
            # If a job ended before it recorded the file of a new array, the array has no values.
            if is_new or (counting.listable and not await stored_chunks(target)):
                await _record(target, file)
        opening = counting.reset()
        report = await write_blocks(
            resolved,
            target,
            region,
            unaligned or target.config.unaligned,
            resume=mode == "a" and not is_new,
            is_new=mode in ("a", "w"),
            verify=verify,
            concurrency=concurrency,
            progress=progress,
        )
        if is_replaced:
            await _record(target, file)
        closing = counting.reset()
    report.requests += opening.requests + closing.requests
    report.seconds = clock.monotonic() - begin
    return report


async def _means_files(source: Any, source_options: Mapping[str, Any] | None) -> bool:
    """Return whether a source means files. For a URL that may be a pattern, that needs a request."""
    check = partial(means_files, source, source_options or {})
    is_quick = not isinstance(source, str | Path) or not has_magic(source_name(source))
    return check() if is_quick else await run_in_new_thread(check)


async def _open_target(
    source: Source,
    store: CountingStore,
    path: str,
    mode: Mode,
    region: tuple[slice, ...] | None,
    config: ConfigLike,
    options: dict[str, Any],
) -> tuple[AsyncArray, bool]:
    """Open or create the array to write to. Also return whether it is new, so that no chunk is from an earlier run."""
    if mode not in ("a", "w", "w-", "r+"):
        raise ValueError(f"mode must be 'a', 'w', 'w-' or 'r+', found {mode!r}")

    everything = (slice(None),) * len(source.shape)

    def creation() -> dict[str, Any]:
        if region is not None and region not in (everything, [*everything]):
            raise NodeNotFoundError(
                f"cannot write a region: no array exists at {node.name} in {store!r}; create it first"
            )
        return creation_options(source, options, config)

    node, _ = resolve_node(store, path, options.get("zarr_format"), None, config)
    try:
        with in_terms_of(OVERWRITE_BY_MODE):
            if mode in ("w", "w-"):
                return await create_array(store, path=path, overwrite=mode == "w", config=config, **creation()), True
            if mode == "r+":
                array, is_new = await open_array_at(node, formats.CANDIDATES), False
            else:  # chunks of an array may remain if erasing it was interrupted
                array, is_new = await open_or_create_array_at(node, formats.CANDIDATES, creation, erase_leftovers=True)
    except NodeTypeError as error:
        if error.found != "group":
            raise
        raise NodeTypeError(
            f"{node.name} in {store!r} is a group, not an array; pass the path of an array below it, or mode='w' "
            "to replace the group",
            path=node.path,
            found="group",
            wanted="array",
        ) from error
    if not is_new:
        _check_dtype(source, array, options)
    return array, is_new


# ------------------------------------------------------------------ existing arrays


def _check_dtype(source: Source, array: AsyncArray, options: Mapping[str, Any]) -> None:
    """Check that an existing array matches the source and the options.

    Raises:
        NodeTypeError: If the array has a different format, or a data type that cannot represent the source's values.
        MetadataError: If the array has a different fill value.
        ShapeError: If the array has different chunks or shards.
    """
    _check_options(array, options)
    if options.get("dtype") is not None:  # the conversion is intended
        return
    dtype = dtypes.from_numpy(source.dtype).numpy
    are_numeric = dtype.kind in _NUMERIC and array.dtype.kind in _NUMERIC
    if are_numeric and not np.can_cast(dtype, array.dtype, "same_kind"):
        raise NodeTypeError(
            f"cannot write {source.dtype} values to {array.name}, which has data type {array.dtype}; convert the values "
            "first, or pass dtype to convert them",
            path=array.path,
            found=str(source.dtype),
            wanted=str(array.dtype),
        )


def _check_options(array: AsyncArray, options: Mapping[str, Any]) -> None:
    """Check that the options match an existing array. Its attributes and codecs are not changed."""
    check_options(set(options) - {"zarr_format"})
    array_format, zarr_format = handle_of(array).format, options.get("zarr_format")
    if zarr_format is not None and not formats.by_name(zarr_format).is_same(array_format):
        raise NodeTypeError(
            f"{array.name} exists in Zarr format {array_format.zarr_format!r}, not {zarr_format!r}; omit zarr_format, or "
            "pass mode='w' to replace the array",
            path=array.path,
            found=str(array_format.zarr_format),
            wanted=str(zarr_format),
        )
    compared = {name: options[name] for name in _COMPARED if name in options}
    check_matches(array.metadata, f"{array.name} in {array.store!r}", **compared)
    parameters = {name: value for name, value in options.items() if name in _CHECKED and value is not None}
    if not parameters or (array.dtype.kind == "O" and "filters" not in parameters):  # objects require a filter
        return
    planned = plan_array(array_format, shape=array.shape, dtype=array.metadata.dtype, **parameters)
    same_fill = repr(planned.spec.fill_value) == repr(array.metadata.spec.fill_value)  # by repr, as NaN != NaN
    if "fill_value" in parameters and not same_fill:
        raise MetadataError(
            f"{array.name} exists with the fill value {array.fill_value!r}, not {options['fill_value']!r}; omit "
            "fill_value, or pass mode='w' to replace the array"
        )


# ------------------------------------------------------------------ records of files


def _identify(url: str) -> SourceFile:
    """Return the identity of a file. Zarr hierarchies and URLs are known by their location alone.

    Raises:
        FileNotFoundError: If a local file does not exist.
    """
    path = source_name(url)
    if "://" in path:
        return SourceFile(path)
    if is_zarr(path) or os.path.isdir(path):
        path, real = os.path.abspath(path), os.path.realpath(path)
        return SourceFile(path, identity="" if real == path else real)
    return local_file(path)


async def _record(array: AsyncArray, file: SourceFile | None, *, is_unfinished: bool = False) -> None:
    """Record the file of an array, some of whose values the array may contain, or that values of it replace other ones."""
    if file is not None:
        record = replace(file, stamp=_UNFINISHED) if is_unfinished else file
        await change_sources(handle_of(array), lambda present: {FILE: record.recorded.to_json()})


async def _check_record(array: AsyncArray, file: SourceFile) -> None:
    """Check that an array was not ingested from another file. An array without a record may contain anything.

    Raises:
        NodeExistsError: If it was ingested from another file, the file has changed, or replacing values was interrupted.
    """
    (value,) = await read_sources(array.store, [array.path])
    try:
        record, own = SourceFile(*value[FILE]), file.recorded
    except (KeyError, TypeError):  # no record, or of another version
        return
    is_unchanged = record.size is None or (record.size, record.stamp) == (own.size, own.stamp)  # else by its location
    if own.url == record.url and is_unchanged:
        return
    difference = "which has changed since" if record.url == own.url else f"not {file.name}"
    difference = (
        f"only some values of {record.short_name}, because an ingestion with mode='r+' was interrupted; repeat it with "
        "mode='r+', or pass mode='w' to replace all values"
        if record.stamp == _UNFINISHED
        else f"the values of {record.short_name}, {difference}; pass mode='w' to replace them, or write to another path"
    )
    raise handle_of(array).exists_error(f"/{array.path} in {array.store!r} contains {difference}")
