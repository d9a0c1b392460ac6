"""Run services and mixed writers for a long time, and print the memory and descriptors of each process every minute.

The server answers chunks, tiles and pages of the API, and requests of clients that disconnect. Two processes append to
one array, change parts of chunks and attributes, and resize another array. They also append the time to an array that the
example of FastAPI serves, whose clients must see it before it is too old. All numbers should be flat after the first
minutes::

    python benchmarks/soak.py --minutes 30
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
    root.create_array("field", data=np.zeros((256, 256), "f4"), chunks=(64, 64))
    root.create_array("clock", data=np.full((1, 1, 1), time.time()), chunks=(4096, 1, 1))
    for seed in (1, 2):
        root.create_array(f"own/{seed}", data=np.ones((200, 100)), chunks=(50, 50))
    sync.consolidate_metadata(path)


async def read(url: str, end: float) -> int:
    """Request keys and pages at a moderate rate until the end; return the number of answers."""
    chance, answers = random.Random(0), 0
    paths = [
        "/api/node?path=",
        "/raw/zarr.json",
        "/zarr/field/zarr.json",
        *(f"/raw/field/c/{i}/{j}" for i in range(4) for j in range(4)),
    ]
    async with aiohttp.ClientSession() as session:
        while time.time() < end:
            try:
                timeout = aiohttp.ClientTimeout(total=chance.choice([0.0005, 5, 5, 5]))  # some clients disconnect
                async with session.get(url + chance.choice(paths), timeout=timeout) as response:
                    await response.read()
                    answers += 1
            except (TimeoutError, aiohttp.ClientError):
                pass
            await asyncio.sleep(0.02)
    return answers


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


def soak(minutes: float) -> None:
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
            answers, oldest = asyncio.run(observe(url, f"http://127.0.0.1:{port}", processes, end))
            codes = [processes[name].wait(60) for name in ("writer 1", "writer 2")]
            print(f"{answers:,} answers; exit codes of the writers: {codes}")
            print(f"the last row that clients of the example saw was at most {oldest:.1f} s old")
        finally:
            for process in processes.values():
                process.terminate()
                process.wait(10)
        print(sync.validate(path, data=True))


async def observe(url: str, example: str, processes: dict[str, subprocess.Popen[str]], end: float) -> tuple[int, float]:
    pids = {name: process.pid for name, process in processes.items()}
    answers, oldest, _ = await asyncio.gather(read(url, end), watch(example, end), report(pids, end))
    return answers, oldest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    soak(parser.parse_args().minutes)
