"""Servers for benchmarks: nginx with a delay, and S3 behind a proxy that logs requests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MODULES = Path("/usr/lib/nginx/modules")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, seconds: float = 10) -> None:
    for _ in range(int(seconds * 20)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"no server listens on port {port}")


@contextmanager
def nginx(root: Path, scratch: Path, delay_ms: int = 0) -> Iterator[str]:
    """Serve a directory with nginx, with a delay before each response; yields its URL.

    Nginx serves about 30,000 small requests a second on one core, so it does not limit the engines. A delay requires
    its Lua module.
    """
    lua = MODULES / "ngx_http_lua_module.so"
    if shutil.which("nginx") is None or (delay_ms and not lua.exists()):
        raise SystemExit("needs nginx with Lua: apt-get install nginx-light libnginx-mod-http-lua")
    port = free_port()
    load = "".join(f"load_module {MODULES / name}; " for name in ("ndk_http_module.so", lua.name)) if delay_ms else ""
    # Delaying each request also delays pipelined ones, as distance does.
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
    """A logged request, with the times of the request and of the response."""

    method: str
    target: str
    byte_range: str
    status: int
    nbytes: int
    begin: float
    end: float


def round_trips(seen: list[Seen]) -> int:
    """Return the length of the longest chain of requests that do not overlap."""
    count, latest = 0, 0.0
    for request in sorted(seen, key=lambda request: request.end):
        if request.begin >= latest:
            count, latest = count + 1, request.end
    return count


class Proxy:
    """A proxy in front of an S3 server that logs requests and delays each of them.

    The delay separates requests that depend on each other from concurrent ones. Responses are cached until something
    is written, so that a slow server does not cause round trips.
    """

    def __init__(self, target: str, delay_ms: float) -> None:
        self._target, self._delay = target, delay_ms / 1000
        self._responses: dict[tuple[str, str, str], tuple[int, dict[str, str], bytes]] = {}
        self._seen: list[Seen] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0

    def take(self) -> list[Seen]:
        """Return the requests since the last call."""
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
        byte_range = request.headers.get("Range", "")
        key = (request.method, request.raw_path, byte_range)
        if request.method not in ("GET", "HEAD"):
            self._responses.clear()
        if key not in self._responses:
            async with self._session.request(
                request.method, URL(self._target + request.raw_path, encoded=True), data=body, headers=headers
            ) as upstream:
                response = upstream.status, dict(upstream.headers), await upstream.read()
            if request.method in ("GET", "HEAD"):
                self._responses[key] = response
        else:
            response = self._responses[key]
        status, response_headers, data = response
        await asyncio.sleep(max(0.0, begin + self._delay - time.monotonic()))
        nbytes = len(data) + len(body)
        self._seen.append(Seen(request.method, request.raw_path, byte_range, status, nbytes, begin, time.monotonic()))
        headers = {k: v for k, v in response_headers.items() if k.lower() not in ("transfer-encoding", "connection")}
        if request.method == "HEAD":
            return web.Response(status=status, headers=headers)
        headers.pop("Content-Length", None)
        return web.Response(status=status, headers=headers, body=data)


@contextmanager
def moto(bucket: str) -> Iterator[str]:
    """Run moto's S3 in a process, with a bucket; yields its endpoint."""
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


CEPH_CONF = """[global]
fsid={fsid}
mon_host=[v1:127.0.0.1:{monitor_port}]
ms_bind_msgr2=false
public_addr=127.0.0.1
cluster_addr=127.0.0.1
auth_cluster_required=none
auth_service_required=none
auth_client_required=none
mon_allow_pool_size_one=true
mon_max_pg_per_osd=1000
mon_data={root}/mon
mon_data_avail_crit=1
osd_pool_default_size=1
osd_pool_default_min_size=1
osd_pool_default_pg_num=8
osd_pool_default_pg_autoscale_mode=off
osd_crush_chooseleaf_type=0
osd_class_load_list=*
osd_class_default_list=*
osd_data={root}/osd
{storage}
rgw_gc_obj_min_wait=1
rgw_gc_processor_period=5
admin_socket={root}/$name.asok
pid_file={root}/$name.pid
log_file={root}/$name.log
crash_dir={root}
[client.rgw]
rgw_frontends=beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


STARTS = 5
"""How often the storage daemon is started at most."""
CEPH_MEMORY = "osd_objectstore=memstore\nmemstore_device_bytes={size}"
MOST_IN_MEMORY = 2 << 30
"""Bytes of objects up to which Ceph's gateway keeps them in memory, where the disk does not limit the writers."""
CEPH_DISK = "osd_objectstore=bluestore\nbluestore_block_size={size}\nosd_memory_target=1073741824"


