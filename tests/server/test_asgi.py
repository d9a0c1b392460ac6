"""The server as an application of ASGI: mounted in FastAPI, with clients that leave or read slowly."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("cmap", reason="the server's extra is not installed")
from tests.support.server_client import FIELD, fill, serving
from zarrasync import stores, sync
from zarrasync.server import Limits, Service, asgi
from zarrasync.testing import LatencyStore


@pytest.fixture(autouse=True)
def on_asgi(monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    monkeypatch.setenv("FRAMEWORK", "asgi")


@pytest.mark.servers
@pytest.mark.smoke
async def test_mounted_in_fastapi(tmp_path):
    """Below a prefix, for zarrasync as the client, with the lifespan that closes the store."""
    fill(tmp_path)
    closed = []

    class Closing(stores.WrapperStore):
        async def close(self) -> None:
            closed.append(True)
            await super().close()

    async with serving(Closing(stores.LocalStore(tmp_path)), prefix="/data/one") as client:
        found = await asyncio.to_thread(lambda: sync.open_array(f"{client.base}/zarr", path="a/field")[...])
        np.testing.assert_array_equal(found, FIELD)
        document = await client.json("/openapi.json")
        assert document["servers"] == [{"url": "/data/one"}]
        assert "/api/tiles/{z}/{x}/{y}.png" in document["paths"]
        assert (await client.get("/"))[0] == 200
        assert (await client.json("/nothing", 404))["error"] == "NotFound"
        assert not closed
    assert closed == [True]


@pytest.mark.servers
async def test_a_disconnect_cancels_the_work():
    """Of a response that is computed, and of one that is sent."""
    store: dict[str, bytes] = {"big": os.urandom(64 << 20)}
    sync.create_array(store, name="a", data=np.arange(4000), chunks=1, compressors=None)
    slow = LatencyStore(stores.MemoryStore(store), 0.02, concurrency=4)
    async with serving(slow, cache_bytes=0) as client:
        await client.get("/api/node?path=a")
        before = client.upstream
        request = asyncio.ensure_future(client.get("/api/data?path=a"))  # 20 seconds of work
        while client.upstream - before < 8:
            await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await asyncio.sleep(0.2)
        settled = client.upstream
        await asyncio.sleep(0.4)
        assert client.upstream == settled < before + 200
        assert b'status="499"' in client.core.metrics.text()
        async with client.session.get(f"{client.base}/raw/big") as answer:
            await answer.content.read(1 << 20)
        await asyncio.sleep(0.2)
        settled = client.upstream
        await asyncio.sleep(0.4)
        assert client.upstream == settled
        assert b"zarrasync_active_requests 0.0" in client.core.metrics.text()


@pytest.mark.servers
async def test_slow_clients_release_the_memory_of_responses():
    store: dict[str, bytes] = {}
    values = np.random.default_rng(0).random((4, 1 << 20))
    sync.create_array(store, name="a", data=values)
    limits = Limits(max_pending_bytes=40 << 20, timeout=4.0)
    async with serving(store, limits=limits) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.base.rpartition(":")[2]))
        writer.write(b"GET /api/data?path=a&format=bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readexactly(1000)  # and no more
        assert (await client.get("/api/data?path=a&format=bin"))[0] == 503
        await asyncio.sleep(5)
        status, body, _ = await client.get("/api/data?path=a&format=bin")
        assert (status, body) == (200, values.tobytes())
        writer.close()


async def ask(app: Any, path: str, **scope: Any) -> list[dict[str, Any]]:
    """Return the messages of an application's response, without a server."""
    sent: list[dict[str, Any]] = []
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    http = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", b"x")]}
    await app({**http, "http_version": "1.1", **scope}, receive, send)
    return sent


async def test_scopes_without_a_server():
    """Sockets without addresses, ``HEAD``, several services, and WebSockets, which are refused."""
    first, second = ({}, {})
    sync.create_array(first, name="a", data=np.arange(3))
    sync.create_array(second, name="b", data=np.arange(4))
    app = asgi.create_app({"one": Service(first), "two": Service(second)}, root_path="/outer")
    start, *body = await ask(app, "/two/api/data", query_string=b"path=b")
    assert start["status"] == 200
    assert b'"data":[0,1,2,3]' in b"".join(message["body"] for message in body)
    start, *body = await ask(app, "/one/api/data", query_string=b"path=a", method="HEAD")
    assert dict(start["headers"])[b"content-length"] == b"69"
    assert b"".join(message["body"] for message in body) == b""
    assert dict((await ask(app, "/one"))[0]["headers"])[b"location"] == b"/outer/one/"
    assert (await ask(app, "/three/"))[0]["status"] == 404
    refused = await ask(app, "/one/", type="websocket", scheme="ws")
    assert [message["type"] for message in refused] == ["websocket.close"]
