"""Run the server and mixed writers for a long time, and print the memory and descriptors of each process every minute.

The server answers chunks, tiles and pages of the API, and requests of clients that disconnect. Two processes append to
one array, change parts of chunks and attributes, and resize another array. All numbers should be flat after the first
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

from zarrasync import sync

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
    time.sleep(0.05)
"""


def make_hierarchy(path: Path) -> None:
    root = sync.create_group(path, overwrite=True)
    root.create_array("log", shape=(0, 16), dtype="i4", chunks=(256, 16))
    root.create_array("field", data=np.zeros((256, 256), "f4"), chunks=(64, 64))
    for seed in (1, 2):
        root.create_array(f"own/{seed}", data=np.ones((200, 100)), chunks=(50, 50))


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
        path = Path(folder) / "soak.zarr"
        make_hierarchy(path)
        command = [sys.executable, "-m", "zarrasync", "serve", str(path), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n), str(end)]) for n in (1, 2)]
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = next(word for word in line.split() if word.startswith("http")).rstrip("/")
            processes = {"server": server.pid, "writer 1": writers[0].pid, "writer 2": writers[1].pid}
            answers = asyncio.run(read_and_report(url, processes, end))
            print(f"{answers:,} answers; exit codes of the writers: {[writer.wait(60) for writer in writers]}")
        finally:
            for process in (server, *writers):
                process.terminate()
                process.wait(10)
        print(sync.validate(path, data=True))


async def read_and_report(url: str, processes: dict[str, int], end: float) -> int:
    answers, _ = await asyncio.gather(read(url, end), report(processes, end))
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    soak(parser.parse_args().minutes)
