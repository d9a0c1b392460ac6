"""Consolidated metadata: the documents of a whole hierarchy in one, kept beside its root group.

A group that was opened with such documents finds its members in them, without a request. They are a copy
that others may let grow old; what is written through a group that was opened with them is written there, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync.errors import ConditionsUnsupported, MetadataError, WriteConflictError
from zarrasync.formats import Format
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join
from zarrasync.stores.base import ABSENT, Listing, Request, Store

__all__ = ["Consolidated", "refresh"]


_PATIENCE = 30.0
"""Seconds after which a document that others keep changing is given up."""


class Consolidated:
    """Documents that were found in one.

    Args:
        format: The format they are in.
        path: The group that they lie below.
        documents: The documents by store key.
        complete: Whether what is not among them counts as absent; otherwise it is looked for in the store.
    """

    def __init__(self, format: Format, path: str, documents: Mapping[str, bytes], *, complete: bool) -> None:
        self.format, self.path, self.complete = format, path, complete
        self.documents = dict(documents)

    def covers(self, path: str) -> bool:
        """Whether a path lies below the group, so that its documents should be here."""
        return path != self.path and f"{path}/".startswith(join(self.path, "") + "/" if self.path else "")

    def find(self, keys: Iterable[str]) -> dict[str, bytes | None] | None:
        """Documents by key, or ``None`` if there is none of them and the store should be asked."""
        found = {key: self.documents.get(key) for key in keys}
        return found if self.complete or any(data is not None for data in found.values()) else None

    def list_prefix(self, prefix: str) -> list[str]:
        """The keys that begin with a prefix."""
        return [key for key in self.documents if key.startswith(prefix)]

    def list_dir(self, prefix: str) -> Listing:
        """What lies directly under a prefix."""
        inside = [key[len(prefix) :].partition("/") for key in self.list_prefix(prefix)]
        keys = tuple(prefix + name for name, slash, _ in inside if not slash)
        return Listing(keys, tuple(sorted({f"{prefix}{name}/" for name, slash, _ in inside if slash})))

    def members(self, path: str) -> list[tuple[str, ArrayMetadata | GroupMetadata]] | None:
        """The nodes below a path: relative paths and metadata; ``None`` if it takes the store to know."""
        start = f"{path}/" if path else ""
        inside = {key.rpartition("/")[0] for key in self.list_prefix(start)} - {path}
        found = []
        for place in sorted(inside):
            try:
                keys = self.format.document_keys(place)
                metadata = formats.parse(self.format, place, {key: self.documents.get(key) for key in keys})
            except MetadataError:
                return None  # who lists the members is told
            if metadata is not None:
                found.append((place[len(start) :], metadata))
        return found if self.complete or found else None

    async def note(self, store: Store, changed: Iterable[str], erased: Sequence[str] = ()) -> None:
        """Follow a change of the hierarchy, here and in the store.

        What the documents hold now is read from the store, as others may have changed them since.

        Args:
            store: The store.
            changed: Keys of documents that were written or erased.
            erased: Prefixes under which everything was erased.
        """
        key = self.format.consolidated_key(self.path)
        assert key is not None
        changed = list(changed)
        begin = clock.monotonic()
        async with store.lock(key):
            while True:
                try:
                    await self._note(store, key, changed, tuple(erased))
                    return
                except WriteConflictError:  # another process was faster
                    if clock.monotonic() - begin > _PATIENCE:
                        raise
                except ConditionsUnsupported:
                    if store.conditional:
                        raise

    async def _note(self, store: Store, key: str, changed: Sequence[str], erased: tuple[str, ...]) -> None:
        own = list(dict.fromkeys((*self.format.document_keys(self.path), key)))
        values = await store.fetch([Request(name) for name in (*own, *changed)], versions=True)
        present = {name: bytes(v.data) for name, v in zip(own, values, strict=False) if v is not None}
        version = next(
            (v.version for name, v in zip(own, values, strict=False) if name == key and v is not None), ABSENT
        )
        fresh = {name: bytes(v.data) for name, v in zip(changed, values[len(own) :], strict=True) if v is not None}

        def applied(documents: Mapping[str, bytes]) -> dict[str, bytes]:
            gone = {name for name in documents if name.startswith(erased) or name in changed}
            return {**{name: data for name, data in documents.items() if name not in gone}, **fresh}

        self.documents = applied(self.documents)  # a new one: others may be reading the old one
        try:
            documents = self.format.parse_consolidated(self.path, present)
        except MetadataError:
            return  # damaged copies are nobody's
        if documents is not None:  # else somebody has taken them away
            await refresh(store, self.format, self.path, present, applied(documents), version)

    def without_documents(self) -> Consolidated:
        """What it takes to note changes, and no more: for arrays that are sent to other processes."""
        return Consolidated(self.format, self.path, {}, complete=False)


async def refresh(
    store: Store,
    format_: Format,
    path: str,
    present: Mapping[str, bytes],
    documents: Mapping[str, bytes],
    version: object = None,
) -> None:
    """Store the documents below a group in one.

    Args:
        store: The store.
        format_: The format.
        path: The group.
        present: The group's own documents.
        documents: Those of all nodes below, by store key.
        version: That of the document that holds them, if it must still be the same.

    Raises:
        WriteConflictError: If it is another one.
    """
    own = set(format_.document_keys(path))
    below = {key: json.loads(data) for key, data in documents.items() if key not in own}
    for key, data in format_.render_consolidated(path, present, below).items():
        if present.get(key) != data:
            await store.put(key, data, if_version=version if store.conditional else None)
