"""How much of the event loop requests take: few of them at a time, and none for long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from zarrasync import sync
from zarrasync.server import Limits
from zarrasync.server.core import make_core
from zarrasync.server.limits import RequestQueue
from zarrasync.server.messages import Request, Response

MOST_SECONDS = 0.02
"""CPU time of one callback of the event loop."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_queue_on_a_second_event_loop():
    """As in an application whose tests run one after the other."""
    queue = RequestQueue(Limits())

    async def wait() -> None:
        async with queue.admit():
            await asyncio.sleep(0.05)

    async def many(count: int) -> None:
        await asyncio.gather(*(wait() for _ in range(count)))

    asyncio.run(many(1))
    asyncio.run(many(100))
    assert queue.room > 4


async def test_requests_that_wait_are_admitted_and_busy_ones_are_not():
    """The queue fills while requests wait for a store, and shrinks while they keep the event loop busy."""
    queue, end, is_busy = RequestQueue(Limits(active=12)), asyncio.Event(), False

    async def request() -> None:
        async with queue.admit():
            while is_busy:  # steps that take a while, as of many requests together
                begin = time.thread_time()
                while time.thread_time() - begin < 0.01:
                    pass
                await asyncio.sleep(0)
            await end.wait()

    waiting = [asyncio.ensure_future(request()) for _ in range(20)]
    await asyncio.sleep(0)
    assert queue.active < 12
    await until(lambda: queue.active == 12)
    assert queue.waiting == 8
    is_busy = True
    end.set()
    await until(lambda: queue.room == 4)
    assert queue.active >= 4
    is_busy = False
    await asyncio.gather(*waiting)
    assert (queue.active, queue.waiting) == (0, 0)


async def test_lag_because_of_other_programs():
    """It is no reason to admit fewer requests, which wait for a store."""
    queue, end = RequestQueue(Limits(active=12)), asyncio.Event()

    async def request() -> None:
        async with queue.admit():
            await end.wait()

    waiting = [asyncio.ensure_future(request()) for _ in range(20)]
    for _ in range(200):
        time.sleep(0.03 * (queue.active < 12))  # as if another process had the processor
        await asyncio.sleep(0)
    assert queue.active == 12
    end.set()
    await asyncio.gather(*waiting)


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, hours = tmp_path_factory.mktemp("loop") / "x.zarr", 200_000
    root = sync.create_group(path)
    axes: dict[str, tuple[Any, str]] = {
        "time": (np.arange(hours), "hours since 2000-01-01"),
        "lat": (np.arange(0.0, 4.0), "degrees_north"),
        "lon": (np.arange(0.0, 4.0), "degrees_east"),
    }
    for name, (values, units) in axes.items():
        root.create_array(name, data=values, dimension_names=[name], attributes={"units": units})
    data = np.random.default_rng(0).normal(size=(hours, 4, 4)).astype("f4")
    root.create_array("long", data=data, chunks=(50_000, 2, 2), dimension_names=[*axes])
    root.create_array("field", data=data[:20], chunks=(20, 2, 2), dimension_names=["step", "lat", "lon"])
    return str(path)


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/edr/collections/root", b""),
        ("/edr/collections/root/position?coords=POINT(1 1)&parameter-name=long", b""),
        ("/edr/collections/root/position", b"points"),
        ("/api/data?path=long&select=:60000", b""),
        ("/api/data?path=long&select=:60000&format=csv", b""),
        ("/api/chart?path=long&select=:,1,1&points=10000", b""),
    ],
)
async def test_no_callback_is_long(year: str, target: str, body: bytes, monkeypatch: pytest.MonkeyPatch):
    """Requests are parsed and responses are made on other threads."""
    if body:
        places = np.random.default_rng(1).uniform(0, 3, (20_000, 2)).round(3).tolist()
        coordinates = {"type": "MultiPoint", "coordinates": places}
        body = json.dumps({"coords": coordinates, "parameter-name": "field", "select": "step=0"}).encode()
    core = make_core(year)

    async def receive(most: int) -> bytes:
        return body

    async def respond() -> Response:
        path, _, query = target.partition("?")
        headers = {"host": "localhost", "content-type": "application/json"}
        method = "POST" if body else "GET"
        answer = await core.respond(Request(method, path, query, headers, ["localhost"], receive=receive))
        if answer.stream is not None:
            async for _ in answer.stream:
                pass
        return answer

    assert (await respond()).status == 200  # reads the metadata
    times = measure_callbacks(monkeypatch)
    await asyncio.ensure_future(respond())
    assert max(times) < MOST_SECONDS, sorted(times)[-5:]
    await core.close()


async def test_one_thread_for_each_read(year: str, monkeypatch: pytest.MonkeyPatch):
    """Without a cache, the thread that reads values also renders them, and few points are planned on the event loop."""
    core, calls = make_core(year, cache_bytes=0), []
    query = "coords=POINT(1 1)&parameter-name=field&select=step=0"
    request = Request("GET", "/edr/collections/root/position", query, {"host": "localhost"}, ["localhost"])
    submit = ThreadPoolExecutor.submit

    def counted(self: ThreadPoolExecutor, *work: Any) -> Any:
        calls.append(work)
        return submit(self, *work)

    assert (await core.respond(request)).status == 200  # reads the metadata
    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    assert (await core.respond(request)).status == 200
    assert len(calls) == 1
    await core.close()


def measure_callbacks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list to which the CPU time of each callback is added from now on."""
    times: list[float] = []
    run: Callable[[Any], Awaitable[None]] = asyncio.Handle._run

    def measured(handle: Any) -> None:
        begin = time.thread_time()
        run(handle)
        times.append(time.thread_time() - begin)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    return times
