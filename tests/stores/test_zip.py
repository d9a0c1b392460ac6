"""Stores in zip archives, local and in other stores."""

from __future__ import annotations

import asyncio
import gc
import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.store_kinds import make_store
from zarrasync import stores, sync
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.errors import NodeNotFoundError, ReadOnlyError, StoreError, UnsupportedOperation
from zarrasync.stores import Listing


def archive(path: Path, method: int) -> dict[str, bytes]:
    values = {"a/b": b"hello", "a/c/d": bytes(range(256)) * 40, "empty": b"", "ü": b"1"}
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("a/", b"")
        file.writestr("a/b", b"old")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in the second member of the same name
            for key, value in values.items():
                file.writestr(key, value)
    return values


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
async def test_zip_archives_are_read_in_place(tmp_path, method):
    values = archive(tmp_path / "x.zip", method)
    for given in (tmp_path / "x.zip", io.BytesIO((tmp_path / "x.zip").read_bytes())):
        store = stores.ZipStore(given)
        assert sorted(await store.list()) == sorted(values)
        assert await store.list_dir("a/") == Listing(("a/b",), ("a/c/",))
        for key, value in values.items():
            assert await store.get(key) == value
            asked = [(0, 3), (3, None), (1, 0), (5, 100), (-2, None), (-9999999, None), (99999, None)]
            found = await store.get_partial_values([(key, part) for part in asked])
            assert found == [value[s:] if n is None else value[s : s + n] for s, n in asked]
        assert await store.get("nothing") is None
        with pytest.raises(UnsupportedOperation):
            await store.set("new", b"1")
        await store.close()
        assert await store.get("a/b") == b"hello"  # reopened
    copy = pickle.loads(pickle.dumps(stores.ZipStore(tmp_path / "x.zip", mode="auto")))
    assert await copy.get("a/b") == b"hello"
    assert (copy.writeable, copy.conditional, copy.exclusive_locks) == (False, False, False)
    with pytest.raises(TypeError, match="pass a path"):
        pickle.dumps(store)


@pytest.mark.processes
def test_a_zip_archive_is_a_store(tmp_path):
    import zarr

    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as theirs:
        zarr.create_array(theirs, name="g/a", data=np.arange(100).reshape(10, 10), chunks=(5, 5), shards=(10, 10))
    with sync.open_array(tmp_path / "x.zip", path="g/a") as array:
        np.testing.assert_array_equal(array[3:, ::2], np.arange(100).reshape(10, 10)[3:, ::2])
        context = multiprocessing.get_context("spawn")
        with context.Pool(2) as pool:
            rows = pool.map(array.__getitem__, range(10))
        np.testing.assert_array_equal(rows, np.arange(100).reshape(10, 10))
    (tmp_path / "dir.zip").mkdir()
    sync.create_array(tmp_path / "dir.zip", data=np.arange(3))
    np.testing.assert_array_equal(sync.open_array(tmp_path / "dir.zip")[...], np.arange(3))


