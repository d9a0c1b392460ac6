"""What arrays and groups have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from zarrasync._util.short_tracebacks import shorten_methods
from zarrasync.config import Config
from zarrasync.display.info import Info
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import checked_attributes
from zarrasync.nodes.metadata_cell import MetadataCell
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Store

__all__ = ["AsyncNode"]

M = TypeVar("M", ArrayMetadata, GroupMetadata)


@shorten_methods()
class AsyncNode(ABC, Generic[M]):
    """An array or a group of a store."""

    def __init__(self, handle: NodeHandle, metadata: M) -> None:
        self._cell: MetadataCell[M] = MetadataCell(handle, metadata)

    @property
    def store(self) -> Store:
        """The store."""
        return self._cell.handle.store

    @property
    def path(self) -> str:
        """The path in the store, without slashes at the ends."""
        return self._cell.handle.path

    @property
    def name(self) -> str:
        """The path with a leading slash."""
        return self._cell.handle.name

    @property
    def basename(self) -> str:
        """The last part of the path."""
        return self._cell.handle.basename

    @property
    def config(self) -> Config:
        """The settings that applied when the node was opened."""
        return self._cell.handle.config

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes, read-only. Change them with ``update_attributes``."""
        return self._cell.metadata.attributes

    @property
    def read_only(self) -> bool:
        """Whether the node was opened for reading, or its store cannot be written to."""
        return not self.store.writeable

    @property
    def zarr_format(self) -> int | str:
        """The Zarr format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``."""
        return self._cell.handle.format.zarr_format

    @property
    @abstractmethod
    def info(self) -> Info:
        """A summary that takes no requests."""

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": self._portable_handle(), "metadata": self._cell.metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cell = MetadataCell(**state)

    def _portable_handle(self) -> NodeHandle:
        """Return the handle to send to other processes."""
        return self._cell.handle

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        one, two = self._cell, other._cell
        return (one.handle, one.metadata) == (two.handle, two.metadata)

    __hash__ = None  # type: ignore[assignment]  # the metadata changes

    # -------------------------------------------------------------- changing

    async def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes. Others keep their values.

        Raises:
            MetadataError: If a value cannot be written as JSON.
            ReadOnlyError: If the node was opened for reading.
        """
        await self._set_attributes(attributes, keep=True)

    async def _set_attributes(self, attributes: Mapping[str, Any], *, keep: bool = False) -> None:
        """Set attributes with one write; ``keep`` those that are not among them."""
        new_attributes = checked_attributes(attributes)

        async def change(present: M) -> M:
            return replace(present, attributes={**(present.attributes if keep else {}), **new_attributes})

        await run_on_store(partial(self._cell.change, change), self.store)

    async def refresh(self) -> None:
        """Read the metadata again, because another writer may have resized an array or changed attributes.

        Raises:
            NodeNotFoundError: If the node does not exist any more.
            NodeTypeError: If it has been replaced by one of the other kind.
        """
        await run_on_store(self._cell.refresh, self.store)

    # -------------------------------------------------------------- closing

    async def close(self) -> None:
        """Close the connections of the store."""
        await run_on_store(self.store.close, self.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
