"""Pyramids: coarser levels of an array, with the metadata by which viewers find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any, Literal

from zarrasync import config as settings
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.drive import driven
from zarrasync.bulk.files.options import Layout
from zarrasync.bulk.jobs.claimed_work import OneCall, begin_plan
from zarrasync.bulk.jobs.plan import AsyncJobPlan, name_of
from zarrasync.bulk.jobs.plan_location import NodeLocation, PlanLocation, job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.pyramid.planned import PyramidWork
from zarrasync.bulk.pyramid.prepare import Convention, Pyramid, PyramidRequest, prepare
from zarrasync.bulk.pyramid.source import PyramidAxes
from zarrasync.bulk.reports import PyramidReport, measured
from zarrasync.display.progress import ProgressLike
from zarrasync.metadata.conventions.pyramids import Method
from zarrasync.metadata.convert import LayoutChanges
from zarrasync.nodes.functions import open
from zarrasync.nodes.node import run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import StoreLike, resolve


async def pyramid(
    store: StoreLike,
    *,
    path: str = "",
    dest: Any = None,
    dest_path: str = "",
    levels: int | Literal["auto"] = "auto",
    method: Method | Literal["auto"] = "auto",
    missing: Any = "auto",
    axes: Sequence[str] | PyramidAxes | None = None,
    convention: Convention = "auto",
    layout: Layout | None = None,
    overwrite: bool = False,
    executor: Any = None,
    progress: ProgressLike = False,
    storage_options: Mapping[str, Any] | None = None,
    dest_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> PyramidReport:
    """Compute coarser levels of an array, and describe them in OME-Zarr or zarr-conventions.

    Each level is computed from the one before it, block by block and within ``config.memory_budget``. Where an array has
    no stored values, its levels have none, and are not computed. After an interruption, the same call resumes: it keeps
    stored values, because a value is stored completely or not at all. The attributes that describe the levels are written
    last. If the values of the finest level have changed, pass ``overwrite=True``.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of an array, whose levels become members of its group, or of a group with a pyramid or with one
            array.
        dest: The store of another group for the pyramid, into which the finest level is copied as ``"0"``. Default: the
            group of the array.
        dest_path: The path of that group.
        levels: The number of levels, with the finest one. ``"auto"``: until no axis that becomes coarser has more than 256
            elements.
        method: ``"mean"``, ``"mode"`` (the most frequent value), ``"nearest"``, ``"max"`` or ``"min"`` of the elements that
            become one, computed from what stored numbers mean by CF. ``"auto"``: ``"mode"`` for label images and for flags,
            ``"nearest"`` for directions, and ``"mean"`` for others.
        missing: The stored number of missing elements, or several ones. They are left out like NaN. ``"auto"``: the
            numbers that CF attributes and the format specify, and those outside the valid range; ``None``: none.
        axes: The names of all axes, such as ``"czyx"``, if the array has none or others should be written; or a
            ``PyramidAxes`` with names, distances, units, and the factors from each level to the next.
        convention: ``"ome"``: OME-Zarr in the version of the group, or 0.5, or 0.4 in Zarr format 2. ``"ome-0.4"``,
            ``"ome-0.5"``, ``"ome-0.6"``: that version. ``"zarr-conventions"``: ``multiscales``, ``spatial`` and ``proj``.
            ``"auto"``: these for geographic grids, and OME-Zarr for others.
        layout: A ``Layout`` with ``chunks``, ``shards`` or ``compressors``. Default: as in the finest level. If that has no
            shards or ``chunks`` is set, shards are chosen by size; ``None``: no shards.
        overwrite: Replace existing levels, but not the finest one in its own group.
        executor: Where levels are computed: a number of processes, a ``concurrent.futures.Executor`` or another object
            with ``submit``, a client of dask.distributed, the module ``ray``, a ``FunctionExecutor`` of Lithops, or a
            function ``map(function, items)``. Default: threads of this process.
        progress: ``True`` to show a progress bar, or a function that is called with the number of bytes written since
            its last call.
        storage_options: Options of the filesystem or object store of a URL.
        dest_options: Options of the filesystem or object store of the URL ``dest``.
        config: Settings for this call.

    Returns:
        A report of the levels.

    Raises:
        NodeNotFoundError: If no node exists at the path.
        NodeTypeError: If it is a group with several arrays, or an array without a group, and ``dest`` is omitted.
        NodeExistsError: If a level exists that was not computed with the same parameters, and ``overwrite`` is not set.
        MetadataError: If axes have no names, or the coordinates of the finest level cannot be described.
        ValueError: If an argument is invalid.
        UnsupportedOperation: If the method cannot reduce the data type, or would compute means of flags.
        StoreError: If the store failed, or the executor runs in other processes and the store exists only in this one.

    Example:
        >>> store = {}
        >>> array = await za.create_array(store, path="0", data=np.arange(16.0).reshape(4, 4), dimension_names=("y", "x"))
        >>> report = await za.pyramid(store, levels=2)
        >>> coarse = await za.open_array(store, path="1")
        >>> await coarse[...]
        array([[ 2.5,  4.5],
               [10.5, 12.5]])
        >>> (await za.open_group(store)).info["Levels"]
        '0 (y 1, x 1), 1 (y 2, x 2)'
    """
    begin, values = clock.monotonic(), settings.resolve(config)
    pyramid, work = await _work(
        store, path, dest, dest_path, axes, levels, method, missing, convention, layout, overwrite, storage_options,
        dest_options, values, tasks=1,
    )  # fmt: skip
    report, total = work.new_result(pyramid), sum(task.nbytes for task in work.tasks)
    name = f"{work.kind} {job_name(work.source.store, pyramid.source.array.path)}"

    async def run() -> PyramidReport:
        with closing(Workers(executor)) as workers, measured(report, progress, total, name, begin=begin) as advance:
            async with work.store.in_use() if work.is_copied else nullcontext():
                await replace(work, known=pyramid).at_once(OneCall(report, workers), advance)
        return report

    call = run_on_store(run, work.source.store, work.store)
    if driven() and not work.store.blocking:  # the stores differ, so that an event loop is needed
        return bridge.run(call, blocking=False)
    return await call


async def plan_pyramid(
    store: Any,
    *,
    path: str = "",
    dest: Any = None,
    dest_path: str = "",
    levels: int | Literal["auto"] = "auto",
    method: Method | Literal["auto"] = "auto",
    missing: Any = "auto",
    axes: Sequence[str] | PyramidAxes | None = None,
    convention: Convention = "auto",
    layout: Layout | None = None,
    overwrite: bool = False,
    plan: Any = None,
    tasks: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    dest_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncJobPlan:
    """Plan a pyramid whose tasks run anywhere; see ``pyramid`` and ``AsyncJobPlan``.

    Each task computes a box of a level from the level before: ``Task.stage`` is the number of the level. A task waits up to
    ten minutes until all tasks of the stages before are finished, so that all tasks may be started at once, in order.

    Args:
        store: As for ``pyramid``.
        path: As for ``pyramid``.
        dest: As for ``pyramid``.
        dest_path: As for ``pyramid``.
        levels: As for ``pyramid``.
        method: As for ``pyramid``.
        missing: As for ``pyramid``.
        axes: As for ``pyramid``.
        convention: As for ``pyramid``.
        layout: As for ``pyramid``.
        overwrite: Replace existing levels, which are erased now.
        plan: The path or the URL of the document of the plan. Default: ``.ingest/plan.json`` in the group of the pyramid.
        tasks: About how many tasks to make. Default: tasks that read 256 MiB.
        storage_options: As for ``pyramid``. They are not part of the document.
        dest_options: As for ``pyramid``. They are not part of the document.
        config: As for ``pyramid``. The settings are not part of the document.

    Returns:
        The plan.

    Raises:
        FileExistsError: If ``plan`` is an existing file, and not a plan for the same destination.
        UnsupportedOperation: If other processes cannot mark tasks in the destination as finished, or ``plan`` is given and
            source or destination are not paths or URLs.
        WriteConflictError: If another job writes the group, or another plan for it is not finished.
        StoreError: If a store failed. Nothing is kept then.

    ``pyramid`` lists other errors.

    Example:
        >>> store = {}
        >>> array = await za.create_array(store, path="0", data=np.arange(16.0).reshape(4, 4), dimension_names=("y", "x"))
        >>> plan = await za.plan_pyramid(store, levels=3)
        >>> [(task.name, task.stage) for task in plan.tasks]
        [('/1[0:2, 0:2]', 1), ('/2[0:1, 0:1]', 2)]
        >>> for task in plan.tasks:
        ...     done = await plan.run(task.number)
        >>> report = await plan.finish()
        >>> (await za.open_group(store)).info["Levels"]
        '0 (y 1, x 1), 1 (y 2, x 2), 2 (y 4, x 4)'
    """
    values = settings.resolve(config)
    _, work = await _work(
        store, path, dest, dest_path, axes, levels, method, missing, convention, layout, overwrite, storage_options,
        dest_options, values, tasks=tasks,
    )  # fmt: skip
    location = PlanLocation.of(plan, work.dest, storage_options if dest is None else dest_options, values)
    return await begin_plan(work, location)


async def _work(
    store: Any,
    path: str,
    dest: Any,
    dest_path: str,
    axes: Sequence[str] | PyramidAxes | None,
    levels: int | Literal["auto"],
    method: Method | Literal["auto"],
    missing: Any,
    convention: Convention,
    layout: Layout | None,
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
    dest_options: Mapping[str, Any] | None,
    config: settings.Config,
    *,
    tasks: int,
) -> tuple[Pyramid, PyramidWork]:
    """Return a pyramid and its work. Nothing is written but a new group.

    Raises:
        ValueError: If the layout sets what levels take over from the finest one.
    """
    layout = layout or Layout()
    shapes = layout.options
    if others := sorted(shapes.keys() - {"chunks", "shards", "compressors"}) + ["encoding"] * bool(layout.encoding):
        raise ValueError(f"the layout of levels has chunks, shards and compressors; omit {', '.join(others)}")
    axes = axes if isinstance(axes, PyramidAxes) else PyramidAxes(names=axes)
    changes = LayoutChanges(**shapes)
    request = PyramidRequest(axes, levels, method, missing, convention, overwrite, changes)
    mode: Any = "r+" if dest is None else "r"
    node = await open(store, path=path, mode=mode, storage_options=storage_options, config=config)
    target = node.store if dest is None else resolve(dest, dest_options, config)
    pyramid, notes = await prepare(node, None if dest is None and not dest_path else target, dest_path, request)
    source = NodeLocation(node.store, node.path, name_of(store))
    return pyramid, PyramidWork.of(pyramid, source, name_of(store if dest is None else dest), notes, tasks)
