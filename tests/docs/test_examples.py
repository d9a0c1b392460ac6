"""The example scripts run; the example services answer, and cancel work whose client has left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

import zarrasync as za
from tests.support import ROOT
from tests.support.examples import load_example
from tests.support.servers import free_port
from zarrasync import stores, sync
from zarrasync.testing import LatencyStore

pytestmark = pytest.mark.docs

EXAMPLES = ROOT / "examples"
VALUES = np.arange(50 * 20 * 30, dtype="f4").reshape(50, 20, 30)


@pytest.mark.parametrize(
    ("name", "needs", "says"),
    [
        ("ingestion_job", (), "again: worker 0"),
        ("dask_job", ("dask", "distributed"), "20 days"),
        ("xarray_analysis", ("xarray", "dask"), "mean anomaly per year"),
        ("migrate_v2_to_v3", (), "1,231 files became 12"),
    ],
)
def test_jobs(name, needs, says, tmp_path):
    for package in needs:
        pytest.importorskip(package)
    command = [sys.executable, EXAMPLES / f"{name}.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert any(tmp_path.iterdir())


@pytest.fixture
def weather(tmp_path) -> str:
    root = sync.create_group(tmp_path / "weather.zarr")
    root.create_array("t2m", data=VALUES, chunks=(10, 10, 10), attributes={"units": "K"})
    return str(tmp_path / "weather.zarr")


async def answer(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    async with session.get(url) as found:
        kind = found.content_type
        return found.status, await found.json() if kind == "application/json" else await found.text()


async def test_aiohttp_service(weather):
    pytest.importorskip("cmap")
    runner = web.AppRunner(
        load_example("aiohttp_service").make_app(weather), access_log=None, handler_cancellation=True
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        status, told = await answer(session, f"{base}/series/t2m?row=3&column=4")
        assert (status, told) == (200, {"units": "K", "values": VALUES[:, 3, 4].tolist()})
        for wrong, code in [("t2m?row=99&column=0", 400), ("t2m?row=x", 400), ("none?row=0&column=0", 404)]:
            status, text = await answer(session, f"{base}/series/{wrong}")
            assert status == code
            assert str(Path(weather).parent) not in text
        await (await za.open_array(weather, path="t2m", mode="r+")).append(VALUES[:1])
        status, told = await answer(session, f"{base}/series/t2m?row=3&column=4")
        assert told["values"] == [*VALUES[:, 3, 4].tolist(), float(VALUES[0, 3, 4])]
        assert "viewer.js" in (await answer(session, f"{base}/browse/"))[1]
        status, told = await answer(session, f"{base}/browse/api/data?path=t2m&select=0,0,:3")
        assert told["data"] == [0, 1, 2]
    await runner.cleanup()


class Uvicorn:
    """A FastAPI application that runs on a free port in the event loop of the test."""

    def __init__(self, app: Any) -> None:
        import uvicorn

        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))

    async def __aenter__(self) -> str:
        self.task = asyncio.ensure_future(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    async def __aexit__(self, *error: object) -> None:
        self.server.should_exit = True
        await self.task


async def test_fastapi_service(weather, monkeypatch):
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    monkeypatch.setenv("ZARR_URL", weather)
    async with Uvicorn(load_example("fastapi_service").app) as base, aiohttp.ClientSession() as session:
        status, told = await answer(session, f"{base}/t2m/series?row=3&column=4")
        assert (status, told) == (200, {"name": "t2m", "units": "K", "values": VALUES[:, 3, 4].tolist()})
        status, told = await answer(session, f"{base}/t2m/mean")
        assert told["mean"] == pytest.approx(VALUES.mean(dtype="f8"))
        for wrong, code in [("t2m/series?row=99&column=0", 422), ("t2m/series?row=-1", 422), ("none/mean", 404)]:
            status, told = await answer(session, f"{base}/{wrong}")
            assert status == code
            assert str(Path(weather).parent) not in str(told)
        assert (await answer(session, f"{base}/browse/api/data?path=t2m&select=0,0,:3"))[1]["data"] == [0, 1, 2]


async def test_fastapi_service_sees_rows_that_others_append(weather, monkeypatch):
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    await za.consolidate_metadata(weather)
    monkeypatch.setenv("ZARR_URL", weather)
    monkeypatch.setenv("ZARR_MAX_AGE", "0.05")
    async with Uvicorn(load_example("fastapi_service").app) as base, aiohttp.ClientSession() as session:
        assert (await answer(session, f"{base}/t2m/mean"))[0] == 200
        await (await za.open_array(weather, path="t2m", mode="r+")).append(VALUES[:1])
        expected = [*VALUES[:, 3, 4].tolist(), float(VALUES[0, 3, 4])]
        async with asyncio.timeout(30):
            while (await answer(session, f"{base}/t2m/series?row=3&column=4"))[1]["values"] != expected:
                await asyncio.sleep(0.01)


async def test_fastapi_service_cancels_abandoned_work(weather):
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    slow = LatencyStore(stores.LocalStore(weather), 0.05, concurrency=1)
    app = load_example("fastapi_service").make_app(slow)
    counts = app.state.service.hierarchy.store.counts
    async with Uvicorn(app) as base, aiohttp.ClientSession() as session:
        request = asyncio.ensure_future(answer(session, f"{base}/t2m/mean"))  # 30 chunks in sequence
        while counts.requests < 8:
            await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await asyncio.sleep(0.3)
        settled = counts.requests
        await asyncio.sleep(0.3)
        assert counts.requests == settled < 25


WRITER = """
import sys, time
import numpy as np
from zarrasync import sync
array, end = sync.open_array(sys.argv[1], path="t2m", mode="r+"), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    array.append(np.full((1, 20, 30), len(array), "f4"))
    time.sleep(0.1)
"""


async def test_fastapi_service_under_load(weather):
    """Two workers, fifty clients of which some leave, and a process that appends: no errors, right values."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    port, seconds, done = free_port(), 3.0, asyncio.Event()
    command = ["uvicorn", "fastapi_service:app", "--app-dir", str(EXAMPLES), "--workers", "2", "--port", str(port)]
    environment = {**os.environ, "ZARR_URL": weather, "ZARR_MAX_AGE": "0.5"}
    service = await asyncio.create_subprocess_exec(sys.executable, "-m", *command, env=environment)
    answers: list[tuple[int, int, list[float]]] = []

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        choose = np.random.default_rng(number)
        while not done.is_set():
            row, column = choose.integers(20), choose.integers(30)
            patience = 0.01 if choose.random() < 0.2 else 60
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    status, told = await answer(session, f"{base}/t2m/series?row={row}&column={column}")
                    assert status == 200, told
                    answers.append((int(row), int(column), told["values"]))

    try:
        base = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            async with asyncio.timeout(60):
                while not await responds(session, f"{base}/browse/livez"):
                    await asyncio.sleep(0.1)
            writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, weather, str(seconds))
            clients = [asyncio.ensure_future(client(session, number)) for number in range(50)]
            assert await writer.wait() == 0
            await asyncio.sleep(2)  # until the last rows are seen
            done.set()
            await asyncio.gather(*clients)
    finally:
        service.terminate()
        await service.wait()
    assert len(answers) > 100
    longest = max(len(values) for _, _, values in answers)
    assert longest > 55
    for row, column, values in answers:
        assert values == [*VALUES[:, row, column].tolist(), *map(float, range(50, len(values)))]


async def responds(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        return (await answer(session, url))[0] == 200
    except aiohttp.ClientError:
        return False
