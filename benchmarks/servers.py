"""Servers for the benchmarks of remote reads and of requests: nginx with a delay, and S3 behind a proxy that counts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
