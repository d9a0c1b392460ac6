"""Local copies of remote files, for libraries that read files only. They are downloaded several at a time.

Copies that no reader uses are deleted when all copies together take more than a limit: first those whose values have been
read, the oldest first, then the newest. So a job that first reads all headers still has the copies that it needs next.
Copies of a process that was killed are deleted by the next one. Each process has its own copies.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import Any

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync.bulk.files.sources.engines import path_of
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.files.sources.identify import call_each
from zarrasync.bulk.scratch_folders import new_scratch_folder

_MOST_BYTES = 8 << 30
"""Maximum size of the copies that no reader uses, unless less than twice as much is free."""


class LocalCopies:
    """The local copies of a job's remote files in one process.

    Args:
        storage_options: Options for the filesystem of the URLs.
        most_bytes: Maximum size of copies that no reader uses.
        forget: Called with the path of each copy before it is deleted, to close the file. Open files keep their space.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any],
        most_bytes: int = _MOST_BYTES,
        forget: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._options, self._most_bytes, self._forget = dict(storage_options), most_bytes, forget
        self._copies: OrderedDict[SourceFile, Future[str]] = OrderedDict()
        self._users: dict[SourceFile, int] = {}
        self._read = set[SourceFile]()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = thread_lock()
        self._count = 0

    def fetch(self, files: Iterable[SourceFile]) -> None:
        """Download files, several at a time, and keep them until ``release`` is called for each one."""
        wanted = list(files)
        calls = call_each(self.acquire, wanted, "zarrasync-download")
        failed = [call for call in calls if call.exception() is not None]
        if failed:
            for file, call in zip(wanted, calls, strict=True):
                if call.exception() is None:
                    self.release(file)
            failed[0].result()

    def acquire(self, file: SourceFile, *, for_values: bool = False) -> str:
        """Return the path of a copy, which remains until ``release`` is called.

        Args:
            file: The file.
            for_values: Whether more than the header is read.

        Raises:
            OSError: If the file cannot be downloaded.
        """
        with self._lock:
            present = self._copies.get(file)
            copy = present or self._copies.setdefault(file, Future())
            self._users[file] = self._users.get(file, 0) + 1
            self._copies.move_to_end(file)
            if for_values:
                self._read.add(file)
            path = self._new_path(file) if present is None else ""
        if present is None:
            try:
                self._download(file, path)
                copy.set_result(path)
            except BaseException as error:
                with self._lock:
                    self._copies.pop(file, None)
                copy.set_exception(error)
        clock.current().wait_for([copy])
        try:
            return copy.result()
        except BaseException:
            self.release(file)
            raise

    def release(self, file: SourceFile) -> None:
        """Allow that a copy is deleted."""
        with self._lock:
            self._users[file] -= 1
            if not self._users[file]:
                del self._users[file]
            idle = [(file, copy.result()) for file, copy in self._copies.items() if file not in self._users]
            sizes = {path: os.path.getsize(path) for _, path in idle}
            total, allowed, outdated = sum(sizes.values()), self._allowed(), list[str]()
            done = [item for item in idle if item[0] in self._read]
            for own, path in [*done, *(item for item in reversed(idle) if item[0] not in self._read)]:
                if total <= allowed:
                    break
                total -= sizes[path]
                del self._copies[own]
                self._read.discard(own)
                outdated.append(path)
        for path in outdated:  # without the lock, because files may be closed only when no library is used
            self._forget(path)
            Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all copies."""
        with self._lock:
            folder, self._folder = self._folder, None
            self._copies.clear()
            self._users.clear()
            self._read.clear()
        if folder is not None:
            folder.cleanup()

    # -------------------------------------------------------------- files

    def _allowed(self) -> int:
        assert self._folder is not None
        return min(self._most_bytes, shutil.disk_usage(self._folder.name).free // 2)

    def _new_path(self, file: SourceFile) -> str:
        if self._folder is None:
            self._folder = new_scratch_folder()
        self._count += 1  # names are not unique, and libraries detect formats by the suffix
        return os.path.join(self._folder.name, f"{self._count}-{PurePosixPath(path_of(file.url)).name[-100:]}")

    def _download(self, file: SourceFile, path: str) -> None:
        import fsspec

        filesystem, name = fsspec.core.url_to_fs(file.url, **self._options)
        filesystem.get_file(name, path)
