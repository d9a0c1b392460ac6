"""Clients that hold connections: half requests, many connections, slow readers, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.support.server_client import serving
from zarrasync import stores, sync
from zarrasync.server import Limits
from zarrasync.server.limits import CLIENT, Overloaded, RequestQueue
from zarrasync.testing import LatencyStore

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(base: str, sent: bytes = b"", *, client: str = "127.0.0.1", limit: int = 1 << 16):
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(client, 0), limit=limit)
    writer.write(sent)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection ends."""
    data = b""
    try:
        async with asyncio.timeout(20):
            while part := await reader.read(1 << 16):
                data += part
    except ConnectionError:
        pass
    return data


@pytest.mark.servers
@pytest.mark.parametrize(
    "sent", [b"", HALF, b"GET /", HALF + b"\r\n" + HALF], ids=["nothing", "half", "line", "second"]
)
async def test_a_request_that_does_not_arrive(sent: bytes):
    async with (
        serving({"x": b"1"}, limits=Limits(head_timeout=0.2)) as client,
        connected(client.base, sent) as (reader, writer),
    ):
        begin = time.monotonic()
        if sent.count(b"GET") == 2:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"X: y\r\n")
        await ended(reader)
        assert time.monotonic() - begin < 10


@pytest.mark.servers
async def test_a_request_that_trickles():
    """Each line arrives in time, but all of them take too long."""
    async with (
        serving({"x": b"1"}, limits=Limits(head_timeout=1.0)) as client,
        connected(client.base, HALF) as (reader, writer),
    ):
        end = asyncio.create_task(ended(reader))
        lines = 0
        while not end.done() and lines < 1000:
            await asyncio.wait([end], timeout=0.05)
            if not writer.is_closing():
                writer.write(b"X: y\r\n")
            lines += 1
        assert lines < 400
        await end


@pytest.mark.servers
async def test_idle_connections_are_kept_and_slow_responses_waited_for():
    """Limits of requests that arrive concern neither."""
    store = LatencyStore(stores.MemoryStore({"x": b"1"}), 1.5)
    async with (
        serving(store, limits=Limits(head_timeout=0.3)) as client,
        connected(client.base) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(b"GET /raw/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n1"), 20)).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(1)


@pytest.mark.servers
@pytest.mark.parametrize("sent", [HALF, b"", HALF + b"\r\n"], ids=["half", "nothing", "idle"])
async def test_connections_make_room(sent: bytes):
    """More connections than are allowed: those that wait are replaced, those of the busiest client first."""
    async with serving({"x": b"1"}, limits=Limits(connections=20)) as client, AsyncExitStack() as stack:
        other = await stack.enter_async_context(connected(client.base, HALF, client="127.0.0.3"))
        flood: list[Streams] = []
        for _ in range(60):
            flood.append(await stack.enter_async_context(connected(client.base, sent, client="127.0.0.2")))
            if sent.endswith(b"\r\n\r\n"):
                await flood[-1][0].readuntil(b"}")
        for _ in range(10):
            assert (await asyncio.wait_for(client.get("/healthz"), 5))[0] == 200
        await ended(flood[0][0])
        other[1].write(b"\r\n")
        assert (await asyncio.wait_for(other[0].readline(), 5)).startswith(b"HTTP/1.1 200")


@pytest.mark.servers
async def test_connections_with_requests_are_not_replaced():
    """If all of them have requests, others get 503, except for those of a client without a connection."""
    gate = asyncio.Event()

    class Gated(stores.WrapperStore):
        async def fetch(self, requests, *, versions=False):
            await gate.wait()
            return await super().fetch(requests, versions=versions)

    store = Gated(stores.MemoryStore({"x": b"1"}))
    store.blocking = False
    ask = b"GET /raw/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(store, limits=Limits(connections=16)) as client, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(connected(client.base, ask, client="127.0.0.2")) for _ in range(16)]
        metrics = b""
        while b"zarrasync_active_requests 16.0" not in metrics:
            metrics = (await client.get("/metrics", Connection="close"))[1]  # from the reserve
        more = await stack.enter_async_context(connected(client.base, ask, client="127.0.0.2"))
        refusal = await ended(more[0])
        assert refusal.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in refusal
        busy.append(await stack.enter_async_context(connected(client.base, ask, client="127.0.0.4")))
        last = await stack.enter_async_context(connected(client.base, ask, client="127.0.0.5"))
        assert (await ended(last[0])).startswith(b"HTTP/1.1 503 ")  # the reserve is one connection
        gate.set()
        for reader, _ in busy:
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")


