"""Consolidated metadata of written datasets, which xarray's own engine expects in both formats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from zarrasync import AsyncGroup, consolidate_metadata, open_group
from zarrasync import config as settings
from zarrasync._concurrency.gather import gather
from zarrasync.errors import NodeNotFoundError
from zarrasync.integrations.xarray.job import WriteJob
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.consolidate_group import add_copies
from zarrasync.nodes.consolidated import Consolidated

__all__ = ["consolidate", "forget_replaced", "update_after_failure"]


async def consolidate(jobs: Sequence[WriteJob]) -> None:
    """Write or update the consolidated metadata of the first job's group, or of a group above it.

    Existing copies are updated. Otherwise a group at the root of the store gets copies. xarray looks for copies at the
    root only, so for a nested group the root gets them, unless it contains other groups.
    """
    first, request = jobs[0], jobs[0].request
    if not request.store.supports_consolidated_metadata:
        return
    above = await _groups_above(first)
    await _update_existing(above, jobs)
    consolidated = [group for group in above if handle_of(group).consolidated is not None]
    await gather([partial(_update_own, job) for job in jobs])
    # Writing into existing variables changes no document.
    creates = request.mode != "r+" if request.consolidated is None else request.consolidated
    if not creates or (request.consolidated is None and (consolidated or first.consolidated is not None)):
        return
    assert first.group is not None
    path, group = request.group, first.group
    root = next((group for group in above if not group.path), None)
    if root is not None and root not in consolidated and await _is_alone(root, request.group):
        path, group = "", root
    if first.is_empty and path == request.group:
        await add_copies(handle_of(group), _documents(jobs))
    else:
        options: Any = {"zarr_format": group.zarr_format, "config": request.config}
        await consolidate_metadata(request.store, path=path, **options)


async def forget_replaced(jobs: Sequence[WriteJob]) -> None:
    """Remove the copies of nodes that will be replaced, also in groups above.

    If the writer is killed, readers find no copies that describe the erased nodes instead of the new ones.
    """
    first, request = jobs[0], jobs[0].request
    if request.mode == "w":
        replaced = [request.group] if request.group else []
    else:
        replaced = [
            join(job.request.group, plan.name)
            for job in jobs
            for plan in job.plans
            if not plan.updates and plan.name in job.arrays
        ]
    if not replaced or not request.store.supports_consolidated_metadata:
        return
    prefixes = tuple(prefix for path in replaced for prefix in first.format.erase_prefixes(path))
    groups = [*await _groups_above(first), *(job.group for job in jobs if job.group is not None)]
    outdated = [
        copies
        for group in groups
        if (copies := handle_of(group).consolidated) is not None
        and any(key.startswith(prefixes) for key in copies.documents)
    ]
    config = settings.resolve(request.config)
    await gather([partial(copies.update, request.store, (), prefixes, config=config) for copies in outdated])


async def update_after_failure(jobs: Sequence[WriteJob]) -> None:
    """Update the existing copies in groups above those that a failed write created or replaced arrays in.

    Readers with copies of the replaced documents would decode the new chunks in the old data type.
    """
    if any(job.changed for job in jobs) and jobs[0].request.store.supports_consolidated_metadata:
        await _update_existing(await _groups_above(jobs[0]), jobs)


async def _update_existing(above: Sequence[AsyncGroup], jobs: Sequence[WriteJob]) -> None:
    """Update the copies in the groups above the written ones, and for a tree also in its first group."""
    first = jobs[0]
    copies = {group.path: found for group in above if (found := handle_of(group).consolidated) is not None}
    await gather([partial(_update, path, found, jobs) for path, found in copies.items()])
    if first.consolidated is not None and len(jobs) > 1:
        await _update(first.request.group, first.consolidated, jobs)


async def _update_own(job: WriteJob) -> None:
    """Update the copies of a job's group, if it has any: extended arrays, and nodes that other programs have added."""
    if job.consolidated is None:
        return
    names = {plan.name for plan in job.plans if plan.rows_before is not None and job.region is None}
    if job.request.mode != "r+":
        assert job.group is not None
        handle = handle_of(job.group)
        names |= (await handle.without_consolidated().children()).keys() - (await handle.children()).keys()
    await job.update_consolidated(names)


async def _groups_above(job: WriteJob) -> list[AsyncGroup]:
    """Return the groups above the written one."""
    request, path, paths = job.request, job.request.group, list[str]()
    while path:
        path = path.rpartition("/")[0]
        paths.append(path)

    async def open_existing(path: str) -> AsyncGroup | None:
        options: Any = {"zarr_format": job.format.zarr_format, "config": request.config}
        try:
            return await open_group(request.store, path=path, mode="r+", **options)
        except NodeNotFoundError:
            return None

    groups = await gather([partial(open_existing, path) for path in paths])
    return [group for group in groups if group is not None]


async def _is_alone(root: AsyncGroup, path: str) -> bool:
    """Return whether a root contains no nodes except the groups above a path."""
    return set(await handle_of(root).children()) <= {path.partition("/")[0]}


async def _update(at: str, copies: Consolidated, jobs: Sequence[WriteJob]) -> None:
    """Update the copies of the written groups, and of the variables written into them, in a group at or above them."""
    request = jobs[0].request
    keys = [key for job in jobs for key in job.document_keys(plan.name for plan in job.plans)]
    paths, path = [job.request.group for job in jobs], request.group
    while path := path.rpartition("/")[0]:  # groups above the written one may be new
        paths.append(path)
    keys += [key for path in paths if path != at for key in jobs[0].format.document_keys(path)]
    erased = jobs[0].format.erase_prefixes(request.group) if request.mode == "w" else ()
    await copies.update(request.store, keys, tuple(erased), config=settings.resolve(request.config))


def _documents(jobs: Sequence[WriteJob]) -> dict[str, bytes]:
    """Return the documents of all written nodes by key."""
    documents: dict[str, bytes] = {}
    for job in jobs:
        assert job.group is not None
        documents |= job.format.render(job.request.group, job.group.metadata)
        for plan in job.plans:
            documents |= job.format.render(join(job.request.group, plan.name), job.arrays[plan.name].metadata)
    return documents
