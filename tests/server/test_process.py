"""The server as a process: started again, terminated, with many clients."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
import aiohttp

import zarrasync as za
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


async def test_two_hundred_clients(tmp_path):
    """Tiles and chunks for some seconds, without errors and without growing memory."""
    field = np.round(np.sin(np.arange(2048) / 100) * np.cos(np.arange(2048) / 80)[:, None], 2).astype("f4")
    sync.create_array(tmp_path, name="f", data=field, chunks=(256, 256))
    command = [sys.executable, "-m", "zarrasync", "serve", str(tmp_path), "--port", "0", "--cache", "16"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    statuses: list[int] = []

    def memory() -> int:
        with open(f"/proc/{process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        choose = np.random.default_rng(number)
        while time.monotonic() < end:
            x, y, high = choose.integers(8), choose.integers(8), choose.random()
            path = f"api/tiles/3/{x}/{y}.png?path=f&low=-1&high={high}" if number % 3 else f"zarr/f/c/{y}/{x}"
            async with session.get(url + path) as answer:
                statuses.append(answer.status)
                await answer.read()

    try:
        url = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            end = time.monotonic() + 1
            await asyncio.gather(*(client(session, n) for n in range(200)))
            before, end = memory(), time.monotonic() + 4
            await asyncio.gather(*(client(session, n) for n in range(200)))
        assert set(statuses) == {200}
        assert len(statuses) > 500
        assert memory() - before < 48 << 20
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
