"""Requests that the server refuses or ends, and errors that it reports."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
import aiohttp

import zarrasync as za
from tests.support.server_client import serving
from zarrasync import stores, sync
from zarrasync.server import Limits, create_app
from zarrasync.server.aiohttp_app import CORE
from zarrasync.testing import FaultyStore, LatencyStore


@pytest.mark.parametrize(
    ("name", "value"), [("max_age", math.nan), ("cache_bytes", -1), ("timeout", math.nan), ("max_cells", 0)]
)
def test_limits_are_checked(name: str, value: float):
    setting: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        create_app({}, limits=Limits(**setting)) if name in ("timeout", "max_cells") else create_app({}, **setting)
    assert math.isinf(create_app({}, max_age=math.inf)[CORE].services[""].max_age)


HOSTILE = [
    ("/raw/../etc/passwd", 400),
    ("/raw/%2e%2e/%2e%2e/etc/passwd", 400),
    ("/raw/..%2f..%2fetc%2fpasswd", 400),
    ("/raw//etc/passwd", 400),
    ("/raw/%2Fetc/passwd", 400),
    ("/raw/a%00b", 400),
    ("/raw/a/./b", 400),
    ("/raw/..%5c..%5cetc", 404),
    ("/zarr/../zarr.json", 400),
    ("/zarr/f/c/" + "9" * 30, 404),
    ("/zarr/f/c/" + "/".join(["0"] * 900), 400),
    ("/zarr/" + "/".join(["0"] * 50), 404),
    ("/api/node?path=" + "/".join(["x"] * 100), 400),
    ("/zarr/f/c/-1/0", 404),
    ("/static/..%2fapp.py", 404),
    ("/static/../app.py", 404),
    ("/api/node?path=../../etc", 400),
    ("/api/node?path=%00", 400),
    ("/api/data?path=f&select=1e9", 400),
    ("/api/data?path=f&select=::0", 400),
    ("/api/data?path=f&select=0,0,0,0", 400),
    ("/api/data?path=f&select=99999999999999999999", 400),
    ("/api/data?path=f&select=__import__('os')", 400),
    ("/api/data?path=f&select=.,.", 400),
    ("/api/data?path=f&select=...,...", 400),
    ("/api/data?path=f&format=exe", 400),
    ("/api/data?path=f", 413),
    ("/api/data?path=f&select=::1000&format=npy", 413),
    ("/api/data?path=f&format=npy", 413),
    ("/api/data?path=f&format=png", 413),
    ("/api/data?path=s", 413),
    ("/api/data?path=long&select=::1001", 413),
    ("/api/data?path=long&select=::1001&format=npy", 413),
    ("/raw/" + "a" * 300, 400),
    ("/api/tiles/3/0/0.png?path=f&low=0&high=1", 413),
    ("/api/tiles/99/0/0.png?path=f", 400),
    ("/api/tiles/0/999999999/0.png?path=f", 400),
    ("/api/tiles/-1/0/0.png?path=f", 404),
    ("/api/tiles/0/0/0.png?path=f&low=nan", 400),
    ("/api/tiles/0/0/0.png?path=f&low=x&high=1", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&cmap=../../x", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&scale=cubic", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&index=0", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&origin=left", 400),
    ("/api/stats?path=f&bins=0", 400),
    ("/api/stats?path=f&bins=99999999999", 400),
    ("/api/stats?path=one", 400),
    ("/api/view?path=one", 400),
    ("/api/view?path=", 400),
    ("/api/data?path=", 400),
]


@pytest.mark.servers
async def test_hostile_requests_cost_nothing():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    root.create_array("f", shape=(60_000_000, 60_000_000), dtype="f8", chunks=(1000, 1000))
    root.create_array("s", shape=(3_000_000,), dtype="i1", chunks=100)
    root.create_array("one", shape=(5,), dtype="i1")
    root.create_array("long", shape=(10**15,), dtype="i1", chunks=1000)
    async with serving(store) as client:
        for path in ("f", "s", "one", ""):
            await client.get(f"/api/node?path={path}")
        before, memory = client.upstream, peak_memory()
        for path, status in HOSTILE:
            found, body, _ = await client.get(path)
            assert found == status, (path, found, body)
            assert "Traceback" not in body.decode()
            if found in (400, 413):
                assert json.loads(body)["message"]
        assert client.upstream - before < 60  # missing keys were requested, but no chunk was read
        assert peak_memory() - memory < 80 << 20  # includes the colour maps, which the first picture loads
        assert (await client.get("/healthz"))[0] == 200


def peak_memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.servers
async def test_excess_requests_get_retry_after():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(4000).reshape(400, 10), chunks=(1, 10))
    slow = LatencyStore(stores.MemoryStore(store), 0.1)
    async with serving(slow, limits=Limits(active=2, waiting=3), cache_bytes=0) as client:
        await client.get("/api/data?path=a&select=0")
        answers = await asyncio.gather(*(client.get(f"/api/data?path=a&select={n}") for n in range(20)))
        statuses = [status for status, _, _ in answers]
        assert statuses.count(200) >= 5
        assert statuses.count(503) >= 10
        assert all(headers["Retry-After"] == "1" for status, _, headers in answers if status == 503)
        assert (await client.get("/api/data?path=a&select=1"))[0] == 200


@pytest.mark.servers
async def test_large_bodies_of_requests_are_counted_before_they_are_admitted():
    begun, rest = asyncio.Event(), asyncio.Event()

    async def slow_body():
        begun.set()  # the server has asked for the body
        yield b" "
        await rest.wait()
        yield b"{}"

    async with serving({}, limits=Limits(max_pending_bytes=1 << 21)) as client:

        async def post(body: Any, **options: Any) -> int:
            url, headers = f"{client.base}/edr/collections/none/position", {"Content-Type": "application/json"}
            async with client.session.post(url, data=body, headers=headers, **options) as answer:
                return answer.status

        slow = asyncio.ensure_future(post(slow_body(), expect100=True))
        await begun.wait()
        assert await post(b" " * 100_000 + b"{}") == 503
        assert await post(b"{}") == 400  # small ones have room
        geojson = {"data": b" " * 10_000 + b"{}", "headers": {"Content-Type": "application/geo+json"}}
        async with client.session.post(f"{client.base}/statistics?variable=none", **geojson) as answer:
            assert answer.status == 503  # whose numbers need more memory than the document
        rest.set()
        assert await slow == 400
        assert await post(b" " * 100_000 + b"{}") == 400


@pytest.mark.servers
async def test_slow_requests_time_out():
    slow = LatencyStore(stores.MemoryStore({"x": b"1"}), 30)
    async with serving(slow, limits=Limits(timeout=0.2)) as client:
        begin = time.monotonic()
        assert (await client.get("/raw/x"))[0] == 504
        assert time.monotonic() - begin < 10


@pytest.mark.servers
async def test_a_failing_store_is_a_bad_gateway():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(10), compressors="gzip")
    faulty = FaultyStore(stores.MemoryStore(store), 1.0)
    async with serving(faulty) as client:
        for path in ("/raw/a/zarr.json", "/api/data?path=a", "/zarr/a/c/0", "/api/node?path=a"):
            status, body, _ = await client.get(path)
            assert status == 502, body
        assert (await client.get("/healthz"))[0] == 503
    store["a/c/0"] = b"damaged"
    async with serving(store) as client:
        assert (await client.json("/api/data?path=a", 500))["error"] == "CodecError"


@pytest.mark.servers
@pytest.mark.parametrize("broken", ["lat/zarr.json", "lat/c/0", "v/zarr.json", "lat_bounds/zarr.json"])
async def test_failures_of_a_store_are_not_absence(broken: str):
    """A response without an array that cannot be read now would be wrong, and be reused for a while."""
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    for name, unit in {"lat": "degrees_north", "lon": "degrees_east"}.items():
        attributes = {"units": unit, "bounds": f"{name}_bounds"}
        group.create_array(name, data=np.arange(3.0), dimension_names=[name], attributes=attributes)
        group.create_array(f"{name}_bounds", data=np.zeros((3, 2)), dimension_names=[name, "nv"])
    group.create_array("v", data=np.ones((3, 3)), dimension_names=["lat", "lon"])
    paths = [
        "/api/node",
        "/api/search",
        "/api/axes?path=v",
        "/edr/collections",
        "/edr/collections/root",
        "/zarr/zarr.json",
    ]
    paths += ["/api/view?path=v", "/edr/collections/root/position?coords=POINT(1%201)", "/api/data?path=lat_bounds"]
    async with serving(store) as client:
        wanted = [(await client.get(path))[1].replace(client.base.encode(), b"") for path in paths]
    is_failing = True
    failing = FaultyStore(stores.MemoryStore(store), fails=lambda operation, key: is_failing and key == broken)
    failing.is_local = False
    async with serving(failing) as client:
        for path, body in zip(paths, wanted, strict=True):
            status, found, _ = await client.get(path)
            assert status == 502 or found.replace(client.base.encode(), b"") == body
        is_failing = False
        for path, body in zip(paths, wanted, strict=True):
            assert (await client.get(path))[1].replace(client.base.encode(), b"") == body


@pytest.mark.servers
async def test_time_limits_of_stores_have_no_messages():
    def fails(operation: str, key: str) -> bool:
        raise TimeoutError(f"Connection timeout to host https://user:SECRET@host/{key}")

    async with serving(FaultyStore(stores.MemoryStore(), fails=fails)) as client:
        body = await client.json("/raw/x", 504)
        assert body["message"] == "the time limit was exceeded"


class Failing(stores.WrapperStore):
    """A store that fails beyond the first 8 MiB of a value."""

    async def fetch(self, requests, *, versions=False):
        if any(request.start >= 8 << 20 for request in requests):
            raise za.errors.StoreError("it fell over at http://host/secret?sig=SECRET")
        return await super().fetch(requests, versions=versions)


@pytest.mark.servers
async def test_a_value_that_breaks_off_breaks_the_connection():
    """The body must not contain a second response."""
    value = os.urandom(12 << 20)
    async with serving(Failing(stores.MemoryStore({"big": value}))) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/raw/big")
        async with client.session.get(client.base + "/raw/big") as answer:
            body = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for piece in answer.content.iter_any():
                    body += piece
        assert value.startswith(body)


@pytest.mark.servers
async def test_secrets_and_places_stay_here(tmp_path, caplog):
    async with serving(Failing(stores.MemoryStore({"big": bytes(9 << 20)}))) as client:
        _, body, _ = await client.get("/raw/big", Range="bytes=8500000-8500010")
        assert b"SECRET" not in body
        assert json.loads(body)["message"] == "the store failed"
    async with serving(tmp_path / "nothing") as client:
        for path in ("/api/node", "/api/data?path=x", "/healthz", "/zarr/zarr.json"):
            assert str(tmp_path).encode() not in (await client.get(path))[1]
