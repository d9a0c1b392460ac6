"""Servers that tests start: files over HTTP, and emulators in separate processes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

AZURE = {
    "account_name": "devstoreaccount1",
    # The well-known key of all emulators.
    "account_key": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
}


@contextmanager
def http_server(
    root: Path, below: str = "/", *, show_index: bool = False, seen: Callable[[list[str]], Any] = lambda requests: None
) -> Iterator[str]:
    """Serve a directory over HTTP with byte ranges, and yield the URL of the server.

    Args:
        root: The directory.
        below: The path of the URLs.
        show_index: Whether directories can be listed.
        seen: Called with the method and the path of each request, in a list.
    """
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    address: list[int] = []

    async def start() -> web.AppRunner:
        @web.middleware
        async def note(request: web.Request, handler: Any) -> web.StreamResponse:
            seen([f"{request.method} {request.path}"])
            response: web.StreamResponse = await handler(request)
            return response

        app = web.Application(middlewares=[note])
        app.router.add_static(below, root, show_index=show_index)
        runner = web.AppRunner(app)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        address.append(listener.getsockname()[1])
        await web.SockSite(runner, listener).start()
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{address[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """Run a server in a separate process, from its first answer to the end of the block."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            end = time.monotonic() + 60
            while True:
                with socket.socket() as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, f"{command[0]} does not answer"
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()
