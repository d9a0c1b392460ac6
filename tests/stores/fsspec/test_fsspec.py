"""fsspec filesystems under faults: missing details, partial files, hanging calls."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import zarrasync as za
from tests.support.api import Api
from tests.support.covering import covering
from tests.support.s3_server import VALUES, Answer, Bucket
from zarrasync import stores, sync
from zarrasync._concurrency.drive import drive
from zarrasync.errors import InvalidKeyError, ReadOnlyError, ShapeError, StoreError, WriteConflictError
from zarrasync.stores import Listing, local, local_files

# ------------------------------------------------------------------ what servers say beside the bytes


@pytest.fixture(params=["s3", "web", "web with options"])
def place(request: pytest.FixtureRequest, bucket: Bucket) -> tuple[str, dict[str, Any]]:
    """The bucket through s3fs, and through fsspec's HTTP filesystem."""
    if request.param == "s3":
        return "s3://bucket", bucket.options(backend="fsspec")
    more = {"timeout": 60, "headers": {"X-A": "b"}} if request.param == "web with options" else {}
    return f"{bucket.url}/bucket", {"backend": "fsspec", **more}


async def test_an_unrequested_range_is_an_error(api: Api, bucket: Bucket, place: tuple[str, dict[str, Any]]):
    url, options = place
    config = {"retries": 1, "total_timeout": 5}
    array = await api(api.open_array(url, zarr_format=3, storage_options=options, config=config))

    def other(key: str, data: bytes | None) -> Answer | None:
        return (206, {"Content-Range": f"bytes 0-15/{len(data)}"}, data[:16]) if key == "c/1/1" and data else None

    bucket.fault = other
    with pytest.raises(StoreError, match=r"could not read 'c/1/1' in .*the server sent"):
        await api(array.view[150:160, 150:160].read())


async def test_a_shard_that_is_replaced_while_it_is_read(api: Api, bucket: Bucket, place: tuple[str, dict[str, Any]]):
    """The index must not belong to another version than the bytes."""
    url, options = place
    array = await api(api.open_array(url, zarr_format=3, storage_options=options))
    assert (await api(array.view[0, :3].read())).tolist() == [0, 1, 2]  # the index is cached now
    newer: dict[str, bytes] = {}
    values = np.random.default_rng(0).integers(0, 1 << 30, VALUES.shape).astype("i4")
    sync.create_array(newer, data=values, chunks=(20, 20), shards=(100, 100), fill_value=-1)
    bucket.values.update(newer)
    np.testing.assert_array_equal(await api(array.view[:100, :100].read()), values[:100, :100])


@pytest.mark.parametrize("text", ["", "<Message></Message>", "<Message>who knows</Message>"])
@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
async def test_a_missing_bucket_is_an_error(api: Api, bucket: Bucket, backend: str, text: str):
    """Each error code of a missing bucket raises."""
    array = await api(api.open_array("s3://bucket", storage_options=bucket.options(backend=backend)))
    gone = f"<Error><Code>NoSuchBucket</Code>{text}</Error>".encode()
    bucket.fault = lambda key, data: (404, {"Content-Type": "application/xml"}, gone)
    with pytest.raises(StoreError, match="the bucket does not exist"):
        await api(array[...] if api.name == "sync" else array[...].read())


async def test_a_missing_google_bucket(api: Api, gcs: tuple[str, dict[str, Any]]):
    _, options = gcs
    given = {**options, "backend": "fsspec"}
    with pytest.raises(StoreError, match="the bucket does not exist"):
        await api(api.open_array("gs://nobodys-bucket/x", storage_options=given))
    array = await api(api.create_array(gcs[0], shape=4, chunks=2, fill_value=7, storage_options=given))
    await api(array.view[:2].write(1))
    assert (await api(array.view[:].read())).tolist() == [1, 1, 7, 7]


