"""Measures the server under many clients, beside a plain service of FastAPI and zarr-python.

    python benchmarks/serving.py [--seconds N] [--clients N] [--only SETTING …] [--out DIRECTORY]

Clients ask for tiles and chunks of one array on local files, each for the next one when it has the last. Half of what
they ask lies in a tenth of the array, as where people look. Prints a table and writes serving.json and serving.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SIDE, CHUNK = 8192, 512
SETTINGS = {
    "mixed": "tiles and chunks, as they are asked for again",
    "tiles": "tiles, each asked for once (no two alike)",
    "chunks": "chunks alone",
}
ENGINES = {
    "zarrasync": [sys.executable, "-m", "zarrasync", "serve", "PATH", "--port", "0", "--active", "32"],
    "FastAPI + zarr-python": [
        *(sys.executable, "-m", "uvicorn", "peer_service:app", "--port", "0", "--no-access-log", "--log-level", "info")
    ],
}


def make(path: Path) -> None:
    """The array: smooth, with some noise, so that it compresses as fields do."""
    from zarrasync import sync

    rng = np.random.default_rng(1)
    group = sync.create_group(path)
    array = group.create_array("field", shape=(SIDE, SIDE), dtype="f4", chunks=(CHUNK, CHUNK), compressors="zstd")
    x = np.arange(SIDE, dtype="f4") / 300
    for row in range(0, SIDE, CHUNK):
        y = np.arange(row, row + CHUNK, dtype="f4")[:, None] / 200
        array[row : row + CHUNK] = np.round(np.sin(x) * np.cos(y) + rng.normal(0, 0.02, (CHUNK, SIDE)), 2)


class Asker(asyncio.Protocol):
    """A client on one connection, which costs next to nothing: what is measured is the server."""

    def __init__(self, paths: Any, until: float, host: str) -> None:
        self.paths, self.until, self.host = paths, until, host
        self.times: list[float] = []
        self.nbytes = self.errors = 0
        self.done = asyncio.get_running_loop().create_future()
        self._head, self._left = b"", 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        if time.perf_counter() >= self.until:
            self.transport.close()
            return
        self._begin = time.perf_counter()
        self.transport.write(f"GET {next(self.paths)} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self.nbytes += len(data)
        if not self._left:
            self._head += data
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            found = re.search(rb"(?i)content-length: (\d+)", head)
            self.errors += b" 200 " not in head[:16]
            self._left, self._head = int(found[1]) + 1 if found else 1, b""
            data = body
        self._left -= len(data)
        if self._left == 1:
            self._left = 0
            self.times.append(time.perf_counter() - self._begin)
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.errors += self._left > 0
        self.done.set_result(None)


def paths(setting: str, seed: int) -> Any:
    """What a client asks for."""
    choose = random.Random(seed)
    most = (SIDE // 256).bit_length() - 1

    def place(count: int) -> int:
        reach = max(1, round(count * 0.32)) if choose.random() < 0.5 else count
        return choose.randrange(reach)

    while True:
        if setting == "chunks" or (setting == "mixed" and choose.random() < 0.3):
            count = SIDE // CHUNK
            yield f"/zarr/field/c/{place(count)}/{place(count)}"
            continue
        zoom = choose.choice((most, most, most, most - 1, most - 1, most - 2))
        high = 1 if setting == "mixed" else 1 + choose.random()
        yield f"/api/tiles/{zoom}/{place(2**zoom)}/{place(2**zoom)}.png?path=field&low=-1&high={high}"


async def load(url: str, setting: str, clients: int, seconds: float, seed: int) -> dict[str, Any]:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    begin = time.perf_counter()
    askers = [Asker(paths(setting, seed * 10_000 + n), begin + seconds, host) for n in range(clients)]
    for asker in askers:
        await asyncio.get_running_loop().create_connection(lambda asker=asker: asker, host, int(port))
    await asyncio.gather(*(asker.done for asker in askers))
    took = time.perf_counter() - begin
    times = np.array([t for asker in askers for t in asker.times])
    return {
        "requests": len(times),
        "per_second": len(times) / took,
        "p50": float(np.percentile(times, 50)) * 1000,
        "p99": float(np.percentile(times, 99)) * 1000,
        "MB_per_second": sum(asker.nbytes for asker in askers) / took / 1e6,
        "errors": sum(asker.errors for asker in askers),
    }


class Server:
    """A server process on a free port."""

    def __init__(self, engine: str, path: Path) -> None:
        command = [str(path) if part == "PATH" else part for part in ENGINES[engine]]
        # They say where they listen on one stream or the other.
        self.process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, "SERVED": str(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                self.url = found[0]
                break

    def memory(self) -> int:
        """The most memory that it has taken, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(path: Path, setting: str, clients: int, seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    """All servers, in turns."""
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    servers = {engine: Server(engine, path) for engine in ENGINES}
    try:
        for server in servers.values():
            asyncio.run(load(server.url, setting, 20, 2, 99))
        for number in range(rounds):
            for engine, server in servers.items():
                result = asyncio.run(load(server.url, setting, clients, seconds / rounds, number))
                found[engine].append({**result, "memory": server.memory()})
                print(setting, engine, found[engine][-1], flush=True)
    finally:
        for server in servers.values():
            server.stop()
    return {
        engine: {
            name: (max if name == "memory" else sum if name == "errors" else statistics.median)([r[name] for r in own])
            for name in own[0]
        }
        for engine, own in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=HERE / "out")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as root:
        make(Path(root) / "x.zarr")
        for setting in given.only or SETTINGS:
            rows[setting] = measure(Path(root) / "x.zarr", setting, given.clients, given.seconds, given.rounds)
    lines = [
        f"| {given.clients} clients | server | requests/s | p50, ms | p99, ms | MB/s | memory, MiB | errors |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for setting, row in rows.items():
        for engine, r in row.items():
            cells = f"{r['per_second']:,.0f} | {r['p50']:,.0f} | {r['p99']:,.0f} | {r['MB_per_second']:,.0f}"
            lines.append(f"| {SETTINGS[setting]} | {engine} | {cells} | {r['memory'] / 2**20:,.0f} | {r['errors']} |")
    (given.out / "serving.md").write_text("\n".join(lines) + "\n")
    (given.out / "serving.json").write_text(json.dumps(rows, indent=1))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
