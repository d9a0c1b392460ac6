"""The values in which ingestion records its sources. They are next to the chunks of an array, as JSON.

Only there, no other reader looks: zarr-python lists the keys in groups, and warns of those that do not belong to nodes. Stores that
accept keys of nodes only (``bounded``) contain the value as the chunk of an array below the array, which no reader lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zarrasync._concurrency.retry import ConflictBackoff
from zarrasync.errors import ConditionsUnsupported, WriteConflictError
from zarrasync.formats import SOURCES, by_name
from zarrasync.metadata.create import plan_array
from zarrasync.model.paths import join
from zarrasync.nodes.documents import put_documents
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import ABSENT, Request, Store, Value

FILE = "file"
"""The member of a value that is the file of a single array."""
JOURNAL = "journal"
"""The member that is the journal of a dataset."""

_FORMAT = by_name(3)
_ARRAY = plan_array(_FORMAT, shape=(1,), dtype="u1", chunks=(1,), compressors=None)
"""The array in bounded stores. Its only chunk is the value, whatever its size."""


def sources_key(store: Store, path: str) -> str:
    """Return the key of the value next to an array.

    Args:
        store: The store.
        path: The path of the array.
    """
    return join(path, SOURCES) + "/c/0" * store.bounded


def _document_key(path: str) -> str:
    return _FORMAT.document_keys(join(path, SOURCES))[0]


async def read_sources(store: Store, paths: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the values next to arrays; empty ones if they do not exist."""
    return [{} if value is None else _parse(bytes(value.data)) for value in await _fetch(store, paths)]


async def _fetch(store: Store, paths: Sequence[str]) -> list[Value | None]:
    """Fetch the values next to arrays with their versions."""
    keys = [sources_key(store, path) for path in paths]
    if store.bounded:  # such stores fail for chunks of arrays that do not exist
        documents = await store.fetch([Request(_document_key(path)) for path in paths])
        keys = [key for key, document in zip(keys, documents, strict=True) if document is not None]
        values = iter(await store.fetch([Request(key) for key in keys]))
        return [None if document is None else next(values) for document in documents]
    return await store.fetch([Request(key) for key in keys], versions=True)


async def change_sources(handle: NodeHandle, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Change members of the value next to an array. Changes of other writers are not lost if the store has conditional writes.

    Args:
        handle: The location of the array, which need not exist yet.
        change: Returns members to replace, if any, given the present value, which is empty if it does not exist. May be
            called again.

    Raises:
        WriteConflictError: If other writers kept changing the value.
    """
    store, key = handle.store, sources_key(handle.store, handle.path)
    backoff = ConflictBackoff(handle.config.total_timeout, f"the records of sources in {key} of {store!r}")
    async with store.lock(key):
        while True:
            (present,) = await _fetch(store, [handle.path])
            before = None if present is None else bytes(present.data)
            value = {} if before is None else _parse(before)
            members = change(value)
            data = json.dumps({**value, **members}, separators=(",", ":")).encode()
            if not members or data == before:
                return
            if store.bounded and before is None:
                await put_documents(store, _FORMAT.render(join(handle.path, SOURCES), _ARRAY), {})
            version = (ABSENT if present is None else present.version) if store.conditional else None
            try:
                await store.put(key, data, if_version=version)
            except WriteConflictError as conflict:
                await backoff.after(conflict)
            except ConditionsUnsupported:
                if store.conditional:
                    raise
            else:
                return


def _parse(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {JOURNAL: {}}  # a damaged one, which is not the same as none
