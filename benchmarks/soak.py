"""Run services and mixed writers for a long time, and print the memory and descriptors of each process every minute.

The server answers chunks, series, tables and pages of the API. A fifth of the requests are left early. Two processes append to
one array, change parts of chunks and attributes, and resize another array. They also append the time to an array that the
example of FastAPI serves, whose clients must see it before it is too old. All numbers should be flat after the first
minutes::

    python benchmarks/soak.py --minutes 30 [--clients 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

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
MAX_AGE = 2.0
"""Seconds for which the example reuses values and metadata, so that the last row may be twice as old."""


def make_hierarchy(path: Path) -> None:
    root = sync.create_group(path, overwrite=True)
    root.create_array("log", shape=(0, 16), dtype="i4", chunks=(256, 16))
    root.create_array("field", data=np.zeros((256, 256), "f4"), chunks=(64, 64), dimension_names=["lat", "lon"])
    for name, unit in (("lat", "degrees_north"), ("lon", "degrees_east")):
        root.create_array(name, data=np.arange(256) / 4, dimension_names=[name], attributes={"units": unit})
    root.create_array("clock", data=np.full((1, 1, 1), time.time()), chunks=(4096, 1, 1))
    for seed in (1, 2):
        root.create_array(f"own/{seed}", data=np.ones((200, 100)), chunks=(50, 50))
    sync.consolidate_metadata(path)


async def read(session: aiohttp.ClientSession, url: str, end: float, seed: int) -> Counter[int]:
    """Request keys, values and pages at a moderate rate until the end; return the number of answers by status."""
    chance, answers = random.Random(seed), Counter[int]()
    paths = [
        "/api/node?path=",
        "/raw/zarr.json",
        "/zarr/field/zarr.json",
        *(f"/raw/field/c/{i}/{j}" for i in range(4) for j in range(4)),
        *(f"/edr/collections/root/position?coords=POINT({i * 15}%20{i * 15})&parameter-name=field" for i in range(4)),
        "/api/data?path=field&format=csv",
    ]
    while time.time() < end:
        leaves = chance.random() < 0.2
        try:
            timeout = aiohttp.ClientTimeout(total=chance.random() * 0.05 if leaves else 60)
            async with session.get(url + chance.choice(paths), timeout=timeout) as response:
                await response.read()
                answers[response.status] += 1
        except TimeoutError:
            answers[499 if leaves else 504] += 1
        await asyncio.sleep(0.02)
    return answers


async def read_all(url: str, end: float, clients: int) -> Counter[int]:
    """Return the answers of several clients by status; 499 are those that were left early."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return sum(await asyncio.gather(*(read(session, url, end, n) for n in range(clients))), Counter[int]())


async def health(url: str, end: float) -> list[float]:
    """Return the milliseconds of health checks."""
    times = []
    async with aiohttp.ClientSession() as session:
        while time.time() < end:
            begin = time.perf_counter()
            async with session.get(f"{url}/healthz") as response:
                assert response.status == 200
            times.append(1000 * (time.perf_counter() - begin))
            await asyncio.sleep(0.1)
    return times


async def watch(url: str, end: float) -> float:
    """Request the array of times until the end; return the largest age of its last row, in seconds."""
    oldest = 0.0
    async with aiohttp.ClientSession() as session:
        while (now := time.time()) < end - 2:
            async with session.get(f"{url}/clock/series?row=0&column=0") as response:
                values = (await response.json())["values"]
            assert min(values) > now - 86400, "a row is missing"
            oldest = max(oldest, now - max(values))
            await asyncio.sleep(0.1)
    return oldest


def usage(pid: int) -> tuple[float, int]:
    """Return the resident memory of a process in MiB, and the number of its descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


async def report(processes: dict[str, int], end: float) -> None:
    print("minute", *(f"{name:>22}" for name in processes), flush=True)
    begin = time.time()
    while time.time() < end - 2:
        cells = ["{:7.1f} MiB {:4d} fds".format(*usage(pid)) for pid in processes.values()]
        print(f"{(time.time() - begin) / 60:6.1f}", *(f"{cell:>22}" for cell in cells), flush=True)
        await asyncio.sleep(min(60, max(0.1, end - 2 - time.time())))


def soak(minutes: float, clients: int) -> None:
    end = time.time() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        path, port = Path(folder) / "soak.zarr", servers.free_port()
        make_hierarchy(path)
        example = ["-m", "uvicorn", "fastapi_service:app", "--app-dir", str(EXAMPLES), "--port", str(port)]
        commands = {
            "server": ["-m", "zarrasync", "serve", str(path), "--port", "0"],
            "FastAPI": [*example, "--log-level", "error"],
            "writer 1": ["-c", WRITER, str(path), "1", str(end)],
            "writer 2": ["-c", WRITER, str(path), "2", str(end)],
        }
        environment = {**os.environ, "ZARR_URL": str(path), "ZARR_MAX_AGE": str(MAX_AGE)}
        processes = {
            name: subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True)
            for name, command in commands.items()
        }
        try:
            line = processes["server"].stdout.readline()  # type: ignore[union-attr]  # it is a pipe
            url = next(word for word in line.split() if word.startswith("http")).rstrip("/")
            servers.wait_for(port)
            answers, oldest, times = asyncio.run(observe(url, f"http://127.0.0.1:{port}", processes, end, clients))
            codes = [processes[name].wait(60) for name in ("writer 1", "writer 2")]
            shown = ", ".join(f"{count:,} with {status}" for status, count in sorted(answers.items()))
            print(f"answers: {shown}; exit codes of the writers: {codes}")
            print(
                "healthz: median {:.0f} ms, p99 {:.0f} ms, at most {:.0f} ms".format(
                    *np.quantile(times, [0.5, 0.99, 1])
                )
            )
            print(f"the last row that clients of the example saw was at most {oldest:.1f} s old")
        finally:
            for process in processes.values():
                process.terminate()
                process.wait(10)
        print(sync.validate(path, data=True))


async def observe(
    url: str, example: str, processes: dict[str, subprocess.Popen[str]], end: float, clients: int
) -> tuple[Counter[int], float, list[float]]:
    pids = {name: process.pid for name, process in processes.items()}
    work = read_all(url, end, clients), watch(example, end), health(url, end), report(pids, end)
    answers, oldest, times, _ = await asyncio.gather(*work)
    return answers, oldest, times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=20, help="concurrent clients of the server")
    args = parser.parse_args()
    soak(args.minutes, args.clients)
