"""Copying arrays and groups to another store, format or layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync.bulk.copy.nodes import Nodes, check_free, check_names, consolidated_groups, plan_copies, plan_files
from zarrasync.bulk.copy.planned import CopyWork
from zarrasync.bulk.jobs.boxes import Output, make_tasks
from zarrasync.bulk.jobs.claimed_work import OneCall, begin_plan
from zarrasync.bulk.jobs.plan import AsyncJobPlan, name_of
from zarrasync.bulk.jobs.plan_location import NodeLocation, PlanLocation, job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.overwrite_guard import overlap
from zarrasync.bulk.reports import CopyReport, measured
from zarrasync.display.progress import ProgressLike
from zarrasync.errors import NodeExistsError, UnsupportedOperation
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.convert import LayoutChanges
from zarrasync.metadata.create import ChunksLike, check_axis_count
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import SourceLike, all_members, handle_of, resolve_source, store_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import bind_format
from zarrasync.nodes.documents import render_texts
from zarrasync.nodes.functions import CodecsLike, open
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import StoreLike, resolve


async def copy(
    source: SourceLike,
    dest: StoreLike,
    *,
    dest_path: str = "",
    zarr_format: int | str | None = None,
    chunks: ChunksLike | Mapping[str, Any] | Literal["keep", "auto"] = "keep",
    shards: ChunksLike | Mapping[str, Any] | Literal["keep", "auto"] | None = "keep",
    compressors: CodecsLike | Mapping[str, CodecsLike] = "keep",
    overwrite: bool = False,
    resume: bool = False,
    verify: bool = False,
    all_files: bool = False,
    executor: Any = None,
    progress: ProgressLike = False,
    source_options: Mapping[str, Any] | None = None,
    dest_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> CopyReport:
    """Copy an array, or a group with all nodes below it, from any format to any other.

    Chunks that remain valid in the new format and layout are copied unchanged. Other chunks are decoded and encoded
    again, within ``config.memory_budget``. Metadata that the new format cannot express is converted if possible
    (dimension names to xarray's attribute, filtered chunks to unfiltered ones), and the report lists such conversions.
    Images in OME-Zarr 0.4 become version 0.5 in format 3, and the reverse; the report names other versions, which are kept.
    Copies of groups with consolidated metadata also get consolidated metadata. Files that are not part of a Zarr node,
    such as Parquet tables, are copied only with ``all_files``; otherwise the report lists them.

    Readers find nothing or the complete copy, because its documents are stored last, except in stores without conditional
    writes. If the call is interrupted, repeat it with ``resume`` or ``overwrite``.

    Args:
        source: A store, path, URL, mapping, fsspec filesystem or mapper; or an array or group.
        dest: A store, path, URL, mapping, or fsspec filesystem or mapper.
        dest_path: The path of the copy.
        zarr_format: The format of the copy. Default: the format of the source.
        chunks: The shape of chunks in all arrays with the same number of axes. ``"keep"``: as in the source. A mapping
            contains sizes by dimension, shapes by array, or both: ``{"time": 24, "t2m": {"lat": 90}, "mask": (10, 10)}``.
            Dimensions and arrays that it does not contain are kept.
        shards: The shape of shards in all arrays with the same number of axes, or a mapping as for ``chunks``.
            ``"keep"``: as in the source; ``None``: no shards.
        compressors: The compressors of all arrays, or a mapping of arrays to compressors. ``"keep"``: as in the source.
        overwrite: Replace an existing node.
        resume: Resume an interrupted copy. Chunks that exist at the destination are kept.
        verify: Read all values back and compare them.
        all_files: Also copy files that are not part of any Zarr node.
        executor: Where large arrays are copied and compared: a number of processes, a ``concurrent.futures.Executor`` or another object
            with ``submit``, a client of dask.distributed, the module ``ray``, a ``FunctionExecutor`` of Lithops, or a
            function ``map(function, items)``. Default: threads of this process.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes copied since
            its last call, or a ``Monitor``.
        source_options: Options of the filesystem or object store of a source URL.
        dest_options: Options of the filesystem or object store of a destination URL.
        config: Settings for this call.

    Returns:
        A report of the copied nodes and values.

    Raises:
        NodeNotFoundError: If the source does not exist.
        NodeExistsError: If a node exists at the destination and neither ``overwrite`` nor ``resume`` is set, if
            ``resume`` is set and the node differs from the copy, or if source and destination contain each other.
        WriteConflictError: If another job writes the destination, or a plan for it is not finished.
        UnsupportedByFormat: If the format cannot express the source, such as Python objects in Zarr v3.
        ShapeError: If no array has as many axes as ``chunks`` or ``shards``, or a mapping contains names that do not exist.
        ValueError: If ``source_options`` are given for an array or group, which has its store already.
        MetadataError: If the compressors are invalid.
        ChecksumError: If ``verify`` is set and the values read back differ.
        UnsupportedOperation: If ``all_files`` is set and the source cannot list.
        StoreError: If a store failed, a process of the executor ended, or the executor runs in other processes and a store
            exists only in this one.

    Example:
        >>> source, dest = {}, {}
        >>> _ = await za.create_array(source, data=np.arange(4), chunks=(2,))
        >>> report = await za.copy(source, dest, chunks=(4,))
        >>> report.arrays
        1
        >>> await za.load(dest)
        array([0, 1, 2, 3])
    """
    if overwrite and resume:
        raise ValueError(
            "copy() takes overwrite or resume, not both: overwrite replaces an existing copy, resume completes it"
        )
    begin, values = clock.monotonic(), settings.resolve(config)
    with closing(Workers(executor)) as workers:
        work = await _work(
            source, dest, "", dest_path, zarr_format, LayoutChanges(chunks, shards, compressors), overwrite, all_files,
            source_options, dest_options, values, resume=resume, tasks=1,
        )  # fmt: skip
        report, total = work.new_result(), sum(array.nbytes for array in work.arrays.values())
        name = f"copy {job_name(work.source.store, work.source.path)}"
        with measured(report, progress, total, name, begin=begin) as advance:
            run = partial(work.at_once, OneCall(report, workers, resume), advance, verify=verify)
            async with work.store.in_use():
                await run_on_store(run, work.source.store, work.store)
    return report


async def plan_copy(
    source: Any,
    dest: Any,
    *,
    source_path: str = "",
    dest_path: str = "",
    zarr_format: int | str | None = None,
    chunks: ChunksLike | Mapping[str, Any] | Literal["keep", "auto"] = "keep",
    shards: ChunksLike | Mapping[str, Any] | Literal["keep", "auto"] | None = "keep",
    compressors: CodecsLike | Mapping[str, CodecsLike] = "keep",
    overwrite: bool = False,
    all_files: bool = False,
    plan: Any = None,
    tasks: int = 0,
    source_options: Mapping[str, Any] | None = None,
    dest_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncJobPlan:
    """Plan a copy whose tasks run anywhere; see ``copy`` and ``AsyncJobPlan``.

    Each task copies boxes of arrays. Readers see the copy when the plan is finished, as its documents are stored last.

    Args:
        source: As for ``copy``.
        dest: As for ``copy``.
        source_path: As for ``copy``.
        dest_path: As for ``copy``.
        zarr_format: As for ``copy``.
        chunks: As for ``copy``.
        shards: As for ``copy``.
        compressors: As for ``copy``.
        overwrite: Replace an existing node, which is erased now.
        all_files: As for ``copy``. These files are copied at the end.
        plan: The path or the URL of the document of the plan. Default: ``.ingest/plan.json`` in the destination.
        tasks: About how many tasks to make. Default: tasks of 256 MiB.
        source_options: As for ``copy``. They are not part of the document.
        dest_options: As for ``copy``, also for the URL of the document. They are not part of it.
        config: As for ``copy``. The settings are not part of the document.

    Returns:
        The plan.

    Raises:
        NodeNotFoundError: If the source does not exist.
        NodeExistsError: If a node exists at the destination, and ``overwrite`` is not set.
        WriteConflictError: If another job writes the destination, or another plan for it is not finished.
        FileExistsError: If ``plan`` is an existing file, and not a plan for the same destination.
        UnsupportedOperation: If ``plan`` is given, and source or destination are not paths or URLs; or if no plan can be
            made for the destination, such as an archive.
        StoreError: If a store failed. Nothing is kept then.

    Example:
        >>> source, dest = {}, {}
        >>> _ = await za.create_array(source, data=np.arange(4), chunks=(2,))
        >>> plan = await za.plan_copy(source, dest, chunks=(1,), tasks=2)
        >>> for task in plan.tasks:
        ...     report = await plan.run(task.number)
        >>> report = await plan.finish()
        >>> await za.load(dest)
        array([0, 1, 2, 3])
    """
    values = settings.resolve(config)
    work = await _work(
        source, dest, source_path, dest_path, zarr_format, LayoutChanges(chunks, shards, compressors), overwrite,
        all_files, source_options, dest_options, values, tasks=tasks,
    )  # fmt: skip
    work = replace(work, arrays={})  # which may change until the tasks run
    return await begin_plan(work, PlanLocation.of(plan, work.dest, dest_options, values))


async def _work(
    source: SourceLike,
    dest: StoreLike,
    source_path: str,
    dest_path: str,
    zarr_format: int | str | None,
    changes: LayoutChanges,
    overwrite: bool,
    all_files: bool,
    source_options: Mapping[str, Any] | None,
    dest_options: Mapping[str, Any] | None,
    config: settings.Config,
    *,
    resume: bool = False,
    tasks: int,
) -> CopyWork:
    """Return the work of a copy. Nothing is written."""
    notes, left_out = list[str](), list[str]()
    root, members = await _open_source(source, source_path, source_options, config, notes)
    store = resolve(dest, dest_options, config)
    zarr_format = store.choose_format(zarr_format)
    format_ = handle_of(root).format if zarr_format is None else formats.by_name(zarr_format)
    target = NodeHandle(store, normalize_path(dest_path), format_.for_unknown_store(), config)
    if overlap(root.store, root.path, store, target.path):
        raise NodeExistsError(
            f"cannot copy {root.name} in {root.store!r} to {target.name} in {store!r}: one contains the other",
            path=target.path,
        )
    target = await run_on_store(partial(bind_format, target, overwrite=overwrite), store)
    nodes, keys = await _list_source([("", root), *members], optional=not all_files)
    arrays = {path: node for path, node in nodes if isinstance(node, AsyncArray)}
    for name, shape in (("chunks", changes.chunks), ("shards", changes.shards)):
        check_axis_count(name, shape, (array.ndim for array in arrays.values()))
    check_names(changes, {path or array.basename: array.metadata for path, array in arrays.items()})
    files = plan_files(keys, handle_of(root), target)
    if not all_files:
        left_out, files = list(files), {}
    elif not (overwrite or resume):
        await check_free(target, list(files.values()))
    planned = plan_copies(nodes, target, changes, notes)
    outputs = [
        Output(path, array.metadata, copied, (1,) * array.ndim)
        for path, array in arrays.items()
        if isinstance(copied := planned[path], ArrayMetadata)
    ]
    boxes, sizes = make_tasks([outputs], tasks)
    return CopyWork(
        source=NodeLocation(nodes[0][1].store, root.path, name_of(source)),
        dest=NodeLocation(target.store, target.path, name_of(dest)),
        format=target.format,
        config=target.config,
        boxes=boxes,
        sizes=sizes,
        notes=tuple(notes),
        left_out=tuple(left_out),
        documents={path: render_texts(target.format, join(target.path, path), own) for path, own in planned.items()},
        files=files,
        consolidated=await consolidated_groups(nodes),
        overwrite=overwrite,
        arrays=arrays,
    )


async def _open_source(
    source: SourceLike, path: str, options: Mapping[str, Any] | None, values: settings.Config, notes: list[str]
) -> tuple[AsyncArray | AsyncGroup, Sequence[tuple[str, AsyncArray | AsyncGroup]]]:
    """Open the node to copy and all nodes below it.

    Consolidated metadata may be outdated, so it is used only if the store cannot list.
    """
    resolved = resolve_source(source, options, values)
    store = store_of(resolved)
    if store is not resolved:
        path = join(resolved.path, normalize_path(path))
    root = await open(store, path=path, config=values, use_consolidated=False)
    if not isinstance(root, AsyncGroup):
        return root, ()
    try:
        return root, await all_members(root)
    except UnsupportedOperation as error:
        root = await open(store, path=path, config=values)
        if not isinstance(root, AsyncGroup) or handle_of(root).consolidated is None:
            raise
        notes.append(f"{root.name}: {error}; only the nodes in the consolidated metadata were copied")
        return root, await all_members(root)


async def _list_source(nodes: Nodes, *, optional: bool) -> tuple[Nodes, list[str]]:
    """List all keys of the source. Its metadata has been read before, so that the listing contains all of its chunks.

    Args:
        nodes: The nodes to copy, starting with the root.
        optional: Return no keys if the store cannot list. Otherwise raise an error.

    Returns:
        The nodes, with a cached listing if it replaces listings of single nodes, and the keys.
    """
    (_, root), *_ = nodes
    try:
        listed = await run_on_store(handle_of(root).with_listing, root.store)
        keys = await run_on_store(listed.list_keys, root.store)
    except UnsupportedOperation:
        if not optional:
            raise
        return nodes, []
    handles = {path: replace(handle_of(node), store=listed.store) for path, node in nodes}
    return [(path, make_node(handles[path], node.metadata)) for path, node in nodes], keys
