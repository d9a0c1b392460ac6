"""Open zip archives: reading members by position, and appending members with a new directory at the end."""

from __future__ import annotations

import errno
import os
import time
import weakref
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from zarrasync import formats
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.metadata.conventions import ome_archive_comment
from zarrasync.stores.local_files import CLOEXEC, check_regular, open_regular_file, read_fully
from zarrasync.stores.local_locks import fcntl
from zarrasync.stores.values import Request
from zarrasync.stores.zip_format import (
    DAMAGE_ERRORS,
    LOCAL_HEADER,
    FileHead,
    Member,
    check_expansion,
    content,
    data_offset,
    find_end,
    members_of,
    verify,
)


class ReadableArchive:
    """An archive open for reading. Its file is closed when the last reader releases the object.

    Args:
        path: The path of the file, which this object opens; ``None`` if ``file`` is given.
        file: An open binary file, which is not closed.

    Attributes:
        members: The members by name, in the order of the directory.
        comment: The comment of the archive.
    """

    comment = b""

    def __init__(self, path: Path | None, file: Any) -> None:
        self._file_lock = thread_lock()
        self._owns_file = path is not None
        self._file = open_regular_file(path) if path is not None else file
        try:
            self._has_pread = self._owns_file and hasattr(os, "pread")
            self.members = self._read_directory()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._owns_file:
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._close()

    def _read_directory(self) -> dict[str, Member]:
        self._file.seek(0, os.SEEK_END)
        size = self._end = self._file.tell()
        try:
            archive = zipfile.ZipFile(FileHead(self._file, size))
        except zipfile.BadZipFile:  # a writer may have been interrupted
            self._end = find_end(self._file, size)
            if self._end == size:
                raise
            archive = zipfile.ZipFile(FileHead(self._file, self._end))
        with archive:
            self.comment = archive.comment
            return members_of(archive, size)

    def _pread(self, size: int, offset: int) -> Buffer:
        if size <= 0:
            return b""
        if self._has_pread:
            data = read_fully(self._file.fileno(), offset, size, None)
        else:
            with self._file_lock:
                self._file.seek(offset)
                data = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"it ends {size - len(data)} bytes early")
        return data

    def _data_offset(self, member: Member) -> int:
        return data_offset(self._pread(LOCAL_HEADER.size, member.header_offset), member)

    def read(self, member: Member, request: Request) -> Any:
        """Return the uncompressed data of a member, or the requested byte range of it.

        Raises:
            ValueError: If the member is damaged or too large, or its compression is not supported.
        """
        if member.method == zipfile.ZIP_STORED:
            start, length = request.bounds(member.size)
            request.check_size(length)
            data = self._pread(length, self._data_offset(member) + start)
            return verify(data, member) if length == member.size else data
        check_expansion(request, member)
        return content(self._pread(member.compressed_size, self._data_offset(member)), member, request)


class MissingArchive(ReadableArchive):
    """Stands for an archive that the first write will create."""

    def __init__(self) -> None:
        self.members = {}


class WriteableArchive(ReadableArchive):
    """An archive to which members are appended. The new directory is written when it is closed or collected.

    Args:
        path: The path of the file, which this object opens and locks; ``None`` if ``file`` is given.
        file: A binary file open for reading and writing, which is not closed.
        mode: "a" appends to an archive or creates one, "w" replaces the file, "x" creates it.

    Attributes:
        lock: Held by a thread that changes the archive.

    Raises:
        BlockingIOError: If another process or store writes to the file.
        FileExistsError: If the mode is "x" and the file exists.
    """

    def __init__(self, path: Path | None, file: Any, mode: str) -> None:
        self.lock = thread_lock()
        if path is not None:
            file = _open_and_lock(path, mode)
        elif mode == "w":
            file.seek(0)
            file.truncate()
        elif mode == "x" and file.seek(0, os.SEEK_END):
            raise FileExistsError(errno.EEXIST, "the file is not empty")
        try:
            self._zip = _open_for_appending(file)
        except BaseException:
            if path is not None:
                file.close()
            raise
        self._pid = os.getpid()
        is_ome = path is not None and path.suffix == ".ozx"
        self._finish = weakref.finalize(
            self, _finish, self._zip, file, self._pid, close_file=path is not None, is_ome=is_ome
        )
        self._finish.atexit = True
        super().__init__(None, file)
        self._has_pread = path is not None and hasattr(os, "pread")

    def _read_directory(self) -> dict[str, Member]:
        return {} if not self._zip.filelist else super()._read_directory()

    def add(self, name: str, data: Buffer) -> Member:
        """Append a member, which replaces an older one of the same name.

        Raises:
            OSError: If the file cannot be written, or belongs to the parent of this process.
        """
        self._check_process()
        info = zipfile.ZipInfo(name, time.localtime(clock.wall_time())[:6])
        info.external_attr = 0o644 << 16
        archive: Any = self._zip
        start = archive.start_dir
        with self._file_lock:
            older = archive.NameToInfo.pop(name, None)
            try:
                archive.writestr(info, memoryview(data).cast("B") if len(data) else b"")
                self._file.flush()
            except BaseException:  # as if the member had not been begun
                archive._writing = False  # noqa: SLF001  # zipfile has no public method for it
                archive.start_dir = start
                archive.NameToInfo.pop(name, None)
                if older is not None:
                    archive.NameToInfo[name] = older
                raise
        member = Member(info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC)
        self.members[name] = member
        return member

    def remove(self, names: Iterable[str]) -> None:
        """Remove members from the directory.

        Raises:
            OSError: If the file belongs to the parent of this process.
        """
        self._check_process()
        removed = {name for name in names if self.members.pop(name, None) is not None}
        if removed:
            for name in removed:
                self._zip.NameToInfo.pop(name, None)
            self._zip._didModify = True  # type: ignore[attr-defined]  # noqa: SLF001  # closing writes the directory

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise OSError(errno.EPERM, "the archive belongs to the parent of this forked process")

    def finish(self) -> None:
        """Write the directory, and close the file if this object opened it."""
        with self.lock:
            self._finish()


