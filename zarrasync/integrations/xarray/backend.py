"""The xarray backend ``engine="zarrasync"``, ``open_mfdataset``, which opens all stores at the same time, and ``load``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import xarray as xr
from xarray import DataArray, Dataset, DataTree
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint

from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather
from zarrasync.integrations.xarray.content import GroupOpener, names_of, open_content, open_tree
from zarrasync.integrations.xarray.read import GroupDataStore, PreparedDataset, fetch_coordinates
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import StoreLike

_OF_SOURCE = ("storage_options", "zarr_format", "consolidated", "config")
"""Arguments of the engine that concern the store."""
_DECODERS = ("mask_and_scale", "decode_times", "concat_characters", "decode_coords", "use_cftime", "decode_timedelta")
"""Arguments of the engine that concern the decoding of variables."""


class ZarrasyncBackend(BackendEntrypoint):
    """The xarray engine ``"zarrasync"``."""

    description = "Zarr of every format through zarrasync, with async loading"
    url = "https://zarrasync.readthedocs.io"
    supports_groups = True

    def open_dataset(
        self,
        filename_or_obj: StoreLike | PreparedDataset,
        *,
        mask_and_scale: bool = True,
        decode_times: bool = True,
        concat_characters: bool = True,
        decode_coords: bool = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: bool | None = None,
        decode_timedelta: bool | None = None,
        group: str | None = None,
        level: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: int | str | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        config: Any = None,
    ) -> Dataset:
        """Open a group of arrays, an array, or a level of a pyramid as a dataset.

        Coordinates and the reference system that conventions specify (OME-Zarr, zarr-conventions) are added.

        Args:
            filename_or_obj: A store, path, URL, mapping, or fsspec filesystem or mapper.
            mask_and_scale: As for ``xarray.open_dataset``.
            decode_times: Likewise.
            concat_characters: Likewise.
            decode_coords: Likewise.
            drop_variables: Likewise.
            use_cftime: Likewise.
            decode_timedelta: Likewise.
            group: The path of the group in the store, or of a level of a pyramid.
            level: The level of a pyramid, from 0 for the finest one; negative numbers count from the coarsest one. By
                default, the finest level if the levels are arrays.
            storage_options: Options for the filesystem of a URL.
            zarr_format: The format; ``None`` to detect it.
            consolidated: Whether to use consolidated metadata; ``None`` to use it if it exists.
            use_zarr_fill_value_as_mask: Whether the arrays' fill values mean missing; ``None`` for format 2 only.
            config: Settings.
        """
        given = dict(locals())
        if isinstance(filename_or_obj, PreparedDataset):
            group_store = filename_or_obj.result()
        else:
            options = {"storage_options": storage_options, "zarr_format": zarr_format, "consolidated": consolidated}
            opener = GroupOpener.of(filename_or_obj, config=config, **options)
            opening = open_content(
                opener, normalize_path("" if group is None else group), level, names_of(drop_variables)
            )
            content = bridge.run(opening, blocking=opener.store.blocking)
            group_store = GroupDataStore(content, mask=use_zarr_fill_value_as_mask)
            fetch_coordinates([group_store])
        decoders = {name: given[name] for name in _DECODERS}
        dataset = StoreBackendEntrypoint().open_dataset(group_store, drop_variables=drop_variables, **decoders)
        return _with_coordinates(dataset, group_store)

    def open_groups_as_dict(
        self, filename_or_obj: StoreLike, *, group: str | None = None, **options: Any
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it as datasets by path. Levels of pyramids that are arrays are datasets as well."""
        opener = GroupOpener.of(filename_or_obj, **{name: options.pop(name, None) for name in _OF_SOURCE})
        mask, dropped = options.pop("use_zarr_fill_value_as_mask", None), names_of(options.get("drop_variables"))
        opening = open_tree(opener, normalize_path("" if group is None else group), dropped)
        contents = bridge.run(opening, blocking=opener.store.blocking)
        stores = {path: GroupDataStore(content, mask=mask, path=path) for path, content in contents.items()}
        fetch_coordinates(stores.values())
        open_dataset = StoreBackendEntrypoint().open_dataset
        datasets = {path: open_dataset(group_store, **options) for path, group_store in stores.items()}
        return {f"/{path}": _with_coordinates(dataset, stores[path]) for path, dataset in datasets.items()}

    def open_datatree(self, filename_or_obj: StoreLike, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return ``False``: the engine is used only if it is selected by name."""
        return False


def _with_coordinates(dataset: Dataset, group_store: GroupDataStore) -> Dataset:
    """Return a dataset in which computed variables are coordinates. It closes the store as the given one does."""
    complete = dataset.set_coords(group_store.computed.keys() & dataset.variables.keys())
    complete.set_close(group_store.close)
    return complete


Loadable = TypeVar("Loadable", DataArray, Dataset, DataTree)


def open_mfdataset(paths: Any, **options: Any) -> xr.Dataset:
    """Open many stores as one dataset, as ``xarray.open_mfdataset`` does, but all stores at the same time.

    ``xarray.open_mfdataset`` opens one store after the other, or as many at a time as dask has threads.

    Args:
        paths: Stores, paths or URLs, in lists that may be nested; or a pattern of local paths.
        **options: Arguments of ``xarray.open_mfdataset`` except ``engine``, and of the engine ``"zarrasync"``.

    Returns:
        The dataset. Its variables are dask arrays.

    Raises:
        ZarrError: If a store cannot be opened, as by ``xarray.open_dataset``.

    Example:
        >>> stores = [{}, {}]
        >>> for day, store in enumerate(stores):
        ...     _ = sync.save(store, t2m=np.full((1, 3), day))
        >>> open_mfdataset(stores, combine="nested", concat_dim="t2m_dim_0").t2m.values.tolist()
        [[0, 0, 0], [1, 1, 1]]
    """
    if isinstance(paths, str | os.PathLike):
        return xr.open_mfdataset(paths, engine=ZarrasyncBackend, **options)
    given = list(_flat(paths))
    prepared = iter(_prepare(given, {**options, **(options.get("backend_kwargs") or {})}))
    return xr.open_mfdataset(_replaced(paths, prepared), engine=ZarrasyncBackend, **options)


def _flat(paths: Iterable[Any]) -> Iterator[StoreLike]:
    for path in paths:
        if isinstance(path, list):
            yield from _flat(path)
        else:
            yield path


def _replaced(paths: Iterable[Any], prepared: Iterator[PreparedDataset]) -> list[Any]:
    """Return the same lists with prepared datasets in place of stores."""
    return [_replaced(path, prepared) if isinstance(path, list) else next(prepared) for path in paths]


def _prepare(stores: list[StoreLike], options: Mapping[str, Any]) -> list[PreparedDataset]:
    """Fetch the documents and the coordinates of a dataset of each store, with the arguments of the engine.

    Errors are raised when xarray opens the store that they concern.
    """
    path, dropped = normalize_path(options.get("group") or ""), names_of(options.get("drop_variables"))

    async def open_one(store: StoreLike) -> GroupDataStore | Exception:
        try:
            opener = GroupOpener.of(store, **{name: options.get(name) for name in _OF_SOURCE})
            opening = partial(open_content, opener, path, options.get("level"), dropped)
            content = await run_on_store(opening, opener.store)
            return GroupDataStore(content, mask=options.get("use_zarr_fill_value_as_mask"))
        except Exception as error:  # see above
            return error

    outcomes = bridge.run(gather([partial(open_one, store) for store in stores]), blocking=False)
    fetch_coordinates((outcome for outcome in outcomes if isinstance(outcome, GroupDataStore)), scalars=True)
    return [PreparedDataset(store, outcome) for store, outcome in zip(stores, outcomes, strict=True)]


def load(data: Loadable) -> Loadable:
    """Read all values of a dataset, an array or a tree into memory, all variables at the same time.

    xarray's ``data.load()`` reads one variable after the other, each with its own round trips. This function can also be
    called inside a running event loop, as in notebooks; elsewhere ``await data.load_async()`` does the same.

    Args:
        data: A dataset, an array or a tree that xarray opened with any engine. It is changed in place.

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
