"""The state of one write of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from xarray import Dataset, Variable

from zarrasync import AsyncArray, AsyncGroup
from zarrasync import config as settings
from zarrasync.formats import Format
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.integrations.xarray.regions import RegionLike
from zarrasync.model.paths import join
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.stores import Store
from zarrasync.transfer.unaligned import Unaligned

__all__ = ["Reservation", "WriteJob", "WriteRequest"]


@dataclass(frozen=True)
class WriteRequest:
    """The arguments of ``write_dataset_async``, with a resolved store and mode."""

    store: Store
    group: str
    mode: Literal["w-", "w", "a", "r+"]
    append_dim: str | None
    region: RegionLike | None
    encoding: Mapping[str, Mapping[str, Any]]
    zarr_format: Literal[2, 3] | None
    consolidated: bool | None
    verify: bool
    config: Any


@dataclass(frozen=True)
class Reservation:
    """Rows of an array that are reserved for this writer."""

    array: AsyncArray
    axis: int
    start: int
    stop: int


@dataclass
class WriteJob:
    """The state of one write, which the steps complete.

    Attributes:
        request: The arguments.
        dataset: The dataset, without coordinates that are already stored.
        group: The group; ``None`` as long as it does not exist.
        format: The group's format.
        arrays: The arrays of the group, without consolidated metadata, which is updated at the end.
        stored: The variables of the group.
        region: The slices that are written, by dimension.
        plans: The plans of the variables.
        attributes: The group's new attributes.
        consolidated: The group's consolidated metadata.
        reservations: Reserved rows, which are released after a failure.
    """

    request: WriteRequest
    dataset: Dataset
    group: AsyncGroup | None
    format: Format
    arrays: dict[str, AsyncArray]
    stored: dict[str, Variable]
    region: dict[str, slice] | None
    plans: list[VariablePlan] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    consolidated: Consolidated | None = None
    reservations: list[Reservation] = field(default_factory=list)

    @property
    def unaligned(self) -> Unaligned:
        """How to treat chunks that are written in part. Only this writer writes reserved rows."""
        return "allow" if self.request.append_dim is not None else settings.resolve(self.request.config).unaligned

    async def update_consolidated(self, plans: Iterable[VariablePlan]) -> None:
        """Update the documents of some variables in the group's consolidated metadata, if it has any."""
        keys = [key for plan in plans for key in self.format.document_keys(join(self.request.group, plan.name))]
        if self.consolidated is not None and keys:
            config = settings.resolve(self.request.config)
            await self.consolidated.update(self.request.store, keys, config=config)
