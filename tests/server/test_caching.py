"""Requests that share one read, the server's cache, metrics and log."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
import aiohttp
from aiohttp import web

from tests.support.server_client import FIELD, fill, serving
from zarrasync import stores, sync
from zarrasync.server import Limits, create_app
from zarrasync.testing import LatencyStore

pytestmark = pytest.mark.servers


async def test_applications_around_it_add_to_large_answers_too():
    @web.middleware
    async def mark(request: web.Request, handler: Any) -> web.StreamResponse:
        answer = await handler(request)
        answer.headers["X-Outer"] = "yes"
        return answer

    store: dict[str, bytes] = {}
    values = np.random.default_rng(0).random((2, 1 << 20))
    sync.create_array(store, name="a", data=values)
    outer = web.Application(middlewares=[mark])
    outer.add_subapp("/inner", create_app(store))
    runner = web.AppRunner(outer, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/inner/api/data?path=a&format=bin"
        async with session.get(url) as answer:
            assert await answer.read() == values.tobytes()
            assert (answer.headers["X-Outer"], answer.content_length) == ("yes", values.nbytes)
        async with session.head(url) as answer:
            assert (answer.headers["X-Outer"], answer.content_length) == ("yes", values.nbytes)
    await runner.cleanup()


async def test_concurrent_requests_share_one_read():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 300, 420))
    slow = LatencyStore(stores.MemoryStore(store), 0.05)
    async with serving(slow, limits=Limits(active=100)) as client:
        await client.get("/api/node?path=f")
        before = client.upstream
        tiles = [client.get(f"/api/tiles/1/{x}/0.png?path=f&index=1&low=0&high=1") for x in (0, 1)] * 1
        tiles += [client.get(f"/api/tiles/1/{n % 2}/0.png?path=f&index=1&low=0&high=1") for n in range(30)]
        tiles += [client.get(f"/api/data?path=f&select=1,{n},0") for n in range(30)]
        assert {status for status, _, _ in await asyncio.gather(*tiles)} == {200}
        assert client.upstream - before == 1
        before = client.upstream
        values = await asyncio.gather(*(client.get("/raw/f/c/2/0/0") for _ in range(30)))
        assert len({body for _, body, _ in values}) == 1
        assert client.upstream - before == 1


async def test_the_cache_stays_within_its_bytes():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 50, 60))
    async with serving(store, cache_bytes=1 << 20) as client:
        chunks = client.service.chunks.cache
        for n in range(3):
            for row in range(0, 300, 50):
                _, body, _ = await client.get(f"/api/data?path=f&select={n},{row}:{row + 60},:200:7&format=npy")
                np.testing.assert_array_equal(np.load(io.BytesIO(body)), FIELD[n, row : row + 60, :200:7])
                assert chunks.stats.nbytes <= chunks.max_bytes == 1 << 19
        assert chunks.stats.hits > 0


async def test_changes_are_seen_after_max_age(tmp_path):
    array = sync.create_array(tmp_path, name="f", data=np.arange(10), chunks=6)
    async with serving(tmp_path, max_age=0.3) as client:
        assert (await client.json("/api/data?path=f"))["data"] == list(range(10))
        await asyncio.to_thread(array.append, np.arange(10, 15))
        await asyncio.sleep(0.35)
        assert (await client.json("/api/data?path=f"))["data"] == list(range(15))


async def test_a_disconnect_cancels_the_work():
    """A client that disconnects cancels its requests to the store."""
    store: dict[str, bytes] = {}
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
        await asyncio.sleep(0.5)
        assert client.upstream == settled < before + 200
        assert b'status="499"' in client.core.metrics.text()
        assert b"zarrasync_active_requests 0.0" in client.core.metrics.text()


async def test_a_leaving_client_does_not_disturb_another():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 300, 420))
    slow = LatencyStore(stores.MemoryStore(store), 0.3)
    async with serving(slow) as client:
        await client.get("/api/node?path=f")
        query = "/api/tiles/1/0/0.png?path=f&low=0&high=1"
        first, second = (asyncio.ensure_future(client.get(query)) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second)[0] == 200


async def test_metrics_are_readable_by_prometheus():
    from prometheus_client.parser import text_string_to_metric_families

    store: dict[str, bytes] = {}
    fill(store)
    async with serving(store) as client:
        for _ in range(3):
            await client.get("/api/data?path=flags&select=0")
        await client.get("/raw/none")
        _, body, headers = await client.get("/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
        assert found["zarrasync_requests_total", (("route", "data"), ("status", "200"))] == 3
        assert found["zarrasync_requests_total", (("route", "raw"), ("status", "404"))] == 1
        assert found["zarrasync_request_seconds_count", (("route", "data"),)] == 3
        assert found["zarrasync_chunk_cache_hits_total", ()] > 0


async def test_the_access_log_is_structured(caplog):
    caplog.set_level("INFO", "zarrasync.server.access")
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with serving({"x": b"123"}) as client:
        _, _, first = await client.get("/raw/x?secret=1")
        _, _, second = await client.get(
            "/nowhere", X_Request_Id="proxy-7", traceparent=f"00-{trace}-b7ad6b7169203331-01"
        )
        _, _, third = await client.get("/raw/x", X_Request_Id="a b" * 99)
    told = [json.loads(record.getMessage()) for record in caplog.records]
    assert [(each["status"], each["bytes"], each["route"]) for each in told][::2] == [(200, 3, "raw")] * 2
    assert all(each["ms"] > 0 and each["time"].startswith("20") for each in told)
    assert [each["id"] for each in told] == [found["X-Request-Id"] for found in (first, second, third)]
    assert (told[1]["id"], told[1]["trace"], told[1]["status"]) == ("proxy-7", trace, 404)
    assert len(told[2]["id"]) == 16


async def test_the_access_log_has_no_secrets(caplog):
    """Clients may pass a token in the wrong place, and addresses of stores as titiler expects them."""
    caplog.set_level("INFO", "zarrasync.server.access")
    async with serving({"x": b"123"}) as client:
        await client.get(
            "/raw/x?token=hidden&url=https%3A%2F%2Fuser%3Ahidden%40host%2Fx%3Fsig%3Dhidden&path=a%2Fb&flag"
        )
    assert json.loads(caplog.records[0].getMessage())["path"] == "/raw/x?token=…&url=…&path=a%2Fb&flag"


@pytest.mark.parametrize("path", ["/info?variable=", "/edr/collections/"])
async def test_cached_coordinates_are_limited_in_bytes(path):
    root = sync.create_group(store := {})
    lon, lat = np.linspace(0, 300, 1 << 20), np.array([10.0, 20.0])
    for number in range(16):  # with 8 MiB of longitudes each
        group = root.create_group(f"g{number}")
        group.create_array("lon", data=lon, dimension_names=["lon"], attributes={"units": "degrees_east"})
        group.create_array("lat", data=lat, dimension_names=["lat"], attributes={"units": "degrees_north"})
        group.create_array("v", shape=(2, len(lon)), dtype="i1", chunks=(2, 1 << 16), dimension_names=["lat", "lon"])
    async with serving(store, cache_bytes=0) as client:
        tracemalloc.start()
        try:
            for number in range(16):
                await client.json(f"{path}g{number}" + ("/v" if "info" in path else ""))
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert kept < 96 << 20, kept  # with the scratch memory of a few threads


@pytest.mark.servers
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("fill_value", [0.0, 7.0, np.nan])
async def test_deleted_arrays_do_not_have_the_fill_value(fill_value: float, consolidated: bool):
    """Their metadata is reused for a while, but their chunks are absent. Chunks that nobody has written are no error."""
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    group.create_array("g/a", data=np.arange(6.0), chunks=2, fill_value=fill_value)
    group.create_array("g/unwritten", shape=6, dtype="f8", chunks=2, fill_value=fill_value)
    if consolidated:
        sync.consolidate_metadata(store)
    async with serving(store, cache_bytes=0) as client:
        assert (await client.json("/api/data?path=g/a"))["data"] == [0, 1, 2, 3, 4, 5]
        wanted = [None if np.isnan(fill_value) else fill_value] * 6
        assert (await client.json("/api/data?path=g/unwritten"))["data"] == wanted
        store.clear()
        await client.json("/api/data?path=g/a", 404)
