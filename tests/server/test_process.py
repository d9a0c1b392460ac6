"""The server as a process: started again, terminated, with many clients."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
import aiohttp

import zarrasync as za
from tests.support import ROOT
from tests.support.server_client import FIELD, fill
from zarrasync import sync

pytestmark = pytest.mark.processes


def start(path: Any, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "zarrasync", "serve", str(path), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "http://" in process.stdout.readline()
    return process


def test_killed_and_started_again(tmp_path):
    fill(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = start(tmp_path, port)
    try:
        array = sync.open_array(f"http://127.0.0.1:{port}/zarr", path="a/field", config={"retries": 1})
        np.testing.assert_array_equal(array[0], FIELD[0])
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(za.errors.StoreError):
            array[1]
        process.stdout.close()
        process = start(tmp_path, port)
        np.testing.assert_array_equal(array[1], FIELD[1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_requests_under_way_end_when_the_server_is_terminated(tmp_path):
    """A long response is sent completely although the server receives SIGTERM meanwhile."""
    value = os.urandom(30 << 20)
    sync.create_group(tmp_path)
    (tmp_path / "big").write_bytes(value)
    command = [sys.executable, "-m", "zarrasync", "serve", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
        async with aiohttp.ClientSession() as session, session.get(f"{url}raw/big") as answer:
            body = await answer.content.read(1 << 20)
            process.send_signal(signal.SIGTERM)
            body += await answer.content.read()
        assert body == value
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


HEALTH = """
import http.client, sys, time
host, seconds, times = sys.argv[1], float(sys.argv[2]), []
end = time.monotonic() + seconds
while time.monotonic() < end:
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    times.append(time.perf_counter() - begin)
    time.sleep(0.05)
print(*times)
"""


@pytest.mark.parametrize("program", ["aiohttp", "uvicorn"])
@pytest.mark.parametrize("seconds", [5, pytest.param(20, marks=pytest.mark.slow)])
async def test_two_hundred_clients(tmp_path, seconds, program):
    """Tiles, chunks, series and tables. A fifth of the requests are left early. No errors, flat memory, quick health."""
    field = np.round(np.sin(np.arange(2048) / 100) * np.cos(np.arange(2048) / 80)[:, None], 2).astype("f4")
    group = sync.create_group(tmp_path)
    group.create_array("f", data=field, chunks=(256, 256), dimension_names=["lat", "lon"])
    for name, unit in {"lat": "degrees_north", "lon": "degrees_east"}.items():
        values = np.arange(2048) * 0.04
        group.create_array(name, data=values, dimension_names=[name], attributes={"units": unit})
    command = ["serve", str(tmp_path), "--port", "0", "--cache", "16", "--server", program, "--active", "8"]
    process = subprocess.Popen([sys.executable, "-m", "zarrasync", *command], stdout=subprocess.PIPE, text=True)
    statuses: Counter[int] = Counter()
    left = 0

    def memory() -> int:
        with open(f"/proc/{process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

    def path(choose: np.random.Generator) -> str:
        x, y, kind = *choose.integers(8, size=2), choose.integers(4)
        if kind == 0:
            return f"api/tiles/3/{x}/{y}.png?path=f&low=-1&high={choose.random()}"
        if kind == 1:
            return f"edr/collections/root/position?coords=POINT({x * 10 + choose.random()}%20{y * 10})"
        if kind == 2:
            return f"api/data?path=f&select={y * 256}:{y * 256 + 20},{x * 256}:{x * 256 + 200}&format=csv"
        return f"zarr/f/c/{y}/{x}"

    async def client(session: aiohttp.ClientSession, number: int, end: float) -> None:
        nonlocal left
        choose = np.random.default_rng(number)
        while time.monotonic() < end:
            patience = choose.random() * 0.05 if choose.random() < 0.2 else 60.0
            try:
                async with asyncio.timeout(patience), session.get(url + path(choose)) as answer:
                    await answer.read()
                statuses[answer.status] += 1
            except TimeoutError:
                assert patience < 60
                left += 1

    try:
        url = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
        host = url.removeprefix("http://").rstrip("/")
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            warm_up = time.monotonic() + 2
            await asyncio.gather(*(client(session, n, warm_up) for n in range(200)))
            before, end = memory(), time.monotonic() + seconds
            asked = [sys.executable, "-c", HEALTH, host, str(seconds)]
            health = await asyncio.create_subprocess_exec(*asked, stdout=subprocess.PIPE)
            await asyncio.gather(*(client(session, n, end) for n in range(200)))
            times = np.array((await health.communicate())[0].split(), float)
            async with session.get(f"{url}metrics") as answer:
                metrics = await answer.text()
        assert statuses.keys() == {200}
        assert statuses[200] > 500
        assert left > 50
        assert 'status="5' not in metrics
        assert "zarrasync_active_requests 0.0" in metrics
        assert memory() - before < 48 << 20
        assert np.median(times) < 0.1, np.quantile(times, [0.5, 0.9, 1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["aiohttp", "uvicorn"])
async def test_soak(program):
    """Writers, slow clients, clients that leave, and a server that is killed: `benchmarks/soak.py` finds no problem."""
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    script = str(ROOT / "benchmarks" / "soak.py")
    arguments = ["--seconds", "20", "--clients", "30", "--program", program]
    soak = await asyncio.create_subprocess_exec(
        sys.executable, script, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed = (await soak.communicate())[0].decode()
    assert soak.returncode == 0, printed
    assert "responses after the restart" in printed


_COUNT_ARENAS = """
import ctypes, os, sys, threading
from aiohttp import web
from zarrasync.server.running import run, run_asgi
try:
    run_asgi(None, port=-1) if sys.argv[1] == "asgi" else run(web.Application(), port=-1)
except OverflowError:  # it did not begin
    pass
library, barrier = ctypes.CDLL(None), threading.Barrier(6)
library.malloc.restype = library.fdopen.restype = ctypes.c_void_p
def allocate():
    library.malloc(50_000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
library.malloc_info(0, ctypes.c_void_p(library.fdopen(1, b"w")))
library.fflush(None)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no arenas")
@pytest.mark.parametrize(("environment", "most"), [({}, 2), ({"MALLOC_ARENA_MAX": "4"}, 4)])
@pytest.mark.parametrize("framework", ["aiohttp", "asgi"])
def test_threads_of_a_server_share_memory(framework, environment, most):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _COUNT_ARENAS, framework]
    output = subprocess.run(command, env=own | environment, stdout=subprocess.PIPE, check=True).stdout
    if b"<heap nr" not in output:
        pytest.skip("the C library has no arenas")
    assert output.count(b"<heap nr") == most
