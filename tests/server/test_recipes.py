"""The recipes of the page on deployment: nginx and systemd run or check theirs, the others have valid commands."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket as socket_module
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
from tests.support import ROOT
from tests.support.servers import free_port
from zarrasync import sync
from zarrasync.cli import make_parser

PAGE = (ROOT / "docs" / "guides" / "deploy.md").read_text()
JOINED = PAGE.replace("\\\n", " ")
"""The page with commands on one line each."""


def recipe(language: str, word: str) -> str:
    """Return the code of the page in a language that contains a word."""
    found = [
        code for kind, code in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL) if kind == language and word in code
    ]
    assert found, f"no {language} with {word}"
    return str(found[0])


def check_arguments(arguments: list[str]) -> None:
    """Check that ``zarrasync serve`` has all options."""
    assert make_parser().parse_args(arguments).command == "serve"


def nginx_files(folder: Path, socket: Path, certificate: Path, port: int) -> list[str]:
    """Write the configuration of the page for nginx, and return the command."""
    text = recipe("nginx", "proxy_pass")
    for old, new in {
        "/run/zarrasync/http": str(socket),
        "/etc/ssl/data.pem": str(certificate),
        "/etc/ssl/data.key": str(certificate.parent / "key.pem"),
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
    }.items():
        assert old in text
        text = text.replace(old, new)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root; " if os.getuid() == 0 else ""  # who can connect to the socket
    main = f"daemon off; {user}pid {folder}/pid; error_log {folder}/errors; events {{}} http {{ access_log off; {temporary}\n{text}}}"
    (folder / "nginx.conf").write_text(main)
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]


def caddy_files(folder: Path, socket: Path, certificate: Path, port: int) -> list[str]:
    """Write the configuration of the page for Caddy, with a certificate of the test, and return the command."""
    text = recipe("text", "reverse_proxy")
    for old, new in {
        "/run/zarrasync/http": str(socket),
        "data.example.org {": f"https://data.example.org:{port} {{\n    bind 127.0.0.1\n"
        f"    tls {certificate} {certificate.parent / 'key.pem'}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    head = "{\n    admin off\n    auto_https disable_redirects\n    default_sni data.example.org\n}\n"
    (folder / "Caddyfile").write_text(head + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.mark.processes
@pytest.mark.parametrize("program", ["nginx", "caddy"])
async def test_proxies(program, tmp_path, certificate):
    """Values, errors, redirects and large bodies below the prefix, with the public host name and scheme."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    cert, _context = certificate
    socket, port = tmp_path / "http", free_port()
    command = {"nginx": nginx_files, "caddy": caddy_files}[program](tmp_path, socket, cert, port)
    values = np.arange(2_000_000.0)
    sync.create_array(tmp_path / "data.zarr", name="a", data=values)
    line = next(
        line for line in JOINED.splitlines() if "--unix-socket" in line and line.startswith("zarrasync serve data.zarr")
    )
    arguments = shlex.split(
        line.replace("/run/zarrasync/http", str(socket)).replace("data.zarr", str(tmp_path / "data.zarr"))
    )
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdout=subprocess.PIPE)
    proxy = await asyncio.create_subprocess_exec(*command, env={**os.environ, "HOME": str(tmp_path)})
    try:
        await asyncio.wait_for(server.stdout.readline(), 60)
        for _ in range(600):
            with suppress(OSError), socket_module.create_connection(("127.0.0.1", port)):
                break
            await asyncio.sleep(0.1)
        headers = {"Host": "data.example.org"}
        async with aiohttp.ClientSession(f"https://127.0.0.1:{port}", headers=headers) as session:

            async def get(path: str, **options: Any) -> tuple[int, bytes, Any]:
                options = {"ssl": False, "server_hostname": "data.example.org", "allow_redirects": False, **options}
                async with session.get(path, **options) as answer:
                    return answer.status, await answer.read(), answer.headers

            assert (await get("/data/api/data?path=a&select=:2&format=bin"))[1] == values[:2].tobytes()
            assert (await get("/data/api/data?path=a&format=bin&select=:1000000"))[1] == values[:1_000_000].tobytes()
            assert (await get("/data/nothing"))[0] == 404
            _status, body, _ = await get("/data/edr")
            assert b"https://data.example.org/data/edr/collections" in body
            assert b'"url":"/data"' in (await get("/data/openapi.json"))[1]
            if program == "nginx":  # Caddy passes on only the host names of its file
                assert (await get("/data/api/node?path=", headers={"Host": "other.example.org"}))[0] == 421
    finally:
        for process in (proxy, server):
            process.terminate()
            await process.wait()


@pytest.mark.processes
def test_systemd(tmp_path):
    """The unit is valid, and its command has existing options."""
    unit = recipe("ini", "[Service]")
    command = next(line for line in unit.replace("\\\n", " ").splitlines() if line.startswith("ExecStart="))
    check_arguments(shlex.split(command.partition("=")[2])[1:])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    path = tmp_path / "zarrasync.service"
    path.write_text(unit.replace("/opt/zarrasync/bin/zarrasync", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], check=False, capture_output=True, text=True, timeout=60
    )
    wrong = [line for line in done.stderr.splitlines() if path.name in line]
    assert not wrong, wrong


def test_containers():
    """The image and the pods start the server with existing options, and ask for existing health checks."""
    yaml = pytest.importorskip("yaml")
    image = recipe("dockerfile", "ENTRYPOINT")
    entry = re.search(r"^ENTRYPOINT \[(.*)\]$", image, re.MULTILINE)
    assert entry is not None
    start = shlex.split(entry[1].replace(",", " "))
    assert start[0] == "zarrasync"
    check_arguments([*start[1:], "/data"])
    document = yaml.safe_load(recipe("yaml", "kind: Deployment"))
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_arguments([*start[1:], *container["args"]])
    assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/livez",
        "/readyz",
    }
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    folders = [mount["mountPath"] for mount in container["volumeMounts"]]
    (token,) = (text.partition("=")[2] for text in container["args"] if text.startswith("--token-file="))
    assert str(Path(token).parent) in folders
