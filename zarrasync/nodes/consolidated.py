"""Consolidated metadata: copies of the documents of a whole hierarchy in one document of its root group.

A group that was opened with consolidated metadata finds its members there, without a request. The copies become outdated
when other programs change the hierarchy. Changes made through such a group also update the copies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import ConflictBackoff
from zarrasync._util import json as _json
from zarrasync.codecs import Buffer
from zarrasync.config import Config
from zarrasync.errors import ConditionsUnsupported, MetadataError, WriteConflictError
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.documents import fetch_documents
from zarrasync.stores.base import Store
from zarrasync.stores.values import ABSENT, KeyIndex


class ConsolidatedCopies(NamedTuple):
    """What consolidated metadata consists of.

    Attributes:
        own: The documents of the group by store key, without copies.
        below: The copies of the documents below the group, by store key.
    """

    own: Mapping[str, Buffer | None]
    below: Mapping[str, bytes]


class Consolidated:
    """Copies of the documents of a hierarchy.

    Args:
        format: The format of the documents.
        path: The path of the group that contains the copies.
        documents: The documents by store key.
        complete: Treat a document without a copy as absent. Otherwise look it up in the store.

    Attributes:
        read_at: The time of the clock when the copies were read.
    """

    def __init__(self, format: Format, path: str, documents: Mapping[str, bytes], *, complete: bool) -> None:
        self.format, self.path, self.complete = format, path, complete
        self.documents, self.read_at = dict(documents), clock.monotonic()
        self._indexed: tuple[Mapping[str, bytes], KeyIndex] | None = None
        self._stored: tuple[bytes, ConsolidatedCopies] | None = None
        """The document that the last update stored, and its parts, so that the next update need not parse it."""

    def renew(self, read: Consolidated | None) -> None:
        """Replace the copies by those that are stored now; without any, documents are looked up in the store."""
        self.complete = self.complete and read is not None
        self.documents, self.read_at = {} if read is None else read.documents, clock.monotonic()

    def covers(self, path: str) -> bool:
        """Return whether a path lies below the group, so that the copies should include its documents."""
        return path != self.path and f"{path}/".startswith(join(self.path, "") + "/" if self.path else "")

    def find(self, keys: Iterable[str]) -> dict[str, bytes | None] | None:
        """Return documents by key, or ``None`` if no copy exists and the documents must be looked up in the store."""
        copies = {key: self.documents.get(key) for key in keys}
        return copies if self.complete or any(data is not None for data in copies.values()) else None

    @property
    def keys(self) -> KeyIndex:
        """The keys of the documents."""
        documents, indexed = self.documents, self._indexed
        if indexed is None or indexed[0] is not documents:  # an update has replaced them
            indexed = self._indexed = (documents, KeyIndex(documents))
        return indexed[1]

    def members(self, path: str) -> list[tuple[str, ArrayMetadata | GroupMetadata]] | None:
        """Return the relative paths and the metadata of all nodes below a path.

        Returns ``None`` if the copies are incomplete or damaged.
        """
        start = f"{path}/" if path else ""
        paths = {key.rpartition("/")[0] for key in self.keys.list_prefix(start)} - {path}
        nodes = []
        for node_path in sorted(paths):
            try:
                keys = self.format.document_keys(node_path)
                metadata = formats.parse(self.format, node_path, {key: self.documents.get(key) for key in keys})
            except MetadataError:
                return None  # listing the members raises the error
            if metadata is not None:
                nodes.append((node_path[len(start) :], metadata))
        return nodes if self.complete or nodes else None

    def without_documents(self) -> Consolidated:
        """Return an object without documents that can still update the stored copies, to send to another process."""
        return Consolidated(self.format, self.path, {}, complete=False)

    async def update(
        self, store: Store, changed_keys: Iterable[str], erased_prefixes: Sequence[str] = (), *, config: Config
    ) -> None:
        """Apply a change of the hierarchy to the copies in this object and in the store.

        The changed documents are read from the store, because other writers may have changed them again.

        Args:
            store: The store.
            changed_keys: Keys of documents that were written or erased.
            erased_prefixes: Prefixes below which everything was erased.
            config: Settings: how long to go on while other writers change the copies, and the size of documents.

        Raises:
            WriteConflictError: If other writers kept changing the copies.
        """
        keys, prefixes = list(changed_keys), tuple(erased_prefixes)
        copies: ConsolidatedCopies | None = None

        async def apply(group_documents: Mapping[str, bytes]) -> ConsolidatedCopies | None:
            nonlocal copies
            fetched = dict(zip(keys, await fetch_documents(store, keys, config), strict=True))
            changes = {
                key: None if value is None else _copied(self.format, key, bytes(value.data))
                for key, value in fetched.items()
            }
            before, stored = self.documents, self._stored_copies(group_documents)
            self.documents = _merge(before, changes, prefixes)
            if stored is None:
                copies = None
            elif stored.below == before:
                copies = stored._replace(below=self.documents)
            else:
                copies = stored._replace(below=_merge(stored.below, changes, prefixes))
            return copies

        written = await replace_copies(store, self.format, self.path, apply, config)
        data = written.get(self.format.consolidated_key(self.path) or "")
        self._stored = None if data is None or copies is None else (data, copies)

    def _stored_copies(self, group_documents: Mapping[str, bytes]) -> ConsolidatedCopies | None:
        """Return the parts of the documents of the group, or ``None`` if these contain no valid copies."""
        data = group_documents.get(self.format.consolidated_key(self.path) or "")
        if self._stored is not None and data == self._stored[0]:
            return self._stored[1]
        try:
            below = self.format.parse_consolidated(self.path, group_documents)
        except MetadataError:
            return None  # no reader uses damaged copies
        return (
            None if below is None else ConsolidatedCopies(self.format.own_documents(self.path, group_documents), below)
        )


def _copied(format_: Format, key: str, data: bytes) -> bytes | None:
    """Return the copy of a document, or ``None`` for a damaged one, which would damage the document with all copies."""
    try:
        if not isinstance(_json.load(data, key), Mapping):
            return None
        return format_.copied_document(key, data)
    except MetadataError:
        return None


def _merge(
    documents: Mapping[str, bytes], changes: Mapping[str, bytes | None], erased_prefixes: tuple[str, ...]
) -> dict[str, bytes]:
    """Return a new dict of changed documents. Other tasks may be reading the old one."""
    merged = dict(documents)
    if erased_prefixes:
        merged = {key: data for key, data in merged.items() if not key.startswith(erased_prefixes)}
    for key, data in changes.items():
        if data is None:
            merged.pop(key, None)
        else:
            merged[key] = data
    return merged


async def replace_copies(
    store: Store,
    format_: Format,
    path: str,
    make: Callable[[Mapping[str, bytes]], Awaitable[ConsolidatedCopies | None]],
    config: Config,
) -> Mapping[str, bytes]:
    """Store copies of the documents below a group in one document of the group.

    The document is read first, and replaced only if it has not changed: others change it after each change of a
    document below, so that a document that changes meanwhile is read again.

    Args:
        store: The store.
        format_: The format.
        path: The group.
        make: Returns the copies of all documents below, given the documents of the group by key. May be called again.
            ``None`` leaves the copies as they are.
        config: Settings: how long to go on while other writers change the copies, and the size of documents.

    Returns:
        The documents that contain the copies, by key; empty if the copies were left as they are.

    Raises:
        WriteConflictError: If other writers kept changing the copies.
    """
    copies_key, group_keys = format_.consolidated_key(path), format_.document_keys(path)
    keys = list(dict.fromkeys(key for key in (copies_key, *group_keys) if key is not None))
    backoff = ConflictBackoff(config.total_timeout, f"the consolidated metadata of /{path} in {store!r}")
    async with store.lock(keys[0]):
        while True:
            values = dict(zip(keys, await fetch_documents(store, keys, config, versions=True), strict=True))
            group_documents = {key: bytes(value.data) for key, value in values.items() if value is not None}
            copies = await make(group_documents)
            if copies is None:
                return {}
            stored = values[keys[0]]
            version = (ABSENT if stored is None else stored.version) if store.conditional else None
            below = {key: data for key, data in copies.below.items() if key not in group_keys}
            rendered = format_.render_consolidated(path, copies.own, below)
            try:
                for key, data in rendered.items():
                    if group_documents.get(key) != data:
                        await store.put(key, data, if_version=version)
                return rendered
            except WriteConflictError as conflict:
                await backoff.after(conflict)
            except ConditionsUnsupported:
                if store.conditional:
                    raise
