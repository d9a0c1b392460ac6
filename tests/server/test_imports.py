"""Modules that a server process imports: not those of jobs and other servers, which take memory and time to start."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.support.server_client import fill

pytestmark = [pytest.mark.servers, pytest.mark.processes]
SERVE = """
import atexit, sys
from zarrasync import cli

atexit.register(lambda: print(*sys.modules))
cli.main(["serve", *sys.argv[1:]])
"""
PATHS = ["/", "/api/node?path=a/field", "/api/data?path=a/field&select=0", "/zarr/a/field/zarr.json", "/metrics"]


def test_what_a_server_imports(tmp_path: Path):
    fill(tmp_path)
    command = [sys.executable, "-c", SERVE, str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1].rstrip("/")
            for path in PATHS:
                with urllib.request.urlopen(address + path) as response:
                    assert response.status == 200
        finally:
            process.send_signal(signal.SIGTERM)
        modules = process.stdout.read().split()
    assert process.returncode == 0
    assert "zarrasync.server.core" in modules
    assert not [name for name in modules if name.startswith(("zarrasync.bulk", "starlette", "uvicorn"))]
