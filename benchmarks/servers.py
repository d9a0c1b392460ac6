"""Servers for the benchmarks of remote reads and of requests: nginx with a delay, and S3 behind a proxy that counts."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MODULES = Path("/usr/lib/nginx/modules")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing answers on port {port}")


@contextmanager
def nginx(root: Path, scratch: Path, delay_ms: int = 0) -> Iterator[str]:
    """Nginx on a directory, whose answers begin so many milliseconds after the request; yields its URL.

    It answers some 30,000 small requests a second on one core, so that it is not what is measured. A delay needs
    its Lua module.
    """
    lua = MODULES / "ngx_http_lua_module.so"
    if shutil.which("nginx") is None or (delay_ms and not lua.exists()):
        raise SystemExit("needs nginx with Lua: apt-get install nginx-light libnginx-mod-http-lua")
    port = free_port()
    load = "".join(f"load_module {MODULES / name}; " for name in ("ndk_http_module.so", lua.name)) if delay_ms else ""
    # A delay on every request also delays those that are pipelined: as a distance does.
    wait = f"access_by_lua_block {{ ngx.sleep({delay_ms / 1000}) }}" if delay_ms else ""
    scratch.mkdir(parents=True, exist_ok=True)
    user = "user root; " if os.getuid() == 0 else ""
    conf = scratch / "nginx.conf"
    conf.write_text(
        f"{load} worker_processes 1; {user}pid {scratch}/pid; error_log {scratch}/errors; daemon off;\n"
        "events { worker_connections 4096; }\n"
        "http { access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;\n"
        " default_type application/octet-stream; types {} open_file_cache max=20000 inactive=600s;\n"
        f" client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy; fastcgi_temp_path {scratch}/f;\n"
        f" uwsgi_temp_path {scratch}/u; scgi_temp_path {scratch}/s;\n"
        f" server {{ listen 127.0.0.1:{port} backlog=4096; root {root}; location / {{ {wait} }} }} }}\n"
    )
    process = subprocess.Popen(["nginx", "-c", str(conf), "-p", str(scratch)])
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class Seen(NamedTuple):
    """A request that came by, and the times at which it came and was answered."""

    method: str
    target: str
    wanted: str
    status: int
    nbytes: int
    begin: float
    end: float


def round_trips(seen: list[Seen]) -> int:
    """How many requests had to wait for another one: the longest chain of requests that do not overlap."""
    count, latest = 0, 0.0
    for one in sorted(seen, key=lambda one: one.end):
        if one.begin >= latest:
            count, latest = count + 1, one.end
    return count


class Proxy:
    """A proxy in front of an S3 server that writes down what passes, and lets each request take some time.

    The time makes the number of round trips clear: what could have been asked at once, and was not, shows. Answers
    are kept until something is written, so that a slow server does not make round trips of its own.
    """

    def __init__(self, target: str, delay_ms: float) -> None:
        self._target, self._delay = target, delay_ms / 1000
        self._kept: dict[tuple[str, str, str], tuple[int, dict[str, str], bytes]] = {}
        self._seen: list[Seen] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0

    def take(self) -> list[Seen]:
        """What passed since the last call."""
        seen, self._seen = self._seen, []
        return seen

    @contextmanager
    def running(self) -> Iterator[str]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        self._ready.wait()
        yield f"http://127.0.0.1:{self.port}"
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _start(self) -> None:
        import aiohttp
        from aiohttp import web

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout(60)
        )
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]  # it has started

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request: Any) -> Any:
        from aiohttp import web
        from yarl import URL

        body = await request.read()
        begin = time.monotonic()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("transfer-encoding", "connection")}
        wanted = request.headers.get("Range", "")
        name = (request.method, request.raw_path, wanted)
        if request.method not in ("GET", "HEAD"):
            self._kept.clear()
        if name not in self._kept:
            async with self._session.request(
                request.method, URL(self._target + request.raw_path, encoded=True), data=body, headers=headers
            ) as answer:
                found = answer.status, dict(answer.headers), await answer.read()
            if request.method in ("GET", "HEAD"):
                self._kept[name] = found
        else:
            found = self._kept[name]
        status, given, data = found
        await asyncio.sleep(max(0.0, begin + self._delay - time.monotonic()))
        nbytes = len(data) + len(body)
        self._seen.append(Seen(request.method, request.raw_path, wanted, status, nbytes, begin, time.monotonic()))
        kept = {k: v for k, v in given.items() if k.lower() not in ("transfer-encoding", "connection")}
        if request.method == "HEAD":
            return web.Response(status=status, headers=kept)
        kept.pop("Content-Length", None)
        return web.Response(status=status, headers=kept, body=data)


@contextmanager
def moto(bucket: str) -> Iterator[str]:
    """Moto's S3 in a process of its own, with a bucket; yields its endpoint."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port)
        endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
        yield endpoint
    finally:
        process.kill()
        process.wait()
