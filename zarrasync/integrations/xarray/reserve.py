"""Space for a dataset: groups and new arrays. ``rows`` extends existing arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from zarrasync import AsyncGroup, open_group
from zarrasync import config as settings
from zarrasync._concurrency.cancel import run_cleanup
from zarrasync._concurrency.gather import gather, gather_all
from zarrasync.errors import NodeExistsError, NodeNotFoundError
from zarrasync.integrations.xarray.job import WriteJob, WriteRequest
from zarrasync.integrations.xarray.rows import extend_arrays, targets_of
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.create_hierarchy import create_levels
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.group import create_group_at
from zarrasync.nodes.node import NodeHandle

__all__ = ["erase_new_nodes", "existing_group", "reserve"]


async def reserve(jobs: Sequence[WriteJob]) -> None:
    """Create groups, extend arrays, and create new ones. Completes the targets of the jobs.

    Raises:
        NodeExistsError: If a group exists and the mode is ``"w-"``.
        ShapeError: If arrays differ in length, so that rows would be overwritten or missing, or if labels exist already.
        WriteConflictError: If another writer continues to append the same labels.
    """
    for job in jobs:
        job.changed = job.request.mode == "w"
    await _create_groups(jobs)
    for job in jobs:
        assert job.group is not None
        job.changed = job.is_new or bool(job.new_plans)
        job.consolidated = handle_of(job.group).consolidated
    await gather_all([partial(extend_arrays, job) for job in jobs])
    await _create_arrays(jobs)  # last, as it replaces arrays
    for job in jobs:
        job.targets = [target for plan in job.plans for target in targets_of(plan, job)]


async def erase_new_nodes(job: WriteJob) -> None:
    """Erase the group that this write has created, or the arrays that it has created in an existing group."""
    handle = handle_of(job.bare_group)
    new = [handle.child(plan.name) for plan in job.new_plans]
    await gather([partial(erase_node, node) for node in ([handle] if job.is_new else new)])


# ------------------------------------------------------------------ groups


async def existing_group(request: WriteRequest) -> AsyncGroup | None:
    """Return the group of a request.

    Raises:
        NodeNotFoundError: If it does not exist and the mode is ``"r+"``.
    """
    options: Any = {"zarr_format": request.zarr_format, "config": request.config}
    try:
        return await open_group(request.store, path=request.group, mode="r+", **options)
    except NodeNotFoundError:
        if request.mode == "r+":
            raise
        return None


async def _create_groups(jobs: Sequence[WriteJob]) -> None:
    """Create the missing groups, and find out whether anything lies below the first one."""
    first, new = jobs[0], {job.path: job for job in jobs if job.is_new}
    request = first.request
    handle = NodeHandle(request.store, request.group, first.format, settings.resolve(request.config))

    async def create(child: NodeHandle, path: str) -> AsyncGroup:
        return await _create_group(new[path], child)

    async def look() -> None:
        first.is_empty = request.mode == "w" or (first.is_new and not await handle.children())

    async def create_all() -> None:
        root = handle.without_consolidated() if first.is_new else handle_of(first.bare_group)
        created = await create_levels(root, new, create)  # copies are updated at the end
        for path, group in created.items():
            assert isinstance(group, AsyncGroup)
            new[path].group = group

    await gather([look, create_all])
    for job in jobs:
        job.is_empty = first.is_empty


async def _create_group(job: WriteJob, handle: NodeHandle) -> AsyncGroup:
    """Create the group of a job. Replace an existing one with mode ``"w"``."""
    mode, attributes = job.request.mode, job.attributes
    try:
        return await create_group_at(handle, attributes=attributes, overwrite=mode == "w" and not job.path)
    except NodeExistsError:
        group = await existing_group(job.request) if mode in ("a", "a-") else None
        if group is None:
            raise
        job.is_new = False  # another writer was faster
        await group.update_attributes(attributes)
        return group


# ------------------------------------------------------------------ arrays


async def _create_arrays(jobs: Sequence[WriteJob]) -> None:
    """Create the arrays of new variables, and update the consolidated metadata of existing groups."""
    existing = await gather([partial(_existing_names, job) for job in jobs])
    places = [(job, plan, names) for job, names in zip(jobs, existing, strict=True) for plan in job.new_plans]
    calls = []
    for job, plan, names in places:
        options = {"shape": plan.encoded.shape, "overwrite": plan.name in names, **plan.options}
        calls.append(partial(job.bare_group.create_array, plan.name, **options))

    async def update() -> None:
        await gather([partial(job.update_consolidated, [plan.name for plan in job.new_plans]) for job in jobs])

    try:
        arrays = await gather(calls)
    except BaseException:
        await run_cleanup(update)
        raise
    await update()
    for (job, plan, _), array in zip(places, arrays, strict=True):
        job.arrays[plan.name] = array


async def _existing_names(job: WriteJob) -> set[str]:
    """Return the names of existing arrays, and of arrays with chunks left by an interrupted replacement."""
    names = {plan.name for plan in job.new_plans}
    existing = names & job.arrays.keys()
    if not job.is_empty and names - existing:
        children = await handle_of(job.bare_group).children()
        existing |= {name for name in names if name.partition("/")[0] in children}
    return existing
