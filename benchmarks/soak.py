"""Run services, 200 clients and mixed writers for some time, and check errors, memory and health checks.

The server answers chunks, series, tables and pages of the API. A fifth of the requests are left early, some clients read large
values slowly, and after a quarter of the time the server is killed and started again. Two processes append to one array, change
parts of chunks and attributes, and resize another array. They also append the time to an array that the example of FastAPI
serves, whose clients must see it before it is too old. The exit code is 1 if a response has another status than 200, a
connection fails at another time than during the restart, or, in five minutes or more, the memory of the server grows in the last
third::

    python benchmarks/soak.py --seconds 600 [--clients 200] [--program uvicorn]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import servers

from zarrasync import sync

EXAMPLES = Path(__file__).parent.parent / "examples"
WRITER = """
import random, sys, time
import numpy as np
from zarrasync import sync
path, seed, end = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
chance = random.Random(seed)
while time.time() < end:
    log = sync.open_array(path, path="log", mode="r+")
    log.append(np.full((chance.randrange(1, 9), 16), seed, "i4"))
    field = sync.open_array(path, path="field", mode="r+")
    row = chance.randrange(200)
    field[row : row + 7, ::3] = seed
    field.update_attributes({f"writer {seed}": row})
    length = chance.randrange(100, 300)
    sync.open_array(path, path=f"own/{seed}", mode="r+").resize((length, 100))
    sync.open_array(path, path="clock", mode="r+").append(np.full((1, 1, 1), time.time()))
    time.sleep(0.05)
"""
GROWTH, LONG = 16.0, 300.0
"""MiB by which the memory of the server may grow between the two halves of the last third, and seconds after which its caches are
full."""
MAX_AGE = 2.0
"""Seconds for which the example reuses values and metadata, so that the last row may be twice as old."""


def make_hierarchy(path: Path) -> None:
    root = sync.create_group(path, overwrite=True)
    root.create_array("log", shape=(0, 16), dtype="i4", chunks=(256, 16))
    root.create_array("field", data=np.ones((256, 256), "f4"), chunks=(64, 64), dimension_names=["lat", "lon"])
    for name, unit in (("lat", "degrees_north"), ("lon", "degrees_east")):
        root.create_array(name, data=np.arange(256) / 4, dimension_names=[name], attributes={"units": unit})
    root.create_array("clock", data=np.full((1, 1, 1), time.time()), chunks=(4096, 1, 1))
    for seed in (1, 2):
        root.create_array(f"own/{seed}", data=np.ones((200, 100)), chunks=(50, 50))
    sync.consolidate_metadata(path)


class Load:
    """Clients of a server.

    Args:
        url: The URL of the server.
        end: When the clients stop, in seconds since the epoch.

    Attributes:
        answers: The number of responses by status; 499 are those that were left early.
        failures: The begin, the end and the message of each request whose connection failed.
    """

    def __init__(self, url: str, end: float) -> None:
        self.url, self.end = url, end
        self.answers: Counter[int] = Counter()
        self.failures: list[tuple[float, float, str]] = []
        self.paths = [
            "/api/node?path=",
            "/raw/zarr.json",
            "/zarr/field/zarr.json",
            *(f"/raw/field/c/{i}/{j}" for i in range(4) for j in range(4)),
            *(
                f"/edr/collections/root/position?coords=POINT({i * 15}%20{i * 15})&parameter-name=field"
                for i in range(4)
            ),
            "/api/data?path=field&format=csv",
            "/api/data?path=field&select=:64,:64",
        ]

    async def read(self, session: aiohttp.ClientSession, seed: int) -> None:
        """Request keys, values and pages at a moderate rate until the end."""
        chance = random.Random(seed)
        while time.time() < self.end:
            leaves = chance.random() < 0.2
            timeout, begin = aiohttp.ClientTimeout(total=chance.random() * 0.05 if leaves else 60), time.time()
            try:
                async with session.get(self.url + chance.choice(self.paths), timeout=timeout) as response:
                    await response.read()
                    self.answers[response.status] += 1
            except TimeoutError:
                self.answers[499 if leaves else 504] += 1
            except aiohttp.ClientError as error:
                self.failures.append((begin, time.time(), repr(error)))
                await asyncio.sleep(1)
            await asyncio.sleep(0.02)

    async def read_slowly(self, session: aiohttp.ClientSession) -> None:
        """Receive a large value slowly, again and again."""
        while (begin := time.time()) < self.end:
            try:
                async with session.get(f"{self.url}/raw/big") as response:
                    async for _ in response.content.iter_chunked(256 << 10):
                        await asyncio.sleep(0.25)
                        if time.time() > self.end:
                            return
                self.answers[response.status] += 1
            except aiohttp.ClientError as error:
                self.failures.append((begin, time.time(), repr(error)))
                await asyncio.sleep(1)

    async def run(self, clients: int) -> None:
        """Run the clients, of which every twentieth is a slow one."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            slow = [self.read_slowly(session) for _ in range(max(clients // 20, 1))]
            await asyncio.gather(*slow, *(self.read(session, number) for number in range(clients - len(slow))))


