"""Groups and new arrays of a dataset: creating and erasing them, and their consolidated metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zarrasync import AsyncGroup, consolidate_metadata, open_group
from zarrasync import config as settings
from zarrasync._concurrency.gather import gather, gather_all
from zarrasync.errors import NodeExistsError, NodeNotFoundError
from zarrasync.formats import Format
from zarrasync.integrations.xarray.job import WriteJob, WriteRequest
from zarrasync.integrations.xarray.rows import extend_arrays, targets_of
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.consolidated_updates import add_copies, update_copies
from zarrasync.nodes.create_hierarchy import create_levels
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.group import create_group_at
from zarrasync.nodes.node import NodeHandle


async def reserve(jobs: Sequence[WriteJob]) -> None:
    """Create groups, extend arrays, and create new ones. Completes the targets of the jobs.

    Raises:
        NodeExistsError: If a group exists and the mode is ``"w-"``.
        ShapeError: If arrays differ in length, so that rows would be overwritten or missing, or if labels exist already.
        WriteConflictError: If another writer continues to append the same labels.
    """
    await _create_groups(jobs)
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
    """Create the arrays of new variables."""
    existing = await gather([partial(_existing_names, job) for job in jobs])
    places = [
        (job, plan, plan.name in names) for job, names in zip(jobs, existing, strict=True) for plan in job.new_plans
    ]
    arrays = await gather(
        [
            partial(job.bare_group.create_array, plan.name, shape=plan.encoded.shape, overwrite=exists, **plan.options)
            for job, plan, exists in places
        ]
    )
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


async def consolidate(jobs: Sequence[WriteJob]) -> None:
    """Write or update the consolidated metadata of the first job's group, or of a group above it.

    Existing copies are updated. Otherwise a group at the root of the store gets copies. xarray looks for copies at the
    root only, so for a nested group the root gets them, unless it contains other groups.
    """
    first, request, wanted = jobs[0], jobs[0].request, jobs[0].request.options.consolidated
    if not request.store.supports_consolidated_metadata:
        return
    consolidated = await _update_documents(jobs)
    # Writing into existing variables changes no document.
    if not (request.mode != "r+" if wanted is None else wanted) or (wanted is None and consolidated):
        return
    assert first.group is not None
    path, group = request.group, first.group
    if path and "" not in consolidated and (root := await root_alone(request, first.format)) is not None:
        path, group = "", root
    if first.is_empty and path == request.group:
        await add_copies(handle_of(group), _documents(jobs))
    else:
        options: Any = {"zarr_format": group.zarr_format, "config": request.config}
        await consolidate_metadata(request.store, path=path, **options)


async def forget_replaced(jobs: Sequence[WriteJob]) -> None:
    """Remove the copies of nodes that will be replaced from all groups above them.

    If the writer is killed, readers find no copies that describe the erased nodes instead of the new ones.
    """
    first, request = jobs[0], jobs[0].request
    replaced = [job.path_of(plan) for job in jobs for plan in job.new_plans if plan.name in job.arrays]
    if request.mode == "w":
        replaced = [request.group] if request.group else []
    prefixes = [prefix for path in replaced for prefix in first.format.erase_prefixes(path)]
    await update_copies(_place(first), (), prefixes, paths=replaced)


async def update_after_failure(jobs: Sequence[WriteJob]) -> None:
    """Update the copies of what a failed write has created or replaced.

    Readers with copies of replaced documents would decode the new chunks in the old data type.
    """
    if jobs[0].request.mode == "w" or any(job.group is not None and (job.is_new or job.new_plans) for job in jobs):
        await _update_documents(jobs)


async def _update_documents(jobs: Sequence[WriteJob]) -> list[str]:
    """Update the copies of the written groups and variables in these groups and in those above.

    Returns:
        The paths of the first group and of those above it that contain copies.
    """
    first, request = jobs[0], jobs[0].request
    members = [path for job in jobs for path in [*map(job.path_of, job.plans), *await _added_by_others(job)]]
    new = [job.request.group for job in jobs if job.is_new]
    above = ancestors(request.group) if first.is_new else ()  # they may be new as well
    keys = [key for path in (*members, *new, *above) for key in first.format.document_keys(path)]
    erased = first.format.erase_prefixes(request.group) if request.mode == "w" else ()
    without = [job.request.group for job in jobs if job.group is None or handle_of(job.group).consolidated is None]
    paths = [*members, *(job.request.group for job in jobs)]
    found = await update_copies(_place(first), keys, erased, paths=paths, new_groups=[*new, *without])
    return [path for path in found if path in (request.group, *ancestors(request.group))]


def _place(job: WriteJob) -> NodeHandle:
    """Return the handle of a job's group, which may not exist, with the copies that it was opened with."""
    if job.group is not None and not job.is_new:
        return handle_of(job.group)
    return NodeHandle(job.request.store, job.request.group, job.format, settings.resolve(job.request.config))


async def _added_by_others(job: WriteJob) -> list[str]:
    """Return the paths of nodes that the copies of a job's group lack, because other programs have added them."""
    if job.group is None or job.request.mode == "r+":
        return []
    handle = handle_of(job.group)
    if handle.consolidated is None:
        return []
    names = (await handle.without_consolidated().children()).keys() - (await handle.children()).keys()
    return [join(job.request.group, name) for name in sorted(names)]


async def root_alone(request: WriteRequest, format_: Format) -> AsyncGroup | None:
    """Return the group at the root of the store, if it exists and contains no nodes except those above the written group."""
    root = await existing_group(replace(request, group="", mode="a", zarr_format=format_.zarr_format))
    is_alone = root is not None and set(await handle_of(root).children()) <= {request.group.partition("/")[0]}
    return root if is_alone else None


def _documents(jobs: Sequence[WriteJob]) -> dict[str, bytes]:
    """Return the documents of all written nodes by key."""
    documents: dict[str, bytes] = {}
    for job in jobs:
        assert job.group is not None
        documents |= job.format.render(job.request.group, job.group.metadata)
        for plan in job.plans:
            documents |= job.format.render(job.path_of(plan), job.arrays[plan.name].metadata)
    return documents
