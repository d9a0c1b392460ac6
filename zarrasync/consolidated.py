"""Consolidated metadata: the documents of a whole hierarchy in one, kept beside its root group.

A group that was opened with such documents finds its members in them, without a request. They are a copy
that others may let grow old; what is written through a group that was opened with them is written there, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from zarrasync.formats import Format
from zarrasync.keys import join
from zarrasync.stores.base import Listing, Request, Store

__all__ = ["Consolidated", "refresh"]


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

    async def note(self, store: Store, changed: Mapping[str, bytes | None], erased: Sequence[str] = ()) -> None:
        """Follow a change of the hierarchy, here and in the store.

        Args:
            store: The store.
            changed: Documents that were written, or ``None`` for those that were erased.
            erased: Prefixes under which everything was erased.
        """

        def apply(documents: dict[str, bytes]) -> None:
            for key in [key for key in documents if key.startswith(tuple(erased))]:
                del documents[key]
            for key, data in changed.items():
                if data is None:
                    documents.pop(key, None)
                else:
                    documents[key] = data

        apply(self.documents)
        key = self.format.consolidated_key(self.path)
        assert key is not None
        async with store.lock(key):
            keys = {*self.format.document_keys(self.path), key}
            values = await store.fetch([Request(name) for name in keys])
            present = {name: bytes(v.data) for name, v in zip(keys, values, strict=True) if v is not None}
            documents = self.format.unpack(self.path, present)
            if documents is not None:  # else somebody has taken it away
                apply(documents)
                await refresh(store, self.format, self.path, present, documents)


async def refresh(
    store: Store, format_: Format, path: str, present: Mapping[str, bytes], documents: Mapping[str, bytes]
) -> None:
    """Store the documents below a group in one.

    Args:
        store: The store.
        format_: The format.
        path: The group.
        present: The group's own documents.
        documents: Those of all nodes below, by store key.
    """
    own = set(format_.document_keys(path))
    below = {key: json.loads(data) for key, data in documents.items() if key not in own}
    for key, data in format_.pack(path, present, below).items():
        if present.get(key) != data:
            await store.put(key, data)
