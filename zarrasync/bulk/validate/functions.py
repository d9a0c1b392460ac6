"""Validation of stored hierarchies: documents, names, unused keys and chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.digests import Manifest, compare_manifest
from zarrasync.bulk.jobs.plan_location import job_name
from zarrasync.bulk.reports import Finding, Report
from zarrasync.bulk.validate import hierarchy
from zarrasync.bulk.validate.conventions import check_conventions, check_coordinates, check_lengths
from zarrasync.bulk.validate.hierarchy import Validation
from zarrasync.display.progress import ProgressLike, ignore_progress, part_of, report_progress, skip_of
from zarrasync.errors import MetadataError, NodeNotFoundError, UnsupportedOperation, ZarrError
from zarrasync.formats import CANDIDATES, Format
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import chunks_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.find import add_reason, find
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import ReadOnlyStore, Request, StoreLike, ZipStore, resolve
from zarrasync.stores.values import KeyIndex
from zarrasync.stores.wrappers import ListedStore
from zarrasync.transfer.threads import Progress


async def validate(
    store: StoreLike,
    *,
    path: str = "",
    data: bool = False,
    manifest: Manifest | None = None,
    repair: bool = False,
    progress: ProgressLike = False,
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> Report:
    """Check an array, or a group and all nodes below it, for problems.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the node in the store.
        data: Decode all stored chunks, and report missing ones.
        manifest: The manifest that ``manifest`` computed for the same path. Files that are missing, not part of it, or
            different are errors.
        repair: Remove temporary files of local stores whose writer does not run any more. Nothing else is changed.
        progress: ``True`` to show a progress bar of decoded chunks, a function that is called with the number of bytes
            since its last call, or a ``Monitor``.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.

    Returns:
        A report of all problems with their locations.

    Raises:
        NodeNotFoundError: If neither a node nor a manifest exists at the path.
        StoreError: If the store failed.

    Example:
        >>> store = {}
        >>> _ = await za.create_array(store, path="t2m", shape=(4, 4), dtype="f4")
        >>> report = await za.validate(store)
        >>> report.ok
        True
        >>> print(report)
        1 array, 1 group: no problems found
    """
    values = replace(settings.resolve(config), dtype_fallback="allow", allow_pickle=True)
    resolved = resolve(store, storage_options, values)
    zarr_format = resolved.choose_format(zarr_format)
    format_ = formats.by_name(values.zarr_format if zarr_format is None else zarr_format)
    candidates = CANDIDATES if zarr_format is None else (format_,)
    handle = NodeHandle(ReadOnlyStore(resolved), normalize_path(path), format_, values)
    report = Report()
    if repair and (directories := resolved.directories) is not None:
        removed = await compute(partial(directories.remove_unfinished, f"{handle.path}/" if handle.path else ""))
        message = "a temporary file of a writer that does not run any more; it was removed"
        report.findings.extend(Finding("note", name, "", message) for name in removed)
    if isinstance(resolved, ZipStore):
        deviations = await run_on_store(partial(compute, resolved.deviations), resolved)
        report.findings.extend(Finding(severity, "/", "", message) for message, severity in deviations)
    allow_pickle = settings.resolve(config).allow_pickle  # reading documents is safe, decoding pickled chunks is not
    if manifest is not None:
        await compare_manifest(handle.store, handle.path, manifest, report, values)
    try:
        await run_on_store(partial(_validate, handle, candidates, report, data, allow_pickle, progress), handle.store)
    except NodeNotFoundError:
        if manifest is None:  # otherwise the missing document is reported
            raise
    report.findings.sort(key=lambda finding: (finding.key, finding.location))
    return report


async def _validate(
    handle: NodeHandle,
    candidates: Sequence[Format],
    report: Report,
    data: bool,
    allow_pickle: bool,
    progress: ProgressLike,
) -> None:
    try:
        top = await find(handle, candidates)
    except NodeNotFoundError as error:
        await add_reason(error, handle)
        raise
    except MetadataError as error:
        Validation(handle, report).add_error(error, handle.path)
        return
    validation = Validation(replace(handle, format=top.format), report, {handle.path: top})
    keys: list[str] | None = None
    try:
        keys = sorted(await validation.root.list_keys())
    except UnsupportedOperation:
        validation.add("note", handle.path or "/", "nodes below were not checked, because the store cannot list keys")
    else:
        validation.root = replace(validation.root, store=ListedStore(validation.root.store, KeyIndex(keys)))
        await hierarchy.find_nodes(validation)
        validation.is_complete = True
    arrays = {
        path: AsyncArray(validation.root.at(path), node.metadata)
        for path, node in validation.nodes.items()
        if data and isinstance(node.metadata, ArrayMetadata)
    }
    total = sum(array.nbytes for array in arrays.values())
    with report_progress(progress if data else False, total, f"validate {job_name(handle.store, handle.path)}") as job:
        for path in validation.nodes:
            hierarchy.check_parent(validation, path)
            await hierarchy.check_node(validation, path)
            if path in arrays:
                await _check_chunks(validation, arrays[path], job or ignore_progress, allow_pickle=allow_pickle)
    consolidated = await hierarchy.check_documents(validation)
    if keys is not None:
        await hierarchy.check_keys(validation, keys)
        check_coordinates(validation, keys)
    check_lengths(validation)
    check_conventions(validation)
    if consolidated is not None:
        await hierarchy.check_consolidated(validation, consolidated)


# ------------------------------------------------------------------ stored values


async def _check_chunks(validation: Validation, array: AsyncArray, progress: Progress, *, allow_pickle: bool) -> None:
    """Decode all stored values of an array, and report the progress in bytes of decoded values.

    Errors, keys outside the grid, absent values, and values without a checksum are reported.
    """
    chunks, metadata = chunks_of(array), array.metadata
    grid = metadata.grid
    if getattr(metadata.inner_codecs.array_bytes, "runs_code", False) and not allow_pickle:
        message = (
            "the chunks were not checked: they are pickles, and reading a pickle can run arbitrary code; set "
            "config.allow_pickle to check them"
        )
        validation.add("note", chunks.prefix or array.name, message)
        return
    try:
        chunks.check_chunk_size()
    except MetadataError as error:
        validation.add("error", chunks.prefix or array.name, str(error))
        return
    stored = unprotected = 0
    rest = array.nbytes

    async def decode(key: str, coords: tuple[int, ...]) -> None:
        nonlocal stored, unprotected
        try:
            (value,) = await chunks.store.fetch([Request(key, limit=chunks.limit)])
            if value is not None:
                stored += 1
                unprotected += not metadata.codecs.has_checksum(value.data)
                metadata.chain_of(grid.chunk_shape(coords), chunks.config.max_chunk_bytes).decode(value.data)
        except Exception as error:  # any failure is a finding, and the other chunks are still checked
            text = str(error) if isinstance(error, ZarrError) else f"{type(error).__name__}: {error}"
            validation.add("error", chunks.full_key(key), text)

    try:
        keys = sorted(await chunks.store.list_prefix(""))
    except UnsupportedOperation:
        keys = [chunks.key(coords) for coords in product(*map(range, grid.shape))]
    with part_of(progress, array.name, array.nbytes) as part:

        async def check(key: str) -> None:
            nonlocal rest
            coords = metadata.keys.decode(key, metadata.ndim)
            if coords is not None and coords in grid:
                await decode(key, coords)
            elif coords is not None:
                validation.add("warning", chunks.full_key(key), f"the chunk is outside the grid of shape {grid.shape}")
            nbytes = min(metadata.chain.nbytes, rest)
            rest -= nbytes
            part(nbytes)

        await for_each(check, keys, 1 if chunks.store.blocking else chunks.concurrency)
        skip_of(part)(rest)  # absent values
    validation.report.chunks += stored
    if unprotected:
        message = (
            f"{unprotected:,} of {stored:,} stored values have no checksum, so that damage may read as other values"
        )
        validation.add("note", chunks.prefix or array.name, message)
    if stored < grid.size:
        message = f"{grid.size - stored:,} of {grid.size:,} stored values are absent and read as the fill value"
        validation.add("note", chunks.prefix or array.name, message)
