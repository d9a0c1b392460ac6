"""Writing datasets in five steps: resolve the target, validate, reserve space, write values, consolidate metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from xarray import Dataset, Variable
from xarray.conventions import decode_cf_variable, encode_dataset_coordinates

from zarrasync import AsyncArray, AsyncGroup, formats, sync
from zarrasync import config as settings
from zarrasync._concurrency.cancel import run_cleanup
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync.bulk.jobs.claim import wait_for_jobs
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.errors import EncodingError, NodeExistsError, UnsupportedOperation
from zarrasync.integrations.dask_targets import check_reach, is_dask_array
from zarrasync.integrations.xarray.coordinates import locate_region, without_stored_coordinates
from zarrasync.integrations.xarray.groups import (
    consolidate,
    erase_new_nodes,
    existing_group,
    forget_replaced,
    reserve,
    update_after_failure,
)
from zarrasync.integrations.xarray.job import Encodings, WriteJob, WriteRequest, check_names
from zarrasync.integrations.xarray.plan import (
    Planner,
    VariablePlan,
    check_append_dim,
    check_sizes,
    json_attributes,
)
from zarrasync.integrations.xarray.read import stored_variable
from zarrasync.integrations.xarray.rows import give_back, leave_claims, release_claims
from zarrasync.integrations.xarray.values import check_chunks, write_values
from zarrasync.metadata.conventions.cf_attributes import inherited_attributes, parents_of_bounds
from zarrasync.metadata.create import checked_attributes
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of, with_handle


async def planned_jobs(
    datasets: Mapping[str, Dataset], encodings: Mapping[str, Encodings], request: WriteRequest
) -> list[WriteJob]:
    """Return the jobs that write the datasets of one group and of groups below it. Nothing is changed.

    Args:
        datasets: The datasets by the path of their group relative to the request's, the request's own first.
        encodings: The encodings of variables by the same paths.
        request: The other arguments; see ``write_dataset_async``.

    Raises:
        WriteConflictError: If a job writes the group until ``config.total_timeout``, or a plan for it is not finished.
    """
    if request.options.consolidated and not request.store.supports_consolidated_metadata:
        raise UnsupportedOperation(
            f"{request.store!r} does not support consolidated metadata; pass consolidated=False or omit it",
            key=request.group,
        )
    wait = settings.resolve(request.config).total_timeout
    await run_in_new_thread(partial(wait_for_jobs, request.store.notes, request.group, wait))
    requests = {path: request.at(path, encodings.get(path, {})) for path in datasets}
    for path, dataset in datasets.items():
        check_names(dataset, requests[path].group, requests[path].encoding)
    first = await _resolve("", datasets[""], requests[""])
    below = {
        path: replace(requests[path], zarr_format=first.format.zarr_format) for path in datasets if path
    }  # a hierarchy has one format
    jobs = [first, *await gather([partial(_resolve, path, datasets[path], below[path]) for path in below])]
    await gather([partial(_validate, job) for job in jobs])
    return jobs


async def write(jobs: Sequence[WriteJob]) -> Any:
    """Write the datasets of jobs.

    Returns:
        As ``write_dataset_async``.
    """
    try:
        await forget_replaced(jobs)
        await reserve(jobs)
        if jobs[0].request.mode != "r+":  # last, when nothing can be refused any more
            groups = [(job.group, job.attributes) for job in jobs if not job.is_new and job.attributes]
            await gather([partial(group.update_attributes, values) for group, values in groups if group is not None])
        report = await _write_values(jobs)
    except BaseException:
        for job in jobs:
            await give_back(job)
        await run_cleanup(partial(update_after_failure, jobs))
        raise
    try:
        await consolidate(jobs)
        await release_claims(jobs)
    except BaseException:
        await leave_claims(jobs)  # the values are complete, and the same call writes them again
        raise
    return report


async def _write_values(jobs: Sequence[WriteJob]) -> Any:
    """Write all values. If lazy ones are refused when they are computed, erase the nodes that this write has created."""
    try:
        return await write_values(jobs)
    except EncodingError:
        for job in jobs:
            await run_cleanup(partial(erase_new_nodes, job))
        raise


# ------------------------------------------------------------------ resolve


async def _resolve(path: str, dataset: Dataset, request: WriteRequest) -> WriteJob:
    """Look up a group, its arrays and the region."""
    if request.append_dim is not None and request.append_dim not in dataset.dims:  # a group of a tree
        request = replace(request, append_dim=None)
    group = await existing_group(request) if request.mode in ("a", "a-", "r+") else None
    new_format = formats.by_name(request.store.choose_format(request.zarr_format) or 3)
    format_ = new_format if group is None else handle_of(group).format
    if format_.zarr_format not in (2, 3):
        raise ValueError(f"datasets can be written in Zarr format 2 or 3, not {format_.zarr_format!r}")
    arrays = {} if group is None else await _stored_arrays(group, request, dataset)
    names = {str(name) for name in dataset.variables}
    stored = await run_in_new_thread(partial(_stored_variables, arrays, names))
    region: dict[str, slice] | None = {} if request.mode == "r+" else None  # all of it
    dataset = _with_units_of_bounds(dataset, stored)
    if request.region is not None:
        dataset, region = await run_in_new_thread(partial(locate_region, dataset, request.region, stored))
    elif request.append_dim is not None:
        options = stored, request.append_dim, request.on_mismatch
        dataset = await run_in_new_thread(partial(without_stored_coordinates, dataset, *options))
    return WriteJob(path, request, dataset, group, format_, arrays, stored, region, is_new=group is None)


async def _stored_arrays(group: AsyncGroup, request: WriteRequest, dataset: Dataset) -> dict[str, AsyncArray]:
    """Return the arrays of a group, without consolidated metadata, which may be older than the arrays.

    If only values or rows are added, the copies of documents show which arrays exist, and save a listing.
    """
    handle = handle_of(group)
    updates = request.append_dim is not None or request.region is not None or request.mode == "r+"
    source = group if updates else with_handle(group, handle.without_consolidated())
    arrays = dict(await source.arrays())
    arrays = {name: with_handle(array, handle_of(array).without_consolidated()) for name, array in arrays.items()}
    if updates and handle.consolidated is not None:
        await gather([array.refresh for name, array in arrays.items() if name in dataset.variables])
    return arrays


def _stored_variables(arrays: Mapping[str, AsyncArray], decoded: Collection[str]) -> dict[str, Variable]:
    """Return arrays as variables, some of them decoded.

    They are not parts of a dataset: another writer may have extended some of the arrays, and be about to extend others.
    """
    variables = {name: stored_variable(name, sync.Array(array), mask=None) for name, array in arrays.items()}
    for name, attributes in _with_inherited_units(variables, variables.keys() & decoded).items():
        variables[name].attrs = attributes
    return {
        name: decode_cf_variable(name, variable, concat_characters=False) if name in decoded else variable
        for name, variable in variables.items()
    }


def _with_inherited_units(variables: Mapping[Any, Variable], names: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """Return the attributes of variables. Bounds without units have the units of their coordinate, which may be decoded."""
    attributes = {name: {**variable.encoding, **variable.attrs} for name, variable in variables.items()}
    parents = parents_of_bounds(attributes)
    return {name: inherited_attributes(variables[name].attrs, attributes.get(parents.get(name, ""))) for name in names}


def _with_units_of_bounds(dataset: Dataset, stored: Collection[str]) -> Dataset:
    """Return a dataset with the units of bounds in numbers that are stored like existing ones."""
    names = [name for name, variable in dataset.variables.items() if name in stored and variable.dtype.kind in "iuf"]
    attributes = _with_inherited_units(dataset.variables, names)
    changed = {name: own for name, own in attributes.items() if own != dataset.variables[name].attrs}
    return dataset.assign({name: dataset[name].assign_attrs(own) for name, own in changed.items()})


# ------------------------------------------------------------------ validate


async def _validate(job: WriteJob) -> None:
    """Plan all variables, and raise errors for invalid ones before anything is changed."""
    request = job.request
    check_append_dim(job.stored, request.append_dim)
    variables, attributes = encode_dataset_coordinates(job.dataset)
    planner = Planner(job.format, request.append_dim, job.region, request.lossy)
    names = [str(name) for name in variables if not _stays(str(name), variables[name], job)]

    def plan_all() -> list[VariablePlan]:
        return [planner.plan(n, variables[n], request.encoding.get(n), job.stored.get(n)) for n in names]

    job.plans = await run_in_new_thread(plan_all)  # encoding values takes long, and may read them
    for plan in job.plans:
        if not plan.updates and request.mode != "w-":
            path = request.group if request.mode == "w" else join(request.group, plan.name)
            refuse_self_overwrite(request.store, path, plan.encoded)
        elif request.mode == "r+" and request.region is None:
            refuse_self_overwrite(request.store, join(request.group, plan.name), plan.encoded)
    if any(is_dask_array(plan.encoded.data) for plan in job.plans):
        await compute(partial(check_reach, request.store))  # on a thread: dask's client may run on this loop
    check_sizes(job.plans, job.stored, request.append_dim)
    check_chunks(job)
    job.attributes = checked_attributes(json_attributes(attributes))
    await _check_replacements(job, variables)
    if job.group is not None:
        await _refuse_groups(job.group, [plan.name for plan in job.plans if plan.name not in job.stored])


async def _check_replacements(job: WriteJob, variables: Mapping[Any, Variable]) -> None:
    """Compute lazy values that replace stored arrays, so that they are refused before the arrays are erased.

    They are computed again when they are stored, because they may not fit into memory.

    Raises:
        EncodingError: If an encoding cannot represent a value.
    """
    lazy = [
        plan.encoded.data
        for plan in job.plans
        if not plan.updates and plan.name in job.stored and is_dask_array(plan.encoded.data)
        if plan.encoded.data is not variables[plan.name].data  # otherwise the values are stored as they are
    ]
    if lazy and job.request.lossy == "error":
        from zarrasync.integrations.dask_write import compute_only

        await compute(partial(compute_only, lazy, job.request.options.chunkmanager_store_kwargs or {}))


def _stays(name: str, variable: Variable, job: WriteJob) -> bool:
    """Return whether mode ``"a-"`` keeps the stored variable: no rows are appended to it."""
    append_dim = job.request.append_dim
    is_kept = job.request.mode == "a-" and append_dim is not None
    return is_kept and name in job.stored and append_dim not in variable.dims


async def _refuse_groups(group: AsyncGroup, names: Sequence[str]) -> None:
    """Reject variables with the names of groups, because the groups would be replaced with all members."""
    for name, node in zip(names, await gather([partial(group.get, name) for name in names]), strict=True):
        if isinstance(node, AsyncGroup):
            raise NodeExistsError(
                f"{node.name} in {group.store!r} is a group, so variable {name!r} cannot be stored there"
            )
