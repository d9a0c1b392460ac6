"""Space for a dataset: rows that are appended to existing arrays, and new arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast

from zarrasync import AsyncArray, AsyncGroup, open_group
from zarrasync import config as settings
from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import gather, gather_all
from zarrasync._concurrency.shield import run_cleanup
from zarrasync.errors import ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.integrations.xarray.job import Reservation, WriteJob
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.nodes.access import give_back_rows, handle_of, reserve_rows, with_handle

__all__ = ["Target", "give_back", "reserve"]

Target: TypeAlias = tuple[AsyncArray, Region | None]
"""An array, and the region of it that is written; ``None`` for all of it."""
_CATCH_UP_SECONDS = 10.0
"""Seconds to wait for another writer that has extended some of the variables to extend the others."""


async def reserve(job: WriteJob) -> tuple[AsyncGroup, list[Target]]:
    """Extend arrays and create new ones. Returns the group, and the array and region of each variable.

    Appended rows are reserved in one array, the coordinates if possible, and get the same position in all others. The
    rows of concurrent writers then stay together.

    Raises:
        ShapeError: If arrays differ in length, so that rows would be overwritten or missing.
    """
    request = job.request
    group = job.group or await _open_group(job)
    job.group, job.consolidated = group, handle_of(group).consolidated
    appends = [plan for plan in job.plans if plan.rows_before is not None and job.region is None]
    appends.sort(key=lambda plan: (plan.name != request.append_dim, plan.name))
    await _catch_up(job, group, appends)
    await gather_all([partial(_reserve_rows, job, plan, None) for plan in appends[:1]])
    start = job.reservations[0].start if job.reservations else None
    await gather_all([partial(_reserve_rows, job, plan, start) for plan in appends[1:]])
    await _create_arrays(job, group)  # last, as it replaces arrays
    rows = {str(request.append_dim): slice(r.start, r.stop) for r in job.reservations[:1]}
    appended = {plan.name for plan in appends}
    regions = [_region_of(plan, rows if plan.name in appended else job.region or {}) for plan in job.plans]
    return group, [(job.arrays[plan.name], region) for plan, region in zip(job.plans, regions, strict=True)]


async def give_back(job: WriteJob) -> None:
    """Release all reserved rows after a failure."""
    for rows in reversed(job.reservations):
        await run_cleanup(partial(give_back_rows, rows.array, rows.axis, rows.start, rows.stop))


async def _open_group(job: WriteJob) -> AsyncGroup:
    request, zarr_format = job.request, job.format.zarr_format
    config = replace(settings.resolve(request.config), zarr_format=zarr_format)
    return await open_group(
        request.store,
        path=request.group,
        mode=cast("Any", request.mode),
        zarr_format=zarr_format if request.mode == "a" else None,  # a new group may replace one of another format
        config=config,
    )


def _region_of(plan: VariablePlan, slices: Mapping[str, slice]) -> Region | None:
    return tuple(slices.get(str(dim), slice(None)) for dim in plan.encoded.dims) if plan.updates else None


async def _catch_up(job: WriteJob, group: AsyncGroup, appends: Sequence[VariablePlan]) -> None:
    """Wait until all arrays are as long as the first one: another writer may be about to extend them."""
    first = (appends[0].rows_before or 0) if appends else 0
    end = clock.monotonic() + _CATCH_UP_SECONDS
    for plan in appends[1:]:
        length, pause = plan.rows_before or 0, 0.02
        while length < first:
            if clock.monotonic() > end:
                raise _uneven(job, plan.name, length, first)
            await clock.sleep(pause)
            pause = min(2 * pause, 0.5)
            array = await _without_consolidated(group).get(plan.name)
            assert isinstance(array, AsyncArray)
            length = array.shape[plan.encoded.dims.index(str(job.request.append_dim))]


async def _reserve_rows(job: WriteJob, plan: VariablePlan, start: int | None) -> None:
    """Extend an array by a variable's rows.

    Args:
        job: The job.
        plan: The plan for the variable.
        start: The position of the first row along the appended dimension; ``None`` for the end of the array.
    """
    assert plan.rows_before is not None
    if start is not None and plan.rows_before > start:  # other writers of all variables extend the first one first
        raise _uneven(job, plan.name, plan.rows_before, start)
    axis, array = plan.encoded.dims.index(str(job.request.append_dim)), job.arrays[plan.name]
    start = await reserve_rows(array, axis, plan.encoded.shape, start)
    job.reservations.append(Reservation(array, axis, start, start + plan.encoded.shape[axis]))


def _uneven(job: WriteJob, name: str, length: int, first: int) -> ShapeError:
    return ShapeError(
        f"{name} has {length} rows along {job.request.append_dim!r}, but another variable has {first}, because rows "
        "were appended to some variables only; resize() the arrays to the same length",
        found=(length,),
        wanted=(first,),
    )


async def _create_arrays(job: WriteJob, group: AsyncGroup) -> None:
    """Create the arrays of new variables, and update the consolidated metadata."""
    plans = [plan for plan in job.plans if not plan.updates]
    existing = await _existing_names(job, group, {plan.name for plan in plans})
    create = _without_consolidated(group).create_array
    calls = [
        partial(create, plan.name, shape=plan.encoded.shape, overwrite=plan.name in existing, **plan.options)
        for plan in plans
    ]
    try:
        arrays = await gather(calls)
    except BaseException:
        await run_cleanup(partial(job.update_consolidated, plans))
        raise
    await job.update_consolidated(plans)
    job.arrays.update({plan.name: array for plan, array in zip(plans, arrays, strict=True)})


async def _existing_names(job: WriteJob, group: AsyncGroup, names: set[str]) -> set[str]:
    """Return the names of existing arrays, and of arrays with chunks left by an interrupted replacement."""
    existing = names & job.arrays.keys()
    if job.request.mode != "w" and names - existing:
        children = await handle_of(_without_consolidated(group)).children()
        existing |= {name for name in names if name.partition("/")[0] in children}
    return existing


def _without_consolidated(group: AsyncGroup) -> AsyncGroup:
    return with_handle(group, replace(handle_of(group), consolidated=None))
