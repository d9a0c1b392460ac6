"""``write_dataset`` and its asynchronous twin."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

from xarray import DataArray, Dataset, DataTree

from zarrasync import config as settings
from zarrasync import sync
from zarrasync._concurrency import bridge
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.advice import OVERWRITE_BY_MODE, in_terms_of
from zarrasync.bulk.jobs.claimed_work import begin_plan
from zarrasync.bulk.jobs.plan import AsyncJobPlan, name_of
from zarrasync.bulk.jobs.plan_location import PlanLocation
from zarrasync.display.progress import ProgressLike
from zarrasync.errors import UnsupportedOperation
from zarrasync.integrations.dask_targets import seceded
from zarrasync.integrations.xarray.claims import OnDuplicate
from zarrasync.integrations.xarray.coordinates import OnMismatch, RegionLike
from zarrasync.integrations.xarray.job import DatasetLike, Mode, WriteOptions, WriteRequest, datasets_of, encodings_of
from zarrasync.integrations.xarray.values import DatasetWork
from zarrasync.integrations.xarray.write import planned_jobs, write
from zarrasync.metadata.conventions.cf_encode import Lossy
from zarrasync.model.paths import normalize_path
from zarrasync.stores import StoreLike, resolve

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


async def write_dataset_async(
    dataset: DatasetLike,
    store: StoreLike,
    *,
    group: str | None = None,
    mode: Mode | None = None,
    append_dim: str | None = None,
    region: RegionLike | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    zarr_format: Literal[2, 3] | None = None,
    lossy: Lossy = "error",
    on_mismatch: OnMismatch = "error",
    on_duplicate: OnDuplicate = "error",
    verify: bool = False,
    progress: ProgressLike = False,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: Any = None,
) -> Any:
    """Write a dataset, all variables concurrently. The result is stored as xarray's own Zarr engine would store it.

    Args:
        dataset: A ``Dataset``, a ``DataArray``, or a ``DataTree``, whose groups are written together. All dask variables
            are one computation on the configured scheduler, so that tasks they share run once.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        group: The group's path in the store.
        mode: ``"w-"`` creates a group, ``"w"`` replaces one, ``"r+"`` writes values into existing variables, and
            ``"a"`` adds variables and replaces existing ones of the same sizes. A variable inherits chunks, shards and
            compressors from the one that it replaces. It inherits data type and packing if its values are in memory
            and fit. ``"a-"`` is ``"a"``, but with ``append_dim`` it keeps existing variables without that dimension.
            Default: ``"a"`` with ``append_dim``, ``"r+"`` with ``region``, else ``"w-"``.
        append_dim: Append variables with this dimension, and overwrite others except for coordinates, which must be equal
            to the stored ones (see ``on_mismatch``). Values are encoded like the existing values. The dataset must contain
            every stored variable with this dimension.
        region: The slices to write into by dimension, or ``"auto"`` to locate one by its coordinates; ``"auto"`` alone
            for all dimensions. Coordinates that are already stored are not written again.
        encoding: Encodings of new variables by name: xarray's keys (``dtype``, ``units``, ``scale_factor``,
            ``_FillValue``, …) and parameters of ``create_array`` (``chunks``, ``shards``, ``compressors``, ``filters``,
            …). For a tree, encodings by the path of the group.
        zarr_format: 2 or 3. Default: the existing group's format, or 3.
        lossy: What to do with values that their encoding cannot represent. These are values out of the range of the data
            type, and NaN, infinity and NaT without a number for them. Values that are equal to the number for missing ones
            count as well. ``"error"`` refuses them. ``"warn"`` and ``"allow"`` store other numbers. Integers
            out of range lose their highest bits. Infinity in integers and missing values without a number become 0. Floats
            that are too large become infinity. A value that is equal to the number for missing ones is read as missing.
            ``valid_range`` is not checked, as in xarray. netCDF4 and the decoded views of zarrasync show values outside of
            it as missing. Rounding to the step of
            the encoding (``scale_factor``, or 1 for integers) or to the precision of the data type is always allowed in
            new arrays. Existing arrays of integers without ``scale_factor`` get whole numbers only. If values that are
            computed by dask are refused, new nodes are erased, and appended rows are removed. Values that replace stored
            variables are computed twice if they are encoded, so that they are refused before the variables are erased;
            ``mode="w"`` erases the existing group first in any case.
        on_mismatch: What to do if coordinates that ``append_dim`` does not extend, their bounds, or the reference system
            differ from the stored ones: ``"error"`` refuses the append, ``"ignore"`` keeps the stored ones. Equal ones are
            not written again.
        on_duplicate: What to do with rows of ``append_dim`` whose labels exist already in its coordinate, in the store or
            earlier in the dataset. ``"error"`` refuses the append, so that a repeated call cannot store rows twice.
            ``"skip"`` leaves these rows out, ``"replace"`` writes the existing rows again in place, and
            ``"allow"`` appends all rows. Labels are compared as they are stored: times in other units are the same
            times. Missing labels are equal to each other, as in pandas. Without a coordinate, nothing is compared. While
            another writer appends the same labels, the call waits for it. If a writer was killed, an append of the same
            labels writes its rows again in place.
        verify: Read all values back and compare them. Values that dask computes are compared block by block.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
            its last call, or a ``Monitor``.
        options: Rarer arguments.
        storage_options: Options for the filesystem of a URL.
        config: Settings. ``unaligned`` specifies whether parts of chunks may be written, and rows appended, if the store
            does not support conditional writes; ``write_empty_chunks`` whether chunks that contain only the fill value
            are stored.

    Returns:
        A ``WriteReport``: a dict with a report per variable, which shows as a table. With ``WriteOptions(compute=False)`` a
        ``dask.delayed.Delayed`` object, whose ``compute()`` writes the dask variables and returns the report.

    Raises:
        NodeExistsError: If the group exists and the mode is ``"w-"``, if a group has the name of a variable, or if the
            dataset is read from the arrays that it would replace.
        NodeNotFoundError: If the mode is ``"r+"`` and the group or a variable does not exist.
        ShapeError: If a variable does not fit the stored one, if variables differ in length before or after an append,
            if labels that are appended exist already, or if values of other writers could be lost.
        WriteConflictError: If another writer continued to append the same labels until ``config.total_timeout``.
        MetadataError: If an attribute cannot be written as JSON.
        UnsupportedOperation: If ``options.consolidated`` is set and the store does not support it.
        EncodingError: If an encoding cannot represent a value, or values have other units than the stored ones.
        ValueError: If a variable has no dimension of the region, coordinates differ from the stored ones, an existing
            variable has an encoding, or parameters contradict each other.
    """
    options = options or WriteOptions()
    datasets = datasets_of(dataset, inherit=options.write_inherited_coords)
    chosen = _checked_mode(datasets, mode, append_dim, region)
    place = resolve(store, storage_options, config), normalize_path("" if group is None else group)
    policies: Any = {"lossy": lossy, "on_mismatch": on_mismatch, "on_duplicate": on_duplicate, "verify": verify}
    parameters: Any = {"progress": progress, "options": options, "config": config, **policies}
    request = WriteRequest(*place, chosen, append_dim, region, {}, zarr_format, **parameters)
    async with _in_use(request):
        return await write(await planned_jobs(datasets, encodings_of(dataset, encoding), request))


async def plan_write_dataset_async(
    dataset: DatasetLike,
    store: StoreLike,
    *,
    group: str | None = None,
    mode: Literal["w-", "w"] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    zarr_format: Literal[2, 3] | None = None,
    lossy: Lossy = "error",
    options: WriteOptions | None = None,
    tasks: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    config: Any = None,
) -> AsyncJobPlan:
    """Plan a new dataset whose tasks run anywhere; see ``write_dataset_async`` and ``zarrasync.AsyncJobPlan``.

    Each task computes and writes regions of variables. Values that dask computes for several tasks are computed by each of
    them. Readers see the dataset when the plan is finished, as its documents are stored last. The plan has no document,
    because the dataset has no name, but it can be pickled; a task that is sent to another process contains its values only.

    Args:
        dataset: As for ``write_dataset_async``.
        store: As for ``write_dataset_async``.
        group: As for ``write_dataset_async``.
        mode: ``"w-"`` creates a group, ``"w"`` replaces one, which is erased now. Default: ``"w-"``.
        encoding: As for ``write_dataset_async``.
        zarr_format: As for ``write_dataset_async``.
        lossy: As for ``write_dataset_async``. Values that are computed by dask are refused by the task that computes them.
        options: As for ``write_dataset_async``, without those for the computation of dask variables.
        tasks: About how many tasks to make. Default: tasks of 256 MiB.
        storage_options: As for ``write_dataset_async``.
        config: As for ``write_dataset_async``.

    Returns:
        The plan.

    Raises:
        NodeExistsError: If a node exists, and the mode is ``"w-"``.
        UnsupportedOperation: If the dataset would be added to an existing one, or if no plan can be made for the store,
            such as an archive.
        WriteConflictError: If another job writes the group, or another plan for it is not finished.
        EncodingError: If an encoding cannot represent a value in memory.

    Example:
        >>> import xarray as xr
        >>> store, temperature = {}, xr.DataArray([280.0, 281.5], dims="time", name="t2m")
        >>> plan = await plan_write_dataset_async(temperature, store)
        >>> for task in plan.tasks:
        ...     report = await plan.run(task)
        >>> report = await plan.finish()
        >>> await za.load(store, path="t2m")
        array([280. , 281.5])
    """
    options = options or WriteOptions()
    if mode not in (None, "w-", "w"):
        raise UnsupportedOperation(
            f"plans create or replace whole datasets, so mode={mode!r} cannot be planned; call write_dataset"
        )
    if options != WriteOptions(
        consolidated=options.consolidated, write_inherited_coords=options.write_inherited_coords
    ):
        raise UnsupportedOperation(
            "the tasks of plans compute whole regions; omit compute, align_chunks and chunkmanager_store_kwargs"
        )
    place = resolve(store, storage_options, config), normalize_path("" if group is None else group)
    request = WriteRequest(*place, mode or "w-", zarr_format=zarr_format, lossy=lossy, options=options, config=config)
    if request.store.notes is not request.store:
        raise UnsupportedOperation(
            f"no plan of a dataset can be made for {request.store!r}, because its tasks would not share a commit; call "
            "write_dataset"
        )
    async with _in_use(request):
        datasets = datasets_of(dataset, inherit=options.write_inherited_coords)
        jobs = await planned_jobs(datasets, encodings_of(dataset, encoding), request)
        work = await run_in_new_thread(partial(DatasetWork.of_jobs, jobs, name_of(store), tasks))
        return await begin_plan(work, PlanLocation.of(None, work.dest, storage_options, settings.resolve(config)))


@asynccontextmanager
async def _in_use(request: WriteRequest) -> AsyncIterator[None]:
    """Use the store inside a ``with`` block, whose errors are in terms of the parameters of ``write_dataset``."""
    advice = [OVERWRITE_BY_MODE, ("unaligned='allow'", "config={'unaligned': 'allow'}")]
    name = "append_dim" if request.append_dim is not None else "region" if request.region is not None else ""
    if name:
        advice.append(("mode='w'", f"mode='w' instead of {name}"))
    async with request.store.in_use():
        with in_terms_of(*advice):
            yield


def _checked_mode(
    datasets: Mapping[str, Dataset], mode: Mode | None, append_dim: str | None, region: RegionLike | None
) -> Mode:
    """Return the mode, or the default one.

    Raises:
        ValueError: If the arguments contradict each other.
    """
    if append_dim is not None and region is not None:
        raise ValueError(
            "append_dim and region exclude each other: append_dim adds rows, region overwrites existing rows"
        )
    chosen: Mode = mode or ("a" if append_dim is not None else "r+" if region is not None else "w-")
    if (append_dim is not None or region is not None) and chosen in ("w", "w-"):
        name = "region" if append_dim is None else "append_dim"
        raise ValueError(f"mode={chosen!r} creates a group, but {name} adds to an existing one: pass one of them")
    if append_dim is not None and chosen == "r+":
        raise ValueError("mode='r+' changes no sizes, but append_dim extends a dimension: pass mode='a' or no mode")
    dims = {str(dim) for dataset in datasets.values() for dim in dataset.dims}
    if append_dim is not None and append_dim not in dims:
        raise ValueError(f"the dataset has no dimension {append_dim!r}; it has {', '.join(sorted(dims))}")
    return chosen


def _blocking(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Return a decorator for synchronous code, which makes a function with the parameters of an asynchronous one.

    The decorated function converts the result.
    """

    def decorate(convert: Callable[[T], R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(convert)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                dataset = signature.bind(*args, **kwargs).arguments["dataset"]
            except TypeError as error:
                raise TypeError(f"{convert.__name__}() {error}") from None
            with seceded(waits=_is_lazy(dataset)):
                return convert(bridge.run(function(*args, **kwargs), blocking=False))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


@_blocking(write_dataset_async)
def write_dataset(report: Any) -> Any:
    """Write a dataset, an array or a tree; ``write_dataset_async`` for synchronous code, with the same arguments.

    Example:
        >>> import xarray as xr
        >>> temperature = xr.DataArray([280.0, 281.5], dims="time", name="t2m")
        >>> report = write_dataset(temperature, {}, encoding={"t2m": {"dtype": "f4"}})
        >>> report["t2m"].nbytes
        8
    """
    return report


@_blocking(plan_write_dataset_async)
def plan_write_dataset(plan: AsyncJobPlan) -> sync.JobPlan:
    """Plan a new dataset whose tasks run anywhere; ``plan_write_dataset_async`` for synchronous code.

    Example:
        >>> import xarray as xr
        >>> temperature = xr.DataArray([280.0, 281.5], dims="time", name="t2m")
        >>> plan = plan_write_dataset(temperature, {})
        >>> report = plan.run()
        >>> plan.finish().arrays
        1
    """
    return sync.JobPlan(plan)


def _is_lazy(dataset: Any) -> bool:
    """Return whether a variable is a dask array."""
    if isinstance(dataset, DataTree):
        return any(_is_lazy(node.dataset) for node in dataset.subtree)
    if isinstance(dataset, DataArray):
        return dataset.chunks is not None or _is_lazy(dataset.coords)
    return any(v.chunks is not None for v in getattr(dataset, "variables", {}).values())
