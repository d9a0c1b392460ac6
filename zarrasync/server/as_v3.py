"""A hierarchy of any format as a store in format 3, translated while it is read."""

from __future__ import annotations

import builtins
import hashlib
import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from zarrasync import formats
from zarrasync.errors import UnsupportedByFormat
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.convert import LayoutChanges, convert_metadata, has_same_values
from zarrasync.nodes.access import chunks_of, handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.server.cache import Cache
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.hierarchy import Hierarchy
from zarrasync.stores import MemoryStore, Request, Store, Value
from zarrasync.stores.values import clip

_DEFAULT_KEY = re.compile(r"(?:(?P<path>.+)/)?c(?:/\d{1,18})*")
"""A chunk's key in the default encoding."""
_KEY_PART = re.compile(r"c?[\d.]*")
"""A part of a chunk's key after the array's path, in any encoding."""
_MOST_NUMERIC_NAMES = 8
"""Parts of a key that may be numeric names of groups and arrays instead of chunk coordinates."""
_MOST_AXES = 32
"""Maximum number of axes of an array, as in older NumPy."""


@dataclass(frozen=True)
class _Translation:
    """An array and its metadata in format 3.

    Attributes:
        array: The array.
        metadata: Its metadata in format 3.
        keeps_values: Whether stored values have the same bytes in format 3.
    """

    array: AsyncArray
    metadata: ArrayMetadata
    keeps_values: bool

    def contains(self, coords: tuple[int, ...]) -> bool:
        """Return whether grid coordinates lie inside the array."""
        return all(i < n for i, n in zip(coords, self.metadata.grid.shape, strict=True))