async def test_a_bucket_of_google_is_asked_for_once(
    api: Api, gcs: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    """The existence of the bucket is checked once, not for each missing chunk."""
    from zarrasync.stores.fsspec import store as fsspec_store

    url, options = gcs
    monkeypatch.setattr(fsspec_store, "_existing_buckets", set())
    asked: list[str] = []
    has_bucket = stores.FsspecStore._has_bucket

    async def counted(store: stores.FsspecStore, name: str) -> bool:
        asked.append(name)
        return await has_bucket(store, name)

    monkeypatch.setattr(stores.FsspecStore, "_has_bucket", counted)
    given = {**options, "backend": "fsspec"}
    array = await api(api.create_array(url, shape=20, chunks=1, fill_value=7, storage_options=given))
    assert (await api(array.view[:].read())).tolist() == [7] * 20
    assert asked == ["test-bucket"]


def test_the_process_ends_without_a_word(gcs: tuple[str, dict[str, Any]]):
    """Clients are closed on their own event loop, before the filesystem would close them on another."""
    url, options = gcs
    script = f"""
        from zarrasync import sync
        array = sync.create_array({url!r}, shape=4, storage_options={ {**options, "backend": "fsspec"}!r})
        array[...] = 1
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("retries", [0, 2])
def test_a_download_that_breaks_off_is_not_kept(bucket: Bucket, tmp_path: Path, retries: int):
    """``simplecache`` would return the incomplete file to the next reader."""
    url, options = f"simplecache::{bucket.url}/bucket", {"simplecache": {"cache_storage": str(tmp_path)}}
    array = sync.open_array(url, zarr_format=3, storage_options=options, config={"retries": retries})
    cut: list[str] = []

    def once(key: str, data: bytes | None) -> str | None:
        """Fail the second request of each chunk; the first only asks for its size."""
        if cut.count(key) == 2 or not key.startswith("c/"):
            return None
        cut.append(key)
        return "cut"

    bucket.fault = once
    if not retries:
        with pytest.raises(StoreError, match="could not read 'c/0/0'"):
            array[:100, :100]
    np.testing.assert_array_equal(array[:100, :100], VALUES[:100, :100])


# ------------------------------------------------------------------ local files


class Derived(LocalFileSystem):
    """A filesystem that may change paths and bytes."""

    protocol = "derived"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_half_a_local_file_is_never_seen(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
):
    """Files get their final name when they are complete, although fsspec writes in place."""
    fs = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True) if asynchronous else LocalFileSystem()
    store = stores.FsspecStore(fs, str(tmp_path))
    others = (stores.LocalStore, partial(stores.FsspecStore, LocalFileSystem()), partial(stores.FsspecStore, Derived()))
    array = await api(api.create_array(store, data=np.arange(8), chunks=4, attributes={"turn": 0}))
    seen = []

    def look() -> None:
        for other in others:
            one = other(str(tmp_path))
            present = sync.open_array(one)
            seen.append((present.attrs["turn"], present[...].tolist(), sorted(drive(one.list()))))
            assert sorted(drive(one.list_sizes(""))) == seen[-1][2]
            assert drive(one.list_dir("")) == Listing(("zarr.json",), ("c/",))

    def slowly(handle: int, data: Any) -> None:
        os.write(handle, data[: len(data) // 2])
        look()
        os.write(handle, data[len(data) // 2 :])

    keys = ["c/0", "c/1", "zarr.json"]
    monkeypatch.setattr(local, "write_fully", slowly)
    await api(array.update_attributes({"turn": 1}))
    assert seen == [(0, [*range(8)], keys)] * 3
    await api.write(array, slice(0, 4), 9)
    assert seen[3:] == [(1, [*range(8)], keys)] * 3
    await api(array.append(np.arange(4)))
    assert all(found == (1, [9] * 4 + [*range(4, 8)], keys) for found in seen[6:9])

    def full(handle: int, data: Any) -> None:
        os.write(handle, data[:1])
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(local, "write_fully", full)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for change in (lambda: api(array.update_attributes({"turn": 2})), lambda: api.write(array, slice(0, 2), 1)):
        with pytest.raises(StoreError, match="the disk is full"):
            await change()
    with pytest.raises(StoreError, match="the disk is full"):
        await api(api.create_array(stores.FsspecStore(fs, str(tmp_path / "new")), shape=4, dtype="i4"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_a_cancelled_write_of_a_local_file_comes_before_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Cancellation waits until the thread that writes has stopped."""
    store = stores.FsspecStore(AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True), str(tmp_path))
    begun, go_on, write_fully = threading.Event(), threading.Event(), local_files.write_fully

    def slowly(handle: int, data: Any) -> None:
        begun.set()
        go_on.wait(60)
        write_fully(handle, data)

    monkeypatch.setattr(local, "write_fully", slowly)
    writing = asyncio.create_task(store.put("k", b"old"))
    await asyncio.to_thread(begun.wait, 60)
    writing.cancel()
    await asyncio.wait([writing], timeout=0.1)
    assert not writing.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await store.put("k", b"new")
    assert await store.get("k") == b"new"