@pytest.mark.processes
async def test_260_half_requests_and_200_descriptors(tmp_path):
    """The server is still healthy, and uses no more descriptors than it may."""
    sync.create_array(tmp_path, name="a", data=np.arange(4))
    command = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", sys.executable, "-m", "zarrasync", "serve", str(tmp_path)]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        url = (await asyncio.to_thread(process.stdout.readline)).split()[-1].rstrip("/")
        async with AsyncExitStack() as stack:
            for _ in range(260):
                await stack.enter_async_context(connected(url, HALF))
            for _ in range(5):
                async with connected(url, HALF + b"\r\n", client="127.0.0.4") as (reader, _):
                    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
            assert len(os.listdir(f"/proc/{process.pid}/fd")) < 150
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)  # with all these connections open
            assert await asyncio.to_thread(process.wait, 20) == 0
            assert time.monotonic() - begin < 10
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.servers
@pytest.mark.parametrize("path", ["/raw/x", "/api/data?path=a&format=bin"])
async def test_a_client_that_does_not_read(path: str):
    """Its connection is closed, although the response is too small to be sent in pieces."""
    values: dict[str, Any] = {"x": os.urandom(3_900_000)}
    sync.create_array(values, name="a", data=np.zeros(3_900_000, "u1"))
    async with serving(values, limits=Limits(timeout=1.0)) as client:
        ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        async with connected(client.base, ask * 5, limit=1024) as (reader, _):
            await reader.readline()
            transport = reader._transport  # a client that stops to receive
            transport.pause_reading()
            await asyncio.sleep(3)
            transport.resume_reading()
            assert len(await ended(reader)) < 5 * 3_900_000


@pytest.mark.servers
async def test_a_client_that_reads_slowly_but_steadily():
    """Longer than the time limit, but not without progress."""
    value = os.urandom(16 << 20)
    async with serving({"x": value}, limits=Limits(timeout=1.0)) as client:
        ask = b"GET /raw/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        async with connected(client.base, ask) as (reader, _):
            body, begin = bytearray(), time.monotonic()
            while part := await reader.read(1 << 20):
                body += part
                if len(body) < 12 << 20:
                    await asyncio.sleep(0.02)
            assert bytes(body).endswith(value)
            assert time.monotonic() > begin


# ------------------------------------------------------------------ turns of clients


async def admitted(queue: RequestQueue, client: str, order: list[str], leave: asyncio.Event) -> None:
    CLIENT.set(client)
    async with queue.admit():
        order.append(client)
        await leave.wait()


async def test_clients_take_turns():
    queue, order, leave = RequestQueue(Limits(active=1, waiting=100)), [], asyncio.Event()
    leave.set()
    block = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(admitted(queue, "first", order, block))
        await asyncio.sleep(0)
        for client in ("a", "a", "a", "a", "b", "c", "b"):
            tasks.create_task(admitted(queue, client, order, leave))
        await asyncio.sleep(0)
        block.set()
    assert order == ["first", "a", "b", "c", "a", "b", "a", "a"]
    assert (queue.active, queue.waiting) == (0, 0)


async def test_a_full_queue_turns_the_busiest_client_away():
    queue, order, leave = RequestQueue(Limits(active=1, waiting=4)), [], asyncio.Event()
    tasks = [asyncio.create_task(admitted(queue, "a", order, leave)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await admitted(queue, "a", order, leave)
    other = asyncio.create_task(admitted(queue, "b", order, leave))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await tasks[4]
    tasks[2].cancel()
    leave.set()
    await asyncio.wait([*tasks, other])
    assert order == ["a", "a", "b", "a"]
    assert (queue.active, queue.waiting) == (0, 0)


async def test_cancelled_requests_leave_no_slot_behind():
    queue, order, leave = RequestQueue(Limits(active=2, waiting=50)), [], asyncio.Event()
    tasks = [asyncio.create_task(admitted(queue, str(n % 3), order, leave)) for n in range(30)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    leave.set()
    for task in tasks[1::4]:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks)
    assert (queue.active, queue.waiting) == (0, 0)
