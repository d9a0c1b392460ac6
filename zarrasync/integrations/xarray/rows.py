"""Rows that are appended to existing arrays: their places, the space for them, and its removal after a failure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from zarrasync import config as settings
from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import run_cleanup
from zarrasync._concurrency.gather import gather_all
from zarrasync._concurrency.offload import compute
from zarrasync.errors import ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.integrations.xarray.claims import AppendClaim, Placement, Unfinished, place_rows
from zarrasync.integrations.xarray.encode import encoding_of
from zarrasync.integrations.xarray.job import VariableTarget, WriteJob
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.model.paths import join
from zarrasync.nodes.access import give_back_rows, reserve_rows

_CATCH_UP_SECONDS = 10.0
"""Seconds to wait for another writer that has extended some of the variables to extend the others."""


async def extend_arrays(job: WriteJob) -> None:
    """Reserve rows in one array, the coordinates if possible, and the same rows in all others.

    The rows of concurrent writers then stay together.

    Raises:
        ShapeError: If arrays differ in length, or if labels exist already.
        WriteConflictError: If another writer continues to append the same labels.
    """
    appends = [plan for plan in job.plans if _appends(plan, job)]
    if not appends:
        return
    appends.sort(key=lambda plan: (plan.name != job.request.append_dim, plan.name))
    first, *others = appends
    if first.name == job.request.append_dim and first.encoded.dims == (first.name,):
        await _claim_rows(job, first, others)
    else:
        await _catch_up(job, appends, ())
        await gather_all([partial(_reserve_rows, job, first)])
    await gather_all([partial(_reserve_rows, job, plan) for plan in others])


def targets_of(plan: VariablePlan, job: WriteJob) -> list[VariableTarget]:
    """Return where the values of a variable are written. Rows that are written to several places are several targets."""
    name, array = join(job.path, plan.name), job.arrays[plan.name]
    if not plan.updates or not _appends(plan, job):
        return [VariableTarget.of(name, plan, array, _region_of(plan, job.region or {}), job.unaligned)]
    assert job.placement is not None
    dim, targets = str(job.request.append_dim), []
    for rows, places in job.placement.runs():
        is_whole = rows == slice(0, plan.encoded.sizes[dim])
        part = plan if is_whole else replace(plan, encoded=plan.encoded.isel({dim: rows}))
        is_reserved = places.start >= job.placement.start
        unaligned = job.unaligned if is_reserved else job.request.unaligned
        targets.append(VariableTarget.of(name, part, array, _region_of(plan, {dim: places}), unaligned))
    return targets


async def release_claims(jobs: Iterable[WriteJob]) -> None:
    """Let other writers append the same labels, because all values are stored.

    Raises:
        WriteConflictError: If another writer has taken rows over.
        StoreError: If a store failed. All other claims are released.
    """
    await gather_all([job.claim.release for job in jobs if job.claim is not None])


async def give_back(job: WriteJob) -> None:
    """Release all reserved rows after a failure."""
    for rows in reversed(job.reservations):
        await run_cleanup(partial(give_back_rows, *rows))
    await leave_claims([job])


async def leave_claims(jobs: Iterable[WriteJob]) -> None:
    """Keep claims of rows that exist after a failure, so that an append of the same labels writes them again."""
    for job in jobs:
        if job.claim is not None:
            await run_cleanup(partial(_leave_claim, job, job.claim))


async def _leave_claim(job: WriteJob, claim: AppendClaim) -> None:
    array = job.arrays[str(job.request.append_dim)]
    await array.refresh()
    await claim.leave(array.shape[0])


def _appends(plan: VariablePlan, job: WriteJob) -> bool:
    return plan.rows_before is not None and job.region is None


def _region_of(plan: VariablePlan, slices: Mapping[str, slice]) -> Region | None:
    return tuple(slices.get(str(dim), slice(None)) for dim in plan.encoded.dims) if plan.updates else None


# ------------------------------------------------------------------ labels


async def _claim_rows(job: WriteJob, index: VariablePlan, others: Sequence[VariablePlan]) -> None:
    """Find the places of the rows by their labels, claim them, and extend the index coordinate."""
    array, config = job.arrays[index.name], settings.resolve(job.request.config)
    job.claim = AppendClaim(array.store, join(job.request.group, index.name), config.total_timeout)
    labels, is_compared = np.asarray(index.encoded.values), job.request.on_duplicate != "allow"
    options: dict[str, Any] = {"encoding": encoding_of(job.stored[index.name]), "dim": index.name}
    claimed: list[Unfinished] = []

    async def place(running: Sequence[Unfinished], over: Sequence[Unfinished]) -> Placement | None:
        claimed[:] = [*running, *over]
        await array.refresh()
        stored = np.asarray(await array.getitem(slice(None))) if is_compared else labels[:0]
        found = {"fill": array.fill_value, "unfinished": running, "interrupted": over}
        start, on_duplicate = array.shape[0], job.request.on_duplicate
        job.placement = await compute(partial(place_rows, labels, stored, start, on_duplicate, **options, **found))
        return job.placement

    async def reserve() -> None:
        _check_new_arrays(job)
        await _catch_up(job, [index, *others], claimed)
        await gather_all([partial(_reserve_rows, job, index, is_end=True)])

    await job.claim.acquire(place, labels, reserve)


def _check_new_arrays(job: WriteJob) -> None:
    """Check that new arrays have no rows that are left out or written elsewhere."""
    placement, dim = job.placement, str(job.request.append_dim)
    assert placement is not None
    if placement.count == len(placement.places):
        return
    for plan in job.plans:
        if not plan.updates and dim in plan.encoded.dims:
            raise ShapeError(
                f"{plan.name} does not exist, and cannot be added along {dim!r} while rows are left out or replaced; write it "
                "in a call of its own, with all rows"
            )


# ------------------------------------------------------------------ space


async def _catch_up(job: WriteJob, appends: Sequence[VariablePlan], claimed: Sequence[Unfinished]) -> None:
    """Wait until all arrays are as long as the first one: another writer may be about to extend them.

    Arrays may lack rows that are claimed: their writer extends them, or has failed.
    """
    first = appends[0].rows_before or 0
    first = min([first, *(int(rows.places.min(initial=first)) for rows in claimed)])
    end = clock.monotonic() + _CATCH_UP_SECONDS
    for plan in appends[1:]:
        length, pause = plan.rows_before or 0, 0.02
        while length < first:
            if clock.monotonic() > end:
                raise _uneven(job, plan.name, length, first)
            await clock.current().sleep(pause)
            pause = min(2 * pause, 0.5)
            array = job.arrays[plan.name]
            await array.refresh()
            length = array.shape[_axis_of(plan, job)]


def _axis_of(plan: VariablePlan, job: WriteJob) -> int:
    return plan.encoded.dims.index(str(job.request.append_dim))


async def _reserve_rows(job: WriteJob, plan: VariablePlan, *, is_end: bool = False) -> None:
    """Extend an array by the rows that the placement needs; without one, by all rows. See ``reserve_rows``."""
    placement, axis, array = job.placement, _axis_of(plan, job), job.arrays[plan.name]
    assert plan.rows_before is not None
    if placement is None:
        count = plan.encoded.shape[axis]
        placement = Placement.at_end(await reserve_rows(array, axis, plan.encoded.shape), count)
        job.placement = placement
        job.reservations.append((array, axis, placement.start, placement.start + count))
        return
    if plan.rows_before > placement.start and not is_end:
        await array.refresh()  # another writer may have removed rows
        if array.shape[axis] > placement.start:  # other writers of all variables extend the first one first
            raise _uneven(job, plan.name, array.shape[axis], placement.start)
    shape = tuple(placement.count if number == axis else size for number, size in enumerate(plan.encoded.shape))
    start = placement.start if placement.count else placement.needed
    if not placement.count and array.shape[axis] >= start:
        return
    await reserve_rows(array, axis, shape, start, is_end=is_end and bool(placement.count))
    if placement.count:
        job.reservations.append((array, axis, start, start + placement.count))


def _uneven(job: WriteJob, name: str, length: int, first: int) -> ShapeError:
    return ShapeError(
        f"{name} has {length} rows along {job.request.append_dim!r}, but another variable has {first}, because rows "
        "were appended to some variables only; resize() the arrays to the same length",
        found=(length,),
        wanted=(first,),
    )