@pytest.mark.parametrize("key", ["../precious", "a/../../precious", "/precious", "a//b", "a/", ""])
async def test_keys_that_lead_out_of_local_files_are_refused(tmp_path: Path, key: str):
    (tmp_path / "precious").write_text("mine")
    fs = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True)
    store = stores.FsspecStore(fs, str(tmp_path / "store"))
    await store.put("a/b", b"x")
    for change in (store.erase(key), store.erase_values([key]), store.put(key, b"x")):
        with pytest.raises(InvalidKeyError):
            await change
    assert (tmp_path / "precious").read_text() == "mine"
    assert await store.list() == ["a/b"]


async def test_of_filesystems_derived_from_local_files_nothing_is_known(api: Api, tmp_path: Path):
    """They get no locks of local files, so partial chunk writes must be allowed."""
    store = stores.FsspecStore(Derived(), str(tmp_path))
    array = await api(api.create_array(store, data=np.arange(8), chunks=4))
    with pytest.raises(ShapeError, match="covers only parts of the chunks"):
        await api.write(array, 1, 9)
    assert (await api(array[...])).tolist() == list(range(8))


@pytest.mark.parametrize(
    "make", [LocalFileSystem, lambda: AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True)]
)
async def test_local_files_are_flushed_if_so_wished(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
):
    flushed, fsync = [], os.fsync

    def noting(handle: int) -> None:
        flushed.append(handle)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    with za.config.set(fsync=True):
        store = stores.FsspecStore(make(), str(tmp_path))
    await api(api.create_array(store, data=np.arange(4), chunks=4))
    assert len(flushed) >= 4  # two files and their directories


@pytest.mark.parametrize("path", ["", "a"])
@pytest.mark.parametrize(
    "make", [LocalFileSystem, lambda: AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True)]
)
async def test_what_replaces_local_files_leaves_nothing_of_killed_writers(
    api: Api, tmp_path: Path, path: str, make: Callable[[], Any]
):
    store = stores.FsspecStore(make(), str(tmp_path))
    await api(api.create_array(store, path=path, shape=4, dtype="i4", chunks=2))
    place = tmp_path / path
    for name in ("zarr.json.pending.zarrasync-partial", "zarr.json.1d20.a9f6-1.zarrasync-partial"):
        (place / name).write_bytes(b"[9]")
    assert len(store.directories.unfinished("")) == 2
    await api(api.create_array(store, path=path, shape=4, dtype="i4", chunks=2, overwrite=True))
    assert sorted(one.name for one in place.iterdir()) == ["zarr.json"]


# ------------------------------------------------------------------ time limits


class Hanging(MemoryFileSystem):
    """A remote filesystem whose server stops answering."""

    protocol = "hanging"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    go_on = threading.Event()
    hangs = False

    def _wait(self) -> None:
        if Hanging.hangs:
            Hanging.go_on.wait(60)

    def cat_file(self, *args: Any, **options: Any) -> Any:
        self._wait()
        return super().cat_file(*args, **options)

    def info(self, *args: Any, **options: Any) -> Any:
        self._wait()
        return super().info(*args, **options)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[stores.FsspecStore]:
    monkeypatch.setattr(Hanging, "store", {})
    monkeypatch.setattr(Hanging, "go_on", threading.Event())
    with za.config.set(total_timeout=2.0):
        yield stores.FsspecStore(Hanging(), "/x")
    Hanging.hangs = False
    Hanging.go_on.set()


