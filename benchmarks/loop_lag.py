"""Measures how long reads occupy the event loop of a service while 200 clients read.

    python benchmarks/loop_lag.py [--rounds N] [--out DIRECTORY] [--write-docs]

A loop looks at its sockets once per iteration, so an iteration is how long other tasks wait. Iterations are measured in CPU time
of the loop's thread, which other programs change little. The p99 is what a request meets at any time: 1 % of the time, the loop
is in a longer iteration. ``serving.py`` measures the lag of requests to a server. Prints a table and writes loop_lag.json and
loop_lag.md.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from harness import make_parser, markdown_table, parse_publishable, ram_disk, save

import zarrasync as za

CLIENTS = 200
READS = 4
"""Reads of each client."""
SHAPE, CHUNKS = (1000, 60, 120), (250, 20, 20)
Read = Callable[[Any, np.random.Generator], Awaitable[Any]]


class Heart:
    """A task that runs in each iteration of a loop.

    Attributes:
        times: The CPU times of the iterations, in seconds.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self._task = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        while True:
            start = time.thread_time()
            await asyncio.sleep(0)
            self.times.append(time.thread_time() - start)

    async def stop(self) -> None:
        """Stop the task."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def element(group: Any, generator: np.random.Generator) -> Any:
    place = await group.sel(time="1991-02-03", lat=generator.uniform(-80, 80), lon=generator.uniform(0, 360), **NEAREST)
    return await place["t2m"].read()


async def series(group: Any, generator: np.random.Generator) -> Any:
    place = await group.sel(lat=generator.uniform(-80, 80), lon=generator.uniform(0, 360), **NEAREST)
    return await place["t2m"].read()


async def region(group: Any, generator: np.random.Generator) -> Any:
    south, west = generator.uniform(-80, 50), generator.uniform(0, 300)
    place = await group.sel(time="1991-02", lat=slice(south, south + 30), lon=slice(west, west + 60))
    return await place["t2m"].read()


async def stations(group: Any, generator: np.random.Generator) -> Any:
    points = {"lat": generator.uniform(-80, 80, 20), "lon": generator.uniform(0, 360, 20)}
    place = await group.sel(points=points, time=slice("1991", "1992"), **NEAREST)
    return await place["t2m"].read()


NEAREST: dict[str, Any] = {"method": "nearest"}
READERS: dict[str, tuple[str, Read]] = {
    "element": ("one element", element),
    "series": ("a series of 1,000 elements", series),
    "region": ("a month of a region, 28 x 10 x 20", region),
    "stations": ("two years at 20 stations", stations),
}
CACHES = {"no cache": 0, "cache": 64 << 20}


async def create(path: str) -> None:
    """Write a packed archive."""
    group = await za.create_group(path)
    days = {"units": "days since 1990-01-01"}
    await group.create_array("time", data=np.arange(SHAPE[0]), dimension_names=["time"], attributes=days)
    for name, unit, values in (
        ("lat", "degrees_north", np.arange(88.5, -90, -3)),
        ("lon", "degrees_east", np.arange(1.5, 360, 3)),
    ):
        await group.create_array(name, data=values, dimension_names=[name], attributes={"units": unit})
    walk = np.random.default_rng(1).integers(-2, 3, SHAPE, "i1").cumsum(0, dtype="i2")
    packed = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    await group.create_array("t2m", data=walk, chunks=CHUNKS, dimension_names=["time", "lat", "lon"], attributes=packed)


async def serve(path: str, read: Read, cache: int) -> list[float]:
    """Read with all clients at once. Returns the times of the loop's iterations."""
    async with await za.open_group(path, config={"chunk_cache_bytes": cache}) as group:
        await read(group, np.random.default_rng(0))

        async def client(number: int) -> None:
            generator = np.random.default_rng(number)
            for _ in range(READS):
                await read(group, generator)

        gc.collect()
        gc.freeze()  # collections then leave out all imported objects, which take tens of milliseconds
        heart = Heart()
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        await heart.stop()
        return heart.times


def lag(path: str, read: Read, cache: int) -> dict[str, float]:
    """Return the p99 and the longest iteration, in milliseconds."""
    times = np.sort(asyncio.run(serve(path, read, cache))) * 1e3
    p99 = times[np.searchsorted(np.cumsum(times), 0.99 * times.sum())]
    return {"p99": float(p99), "longest": float(times[-1])}


def render(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    return markdown_table(
        ["200 clients read", "cache of chunks", "p99 of iterations, ms", "longest, ms"],
        [
            [row["title"], row["cache"], *(f"{row[key]:.2f}" for key in ("p99", "longest"))]
            for row in results["rows"].values()
        ],
        labels=2,
    )


def main() -> None:
    args = parse_publishable(make_parser(__doc__, rounds=3))
    rows: dict[str, Any] = {}
    with ram_disk("lag") as folder:
        asyncio.run(create(folder))
        for name, (title, read) in READERS.items():
            for cache, size in CACHES.items():
                found = [lag(folder, read, size) for _ in range(args.rounds)]
                best = {key: min(item[key] for item in found) for key in found[0]}
                rows[f"{name}, {cache}"] = {"title": title, "cache": "64 MiB" if size else "–", **best}
    save(args, "loop_lag", render, {"rows": rows})


if __name__ == "__main__":
    main()
