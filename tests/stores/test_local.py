"""Stores of local files."""

from __future__ import annotations

import os

import pytest

from zarrasync import stores
from zarrasync.errors import StoreError


async def test_local_writes_are_atomic_and_leave_nothing_behind(tmp_path):
    store = stores.LocalStore(tmp_path, fsync=True)
    await store.set("a/b", b"old")
    with pytest.raises(TypeError):
        await store.set("a/b", "not bytes")  # type: ignore[arg-type]  # which is refused
    assert await store.get("a/b") == b"old"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


async def test_local_conflicts_of_files_and_directories(tmp_path):
    store = stores.LocalStore(tmp_path)
    await store.set("a/b", b"1")
    with pytest.raises(StoreError, match="could not write 'a'") as error:
        await store.set("a", b"2")
    assert error.value.key == "a"
    with pytest.raises(StoreError, match="could not write 'a/b/c'"):
        await store.set("a/b/c", b"2")
    await store.erase("a")
    assert await store.get("a/b") == b"1"


async def test_local_unreadable_file_is_an_error(tmp_path):

    if os.geteuid() == 0:
        (tmp_path / "loop").symlink_to("loop")  # root can read everything except this
    else:
        (tmp_path / "loop").write_bytes(b"x")
        (tmp_path / "loop").chmod(0)
    with pytest.raises(StoreError, match="could not read 'loop'"):
        await stores.LocalStore(tmp_path).get("loop")


async def test_unfinished_files_are_not_listed(tmp_path):
    store = stores.LocalStore(tmp_path)
    await store.set("a", b"1")
    (tmp_path / "a.1f-0.zarrasync-partial").write_bytes(b"half")
    assert await store.list() == ["a"]
    assert (await store.list_dir("")).keys == ("a",)
