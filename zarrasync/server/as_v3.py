"""A hierarchy of any format as a store in format 3, translated while it is read."""

from __future__ import annotations

import builtins
import hashlib
import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from zarrasync import formats
from zarrasync._util import json as _json
from zarrasync.errors import NodeNotFoundError, UnsupportedByFormat
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.convert import LayoutChanges, convert_metadata, has_same_values
from zarrasync.nodes.access import chunks_of, handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.server.cache import Cache
from zarrasync.stores import MemoryStore, Request, Store, Value
from zarrasync.stores.values import clip

if TYPE_CHECKING:
    from zarrasync.server.state import Source

__all__ = ["PresentedStore"]

_PLAIN = re.compile(r"(?:(?P<path>.+)/)?c(?:/\d{1,18})*")
"""A chunk's key in the default encoding."""
_CHUNK_NAME = re.compile(r"c?[\d.]*")
"""What the segments of a chunk's key, behind its array's path, look like in any encoding."""
_MOST_NUMBERS = 8
"""Groups and arrays, one in the other, whose names are numbers and that are looked for where keys are numbers, too."""
_MOST_AXES = 32
"""Axes that an array can have: NumPy's limit was that for long."""


@dataclass(frozen=True)
class _Shown:
    """An array and how it is shown.

    Attributes:
        array: The array.
        metadata: Its metadata in the format that is shown.
        same: Whether stored values are passed on as they are.
    """

    array: AsyncArray
    metadata: ArrayMetadata
    same: bool


class PresentedStore(Store):
    """The keys and values that a hierarchy would have in format 3. Read-only.

    Stored values that mean the same there are passed on, ranges included; others are decoded and encoded again. The
    root's document holds those of all nodes below (consolidated metadata), if they can be known: clients behind HTTP
    can not list.

    Args:
        source: The hierarchy.
        max_bytes: Bytes of values that were encoded anew to remember.
    """

    writeable = listable = False

    def __init__(self, source: Source, max_bytes: int) -> None:
        self.source = source
        self.format = formats.by_name(3)
        self.concurrency = source.store.concurrency
        self._arrays: Cache[_Shown] = Cache(1024, math.inf)
        self._encodings: Cache[bytes | None] = Cache(max_bytes, source.max_age, lambda data: 200 + len(data or b""))

    @property
    def identity(self) -> Hashable:
        return ("presented", self.source.store.identity)

    def __repr__(self) -> str:
        return f"PresentedStore({self.source.store!r})"

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return [await self._fetch(request) for request in requests]

    async def _fetch(self, request: Request) -> Value | None:
        path = request.key.rpartition("/")[0]
        if self.format.document_keys(path) == (request.key,):
            return _part(await self._document(path), request)
        found = await self._chunk(request.key)
        if found is None:
            return None
        shown, at = found
        if not shown.same:
            name = (self.source.mark(shown.array), at)
            return _part(await self._encodings.get(name, partial(self._encoded, shown, at)), request)
        chunks = chunks_of(shown.array)
        moved = request._replace(key=chunks.key(at), into=None)
        (value,) = await run_on_store(partial(chunks.store.fetch, [moved], versions=True), chunks.store)
        return value

    # -------------------------------------------------------------- documents

    async def _document(self, path: str) -> bytes | None:
        try:
            node = await self.source.node(path)
        except NodeNotFoundError:
            return None
        own = self._rendered(path, node)
        if path or not isinstance(node, AsyncGroup):
            return next(iter(own.values()))
        below: dict[str, Any] = {}
        for name, member in await self.source.everything() or ():
            try:
                documents = self._rendered(name, member)
            except UnsupportedByFormat:
                continue  # asking for it says why
            below.update({key: _json.load(data, key) for key, data in documents.items()})
        if not below:
            return next(iter(own.values()))
        return next(iter(self.format.render_consolidated("", own, below).values()))

    def _rendered(self, path: str, node: AsyncArray | AsyncGroup) -> dict[str, bytes]:
        metadata = self._translated(node) if isinstance(node, AsyncArray) else GroupMetadata(attributes=node.attrs)
        return self.format.render(path, metadata)

    def _translated(self, array: AsyncArray) -> ArrayMetadata:
        return convert_metadata(array.metadata, array.name, handle_of(array).format, self.format, LayoutChanges(), [])

    # -------------------------------------------------------------- chunks

    async def _chunk(self, key: str) -> tuple[_Shown, tuple[int, ...]] | None:
        """The array and the grid coordinates that a key means, if it means a chunk."""
        for path in _homes(key):
            shown = await self._show(path)
            if shown is None:
                continue
            at = shown.metadata.keys.decode(key[len(path) + 1 if path else 0 :], shown.metadata.ndim)
            if at is None:
                continue
            if not _inside(shown, at):  # others may have made it longer since its metadata was read
                shown = self._shown(await self.source.open(path))
            return (shown, at) if shown is not None and _inside(shown, at) else None
        return None

    async def _show(self, path: str) -> _Shown | None:
        """The array at a path and how it is shown; it is made anew with the array's metadata, and only then."""
        if await self.source.remember(("absent", path), partial(self._is_absent, path)):
            return None
        node = await self.source.node(path)
        known = self._arrays.find(path)
        if known is None or known.array is not node:
            known = self._shown(node)
            if known is not None:
                self._arrays.keep(path, known)
        return known

    def _shown(self, node: AsyncArray | AsyncGroup) -> _Shown | None:
        if not isinstance(node, AsyncArray):
            return None
        metadata = self._translated(node)
        return _Shown(node, metadata, has_same_values(node.metadata, metadata))

    async def _is_absent(self, path: str) -> bool:
        try:
            await self.source.node(path)
        except NodeNotFoundError:
            return True
        return False

    async def _encoded(self, shown: _Shown, at: tuple[int, ...]) -> bytes | None:
        """A stored value that does not exist: what writing these elements would store."""
        region = shown.metadata.grid.box(at)
        view = shown.array.view[region]
        self.source.check(view)
        values: dict[str, Any] = {}
        target = AsyncArray(NodeHandle(MemoryStore(values), "", self.format, shown.array.config), shown.metadata)
        await target.view[region].write(await view.read())
        data = values.get(chunks_of(target).key(at))
        return None if data is None else bytes(data)


def _homes(key: str) -> Iterator[str]:
    """The paths at which the array of a chunk's key may lie, the likely one first."""
    plain = _PLAIN.fullmatch(key)
    likely = None if plain is None else plain["path"] or ""
    if likely is not None:
        yield likely
    parts = key.split("/")
    first = len(parts)
    while first > 0 and len(parts) - first <= _MOST_AXES and _CHUNK_NAME.fullmatch(parts[first - 1]):
        first -= 1
    for count in range(first, min(len(parts), first + _MOST_NUMBERS)):  # numbers may also be names of groups and arrays
        path = "/".join(parts[:count])
        if path != likely:
            yield path


def _inside(shown: _Shown, at: tuple[int, ...]) -> bool:
    return all(i < n for i, n in zip(at, shown.metadata.grid.shape, strict=True))


def _part(data: bytes | None, request: Request) -> Value | None:
    if data is None:
        return None
    return Value(clip(data, request), hashlib.blake2b(data, digest_size=12).hexdigest(), len(data))
