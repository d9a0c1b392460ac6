"""``open_mfdataset``, which opens all stores at the same time, and ``load``, which reads all variables at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import xarray as xr
from xarray import DataArray, Dataset, DataTree

from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather
from zarrasync.integrations.xarray.backend import ZarrasyncBackend
from zarrasync.integrations.xarray.content import names_of, open_content
from zarrasync.integrations.xarray.read import GroupDataStore, PreparedDataset, fetch_coordinates
from zarrasync.integrations.xarray.source import Source
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import StoreLike

__all__ = ["load", "open_mfdataset"]

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
    prepared = iter(_prepare(given, **{**options, **(options.get("backend_kwargs") or {})}))
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


def _prepare(
    stores: list[StoreLike],
    *,
    group: str | None = None,
    level: int | None = None,
    drop_variables: str | Iterable[str] | None = None,
    use_zarr_fill_value_as_mask: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    zarr_format: int | str | None = None,
    consolidated: bool | None = None,
    config: Any = None,
    **_: Any,
) -> list[PreparedDataset]:
    """Fetch the documents and the coordinates of a dataset of each store, with the arguments of the engine.

    Errors are raised when xarray opens the store that they concern.
    """
    path, dropped = normalize_path("" if group is None else group), names_of(drop_variables)

    async def open_one(store: StoreLike) -> GroupDataStore | Exception:
        try:
            source = Source.of(store, storage_options, zarr_format, consolidated, config)
            content = await run_on_store(partial(open_content, source, path, level, dropped), source.store)
            return GroupDataStore(content, mask=use_zarr_fill_value_as_mask)
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