HEALTH = """
import http.client, sys, time
host, end = sys.argv[1], float(sys.argv[2])
while time.time() < end:
    begin = time.perf_counter()
    try:
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("GET", "/healthz")
        print(connection.getresponse().status, time.perf_counter() - begin)
    except (OSError, http.client.HTTPException):
        time.sleep(0.1)
    connection.close()
    time.sleep(0.05)
"""


async def watch(example: str, load: Load) -> float:
    """Request the array of times until the end; return the largest age of its last row, in seconds."""
    oldest = 0.0
    async with aiohttp.ClientSession() as session:
        while (now := time.time()) < load.end - 2:
            async with session.get(f"{example}/clock/series?row=0&column=0") as response:
                load.answers[response.status] += 1
                found = await response.json()
            if response.status == 200:
                assert min(found["values"]) > now - 86400, "a row is missing"
                oldest = max(oldest, now - max(found["values"]))
            await asyncio.sleep(0.1)
    return oldest


def usage(pid: int) -> tuple[float, int]:
    """Return the resident memory of a process in MiB, and the number of its descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


async def report(processes: dict[str, subprocess.Popen[str]], end: float, seconds: float) -> list[tuple[float, float]]:
    """Print the memory and the descriptors of each process, and return the times and MiB of the server."""
    print("second", *(f"{name:>22}" for name in processes), flush=True)
    begin, memory, shown = time.time(), [], 0.0
    while time.time() < end - 1:
        used = [usage(process.pid) if process.poll() is None else (0.0, 0) for process in processes.values()]
        memory.append((time.time() - begin, used[0][0]))
        if time.time() >= shown:
            cells = ["{:7.1f} MiB {:4d} fds".format(*item) for item in used]
            print(f"{time.time() - begin:6.0f}", *(f"{cell:>22}" for cell in cells), flush=True)
            shown = time.time() + max(seconds / 12, 1)
        await asyncio.sleep(0.5)
    return memory


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True)


async def restart(
    processes: dict[str, subprocess.Popen[str]], command: list[str], port: int, at: float
) -> tuple[float, float]:
    """Kill the server at a time and start it again; return from when to when it was away."""
    await asyncio.sleep(at - time.time())
    begin = time.time()
    processes["server"].send_signal(signal.SIGKILL)
    processes["server"].wait()
    processes["server"] = start(command, dict(os.environ))
    await asyncio.to_thread(servers.wait_for, port, 60)
    return begin, time.time()


async def observe(
    load: Load,
    example: str,
    processes: dict[str, subprocess.Popen[str]],
    command: list[str],
    clients: int,
    seconds: float,
) -> dict[str, Any]:
    """Run the clients, and return what happened."""
    host, end = load.url.removeprefix("http://"), load.end

    async def restarted() -> tuple[float, float, int]:
        load.end = math.inf  # on a busy machine, the server takes long to start
        begin, back = await restart(processes, command, int(host.rpartition(":")[2]), end - seconds * 3 / 4)
        load.end = max(end, back + seconds / 4)
        return begin, back, load.answers[200]

    health = await asyncio.create_subprocess_exec(sys.executable, "-c", HEALTH, host, str(end), stdout=subprocess.PIPE)
    away, memory, oldest, _ = await asyncio.gather(
        restarted(),
        report(processes, end, seconds),
        watch(example, load),
        load.run(clients),
    )
    checks = np.array((await health.communicate())[0].split(), float).reshape(-1, 2)
    in_restart = [begin <= away[1] and end >= away[0] for begin, end, _ in load.failures]
    late = [used for second, used in memory if second > seconds * 2 / 3]
    return {
        "answers": dict(sorted(load.answers.items())),
        "responses after the restart": load.answers[200] - away[2],
        "failures during the restart": sum(in_restart),
        "other failures": [item[2] for item, is_known in zip(load.failures, in_restart, strict=True) if not is_known][
            :5
        ],
        "healthz": dict(Counter(checks[:, 0].astype(int).tolist())),
        "healthz, ms: median, p99, most": [
            round(float(item * 1000)) for item in np.quantile(checks[:, 1], [0.5, 0.99, 1])
        ],
        "growth in the last third, MiB": round(max(late[len(late) // 2 :]) - max(late[: len(late) // 2]), 1),
        "oldest row, s": round(oldest, 1),
    }


def soak(seconds: float, clients: int, program: str) -> int:
    """Run everything, print a summary, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        path, port, other = Path(folder) / "soak.zarr", servers.free_port(), servers.free_port()
        make_hierarchy(path)
        (path / "big").write_bytes(os.urandom(16 << 20))
        serve = ["-m", "zarrasync", "serve", str(path), "--port", str(port), "--server", program, "--cache", "32"]
        uvicorn = ["-m", "uvicorn", "fastapi_service:app", "--app-dir", str(EXAMPLES), "--port", str(other)]
        environment = {**os.environ, "ZARR_URL": str(path), "ZARR_MAX_AGE": str(MAX_AGE)}
        example = start([*uvicorn, "--log-level", "error"], environment)
        processes = {"server": start(serve, environment), "FastAPI": example}
        try:
            servers.wait_for(port, 60)
            servers.wait_for(other, 60)
            load = Load(f"http://127.0.0.1:{port}", time.time() + seconds)
            for number in ("1", "2"):
                processes[f"writer {number}"] = start(["-c", WRITER, str(path), number, str(load.end)], environment)
            found = asyncio.run(observe(load, f"http://127.0.0.1:{other}", processes, serve, clients, seconds))
            found["exit codes of writers"] = [processes[name].wait(60) for name in ("writer 1", "writer 2")]
        finally:
            for process in processes.values():
                process.kill()
                process.wait(10)
        checked = sync.validate(path, data=True)
        problems = [] if checked.ok else checked.findings[:5]
    for name, value in {**found, "problems of the store": problems}.items():
        print(f"{name}: {value}")
    is_good = found["answers"].keys() <= {200, 499} and found["healthz"].keys() == {200}
    is_good = is_good and found["responses after the restart"] > 0
    is_good = is_good and not (found["other failures"] or problems or any(found["exit codes of writers"]))
    grows = seconds >= LONG and found["growth in the last third, MiB"] > GROWTH
    return int(not is_good or grows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=200, help="concurrent clients of the server")
    parser.add_argument(
        "--program", choices=("aiohttp", "uvicorn"), default="aiohttp", help="the server's HTTP library"
    )
    args = parser.parse_args()
    sys.exit(soak(args.seconds, args.clients, args.program))
