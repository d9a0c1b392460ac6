"""The xarray backend ``engine="zarrasync"``, and ``write_dataset`` to write datasets.

Arrays are lazy and can be pickled, and ``await dataset.load_async()`` reads all variables concurrently. Dimensions come
from ``dimension_names`` or xarray's attribute ``_ARRAY_DIMENSIONS``. Fill values and encodings follow xarray's own
engine for Zarr.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any, Literal, TypeVar

from xarray import DataArray, Dataset, DataTree, Variable
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint
from xarray.backends.zarr import FillValueCoder

from zarrasync import sync
from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather
from zarrasync._util.short_tracebacks import RAISED, short_tracebacks, shorten
from zarrasync._util.suggestions import suggest
from zarrasync.display.progress import IngestReport
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, StoreError
from zarrasync.integrations import xarray_write
from zarrasync.integrations.dask_detect import seceded
from zarrasync.integrations.xarray_encode import without_nan
from zarrasync.integrations.xarray_job import WriteRequest
from zarrasync.integrations.xarray_read import FILL, GroupDataStore, fetch_coordinates
from zarrasync.integrations.xarray_regions import RegionLike
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.stores import StoreLike, resolve

__all__ = ["ZarrasyncBackend", "load", "stored_variables", "write_dataset", "write_dataset_async"]


def stored_variables(dataset: Dataset) -> dict[str, Variable]:
    """Return the variables of a dataset that was not decoded, with attributes that Zarr can store.

    ``_FillValue`` is encoded as xarray's own engine encodes it.
    """
    variables = {}
    for name, variable in dataset.variables.items():
        attributes = without_nan(variable.attrs, variable.dtype)
        if FILL in attributes:
            attributes[FILL] = FillValueCoder.encode(attributes[FILL], variable.dtype)
        variables[str(name)] = variable.copy(deep=False)
        variables[str(name)].attrs = attributes
    return variables


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
    return await xarray_write.write(dataset, request)


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


Loadable = TypeVar("Loadable", Dataset, DataArray, DataTree)


def load(data: Loadable) -> Loadable:
    """Read all values of a dataset, an array or a tree into memory, all variables at the same time.

    ``data.load()`` does the same, but reads one variable after the other. It can also be called inside a running event
    loop, as in notebooks.

    Args:
        data: What ``xarray`` opened with any engine. It is changed.

    Returns:
        The same object.

    Example:
        >>> import xarray as xr
        >>> store = sync.create_group({}).store
        >>> _ = sync.create_array(store, path="t2m", data=[280.0, 281.5], dimension_names=["time"])
        >>> load(xr.open_dataset(store, engine="zarrasync")).t2m.values.tolist()
        [280.0, 281.5]
    """
    parts = [node.dataset for node in data.subtree] if isinstance(data, DataTree) else [data]
    bridge.run(gather([part.load_async for part in parts]), blocking=False)
    return data


class ZarrasyncBackend(BackendEntrypoint):
    """The xarray engine ``"zarrasync"``."""

    description = "Zarr of every format through zarrasync, with async loading"
    url = "https://zarrasync.readthedocs.io"
    supports_groups = True

    def open_dataset(
        self,
        filename_or_obj: StoreLike,
        *,
        mask_and_scale: bool = True,
        decode_times: bool = True,
        concat_characters: bool = True,
        decode_coords: bool = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: bool | None = None,
        decode_timedelta: bool | None = None,
        group: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: int | str | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        config: Any = None,
    ) -> Dataset:
        """Open a group of arrays as a dataset.

        Args:
            filename_or_obj: A store, path, URL, mapping, or fsspec filesystem or mapper.
            mask_and_scale: As for ``xarray.open_dataset``.
            decode_times: Likewise.
            concat_characters: Likewise.
            decode_coords: Likewise.
            drop_variables: Likewise.
            use_cftime: Likewise.
            decode_timedelta: Likewise.
            group: The group's path in the store.
            storage_options: Options for the filesystem of a URL.
            zarr_format: The format; ``None`` to detect it.
            consolidated: Whether to use consolidated metadata; ``None`` to use it if it exists.
            use_zarr_fill_value_as_mask: Whether the arrays' fill values mean missing; ``None`` for format 2 only.
            config: Settings.
        """
        try:
            node = _open(filename_or_obj, group, storage_options, zarr_format, consolidated, config)
            dropped = _names(drop_variables)
            arrays = {name: array for name, array in node.arrays() if name not in dropped}
            group_store = GroupDataStore(node, arrays, mask=use_zarr_fill_value_as_mask)
            fetch_coordinates([group_store])
            return StoreBackendEntrypoint().open_dataset(
                group_store,
                mask_and_scale=mask_and_scale,
                decode_times=decode_times,
                concat_characters=concat_characters,
                decode_coords=decode_coords,
                drop_variables=drop_variables,
                use_cftime=use_cftime,
                decode_timedelta=decode_timedelta,
            )
        except RAISED as error:  # the frame of this method would show all of its text
            shorten(error)
            raise

    def open_groups_as_dict(
        self, filename_or_obj: StoreLike, *, group: str | None = None, **options: Any
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it as datasets by path."""
        names = ("storage_options", "zarr_format", "consolidated", "config")
        node = _open(filename_or_obj, group, *(options.pop(name, None) for name in names))
        mask, dropped = options.pop("use_zarr_fill_value_as_mask", None), _names(options.get("drop_variables"))
        members = dict(node.members(max_depth=None))
        groups = {"": node, **{path: member for path, member in members.items() if isinstance(member, sync.Group)}}
        arrays: dict[str, dict[str, sync.Array]] = {path: {} for path in groups}
        for path, member in members.items():
            parent, _, name = path.rpartition("/")
            if isinstance(member, sync.Array) and name not in dropped:
                arrays[parent][name] = member
        stores = {path: GroupDataStore(groups[path], arrays[path], mask=mask, path=path) for path in groups}
        fetch_coordinates(stores.values())
        open_dataset = StoreBackendEntrypoint().open_dataset
        return {f"/{path}": open_dataset(group_store, **options) for path, group_store in stores.items()}

    def open_datatree(self, filename_or_obj: StoreLike, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return ``False``: the engine is used only if it is selected by name."""
        return False


def _open(
    store: StoreLike,
    group: str | None,
    storage_options: Mapping[str, Any] | None,
    zarr_format: int | str | None,
    consolidated: bool | None,
    config: Any,
) -> sync.Group:
    """Open a group, from the consolidated metadata of the root if it exists.

    As in xarray's own engines, ``~`` in a path is the user's home directory.
    """
    resolved = resolve(os.path.expanduser(store) if isinstance(store, str) else store, storage_options, config)
    open_group = partial(sync.open_group, resolved, zarr_format=zarr_format, config=config)
    path = normalize_path(group or "")
    if path and consolidated is not False:
        # The root may not be a readable group.
        with suppress(NodeNotFoundError, NodeTypeError, MetadataError, StoreError):
            root = open_group()
            if handle_of(root.async_).consolidated is not None:
                member = root.get(path)
                if isinstance(member, sync.Group):
                    return member
    return open_group(path=path, use_consolidated=consolidated)


def _names(variables: str | Iterable[str] | None) -> set[str]:
    return {variables} if isinstance(variables, str) else set(variables or ())
