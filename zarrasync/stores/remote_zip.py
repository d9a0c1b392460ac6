"""Zip archives that lie in another store: the directory is fetched once, members by ranges."""

from __future__ import annotations

import builtins
import errno
import zipfile
from collections.abc import Hashable, Sequence

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.single_flight import SingleFlight
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import Request, Store, Value, clip
from zarrasync.stores.errors import store_error
from zarrasync.stores.zip import DAMAGE, LOCAL, Entry, Window, after_header, checked, entries_of, inflate

__all__ = ["RemoteZipStore"]

_TAIL = 1 << 16
"""Bytes that are fetched from the end, in which most directories lie whole."""
_SPARE = 64
"""Bytes that a member's own header may be longer than the least."""


class RemoteZipStore(Store):
    """The members of a zip archive that is a value of another store; for reading.

    Opening costs one request (two for archives of many members), a member one, a part of a member that is stored as
    it is two the first time and one from then on. Members may be stored or deflated.

    Args:
        inner: The store.
        key: The archive's key in it.
    """

    writeable = False

    def __init__(self, inner: Store, key: str) -> None:
        self.inner, self.key = inner, check_key(key)
        self.blocking, self.parallel, self.concurrency = inner.blocking, inner.parallel, inner.concurrency
        self._reset()

    def _reset(self) -> None:
        self._flights = SingleFlight()
        self._entries: dict[str, Entry] | None = None
        self._begins: dict[str, int] = {}
        self._version: object = None

    @property
    def identity(self) -> Hashable:
        return ("zip", self.inner.location(self.key))

    @property
    def viewer(self) -> Hashable:
        return self.inner.viewer

    def __repr__(self) -> str:
        return f"RemoteZipStore({self.inner!r}, {self.key!r})"

    def __reduce__(self) -> tuple[type[RemoteZipStore], tuple[Store, str]]:
        return (RemoteZipStore, (self.inner, self.key))

    async def close(self) -> None:
        self._reset()
        await self.inner.close()

    # -------------------------------------------------------------- the directory

    async def _directory(self) -> dict[str, Entry]:
        if self._entries is None:
            self._entries = await (
                self._read_directory() if driven() else self._flights.share(self.key, self._read_directory)
            )
        return self._entries

    async def _read_directory(self) -> dict[str, Entry]:
        (tail,) = await self.inner.fetch([Request(self.key, 0, _TAIL, True)], versions=True)
        if tail is not None and tail.size is None:
            (tail,) = await self.inner.fetch([Request(self.key)], versions=True)
        if tail is None:
            raise StoreError(f"there is no value {self.key!r} in {self.inner!r}", key=self.key)
        size = len(tail.data) if tail.size is None else tail.size
        self._version = tail.version
        data = tail.data
        while True:
            file = _Tail(data, size)
            try:
                with zipfile.ZipFile(file) as archive:
                    return entries_of(archive, size)
            except DAMAGE as error:
                if file.missed is None:
                    raise StoreError(f"{self!r} is not a readable zip archive: {error}", key=self.key) from error
            (more,) = await self.inner.fetch([Request(self.key, file.missed)])
            if more is None or len(more.data) <= len(data):
                raise self._changed()
            data = more.data

    def _changed(self) -> StoreError:
        return StoreError(f"the archive {self!r} was replaced while it was read; open it again", key=self.key)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        entries = await self._directory()
        found: dict[int, Value | None] = {}
        plans: dict[int, Request] = {}
        await self._find_begins([r for r in requests if r.key in entries and _in_part(r, entries[r.key])])
        for number, request in enumerate(requests):
            entry = entries.get(request.key)
            if entry is None:
                found[number] = None
            else:
                plans[number] = self._plan(request, entry)
        values = await self._get(list(plans.values()))
        for number, value in zip(plans, values, strict=True):
            entry = entries[requests[number].key]
            try:
                data = await self._take(requests[number], entry, plans[number], value)
            except DAMAGE as error:
                raise store_error(error, requests[number].key, "read", self) from error
            found[number] = Value(data, (self._version, entry.header, entry.crc), entry.size)
        return [found[number] for number in range(len(requests))]

    async def _get(self, requests: Sequence[Request]) -> builtins.list[Buffer]:
        """Parts of the archive, if it is still the one whose directory is known."""
        values = await self.inner.fetch(requests, versions=self._version is not None) if requests else []
        for value in values:
            if value is None or (self._version is not None and value.version != self._version):
                raise self._changed()
        return [value.data for value in values if value is not None]

    async def _find_begins(self, requests: Sequence[Request]) -> None:
        """Learn where members begin of which a part alone is wanted."""
        entries = await self._directory()
        unknown = [key for key in dict.fromkeys(r.key for r in requests) if key not in self._begins]
        headers = await self._get([Request(self.key, entries[key].header, LOCAL.size) for key in unknown])
        for key, header in zip(unknown, headers, strict=True):
            try:
                self._begins[key] = after_header(header, entries[key])
            except DAMAGE as error:
                raise store_error(error, key, "read", self) from error

    def _plan(self, request: Request, entry: Entry) -> Request:
        """What to fetch of the archive for a member, or a part of it."""
        begin = self._begins.get(request.key)
        if begin is None:
            least = LOCAL.size + len(request.key.encode()) + entry.stored
            return Request(self.key, entry.header, least + _SPARE)
        if entry.method != zipfile.ZIP_STORED:
            return Request(self.key, begin, entry.stored)
        start = max(0, entry.size - (request.length or 0)) if request.suffix else min(request.start, entry.size)
        length = entry.size - start if request.length is None else min(request.length, entry.size - start)
        return Request(self.key, begin + start, length)

    async def _take(self, request: Request, entry: Entry, plan: Request, data: Buffer) -> Buffer:
        """What was asked for, out of what was fetched."""
        if plan.start == entry.header:  # with its header
            begin = self._begins[request.key] = after_header(data, entry)
            at = begin - entry.header
            if at + entry.stored > len(data):
                (data,) = await self._get([Request(self.key, begin, entry.stored)])
            else:
                data = memoryview(data)[at : at + entry.stored]
        if entry.method == zipfile.ZIP_STORED:
            whole = len(data) == entry.size
            if plan.start == entry.header:
                return clip(checked(data, entry), request)  # type: ignore[no-any-return]  # a part of what it is given
            return checked(data, entry) if whole else data
        if entry.method != zipfile.ZIP_DEFLATED:
            raise ValueError(f"the compression method {entry.method} is not read from afar")
        return clip(checked(inflate(data, entry), entry), request)  # type: ignore[no-any-return]  # likewise

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return list(await self.list_sizes(prefix))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        return {key: entry.size for key, entry in (await self._directory()).items() if key.startswith(prefix)}


def _in_part(request: Request, entry: Entry) -> bool:
    """Whether a request is for a part of a member that can be had alone."""
    return entry.method == zipfile.ZIP_STORED and (request.suffix or request.start > 0 or request.length is not None)


class _Tail(Window):
    """The last bytes of a file.

    Attributes:
        missed: The first byte that was asked for and is not here.
    """

    def __init__(self, data: Buffer, size: int) -> None:
        super().__init__(size)
        self._data, self._start = memoryview(data), size - len(data)
        self.missed: int | None = None

    def read(self, size: int = -1) -> bytes:
        if self._at < self._start:
            self.missed = self._at
            raise OSError(errno.EIO, "not here")
        begin = self._at - self._start
        data = bytes(self._data[begin:] if size < 0 else self._data[begin : begin + size])
        self._at += len(data)
        return data
