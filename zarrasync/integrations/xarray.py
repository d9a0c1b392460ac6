"""xarray reads and writes through zarrasync: ``xarray.open_dataset(url, engine="zarrasync")``, ``write_dataset``.

Arrays are lazy and pickle; ``await dataset.load_async()`` reads all variables side by side. Names of axes come from
``dimension_names`` or xarray's attribute ``_ARRAY_DIMENSIONS``, fill values and encodings as in xarray's own engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from xarray import Dataset, DataTree, Variable
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint
from xarray.backends.zarr import FillValueCoder

from zarrasync import sync
from zarrasync._concurrency import bridge
from zarrasync.display.progress import IngestReport
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, StoreError
from zarrasync.integrations import xarray_write
from zarrasync.integrations.xarray_encode import without_nan
from zarrasync.integrations.xarray_regions import Wanted
from zarrasync.integrations.xarray_stored import FILL, StoredGroup
from zarrasync.model.chunk_keys import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.stores import StoreLike, resolve

__all__ = ["ZarrasyncBackend", "stored_variables", "write_dataset", "write_dataset_async"]


def stored_variables(dataset: Dataset) -> dict[str, Variable]:
    """The variables of a dataset that was not decoded, with attributes that Zarr can hold.

    What means missing is written as xarray's own engine writes it.
    """
    found = {}
    for name, variable in dataset.variables.items():
        attributes = without_nan(variable.attrs, variable.dtype)
        if FILL in attributes:
            attributes[FILL] = FillValueCoder.encode(attributes[FILL], variable.dtype)
        found[str(name)] = variable.copy(deep=False)
        found[str(name)].attrs = attributes
    return found


_MODES = ("w-", "w", "a", "r+")


async def write_dataset_async(
    dataset: Dataset,
    store: StoreLike,
    *,
    group: str = "",
    mode: Literal["w-", "w", "a", "r+"] | None = None,
    append_dim: str | None = None,
    region: Wanted | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    zarr_format: Literal[2, 3] | None = None,
    consolidated: bool | None = None,
    verify: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    config: Any = None,
) -> dict[str, IngestReport]:
    """Write a dataset, all variables side by side; what xarray's own engine reads as it would what it wrote.

    Args:
        dataset: The dataset; all variables of dask are one computation, on the scheduler that dask is set to, so that what
            they share is computed once. Their blocks become ones of whole stored values.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        group: The group's path in the store.
        mode: ``"w-"`` makes a new group, ``"w"`` replaces one, ``"a"`` adds variables and replaces those that are
            there (with their chunks, shards and compressors where the dimensions are the same, and their types and packing
            where values in memory fit, if nothing is said of these), ``"r+"`` takes a group that is there. Default: ``"a"`` with ``append_dim``, ``"r+"`` with ``region``,
            else ``"w-"``.
        append_dim: Variables with this dimension are added at its end, others are written where they are; values are
            encoded as those that are there. None that has the dimension there may be left out.
        region: Per dimension the slice of what is there to write into, or ``"auto"`` to find it by the coordinates;
            ``"auto"`` alone for all dimensions. Coordinates along them that are there are not written again.
        encoding: Per variable what xarray takes (``dtype``, ``units``, ``scale_factor``, ``_FillValue``, …) and what
            ``create_array`` does (``chunks``, ``shards``, ``compressors``, ``filters``, …).
        zarr_format: 2 or 3; that of what is there if not given, and 3 where there is nothing.
        consolidated: Whether to keep copies of all metadata in the group; ``None``: in format 2.
        verify: Read everything again, and compare.
        storage_options: Options for the filesystem of a URL.
        config: Settings. ``unaligned`` says whether a region may cut chunks, and whether rows may be appended where the
            store can not compare.

    Returns:
        What was done, per variable.

    Raises:
        NodeExistsError: If there is a group and the mode is ``"w-"``, or one of a variable's name, or the dataset is read
            from what it would replace.
        ShapeError: If a variable does not fit what is there, variables there are of different lengths or would become so,
            or others' values could be lost.
        MetadataError: If JSON can not say an attribute.
        CodecError: If values can not be stored as the type, or in the units, of what is there.
        ValueError: If a variable has no dimension of the region, coordinates are others there, or parameters do not go
            together.
    """
    if append_dim is not None and region is not None:
        raise ValueError("append_dim adds at the end, region writes into what is there: give one of them")
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"write_dataset takes a Dataset, found {type(dataset).__name__}; to_dataset() may make one of it"
        )
    chosen = mode or ("a" if append_dim is not None else "r+" if region is not None else "w-")
    if chosen not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}; found {mode!r}")
    if (append_dim is not None or region is not None) and chosen in ("w", "w-"):
        what = "region" if append_dim is None else "append_dim"
        raise ValueError(f"mode={chosen!r} makes a new group, {what} adds to one that is there: give one of them")
    if append_dim is not None and append_dim not in dataset.dims:
        raise ValueError(f"the dataset has no dimension {append_dim!r}; it has {', '.join(map(str, dataset.dims))}")
    return await xarray_write.write(
        dataset,
        resolve(store, storage_options, config),
        group=normalize_path(group),
        mode=chosen,
        append_dim=append_dim,
        region=region,
        encoding=encoding or {},
        zarr_format=zarr_format,
        consolidated=consolidated,
        verify=verify,
        config=config,
    )


def write_dataset(dataset: Dataset, store: StoreLike, **options: Any) -> dict[str, IngestReport]:
    """Write a dataset; the same as ``write_dataset_async``, and it blocks.

    Args:
        dataset: The dataset.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        **options: As for ``write_dataset_async``.
    """
    with xarray_write.leaving_room(dataset):
        return bridge.run(write_dataset_async(dataset, store, **options), blocking=False)


class ZarrasyncBackend(BackendEntrypoint):
    """The engine ``"zarrasync"``."""

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
            zarr_format: The format, if known; found out otherwise.
            consolidated: Whether to use consolidated metadata; ``None`` where there is some.
            use_zarr_fill_value_as_mask: Whether the arrays' fill values mean missing; ``None``: in format 2.
            config: Settings.
        """
        node = _open(filename_or_obj, group, storage_options, zarr_format, consolidated, config)
        return _decoded(
            node,
            use_zarr_fill_value_as_mask,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            drop_variables=drop_variables,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )

    def open_groups_as_dict(
        self, filename_or_obj: StoreLike, *, group: str | None = None, **options: Any
    ) -> dict[str, Dataset]:
        """Open a group and all below it as datasets by path."""
        known = ("storage_options", "zarr_format", "consolidated", "config")
        node = _open(filename_or_obj, group, *(options.pop(name, None) for name in known))
        mask = options.pop("use_zarr_fill_value_as_mask", None)
        below = {name: member for name, member in node.members(max_depth=None) if isinstance(member, sync.Group)}
        return {f"/{name}": _decoded(one, mask, **options) for name, one in {"": node, **below}.items()}

    def open_datatree(self, filename_or_obj: StoreLike, **options: Any) -> DataTree:
        """Open a group and all below it as a tree."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Never: the engine is used where it is named."""
        return False


def _open(
    store: StoreLike,
    group: str | None,
    storage_options: Mapping[str, Any] | None,
    zarr_format: int | str | None,
    consolidated: bool | None,
    config: Any,
) -> sync.Group:
    """The group that is opened; ``~`` in a path is the user's directory, as in xarray's own engines.

    A group is found in the copies of metadata that the root has, if it has such.
    """
    where = resolve(os.path.expanduser(store) if isinstance(store, str) else store, storage_options, config)
    open_group = partial(sync.open_group, where, zarr_format=zarr_format, config=config)
    path = normalize_path(group or "")
    if path and consolidated is not False:
        # The root need be no group, nor one that can be read.
        with suppress(NodeNotFoundError, NodeTypeError, MetadataError, StoreError):
            root = open_group()
            if handle_of(root.async_).consolidated is not None:
                found = root.get(path)
                if isinstance(found, sync.Group):
                    return found
    return open_group(path=path, use_consolidated=consolidated)


def _decoded(node: sync.Group, mask: bool | None, **options: Any) -> Dataset:
    """A group as a dataset."""
    return StoreBackendEntrypoint().open_dataset(StoredGroup(node, mask=mask), **options)