async def test_filesystems_that_block_are_not_waited_for_longer_than_allowed(
    api: Api, hanging: stores.FsspecStore, monkeypatch: pytest.MonkeyPatch
):
    array = await api(api.create_array(hanging, data=np.arange(4), chunks=2))
    monkeypatch.setattr(Hanging, "hangs", True)
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"no answer within 2 s"):
        await api(array.view[:].read())
    assert time.monotonic() - begin < 20
    with pytest.raises(StoreError, match=r"no answer within 2 s"):
        await hanging.stat("zarr.json")


async def test_a_write_that_blocks_is_waited_for(hanging: stores.FsspecStore, monkeypatch: pytest.MonkeyPatch):
    """An abandoned write would take effect after later writes."""
    slow, store = threading.Event(), stores.FsspecStore(hanging._filesystem.template, "/x")
    store.settings = za.config.resolve({"total_timeout": 0.05})
    pipe_file = MemoryFileSystem.pipe_file

    def slowly(*args: Any, **options: Any) -> None:
        slow.wait(0.5)  # ten times the timeout of a read
        pipe_file(*args, **options)

    monkeypatch.setattr(Hanging, "pipe_file", slowly)
    await asyncio.to_thread(lambda: drive(store.put("k", b"old")))
    slow.set()
    await asyncio.to_thread(lambda: drive(store.put("k", b"new")))
    assert await hanging.get("k") == b"new"


async def test_a_cancelled_read_leaves_a_filesystem_that_blocks(
    hanging: stores.FsspecStore, monkeypatch: pytest.MonkeyPatch
):
    with za.config.set(total_timeout=0.0):
        store = stores.FsspecStore(Hanging(), "/x")
    array = await za.create_array(store, data=np.arange(4), chunks=2)
    monkeypatch.setattr(Hanging, "hangs", True)
    reading = asyncio.ensure_future(array[...].read())
    await asyncio.wait([reading], timeout=0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 20)
    assert not Hanging.go_on.is_set()


@pytest.mark.parametrize("verb", ["write", "list", "look", "compare"])
async def test_calls_of_s3fs_have_a_timeout(api: Api, bucket: Bucket, verb: str):
    config = {"total_timeout": 2.0, "request_timeout": 1.0, "retries": 1}
    store = stores.resolve("s3://bucket", bucket.options(backend="fsspec"), config)
    version = bucket.tag(bucket.values["zarr.json"])
    answered = threading.Event()

    def stalls(key: str, data: bytes | None) -> None:
        answered.wait(20)

    bucket.fault = stalls
    calls: dict[str, Callable[[], Any]] = {
        "write": lambda: store.put("k", b"v"),
        "list": lambda: store.list_dir(""),
        "look": lambda: store.stat("zarr.json"),
        "compare": lambda: store.put("zarr.json", b"{}", if_version=version),
    }
    begin = time.monotonic()
    try:
        with pytest.raises(StoreError, match="no answer within") as error:
            await calls[verb]()
    finally:
        answered.set()
    assert time.monotonic() - begin < 20
    assert not isinstance(error.value, WriteConflictError)
    await store.close()


async def test_stores_of_zarr_python_have_a_limit(api: Api):
    zarr = pytest.importorskip("zarr")

    class Stalling(zarr.storage.WrapperStore):  # type: ignore[name-defined]  # imported if it is installed
        async def get(self, *args: Any, **options: Any) -> Any:
            await asyncio.sleep(60)

    inner = Stalling(zarr.storage.MemoryStore())
    with pytest.raises(StoreError, match=r"no answer within 0\.3 s"):
        await api(api.open_array(stores.resolve(inner, None, {"total_timeout": 0.3})))


# ------------------------------------------------------------------ who asks, and how


