"""``write_dataset`` and its asynchronous twin."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, Literal

from xarray import Dataset

from zarrasync._concurrency import bridge
from zarrasync._util.short_tracebacks import short_tracebacks
from zarrasync._util.suggestions import suggest
from zarrasync.display.progress import IngestReport
from zarrasync.integrations.dask_detect import seceded
from zarrasync.integrations.xarray.job import WriteRequest
from zarrasync.integrations.xarray.regions import RegionLike
from zarrasync.integrations.xarray.write import write
from zarrasync.model.paths import normalize_path
from zarrasync.stores import StoreLike, resolve

__all__ = ["write_dataset", "write_dataset_async"]

_MODES = ("w-", "w", "a", "r+")


@short_tracebacks
async def write_dataset_async(
    dataset: Dataset,
    store: StoreLike,
    *,
    group: str = "",
    mode: Literal["w-", "w", "a", "r+"] | None = None,
    append_dim: str | None = None,
    region: RegionLike | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    zarr_format: Literal[2, 3] | None = None,
    consolidated: bool | None = None,
    verify: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    config: Any = None,
) -> dict[str, IngestReport]:
    """Write a dataset, all variables concurrently. The result is stored as xarray's own Zarr engine would store it.

    Args:
        dataset: The dataset. All dask variables are one computation on the configured scheduler, so that tasks they
            share run once. Blocks are rechunked to whole stored chunks.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        group: The group's path in the store.
        mode: ``"w-"`` creates a group, ``"w"`` replaces one, ``"r+"`` writes into an existing one, and ``"a"`` adds
            variables and replaces existing ones. With ``"a"``, a variable without an encoding inherits chunks, shards
            and compressors from the variable that it replaces if the dimensions are the same. It inherits data type
            and packing if its values are in memory and fit. Default: ``"a"`` with ``append_dim``, ``"r+"`` with
            ``region``, else ``"w-"``.
        append_dim: Append variables with this dimension, and overwrite others. Values are encoded like the existing
            values. The dataset must contain every stored variable with this dimension.
        region: The slices to write into by dimension, or ``"auto"`` to locate one by its coordinates; ``"auto"`` alone
            for all dimensions. Coordinates that are already stored are not written again.
        encoding: Encodings by variable: xarray's keys (``dtype``, ``units``, ``scale_factor``, ``_FillValue``, …) and
            parameters of ``create_array`` (``chunks``, ``shards``, ``compressors``, ``filters``, …).
        zarr_format: 2 or 3. Default: the existing group's format, or 3.
        consolidated: Whether to write consolidated metadata; ``None`` for format 2 only.
        verify: Read all values back and compare them.
        storage_options: Options for the filesystem of a URL.
        config: Settings. ``unaligned`` specifies whether a region may cover parts of chunks, and whether rows may be
            appended if the store does not support conditional writes.

    Returns:
        A report per variable.

    Raises:
        NodeExistsError: If the group exists and the mode is ``"w-"``, if a group has the name of a variable, or if the
            dataset is read from the arrays that it would replace.
        ShapeError: If a variable does not fit the stored one, if variables differ in length before or after an append,
            or if values of other writers could be lost.
        MetadataError: If an attribute cannot be written as JSON.
        CodecError: If values cannot be stored in the data type or the units of the stored variable.
        ValueError: If a variable has no dimension of the region, coordinates differ from stored ones, or parameters
            contradict each other.
    """
    checked_mode = _check_arguments(dataset, mode, append_dim, region)
    request = WriteRequest(
        resolve(store, storage_options, config),
        normalize_path(group),
        checked_mode,
        append_dim=append_dim,
        region=region,
        encoding=encoding or {},
        zarr_format=zarr_format,
        consolidated=consolidated,
        verify=verify,
        config=config,
    )
    async with request.store.in_use():
        return await write(dataset, request)


def _check_arguments(dataset: Dataset, mode: Any, append_dim: str | None, region: RegionLike | None) -> Any:
    """Return the mode, or the default one.

    Raises:
        TypeError: If ``dataset`` is not a ``Dataset``.
        ValueError: If the arguments contradict each other.
    """
    if append_dim is not None and region is not None:
        raise ValueError(
            "append_dim and region exclude each other: append_dim adds rows, region overwrites existing rows"
        )
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"write_dataset needs a Dataset, found {type(dataset).__name__}; convert it, for example with to_dataset()"
        )
    chosen = mode or ("a" if append_dim is not None else "r+" if region is not None else "w-")
    if chosen not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(_MODES)}; found {mode!r}")
    if (append_dim is not None or region is not None) and chosen in ("w", "w-"):
        name = "region" if append_dim is None else "append_dim"
        raise ValueError(f"mode={chosen!r} creates a group, but {name} adds to an existing one: pass one of them")
    if append_dim is not None and append_dim not in dataset.dims:
        raise ValueError(f"the dataset has no dimension {append_dim!r}; it has {', '.join(map(str, dataset.dims))}")
    return chosen


def write_dataset(dataset: Dataset, store: StoreLike, **options: Any) -> dict[str, IngestReport]:
    """Write a dataset; ``write_dataset_async`` for synchronous code.

    Args:
        dataset: The dataset.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        **options: As for ``write_dataset_async``.
    """
    unknown = sorted({*options} - {*signature(write_dataset_async).parameters})
    if unknown:
        parameters = [name for name in signature(write_dataset_async).parameters if name not in ("dataset", "store")]
        hint = suggest(unknown[0], parameters, f"the options are {', '.join(parameters)}")
        raise TypeError(f"write_dataset() got an unexpected keyword argument {unknown[0]!r}; {hint}")
    is_lazy = isinstance(dataset, Dataset) and any(v.chunks is not None for v in dataset.variables.values())
    with seceded(waits=is_lazy):
        return bridge.run(write_dataset_async(dataset, store, **options), blocking=False)
