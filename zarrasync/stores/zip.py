"""Zip archives, read in place: the directory is read once, values by position."""

from __future__ import annotations

import builtins
import lzma
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
_MOST = 1 << 20
"""Bytes that one byte of any method can become, generously."""
_DICTIONARY = 1 << 28
"""The largest dictionary that LZMA gets, in bytes; its presets take a quarter of that at the most."""
_DAMAGE = (
    OSError, ValueError, OverflowError, MemoryError, EOFError, NotImplementedError,
    struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip


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
        self._archive: _Archive | None = None

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

    async def close(self) -> None:
        self._archive = None  # whoever reads keeps it open until it is done

    def _open(self) -> _Archive:
        """The archive, opened on first use."""
        archive = self._archive
        if archive is not None:
            return archive
        with self._mutex:
            if self._archive is None:
                try:
                    self._archive = _Archive(self._path, self._file)
                except FileNotFoundError:
                    raise StoreError(f"there is no file {str(self._path)!r}") from None
                except _DAMAGE as error:
                    raise StoreError(f"{self!r} is not a readable zip archive: {error}") from error
            return self._archive

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        archive = self._open()
        found: list[Value | None] = []
        for request in requests:
            entry = archive.entries.get(request.key)
            if entry is None:
                found.append(None)
                continue
            try:
                data = archive.read(entry, request)
            except _DAMAGE as error:
                raise store_error(error, request.key, "read", self) from error
            found.append(Value(data, (entry.header, entry.crc), entry.size))
        return found

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return [key for key in self._open().entries if key.startswith(prefix)]


class _Archive:
    """An open archive, which closes its file when nobody reads it any more."""

    def __init__(self, path: Path | None, file: Any) -> None:
        self._mutex = thread_lock()
        self._owned = path is not None
        self._file = open(path, "rb") if path is not None else file  # noqa: SIM115
        try:
            self._positioned = self._owned and hasattr(os, "pread")
            self.entries = self._directory()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._owned:
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._close()

    def _directory(self) -> dict[str, _Entry]:
        self._file.seek(0, os.SEEK_END)
        size = self._file.tell()
        with zipfile.ZipFile(self._file) as archive:
            found = {}
            for member in archive.infolist():
                if not member.filename or member.is_dir():
                    continue
                if member.flag_bits & _ENCRYPTED:
                    raise ValueError(f"its member {member.filename!r} is encrypted")
                plain = member.compress_type == zipfile.ZIP_STORED
                stored, whole = member.compress_size, member.file_size
                if member.header_offset + stored > size or (whole != stored if plain else whole > _MOST * (stored + 1)):
                    raise ValueError(f"its member {member.filename!r} can not have {stored} bytes that make {whole}")
                found[member.filename] = _Entry(member.header_offset, stored, whole, member.compress_type, member.CRC)
            return found

    def _pread(self, size: int, offset: int) -> bytes:
        if size <= 0:
            return b""
        if self._positioned:
            parts, missing = [], size
            while missing and (part := os.pread(self._file.fileno(), missing, offset + size - missing)):
                parts.append(part)
                missing -= len(part)
            data = parts[0] if len(parts) == 1 else b"".join(parts)
        else:
            with self._mutex:
                self._file.seek(offset)
                data = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"it ends {size - len(data)} bytes early")
        return data

    def _begin(self, entry: _Entry) -> int:
        """Where a member's bytes begin: after its local header, whose length only itself knows."""
        signature, *_, name, extra = _LOCAL.unpack(self._pread(_LOCAL.size, entry.header))
        if signature != b"PK\3\4":
            raise ValueError("a member's header is damaged")
        return entry.header + _LOCAL.size + int(name) + int(extra)

    def read(self, entry: _Entry, request: Request) -> Any:
        """A member, or the part of it that is asked for."""
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
            if entry.method == zipfile.ZIP_LZMA:  # version, size of the properties, one of them, the dictionary's size
                (dictionary,) = struct.unpack_from("<5xI", self._pread(min(9, entry.stored), self._begin(entry)))
                if dictionary > _DICTIONARY:
                    raise ValueError(f"its dictionary of {dictionary} bytes is larger than {_DICTIONARY}")
            # Python's module knows some methods more; which ones depends on its version.
            with self._mutex, zipfile.ZipFile(self._file) as archive:
                try:
                    with archive.open(request.key) as member:
                        data = member.read(entry.size + 1)
                except (NotImplementedError, RuntimeError) as error:
                    raise ValueError(f"{error} (compression method {entry.method})") from error
        return clip(_checked(data, entry), request)


def _checked(data: bytes, entry: _Entry) -> bytes:
    if len(data) != entry.size:
        raise ValueError(f"{len(data)} bytes came out where its directory has {entry.size}")
    if zlib.crc32(data) != entry.crc:
        raise ValueError("its checksum differs from the directory's: the member is damaged")
    return data
