"""Objects through obstore: clients, signatures, prefixes, writes that are made again."""

from __future__ import annotations

import gc
import hashlib
import pickle
import ssl
import threading
import weakref
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pytest

from zarrasync import config, stores, sync
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import Request
from zarrasync.stores.remote import CurrentValue, RemoteStore, UnknownOutcome


async def test_a_write_with_a_lost_response_is_recognized(store):
    """A conditional write is recognized by the mark in the metadata of the object."""
    if not (isinstance(store, RemoteStore) and store.conditional):
        pytest.skip("the store does not compare versions behind a network")
    await store.set("k", b"1")
    (value,) = await store.fetch([Request("k")], versions=True)
    remote: Any = store  # its subclasses define the methods below

    async def write(expected: object, mark: str):
        await remote._put_if("k", b"2", expected, mark)
        raise UnknownOutcome(StoreError("its answer was lost", key="k"), answered=False)

    version = await remote._put_if_unchanged(write, lambda: remote._look_up("k"), value.version)
    assert version != value.version
    assert (await store.fetch([Request("k")], versions=True))[0].version == version


async def test_a_late_attempt_is_recognized():
    """An attempt that was given up took effect later, and the next attempt recognizes its value."""

    class Late(RemoteStore):
        conditional = True
        settings = config.Config(retries=2)
        present = CurrentValue("1", None)
        mark: str | None = None

        async def put_late(self, version: object, mark: str) -> object:
            if self.mark is None:
                self.mark = mark
                raise UnknownOutcome(StoreError("its answer was lost", key="k"), answered=False)
            self.present = CurrentValue("2", self.mark)
            raise WriteConflictError("'k' was changed meanwhile", key="k")

        async def look(self) -> CurrentValue:
            return self.present

    Late.__abstractmethods__ = frozenset()
    late = Late()  # type: ignore[abstract]  # the rest is not called
    assert await late._put_if_unchanged(late.put_late, late.look, "1") == "2"


async def test_stores_of_the_same_data_share_a_limiter(s3):
    url, options = s3
    first, second = stores.resolve(url, options), stores.resolve(url, options)
    assert first == second
    assert first.limiter() is second.limiter()
    assert isinstance(first, stores.ObjectStore)
    assert first.initial_concurrency == 256
    assert first.concurrency == 512


class _Hashes(BaseHTTPRequestHandler):
    """Accepts writes, and records the digest in their signature."""

    found: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        signed_url = "X-Amz-Signature=" in self.path  # signed URLs never cover the payload
        self.found.append("UNSIGNED-PAYLOAD" if signed_url else self.headers["x-amz-content-sha256"])
        self.send_response(200)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("secure", [True, False])
async def test_payloads_are_not_signed_over_tls(
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
    """Answers each request with its path, and records connections."""

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


@pytest.mark.servers
async def test_stores_of_one_bucket_share_a_client(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(_Bucket, "connections", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bucket) as server:
        server.daemon_threads = True
        server.block_on_close = False  # connections stay open
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
        assert store_with() is not before  # the client may sign with the variable
        gone = weakref.ref(before)
        del before, store
        gc.collect()
        assert gone() is None  # another client was created, and this one is unused
        server.shutdown()


async def test_a_number_sign_is_part_of_the_path(s3):
    url, options = s3
    async with stores.resolve(f"{url}/a#b", options) as odd, stores.resolve(f"{url}/a", options) as plain:
        await odd.set("k", b"v")
        assert await plain.get("k") is None
        assert await odd.get("k") == b"v"


@pytest.mark.smoke
@pytest.mark.parametrize("path", ["a b/ü+&%", "x%20y"])
async def test_any_prefix(s3, path):
    """Both backends address the same objects by the same URL."""
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


def test_files_and_memory_are_near(tmp_path: Path):
    """Values of obstore's stores in this machine need no precautions against slow networks and missing credentials."""
    obstore = pytest.importorskip("obstore")
    for near in obstore.store.LocalStore(tmp_path), obstore.store.MemoryStore():
        assert stores.ObjectStore(near).is_local
    assert not stores.ObjectStore(obstore.store.S3Store("bucket", region="x", skip_signature=True)).is_local


async def test_an_unreadable_member_of_files_hides_no_sibling(tmp_path: Path):
    obstore = pytest.importorskip("obstore")
    group = sync.create_group(tmp_path)
    group.create_array("bad", shape=3, dtype="u1")
    (tmp_path / "bad" / "zarr.json").unlink()
    (tmp_path / "bad" / "zarr.json").symlink_to("/proc/self/mem" if Path("/proc/self/mem").exists() else "/dev/mem")
    opened = sync.open_group(obstore.store.LocalStore(tmp_path))
    with pytest.warns(UserWarning, match="/bad cannot be read and is omitted"):
        assert opened.keys() == ()
