"""Writing datasets in five steps: resolve the target, validate, reserve space, write values, consolidate metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from xarray import Dataset, Variable
from xarray.conventions import decode_cf_variable, encode_dataset_coordinates

from zarrasync import AsyncArray, AsyncGroup, consolidate_metadata, formats, open_group, sync
from zarrasync import config as settings
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync.bulk.blocks import for_job, write_blocks
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport
from zarrasync.errors import NodeExistsError, NodeNotFoundError
from zarrasync.indexing.regions import Region, resolve_corners
from zarrasync.integrations.dask_detect import is_dask_array
from zarrasync.integrations.xarray.job import WriteJob, WriteRequest
from zarrasync.integrations.xarray.plan import Planner, VariablePlan, check_lengths, check_sizes, json_attributes
from zarrasync.integrations.xarray.read import stored_variable
from zarrasync.integrations.xarray.regions import locate_region
from zarrasync.integrations.xarray.reserve import Target, give_back, reserve
from zarrasync.metadata.create import checked_attributes
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import chunks_of, handle_of, with_handle
from zarrasync.stores import CountingStore
from zarrasync.transfer.unaligned import check_region, is_safe_for_jobs

__all__ = ["write"]


async def write(dataset: Dataset, request: WriteRequest) -> dict[str, IngestReport]:
    """Write a dataset; see ``write_dataset_async``."""
    _check_names(dataset, request)
    job = await _resolve(dataset, request)
    await _validate(job)
    try:
        group, targets = await reserve(job)
        if request.mode != "r+":  # last, when nothing can be refused any more
            await group.update_attributes(job.attributes)
        reports = await _write_values(job, targets)
    except BaseException:
        await give_back(job)
        raise
    await _consolidate(job, group)
    return reports


# ------------------------------------------------------------------ resolve


def _check_names(dataset: Dataset, request: WriteRequest) -> None:
    if unknown := sorted(set(request.encoding) - set(map(str, dataset.variables))):
        raise ValueError(f"the encoding names {unknown[0]!r}, which is not a variable of the dataset")
    for variable, encoding in request.encoding.items():
        if not isinstance(encoding, Mapping):
            raise TypeError(f"the encoding of {variable!r} must be a mapping, found {encoding!r}")
    if invalid := [name for name in (*dataset.variables, *dataset.dims) if not isinstance(name, str)]:
        raise TypeError(f"names of variables and dimensions must be strings, found {invalid[0]!r}")
    for name in dataset.variables:
        normalize_path(join(request.group, str(name)))


async def _resolve(dataset: Dataset, request: WriteRequest) -> WriteJob:
    """Look up the group, its arrays and the region."""
    group = await _existing_group(request) if request.mode in ("a", "r+") else None
    new_format = formats.by_name(request.store.choose_format(request.zarr_format) or 3)
    format_ = new_format if group is None else handle_of(group).format
    if format_.zarr_format not in (2, 3):
        raise ValueError(f"datasets can be written in Zarr format 2 or 3, not {format_.zarr_format!r}")
    arrays = {} if group is None else dict(await group.arrays())
    arrays = {name: with_handle(array, replace(handle_of(array), consolidated=None)) for name, array in arrays.items()}
    updates = request.append_dim is not None or request.region is not None
    if updates and group is not None and handle_of(group).consolidated is not None:
        # Consolidated metadata may be older than arrays that another program has changed.
        await gather([array.refresh for name, array in arrays.items() if name in dataset.variables])
    names = set(dataset.variables)
    stored = await run_in_new_thread(lambda: {n: _stored(n, array, decode=n in names) for n, array in arrays.items()})
    region: dict[str, slice] | None = None
    if request.region is not None:
        dataset, region = await run_in_new_thread(partial(locate_region, dataset, request.region, stored))
    return WriteJob(request, dataset, group, format_, arrays, stored, region)


async def _existing_group(request: WriteRequest) -> AsyncGroup | None:
    options: Any = {"zarr_format": request.zarr_format, "config": request.config}
    try:
        return await open_group(request.store, path=request.group, mode="r+", **options)
    except NodeNotFoundError:
        if request.mode == "r+":
            raise
        return None


def _stored(name: str, array: AsyncArray, *, decode: bool) -> Variable:
    """Return an array as a variable.

    It is not part of a dataset: another writer may have extended some of the arrays, and be about to extend others.
    """
    variable = stored_variable(name, sync.Array(array), mask=None)
    return decode_cf_variable(name, variable, concat_characters=False) if decode else variable


# ------------------------------------------------------------------ validate


async def _validate(job: WriteJob) -> None:
    """Plan all variables, and raise errors for invalid ones before anything is changed."""
    request = job.request
    variables, attributes = encode_dataset_coordinates(job.dataset)
    planner = Planner(job.format, request.append_dim, job.region)

    def plan_all() -> list[VariablePlan]:
        names = map(str, variables)
        return [planner.plan(n, variables[n], request.encoding.get(n), job.stored.get(n)) for n in names]

    job.plans = await run_in_new_thread(plan_all)  # encoding values takes long, and may read them
    for plan in job.plans:
        if not plan.updates and request.mode != "w-":
            path = request.group if request.mode == "w" else join(request.group, plan.name)
            refuse_self_overwrite(request.store, path, plan.encoded)
    if any(is_dask_array(plan.encoded.data) for plan in job.plans):
        from zarrasync.integrations.dask_targets import check_reach

        await compute(partial(check_reach, request.store))  # on a thread: dask's client may run on this loop
    check_sizes(job.plans, job.stored, request.append_dim)
    check_lengths(job.plans, job.stored, request.append_dim)
    job.attributes = checked_attributes(json_attributes(attributes))
    if job.group is not None:
        await _refuse_groups(job.group, [plan.name for plan in job.plans if plan.name not in job.stored])


async def _refuse_groups(group: AsyncGroup, names: Sequence[str]) -> None:
    """Reject variables with the names of groups, because the groups would be replaced with all members."""
    for name, node in zip(names, await gather([partial(group.get, name) for name in names]), strict=True):
        if isinstance(node, AsyncGroup):
            raise NodeExistsError(
                f"{node.name} in {group.store!r} is a group, so variable {name!r} cannot be stored there"
            )


# ------------------------------------------------------------------ write


async def _write_values(job: WriteJob, targets: Sequence[Target]) -> dict[str, IngestReport]:
    """Write all values concurrently, dask arrays in one computation.

    If blocks are not aligned to chunks and dask would need more than the memory budget, regions are computed one by
    one.
    """
    reports: dict[str, IngestReport] = {}

    async def write_one(plan: VariablePlan, array: AsyncArray, region: Region | None) -> None:
        source = source_of(plan.encoded if plan.encoded.shape else np.asarray(plan.encoded.values), {})
        reports[plan.name] = await write_blocks(source, array, region, job.unaligned, verify=job.request.verify)

    calls: list[Callable[[], Awaitable[None]]] = []
    lazy: list[tuple[VariablePlan, AsyncArray, Region | None]] = []
    for plan, (array, region) in zip(job.plans, targets, strict=True):
        counting = with_handle(array, replace(handle_of(array), store=CountingStore(array.store)))
        if is_dask_array(plan.encoded.data):
            lazy.append((plan, counting, region))
        else:
            calls.append(partial(write_one, plan, counting, region))
    if lazy:
        from zarrasync.integrations.dask_targets import current_cluster
        from zarrasync.integrations.dask_write import write_together

        writes = [_dask_write(job, plan, array, region) for plan, array, region in lazy]
        budget = settings.resolve(job.request.config).memory_budget
        on_cluster = await compute(current_cluster) is not None  # on a thread: dask's client may run on this loop
        fits = [on_cluster or write.held_bytes <= budget for write in writes]
        calls += [partial(write_one, *item) for item, fit in zip(lazy, fits, strict=True) if not fit]

        async def write_dask() -> None:
            written = await write_together(list(compress(writes, fits)), verify=job.request.verify)
            names = (plan.name for plan, *_ in compress(lazy, fits))
            reports.update(zip(names, written, strict=True))

        if any(fits):
            calls.append(write_dask)
    await gather(calls)
    return {plan.name: reports[plan.name] for plan in job.plans}


def _dask_write(job: WriteJob, plan: VariablePlan, array: AsyncArray, region: Region | None) -> Any:
    from zarrasync.integrations.dask_blocks import DaskWrite

    start, stop = resolve_corners(plan.encoded.shape, array.shape, region)
    check_region(chunks_of(array), start, stop, job.unaligned, safe=is_safe_for_jobs(array.store))
    return DaskWrite(plan.encoded.data, for_job(array, job.unaligned), start)


# ------------------------------------------------------------------ consolidate


async def _consolidate(job: WriteJob, group: AsyncGroup) -> None:
    """Write or update the consolidated metadata of the group and of groups above it."""
    request = job.request
    if not request.store.supports_consolidated_metadata:
        return
    options: Any = {"zarr_format": group.zarr_format, "config": request.config}
    if not job.format.has_dimension_names if request.consolidated is None else request.consolidated:
        await consolidate_metadata(request.store, path=request.group, **options)
    else:
        await job.update_consolidated(plan for plan in job.plans if plan.updates)
    path = request.group
    while path:
        path = path.rpartition("/")[0]
        try:
            parent = await open_group(request.store, path=path, **options)
        except NodeNotFoundError:
            continue
        if handle_of(parent).consolidated is not None:
            await consolidate_metadata(request.store, path=path, **options)
