"""Measures the server with many clients, in comparison with other services.

    python benchmarks/serving.py [--seconds N] [--clients N] [--only SETTING …] [--out DIRECTORY] [--write-docs]

The services are FastAPI with zarr-python and, with the Python of another environment in the variable SERVING_PEERS,
titiler-xarray, xpublish-edr and xpublish-tiles. Each client requests tiles and chunks of one array on local files, or series and planes of
another one, one after the other. Half of the requests for tiles and chunks are for a tenth of the array, as people look at
some places more than at others. Values of each service are compared before its load. The lag is the time of a request
that needs no data, during the load. The CPU time of a request is the one of the server's process, which other programs change
less than the others. Prints a table and writes serving.json and serving.md; services.json and services.md if only settings of
series, planes and map tiles are chosen.
"""

from __future__ import annotations

import asyncio
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
import serving_maps
import serving_values
from harness import make_parser, markdown_table, parse_publishable, save

HERE = Path(__file__).parent
SIDE, CHUNK = 8192, 512
SETTINGS = {
    "mixed": "tiles and chunks, with repetitions",
    "tiles": "tiles, no two alike",
    "chunks": "chunks alone",
    **serving_values.SETTINGS,
    **serving_maps.SETTINGS,
}
PARTS: dict[str, Any] = {setting: part for part in (serving_values, serving_maps) for setting in part.SETTINGS}
"""Modules with the requests of settings."""
OURS = [sys.executable, "-m", "zarrasync", "serve", "PATH", "--port", "0"]
UVICORN = ["-m", "uvicorn", "--port", "0", "--no-access-log", "--log-level", "info"]
PEERS = os.environ.get("SERVING_PEERS", "")
ENGINES = {
    "zarrasync": OURS,
    "zarrasync without caches": [*OURS, "--cache", "0"],
    "FastAPI + zarr-python": [sys.executable, *UVICORN, "peer_service:app"],
    **({"xpublish-edr": [PEERS, *UVICORN, "peer_xpublish:app"]} if PEERS else {}),
    **({"xpublish-tiles": [PEERS, *UVICORN, "peer_xpublish:app"]} if PEERS else {}),
    **({"titiler-xarray": [PEERS, *UVICORN, "peer_titiler:app"]} if PEERS else {}),
}
UNKNOWN, LAST_PIECE = 1 << 60, b"\r\n0\r\n\r\n"
"""The length of a body that is sent in pieces of any size, and the end of the last one."""
LAG_SECONDS = 0.05
"""Time between two requests that measure the lag."""


def make(path: Path) -> None:
    """Create the array: smooth with some noise, so that it compresses like measured fields."""
    from zarrasync import sync

    rng = np.random.default_rng(1)
    group = sync.create_group(path)
    array = group.create_array("field", shape=(SIDE, SIDE), dtype="f4", chunks=(CHUNK, CHUNK), compressors="zstd")
    x = np.arange(SIDE, dtype="f4") / 300
    for row in range(0, SIDE, CHUNK):
        y = np.arange(row, row + CHUNK, dtype="f4")[:, None] / 200
        array[row : row + CHUNK] = np.round(np.sin(x) * np.cos(y) + rng.normal(0, 0.02, (CHUNK, SIDE)), 2)
    serving_values.make(group)
    serving_maps.make(group)


class Client(asyncio.Protocol):
    """A client with one connection, which takes little time itself."""

    def __init__(self, requests: Any, until: float) -> None:
        self.requests, self.until = requests, until
        self.times: list[float] = []
        self.nbytes = self.errors = 0
        self.done = asyncio.get_running_loop().create_future()
        self._head, self._remaining, self._end = b"", 0, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._request()

    def _request(self) -> None:
        if time.perf_counter() >= self.until:
            self.transport.close()
            return
        self._begin = time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self.nbytes += len(data)
        if not self._remaining:
            self._head += data
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            length = re.search(rb"(?i)content-length: (\d+)", head)
            is_chunked, self._end = re.search(rb"(?i)transfer-encoding: chunked", head) is not None, b""
            self.errors += b" 200 " not in head[:16]
            self._remaining, self._head = UNKNOWN if is_chunked else int(length[1]) + 1 if length else 1, b""
            data = body
        if self._remaining > UNKNOWN // 2:  # its pieces end with an empty one
            self._end = (self._end + data[-len(LAST_PIECE) :])[-len(LAST_PIECE) :]
            if self._end == LAST_PIECE:
                self._remaining = len(data) + 1
        self._remaining -= len(data)
        if self._remaining == 1:
            self._remaining = 0
            self.times.append(time.perf_counter() - self._begin)
            self._request()

    def connection_lost(self, error: Exception | None) -> None:
        self.errors += self._remaining > 0
        self.done.set_result(None)


def supports(engine: str, setting: str) -> bool:
    """Return whether an engine is measured in a setting."""
    if setting in PARTS:
        return engine in PARTS[setting].PATHS[setting]
    return engine in ("zarrasync", "FastAPI + zarr-python")


