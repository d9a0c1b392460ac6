"""Bulk ingestion: all of a source into an array, block by block, concurrently and within the memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync._util.short_tracebacks import short_tracebacks
from zarrasync.bulk.blocks import write_blocks
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.sources import Source, open_source, source_of
from zarrasync.display.progress import IngestReport
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, ShapeError
from zarrasync.formats import Format
from zarrasync.metadata.conventions import DIMENSIONS, XarrayProperties, convert_properties
from zarrasync.metadata.create import check_matches, check_options, plan_array
from zarrasync.model import dtypes, fill_values
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import create_array
from zarrasync.nodes.open_nodes import ConfigLike, Mode, open_array_at, open_or_create_array_at, resolve_node
from zarrasync.stores import CountingStore, StoreLike, resolve
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import Unaligned, check_unaligned

__all__ = ["creation_options", "ingest"]

_NUMERIC = "biufcmM"
"""Kinds of data types that NumPy can compare by what they can hold."""
_COMPARED = ("chunks", "shards", "dtype")
"""Parameters of ``create_array`` that must match an existing array."""
_CHECKED = ("filters", "serializer", "compressors", "fill_value", "order", "attributes", "dimension_names")
"""Parameters of ``create_array`` that must be valid, but do not change an existing array."""


@short_tracebacks
async def ingest(
    source: Any,
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "a",
    region: tuple[slice, ...] | None = None,
    unaligned: Unaligned | None = None,
    verify: bool = False,
    concurrency: int = 0,
    progress: bool | Progress = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **options: Any,
) -> IngestReport:
    """Write all of a source into an array, block by block. A repeated call resumes after interruption.

    Blocks consist of whole chunks (or shards). Several are read, encoded and stored at a time, and blocks in flight stay
    within ``config.memory_budget``. A chunk is stored completely or not at all, so stored chunks count as done: with
    ``mode="a"`` another run writes only the missing ones. That is wrong if something else has stored a part of a chunk:
    an assignment, or a run with other blocks or regions that cut chunks. ``mode="r+"`` writes everything again, and
    ``verify`` detects such chunks. Chunks with only the fill value are not stored, so another run repeats them.

    Args:
        source: Values to write: anything with ``shape``, ``dtype`` and indexing (a NumPy, h5py or dask array, an array of
            zarrasync or zarr-python, a variable of xarray; dask computes shared intermediate results once per block,
            ``integrations.dask.store`` only once); the path of an ``.npy`` file, or the path or URL of an array; a
            function that returns the values of a region, which is a tuple of slices, and is called on several threads
            at a time; or an iterable of pairs of such a region and its values, which may reuse the memory of an array.
            Functions and iterables may be asynchronous. They need ``shape`` and ``dtype`` among the options.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        mode: ``"a"`` resumes or creates; ``"w"`` replaces; ``"w-"`` only creates; ``"r+"`` writes into an existing array,
            whatever it contains.
        region: The part of the array to write, as a tuple of slices; all of it by default.
        unaligned: Whether the region may cut chunks, which another writer may be writing: ``"safe"`` allows it if the
            store supports conditional writes, ``"error"`` never, ``"allow"`` always. Default: ``config.unaligned``.
        verify: Read all values back and compare them. Values that the array's data type changes are an error, unless
            the source has a data type and another one is among the options.
        concurrency: Blocks at a time; 0 for a default that suits the store.
        progress: Show a progress bar, or call this with the bytes done since the last call.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        **options: Parameters of ``create_array``. By default shape, data type, names of axes and attributes are those
            of the source, and so are the chunks and shards of a Zarr array.

    Returns:
        A report of the blocks that were written.

    Raises:
        ValueError: If ``mode``, ``unaligned`` or ``concurrency`` are invalid.
        ShapeError: If the source does not fit the array or the region, or the region cuts chunks that may be shared.
        NodeNotFoundError: If there is no array for ``"r+"`` or a region.
        NodeExistsError: If a node exists and the mode is ``"w-"``.
        ChecksumError: If a value that was read back differs.
        WriteConflictError: If other writers kept changing a chunk.
    """
    begin = clock.monotonic()
    if unaligned is not None:
        check_unaligned(unaligned)
    if not isinstance(concurrency, int | np.integer) or concurrency < 0:
        raise ValueError(f"concurrency is the number of blocks at a time, or 0, found {concurrency!r}")
    if isinstance(source, str | Path) and not str(source).endswith(".npy"):
        source = await open_source(source)
    resolved = source_of(source, options)
    resolved.converts = resolved.has_dtype and options.get("dtype") is not None
    counting = CountingStore(resolve(store, storage_options, config))
    if mode == "w":
        refuse_self_overwrite(counting.inner, normalize_path(path), source)
    target, is_new = await _open_target(resolved, counting, path, mode, region, config, options)
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
    report.requests += opening.requests
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
    """Open or create the array to write to. Returns whether it was created, so that no chunk is from an earlier run."""
    if mode not in ("a", "w", "w-", "r+"):
        raise ValueError(f"mode is 'a', 'w', 'w-' or 'r+' for writing, found {mode!r}")

    everything = (slice(None),) * len(source.shape)

    def creation() -> dict[str, Any]:
        if region is not None and region not in (everything, [*everything]):
            raise NodeNotFoundError(
                f"a region is written into an array that is there, and stays: create {node.name} in {store.inner!r} first"
            )
        return creation_options(source, options, config)

    node, _ = resolve_node(store, path, options.get("zarr_format"), None, config)
    if mode in ("w", "w-"):
        return await create_array(store, path=path, overwrite=mode == "w", config=config, **creation()), True
    try:
        if mode == "r+":
            array, is_new = await open_array_at(node, formats.CANDIDATES), False
        else:  # chunks of an array may remain if erasing it was interrupted
            array, is_new = await open_or_create_array_at(node, formats.CANDIDATES, creation, erase_leftovers=True)
    except NodeTypeError as error:
        if error.found != "group":
            raise
        raise NodeTypeError(
            f"there is a group at {node.name} in {store.inner!r}; name a path below it for the array, or replace it with "
            "mode='w'",
            path=node.path,
            found="group",
            wanted="array",
        ) from error
    if not is_new:
        _check_dtype(source, array, options)
    return array, is_new


# ------------------------------------------------------------------ existing arrays


def _check_dtype(source: Source, array: AsyncArray, options: Mapping[str, Any]) -> None:
    """Check that an existing array suits the source and the options.

    Raises:
        NodeTypeError: If it has another format, or a data type that cannot hold the source's values.
        MetadataError: If it has another fill value.
        ShapeError: If it has other chunks or shards.
    """
    _check_options(array, options)
    if options.get("dtype") is not None:  # the conversion is on purpose
        return
    dtype = dtypes.from_numpy(source.dtype).numpy
    are_numeric = dtype.kind in _NUMERIC and array.dtype.kind in _NUMERIC
    if are_numeric and not np.can_cast(dtype, array.dtype, "same_kind"):
        raise NodeTypeError(
            f"values of type {source.dtype} do not fit {array.name}, which has type {array.dtype}; convert them first",
            path=array.path,
            found=str(source.dtype),
            wanted=str(array.dtype),
        )


def _check_options(array: AsyncArray, options: Mapping[str, Any]) -> None:
    """Check options that would have created another array. Attributes and codecs remain those of the array."""
    check_options(set(options) - {"zarr_format"})
    array_format, zarr_format = handle_of(array).format, options.get("zarr_format")
    if zarr_format is not None and not formats.by_name(zarr_format).is_same(array_format):
        raise NodeTypeError(
            f"{array.name} is there in Zarr format {array_format.zarr_format!r}, not {zarr_format!r}",
            path=array.path,
            found=str(array_format.zarr_format),
            wanted=str(zarr_format),
        )
    check_matches(array.metadata, array.name, **{name: options[name] for name in _COMPARED if name in options})
    parameters = {name: value for name, value in options.items() if name in _CHECKED and value is not None}
    if not parameters or (array.dtype.kind == "O" and "filters" not in parameters):  # objects require a filter
        return
    planned = plan_array(array_format, shape=array.shape, dtype=array.metadata.dtype, **parameters)
    same_fill = repr(planned.spec.fill_value) == repr(array.metadata.spec.fill_value)  # by repr, as NaN != NaN
    if "fill_value" in parameters and not same_fill:
        raise MetadataError(
            f"{array.name} is there with the fill value {array.fill_value!r}, not {options['fill_value']!r}"
        )


# ------------------------------------------------------------------ new arrays


def creation_options(source: Source, options: Mapping[str, Any], config: ConfigLike = None) -> dict[str, Any]:
    """Return the parameters of ``create_array`` for a new array.

    Raises:
        ShapeError: If the options contain another shape than the source's.
    """
    explicit = {name: value for name, value in options.items() if name != "dtype" or value is not None}
    zarr_format = options.get("zarr_format")
    target = formats.by_name(settings.resolve(config).zarr_format if zarr_format is None else zarr_format)
    implied = {"dtype": source.dtype, **_properties(source, options, target), **_layout(source, options, target)}
    parameters = {**implied, **explicit}
    if parameters.get("shape") not in (None, source.shape, [*source.shape], *source.shape[:1]):
        raise ShapeError(f"the source has shape {source.shape}, not {options['shape']}", found=source.shape)
    return {**parameters, "shape": source.shape}


def _layout(source: Source, options: Mapping[str, Any], target: Format) -> dict[str, Any]:
    """Return the source's chunks and shards, as far as the format supports them and the options allow them."""
    layout = {} if "chunks" in options else dict(source.layout)
    if not target.has_shards:
        layout.pop("shards", None)
    shards = options.get("shards")
    sizes = [shards] if isinstance(shards, int) else shards if isinstance(shards, tuple | list) else ()
    if layout and any(n % max(chunk, 1) for n, chunk in zip(sizes, layout["chunks"], strict=False)):
        return {}  # the shards are not multiples of the chunks
    return layout


def _properties(source: Source, options: Mapping[str, Any], target: Format) -> dict[str, Any]:
    """Return the source's attributes, dimension names and fill value as the format expresses them."""
    properties = source.properties
    if "attributes" not in properties:
        return {}
    dtype = dtypes.from_numpy(options.get("dtype") or source.dtype)
    try:
        fill = fill_values.as_fill(dtype, properties.get("fill_value"))
    except MetadataError:  # it belongs to the data type before a cast
        fill = None
    names = options.get("dimension_names", properties.get("dimension_names"))
    # An explicit fill value has the meaning that the format gives it.
    fill_is_missing = target.has_undefined_fill if "fill_value" in options else source.fill_is_missing
    described = XarrayProperties(dtype, properties["attributes"], names, fill, fill_is_missing)
    converted = convert_properties(described, len(source.shape), target)
    result: dict[str, Any] = {"attributes": converted.attributes}
    if converted.dimension_names is not None:
        result["dimension_names"] = converted.dimension_names
    if converted.fill_value is not None or (
        target.has_undefined_fill and converted.attributes.get(DIMENSIONS) is not None
    ):
        result["fill_value"] = converted.fill_value
    return result
