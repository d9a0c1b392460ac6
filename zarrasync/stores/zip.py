"""Zip archives, read in place: the directory is read once, values by position."""

from __future__ import annotations

import builtins
import os
import struct
import zipfile
import zlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from zarrasync._runtime import thread_lock
from zarrasync.errors import StoreError
from zarrasync.stores.base import Request, Store, Value, clip, store_error

__all__ = ["ZipStore"]

_LOCAL = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 1


class _Entry(NamedTuple):
    """Where a member lies and how."""

    header: int
    stored: int
    size: int
    method: int
    crc: int


class ZipStore(Store):
    """The members of a zip archive; a key is a member's name. Of members of one name the last one counts.

    Members that are stored as they are can be read in part; deflated and otherwise compressed ones are
    read whole, decompressed to no more than their declared size, and checked. Any number of threads and
    processes may read side by side.

    Args:
        file: The archive's path, or a binary file object that can seek (which is not closed here).
        mode: ``"r"``: archives are read, not changed.

    Raises:
        ValueError: If the mode is another one.
    """

    blocking = True
    writeable = False
    concurrency = 16

    def __init__(self, file: str | os.PathLike[str] | IO[bytes], mode: Literal["r"] = "r") -> None:
        if mode != "r":
            raise ValueError(f"mode is 'r': zip archives are read, not changed; found {mode!r}")
        self._path = Path(os.path.abspath(os.fspath(file))) if isinstance(file, str | os.PathLike) else None
        self._file = None if self._path is not None else file
        self._reset()

    def _reset(self) -> None:
        self._mutex = thread_lock()
        self._entries: dict[str, _Entry] | None = None
        self._handle: int | None = None

    @property
    def identity(self) -> Hashable:
        return ("zip", id(self._file)) if self._path is None else ("zip", os.path.realpath(self._path))

    def __repr__(self) -> str:
        return f"ZipStore({str(self._path) if self._path is not None else self._file!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._path is None:
            raise TypeError(f"{self!r} reads an open file, which can not be sent to another process; give a path")
        return {"_path": self._path, "_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        handle, self._handle, self._entries = getattr(self, "_handle", None), None, None
        if handle is not None:
            os.close(handle)

    async def close(self) -> None:
        with self._mutex:
            self._close()

    # -------------------------------------------------------------- the archive

    def _open(self) -> dict[str, _Entry]:
        """The directory of members, read on first use."""
        entries = self._entries
        if entries is not None:
            return entries
        with self._mutex:
            if self._entries is None:
                try:
                    if self._path is not None:
                        with open(self._path, "rb") as file:
                            self._entries = _directory(file)
                            self._handle = os.dup(file.fileno())
                    else:
                        self._entries = _directory(self._file)
                except FileNotFoundError:
                    raise StoreError(f"there is no file {str(self._path)!r}") from None
                except (OSError, zipfile.BadZipFile, ValueError, struct.error) as error:
                    raise StoreError(f"{self!r} is not a readable zip archive: {error}") from error
            return self._entries

    def _pread(self, size: int, offset: int) -> bytes:
        if size <= 0:
            return b""
        if self._handle is not None and hasattr(os, "pread"):
            parts, missing = [], size
            while missing and (part := os.pread(self._handle, missing, offset + size - missing)):
                parts.append(part)
                missing -= len(part)
            data = parts[0] if len(parts) == 1 else b"".join(parts)
        else:
            with self._mutex, _seekable(self._file, self._path) as file:
                file.seek(offset)
                data = file.read(size)
        if len(data) != size:
            raise ValueError(f"it ends {size - len(data)} bytes early")
        return data

    def _begin(self, entry: _Entry) -> int:
        """Where a member's bytes begin: after its local header, whose length only itself knows."""
        signature, *_, name, extra = _LOCAL.unpack(self._pread(_LOCAL.size, entry.header))
        if signature != b"PK\3\4":
            raise ValueError("a member's header is damaged")
        return entry.header + _LOCAL.size + int(name) + int(extra)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        entries = self._open()
        found: list[Value | None] = []
        for request in requests:
            entry = entries.get(request.key)
            if entry is None:
                found.append(None)
                continue
            try:
                data = self._read(entry, request)
            except (OSError, ValueError, struct.error, zlib.error, zipfile.BadZipFile) as error:
                raise store_error(error, request.key, "read", self) from error
            found.append(Value(data, (entry.header, entry.crc), entry.size))
        return found

    def _read(self, entry: _Entry, request: Request) -> Any:
        if entry.method == zipfile.ZIP_STORED:
            start = max(0, entry.size - (request.length or 0)) if request.suffix else min(request.start, entry.size)
            length = entry.size - start if request.length is None else min(request.length, entry.size - start)
            whole = length == entry.size
            data = self._pread(length, self._begin(entry) + start)
            return _checked(data, entry) if whole else data
        if entry.method == zipfile.ZIP_DEFLATED:
            stream = zlib.decompressobj(-15)
            data = stream.decompress(self._pread(entry.stored, self._begin(entry)), entry.size + 1)
        else:
            # Python's module knows some methods more; which ones depends on its version.
            with self._mutex, _seekable(self._file, self._path) as file, zipfile.ZipFile(file) as archive:
                try:
                    with archive.open(request.key) as member:
                        data = member.read(entry.size + 1)
                except (NotImplementedError, RuntimeError) as error:
                    raise ValueError(f"{error} (compression method {entry.method})") from error
        return clip(_checked(data, entry), request)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return [key for key in self._open() if key.startswith(prefix)]


def _directory(file: Any) -> dict[str, _Entry]:
    with zipfile.ZipFile(file) as archive:
        found = {}
        for member in archive.infolist():
            if member.is_dir():
                continue
            if member.flag_bits & _ENCRYPTED:
                raise ValueError(f"its member {member.filename!r} is encrypted")
            found[member.filename] = _Entry(
                member.header_offset, member.compress_size, member.file_size, member.compress_type, member.CRC
            )
        return found


class _seekable:
    """A file to seek in: the one that was given, at the place where it was afterwards, or the path's."""

    def __init__(self, file: Any, path: Path | None) -> None:
        self._file = open(path, "rb") if path is not None else file  # noqa: SIM115
        self._own = path is not None

    def __enter__(self) -> Any:
        return self._file

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._file.close()


def _checked(data: bytes, entry: _Entry) -> bytes:
    if len(data) != entry.size:
        raise ValueError(f"{len(data)} bytes came out where its directory has {entry.size}")
    if zlib.crc32(data) != entry.crc:
        raise ValueError("its checksum differs from the directory's: the member is damaged")
    return data
