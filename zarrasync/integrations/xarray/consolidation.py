"""Consolidated metadata of written datasets, which xarray's own engine expects in both formats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from zarrasync import AsyncGroup, consolidate_metadata, open_group
from zarrasync import config as settings
from zarrasync._concurrency.gather import gather
from zarrasync.errors import NodeNotFoundError
from zarrasync.formats import Format
from zarrasync.integrations.xarray.job import WriteJob, WriteRequest
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.copies_above import add_copies, update_copies
from zarrasync.nodes.node import NodeHandle

__all__ = ["consolidate", "forget_replaced", "root_alone", "update_after_failure"]


async def consolidate(jobs: Sequence[WriteJob]) -> None:
    """Write or update the consolidated metadata of the first job's group, or of a group above it.

    Existing copies are updated. Otherwise a group at the root of the store gets copies. xarray looks for copies at the
    root only, so for a nested group the root gets them, unless it contains other groups.
    """
    first, request = jobs[0], jobs[0].request
    if not request.store.supports_consolidated_metadata:
        return
    consolidated = await _update_above(jobs)
    await gather([partial(_update_own, job) for job in jobs])
    # Writing into existing variables changes no document.
    creates = request.mode != "r+" if request.options.consolidated is None else request.options.consolidated
    if not creates or (request.options.consolidated is None and (consolidated or first.consolidated is not None)):
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
    prefixes = [prefix for path in replaced for prefix in first.format.erase_prefixes(path)]
    await update_copies(_handle(first), (), prefixes, paths=replaced)


async def update_after_failure(jobs: Sequence[WriteJob]) -> None:
    """Update the existing copies in groups above those that a failed write created or replaced arrays in.

    Readers with copies of the replaced documents would decode the new chunks in the old data type.
    """
    if any(job.changed for job in jobs):
        await _update_above(jobs)


async def _update_above(jobs: Sequence[WriteJob]) -> list[str]:
    """Update the copies of the written groups, and of the variables written into them, in the groups above.

    Returns:
        The paths of the groups above the first one that contain copies.
    """
    first, request = jobs[0], jobs[0].request
    keys = [key for job in jobs for key in job.document_keys(plan.name for plan in job.plans)]
    groups = [job.request.group for job in jobs]
    # Groups above the written one may be new.
    keys += [key for path in (*groups, *ancestors(request.group)) for key in first.format.document_keys(path)]
    erased = first.format.erase_prefixes(request.group) if request.mode == "w" else ()
    new = [job.request.group for job in jobs if job.is_new]
    found = await update_copies(_handle(first), keys, erased, paths=groups, new_groups=new)
    return [path for path in found if path in ancestors(request.group)]


def _handle(job: WriteJob) -> NodeHandle:
    return NodeHandle(job.request.store, job.request.group, job.format, settings.resolve(job.request.config))


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


async def root_alone(request: WriteRequest, format_: Format) -> AsyncGroup | None:
    """Return the group at the root of the store, if it exists and contains no nodes except those above the written group."""
    options: Any = {"mode": "r+", "zarr_format": format_.zarr_format, "config": request.config}
    try:
        root = await open_group(request.store, **options)
    except NodeNotFoundError:
        return None
    return root if set(await handle_of(root).children()) <= {request.group.partition("/")[0]} else None


def _documents(jobs: Sequence[WriteJob]) -> dict[str, bytes]:
    """Return the documents of all written nodes by key."""
    documents: dict[str, bytes] = {}
    for job in jobs:
        assert job.group is not None
        documents |= job.format.render(job.request.group, job.group.metadata)
        for plan in job.plans:
            documents |= job.format.render(join(job.request.group, plan.name), job.arrays[plan.name].metadata)
    return documents
