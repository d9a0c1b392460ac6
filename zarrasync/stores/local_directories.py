"""Directories of local files: their creation, listings, notes, and the temporary data of interrupted writers."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync.errors import ReadOnlyError
from zarrasync.model.paths import TEMPORARY_SUFFIX, check_key, check_prefix
from zarrasync.stores.base import Store
from zarrasync.stores.errors import store_errors
from zarrasync.stores.local_files import (
    is_abandoned,
    make_directory,
    persistently,
    read_regular_file,
    write_regular_file,
)


@dataclass(frozen=True)
class LocalDirectories:
    """The directories of a ``LocalStore``, see ``Directories``.

    Attributes:
        store: The store, which errors name.
        root: Its directory, with a slash at the end.
        fsync: Whether new directories are flushed to the disk.
        prefix: The prefix in the store that keys and prefixes are relative to.
        refusal: Why nothing can be changed; empty if it can.
    """

    store: Store
    root: str
    fsync: bool
    prefix: str = ""
    refusal: str = ""

    def below(self, prefix: str) -> LocalDirectories:
        return replace(self, prefix=self.prefix + prefix)

    def read_only(self, reason: str) -> LocalDirectories:
        return replace(self, refusal=reason)

    def _check_writeable(self, name: str) -> None:
        if self.refusal:
            raise ReadOnlyError(f"{self.prefix + name!r} cannot be changed: {self.refusal}", key=self.prefix + name)

    def _errors(self, name: str, verb: str) -> AbstractContextManager[None]:
        return store_errors(self.prefix + name, verb, self.store, OSError)

    def _path(self, name: str) -> str:
        return f"{self.root}{self.prefix}{name}"

    # -------------------------------------------------------------- notes

    def _note_path(self, key: str) -> str:
        """Return the path of the note about a change that has begun."""
        return self._path(f"{check_key(key)}.pending{TEMPORARY_SUFFIX}")

    def pending(self, key: str) -> bytes | None:
        with self._errors(key, "read"), contextlib.suppress(FileNotFoundError):
            return bytes(read_regular_file(self._note_path(key)))
        return None

    def set_pending(self, key: str, note: bytes | None) -> None:
        path = self._note_path(key)
        self._check_writeable(key)
        with self._errors(key, "write"):
            if note is not None:
                write_regular_file(path, note)
                return
            with contextlib.suppress(FileNotFoundError):
                persistently(os.unlink, path)

    # -------------------------------------------------------------- interrupted writers

    def unfinished(self, prefix: str) -> list[str]:
        directories = [prefix]
        for directory in directories:
            directories.extend(
                f"{directory}{entry.name}/" for entry in self.scan(directory) if leads_to_directory(entry)
            )
        return [
            f"{directory}{entry.name}" for directory in directories for entry in self.scan(directory, unfinished=True)
        ]

    def remove_unfinished(self, prefix: str) -> list[str]:
        self._check_writeable(prefix)
        return [name for name in self.unfinished(prefix) if is_abandoned(self._path(name)) and self._remove(name)]

    def _remove(self, name: str) -> bool:
        """Remove a file or directory. Return ``False`` if another process has removed it."""
        path = self._path(name)
        with self._errors(name, "erase"), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                persistently(os.unlink, path)
            return True
        return False

    # -------------------------------------------------------------- directories

    def create(self, prefix: str) -> int:
        self._check_writeable(check_prefix(prefix))
        with self._errors(prefix, "create"):
            return make_directory(self._path(prefix).rstrip("/"), fsync=self.fsync)

    def remove_empty(self, prefix: str, above: int = 0) -> None:
        self._check_writeable(check_prefix(prefix))
        path = self._path(prefix).rstrip("/")
        with contextlib.suppress(OSError):  # not empty, or removed by another process
            for _ in range(above + 1):
                os.rmdir(path)
                path = os.path.dirname(path)

    def walk(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the keys below a prefix, with their directory entries."""
        remaining = [prefix]
        while remaining:
            directory = remaining.pop()
            for entry in self.scan(directory):
                if leads_to_directory(entry):
                    remaining.append(f"{directory}{entry.name}/")
                else:
                    yield directory + entry.name, entry

    def scan(self, prefix: str, *, unfinished: bool = False) -> Iterable[os.DirEntry[str]]:
        """Return the entries of a directory: values and directories, or temporary files and directories.

        Links to a directory that they are in are left out: the same files would be found again below them, without end.
        """
        raise_if_cancelled()
        with self._errors(prefix, "list"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(self._path(prefix)) as entries:
                found = [entry for entry in entries if entry.name.endswith(TEMPORARY_SUFFIX) == unfinished]
            return [entry for entry in found if not (entry.is_symlink() and self._is_loop(prefix, entry))]
        return ()

    def _is_loop(self, prefix: str, link: os.DirEntry[str]) -> bool:
        """Return whether a link leads to a directory on the way to it. Other links on the way may lead elsewhere."""
        target = os.path.join(os.path.realpath(link.path), "")
        way = itertools.accumulate((self.prefix + prefix).split("/")[:-1], "{}/{}".format, initial=self.root)
        return any(os.path.join(os.path.realpath(directory), "").startswith(target) for directory in way)


def leads_to_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # links that lead to each other
        return False