def test_cached_data_belong_to_one_user(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Several users share one cache directory."""
    url = f"{bucket.url}/bucket"

    def read(**options: Any) -> int:
        store = stores.DiskCachingStore(stores.HTTPStore(url, **options), tmp_path)
        return int(sync.open_array(store, zarr_format=3)[0, 5])

    assert read(headers={"X-Tenant": "a"}) == 5
    newer: dict[str, bytes] = {}
    sync.create_array(newer, data=VALUES + 1, chunks=(20, 20), shards=(100, 100), fill_value=-1)
    bucket.values.update(newer)
    assert [read(headers={"X-Tenant": who}) for who in "aba"] == [5, 6, 5]
    bucket.fault = lambda key, data: (401, {}, b"")
    with pytest.raises(StoreError, match="401"):
        read(headers={"X-Tenant": "c"})


def test_a_read_only_store_of_zarr_python_stays_so(tmp_path: Path):
    zarr = pytest.importorskip("zarr")
    sync.create_array(tmp_path, data=np.arange(4))
    fs = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True)
    for read_only in (True, False):
        inner = zarr.storage.FsspecStore(fs, read_only=read_only, path=str(tmp_path))
        array = sync.open_array(inner, mode="r+")
        if read_only:
            with pytest.raises(ReadOnlyError):
                array[0] = 9
        else:
            array[0] = 9
    assert sync.open_array(tmp_path)[0] == 9


def test_places_in_stores_of_zarr_python(tmp_path: Path):
    zarr = pytest.importorskip("zarr")
    sync.create_array(tmp_path, path="a/b", data=np.arange(4))
    place = zarr.storage.StorePath(zarr.storage.LocalStore(tmp_path), "a/b")
    assert sync.open_array(place)[...].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("s3://b/x", {"endpont_url": "http://127.0.0.1:1"}, "has no option 'endpont_url'; it has 'endpoint_url'"),
        ("s3://b/x", {"secrt": "s"}, "has no option 'secrt'; it has 'secret'"),
        ("gs://b/x", {"tokn": "anon"}, "has no option 'tokn'; it has 'token'"),
    ],
)
def test_options_that_are_misspelt(url: str, options: dict[str, Any], match: str):
    """Filesystems ignore unknown options and would contact the real service."""
    with pytest.raises(TypeError, match=match):
        stores.resolve(url, options)


def test_an_emulator_of_google_is_found_through_the_environment(
    gcs: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    url, options = gcs
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", options["endpoint_url"])
    array = sync.create_array(url, data=np.arange(4), storage_options={"token": "anon"})
    assert isinstance(array.store, stores.FsspecStore)
    assert sync.open_array(url, storage_options=options | {"backend": "fsspec"})[...].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("missing", "url", "backend"),
    covering(["403", ["403"], [500], None, 3.5], ["http://127.0.0.1:1/x", "s3://b/x"], ["auto", "fsspec"], strength=1),
)
def test_invalid_status_codes(url: str, backend: str, missing: Any):
    with pytest.raises(ValueError, match="missing must contain HTTP statuses"):
        stores.resolve(
            url, {"missing": missing, "backend": backend, **({"key": "k", "secret": "s"} if "s3" in url else {})}
        )


@pytest.mark.parametrize("missing", [403, [HTTPStatus.FORBIDDEN], np.array([404, 403])])
@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"backend": "fsspec"}])
async def test_statuses_of_a_web_server_that_mean_absence(
    api: Api, bucket: Bucket, options: dict[str, Any], missing: Any
):
    """Status 404 always means a missing key; others must be configured."""
    bucket.fault = lambda key, data: (403, {}, b"") if key == "c/0/0" else None
    del bucket.values["c/1/1"]
    told = {"missing": missing, **options}
    array = await api(api.open_array(f"{bucket.url}/bucket", storage_options=told))
    found = await api(array.view[:].read())
    assert (found[:100, :100] == found[100:, 100:]).all()
    np.testing.assert_array_equal(found[:100, 100:], VALUES[:100, 100:])
