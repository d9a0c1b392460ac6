"""How many connections web servers get: few where each is closed after its answer, and all at once elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync._concurrency.limiter import AdaptiveLimiter

CHUNKS = 60
VALUES = np.arange(10 * CHUNKS).reshape(CHUNKS, 10)
CLIENTS = {"lean": {}, "general": {"headers": {"X": "é"}}, "fsspec": {"encoded": False}}


class Server(ThreadingHTTPServer):
    """Python's web server with its queue of five connections, and a count of those that are open.

    Attributes:
        together: The first answers to requests of chunks begin when so many of them have arrived.
        most: The largest number of connections that were open at once.
    """

    daemon_threads = True

    def __init__(self, folder: Path, version: str, together: int) -> None:
        handler = type("Handler", (Handler,), {"protocol_version": version})
        self.request_queue_size = max(together, self.request_queue_size)
        super().__init__(("127.0.0.1", 0), partial(handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.barrier = threading.Barrier(together) if together else None
        self.open, self.most, self.lock = 0, 0, threading.Lock()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        try:
            super().finish_request(request, client_address)
        finally:
            with self.lock:
                self.open -= 1


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        barrier = self.server.barrier
        if barrier is not None and "/c/" in self.path:
            barrier.wait(30)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path, version: str, together: int = 0) -> Iterator[Server]:
    with Server(folder, version, together) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.servers
@pytest.mark.parametrize("client", CLIENTS)
async def test_servers_that_close_connections_get_few(api: Api, client: str, tmp_path: Path):
    sync.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(1, 10))
    with served(tmp_path, "HTTP/1.0") as server:
        array = await api(api.open_array(f"{server.url}/a.zarr", storage_options=CLIENTS[client]))
        np.testing.assert_array_equal(await api(array.get_basic_selection(...)), VALUES)
    assert 2 < server.most <= 8


@pytest.mark.servers
@pytest.mark.parametrize("client", CLIENTS)
async def test_servers_that_keep_connections_get_all_requests_at_once(api: Api, client: str, tmp_path: Path):
    sync.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(1, 10))
    with served(tmp_path, "HTTP/1.1", together=CHUNKS) as server:
        array = await api(api.open_array(f"{server.url}/a.zarr", storage_options=CLIENTS[client]))
        np.testing.assert_array_equal(await api(array.get_basic_selection(...)), VALUES)


def test_requests_in_flight_follow_the_connections():
    limiter = AdaptiveLimiter(256, 512, cautious=True)
    assert limiter.capacity == 8  # until the first answer
    limiter.on_connection(0.01, kept=True)
    limiter.on_success(0.02)
    assert limiter.capacity == 256
    limiter.on_connection(1.02, kept=True)  # the queue of the server was full
    assert limiter.capacity == 128
    limiter.on_connection(0.01, kept=False)
    assert limiter.capacity == 8
    for _ in range(100):
        limiter.on_success(0.01)
    assert limiter.capacity == 8
    limiter.on_connection(0.01, kept=True)  # it had closed some connections only
    assert limiter.capacity == 256
    far = AdaptiveLimiter(256, cautious=True)
    for _ in range(3):
        far.on_connection(1.1, kept=True)  # each connection takes as long
        far.on_success(0.5)
    assert far.capacity == 256
    busy = AdaptiveLimiter(256, cautious=True)
    busy.on_overload()  # the first answer
    assert busy.capacity == 128
    assert AdaptiveLimiter(4, cautious=True).capacity == 4
