"""Who may read what: host names, other origins, hidden files, links, members that cannot be read."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.support.mutations import mutate
from tests.support.server_client import serving
from zarrasync import sync
from zarrasync.server import Limits, create_app

pytestmark = pytest.mark.servers

COUNT = int(os.environ.get("ZARRASYNC_FUZZ", "300"))
SEED = int(os.environ.get("ZARRASYNC_FUZZ_SEED", "1"))

LOCAL = [
    "localhost",
    "LOCALHOST:80",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:8000",
    "[::1]",
    "[::1]:8000",
    "a.localhost:1",
]
FOREIGN = [
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", "", ":80",
    "localhost:80@evil.example", "localhost evil", "2130706433", "[evil]", "127.0.0.1:80:80", "x" * 300, "0x7f.1",
]  # fmt: skip


async def ask(base: str, request: bytes) -> bytes:
    """Send a request, and return everything until the connection ends."""
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def status_of(base: str, *lines: str, path: str = "/healthz", version: str = "1.1") -> int:
    head = "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/{version}", *lines, "Connection: close", ""))
    return int((await ask(base, head.encode("latin-1"))).split()[1])


async def test_host_names_of_a_local_server():
    async with serving({"x": b"1"}) as client:
        for name in LOCAL:
            assert await status_of(client.base, f"Host: {name}") == 200, name
        for name in FOREIGN:
            for path in ("/healthz", "/raw/x", "/zarr/zarr.json", "/api/node", "/", "/nowhere", "/static/viewer.js"):
                assert await status_of(client.base, f"Host: {name}", path=path) == 421, (name, path)
        assert await status_of(client.base) == 400
        assert await status_of(client.base, "Host: localhost", "Host: evil.example") == 400
        assert await status_of(client.base, version="1.0") == 200


async def test_host_names_that_are_allowed():
    async with serving({"x": b"1"}, allow_hosts=["Data.Example"]) as client:
        for name, status in (("data.example:80", 200), ("localhost", 200), ("127.0.0.1", 200), ("x.data.example", 421)):
            assert await status_of(client.base, f"Host: {name}") == status
    async with serving({"x": b"1"}, allow_hosts=["*"]) as client:
        assert await status_of(client.base, "Host: evil.example") == 200
    with pytest.raises(TypeError, match="allow_hosts is a list"):
        create_app({}, allow_hosts="data.example")


@pytest.mark.parametrize(
    ("cors", "origin", "allowed"),
    [
        (None, "https://a.example", None),
        ([], "https://a.example", None),
        (["*"], "https://a.example", "*"),
        (["https://a.example"], "https://a.example", "https://a.example"),
        (["https://a.example/"], "https://b.example", None),
        (["https://a.example"], "null", None),
        (["https://a.example"], None, None),
    ],
)
async def test_pages_of_other_origins(cors: Any, origin: str | None, allowed: str | None):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(3))
    headers = {} if origin is None else {"Origin": origin}
    async with serving(store, allow_origins=cors) as client:
        for path in ("/raw/a/zarr.json", "/api/node?path=a", "/nowhere", "/raw/none", "/"):
            _, _, found = await client.get(path, **headers)
            assert found.get("Access-Control-Allow-Origin") == allowed
            assert ("Origin" in found.get("Vary", "")) == bool(cors and "*" not in cors)
            assert found.get("Cross-Origin-Resource-Policy") == (None if cors else "same-origin")
        status, _, found = await client.get("/raw/a/zarr.json", method="OPTIONS", **headers)
        assert (status, found.get("Access-Control-Allow-Origin")) == (204, allowed)
        assert ("Access-Control-Allow-Methods" in found) == (allowed is not None)


async def test_hidden_files(tmp_path: Path):
    sync.create_array(tmp_path / "x.zarr", name="a", data=np.arange(3), zarr_format=2)
    for name in (".env", ".git/config", "a/.secret", "a/0.0.1-0.zarrasync-partial"):
        (tmp_path / "x.zarr" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "x.zarr" / name).write_bytes(b"TOP")
    hidden = ["/raw/.env", "/raw/.git/config", "/raw/a/.secret", "/raw/%2eenv", "/raw/.git%2fconfig"]
    reserved = "/raw/a/0.0.1-0.zarrasync-partial"  # a temporary file: its name is no valid key
    async with serving(tmp_path / "x.zarr") as client:
        for path in (*hidden, reserved):
            for method in ("GET", "HEAD"):
                status, body, _ = await client.get(path, method=method)
                assert (status, b"TOP" in body) == (400 if path == reserved else 404, False), path
        for path in ("/raw/.zgroup", "/raw/a/.zarray", "/raw/a/.zattrs", "/raw/a/0"):
            assert (await client.get(path))[0] in (200, 404 if "zattrs" in path else 200)
    async with serving(tmp_path / "x.zarr", hidden=True) as client:
        for path in hidden:
            assert (await client.get(path))[:2] == (200, b"TOP")
        assert (await client.get(reserved))[0] == 400


@pytest.mark.skipif(os.name != "posix", reason="needs links")
async def test_links_out_of_the_directory(tmp_path: Path):
    """Neither a file, a chunk nor a group outside is read, and a chunk that is not read is no fill value."""
    root = tmp_path / "x.zarr"
    group = sync.create_group(root)
    group.create_array("a", data=np.arange(6, dtype="u1"), chunks=3, compressors=None)
    (tmp_path / "secret").write_bytes(b"123")
    sync.create_array(tmp_path / "other.zarr", name="b", data=np.arange(3, dtype="u1"), compressors=None)
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")  # contains the link, so listings leave it out
    (root / "inside").symlink_to("a")
    (root / "outside").symlink_to(tmp_path / "other.zarr")
    (root / "a" / "c" / "1").unlink()
    (root / "a" / "c" / "1").symlink_to(tmp_path / "secret")
    outside = ["/raw/link", "/raw/up/secret", "/raw/a/c/1", "/raw/outside/b/c/0", "/raw/outside/b/zarr.json"]
    outside += ["/zarr/a/c/1", "/zarr/outside/b/c/0", "/zarr/outside/b/zarr.json", "/api/node?path=outside/b"]
    outside += ["/api/data?path=outside/b", "/api/data?path=a", "/api/node?path=outside"]
    async with serving(root) as client:
        for path in outside:
            for method in ("GET", "HEAD"):
                status, body, _ = await client.get(path, method=method)
                assert status == 403, (path, status, body)
                assert str(tmp_path).encode() not in body
        assert (await client.get("/raw/a/c/0"))[:2] == (200, b"\0\1\2")
        assert (await client.get("/raw/inside/c/0"))[:2] == (200, b"\0\1\2")
        assert (await client.json("/api/data?path=a&select=:3"))["data"] == [0, 1, 2]
        members = (await client.json("/api/node"))["members"]
        kinds = {each["name"]: each["kind"] for each in members}
        assert kinds == {"a": "array", "inside": "array", "outside": "broken"}
    async with serving(root, follow_links=True) as client:
        assert (await client.get("/raw/link"))[:2] == (200, b"123")
        assert (await client.json("/api/data?path=outside/b"))["data"] == [0, 1, 2]


@pytest.mark.skipif(os.name != "posix", reason="needs special files")
async def test_members_that_cannot_be_read(tmp_path: Path):
    group = sync.create_group(tmp_path)
    group.create_array("a", data=np.arange(3))
    group.create_array("g/also", data=np.arange(3))
    for name in ("fifo", "loop", "invalid"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo" / "zarr.json")
    (tmp_path / "loop" / "zarr.json").symlink_to("zarr.json")
    (tmp_path / "invalid" / "zarr.json").write_bytes(b"[")
    async with serving(tmp_path) as client:
        members = (await client.json("/api/node"))["members"]
        kinds = {each["name"]: each["kind"] for each in members}
        assert kinds == {"a": "array", "g": "group", "fifo": "broken", "loop": "broken", "invalid": "broken"}
        document = await client.json("/zarr/zarr.json")
        assert sorted(document["consolidated_metadata"]["metadata"]) == ["a", "g", "g/also"]
        for path in ("/api/node?path=fifo", "/raw/fifo/zarr.json", "/raw/loop/zarr.json"):
            assert (await client.get(path))[0] in (500, 502)
        assert (await client.get("/healthz"))[0] == 200


# ------------------------------------------------------------------ malformed requests

START = b"GET /raw/x HTTP/1.1\r\nHost: localhost\r\n"
MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET\r\n\r\n",
    b"GET /raw/x\r\n\r\n",
    b"GET /raw/x HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET /raw/x HTTP/1.1\r\n Host: localhost\r\n\r\n",
    START + b"A b: c\r\n\r\n",
    START + b": c\r\n\r\n",
    START + b"A: b\0c\r\n\r\n",
    START + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
    START + b"Content-Length: +1\r\n\r\n",
    START + b"Content-Length: -5\r\n\r\n",
    START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n",
    START + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    START + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET /raw/x?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/node?" + b"&".join(b"a=%d" % n for n in range(20_000)) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


async def test_malformed_requests():
    async with serving({"x": b"12345"}, limits=Limits(head_timeout=1.0, idle_timeout=1.0)) as client:
        for request in MALFORMED:
            answer = await ask(client.base, request)
            assert answer == b"" or answer[9:10] == b"4", (request[:80], answer[:200])
            assert b"Traceback" not in answer
            assert (await client.get("/healthz"))[0] == 200


async def test_bodies_and_methods():
    async with serving({"x": b"12345"}, limits=Limits(head_timeout=1.0, idle_timeout=1.0)) as client:
        body = START.replace(b"GET", b"PUT") + b"Content-Length: 5\r\nConnection: close\r\n\r\n12345"
        assert b" 405 " in await ask(client.base, body)
        chunked = START + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\n12345\r\n0\r\n\r\n"
        assert (await ask(client.base, chunked)).endswith(b"12345")
        for method in (b"TRACE", b"POST", b"DELETE", b"PATCH", b"BREW"):
            assert b" 40" in (await ask(client.base, START.replace(b"GET", method) + b"Connection: close\r\n\r\n"))[:13]
        pipelined = (START + b"\r\n") * 50 + START + b"Connection: close\r\n\r\n"
        assert (await ask(client.base, pipelined)).count(b"HTTP/1.1 200") == 51
        old = b"GET /raw/x HTTP/1.0\r\n\r\n"
        assert (await ask(client.base, old)).endswith(b"12345")


async def test_byte_ranges_are_not_multiplied():
    async with serving({"x": b"12345"}) as client:
        for ranges in ("0-1,3-4", ",".join(["0-"] * 1000), "0-0," * 200):
            status, body, _ = await client.get("/raw/x", Range=f"bytes={ranges}")
            assert (status, body) == (200, b"12345")


async def test_changed_requests():
    """Random changes of valid requests: an answer or the end of the connection, and never an internal error."""
    store: dict[str, bytes] = {"x": b"12345"}
    sync.create_array(store, name="a", data=np.arange(12).reshape(3, 4), chunks=2)
    paths = [b"/raw/x", b"/api/data?path=a&select=0,1:3&format=csv", b"/zarr/a/c/0/0", b"/healthz", b"/api/node?path=a"]
    paths += [b"/api/tiles/0/0/0.png?path=a&low=0&high=9", b"/api/stats?path=a&bins=7", b"/api/view?path=a", b"/"]
    tail = b'Range: bytes=0-3\r\nIf-None-Match: "a"\r\nIf-Range: "b"\r\nOrigin: http://a\r\nConnection: close\r\n\r\n'
    messages = [b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + tail for path in paths]
    messages.append(messages[0].replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
    chance, seen = random.Random(SEED), set[bytes]()
    async with serving(store, limits=Limits(head_timeout=0.2, idle_timeout=1.0)) as client:
        for start in range(0, COUNT, 50):
            requests = [mutate(messages, chance) for _ in range(min(50, COUNT - start))]
            for request, answer in zip(
                requests, await asyncio.gather(*(ask(client.base, r) for r in requests)), strict=True
            ):
                assert answer == b"" or answer.startswith(b"HTTP/"), (request, answer[:300])
                assert not (answer[9:12] >= b"500" and b"InternalError" in answer), (request, answer[:300])
                seen.add(answer[9:12])
            assert (await client.get("/healthz"))[0] == 200
    assert {b"200", b"400"} <= seen
