"""xarray writes through zarrasync: what ``zarrasync.integrations.xarray.write_dataset`` does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from xarray import Dataset, Variable, open_dataset
from xarray.backends.zarr import FillValueCoder, encode_zarr_attr_value, encode_zarr_variable
from xarray.conventions import encode_dataset_coordinates

import zarrasync as za
from zarrasync.errors import NodeNotFoundError, ShapeError
from zarrasync.group import AsyncGroup
from zarrasync.ingesting import IngestReport
from zarrasync.stores import Store

__all__ = ["write"]

_DIMENSIONS = "_ARRAY_DIMENSIONS"
_FILL = "_FillValue"
_CREATING = ("chunks", "shards", "compressors", "filters", "serializer", "fill_value", "order", "chunk_key_encoding")
_KEPT = ("units", "calendar", "dtype", "scale_factor", "add_offset", _FILL, "missing_value", "_Unsigned")
"""What the values of an array that is there were encoded with, so that others are encoded alike."""


async def write(
    dataset: Dataset,
    store: Store,
    *,
    group: str,
    mode: str,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
    encoding: Mapping[str, Mapping[str, Any]],
    zarr_format: Literal[2, 3],
    consolidated: bool,
    verify: bool,
    config: Any,
) -> dict[str, IngestReport]:
    """Write a dataset; see ``write_dataset``."""
    unknown = sorted(set(encoding) - set(map(str, dataset.variables)))
    if unknown:
        raise ValueError(f"the encoding names {unknown[0]!r}, which is no variable of the dataset")
    node = await _group(dataset, store, group, mode, zarr_format, config)
    present = await _present(node, store, group) if mode in ("a", "r+") else {}
    variables, attributes = encode_dataset_coordinates(dataset)
    await node.update_attributes(_plain(attributes))
    work = _Work(node, store, group, append_dim, region, zarr_format, verify, config)
    names = [str(name) for name in variables]
    plans = [work.plan(name, variables[name], encoding.get(name), present.get(name)) for name in names]
    reports = await asyncio.gather(*(work.carry_out(*plan) for plan in plans))
    if consolidated:
        await za.consolidate_metadata(store, path=group, zarr_format=zarr_format, config=config)
    return dict(zip(names, reports, strict=True))


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON can hold them."""
    encode: Any = encode_zarr_attr_value  # it has no types
    return {str(name): encode(value) for name, value in attributes.items()}


async def _group(
    dataset: Dataset, store: Store, group: str, mode: str, zarr_format: Literal[2, 3], config: Any
) -> AsyncGroup:
    if mode == "w":
        return await za.create_group(store, path=group, overwrite=True, zarr_format=zarr_format, config=config)
    if mode == "w-":
        return await za.create_group(store, path=group, zarr_format=zarr_format, config=config)
    try:
        return await za.open_group(store, path=group, mode="r+", zarr_format=zarr_format, config=config)
    except NodeNotFoundError:
        if mode == "r+":
            raise
        return await za.create_group(store, path=group, zarr_format=zarr_format, config=config)


async def _present(node: AsyncGroup, store: Store, group: str) -> dict[str, Variable]:
    """The variables that are there, with what their values were encoded with."""
    if not await node.array_keys():
        return {}
    given: Any = store  # the engine takes what the function's type does not name
    open_now = asyncio.to_thread(open_dataset, given, engine="zarrasync", group=group or None)
    return {str(name): variable for name, variable in (await open_now).variables.items()}


class _Work:
    """What the variables of one call have in common."""

    def __init__(
        self,
        node: AsyncGroup,
        store: Store,
        group: str,
        append_dim: str | None,
        region: Mapping[str, slice] | None,
        zarr_format: Literal[2, 3],
        verify: bool,
        config: Any,
    ) -> None:
        self.node, self.store, self.group, self.append_dim = node, store, group, append_dim
        self.region, self.zarr_format, self.verify, self.config = region, zarr_format, verify, config

    def plan(
        self, name: str, variable: Variable, encoding: Mapping[str, Any] | None, present: Variable | None
    ) -> tuple[str, Variable, dict[str, Any], Variable | None]:
        """A variable as it is stored, and how an array for it is created."""
        variable = variable.copy(deep=False)
        if encoding is not None:
            variable.encoding = dict(encoding)
        joins = present is not None and (self.region is not None or self.append_dim in variable.dims)
        if joins and present is not None:
            if variable.dims != present.dims:
                raise ShapeError(f"{name} has the dimensions {present.dims} in the store, not {variable.dims}")
            variable.encoding = {key: present.encoding[key] for key in _KEPT if key in present.encoding}
        elif self.region is not None:
            raise NodeNotFoundError(f"a region is written into arrays that are there; {name} is not")
        if self.region is not None and not set(self.region) & set(map(str, variable.dims)):
            raise ValueError(
                f"{name} has none of the region's dimensions {sorted(self.region)}; drop it before writing"
            )
        creating = {key: variable.encoding[key] for key in _CREATING if variable.encoding.get(key) is not None}
        if "compressor" in variable.encoding:
            creating["compressors"] = variable.encoding["compressor"]
        encoded = encode_zarr_variable(variable, name=name, zarr_format=self.zarr_format)
        return name, encoded, self._options(encoded, creating), present if joins else None

    def _options(self, encoded: Variable, creating: dict[str, Any]) -> dict[str, Any]:
        attributes = _plain(encoded.attrs)
        fill = encoded.attrs.get(_FILL)
        attributes.pop(_FILL, None)
        options: dict[str, Any] = {"dtype": str if encoded.dtype.kind in "OT" else encoded.dtype, **creating}
        if self.zarr_format == 2:  # there the fill value says what is missing
            options["fill_value"] = fill
            attributes[_DIMENSIONS] = list(map(str, encoded.dims))
        else:
            options["dimension_names"] = tuple(map(str, encoded.dims))
            if fill is not None:
                attributes[_FILL] = FillValueCoder.encode(fill, encoded.dtype)
        blocks = getattr(encoded, "chunks", None)
        if blocks and not creating.get("shards"):  # dask's
            options.setdefault("chunks", tuple(max(own, default=1) for own in blocks))
        return {**options, "attributes": attributes}

    async def carry_out(
        self, name: str, encoded: Variable, options: dict[str, Any], present: Variable | None
    ) -> IngestReport:
        """Create or extend an array, and write the variable's values."""
        region: tuple[slice, ...] | None = None
        if present is None:
            await self.node.create_array(name, shape=encoded.shape, overwrite=True, **options)
        elif self.region is not None:
            region = tuple(self.region.get(str(dim), slice(None)) for dim in encoded.dims)
        else:
            axis = encoded.dims.index(str(self.append_dim))
            array = await self.node.get(name)
            assert isinstance(array, za.AsyncArray)
            start, count = array.shape[axis], encoded.shape[axis]
            if [n for i, n in enumerate(array.shape) if i != axis] != [
                n for i, n in enumerate(encoded.shape) if i != axis
            ]:
                raise ShapeError(
                    f"{name} has shape {array.shape}; {encoded.shape} can not be appended along {self.append_dim!r}",
                    found=encoded.shape,
                    wanted=array.shape,
                )
            await array.resize(tuple(n + count if i == axis else n for i, n in enumerate(array.shape)))
            region = tuple(slice(start, start + count) if i == axis else slice(None) for i in range(array.ndim))
        path = f"{self.group}/{name}" if self.group else name
        return await za.ingest(
            encoded if encoded.shape else np.asarray(encoded.values),
            self.store,
            path=path,
            mode="r+",
            region=region,
            verify=self.verify,
            config=self.config,
        )
