"""The metadata of an open node, which is changed in place without losing concurrent changes of other writers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import shielded
from zarrasync._concurrency.retry import ConflictBackoff
from zarrasync._util.json import is_same_document
from zarrasync.errors import ConditionsUnsupported, WriteConflictError
from zarrasync.metadata import ArrayMetadata, GroupMetadata, SourceDocuments
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.documents import put_documents, wrong_kind
from zarrasync.nodes.find import load_node
from zarrasync.nodes.node import NodeHandle

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
        return store.conditional and not store.exclusive and source is not None and bool(source.versions)

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