def requests(engine: str, setting: str, seed: int) -> Any:
    """Yield the requests of a client."""
    choose = random.Random(seed)
    if setting in PARTS:
        while True:
            yield PARTS[setting].request(engine, setting, choose)[0]
    most = (SIDE // 256).bit_length() - 1

    def position(count: int) -> int:
        reach = max(1, round(count * 0.32)) if choose.random() < 0.5 else count
        return choose.randrange(reach)

    while True:
        if setting == "chunks" or (setting == "mixed" and choose.random() < 0.3):
            count = SIDE // CHUNK
            yield serving_values.message(f"/zarr/field/c/{position(count)}/{position(count)}")
            continue
        zoom = choose.choice((most, most, most, most - 1, most - 1, most - 2))
        high = 1 if setting == "mixed" else 1 + choose.random()
        tile = f"/api/tiles/{zoom}/{position(2**zoom)}/{position(2**zoom)}.png?path=field&low=-1&high={high}"
        yield serving_values.message(tile)


async def lag(host: str, port: int, done: asyncio.Event) -> list[float]:
    """Return the seconds of requests that need no data, until the load is done."""
    seconds = []
    while not done.is_set():
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await reader.read()
        writer.close()
        seconds.append(time.perf_counter() - begin)
        await asyncio.sleep(LAG_SECONDS)
    return seconds


async def load(engine: str, url: str, setting: str, clients: int, seconds: float, seed: int) -> dict[str, Any]:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    begin = time.perf_counter()
    connections = [Client(requests(engine, setting, seed * 10_000 + n), begin + seconds) for n in range(clients)]
    done = asyncio.Event()
    lags = asyncio.ensure_future(lag(host, int(port), done))
    for client in connections:
        await asyncio.get_running_loop().create_connection(lambda client=client: client, host, int(port))
    await asyncio.gather(*(client.done for client in connections))
    took = time.perf_counter() - begin
    done.set()
    times = np.array([t for client in connections for t in client.times])
    return {
        "requests": len(times),
        "per_second": len(times) / took,
        "p50": float(np.percentile(times, 50)) * 1000,
        "p99": float(np.percentile(times, 99)) * 1000,
        "lag": float(np.percentile(await lags, 99)) * 1000,
        "MB_per_second": sum(client.nbytes for client in connections) / took / 1e6,
        "errors": sum(client.errors for client in connections),
    }


class Server:
    """A server process on a free port."""

    def __init__(self, engine: str, path: Path) -> None:
        command = [str(path) if part == "PATH" else part for part in ENGINES[engine]]
        # Servers print their address on one of the two streams.
        self.process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, "SERVED": str(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if match := re.search(r"http://[\d.]+:\d+", line):
                self.url = match[0]
                return
        raise RuntimeError(f"{engine} did not start:\n{''.join(lines)}")

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Return the peak memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(path: Path, setting: str, clients: int, seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure all servers in turns."""
    engines = [engine for engine in ENGINES if supports(engine, setting)]
    results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    servers = {engine: Server(engine, path) for engine in engines}
    try:
        for engine, server in servers.items():
            if setting in PARTS:
                PARTS[setting].verify(engine, server.url, setting)
            asyncio.run(load(engine, server.url, setting, 20, 2, 99))
        for number in range(rounds):
            for engine, server in servers.items():
                begin = server.cpu_seconds()
                result = asyncio.run(load(engine, server.url, setting, clients, seconds / rounds, number))
                cpu = (server.cpu_seconds() - begin) / result["requests"] * 1000
                results[engine].append({**result, "cpu": cpu, "memory": server.memory()})
                print(setting, engine, results[engine][-1], flush=True)
    finally:
        for server in servers.values():
            server.stop()
    return {
        engine: {
            name: (max if name == "memory" else sum if name == "errors" else statistics.median)([r[name] for r in runs])
            for name in runs[0]
        }
        for engine, runs in results.items()
    }


def table(section: dict[str, Any]) -> str:
    """Return rates, percentiles, and memory as Markdown."""

    def cells(r: dict[str, Any]) -> list[str]:
        rates = [
            f"{r[name]:,.0f}" if name in r else "–" for name in ("per_second", "p50", "p99", "lag", "MB_per_second")
        ]
        cpu = f"{r['cpu']:,.1f}" if "cpu" in r else "–"
        return [*rates, cpu, f"{r['memory'] / 2**20:,.0f}", f"{r['errors']}"]

    head = [
        f"{section['clients']} clients",
        "server",
        "requests/s",
        "p50, ms",
        "p99, ms",
        "lag p99, ms",
        "MB/s",
        "CPU per request, ms",
        "memory, MiB",
        "errors",
    ]
    rows = section["rows"].items()
    lines = [[SETTINGS[setting], engine, *cells(r)] for setting, row in rows for engine, r in row.items()]
    return markdown_table(head, lines, labels=2)


def _versions() -> dict[str, Any]:
    """Return the versions of the services, as facts of the measurement."""
    names = ["zarrasync", "zarr", "fastapi", *(["titiler-xarray", "xpublish-edr", "xpublish-tiles"] if PEERS else [])]
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found: dict[str, str] = {}
    for python, wanted in ((sys.executable, names[:3]), (PEERS, names[3:])):
        if wanted:
            text = subprocess.run([python, "-c", code, *wanted], stdout=subprocess.PIPE, text=True, check=True).stdout
            found |= dict(zip(wanted, text.split(), strict=True))
    return {"versions": found}


def main() -> None:
    parser = make_parser(__doc__, only=SETTINGS, rounds=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of load per server and row")
    parser.add_argument("--clients", type=int, default=200, help="concurrent clients")
    args = parse_publishable(parser)
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as root:
        make(Path(root) / "x.zarr")
        for setting in args.only or SETTINGS:
            rows[setting] = measure(Path(root) / "x.zarr", setting, args.clients, args.seconds, args.rounds)

    name, versions = ("services", _versions()) if set(rows) <= set(PARTS) else ("serving", {})
    save(args, name, table, {"clients": args.clients, "seconds": args.seconds, "rows": rows, **versions})


if __name__ == "__main__":
    main()