class V3Store(Store):
    """A read-only store with the keys and values that a hierarchy would have in format 3.

    Stored values that are valid in format 3 are returned unchanged, including byte ranges; others are decoded and
    encoded again. HTTP clients cannot list, so the root's document contains consolidated metadata if all nodes can be
    listed.

    Args:
        hierarchy: The hierarchy.
        chunks: Checks selections against the limits.
        max_bytes: Bytes of encoded values to keep.
    """

    writeable = listable = False

    def __init__(self, hierarchy: Hierarchy, chunks: ChunkReader, max_bytes: int) -> None:
        self._hierarchy, self._chunks = hierarchy, chunks
        self._format = formats.by_name(3)
        self.concurrency = hierarchy.store.concurrency
        self._translations: Cache[_Translation] = Cache(1024, math.inf)
        self._encoded: Cache[bytes | None] = Cache(max_bytes, hierarchy.max_age, lambda data: 200 + len(data or b""))

    @property
    def identity(self) -> Hashable:
        return ("as v3", self._hierarchy.store.identity)

    def __repr__(self) -> str:
        return f"V3Store({self._hierarchy.store!r})"

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return [await self._fetch(request) for request in requests]

    async def _fetch(self, request: Request) -> Value | None:
        path = request.key.rpartition("/")[0]
        if self._format.document_keys(path) == (request.key,):
            return _value_of(await self._document(path), request)
        located = await self._locate(request.key)
        if located is None:
            return None
        translation, coords = located
        if not translation.keeps_values:
            key = (self._hierarchy.version_key(translation.array), coords)
            return _value_of(await self._encoded.get(key, partial(self._encode, translation, coords)), request)
        chunks = chunks_of(translation.array)
        stored = request._replace(key=chunks.key(coords), out=None)
        (value,) = await run_on_store(partial(chunks.store.fetch, [stored], versions=True), chunks.store)
        return value

    async def stored_key(self, key: str) -> str | None:
        """Return the key, in the whole store, of the stored value that has the bytes of a chunk; ``None`` if none has."""
        located = await self._locate(key)
        if located is None or not located[0].keeps_values:
            return None
        array = located[0].array
        if array.metadata.transformers or handle_of(array).format.chunk_aliases(array.path, array.metadata):
            return None  # it may be stored at one of several keys
        chunks = chunks_of(array)
        return chunks.prefix + chunks.key(located[1])

    # -------------------------------------------------------------- documents

    async def _document(self, path: str) -> bytes | None:
        """Return the metadata document of a node; for the root, with consolidated metadata."""
        node = await self._hierarchy.find(path)
        if node is None:
            return None
        documents = self._render(path, node)
        members: dict[str, bytes] = {}
        if not path and isinstance(node, AsyncGroup):
            for name, member in await self._hierarchy.descendants() or ():
                try:
                    rendered = self._render(name, member)
                except UnsupportedByFormat:
                    continue  # a request for its document gets the error
                members.update(rendered)
        if members:
            documents = self._format.render_consolidated("", documents, members)
        return next(iter(documents.values()))

    def _render(self, path: str, node: AsyncArray | AsyncGroup) -> dict[str, bytes]:
        metadata = self._metadata(node) if isinstance(node, AsyncArray) else GroupMetadata(attributes=node.attrs)
        return self._format.render(path, metadata)

    def _metadata(self, array: AsyncArray) -> ArrayMetadata:
        return convert_metadata(array.metadata, array.name, handle_of(array).format, self._format, LayoutChanges(), [])

    # -------------------------------------------------------------- chunks

    async def _locate(self, key: str) -> tuple[_Translation, tuple[int, ...]] | None:
        """Return the array and the grid coordinates of a chunk's key; ``None`` for other keys."""
        for path in _array_paths(key):
            translation = await self._translation(path)
            if translation is None:
                continue
            relative = key[len(path) + 1 if path else 0 :]
            coords = translation.metadata.keys.decode(relative, translation.metadata.ndim)
            if coords is None:
                continue
            if not translation.contains(coords):  # another writer may have extended the array
                translation = self._translate(await self._hierarchy.open(path))
            return (translation, coords) if translation is not None and translation.contains(coords) else None
        return None

    async def _translation(self, path: str) -> _Translation | None:
        """Return the translation of the array at a path. It is cached as long as the array's metadata."""
        if await self._hierarchy.cached(("found", path), partial(self._hierarchy.find, path)) is None:
            return None
        node = await self._hierarchy.node(path)
        translation = self._translations.find(path)
        if translation is None or translation.array is not node:
            translation = self._translate(node)
            if translation is not None:
                self._translations.put(path, translation)
        return translation

    def _translate(self, node: AsyncArray | AsyncGroup) -> _Translation | None:
        if not isinstance(node, AsyncArray):
            return None
        metadata = self._metadata(node)
        return _Translation(node, metadata, has_same_values(node.metadata, metadata))

    async def _encode(self, translation: _Translation, coords: tuple[int, ...]) -> bytes | None:
        """Return the bytes that writing a chunk in format 3 would store."""
        region = translation.metadata.grid.box(coords)
        view = translation.array.view[region]
        self._chunks.check(view)
        values: dict[str, Any] = {}
        handle = NodeHandle(MemoryStore(values), "", self._format, translation.array.config)
        target = AsyncArray(handle, translation.metadata)
        await target.view[region].write(await view.read())
        data = values.get(chunks_of(target).key(coords))
        return None if data is None else bytes(data)


def _array_paths(key: str) -> Iterator[str]:
    """Yield the possible paths of the array of a chunk's key, from the most likely one."""
    match = _DEFAULT_KEY.fullmatch(key)
    likely = None if match is None else match["path"] or ""
    if likely is not None:
        yield likely
    parts = key.split("/")
    first = len(parts)
    while first > 0 and len(parts) - first <= _MOST_AXES and _KEY_PART.fullmatch(parts[first - 1]):
        first -= 1
    for count in range(first, min(len(parts), first + _MOST_NUMERIC_NAMES)):
        path = "/".join(parts[:count])
        if path != likely:
            yield path


def _value_of(data: bytes | None, request: Request) -> Value | None:
    if data is None:
        return None
    return Value(clip(data, request), hashlib.blake2b(data, digest_size=12).hexdigest(), len(data))
