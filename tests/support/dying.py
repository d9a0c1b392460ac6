"""Processes that are killed while they store or erase values."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zarrasync import stores, sync
from zarrasync.stores.local_files import temporary_path

__all__ = ["DyingStore", "die_at", "dying_store", "in_child", "names"]


class DyingStore(stores.LocalStore):
    """A store whose process is killed while it stores or erases the n-th value, and before all later ones."""

    left = 0

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self._count(key)
        return await super().put(key, data, if_version=if_version)

    async def put_values(self, keys: Any, values: Any) -> None:
        for key, value in zip(keys, values, strict=True):
            self._count(key)
            await super().put_values([key], [value])

    async def erase(self, key: str, *, if_version: object = None) -> None:
        self._count()
        await super().erase(key, if_version=if_version)

    async def erase_prefix(self, prefix: str) -> None:
        self._count()
        await super().erase_prefix(prefix)

    def _count(self, key: str = "") -> None:
        self.left -= 1
        if self.left < 0:
            if key:  # a part of the value
                path = Path(temporary_path(str(self.root / key)))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x")
            os.kill(os.getpid(), signal.SIGKILL)


def dying_store(out: Path, puts: int) -> DyingStore:
    store = DyingStore(out)
    store.left = puts
    return store


class _DyingAtStore(stores.LocalStore):
    """A store whose process is killed before it stores or erases a value."""

    at = ("", "")

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self._check("put", [key])
        return await super().put(key, data, if_version=if_version)

    async def erase_values(self, keys: Any) -> None:
        self._check("erase", keys := list(keys))
        await super().erase_values(keys)

    def _check(self, operation: str, keys: Iterable[str]) -> None:
        if operation == self.at[0] and self.at[1] in keys:
            os.kill(os.getpid(), signal.SIGKILL)


def die_at(operation: str, key: str, sources: Any, out: Path, **options: Any) -> None:
    """Ingest files in a process that is killed before it stores (``"put"``) or erases (``"erase"``) a value."""

    def run() -> None:
        store = _DyingAtStore(out)
        store.at = (operation, key)
        sync.ingest(sources, store, **options)

    assert in_child(run) == -signal.SIGKILL


def names(out: Path) -> list[str]:
    """Return the names of all hidden, temporary and other files, and of directories."""
    return sorted(str(path.relative_to(out)) for path in out.rglob("*"))


def in_child(function: Any, *arguments: Any) -> int:
    """Run a function in a process, and return its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode
