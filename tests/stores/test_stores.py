"""One behaviour suite for every store."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import multiprocessing
import os
import pickle
import ssl
import subprocess
import sys
import threading
import warnings
import weakref
import zipfile
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import fsspec
import numpy as np
import pytest

import zarrasync as za
from tests.support.store_kinds import make_store
from zarrasync import config, stores, sync
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.errors import InvalidKeyError, ReadOnlyError, StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores import ABSENT, Listing, Request
from zarrasync.stores.remote import Present, RemoteStore, Unsure


async def test_a_value_comes_back(store):
    await store.set("a/b", b"hello")
    assert await store.get("a/b") == b"hello"
    await store.set("a/b", bytearray(b"other"))
    assert await store.get("a/b") == b"other"
    await store.set("empty", b"")
    assert await store.get("empty") == b""
    assert await store.exists("empty")


async def test_an_absent_key_is_none(store):
    await store.set("a/b", b"x")
    for key in ("nothing", "a", "a/b/c", "a/bb", "b/c/d"):
        assert await store.get(key) is None
        assert not await store.exists(key)


async def test_ranges_are_clipped_like_slices(store):
    value = b"0123456789"
    await store.set("k", value)
    await store.set("e", b"")
    asked = [(0, 3), (3, None), (8, 5), (10, 2), (25, 4), (0, 0), (-3, None), (-30, None), (4, 1)]
    found = await store.get_partial_values([("k", part) for part in asked])
    want = [value[s:] if n is None else value[s : s + n] for s, n in asked]
    assert found == want
    assert await store.get_partial_values([("e", (0, 2)), ("e", (-2, None)), ("no", (0, 2)), ("no", (-2, None))]) == [
        b"",
        b"",
        None,
        None,
    ]


async def test_fetch_uses_given_memory_only_if_the_value_fits(store):
    await store.set("k", b"abcdef")
    for size in (3, 6, 20):
        memory = memoryview(bytearray(size))
        (value,) = await store.fetch([Request("k", into=memory)])
        assert bytes(value.data) == b"abcdef"


async def test_bad_ranges_are_refused(store):
    with pytest.raises(ValueError, match="no length"):
        await store.get_partial_values([("k", (-3, 2))])
    with pytest.raises(ValueError, match="at least 0"):
        await store.get_partial_values([("k", (0, -1))])


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\ud800"])
async def test_dangerous_keys_are_refused(store, key):
    with pytest.raises(InvalidKeyError, match="not a valid store key") as error:
        await store.get(key)
    assert error.value.key == key
    with pytest.raises(InvalidKeyError):
        await store.set(key, b"x")
    with pytest.raises(InvalidKeyError):
        await store.put(key, b"x")
    with pytest.raises(InvalidKeyError):
        await store.stat(key)


@pytest.mark.parametrize("make", [stores.LocalStore, lambda path: stores.FsspecStore(fsspec.filesystem("file"), path)])
async def test_nothing_outside_of_a_folder_is_erased(tmp_path: Path, make: Callable[[str], Any]):
    (tmp_path / "precious").write_text("kept")
    store = make(str(tmp_path / "store"))
    await store.set("a", b"1")
    for erase in (store.erase, lambda key: store.erase_values([key])):
        with pytest.raises(InvalidKeyError, match=r"\.\./precious"):
            await erase("../precious")
    assert (tmp_path / "precious").read_text() == "kept"


async def test_keys_may_be_any_text(store):
    for key in ("ümläut/日本", "with space", "a.b-c_d", "...x", "UPPER", "upper"):
        await store.set(key, key.encode())
    for key in ("ümläut/日本", "with space", "a.b-c_d", "...x", "UPPER", "upper"):
        assert await store.get(key) == key.encode()


async def test_listing(store):
    for key in ("x", "a/b", "a/c/d", "a/c/e", "ab/f"):
        await store.set(key, b"1")
    assert sorted(await store.list()) == ["a/b", "a/c/d", "a/c/e", "ab/f", "x"]
    assert sorted(await store.list_prefix("a/")) == ["a/b", "a/c/d", "a/c/e"]
    assert await store.list_sizes("a/") == {"a/b": 1, "a/c/d": 1, "a/c/e": 1}
    assert await store.list_dir("") == Listing(("x",), ("a/", "ab/"))
    assert await store.list_dir("a/") == Listing(("a/b",), ("a/c/",))
    assert await store.list_dir("none/") == Listing((), ())
    with pytest.raises(InvalidKeyError, match="end with '/'"):
        await store.list_prefix("a")


async def test_listing_pages_past_a_thousand_keys(request, tmp_path):
    from tests.support.store_kinds import make_store

    for kind in ("s3", "local"):
        store = make_store(kind, request, tmp_path)
        keys = [f"d/{i:04}" for i in range(1203)]
        await asyncio.gather(*(store.set(key, b"") for key in keys))
        assert sorted(await store.list_prefix("d/")) == keys
        assert len((await store.list_dir("d/")).keys) == 1203
        await store.erase_values(keys[:1100])
        assert len(await store.list()) == 103
        await store.close()


async def test_erasing(store):
    for key in ("a/b", "a/c/d", "ab", "e"):
        await store.set(key, b"1")
    await store.erase("e")
    await store.erase("e")
    await store.erase("never")
    assert sorted(await store.list()) == ["a/b", "a/c/d", "ab"]
    await store.erase_prefix("a/")
    await store.erase_prefix("a/")
    assert await store.list() == ["ab"]
    await store.erase_values(["ab", "gone"])
    assert await store.list() == []
    await store.set("f", b"1")
    await store.erase_prefix("")
    assert await store.list() == []


async def test_partial_values_are_replaced(store):
    await store.set("k", b"hello")
    await store.set_partial_values([("k", 1, b"EL"), ("k", 7, b"!"), ("new", 2, b"x")])
    assert await store.get("k") == b"hELlo\0\0!"
    assert await store.get("new") == b"\0\0x"
    with pytest.raises(ValueError, match="0 or later"):
        await store.set_partial_values([("k", -1, b"x")])


async def test_written_memory_may_be_reused(store):
    data = bytearray(b"first")
    await store.set("k", data)
    data[:] = b"other"
    assert await store.get("k") == b"first"


async def test_creating_only(store):
    if not store.conditional:
        pytest.skip("the store does not compare versions")
    await store.put("k", b"1", if_version=ABSENT)
    with pytest.raises(WriteConflictError, match="changed meanwhile") as error:
        await store.put("k", b"2", if_version=ABSENT)
    assert error.value.key.endswith("k")
    assert await store.get("k") == b"1"


async def test_compare_and_swap(store):
    if not store.conditional:
        pytest.skip("the store does not compare versions")
    await store.set("k", b"1")
    (value,) = await store.fetch([Request("k")], versions=True)
    assert value.size == 1
    new = await store.put("k", b"2", if_version=value.version)
    with pytest.raises(WriteConflictError):
        await store.put("k", b"3", if_version=value.version)
    await store.put("k", b"4", if_version=new)
    assert await store.get("k") == b"4"
    assert [key for key in await store.list() if "k" in key] == ["k"]


async def test_a_write_whose_answer_is_lost_is_known_again(store):
    """Services keep the mark of a compared write beside the value."""
    if not (isinstance(store, RemoteStore) and store.conditional):
        pytest.skip("the store does not compare versions behind a network")
    await store.set("k", b"1")
    (value,) = await store.fetch([Request("k")], versions=True)

    async def write(expected: object, mark: str):
        await store._put_if("k", b"2", expected, mark)
        raise Unsure(StoreError("its answer was lost", key="k"), answered=False)

    version = await store._put_once(write, lambda: store._look("k"), value.version)
    assert version != value.version
    assert (await store.fetch([Request("k")], versions=True))[0].version == version


async def test_an_attempt_that_arrives_late_is_known_again():
    """It was given up, nothing had changed, and the next attempt found what it had stored after that."""

    class Late(RemoteStore):
        conditional = True
        settings = config.Config(retries=2)
        present = Present("1", None)

        async def put_late(self, version: object, mark: str) -> object:
            if self.mark is None:
                self.mark = mark
                raise Unsure(StoreError("its answer was lost", key="k"), answered=False)
            self.present = Present("2", self.mark)
            raise WriteConflictError("'k' was changed meanwhile", key="k")

        async def look(self) -> Present:
            return self.present

    Late.__abstractmethods__ = frozenset()
    late = Late()
    late.mark = None
    assert await late._put_once(late.put_late, late.look, "1") == "2"


async def test_a_store_pickles(store):
    if isinstance(store, stores.ZipStore):
        pytest.skip("an archive that is written belongs to one process")
    await store.set("k", b"v")
    other = pickle.loads(pickle.dumps(store))
    assert await other.get("k") == b"v"
    await other.close()
    await store.close()
    assert await store.get("k") == b"v"
    await store.close()


async def test_blocking_stores_never_suspend(store):
    if not store.blocking:
        pytest.skip("an asynchronous store")
    from zarrasync._concurrency.drive import drive

    drive(store.set("k", b"v"))
    assert drive(store.get("k")) == b"v"
    assert drive(store.list()) == ["k"]
    drive(store.close())


async def test_stores_close_in_a_with_block(store):
    async with store as inner:
        await inner.set("k", b"v")
    with store as inner:
        assert inner is store


async def test_store_works_in_one_loop_after_another(s3):
    url, options = s3
    store = stores.resolve(url, options)
    await asyncio.to_thread(lambda: asyncio.run(store.set("k", b"v")))
    assert await asyncio.to_thread(lambda: asyncio.run(store.get("k"))) == b"v"
    assert await store.get("k") == b"v"
    await store.close()


async def test_one_limiter_for_all_who_opened_the_same_data(s3):
    url, options = s3
    first, second = stores.resolve(url, options), stores.resolve(url, options)
    assert first == second
    assert first.limiter() is second.limiter()
    assert first.usual == 256
    assert first.concurrency == 512


class _Hashes(BaseHTTPRequestHandler):
    """Takes what is put, and notes what the signature says of it."""

    found: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        signed_url = "X-Amz-Signature=" in self.path  # which are never of what is sent
        self.found.append("UNSIGNED-PAYLOAD" if signed_url else self.headers["x-amz-content-sha256"])
        self.send_response(200)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("secure", [True, False])
async def test_what_tls_protects_is_not_hashed_once_more(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, secure: bool
):
    pytest.importorskip("obstore")
    monkeypatch.setattr(_Hashes, "found", [])
    value = b"value" * 100
    digest = hashlib.sha256(value).hexdigest()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hashes) as server:
        if secure:
            server.socket = certificate[1].wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options: dict[str, Any] = {
            "key": "k",
            "secret": "s",
            "endpoint_url": f"http{'s' * secure}://localhost:{server.server_port}",
        }
        if secure:
            options["client_options"] = {"allow_invalid_certificates": True}
        for more in ({}, {"aws_unsigned_payload": False}, {"aws_unsigned_payload": True}):
            async with stores.ObjectStore.from_url("s3://bucket/prefix", {**options, **more}) as store:
                await store.set("key", value)
        server.shutdown()
    assert _Hashes.found == ["UNSIGNED-PAYLOAD" if secure else digest, digest, "UNSIGNED-PAYLOAD"]


class _Bucket(BaseHTTPRequestHandler):
    """Answers each request with its path, and counts connections."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[list[object]] = []

    def setup(self) -> None:
        super().setup()
        self.connections.append(self.client_address)

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200)
        for name, value in (("etag", '"1"'), ("last-modified", formatdate(0, usegmt=True))):
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


async def test_stores_of_one_bucket_share_a_client(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(_Bucket, "connections", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bucket) as server:
        server.daemon_threads = True
        server.block_on_close = False  # connections are kept
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options: dict[str, Any] = {"anon": True, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
        for path in ("", "/a", "/a/b/", "/ü c"):
            async with stores.ObjectStore.from_url(f"s3://bucket{path}", options) as store:
                prefix = f"{path.strip('/')}/" if path else ""
                assert unquote(bytes(await store.get("k")).decode()) == f"/bucket/{prefix}k"
                assert pickle.loads(pickle.dumps(store)).location("k") == store.location("k")
        assert len(_Bucket.connections) == 1

        def store_with(**more: Any) -> Any:
            return stores.ObjectStore.from_url("s3://bucket/a", {**options, **more}).store

        assert store_with() is store_with()
        assert store_with() is not store_with(anon=False)
        assert store_with() is not store_with(client_options={"default_headers": {"a": "b"}})
        before = store_with()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        assert store_with() is not before  # it may be what the client signs with
        gone = weakref.ref(before)
        del before, store
        gc.collect()
        assert gone() is None  # another one was opened, and nobody uses it
        server.shutdown()


async def test_a_number_sign_is_part_of_the_path(s3):
    url, options = s3
    async with stores.resolve(f"{url}/a#b", options) as odd, stores.resolve(f"{url}/a", options) as plain:
        await odd.set("k", b"v")
        assert await plain.get("k") is None
        assert await odd.get("k") == b"v"


@pytest.mark.parametrize("path", ["a b/ü+&%", "x%20y"])
async def test_any_prefix(s3, path):
    """The same objects by the same URL through both backends, and in both directions."""
    url, options = s3
    ours = stores.resolve(f"{url}/{path}", options)
    assert isinstance(ours, stores.ObjectStore)
    theirs = stores.resolve(f"{url}/{path}", {**options, "backend": "fsspec"})
    await ours.set("c/0", b"ours")
    await theirs.set("c/1", b"theirs")
    for store in (ours, theirs):
        assert await store.list() == ["c/0", "c/1"]
        assert (await store.list_dir("")).prefixes == ("c/",)
        assert (await store.list_dir("c/")).keys == ("c/0", "c/1")
        assert await store.get("c/0") == b"ours"
        assert await store.get_partial_values([("c/1", (2, 3))]) == [b"eir"]
        await store.erase_prefix("d/")
    await ours.erase_prefix("c/")
    assert await theirs.list() == []
    for store in (ours, theirs):
        await store.close()


async def test_a_failing_server_is_an_error_and_never_absence(s3_endpoint):
    store = stores.resolve("s3://no-such-bucket-here/x", {"key": "a", "secret": "b", "endpoint_url": s3_endpoint})
    with pytest.raises(StoreError, match="could not write 'k'"):
        await store.set("k", b"v")
    await store.close()
    unreachable = stores.resolve("http://127.0.0.1:9/x", {"client_kwargs": {}})
    with pytest.raises(StoreError, match="could not read 'k'") as error:
        await unreachable.get("k")
    assert error.value.key == "k"
    await unreachable.close()


# ------------------------------------------------------------------ local files


async def test_local_writes_are_atomic_and_leave_nothing_behind(tmp_path):
    store = stores.LocalStore(tmp_path, fsync=True)
    await store.set("a/b", b"old")
    with pytest.raises(TypeError):
        await store.set("a/b", "not bytes")
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
    import os

    if os.geteuid() == 0:
        (tmp_path / "loop").symlink_to("loop")  # root may read anything but this
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


# ------------------------------------------------------------------ wrappers


async def test_read_only():
    store = stores.ReadOnlyStore(stores.MemoryStore({"k": b"v"}))
    assert await store.get("k") == b"v"
    for attempt in (store.set("k", b"w"), store.erase("k"), store.erase_values(["k"]), store.erase_prefix("")):
        with pytest.raises(ReadOnlyError, match="mode='r'"):
            await attempt
    assert await store.get("k") == b"v"


async def test_prefix_shares_locks_with_the_whole():
    inner = stores.MemoryStore()
    part = stores.PrefixStore(inner, "a/")
    await part.set("b", b"1")
    assert await inner.get("a/b") == b"1"
    async with part.lock("b"):
        task = asyncio.ensure_future(_take(inner.lock("a/b")))
        await asyncio.sleep(0)
        assert not task.done()
    await task


async def _take(lock):
    async with lock:
        pass


async def test_counting():
    store = stores.CountingStore(stores.MemoryStore())
    await store.set("k", b"12345")
    await store.get("k")
    await store.get_partial_values([("k", (0, 2)), ("no", (0, 2))])
    await store.list()
    await store.erase("k")
    counts = store.reset()
    assert (counts.puts, counts.bytes_written) == (1, 5)
    assert (counts.fetches, counts.absent, counts.bytes_read) == (3, 1, 7)
    assert (counts.lists, counts.erases, counts.requests) == (1, 1, 6)
    assert store.counts.requests == 0


# ------------------------------------------------------------------ what stands for a store


def test_resolving(tmp_path):
    values: dict[str, bytes] = {}
    assert stores.resolve(values).values is values
    assert isinstance(stores.resolve(None), stores.MemoryStore)
    assert stores.resolve(tmp_path) == stores.resolve(str(tmp_path)) == stores.resolve(f"file://{tmp_path}")
    mapper = fsspec.get_mapper("memory://somewhere")
    assert isinstance(stores.resolve(mapper), stores.FsspecStore)
    assert isinstance(stores.resolve(mapper.fs), stores.FsspecStore)
    store = stores.MemoryStore()
    assert stores.resolve(store) is store
    with pytest.raises(TypeError, match="int is not a store"):
        stores.resolve(3)
    with pytest.raises(TypeError, match="storage_options are for URLs"):
        stores.resolve(Path(tmp_path), {"anon": True})
    with pytest.raises(ValueError, match="nosuch"):
        stores.resolve("nosuch://x")


def test_secrets_do_not_show(s3):
    url, options = s3
    store = stores.resolve(url, {**options, "secret": "hush-hush"})
    assert "hush-hush" not in repr(store)
    signed = stores.resolve("http://127.0.0.1:9/x.zarr?signature=hush-hush")
    assert "hush-hush" not in repr(signed)


async def test_listing_below_a_prefix_that_is_also_a_key():
    store = stores.resolve(f"memory://{id(stores)}")
    await store.set("foo", b"1")
    await store.set("bar/x", b"1")
    assert await store.list_prefix("foo/") == []
    await store.erase_prefix("foo/")
    assert await store.get("foo") == b"1"
    root = stores.FsspecStore(fsspec.filesystem("memory"))
    assert all(not key.startswith("/") for key in await root.list())
    await store.erase_prefix("")


def test_local_files_through_fsspec_are_the_local_store(tmp_path):
    for given in (f"local://{tmp_path}", fsspec.get_mapper(str(tmp_path)), fsspec.filesystem("file")):
        assert isinstance(stores.resolve(given), stores.LocalStore)


# ------------------------------------------------------------------ zip archives


def archive(path: Path, method: int) -> dict[str, bytes]:
    values = {"a/b": b"hello", "a/c/d": bytes(range(256)) * 40, "empty": b"", "ü": b"1"}
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("a/", b"")
        file.writestr("a/b", b"old")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the second member of a name
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
        assert await store.get("a/b") == b"hello"  # opened again
    assert await pickle.loads(pickle.dumps(stores.ZipStore(tmp_path / "x.zip"))).get("a/b") == b"hello"
    with pytest.raises(TypeError, match="give a path"):
        pickle.dumps(store)


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
    with pytest.raises(StoreError, match="no file"):
        await stores.ZipStore(tmp_path / "none.zip").get("a/b")
    with pytest.raises(StoreError, match="not a readable zip archive"):
        await stores.ZipStore(tmp_path / "other.zip", mode="a").set("k", b"v")
    assert (tmp_path / "other.zip").read_bytes() == b"PK" * 40


# ------------------------------------------------------------------ archives that are written


def test_archives_are_written(tmp_path: Path):
    """What is written, replaced and erased is what others read, too."""
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


def test_modes_of_archives(tmp_path: Path):
    path = tmp_path / "a.zip"
    with pytest.raises(ValueError, match="mode is"):
        stores.ZipStore(path, mode="r+")
    with stores.ZipStore(path, mode="x") as store:
        sync.create_group(store)
        with pytest.raises(TypeError, match="one process alone"):
            pickle.dumps(store)
        with pytest.raises(StoreError, match="another process"):
            sync.open_group(stores.ZipStore(path, mode="a"))
    with pytest.raises(StoreError, match="there already"):
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
    """As after a crash, with values that look like the end of an archive."""
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


# ------------------------------------------------------------------ archives in other stores


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
    with pytest.raises(StoreError, match="no value 'none.zip'"):
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
    """A full disk: the older value stays, and so does the archive."""
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
            store._archive._finish()
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


def test_waiting_for_another_process_can_be_given_up(tmp_path: Path):
    """A process that holds a value and stands still must not hold up this one for ever."""
    code = (
        "import asyncio, sys; from zarrasync import stores\n"
        "async def hold():\n"
        f"    async with stores.LocalStore({str(tmp_path)!r}).lock('k'):\n"
        "        print('held', flush=True); sys.stdin.readline()\n"
        "asyncio.run(hold())"
    )
    pipes = {
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
def test_what_is_no_archive(given: Any):
    with pytest.raises(
        TypeError, match=f"a ZipStore is made of a path or of a file open for bytes, found {type(given).__name__}"
    ):
        stores.ZipStore(given)


class Piecemeal(io.RawIOBase):
    """A file that gives less than it is asked for."""

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
    archive = stores.ZipStore(file)
    np.testing.assert_array_equal(sync.open_array(archive)[...], np.arange(1000))
    del archive
    gc.collect()
    assert not file.closed  # it is its owner's
