"""The xarray backend ``engine="zarrasync"``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xarray import Dataset, DataTree
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint

from zarrasync._concurrency import bridge
from zarrasync.integrations.xarray.content import names_of, open_content, open_tree
from zarrasync.integrations.xarray.read import GroupDataStore, PreparedDataset, fetch_coordinates
from zarrasync.integrations.xarray.source import Source
from zarrasync.model.paths import normalize_path
from zarrasync.stores import StoreLike

__all__ = ["ZarrasyncBackend"]


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
        if isinstance(filename_or_obj, PreparedDataset):
            group_store = filename_or_obj.result()
        else:
            source = Source.of(filename_or_obj, storage_options, zarr_format, consolidated, config)
            opening = open_content(
                source, normalize_path("" if group is None else group), level, names_of(drop_variables)
            )
            content = bridge.run(opening, blocking=source.store.blocking)
            group_store = GroupDataStore(content, mask=use_zarr_fill_value_as_mask)
            fetch_coordinates([group_store])
        dataset = StoreBackendEntrypoint().open_dataset(
            group_store,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            drop_variables=drop_variables,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )
        return _with_coordinates(dataset, group_store)

    def open_groups_as_dict(
        self, filename_or_obj: StoreLike, *, group: str | None = None, **options: Any
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it as datasets by path. Levels of pyramids that are arrays are datasets as well."""
        names = ("storage_options", "zarr_format", "consolidated", "config")
        source = Source.of(filename_or_obj, **{name: options.pop(name, None) for name in names})
        mask, dropped = options.pop("use_zarr_fill_value_as_mask", None), names_of(options.get("drop_variables"))
        opening = open_tree(source, normalize_path("" if group is None else group), dropped)
        contents = bridge.run(opening, blocking=source.store.blocking)
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
