"""Bulk ingestion: blocks of a source into an array, side by side, within the memory budget, again where it was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync.bulk.blocks import write_blocks
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.sources import Source, opened, source_of
from zarrasync.display.progress import IngestReport
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, ShapeError
from zarrasync.formats import Format
from zarrasync.metadata.conventions import DIMENSIONS, Described, reworded
from zarrasync.metadata.create import check_options, check_same, plan_array
from zarrasync.model import dtypes, fill_values
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import create_array
from zarrasync.nodes.open_nodes import ConfigLike, Mode, open_array_at, open_or_create_array_at, resolve_node
from zarrasync.stores import CountingStore, StoreLike, resolve
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import Unaligned, check_unaligned

__all__ = ["creation_of", "ingest"]

_NUMBERS = "biufcmM"
"""Kinds of types of which NumPy says what fits into what."""
_SAME = ("chunks", "shards", "dtype")
"""Parameters of which an array that is there has to be."""
_PLANNED = ("filters", "serializer", "compressors", "fill_value", "order", "attributes", "dimension_names")
"""Parameters that have to make sense, though what is there stays as it is."""


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
    """Write all of a source into an array, block by block; a run that was interrupted is gone on with.

    Blocks are made of whole chunks (shards where there are such), several are read, encoded and stored at a time, and
    what is in flight stays within ``config.memory_budget``. A chunk is stored whole or not at all, so that what is
    there counts as done: with ``mode="a"`` another run writes only what is missing. That is wrong where something else
    has stored a part of a chunk: an assignment, or blocks and regions which cut chunks in a run with other ones.
    ``mode="r+"`` writes all again then, and ``verify`` finds such chunks. Of blocks that hold nothing but the fill value
    nothing is stored, so that another run makes them again.

    Args:
        source: What to write: anything with ``shape``, ``dtype`` and indexing (a NumPy, h5py or dask array, an array of
            zarrasync or zarr-python, xarray's variables; what blocks of dask share is computed for each of them, which
            ``integrations.dask.store`` does once); the path of an ``.npy`` file, or the path or URL of an array; a function that makes the block
            of a region, given as a tuple of slices, and is called on several threads at a time; or an iterable of pairs of
            such a region and its block, which may use the memory of a NumPy array again for the next one. Functions
            and iterables may be asynchronous; they need ``shape`` and ``dtype`` among the options.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        mode: ``"a"`` goes on with what is there, or creates; ``"w"`` replaces, ``"w-"`` creates only, ``"r+"`` writes
            into an array that is there, whatever it holds.
        region: Where in the array to write, as a tuple of slices of the source's shape; all of it if none is given.
        unaligned: What to do where the region cuts chunks, which somebody else may be writing, too: ``"safe"`` allows
            it where the store can compare what it replaces, ``"error"`` never, ``"allow"`` always. The settings' if
            not given.
        verify: Read everything again at the end, and compare. Values that the array's data type changes are an error,
            too, unless the source has a type and another one is among the options.
        concurrency: Blocks at a time; as many as suit the store if 0.
        progress: Show a progress bar, or call this with the bytes done since the last call.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        **options: For creating, as for ``create_array``; shape, data type, names of axes and attributes are the
            source's if they are not given, and so are the chunks and shards of one in Zarr.

    Returns:
        What was done.

    Raises:
        ValueError: If ``mode``, ``unaligned`` or ``concurrency`` are nothing that there is.
        ShapeError: If the source does not fit the array or the region, or the region cuts chunks that may be shared.
        NodeNotFoundError: If there is no array for ``"r+"`` or a region.
        NodeExistsError: If there is a node and the mode is ``"w-"``.
        ChecksumError: If ``verify`` finds a difference.
        WriteConflictError: If others kept changing a chunk.
    """
    begin = clock.monotonic()
    if unaligned is not None:
        check_unaligned(unaligned)
    if not isinstance(concurrency, int | np.integer) or concurrency < 0:
        raise ValueError(f"concurrency is the number of blocks at a time, or 0, found {concurrency!r}")
    if isinstance(source, str | Path) and not str(source).endswith(".npy"):
        source = await opened(source)
    given = source_of(source, options)
    given.converts = given.typed and options.get("dtype") is not None
    counting = CountingStore(resolve(store, storage_options, config))
    if mode == "w":
        refuse_self_overwrite(counting.inner, normalize_path(path), source)
    target, made = await _target(given, counting, path, mode, region, config, options)
    opening = counting.reset()
    report = await write_blocks(
        given,
        target,
        region,
        unaligned or target.config.unaligned,
        resume=mode == "a" and not made,
        fresh=mode in ("a", "w"),
        verify=verify,
        concurrency=concurrency,
        progress=progress,
    )
    report.requests += opening.requests
    report.seconds = clock.monotonic() - begin
    return report


async def _target(
    source: Source,
    store: CountingStore,
    path: str,
    mode: Mode,
    region: tuple[slice, ...] | None,
    config: ConfigLike,
    options: dict[str, Any],
) -> tuple[AsyncArray, bool]:
    """The array to write to, and whether it was made, so that nothing that is there comes from an earlier run."""
    if mode not in ("a", "w", "w-", "r+"):
        raise ValueError(f"mode is 'a', 'w', 'w-' or 'r+' for writing, found {mode!r}")

    everything = (slice(None),) * len(source.shape)

    def planned() -> dict[str, Any]:
        if region is not None and region not in (everything, [*everything]):
            raise NodeNotFoundError(
                f"a region is written into an array that is there, and stays: create {node.name} in {store.inner!r} first"
            )
        return creation_of(source, options, config)

    node, _ = resolve_node(store, path, options.get("zarr_format"), None, config)
    if mode in ("w", "w-"):
        return await create_array(store, path=path, overwrite=mode == "w", config=config, **planned()), True
    try:
        if mode == "r+":
            found, made = await open_array_at(node, formats.CANDIDATES), False
        else:  # of one that was erased chunks may be left
            found, made = await open_or_create_array_at(node, formats.CANDIDATES, planned, erase_leftovers=True)
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
    if not made:
        _check_fits(source, found, options)
    return found, made


def creation_of(source: Source, options: Mapping[str, Any], config: ConfigLike = None) -> dict[str, Any]:
    """What a new array for a source is created with.

    Raises:
        ShapeError: If the options name another shape than the source's.
    """
    given = {name: value for name, value in options.items() if name != "dtype" or value is not None}
    wanted = options.get("zarr_format")
    written = formats.by_name(settings.resolve(config).zarr_format if wanted is None else wanted)
    told = {**_described(source, options, written), **_laid_out(source, options, written)}
    planned = {"dtype": source.dtype, **told, **given}
    if planned.get("shape") not in (None, source.shape, [*source.shape], *source.shape[:1]):
        raise ShapeError(f"the source has shape {source.shape}, not {options['shape']}", found=source.shape)
    return {**planned, "shape": source.shape}


def _check_fits(source: Source, found: AsyncArray, options: Mapping[str, Any]) -> None:
    """Complain about an array that is there, but none for the source."""
    _check_options(found, options)
    if options.get("dtype") is not None:  # whoever names it wants values as that
        return
    own = dtypes.from_numpy(source.dtype).numpy
    numbers = own.kind in _NUMBERS and found.dtype.kind in _NUMBERS
    if numbers and not np.can_cast(own, found.dtype, "same_kind"):
        raise NodeTypeError(
            f"values of type {source.dtype} do not fit {found.name}, which has type {found.dtype}; convert them first",
            path=found.path,
            found=str(source.dtype),
            wanted=str(found.dtype),
        )


def _check_options(found: AsyncArray, options: Mapping[str, Any]) -> None:
    """Complain about options that would have made another array; attributes and codecs stay those that are there."""
    check_options(set(options) - {"zarr_format"})
    own, wanted = handle_of(found).format, options.get("zarr_format")
    if wanted is not None and not formats.by_name(wanted).is_same(own):
        raise NodeTypeError(
            f"{found.name} is there in Zarr format {own.zarr_format!r}, not {wanted!r}",
            path=found.path,
            found=str(own.zarr_format),
            wanted=str(wanted),
        )
    check_same(found.metadata, found.name, **{name: options[name] for name in _SAME if name in options})
    parameters = {name: value for name, value in options.items() if name in _PLANNED and value is not None}
    if not parameters or (found.dtype.kind == "O" and "filters" not in parameters):  # objects need one to be planned
        return
    planned = plan_array(own, shape=found.shape, dtype=found.metadata.dtype, **parameters)
    if "fill_value" in parameters and not _alike(planned.spec.fill_value, found.metadata.spec.fill_value):
        raise MetadataError(
            f"{found.name} is there with the fill value {found.fill_value!r}, not {options['fill_value']!r}"
        )


def _alike(one: Any, other: Any) -> bool:
    """Whether two fill values are the same; NaN is."""
    return repr(one) == repr(other)


def _laid_out(source: Source, options: Mapping[str, Any], written: Format) -> dict[str, Any]:
    """The chunks and shards of an array in Zarr, as far as the format that is written has such, and none are given."""
    kept = {} if "chunks" in options else dict(source.layout)
    if not written.has_shards:
        kept.pop("shards", None)
    shards = options.get("shards")
    sizes = [shards] if isinstance(shards, int) else shards if isinstance(shards, tuple | list) else ()
    if kept and any(n % max(chunk, 1) for n, chunk in zip(sizes, kept["chunks"], strict=False)):
        return {}  # they are no parts of such shards
    return kept


def _described(source: Source, options: Mapping[str, Any], written: Format) -> dict[str, Any]:
    """What a source says of itself, in the words of the format that is written."""
    told = source.described
    if "attributes" not in told:
        return {}
    dtype = dtypes.from_numpy(options.get("dtype") or source.dtype)
    try:
        fill = fill_values.as_fill(dtype, told.get("fill_value"))
    except MetadataError:  # one of another type, which the values had before
        fill = None
    names = options.get("dimension_names", told.get("dimension_names"))
    chosen = "fill_value" in options  # then it means what it is
    own = Described(dtype, told["attributes"], names, fill, written.has_undefined_fill if chosen else source.masks)
    found = reworded(own, len(source.shape), written)
    described: dict[str, Any] = {"attributes": found.attributes}
    if found.names is not None:
        described["dimension_names"] = found.names
    if found.fill is not None or (written.has_undefined_fill and found.attributes.get(DIMENSIONS) is not None):
        described["fill_value"] = found.fill
    return described
