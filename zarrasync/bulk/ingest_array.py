"""Writing values into one array block by block, with a record of the file that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync._util.advice import OVERWRITE_BY_MODE, in_terms_of
from zarrasync.bulk.blocks import write_blocks
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.new_arrays import creation_options
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.source_records import check_record, record_file, unfinished
from zarrasync.bulk.sources import Source, source_of
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
from zarrasync.transfer.unaligned import Unaligned

_NUMERIC = "biufcmM"
"""Kinds of data types whose value ranges ``numpy.can_cast`` compares."""
_COMPARED = ("chunks", "shards", "dtype")
"""Parameters of ``create_array`` that must match an existing array."""
_CHECKED = ("filters", "serializer", "compressors", "fill_value", "order", "attributes", "dimension_names")
"""Parameters of ``create_array`` that must be valid, but do not change an existing array."""


async def ingest_array(
    source: Any,
    store: StoreLike,
    file: SourceFile | None,
    *,
    path: str,
    mode: Mode,
    options: dict[str, Any],
    region: tuple[slice, ...] | None = None,
    unaligned: Unaligned | None = None,
    verify: bool = False,
    concurrency: int = 0,
    threads: bool = True,
    progress: ProgressLike = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> IngestReport:
    """Write values into an array; see ``ingest``.

    Args:
        source: The values.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        file: The file with the values, which is recorded next to the array; ``None`` for other values.
        path: The path of the array in the store.
        mode: What to do with an existing array.
        options: Parameters of ``create_array``.
        region: The part of the array to write.
        unaligned: Whether the region may cut chunks.
        verify: Whether to read all values back and compare them.
        concurrency: The number of blocks at a time; 0 for a default.
        threads: Whether a function may be called on several threads at a time.
        progress: How to report progress.
        storage_options: Options of the store of a URL.
        config: Settings for this call.
    """
    begin = clock.monotonic()
    resolved = source_of(source, options)
    if not threads:
        resolved.take_turns()
    resolved.converts = resolved.has_dtype and options.get("dtype") is not None
    counting = CountingStore(resolve(store, storage_options, config))
    if counting.zarr_format is not None:
        options["zarr_format"] = counting.choose_format(options.get("zarr_format"))
    if mode == "w":
        refuse_self_overwrite(counting.inner, normalize_path(path), source)
    async with counting.in_use():
        target, is_new = await _open_target(resolved, counting, path, mode, region, config, options)
        replacing = None if is_new or mode == "a" else file
        if replacing is not None:
            await record_file(handle_of(target), unfinished(replacing))
        elif file is not None:
            await check_record(counting, target.path, file)
            # If a job ended before it recorded the file of a new array, the array has no values.
            if is_new or (counting.listable and not await stored_chunks(target)):
                await record_file(handle_of(target), file)
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
        if replacing is not None:
            await record_file(handle_of(target), replacing)
        closing = counting.reset()
    report.requests += opening.requests + closing.requests
    report.seconds = clock.monotonic() - begin
    return report


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
    check_matches(
        array.metadata,
        f"{array.name} in {array.store!r}",
        **{name: options[name] for name in _COMPARED if name in options},
    )
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
