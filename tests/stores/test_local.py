"""Stores of local files."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync._concurrency import clock
from zarrasync.errors import InvalidKeyError, NodeExistsError, StoreError, WriteConflictError
from zarrasync.stores import ABSENT, Request, local_files


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


@pytest.mark.skipif(os.name != "posix", reason="only POSIX flushes directories")
async def test_new_directories_are_flushed(tmp_path, monkeypatch):
    """Otherwise a power failure could lose a directory with flushed values."""
    flushed, fsync = [], os.fsync

    def record(handle: int) -> None:
        flushed.append(os.path.realpath(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    store = stores.LocalStore(tmp_path / "new/root.zarr", fsync=True)
    await store.set("a/c/0/1", b"x")
    root = os.path.realpath(tmp_path)
    directories = ["", "/new", "/new/root.zarr", "/new/root.zarr/a", "/new/root.zarr/a/c", "/new/root.zarr/a/c/0"]
    assert {root + name for name in directories} <= set(flushed)
    flushed.clear()
    await store.set("a/c/0/1", b"x")
    assert len(flushed) == 2  # the file, and its directory
    array = await za.create_array(store, path="b", shape=(4, 4), chunks=(2, 2), dtype="i4")
    flushed.clear()
    await array[1:3, 1:3].write(1)  # locks several chunks in directories that do not exist
    assert {f"{root}/new/root.zarr/b{name}" for name in ("", "/c", "/c/0", "/c/1")} <= set(flushed)
    whole = sync.create_array(store, path="d", shape=(4, 4), chunks=(2, 2), dtype="i4")
    flushed.clear()
    whole[...] = 1
    assert {f"{root}/new/root.zarr/d{name}" for name in ("", "/c", "/c/0", "/c/1")} <= set(flushed)


async def test_names_of_temporary_files_are_refused(tmp_path):
    store = stores.LocalStore(tmp_path)
    with pytest.raises(InvalidKeyError, match="reserved suffix"):
        await za.create_array(store, path="group/x.zarrasync-partial", shape=(1,), dtype="i4")
    with pytest.raises(InvalidKeyError, match="reserved suffix"):
        await za.create_group(store, path="x.zarrasync-partial/group")
    with pytest.raises(InvalidKeyError, match="reserved suffix"):
        sync.create_group(tmp_path / "g").create_group("x.zarrasync-partial")
    assert not list(tmp_path.rglob("*partial*"))


async def test_unfinished_files_are_not_listed(tmp_path):
    store = stores.LocalStore(tmp_path)
    await store.set("a", b"1")
    (tmp_path / "a.1f-0.zarrasync-partial").write_bytes(b"half")
    assert await store.list() == ["a"]
    assert (await store.list_dir("")).keys == ("a",)


async def test_links_to_directories_that_contain_them(api: Api, tmp_path: Path):
    """Listing finds each value once; other links are followed."""
    group = await api(api.create_group(tmp_path / "data"))
    for name in "gh":
        await api(api.create_group(tmp_path / "data" / name))
    for name in ("a", "g/b", "h/c"):
        array = await api(api.create_array(tmp_path / "data" / name, shape=4, dtype="i4", chunks=2))
        await api.write(array, np.s_[...], 7)
    links = {"a/c/one": ".", "a/c/two": "..", "g/up": "..", "g/h": "../h", "h/g": "../g", "h/same": "same"}
    for link, target in links.items():
        (tmp_path / "data" / link).symlink_to(target)
    array = await api(api.open_array(tmp_path / "data" / "a"))
    assert await api(array.nchunks_initialized()) == 2
    assert await api(array.nbytes_stored()) == sum(path.stat().st_size for path in (tmp_path / "data/a/c").glob("?"))
    paths = [path for path, _ in await api(group.members(max_depth=None))]
    # A link to a group is a member, but not the link in it that leads back.
    assert sorted(paths) == sorted({*paths})
    assert {"a", "g", "g/b", "h", "h/c", "g/h", "g/h/c", "h/g", "h/g/b"} == set(paths)
    store = stores.LocalStore(tmp_path / "data")
    assert len(await store.list()) == len(set(await store.list())) < 40


@pytest.mark.skipif(os.name != "posix", reason="paths of POSIX systems")
@pytest.mark.parametrize(
    ("root", "key"),
    [
        *(("", key) for key in ("loop", "loop/x", "file/x", "directory", "n" * 300, f"{'n' * 300}/x", "new/x")),
        *(
            ("", "/".join(["n" * 200] * 30)),
            ("loop", "x"),
            ("file", "x"),
            ("/proc/self", "mem"),
            ("/proc/self", "new/x"),
        ),
    ],
)
async def test_errors_of_the_system_are_store_errors(tmp_path, root, key):
    """Loops of links, long names, files as directories, and filesystems that refuse: ELOOP, ENAMETOOLONG, EIO, …"""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "directory/sub").mkdir(parents=True)
    store = stores.LocalStore(tmp_path / root)
    space = memoryview(bytearray(10))

    async def put_locked() -> None:
        async with store.lock(key):
            await store.put(key, b"1", if_version=(1, 2, 3))

    async def put_under_locks() -> None:
        async with store.locks([key]):
            await store.put_values([key], [b"1"])

    for operation in (
        put_locked,
        put_under_locks,
        lambda: store.fetch([Request(key)], versions=True),
        lambda: store.fetch_values([key], [space]),
        lambda: store.stat(key),
        lambda: store.put(key, b"x"),
        lambda: store.put(key, b"x", if_version=ABSENT),
        lambda: store.erase(key, if_version=(1, 2, 3)),
        lambda: store.erase(key),
        lambda: store.list_prefix(f"{key}/"),
        lambda: store.list_sizes(f"{key}/"),
        lambda: store.list_dir(f"{key}/"),
    ):
        with contextlib.suppress(StoreError):
            await operation()
    for block in (
        lambda: store.directories.unfinished(f"{key}/"),
        lambda: store.directories.set_pending(key, b"1"),
        lambda: store.directories.pending(key),
        lambda: store.directories.set_pending(key, None),
    ):
        with contextlib.suppress(StoreError):
            block()
    assert isinstance(store.describe(key), str)
    store.location(key)


@pytest.mark.parametrize("number", ["ENOSPC", "EACCES"])
@pytest.mark.parametrize("function", ["open", "write", "replace", "fsync", "unlink", "scandir", "stat"])
async def test_any_failing_system_call_raises_a_store_error(tmp_path, monkeypatch, number, function):
    store = stores.LocalStore(tmp_path, fsync=True)
    version = await store.put("a/x", b"1", if_version=ABSENT)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    for operation in (
        lambda: store.put("a/x", b"2"),
        lambda: store.put("a/x", b"2", if_version=version),
        lambda: store.erase("a/x", if_version=version),
        lambda: store.erase("a/x"),
        lambda: store.list_prefix("a/"),
        lambda: store.get("a/x"),
    ):
        with monkeypatch.context() as patches:
            patches.setattr(os, function, fail)
            with contextlib.suppress(StoreError):
                await operation()
    if function != "unlink":
        assert not list(tmp_path.rglob("*partial"))


async def test_directories_are_created_when_locks_are_taken(tmp_path: Path):
    """Asking for locks changes nothing; places of locks depend on directories, which must exist while they are held."""
    store = stores.LocalStore(tmp_path)
    locks = store.locks(["a/b/c"])
    assert not (tmp_path / "a").exists()
    async with locks:
        assert (tmp_path / "a" / "b").is_dir()


# ------------------------------------------------------------------ file systems and systems that refuse changes

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)


@pytest.mark.parametrize("number", NO_LINKS, ids=errno.errorcode.get)
@pytest.mark.parametrize("renames", [True, False], ids=["rename", "lock"])
async def test_values_are_created_without_hard_links(api: Api, tmp_path, monkeypatch, number: int, renames: bool):
    """By an exclusive rename, or under the lock of the value where the system has none."""

    def refuse(source: str, target: str, **options: object) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    if not renames:
        monkeypatch.setattr(local_files, "_exclusive_rename", lambda: None)
    array = await api(api.create_array(tmp_path / "a.zarr", data=np.arange(10), chunks=4))
    np.testing.assert_array_equal(await api(array[...]), np.arange(10))
    with pytest.raises(NodeExistsError):
        await api(api.create_array(tmp_path / "a.zarr", shape=3))
    store = stores.LocalStore(tmp_path)
    with pytest.raises(WriteConflictError):
        await store.put("a.zarr/zarr.json", b"{}", if_version=ABSENT)
    created = [0]

    def create() -> None:
        try:
            sync.create_group(tmp_path / "one.zarr")
            created[0] += 1
        except NodeExistsError:
            pass

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == [1]
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if "partial" in name]


class _FastClock(clock.Environment):
    slept = 0.0

    def sleep_blocking(self, seconds: float) -> None:
        self.slept += seconds


@pytest.mark.parametrize("name", ["replace", "unlink"])
async def test_busy_files_are_renamed_and_removed_later(tmp_path, monkeypatch, name: str):
    """Windows refuses to change a file while a reader or a virus scanner has it open."""
    store, change, attempts = stores.LocalStore(tmp_path), getattr(os, name), []
    await store.set("k", b"old")
    busy = 3

    def refuse(*paths: str, **options: object) -> None:
        attempts.append(paths)
        if len(attempts) <= busy:
            raise PermissionError(errno.EACCES, "Access is denied", paths[-1])
        change(*paths, **options)

    monkeypatch.setattr(os, name, refuse)
    with clock.replaced(environment := _FastClock()):
        await (store.set("k", b"new") if name == "replace" else store.erase("k"))
        assert await store.get("k") == (b"new" if name == "replace" else None)
        assert len(attempts) == busy + 1
        busy = 1000
        with pytest.raises(StoreError, match="Access is denied"):
            await (store.set("k", b"newer") if name == "replace" else store.erase("k"))
        assert 0 < environment.slept < 3
