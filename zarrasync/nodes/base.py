"""The base class of arrays and groups."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from zarrasync.config import Config
from zarrasync.display.info import Info
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import checked_attributes
from zarrasync.nodes.coordinates import CoordinateCache
from zarrasync.nodes.metadata_cell import MetadataCell
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Store

M = TypeVar("M", ArrayMetadata, GroupMetadata)


class AsyncNode(ABC, Generic[M]):
    """Base class of arrays and groups."""

    def __init__(self, handle: NodeHandle, metadata: M) -> None:
        self._cell: MetadataCell[M] = MetadataCell(handle, metadata)

    @cached_property
    def _coordinates(self) -> CoordinateCache:
        """The coordinates that ``sel`` has read, until the node is refreshed."""
        group = self.path if isinstance(self._cell.metadata, GroupMetadata) else self.path.rpartition("/")[0]
        return CoordinateCache(self.store, group)

    @property
    def store(self) -> Store:
        """The store that contains the node."""
        return self._cell.handle.store

    @property
    def path(self) -> str:
        """The path in the store, without leading and trailing slashes."""
        return self._cell.handle.path

    @property
    def name(self) -> str:
        """The path in the store with a leading slash."""
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
        """The attributes. The mapping is read-only; change attributes with ``update_attributes``."""
        return self._cell.metadata.attributes

    @property
    def read_only(self) -> bool:
        """Whether the node was opened for reading, or its store does not support writing."""
        return not self.store.writeable

    @property
    def zarr_format(self) -> int | str:
        """The Zarr format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``."""
        return self._cell.handle.format.zarr_format

    @property
    @abstractmethod
    def info(self) -> Info:
        """A summary of the metadata. Makes no requests."""

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": self._portable_handle(), "metadata": self._cell.metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cell = MetadataCell(**state, read_at=-math.inf)  # in another process, whose clock differs

    def _portable_handle(self) -> NodeHandle:
        """Return the handle to send to other processes."""
        return self._cell.handle

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AsyncNode):
            return NotImplemented
        if type(other) is not type(self):
            return False
        one, two = self._cell, other._cell
        return (one.handle, one.metadata) == (two.handle, two.metadata)

    __hash__ = None  # type: ignore[assignment]  # the metadata changes

    # -------------------------------------------------------------- changing

    async def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes with one write. Attributes that are not named keep their values.

        Args:
            attributes: The new values by attribute name. JSON must be able to represent them.

        Raises:
            MetadataError: If a value cannot be written as JSON.
            ReadOnlyError: If the node was opened for reading.
            WriteConflictError: If other writers kept changing the metadata until ``config.total_timeout``.
            StoreError: If the store failed.

        Example:
            >>> group = await za.create_group({}, attributes={"title": "test"})
            >>> await group.update_attributes({"version": 2})
            >>> dict(group.attrs)
            {'title': 'test', 'version': 2}
        """
        await self._set_attributes(attributes, keep=True)

    async def _set_attributes(self, attributes: Mapping[str, Any], *, keep: bool = False) -> None:
        """Set attributes with one write.

        Args:
            attributes: The new values by attribute name.
            keep: Keep other attributes. By default they are removed.
        """
        new_attributes = checked_attributes(attributes)

        async def change(present: M) -> M:
            return replace(present, attributes={**(present.attributes if keep else {}), **new_attributes})

        await run_on_store(partial(self._cell.change, change), self.store)

    async def refresh(self, *, max_age: float = 0.0) -> None:
        """Read the metadata again, to see the changes of other writers to attributes or to the shape of an array.

        A group that was opened with consolidated metadata reads the copies again, from which its members are opened. The
        coordinates that ``sel`` has read are read again when they are needed. A service can call this before each use with
        a maximum age: one call then reads, while others use the present metadata.

        Args:
            max_age: Seconds after reading for which nothing is read again; 0 to read always.

        Raises:
            NodeNotFoundError: If the node no longer exists.
            NodeTypeError: If an array has been replaced by a group, or a group by an array.
            StoreError: If the store failed.

        Example:
            >>> store = {}
            >>> array = await za.create_array(store, shape=(2,), dtype="i4")
            >>> other = await za.open_array(store, mode="r+")
            >>> await other.resize(5)
            >>> await array.refresh()
            >>> array.shape
            (5,)
        """
        if await run_on_store(partial(self._cell.refresh, max_age), self.store):
            vars(self).pop("_coordinates", None)

    # -------------------------------------------------------------- closing

    async def close(self) -> None:
        """Close the connections of the store. Also called at the end of a ``with`` block.

        Example:
            >>> async with await za.create_group({}) as group:
            ...     _ = await group.create_array("t", shape=(2,), dtype="i4")
        """
        await run_on_store(self.store.close, self.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