def _open_and_lock(path: Path, mode: str) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | CLOEXEC
    handle = os.open(path, flags | (os.O_EXCL if mode == "x" else 0), 0o666)
    try:
        check_regular(os.fstat(handle), str(path))
        if fcntl is not None:  # on Windows, archives are not locked
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mode == "w":
            os.ftruncate(handle, 0)
        return os.fdopen(handle, "r+b")
    except BaseException:
        os.close(handle)
        raise


def _open_for_appending(file: Any) -> zipfile.ZipFile:
    """Open an archive so that new members follow all existing data, including the directory."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return zipfile.ZipFile(file, "w")
    end = find_end(file, size)
    if end < size:  # a writer was interrupted
        file.truncate(end)
    archive = zipfile.ZipFile(file, "a")
    archive.start_dir = file.seek(0, os.SEEK_END)
    return archive


def ozx_deviations(archive: ReadableArchive) -> list[tuple[str, Literal["warning", "note"]]]:
    """Return how an archive differs from what OME-Zarr recommends for archives, and how severe that is."""
    names = list(archive.members)
    stored = sorted(names, key=lambda name: archive.members[name].header_offset)
    compressed = sum(member.method != zipfile.ZIP_STORED for member in archive.members.values())
    documents = sorted(filter(formats.is_document, names), key=lambda name: name.count("/"))

    def begins_with_documents(order: list[str]) -> bool:
        """Return whether names begin with all documents, level by level."""
        first = order[: len(documents)]
        depths = [name.count("/") for name in first]
        return {*first} == {*documents} and depths == sorted(depths)

    is_first = begins_with_documents(names)
    checks: dict[str, tuple[Any, Literal["warning", "note"]]] = {
        "the comment of the archive does not contain the version of OME-Zarr": (
            b'"ome"' not in archive.comment,
            "warning",
        ),
        f"{compressed:,} members are compressed; parts of them cannot be read": (compressed, "warning"),
        "the directory of the archive does not begin with all documents, breadth-first": (not is_first, "warning"),
        "the archive contains another archive": (any(name.endswith(".ozx") for name in names), "warning"),
        "the file does not begin with all documents, breadth-first; copy it to a new archive to sort it": (
            is_first and not begins_with_documents(stored),
            "note",
        ),
    }
    return [(message, severity) for message, (is_found, severity) in checks.items() if is_found]


def _place_in_directory(info: zipfile.ZipInfo) -> tuple[bool, int]:
    """Return the sort key of a member: documents breadth-first, then other members in the order of writing."""
    is_document = formats.is_document(info.filename)
    return not is_document, info.filename.count("/") if is_document else 0


def _root_document(archive: Any) -> bytes:
    """Return the document of the root group; nothing if it does not exist or is damaged."""
    (key,) = formats.by_name(3).document_keys("")
    try:
        document: bytes = archive.read(key) if key in archive.NameToInfo else b""
    except DAMAGE_ERRORS:
        return b""
    return document


def _finish(archive: Any, file: Any, pid: int, *, close_file: bool, is_ome: bool) -> None:
    try:
        if os.getpid() != pid:  # a fork must not write to its parent's file
            archive._didModify = False  # noqa: SLF001  # otherwise closing writes the directory
        # Without replaced, removed and failed members. Documents are first, so that readers find all nodes early.
        archive.filelist[:] = sorted(archive.NameToInfo.values(), key=_place_in_directory)
        if is_ome and archive._didModify:  # noqa: SLF001  # zipfile has no public name for it
            archive.comment = ome_archive_comment(_root_document(archive))
        archive.close()
    finally:
        if close_file:
            file.close()
