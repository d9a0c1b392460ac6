"""A store over a zip archive that is a value of another store. The directory is fetched once, members by byte ranges."""

from __future__ import annotations

import builtins
import errno
import zipfile
from collections.abc import Hashable, Sequence
from functools import partial

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.gather import SingleFlight
from zarrasync._concurrency.offload import compute
from zarrasync._util.memory import BudgetExceeded
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.model.paths import check_key, check_keys, check_prefix
from zarrasync.stores.base import Store
from zarrasync.stores.errors import store_error
from zarrasync.stores.values import Request, Value, clip
from zarrasync.stores.zip_format import (
    DAMAGE_ERRORS,
    LOCAL_HEADER,
    FileView,
    Member,
    check_expansion,
    content,
    data_offset,
    members_of,
    verify,
)

_TAIL_SIZE = 1 << 16
"""Number of bytes that are fetched from the end of an archive, which contain most directories."""
_EXTRA_SIZE = 64
"""Number of bytes that are fetched with a member for extra fields in its local header."""
_QUICK = 1 << 20
"""Size in bytes up to which an event loop decompresses a member itself."""


class RemoteZipStore(Store):
    """Members of a zip archive that is a value of another store, read-only.

    Opening takes one request (two for archives with many members), and each member takes one. A byte range of an
    uncompressed member takes two requests the first time, then one.

    Args:
        inner: The store.
        key: The archive's key in it.

    Raises:
        InvalidKeyError: If the key is invalid.
    """

    writeable = False
    _unshared = ("_data_offsets", "_members", "_opening", "_version")

    def __init__(self, inner: Store, key: str) -> None:
        self.inner, self.key = inner, check_key(key)
        self.blocking, self.parallel, self.concurrency = inner.blocking, inner.parallel, inner.concurrency
        self.limits_requests = inner.limits_requests
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._opening = SingleFlight()
        self._members: dict[str, Member] | None = None
        self._data_offsets: dict[str, int] = {}
        self._version: object = None

    @property
    def identity(self) -> Hashable:
        return ("zip", self.inner.location(self.key))

    @property
    def lasting_identity(self) -> bool:
        return self.inner.lasting_identity

    @property
    def shareable(self) -> bool:
        return self.inner.shareable

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        return (*super().lineage(path), *self.inner.lineage(self.key))

    @property
    def viewer(self) -> Hashable:
        return self.inner.viewer

    def __repr__(self) -> str:
        return f"RemoteZipStore({self.inner!r}, {self.key!r})"

    async def close(self) -> None:
        self._make_unshared()
        await self.inner.close()

    # -------------------------------------------------------------- the directory

    async def _open(self) -> dict[str, Member]:
        if self._members is None:
            self._members = await (
                self._read_directory() if driven() else self._opening.share(self.key, self._read_directory)
            )
        return self._members

    async def _read_directory(self) -> dict[str, Member]:
        (tail,) = await self.inner.fetch([Request(self.key, 0, _TAIL_SIZE, True)], versions=True)
        if tail is not None and tail.size is None:
            (tail,) = await self.inner.fetch([Request(self.key)], versions=True)
        if tail is None:
            raise StoreError(
                f"the archive {self.key!r} does not exist in {self.inner!r}; add a slash to its URL if it is a directory",
                key=self.key,
            )
        size = len(tail.data) if tail.size is None else tail.size
        self._version = tail.version
        data = tail.data
        while True:
            file = _FileTail(data, size)
            try:
                with zipfile.ZipFile(file) as archive:
                    return members_of(archive, size)
            except MemoryError as error:
                raise StoreError(f"not enough memory for the directory of {self!r}") from error
            except DAMAGE_ERRORS as error:
                if file.missing_from is None:
                    raise StoreError(
                        f"{self!r} is not a readable zip archive: {error}; check that the file is complete",
                        key=self.key,
                    ) from error
            (longer,) = await self.inner.fetch([Request(self.key, file.missing_from)])
            if longer is None or len(longer.data) <= len(data):
                raise self._replaced()
            data = longer.data

    def _replaced(self) -> StoreError:
        return StoreError(f"the archive {self!r} was replaced while it was read; open it again", key=self.key)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        members = await self._open()
        await self._find_data([r.key for r in requests if r.key in members and _is_partial(r, members[r.key])])
        plans = {number: self._plan(r, members[r.key]) for number, r in enumerate(requests) if r.key in members}
        values: list[Value | None] = [None] * len(requests)
        for number, data in zip(plans, await self._fetch_archive(list(plans.values())), strict=True):
            key = requests[number].key
            member = members[key]
            try:
                content = await self._extract(requests[number], member, plans[number], data)
            except DAMAGE_ERRORS as error:
                raise store_error(error, key, "read", self) from error
            values[number] = Value(content, (self._version, member.header_offset, member.crc), member.size)
        return values

    async def _fetch_archive(self, requests: Sequence[Request]) -> builtins.list[Buffer]:
        """Return byte ranges of the archive.

        Raises:
            StoreError: If the archive is not the one whose directory was read.
        """
        values = await self.inner.fetch(requests, versions=self._version is not None) if requests else []
        for value in values:
            if value is None or (self._version is not None and value.version != self._version):
                raise self._replaced()
        return [value.data for value in values if value is not None]

    async def _find_data(self, keys: Sequence[str]) -> None:
        """Find the positions of the data of members that are read in part."""
        members = await self._open()
        unknown = [key for key in dict.fromkeys(keys) if key not in self._data_offsets]
        requests = [Request(self.key, members[key].header_offset, LOCAL_HEADER.size) for key in unknown]
        for key, header in zip(unknown, await self._fetch_archive(requests), strict=True):
            try:
                self._data_offsets[key] = data_offset(header, members[key])
            except DAMAGE_ERRORS as error:
                raise store_error(error, key, "read", self) from error

    def _plan(self, request: Request, member: Member) -> Request:
        """Return the byte range of the archive to fetch for a request.

        Raises:
            StoreError: If the member is too large.
        """
        try:
            if member.method == zipfile.ZIP_STORED:
                request.check_size(member.size)
            else:
                check_expansion(request, member)
        except (BudgetExceeded, ValueError) as error:
            raise store_error(error, request.key, "read", self) from error
        offset = self._data_offsets.get(request.key)
        if offset is None:
            length = LOCAL_HEADER.size + len(request.key.encode()) + member.compressed_size + _EXTRA_SIZE
            return Request(self.key, member.header_offset, length)
        if member.method != zipfile.ZIP_STORED:
            return Request(self.key, offset, member.compressed_size)
        start, length = request.bounds(member.size)
        return Request(self.key, offset + start, length)

    async def _extract(self, request: Request, member: Member, plan: Request, data: Buffer) -> Buffer:
        """Return the requested bytes of a member.

        Args:
            request: The request.
            member: The member.
            plan: The byte range of the archive that was fetched.
            data: Its bytes.
        """
        with_header = plan.start == member.header_offset
        if with_header:
            offset = self._data_offsets[request.key] = data_offset(data, member)
            start = offset - member.header_offset
            if start + member.compressed_size > len(data):
                (data,) = await self._fetch_archive([Request(self.key, offset, member.compressed_size)])
            else:
                data = memoryview(data)[start : start + member.compressed_size]
        if member.method == zipfile.ZIP_STORED and not with_header:
            return verify(data, member) if len(data) == member.size else data
        if member.method == zipfile.ZIP_STORED:
            return clip(verify(data, member), request)  # type: ignore[no-any-return]  # a slice of its argument
        work = partial(content, data, member, request)
        return work() if member.size <= _QUICK else await compute(work)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return list(await self.list_sizes(prefix))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        return {key: member.size for key, member in (await self._open()).items() if key.startswith(prefix)}


def _is_partial(request: Request, member: Member) -> bool:
    """Return whether a request is for a byte range of a member that can be read in part."""
    return member.method == zipfile.ZIP_STORED and (request.suffix or request.start > 0 or request.length is not None)


class _FileTail(FileView):
    """The last bytes of a file.

    Attributes:
        missing_from: Position of the first byte that was read and is not part of the tail.
    """

    def __init__(self, data: Buffer, size: int) -> None:
        super().__init__(size)
        self._data, self._start = memoryview(data), size - len(data)
        self.missing_from: int | None = None

    def read(self, size: int = -1) -> bytes:
        if self._position < self._start:
            self.missing_from = self._position
            raise OSError(errno.EIO, "these bytes were not fetched")
        offset = self._position - self._start
        data = bytes(self._data[offset:] if size < 0 else self._data[offset : offset + size])
        self._position += len(data)
        return data
