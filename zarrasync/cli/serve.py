"""Commands about the network: serve, bench."""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
from typing import Any

import numpy as np

from zarrasync import stores
from zarrasync._concurrency import clock
from zarrasync._concurrency.bridge import run
from zarrasync.cli.arguments import Commands, count, options
from zarrasync.cli.arguments import open_node as with_node
from zarrasync.cli.console import Console
from zarrasync.display.text import size_text
from zarrasync.errors import SelectionError
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open as open_node

__all__ = ["add"]


def add(command: Commands) -> None:
    """Make the commands."""
    serve = command(
        "serve",
        "serve a hierarchy on the web: a page to look at it, Zarr for other programs, tiles",
        _serve,
        examples=["serve data.zarr", "serve s3://bucket/era5.zarr -o anon=true --port 9000"],
        as_json=False,
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: this machine's own)")
    serve.add_argument("--port", type=_port, default=8000, help="the port; 0 for a free one (default: 8000)")
    serve.add_argument("--cache", type=int, default=256, metavar="MIB", help="memory for what was read (default: 256)")
    serve.add_argument("--max-age", type=float, default=60.0, metavar="SECONDS", help="how long clients believe it")
    serve.add_argument("--active", type=int, default=32, metavar="N", help="requests worked on at a time (default: 32)")
    serve.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for one request (default: 60)")
    serve.add_argument("--log", action="store_true", help="a line of JSON for each request, on the error stream")
    bench = command(
        "bench",
        "latency and throughput of a store, seen from here",
        _bench,
        examples=["bench s3://bucket/era5.zarr -o anon=true --path t2m"],
    )
    bench.add_argument("--seconds", type=float, default=5.0, metavar="S", help="how long to read (default: 5)")
    bench.add_argument(
        "--concurrency", type=count, default=0, metavar="N", help="requests in flight (default: the store's)"
    )


def _port(text: str) -> int:
    number = count(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"a port is at most 65535, found {number}")
    return number


def _serve(given: argparse.Namespace, console: Console) -> int:
    from zarrasync.server import Limits, create_app
    from zarrasync.server import run as run_app

    with_node(given).close()  # a server of nothing would seem to work
    app = create_app(
        given.url,
        path=given.path,
        limits=Limits(active=given.active, timeout=given.timeout),
        cache_bytes=given.cache << 20,
        max_age=given.max_age,
        storage_options=options(given.option),
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if given.log:
        logging.getLogger("zarrasync.server.access").setLevel(logging.INFO)
    run_app(app, host=given.host, port=given.port, print=lambda *lines: _announce(given, lines))
    return 0


def _announce(given: argparse.Namespace, lines: tuple[Any, ...]) -> None:
    """The address, when the server listens."""
    found = [word for line in lines for word in str(line).split() if word.startswith("http://")]
    if found:
        print(f"{given.url} is served at {found[0]}/\n(Ctrl-C ends it)", flush=True)


def _bench(given: argparse.Namespace, console: Console) -> int:
    store = stores.resolve(given.url, options(given.option))
    told = run(_measure(store, given), blocking=False)
    if console.as_json:
        console.data(told)
        return 0
    one, many = told["one at a time"], told["side by side"]
    console.facts(
        {
            "Array": f"{told['array']}, chunks of {told['chunks']}",
            "Opening": f"{told['open_ms']:.1f} ms",
            "One chunk at a time": f"{one['median_ms']:.1f} ms (median of {one['reads']}; 99 of 100 within {one['p99_ms']:.1f} ms)",
            "Side by side": f"{many['reads'] / many['seconds']:,.0f} chunks/s with {many['concurrency']} in flight",
            "Throughput": f"{size_text(many['bytes'] / many['seconds'])}/s decoded",
        }
    )
    return 0


async def _measure(store: stores.Store, given: argparse.Namespace) -> dict[str, Any]:
    start = clock.monotonic()
    node = await open_node(store, path=given.path)
    opened = clock.monotonic() - start
    if isinstance(node, AsyncArray) and not node.size:
        raise SelectionError(f"{node.name} has no elements", shape=node.shape)
    if not isinstance(node, AsyncArray):
        arrays = [own for _, own in await node.members(None) if isinstance(own, AsyncArray) and own.size]
        if not arrays:
            raise SelectionError(f"{node.name} holds no array with elements")
        node = max(arrays, key=lambda own: own.nbytes)
    concurrency = given.concurrency or node.store.concurrency
    durations, alone, _ = await _read(node, given.seconds / 2, 1)
    _, together, seconds = await _read(node, given.seconds / 2, concurrency)
    await store.close()
    return {
        "array": node.name,
        "chunks": node.chunks,
        "open_ms": opened * 1000,
        "one at a time": {
            "reads": len(alone),
            "median_ms": statistics.median(durations) * 1000,
            "p99_ms": float(np.percentile(durations, 99)) * 1000,
        },
        "side by side": {
            "reads": len(together),
            "concurrency": concurrency,
            "seconds": seconds,
            "bytes": sum(together),
        },
    }


async def _read(array: AsyncArray, seconds: float, count: int) -> tuple[list[float], list[int], float]:
    """Read chunks here and there for a while: how long each took, the bytes of each, and the time for all."""
    rng = np.random.default_rng()
    begin = clock.monotonic()
    durations: list[float] = []
    sizes: list[int] = []
    grid = array.metadata.read_grid

    async def reader() -> None:
        while not durations or clock.monotonic() - begin < seconds:
            at = tuple(int(rng.integers(axis.nchunks)) for axis in grid.axes)
            box = grid.box(at)
            start = clock.monotonic()
            values = np.asarray(await array.view[(*box, ...)].read())
            durations.append(clock.monotonic() - start)
            sizes.append(values.nbytes)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(reader())
    return durations, sizes, clock.monotonic() - begin