async def test_names_of_archives_are_not_names_of_new_directories(api, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for attempt in (
        lambda: api.create_array("x.zip", data=[1, 2]),
        lambda: api.create_group(tmp_path / "x.zip"),
        lambda: api.save("x.zip", [1, 2]),
        lambda: api.copy(tmp_path / "source.zarr", "x.zip"),
        lambda: api.open_group("x.zip", mode="a"),
    ):
        sync.create_group(tmp_path / "source.zarr", overwrite=True)
        with pytest.raises(ReadOnlyError, match=r"'x.zip' does not exist; .*ZipStore\('x.zip', mode='w'\)"):
            await api(attempt())
        assert not (tmp_path / "x.zip").exists()
    with pytest.raises(NodeNotFoundError):
        await api(api.open("x.zip"))


async def test_archives_of_a_folder_hint_at_it(api, tmp_path):
    sync.create_group(tmp_path / "data.zarr").create_array("a", data=[1, 2])
    archive_path = shutil.make_archive(str(tmp_path / "whole"), "zip", tmp_path, "data.zarr")
    with pytest.raises(NodeNotFoundError, match=r"in the folder 'data.zarr'; pass path='data.zarr'"):
        await api(api.open(archive_path))
    array = await api(api.open(archive_path, path="data.zarr/a"))
    assert (await api(array.view.read())).tolist() == [1, 2]


async def test_damaged_zip_archives(tmp_path):
    archive(tmp_path / "x.zip", zipfile.ZIP_STORED)
    good = (tmp_path / "x.zip").read_bytes()
    spot = good.index(bytes(range(256)))
    (tmp_path / "flipped.zip").write_bytes(good[:spot] + b"!" + good[spot + 1 :])
    with pytest.raises(StoreError, match=r"could not read 'a/c/d' in ZipStore.*checksum"):
        await stores.ZipStore(tmp_path / "flipped.zip").get("a/c/d")
    for name, data in (("cut.zip", good[: len(good) // 2]), ("empty.zip", b""), ("other.zip", b"PK" * 40)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(StoreError, match="not a readable zip archive"):
            await stores.ZipStore(tmp_path / name).get("a/b")
    with pytest.raises(StoreError, match=r"none\.zip' does not exist"):
        await stores.ZipStore(tmp_path / "none.zip").get("a/b")
    with pytest.raises(StoreError, match="not a readable zip archive"):
        await stores.ZipStore(tmp_path / "other.zip", mode="a").set("k", b"v")
    assert (tmp_path / "other.zip").read_bytes() == b"PK" * 40


def test_archives_are_written(tmp_path: Path):
    """Other zip readers see written, replaced and erased values."""
    path = tmp_path / "deep" / "a.zip"
    with stores.ZipStore(path, mode="w") as store:
        array = sync.create_array(store, path="x", data=np.arange(100).reshape(10, 10), chunks=(5, 5))
        array[0, 0] = 7
        array[5:, 5:] = 0
        assert array[0, 0] == 7
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(set(archive.namelist())) == len(archive.namelist())
        assert "x/c/1/1" not in archive.namelist()
        assert all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
    with stores.ZipStore(path, mode="a") as store:
        sync.open_array(store, path="x", mode="r+")[1, 1] = 8
    found = sync.open_array(path, path="x")
    assert (found[0, 0], found[1, 1], found[9, 9], found[9, 0]) == (7, 8, 0, 90)
    zarr = pytest.importorskip("zarr")
    with zarr.storage.ZipStore(path, mode="r") as theirs:
        np.testing.assert_array_equal(zarr.open_array(theirs, path="x", mode="r")[...], found[...])


async def test_the_content_of_a_file_object_is_replaced():
    file = io.BytesIO(b"other content")
    file.seek(5)
    store = stores.ZipStore(file, mode="w")
    await store.set("k", b"value")
    await store.close()
    assert file.getvalue().startswith(b"PK")
    assert zipfile.ZipFile(file).namelist() == ["k"]


def test_modes_of_archives(tmp_path: Path):
    path = tmp_path / "a.zip"
    with pytest.raises(ValueError, match="mode must be"):
        stores.ZipStore(path, mode="r+")  # type: ignore[arg-type]  # which is refused
    with stores.ZipStore(path, mode="x") as store:
        sync.create_group(store)
        with pytest.raises(TypeError, match="one process only"):
            pickle.dumps(store)
        with pytest.raises(StoreError, match="another process"):
            sync.open_group(stores.ZipStore(path, mode="a"))
    with pytest.raises(StoreError, match="already exists"):
        stores.ZipStore(path, mode="x")
    with pytest.raises(ReadOnlyError):
        sync.open_group(path).create_group("g")
    with pytest.raises(UnsupportedOperation, match="mode='a'"):
        asyncio.run(stores.ZipStore(path).set("k", b"v"))
    with stores.ZipStore(path, mode="w"):
        pass
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == []
    memory = io.BytesIO()
    with stores.ZipStore(memory, mode="a") as store:
        sync.create_array(store, data=np.arange(4))
    np.testing.assert_array_equal(sync.open_array(stores.ZipStore(memory))[...], np.arange(4))


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_an_interrupted_append_loses_nothing(tmp_path: Path, size: int):
    """After a crash, with values that look like the end record of an archive."""
    path, crashed = tmp_path / "a.zip", tmp_path / "crashed.zip"
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("trap", b"trap")
    with stores.ZipStore(path, mode="w") as store:
        sync.create_array(store, path="x", data=np.arange(10))
    writing = stores.ZipStore(path, mode="a")
    asyncio.run(writing.set("big", bytes(size) + inner.getvalue()))
    crashed.write_bytes(path.read_bytes() + b"PK\5\6 half a member")
    np.testing.assert_array_equal(sync.open_array(crashed, path="x")[...], np.arange(10))
    assert asyncio.run(stores.ZipStore(crashed).get("big")) is None
    with stores.ZipStore(crashed, mode="a") as store:
        asyncio.run(store.set("more", b"more"))
    assert asyncio.run(stores.ZipStore(crashed).get("more")) == b"more"
    with zipfile.ZipFile(crashed) as archive:
        assert archive.testzip() is None
        assert "trap" not in archive.namelist()
    asyncio.run(writing.close())
    assert len(asyncio.run(stores.ZipStore(path).get("big"))) == size + len(inner.getvalue())


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("members", [0, 3000])
@pytest.mark.parametrize("kind", ["memory", "http", "obstore", "fsspec-memory"])
async def test_archives_in_other_stores(
    kind: str, members: int, compression: int, tmp_path: Path, request: pytest.FixtureRequest
):
    path = tmp_path / "a.zip"
    values = np.arange(10_000).reshape(100, 100)
    inside: dict[str, bytes] = {}
    sync.create_array(inside, path="x", data=values, chunks=(10, 10), shards=(50, 50))
    with zipfile.ZipFile(path, "w", compression) as archive:
        for key, value in inside.items():
            archive.writestr(key, value)
        for number in range(members):
            archive.writestr(f"other/{number}", b"")
    if kind == "http":
        url, root = request.getfixturevalue("http")
        (root / "a.zip").write_bytes(path.read_bytes())
        inner = stores.resolve(url)
    else:
        inner = make_store(kind, request, tmp_path)
        await inner.set("a.zip", path.read_bytes())
    counting = stores.CountingStore(inner)
    store = stores.RemoteZipStore(counting, "a.zip")
    array = await za.open_array(store, path="x", zarr_format=3)
    assert counting.reset().fetches <= 3
    np.testing.assert_array_equal(await array[20:70, ::7], values[20:70, ::7])
    assert await array[99, 99] == values[99, 99]
    assert len(await store.list_prefix("other/")) == members
    asked = [(0, 5), (3, None), (2, 4), (-4, None), (10**6, 3), (0, None)]
    value = inside["x/zarr.json"]
    found = await store.get_partial_values([("x/zarr.json", part) for part in asked])
    assert found == [value[s:] if n is None else value[s : s + n] for s, n in asked]
    assert await store.get("nothing") is None
    await store.close()


async def test_archives_in_other_stores_that_are_not_right(tmp_path: Path):
    memory = stores.MemoryStore({"no.zip": b"PK" * 1000})
    with pytest.raises(StoreError, match="not a readable zip archive"):
        await stores.RemoteZipStore(memory, "no.zip").get("k")
    with pytest.raises(StoreError, match=r"'none\.zip' does not exist"):
        await stores.RemoteZipStore(memory, "none.zip").get("k")
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("k", b"0123456789")
    await memory.set("a.zip", file.getvalue())
    store = stores.RemoteZipStore(memory, "a.zip")
    assert await store.get("k") == b"0123456789"
    await memory.set("a.zip", file.getvalue() + b"!")
    with pytest.raises(StoreError, match="was replaced"):
        await store.get("k")
    await memory.set("b.zip", file.getvalue().replace(b"0123456789", b"0123456x89"))
    with pytest.raises(StoreError, match="checksum"):
        await stores.RemoteZipStore(memory, "b.zip").get("k")


def test_a_member_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If the disk is full, the older value and the archive stay intact."""
    path = tmp_path / "a.zip"
    with stores.ZipStore(path, mode="w") as store:
        asyncio.run(store.set("k", b"old"))
        original = zipfile.ZipFile.writestr

        def full(self: zipfile.ZipFile, member: zipfile.ZipInfo, data: bytes) -> None:
            with self.open(member, "w") as file:
                file.write(bytes(data)[:3])
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
        with pytest.raises(StoreError, match="No space left"):
            asyncio.run(store.set("k", b"newer"))
        monkeypatch.setattr(zipfile.ZipFile, "writestr", original)
        assert asyncio.run(store.get("k")) == b"old"
        asyncio.run(store.set("other", b"1"))
    with stores.ZipStore(path) as store:
        assert asyncio.run(store.get("k")) == b"old"
        assert asyncio.run(store.get("other")) == b"1"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_forks_leave_an_archive_alone(tmp_path: Path):
    path = tmp_path / "a.zip"
    store = stores.ZipStore(path, mode="w")
    asyncio.run(store.set("a", b"1"))
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(store.set("c", b"3"))
        except StoreError:
            writer: Any = store._archive
            writer._finish()
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    asyncio.run(store.set("b", b"2"))
    asyncio.run(store.close())
    assert sorted(asyncio.run(stores.ZipStore(path).list())) == ["a", "b"]


def test_other_methods_beside_what_is_added(tmp_path: Path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("old", b"old" * 100)
    with stores.ZipStore(path, mode="a") as store:
        asyncio.run(store.set("new", bytes(200_000)))
        assert asyncio.run(store.get("old")) == b"old" * 100


@pytest.mark.processes
def test_waiting_for_another_process_can_be_given_up(tmp_path: Path):
    """A stopped process that holds a lock must not block this process for ever."""
    code = (
        "import asyncio, sys; from zarrasync import stores\n"
        "async def hold():\n"
        f"    async with stores.LocalStore({str(tmp_path)!r}).lock('k'):\n"
        "        print('held', flush=True); sys.stdin.readline()\n"
        "asyncio.run(hold())"
    )
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "TMPDIR": str(tmp_path)},
    }
    holder = subprocess.Popen([sys.executable, "-c", code], **pipes)
    assert holder.stdout.readline() == "held\n"
    store = stores.LocalStore(tmp_path)

    async def wait() -> None:
        async with asyncio.timeout(0.3):
            await run_in_worker(lambda: store.put("k", b"v", if_version=("a", "b", "c")))

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    holder.communicate("\n")


@pytest.mark.parametrize("given", [None, io.StringIO("x"), stores.MemoryStore(), fsspec.open("memory://x")])
def test_files_that_are_not_archives(given: Any):
    with pytest.raises(TypeError, match=f"binary mode, found {type(given).__name__}"):
        stores.ZipStore(given)


class Piecemeal(io.RawIOBase):
    """A file that returns fewer bytes than requested."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(memoryview(buffer)[:50])


def test_an_archive_in_a_file_that_reads_less_than_it_is_asked_for(tmp_path: Path):
    with stores.ZipStore(tmp_path / "a.zip", mode="w") as archive:
        sync.create_array(archive, data=np.arange(1000), chunks=300)
    file = Piecemeal((tmp_path / "a.zip").read_bytes())
    archive = stores.ZipStore(cast("IO[bytes]", file))
    np.testing.assert_array_equal(sync.open_array(archive)[...], np.arange(1000))
    del archive
    gc.collect()
    assert not file.closed  # its owner closes it
