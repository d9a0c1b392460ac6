"""Consolidated metadata: copies of the documents of a whole hierarchy in one document of its root group.

A group that was opened with consolidated metadata finds its members there, without a request. The copies become outdated
when other programs change the hierarchy. Changes made through such a group also update the copies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from zarrasync import formats
from zarrasync._concurrency.retry import ConflictBackoff
from zarrasync.errors import ConditionsUnsupported, MetadataError, WriteConflictError
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join
from zarrasync.stores.base import Store
from zarrasync.stores.key_index import KeyIndex
from zarrasync.stores.values import ABSENT, Request

__all__ = ["Consolidated", "put_consolidated"]


class Consolidated:
    """Copies of the documents of a hierarchy.

    Args:
        format: The format of the documents.
        path: The path of the group that contains the copies.
        documents: The documents by store key.
        complete: Treat a document without a copy as absent. Otherwise look it up in the store.
    """

    def __init__(self, format: Format, path: str, documents: Mapping[str, bytes], *, complete: bool) -> None:
        self.format, self.path, self.complete = format, path, complete
        self.documents = dict(documents)
        self._indexed: tuple[Mapping[str, bytes], KeyIndex] | None = None

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
        self, store: Store, changed_keys: Iterable[str], erased_prefixes: Sequence[str] = (), *, seconds: float
    ) -> None:
        """Apply a change of the hierarchy to the copies in this object and in the store.

        The changed documents are read from the store, because other writers may have changed them again.

        Args:
            store: The store.
            changed_keys: Keys of documents that were written or erased.
            erased_prefixes: Prefixes below which everything was erased.
            seconds: How long to go on while other writers change the copies; 0 for no limit.

        Raises:
            WriteConflictError: If other writers kept changing the copies.
        """
        copies_key = self.format.consolidated_key(self.path)
        assert copies_key is not None
        keys = list(changed_keys)
        backoff = ConflictBackoff(seconds, f"the consolidated metadata of /{self.path} in {store!r}")
        async with store.lock(copies_key):
            while True:
                try:
                    await self._update(store, copies_key, keys, tuple(erased_prefixes))
                    return
                except WriteConflictError as conflict:
                    await backoff.after(conflict)
                except ConditionsUnsupported:
                    if store.conditional:
                        raise

    async def _update(
        self, store: Store, copies_key: str, changed_keys: Sequence[str], erased_prefixes: tuple[str, ...]
    ) -> None:
        group_keys = list(dict.fromkeys((*self.format.document_keys(self.path), copies_key)))
        values = await store.fetch([Request(key) for key in (*group_keys, *changed_keys)], versions=True)
        group_values = dict(zip(group_keys, values, strict=False))
        fresh = {
            key: bytes(value.data)
            for key, value in zip(changed_keys, values[len(group_keys) :], strict=True)
            if value is not None
        }

        changed = set(changed_keys)

        def apply(documents: Mapping[str, bytes]) -> dict[str, bytes]:
            outdated = {key for key in documents if key.startswith(erased_prefixes) or key in changed}
            return {**{key: data for key, data in documents.items() if key not in outdated}, **fresh}

        self.documents = apply(self.documents)  # a new dict: other tasks may be reading the old one
        group_documents = {key: bytes(value.data) for key, value in group_values.items() if value is not None}
        try:
            stored_copies = self.format.parse_consolidated(self.path, group_documents)
        except MetadataError:
            return  # damaged copies are not used by any reader
        if stored_copies is not None:  # otherwise another program has removed them
            stored = group_values[copies_key]
            version = ABSENT if stored is None else stored.version
            await put_consolidated(store, self.format, self.path, group_documents, apply(stored_copies), version)


async def put_consolidated(
    store: Store,
    format_: Format,
    path: str,
    group_documents: Mapping[str, bytes],
    documents: Mapping[str, bytes],
    version: object = None,
) -> None:
    """Store copies of the documents below a group in one document of the group.

    Args:
        store: The store.
        format_: The format.
        path: The group.
        group_documents: The group's own documents by key.
        documents: The documents of all nodes below by key.
        version: The expected version of the document that contains the copies, if any.

    Raises:
        WriteConflictError: If a different version is stored.
    """
    group_keys = set(format_.document_keys(path))
    below = {key: json.loads(data) for key, data in documents.items() if key not in group_keys}
    for key, data in format_.render_consolidated(path, group_documents, below).items():
        if group_documents.get(key) != data:
            await store.put(key, data, if_version=version if store.conditional else None)
