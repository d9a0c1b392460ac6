"""The request to write a dataset, and the state of writing one of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from xarray import Dataset, Variable

from zarrasync import AsyncArray, AsyncGroup
from zarrasync import config as settings
from zarrasync.bulk.blocks import for_job, write_blocks
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport, ProgressLike
from zarrasync.formats import Format
from zarrasync.indexing.regions import Region
from zarrasync.integrations.dask_targets import is_dask_array
from zarrasync.integrations.xarray.claims import AppendClaim, OnDuplicate, Placement
from zarrasync.integrations.xarray.grids import OnMismatch
from zarrasync.integrations.xarray.inputs import Encodings
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.integrations.xarray.regions import RegionLike
from zarrasync.metadata.conventions.cf_encoding import Lossy
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of, with_handle
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.stores import Store
from zarrasync.transfer.unaligned import Unaligned

__all__ = ["Mode", "Target", "WriteJob", "WriteOptions", "WriteRequest"]

Mode: TypeAlias = Literal["w-", "w", "a", "a-", "r+"]
"""How to treat existing groups and variables."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Rarer arguments of ``write_dataset``.

    Attributes:
        consolidated: Whether to write consolidated metadata; ``None`` to write it except with mode ``"r+"``, and to
            stores without support for it.
        compute: Whether to write dask variables now. Otherwise their arrays are created, all other variables are
            written, and the values of dask variables are written by the returned object, or later as regions. If that
            fails, rows that ``append_dim`` has added stay, with the fill value.
        align_chunks: Whether to rechunk dask variables to whole stored chunks. Otherwise blocks that share chunks are
            refused if values could be lost.
        write_inherited_coords: Whether groups of a tree store the coordinates that they inherit.
        chunkmanager_store_kwargs: Options for the computation of dask variables, such as ``num_workers``.

    Example:
        >>> import xarray as xr
        >>> temperature = xr.DataArray([280.0, 281.5], dims="time", name="t2m")
        >>> report = write_dataset(temperature, {}, options=WriteOptions(consolidated=False))
    """

    consolidated: bool | None = None
    compute: bool = True
    align_chunks: bool = True
    write_inherited_coords: bool = False
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class WriteRequest:
    """The arguments of ``write_dataset_async``, with a resolved store and mode, for one group."""

    store: Store
    group: str
    mode: Mode
    append_dim: str | None = None
    region: RegionLike | None = None
    encoding: Encodings = field(default_factory=dict)
    zarr_format: int | str | None = None
    lossy: Lossy = "error"
    on_mismatch: OnMismatch = "error"
    on_duplicate: OnDuplicate = "error"
    verify: bool = False
    progress: ProgressLike = False
    options: WriteOptions = field(default_factory=WriteOptions)
    config: Any = None

    @property
    def unaligned(self) -> Unaligned:
        """Whether several writers, or blocks of dask, may write parts of a chunk."""
        return settings.resolve(self.config).unaligned

    def at(self, path: str, encoding: Encodings) -> WriteRequest:
        """Return the request for a group below this one."""
        return replace(self, group=join(self.group, path), encoding=encoding)


@dataclass(frozen=True)
class Target:
    """Values of a variable, and their places.

    Attributes:
        name: The name of the variable, in a tree with the path of its group.
        plan: The plan of the variable, with the values.
        array: The array, as ``for_job`` returns it.
        region: The region of the array; ``None`` for all of it.
    """

    name: str
    plan: VariablePlan
    array: AsyncArray
    region: Region | None

    @classmethod
    def of(
        cls, name: str, plan: VariablePlan, array: AsyncArray, region: Region | None, unaligned: Unaligned
    ) -> Target:
        """Return the target for an array and the treatment of chunks that are written in part."""
        return cls(name, plan, for_job(array, unaligned, plan.write_empty_chunks), region)

    @property
    def is_lazy(self) -> bool:
        """Whether the values are a dask array."""
        return is_dask_array(self.plan.encoded.data)

    @property
    def nbytes(self) -> int:
        """The size of the values in memory, in bytes."""
        return int(self.plan.encoded.size) * max(self.array.dtype.itemsize, 1)

    async def write(self, *, verify: bool, progress: ProgressLike, is_hidden: bool = False) -> IngestReport:
        """Write the values block by block; see ``write_blocks``."""
        encoded = self.plan.encoded
        source = source_of(encoded if encoded.shape else np.asarray(encoded.values), {})
        options: Any = {"is_new": not self.plan.updates, "is_hidden": is_hidden, "verify": verify, "progress": progress}
        return await write_blocks(source, self.array, self.region, self.array.config.unaligned, **options)


@dataclass
class WriteJob:
    """The state of writing one group, which the steps complete.

    Attributes:
        path: The path of the group relative to the group of the whole write.
        request: The arguments.
        dataset: The dataset, without coordinates that are already stored.
        group: The group; ``None`` as long as it does not exist.
        format: The group's format.
        arrays: The arrays of the group, without consolidated metadata, which is updated at the end.
        stored: The variables of the group.
        region: The slices that are written into existing arrays, by dimension.
        is_new: Whether this write creates the group.
        is_empty: Whether nothing existed below the group, so that all nodes below it come from this write.
        plans: The plans of the variables.
        targets: The values to write, and their places. Rows that are appended may be several targets, or none.
        attributes: The group's new attributes.
        consolidated: The group's consolidated metadata.
        claim: The claim of the rows, so that no other writer appends the same labels.
        placement: The places of the rows that are appended.
        reservations: Arrays with the axis, the start and the stop of rows that are reserved, and released after a failure.
        changed: Whether documents may have been created, replaced or erased.
    """

    path: str
    request: WriteRequest
    dataset: Dataset
    group: AsyncGroup | None
    format: Format
    arrays: dict[str, AsyncArray]
    stored: dict[str, Variable]
    region: dict[str, slice] | None
    is_new: bool
    is_empty: bool = False
    plans: list[VariablePlan] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    consolidated: Consolidated | None = None
    claim: AppendClaim | None = None
    placement: Placement | None = None
    reservations: list[tuple[AsyncArray, int, int, int]] = field(default_factory=list)
    changed: bool = False

    @property
    def unaligned(self) -> Unaligned:
        """How to treat chunks that are written in part. Only this writer writes reserved rows."""
        return "allow" if self.request.append_dim is not None else self.request.unaligned

    @property
    def new_plans(self) -> list[VariablePlan]:
        """The plans of the variables whose arrays are created."""
        return [plan for plan in self.plans if not plan.updates]

    @property
    def bare_group(self) -> AsyncGroup:
        """The group, which exists, without consolidated metadata."""
        assert self.group is not None
        return with_handle(self.group, handle_of(self.group).without_consolidated())

    def document_keys(self, names: Iterable[str]) -> list[str]:
        """Return the keys of the documents of some members of the group."""
        return [key for name in names for key in self.format.document_keys(join(self.request.group, name))]

    async def update_consolidated(self, names: Iterable[str]) -> None:
        """Update the documents of some members in the group's consolidated metadata, if it has any."""
        keys = self.document_keys(names)
        if self.consolidated is not None and keys:
            config = settings.resolve(self.request.config)
            await self.consolidated.update(self.request.store, keys, config=config)
