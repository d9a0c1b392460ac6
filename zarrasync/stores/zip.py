"""Zip archives, read in place: the directory is read once, values by position. And written, by one process at a time."""

from __future__ import annotations

import builtins
import errno
import io
import lzma
import os
import struct
import time
import weakref
import zipfile
import zlib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from zarrasync._concurrency.fork import thread_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import ABSENT, Request, Store, Value, clip
from zarrasync.stores.errors import store_error

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # nothing is locked there

__all__ = ["DAMAGE", "LOCAL", "Entry", "Window", "ZipStore", "after_header", "checked", "entries_of", "inflate"]

LOCAL = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 1
_MOST = 1 << 20
"""Bytes that one byte of any method can become, generously."""
_DICTIONARY = 1 << 28
"""The largest dictionary that LZMA gets, in bytes; its presets take a quarter of that at the most."""
DAMAGE = (
    OSError, ValueError, OverflowError, MemoryError, EOFError, NotImplementedError,
    struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip


class Entry(NamedTuple):
    """Where a member lies and how."""

    header: int
    stored: int
    size: int
    method: int
    crc: int


class _Buffered(io.BufferedReader):
    """A file of the user's, who closes it."""

    def close(self) -> None:
        """Leave it open."""


def _as_file(given: Any) -> Any:
    """An open file, with which a read gives all that is asked for.

    Raises:
        TypeError: If it is none.
    """
    if not all(hasattr(given, name) for name in ("read", "seek", "tell")) or isinstance(given, io.TextIOBase):
        what, hint = type(given).__name__, ""
        if what == "OpenFile":
            hint = "; open it first: file.open()"
        elif isinstance(given, Store):
            hint = "; RemoteZipStore reads one in a store"
        raise TypeError(f"a ZipStore is made of a path or of a file open for bytes, found {what}{hint}")
    return _Buffered(given) if isinstance(given, io.RawIOBase) and not given.writable() else given


class ZipStore(Store):
    """The members of a zip archive; a key is a member's name. Of members of one name the last one counts.

    Members that are stored as they are can be read in part; deflated and otherwise compressed ones are
    read whole, decompressed to no more than their declared size, and checked. Any number of threads and
    processes may read side by side.

    One process at a time may write. What it writes comes after all that is there, also after the archive's directory;
    a new directory follows when the store is closed. If that never happens, what was there before is still found, and
    the next one who writes cuts off the rest. Replaced and erased members leave their bytes behind.

    Args:
        file: The archive's path, or a binary file object that can seek (which is not closed here).
        mode: ``"r"`` reads, ``"a"`` adds to an archive or makes one, ``"w"`` makes a new one in the place of what is
            there, ``"x"`` makes a new one where there is none. Close a store that was written to.

    Raises:
        ValueError: If the mode is another one.
        StoreError: If another process writes to the archive, or it is there and the mode is ``"x"``.
    """

    blocking = True
    concurrency = 16

    def __init__(self, file: str | os.PathLike[str] | IO[bytes], mode: Literal["r", "a", "w", "x"] = "r") -> None:
        if mode not in ("r", "a", "w", "x"):
            raise ValueError(f"mode is 'r', 'a', 'w' or 'x', found {mode!r}")
        self._path = Path(os.path.abspath(os.fspath(file))) if isinstance(file, str | os.PathLike) else None
        self._file = None if self._path is not None else _as_file(file)
        self.mode = mode
        self.writeable = self.conditional = self.exclusive = mode != "r"
        self._reset()
        if mode in ("w", "x"):
            self._open()

    def _reset(self) -> None:
        self._mutex = thread_lock()
        self._archive: _Archive | None = None

    @property
    def identity(self) -> Hashable:
        return ("zip", id(self._file)) if self._path is None else ("zip", os.path.realpath(self._path))

    @property
    def lasting(self) -> bool:
        return self._path is not None

    def __repr__(self) -> str:
        return f"ZipStore({str(self._path) if self._path is not None else self._file!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._path is None:
            raise TypeError(f"{self!r} reads an open file, which can not be sent to another process; give a path")
        if self.writeable:
            raise TypeError(f"{self!r} is written to, which one process alone may do; send one with mode 'r'")
        return {"_path": self._path, "_file": None, "mode": "r"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, writeable=False, conditional=False, exclusive=False)
        self._reset()

    async def close(self) -> None:
        archive, self._archive = self._archive, None  # whoever reads keeps it open until it is done
        if isinstance(archive, _Writer):
            try:
                archive.finish()
            except (OSError, ValueError) as error:
                raise StoreError(f"could not write the directory of {self!r}: {error}") from error

    def _open(self) -> _Archive:
        """The archive, opened on first use."""
        archive = self._archive
        if archive is not None:
            return archive
        with self._mutex:
            if self._archive is None:
                try:
                    if self.mode == "r":
                        self._archive = _Archive(self._path, self._file)
                    else:
                        self._archive = _Writer(self._path, self._file, self.mode)
                        self.mode = "a"  # what was made may be opened again, and must not be emptied then
                except FileExistsError:
                    raise StoreError(f"{self!r} is there already, and the mode is 'x'") from None
                except BlockingIOError:
                    raise StoreError(
                        f"another process, or another store, writes to {self!r}; one at a time may"
                    ) from None
                except FileNotFoundError:
                    raise StoreError(f"there is no file {str(self._path)!r}") from None
                except PermissionError as error:
                    raise StoreError(f"{self!r} can not be opened: {error}") from error
                except DAMAGE as error:
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
            except DAMAGE as error:
                raise store_error(error, request.key, "read", self) from error
            found.append(Value(data, (entry.header, entry.crc), entry.size))
        return found

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return list(await self.list_sizes(prefix))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        return {key: entry.size for key, entry in list(self._open().entries.items()) if key.startswith(prefix)}

    # -------------------------------------------------------------- writing

    def _writer(self, verb: str) -> _Writer:
        if not self.writeable:
            raise self._unable(f"{verb} (open it with mode='a')")
        archive = self._open()
        assert isinstance(archive, _Writer)
        return archive

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        writer = self._writer("write")
        with writer.mutex:
            self._compare(writer, key, if_version)
            try:
                entry = writer.add(key, data)
            except (OSError, ValueError, zipfile.LargeZipFile) as error:
                raise store_error(error, key, "write", self) from error
        return (entry.header, entry.crc)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        writer = self._writer("erase")
        with writer.mutex:
            self._compare(writer, key, if_version)
            writer.drop([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        writer = self._writer("erase")
        with writer.mutex:
            writer.drop(keys)

    def _compare(self, writer: _Writer, key: str, version: object) -> None:
        entry = writer.entries.get(key)
        if version is not None and version != (ABSENT if entry is None else (entry.header, entry.crc)):
            raise WriteConflictError(f"{key!r} was changed meanwhile", key=key)


class _Archive:
    """An open archive, which closes its file when nobody reads it any more."""

    def __init__(self, path: Path | None, file: Any) -> None:
        self._mutex = thread_lock()
        self._owned = path is not None
        self._file = open(path, "rb") if path is not None else file  # noqa: SIM115  # close() closes it
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

    def _directory(self) -> dict[str, Entry]:
        self._file.seek(0, os.SEEK_END)
        size = self._file.tell()
        with self._members(size) as archive:
            return entries_of(archive, size)

    def _members(self, size: int) -> zipfile.ZipFile:
        self._end = size
        try:
            return zipfile.ZipFile(_Head(self._file, size))
        except zipfile.BadZipFile:  # perhaps somebody was interrupted while he added to it
            self._end = _end(self._file, size)
            if self._end == size:
                raise
            return zipfile.ZipFile(_Head(self._file, self._end))

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

    def _begin(self, entry: Entry) -> int:
        return after_header(self._pread(LOCAL.size, entry.header), entry)

    def read(self, entry: Entry, request: Request) -> Any:
        """A member, or the part of it that is asked for."""
        if entry.method == zipfile.ZIP_STORED:
            start = max(0, entry.size - (request.length or 0)) if request.suffix else min(request.start, entry.size)
            length = entry.size - start if request.length is None else min(request.length, entry.size - start)
            whole = length == entry.size
            data = self._pread(length, self._begin(entry) + start)
            return checked(data, entry) if whole else data
        if entry.method == zipfile.ZIP_DEFLATED:
            data = inflate(self._pread(entry.stored, self._begin(entry)), entry)
        else:
            if entry.method == zipfile.ZIP_LZMA:  # version, size of the properties, one of them, the dictionary's size
                (dictionary,) = struct.unpack_from("<5xI", self._pread(min(9, entry.stored), self._begin(entry)))
                if dictionary > _DICTIONARY:
                    raise ValueError(f"its dictionary of {dictionary} bytes is larger than {_DICTIONARY}")
            # Python's module knows some methods more; which ones depends on its version.
            with self._mutex, zipfile.ZipFile(_Head(self._file, self._end)) as archive:
                try:
                    with archive.open(request.key) as member:
                        data = member.read(entry.size + 1)
                except (NotImplementedError, RuntimeError, KeyError) as error:
                    raise ValueError(f"{error} (compression method {entry.method})") from error
        return clip(checked(data, entry), request)


class _Writer(_Archive):
    """An archive that is added to.

    Attributes:
        mutex: Held by who changes it.
    """

    def __init__(self, path: Path | None, file: Any, mode: str) -> None:
        self.mutex = thread_lock()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            handle = os.open(path, flags | (os.O_EXCL if mode == "x" else 0), 0o666)
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if mode == "w":
                    os.ftruncate(handle, 0)
                file = os.fdopen(handle, "r+b")
            except BaseException:
                os.close(handle)
                raise
        elif mode == "w":
            file.seek(0)
            file.truncate()
        elif mode == "x" and file.seek(0, os.SEEK_END):
            raise FileExistsError(errno.EEXIST, "the file holds something")
        try:
            self._zip = _appending(file)
        except BaseException:
            if path is not None:
                file.close()
            raise
        # Before this is collected, or the interpreter ends.
        self._pid = os.getpid()
        self._finish = weakref.finalize(self, _finish, self._zip, file, self._pid, owned=path is not None)
        self._finish.atexit = True
        super().__init__(None, file)
        self._positioned = path is not None and hasattr(os, "pread")

    def _directory(self) -> dict[str, Entry]:
        return {} if not self._zip.filelist else super()._directory()

    def add(self, key: str, data: Buffer) -> Entry:
        """Add a member, in the place of an older one."""
        self._refuse_forks()
        member = zipfile.ZipInfo(key, time.localtime()[:6])
        member.external_attr = 0o644 << 16
        archive: Any = self._zip
        known, start = archive.filelist[:], archive.start_dir
        with self._mutex:
            try:
                # The older one goes once this one is there.
                archive.NameToInfo.pop(key, None)
                archive.writestr(member, memoryview(data).cast("B") if len(data) else b"")
                self._file.flush()
            except BaseException:
                archive._writing = False
                archive.filelist[:], archive.start_dir = known, start
                archive.NameToInfo.clear()
                archive.NameToInfo.update({one.filename: one for one in known})
                raise
            archive.filelist[:] = [one for one in archive.filelist if one is member or one.filename != key]
        entry = Entry(member.header_offset, member.compress_size, member.file_size, member.compress_type, member.CRC)
        self.entries[key] = entry
        return entry

    def drop(self, keys: Iterable[str]) -> None:
        """Leave members out of the directory."""
        self._refuse_forks()
        gone = {key for key in keys if self.entries.pop(key, None) is not None}
        if gone:
            for key in gone:
                self._zip.NameToInfo.pop(key, None)
            self._zip.filelist[:] = [member for member in self._zip.filelist if member.filename not in gone]
            self._zip._didModify = True  # type: ignore[attr-defined]  # what writing sets, too

    def _refuse_forks(self) -> None:
        if os.getpid() != self._pid:
            raise OSError(errno.EPERM, "it is written by the process that this one was forked from")

    def finish(self) -> None:
        """Write the directory, and close."""
        with self.mutex:
            self._finish()


def _appending(file: Any) -> zipfile.ZipFile:
    """An archive that is added to behind all that it holds, its directory included."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return zipfile.ZipFile(file, "w")
    end = _end(file, size)
    if end < size:  # somebody was interrupted while he added to it
        file.truncate(end)
    archive = zipfile.ZipFile(file, "a")
    archive.start_dir = file.seek(0, os.SEEK_END)
    return archive


def _end(file: Any, size: int) -> int:
    """Where the last directory that is whole ends.

    Raises:
        zipfile.BadZipFile: If there is none.
    """
    stop = size
    while True:
        at = _last(file, b"PK\5\6", stop)
        if at < 0:
            raise zipfile.BadZipFile("no directory is found in it")
        file.seek(at)
        record = file.read(22)
        end = at + 22 + int.from_bytes(record[20:22], "little")
        directory = int.from_bytes(record[16:20], "little")
        if len(record) == 22 and end <= size and _is_archive(file, end, directory):
            return end
        stop = at + 3


def _last(file: Any, mark: bytes, stop: int) -> int:
    """Where a mark stands for the last time before a place; -1 if it does not."""
    block = 1 << 20
    while stop >= len(mark):
        start = max(0, stop - block)
        file.seek(start)
        at: int = file.read(stop - start).rfind(mark)
        if at >= 0:
            return start + at
        stop = start + len(mark) - 1 if start else 0
    return -1


class Window(io.RawIOBase):
    """So many bytes as a file; subclasses say where they come from in ``read``."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if self._at < 0:
            raise OSError(errno.EINVAL, "before the beginning")
        return self._at

    def tell(self) -> int:
        return self._at


class _Head(Window):
    """The first bytes of a file."""

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(size)
        self._file = file

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._at)
        data: bytes = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data


def _is_archive(file: Any, size: int, directory: int) -> bool:
    """Whether the first bytes of a file are an archive whose directory begins at a place, as its end says."""
    try:
        with zipfile.ZipFile(_Head(file, size)) as archive:
            # One that lies inside a member counts from the member's beginning.
            return directory in (archive.start_dir, 0xFFFFFFFF)
    except (zipfile.BadZipFile, OSError, ValueError, struct.error):
        return False


def _finish(archive: Any, file: Any, pid: int, *, owned: bool) -> None:
    try:
        if os.getpid() != pid:  # a fork must not touch what its parent writes
            archive._didModify = False
        archive.close()
    finally:
        if owned:
            file.close()


def entries_of(archive: zipfile.ZipFile, size: int) -> dict[str, Entry]:
    """Where the members of an archive of so many bytes lie.

    Raises:
        ValueError: If its directory says what can not be.
    """
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
        found[member.filename] = Entry(member.header_offset, stored, whole, member.compress_type, member.CRC)
    return found


def after_header(header: Buffer, entry: Entry) -> int:
    """Where a member's bytes begin: after its local header, whose length only itself knows."""
    signature, *_, name, extra = LOCAL.unpack_from(header)
    if signature != b"PK\3\4":
        raise ValueError("a member's header is damaged")
    return entry.header + LOCAL.size + int(name) + int(extra)


def inflate(data: Buffer, entry: Entry) -> bytes:
    """A deflated member, up to one byte more than it should have."""
    return zlib.decompressobj(-15).decompress(data, entry.size + 1)


def checked(data: Buffer, entry: Entry) -> Buffer:
    """The bytes of a member, if they are those that its directory tells of."""
    if len(data) != entry.size:
        raise ValueError(f"{len(data)} bytes came out where its directory has {entry.size}")
    if zlib.crc32(data) != entry.crc:
        raise ValueError("its checksum differs from the directory's: the member is damaged")
    return data
