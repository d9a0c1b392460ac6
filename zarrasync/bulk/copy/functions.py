"""Copying arrays and groups to another store, format or layout."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, Literal

from zarrasync import config as settings
from zarrasync._concurrency import clock
from zarrasync._concurrency.retry import RetryCounts
from zarrasync.bulk.copy.request import CopyRequest
from zarrasync.bulk.jobs.claimed_work import begin_plan
from zarrasync.bulk.jobs.plan import AsyncJobPlan
from zarrasync.bulk.jobs.plan_place import PlanPlace, job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import CopyReport
from zarrasync.display.progress import ProgressLike, ignore_progress, report_progress
from zarrasync.metadata.convert import LayoutChanges
from zarrasync.metadata.create import ChunksLike
from zarrasync.nodes.access import SourceLike
from zarrasync.nodes.functions import CodecsLike
from zarrasync.nodes.node import run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import StoreLike


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
    workers, values = Workers(executor), settings.resolve(config)
    begin, retries, report = clock.monotonic(), RetryCounts(), CopyReport()
    request = CopyRequest(
        source, dest, "", dest_path, zarr_format, LayoutChanges(chunks, shards, compressors), overwrite, all_files,
        source_options, dest_options, values,
    )  # fmt: skip
    work = await request.work(report, resume=resume)
    total = sum(array.nbytes for array in work.arrays.values())
    name = f"copy {job_name(work.source.store, work.source.path)}"
    with (
        closing(workers),
        retries,
        report_progress(progress, total, name, report=report) as callback,
    ):
        run = partial(work.at_once, report, callback or ignore_progress, resume=resume, verify=verify, workers=workers)
        try:
            async with work.store.in_use():
                await run_on_store(run, work.source.store, work.store)
        finally:
            report.retries, report.seconds = retries.retries, clock.monotonic() - begin
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
    request = CopyRequest(
        source, dest, source_path, dest_path, zarr_format, LayoutChanges(chunks, shards, compressors), overwrite,
        all_files, source_options, dest_options, values,
    )  # fmt: skip
    work = await request.work(CopyReport(), tasks=tasks)
    place = PlanPlace.of(plan, work.dest, dest_options, values)
    return await begin_plan(work, place)
