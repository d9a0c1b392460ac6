"""Remote files that several processes need at one moment: one of them downloads, the others wait for it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.support.shifted_clock import ShiftedClock
from zarrasync._concurrency import clock
from zarrasync.bulk.files.sources.copies import LocalCopies
from zarrasync.bulk.files.sources.headers import SourceFile

pytest.importorskip("fsspec", reason="fsspec downloads the files")
pytest.importorskip("aiohttp", reason="fsspec uses it for HTTP")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
CONTENT = bytes(range(256)) * 40


class SlowServer(ThreadingHTTPServer):
    """A server whose responses wait until a test allows them. It counts requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.begun, self.allowed = threading.Semaphore(0), threading.Event()
        self.count = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/a.nc"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, SlowServer)
        self.server.count += 1
        self.server.begun.release()
        self.server.allowed.wait(60)
        with suppress(ConnectionError):  # of a process that was killed
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: Any) -> None:  # the name in the base class
        pass


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@contextmanager
def serving() -> Iterator[SlowServer]:
    server = SlowServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.allowed.set()
        server.shutdown()
        thread.join()
        server.server_close()


def fetch(url: str, stop: Any = None) -> None:
    own = LocalCopies({})
    file = SourceFile(url, len(CONTENT), "1")
    assert Path(own.acquire(file)).read_bytes() == CONTENT
    own.release(file)
    if stop is not None:
        stop.wait(60)
    own.close()


def start(url: str, stop: Any = None) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=fetch, args=(url, stop), daemon=True)
    process.start()
    return process


def end(process: BaseProcess) -> None:
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.processes
def test_one_process_downloads(temporary: Path):
    stop = multiprocessing.get_context("fork").Event()
    with serving() as server:
        processes = [start(server.url, stop) for _ in range(4)]
        assert server.begun.acquire(timeout=60)
        assert not server.begun.acquire(timeout=1)  # all of them need the file by now
        server.allowed.set()
        while len(list(temporary.glob("*/*a.nc"))) < 4:
            assert all(process.is_alive() for process in processes)
            processes[0].join(0.01)
        stop.set()
        for process in processes:
            end(process)
        assert server.count == 1
    assert not list(temporary.glob("*copies*"))


@pytest.mark.servers
def test_threads_with_own_copies_wait_as_well(temporary: Path):
    with serving() as server:
        stop = threading.Event()
        threads = [threading.Thread(target=fetch, args=(server.url, stop), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert server.begun.acquire(timeout=60)
        assert not server.begun.acquire(timeout=0.5)
        server.allowed.set()
        while len(list(temporary.glob("*/*a.nc"))) < 3:
            threads[0].join(0.01)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert server.count == 1


@pytest.mark.processes
def test_a_process_that_is_killed_does_not_block_others(temporary: Path):
    with serving() as server:
        first = start(server.url)
        assert server.begun.acquire(timeout=60)
        others = [start(server.url) for _ in range(2)]
        assert not server.begun.acquire(timeout=0.3)
        os.kill(first.pid or 0, signal.SIGKILL)
        first.join(60)
        assert server.begun.acquire(timeout=60)
        server.allowed.set()
        for process in others:
            end(process)
    assert not list(temporary.glob("*/shared-*"))


@pytest.mark.processes
def test_a_process_that_is_suspended_does_not_block_others_forever(temporary: Path):
    with serving() as server:
        first = start(server.url)
        assert server.begun.acquire(timeout=60)
        os.kill(first.pid or 0, signal.SIGSTOP)
        try:
            with clock.replaced(ShiftedClock(1000)):
                other = start(server.url)
            assert server.begun.acquire(timeout=60)
            server.allowed.set()
            end(other)
        finally:
            os.kill(first.pid or 0, signal.SIGCONT)
        end(first)
        assert server.count == 2