@contextmanager
def radosgw(bucket: str, size: int = 8 << 30, *, on_disk: bool = False) -> Iterator[dict[str, str]]:
    """Run Ceph's S3 gateway with a bucket; yields ``storage_options``.

    Args:
        bucket: The name of the bucket.
        size: The most bytes of all objects.
        on_disk: Keep objects in a file, rather than in memory.
    """
    if shutil.which("radosgw") is None:
        raise SystemExit("needs Ceph: apt-get install radosgw ceph-mon ceph-osd ceph-common")
    import boto3

    port, monitor_port, key, osd = free_port(), free_port(), "benchmark-key", str(uuid.uuid4())
    with tempfile.TemporaryDirectory(prefix="radosgw-") as root:
        for name in ("mon", "osd"):
            Path(root, name).mkdir()
        fsid = str(uuid.uuid4())
        conf = Path(root, "ceph.conf")
        storage = (CEPH_DISK if on_disk else CEPH_MEMORY).format(size=size)
        conf.write_text(CEPH_CONF.format(root=root, fsid=fsid, port=port, monitor_port=monitor_port, storage=storage))

        def call(*command: str) -> str:
            return subprocess.run(
                [*command, "-c", str(conf)], cwd=root, check=True, capture_output=True, text=True
            ).stdout

        monitor = f"[v1:127.0.0.1:{monitor_port}]"
        subprocess.run(
            ["monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, "monmap"],
            cwd=root, check=True, capture_output=True,
        )  # fmt: skip
        try:
            call("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap")
            call("ceph-mon", "-i", "a")
            call("ceph", "osd", "new", osd)
            call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
            for _ in range(STARTS - 1):  # rarely, it fails without a message
                command = ["ceph-osd", "-i", "0", "-c", str(conf)]
                if subprocess.run(command, check=False, cwd=root, capture_output=True).returncode == 0:
                    break
            else:
                call("ceph-osd", "-i", "0")
            while "1 up" not in call("ceph", "osd", "stat"):
                time.sleep(0.5)
            call("radosgw", "-n", "client.rgw")
            wait_for(port, 60)
            call(
                "radosgw-admin", "user", "create", "--uid=benchmark", "--display-name=benchmark",
                f"--access-key={key}", f"--secret-key={key}",
            )  # fmt: skip
            endpoint = f"http://127.0.0.1:{port}"
            client: Any = boto3.client(
                "s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=key, region_name="us-east-1"
            )
            client.create_bucket(Bucket=bucket)
            yield {"endpoint_url": endpoint, "key": key, "secret": key}
        finally:
            for file in Path(root).glob("*.pid"):
                stop(int(file.read_text()))


@contextmanager
def s3_options(endpoint: str | None, nbytes: int) -> Iterator[dict[str, Any]]:
    """Yield options of the object store for objects of about that many bytes together, or an empty dict."""
    if not endpoint:
        yield {}
        return
    if endpoint == "radosgw":
        with radosgw("zarrasync", size=max(4 * nbytes, 8 << 30), on_disk=nbytes > MOST_IN_MEMORY) as options:
            yield {**options, "aws_unsigned_payload": True}
        return
    key, secret = (os.environ[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    yield {"endpoint_url": endpoint, "key": key, "secret": secret, "aws_unsigned_payload": True}


def stop(pid: int) -> None:
    """End a process that is not a child of this one, and wait for its end."""
    try:
        os.kill(pid, signal.SIGTERM)
        for _ in range(200):
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
