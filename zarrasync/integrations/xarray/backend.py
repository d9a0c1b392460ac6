"""The xarray backend ``engine="zarrasync"``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from xarray import Dataset, DataTree
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint

from zarrasync import sync
from zarrasync._util.short_tracebacks import RAISED, shorten
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, StoreError
from zarrasync.integrations.xarray.content import open_content, tree_contents
from zarrasync.integrations.xarray.read import GroupDataStore, fetch_coordinates
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.stores import StoreLike, resolve

__all__ = ["ZarrasyncBackend"]


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
            group: The path of the group, or of an array, in the store.
            level: The level of a pyramid, from 0 for the finest one; negative numbers count from the coarsest one. By
                default, the finest level if the levels are arrays.
            storage_options: Options for the filesystem of a URL.
            zarr_format: The format; ``None`` to detect it.
            consolidated: Whether to use consolidated metadata; ``None`` to use it if it exists.
            use_zarr_fill_value_as_mask: Whether the arrays' fill values mean missing; ``None`` for format 2 only.
            config: Settings.
        """
        try:
            open_node = partial(_open, filename_or_obj, storage_options, zarr_format, consolidated, config)
            content = open_content(open_node, normalize_path(group or ""), level, _names(drop_variables))
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
        except RAISED as error:  # the frame of this method would show all of its text
            shorten(error)
            raise

    def open_groups_as_dict(
        self, filename_or_obj: StoreLike, *, group: str | None = None, **options: Any
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it as datasets by path. Levels of pyramids that are arrays are datasets as well."""
        parameters = {
            name: options.pop(name, None) for name in ("storage_options", "zarr_format", "consolidated", "config")
        }
        node = _open(filename_or_obj, **parameters, path=normalize_path(group or ""))
        mask, dropped = options.pop("use_zarr_fill_value_as_mask", None), _names(options.get("drop_variables"))
        contents = tree_contents(node, dict(node.members(max_depth=None)), dropped)
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


def _open(
    store: StoreLike,
    storage_options: Mapping[str, Any] | None,
    zarr_format: int | str | None,
    consolidated: bool | None,
    config: Any,
    path: str,
) -> sync.Group:
    """Open a group, from the consolidated metadata of the root if it exists.

    As in xarray's own engines, ``~`` in a path is the user's home directory.
    """
    resolved = resolve(os.path.expanduser(store) if isinstance(store, str) else store, storage_options, config)
    open_group = partial(sync.open_group, resolved, zarr_format=zarr_format, config=config)
    if path and consolidated is not False:
        # The root may not be a readable group.
        with suppress(NodeNotFoundError, NodeTypeError, MetadataError, StoreError):
            root = open_group()
            if handle_of(root.async_).consolidated is not None:
                member = root.get(path)
                if isinstance(member, sync.Group):
                    return member
    return open_group(path=path, use_consolidated=consolidated)


def _with_coordinates(dataset: Dataset, group_store: GroupDataStore) -> Dataset:
    """Return a dataset in which computed variables are coordinates. It closes the store as the given one does."""
    complete = dataset.set_coords(group_store.computed.keys() & dataset.variables.keys())
    complete.set_close(group_store.close)
    return complete


def _names(variables: str | Iterable[str] | None) -> set[str]:
    return {variables} if isinstance(variables, str) else set(variables or ())
