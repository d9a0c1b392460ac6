"""A store over a zip archive that is a file: read in place, and written by one process at a time."""

from __future__ import annotations

import builtins
import io
import os
import zipfile
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from zarrasync._concurrency.fork import thread_lock
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, UnsupportedOperation
from zarrasync.model.paths import check_key, check_keys, check_prefix
from zarrasync.stores.base import Store
from zarrasync.stores.errors import store_error
from zarrasync.stores.local_files import lineage_of
from zarrasync.stores.values import ABSENT, Request, Value
from zarrasync.stores.zip_archive import MissingArchive, ReadableArchive, WriteableArchive, ozx_deviations
from zarrasync.stores.zip_format import DAMAGE_ERRORS

ZipMode: TypeAlias = Literal["r", "a", "w", "x", "auto"]


class ZipStore(Store):
    """Members of a zip archive; a key is a member's name. If several members have the same name, the last one counts.

    Members that are stored without compression can be read in part. Others are read whole, decompressed to no more
    than their declared size, and verified. Any number of threads and processes can read at the same time.

    One process at a time can write. New members follow all existing data, including the archive's directory, and a new
    directory is written when the store is closed. If that never happens, readers still find the previous content, and
    the next writer truncates the rest. Replaced and erased members leave their bytes in the file.

    Args:
        file: The archive's path, or a seekable binary file object (which is not closed).
        mode: ``"r"`` reads, ``"a"`` appends to an archive or creates one, ``"w"`` replaces an existing file, ``"x"``
            creates an archive, ``"auto"`` reads until the first write, and then is like ``"a"``. Close a store that was
            written to.

    Raises:
        ValueError: If the mode is invalid.
        TypeError: If ``file`` is neither a path nor a binary file object.
        StoreError: If another process writes to the archive, or it exists and the mode is ``"x"``.
    """

    blocking = True
    concurrency = 16

    def __init__(self, file: str | os.PathLike[str] | IO[bytes], mode: ZipMode = "r") -> None:
        if mode not in ("r", "a", "w", "x", "auto"):
            raise ValueError(f"mode must be 'r', 'a', 'w', 'x' or 'auto', found {mode!r}")
        self._path = Path(os.path.abspath(os.fspath(file))) if isinstance(file, str | os.PathLike) else None
        self._file = None if self._path is not None else _check_file(file)
        self.mode = mode
        self.writeable = self.conditional = self.exclusive_locks = mode != "r"
        self.close_after_use = mode == "auto"
        self._make_unshared()
        if mode in ("w", "x"):
            self._open()

    def _make_unshared(self) -> None:
        self._lock = thread_lock()
        self._archive: ReadableArchive | None = None

    @property
    def identity(self) -> Hashable:
        return ("zip", id(self._file)) if self._path is None else ("zip", os.path.realpath(self._path))

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        archive = () if self._path is None else lineage_of(str(self._path))
        return (*super().lineage(path), *archive)

    @property
    def lasting_identity(self) -> bool:
        return self._path is not None

    @property
    def shareable(self) -> bool:
        return not self.writeable

    def __repr__(self) -> str:
        return f"ZipStore({str(self._path) if self._path is not None else self._file!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._path is None:
            raise TypeError(f"{self!r} reads an open file, which cannot be sent to another process; pass a path")
        if self.writeable and (self.mode != "auto" or isinstance(self._archive, WriteableArchive)):
            raise TypeError(f"{self!r} can be written by one process only; send a store with mode='r'")
        return {"_path": self._path, "_file": None, "mode": "r", "writeable": False}

    async def close(self) -> None:
        archive, self._archive = self._archive, None  # readers keep it open until they have finished
        if isinstance(archive, WriteableArchive):
            try:
                archive.finish()
            except (OSError, ValueError) as error:
                raise StoreError(f"could not write the directory of {self!r}: {error}") from error

    def _open(self, *, to_write: bool = False) -> ReadableArchive:
        """Return the archive, opening it on first use, and again for the first write with the mode ``"auto"``."""
        archive = self._archive
        if archive is not None and not (to_write and type(archive) is ReadableArchive):
            return archive
        with self._lock:
            if self._archive is None or (to_write and type(self._archive) is ReadableArchive):
                try:
                    if self.mode == "r" or (self.mode == "auto" and not to_write):
                        self._archive = ReadableArchive(self._path, self._file)
                    else:
                        self._archive = WriteableArchive(self._path, self._file, "a" if to_write else self.mode)
                        # If it is opened again, it must not be truncated.
                        self.mode = "auto" if self.mode == "auto" else "a"
                except FileExistsError:
                    raise StoreError(f"{self!r} already exists; use mode='a' to append to it") from None
                except BlockingIOError:
                    raise StoreError(f"{self!r} is being written by another process or store; close it first") from None
                except FileNotFoundError:
                    if self.mode == "auto":
                        return MissingArchive()
                    raise StoreError(f"file {str(self._path)!r} does not exist") from None
                except PermissionError as error:
                    raise StoreError(f"{self!r} cannot be opened: {error}") from error
                except MemoryError as error:
                    raise StoreError(f"not enough memory for the directory of {self!r}") from error
                except DAMAGE_ERRORS as error:
                    raise StoreError(
                        f"{self!r} is not a readable zip archive: {error}; check that the file is complete, and that "
                        "the store of its writer was closed"
                    ) from error
            return self._archive

    def describe(self, path: str) -> str:
        archive = self._open()
        if isinstance(archive, MissingArchive):
            return f"file {str(self._path)!r} does not exist"
        tops = sorted({name.partition("/")[0] for name in archive.members})
        if not path and len(tops) == 1:
            return f"all its members are in the folder {tops[0]!r}; pass path={tops[0]!r}"
        return f"the archive contains {', '.join(tops[:5])}{', …' if len(tops) > 5 else ''}" if tops else "it is empty"

    def deviations(self) -> list[tuple[str, Literal["warning", "note"]]]:
        """Return how an ``.ozx`` file differs from what OME-Zarr recommends for archives, and how severe that is."""
        return ozx_deviations(self._open()) if self._path is not None and self._path.suffix == ".ozx" else []

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        archive = self._open()
        values: list[Value | None] = []
        for request in requests:
            member = archive.members.get(request.key)
            if member is None:
                values.append(None)
                continue
            try:
                data = archive.read(member, request)
            except DAMAGE_ERRORS as error:
                raise store_error(error, request.key, "read", self) from error
            values.append(Value(data, (member.header_offset, member.crc), member.size))
        return values

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return list(await self.list_sizes(prefix))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        members = list(self._open().members.items())
        return {name: member.size for name, member in members if name.startswith(prefix)}

    # -------------------------------------------------------------- writing

    def _unsupported(self, verb: str, hint: str = "open it with mode='a'") -> UnsupportedOperation:
        return super()._unsupported(verb, hint)

    def _open_for(self, verb: str) -> WriteableArchive:
        if not self.writeable:
            raise self._unsupported(verb)
        archive = self._open(to_write=True)
        assert isinstance(archive, WriteableArchive)
        return archive

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Hashable]:
        if self.writeable:  # the holder of a lock must be the only writer from its first read on
            self._open(to_write=True)
        return super().lock_identities(keys)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        archive = self._open_for("write")
        with archive.lock:
            self._check_version(archive, key, if_version)
            try:
                member = archive.add(key, data)
            except (OSError, ValueError, zipfile.LargeZipFile) as error:
                raise store_error(error, key, "write", self) from error
        return (member.header_offset, member.crc)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        check_key(key)
        archive = self._open_for("erase")
        with archive.lock:
            self._check_version(archive, key, if_version)
            archive.remove([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        check_keys(keys)
        archive = self._open_for("erase")
        with archive.lock:
            archive.remove(keys)

    def _check_version(self, archive: WriteableArchive, key: str, expected: object) -> None:
        if expected is None:
            return
        member = archive.members.get(key)
        if expected != (ABSENT if member is None else (member.header_offset, member.crc)):
            raise self._conflict(key)


class _BorrowedReader(io.BufferedReader):
    """A buffered reader that does not close the caller's file."""

    def close(self) -> None:
        """Leave the file open."""


def _check_file(file: Any) -> Any:
    """Return a binary file object whose reads return all requested bytes.

    Raises:
        TypeError: If the argument is not a binary file object.
    """
    if not all(hasattr(file, name) for name in ("read", "seek", "tell")) or isinstance(file, io.TextIOBase):
        kind, hint = type(file).__name__, ""
        if kind == "OpenFile":
            hint = "; open it first: file.open()"
        elif isinstance(file, Store):
            hint = "; RemoteZipStore reads an archive in a store"
        raise TypeError(f"a ZipStore needs a path or a file opened in binary mode, found {kind}{hint}")
    return _BorrowedReader(file) if isinstance(file, io.RawIOBase) and not file.writable() else file
