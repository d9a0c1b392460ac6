"""The base class of arrays and groups, and their metadata, which is changed in place without losing changes of others."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import ConflictBackoff
from zarrasync._concurrency.cancel import shielded
from zarrasync._util.json import is_same_document
from zarrasync.config import Config
from zarrasync.errors import ConditionsUnsupported, WriteConflictError
from zarrasync.metadata import ArrayMetadata, GroupMetadata, SourceDocuments
from zarrasync.metadata.create import checked_attributes
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.documents import put_documents, wrong_kind
from zarrasync.nodes.find import load_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Store

M = TypeVar("M", ArrayMetadata, GroupMetadata)


class MetadataCell(Generic[M]):
    """The only mutable state of an array or group: its metadata, as last read or written through this object.

    Args:
        handle: The handle of the node.
        metadata: The metadata of the node.
        read_at: The time of the clock when it was read; by default, when the copies were read that the handle contains, or
            now.

    Attributes:
        handle: The handle of the node.
        metadata: The metadata of the node.
    """

    __slots__ = ("_is_reading", "_read_at", "handle", "metadata")

    def __init__(self, handle: NodeHandle, metadata: M, read_at: float | None = None) -> None:
        self.handle = handle
        self.metadata: M = metadata
        if read_at is None:
            read_at = clock.monotonic() if handle.consolidated is None else handle.consolidated.read_at
        self._read_at, self._is_reading = read_at, False

    async def refresh(self, max_age: float = 0.0) -> bool:
        """Read the metadata again, and the copies of a group that was opened with consolidated metadata.

        Args:
            max_age: Seconds for which it is not read again. While another call reads, the present metadata remains.

        Returns:
            Whether it was read.

        Raises:
            NodeNotFoundError: If the node no longer exists.
            NodeTypeError: If an array has been replaced by a group, or a group by an array.
        """
        now, handle = clock.monotonic(), self.handle
        if max_age and (self._is_reading or now - self._read_at <= max_age):
            return False
        copies = handle.consolidated
        has_copies = copies is not None and copies.path == handle.path
        self._is_reading = True
        try:
            node = await load_node(handle, consolidated=None if has_copies else False)
        finally:
            self._is_reading = False
        self.metadata, self._read_at = self._checked(node.metadata), now
        if copies is not None and has_copies:
            copies.renew(node.consolidated)
        return True

    async def change(
        self,
        change: Callable[[M], Awaitable[M]],
        *,
        fresh: bool = False,
        on_stored: Callable[[], None] | None = None,
    ) -> M:
        """Change the metadata and store the documents that differ.

        If the store supports conditional writes, a document replaces only the version that the change was derived from.
        If another writer has stored a different version, the change is derived again from that one.

        Args:
            change: A function that returns new metadata for the present metadata. It may be called several times.
            fresh: Read the metadata first. Otherwise the metadata of this object is used as long as conditional writes
                can show that it is still stored.
            on_stored: Called when the new metadata is stored. A caller that is cancelled in the meantime waits for it.

        Returns:
            The new metadata.

        Raises:
            NodeTypeError: If an array has been replaced by a group, or a group by an array.
            WriteConflictError: If other writers kept changing the metadata until ``config.total_timeout``.
        """
        handle = self.handle
        store, format_ = handle.store, handle.format
        backoff = ConflictBackoff(handle.config.total_timeout, f"{handle.name} in {store!r}")
        cached = None if fresh or not self._is_comparable() else self.metadata
        async with handle.lock():
            while True:
                present = cached if cached is not None else await self._load()
                target = await change(present)
                before = present.source or SourceDocuments(format_.zarr_format, {})
                rendered = format_.render(handle.path, target)
                changed = _changed(before, rendered)
                if cached is not None and not changed:
                    cached = None  # without a write, only reading shows whether it is still stored
                    continue
                try:
                    put = partial(put_documents, store, changed, before.versions)
                    new_versions = await shielded(put, on_stored)
                    break
                except WriteConflictError as conflict:
                    cached = None
                    await backoff.after(conflict)
                except ConditionsUnsupported:
                    if store.conditional:
                        raise
                    cached = None  # the store no longer uses conditional writes
        await update_copies(handle, changed)
        versions = {**before.versions, **new_versions} if before.versions else {}
        self.metadata = replace(target, source=SourceDocuments(format_.zarr_format, rendered, versions))
        return self.metadata

    def _is_comparable(self) -> bool:
        """Return whether a conditional write can show that the metadata is still stored.

        Under a lock that excludes all other writers, metadata is read again instead, and no conditional write is needed.
        """
        store, source = self.handle.store, self.metadata.source
        return store.conditional and not store.exclusive_locks and source is not None and bool(source.versions)

    async def _load(self) -> M:
        return self._checked((await load_node(self.handle)).metadata)

    def _checked(self, present: Any) -> M:
        """Return metadata that was read again.

        Raises:
            NodeTypeError: If an array has been replaced by a group, or a group by an array.
        """
        kind: type[M] = type(self.metadata)
        if not isinstance(present, kind):
            raise wrong_kind(self.handle.name, self.handle.path, present, " now")
        return present


def _changed(before: SourceDocuments, rendered: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the documents that differ from the stored ones in more than their formatting."""
    return {
        key: data
        for key, data in rendered.items()
        if key not in before.data or not is_same_document(before.data[key], data, key)
    }


class NodeProperties:
    """What nodes and decoded arrays have in common: their place, their attributes, and a store to close."""

    _cell: MetadataCell[Any]

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
    def config(self) -> Config:
        """The settings that applied when the node was opened."""
        return self._cell.handle.config

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes. The mapping is read-only; change attributes with ``update_attributes`` of the node."""
        attributes: Mapping[str, Any] = self._cell.metadata.attributes
        return attributes

    async def close(self) -> None:
        """Close the connections of the store. Also called at the end of a ``with`` block.

        Example:
            >>> async with await za.create_group({}) as group:
            ...     _ = await group.create_array("t", shape=(2,), dtype="i4")
        """
        await run_on_store(self.store.close, self.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncNode(NodeProperties, Generic[M]):
    """Base class of arrays and groups."""

    _cell: MetadataCell[M]

    def __init__(self, handle: NodeHandle, metadata: M) -> None:
        self._cell = MetadataCell(handle, metadata)

    @property
    def basename(self) -> str:
        """The last part of the path."""
        return self._cell.handle.basename

    @property
    def read_only(self) -> bool:
        """Whether the node was opened for reading, or its store does not support writing."""
        return not self.store.writeable

    @property
    def zarr_format(self) -> int | str:
        """The Zarr format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``."""
        return self._cell.handle.format.zarr_format

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
