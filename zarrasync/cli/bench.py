"""The command bench, which measures a store."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync import stores
from zarrasync._concurrency import clock
from zarrasync._concurrency.bridge import run
from zarrasync.cli.arguments import Commands, count, options
from zarrasync.cli.console import Console
from zarrasync.display.text import size_text
from zarrasync.errors import SelectionError
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open as open_node
from zarrasync.nodes.group import AsyncGroup


def add(command: Commands) -> None:
    """Add the command."""
    bench = command(
        "bench",
        "measure the latency and throughput of a store from this machine",
        _bench,
        examples=["bench s3://bucket/era5.zarr -o anon=true --path t2m"],
    )
    bench.add_argument("--seconds", type=float, default=5.0, metavar="S", help="duration of each test (default: 5)")
    bench.add_argument(
        "--concurrency", type=count, default=0, metavar="N", help="requests in flight (default: the store's)"
    )


def _bench(args: argparse.Namespace, console: Console) -> int:
    store = stores.resolve(args.url, options(args.option))
    results = run(_measure(store, args), blocking=False)
    if console.as_json:
        console.data(results)
        return 0
    one, many = results["one at a time"], results["side by side"]
    console.facts(
        {
            "Array": f"{results['array']}, chunks of {results['chunks']}",
            "Opening": f"{results['open_ms']:.1f} ms",
            "One chunk at a time": f"{one['median_ms']:.1f} ms (median of {one['reads']}; 99 of 100 within {one['p99_ms']:.1f} ms)",
            "Side by side": f"{many['reads'] / many['seconds']:,.0f} chunks/s with {many['concurrency']} in flight",
            "Throughput": f"{size_text(many['bytes'] / many['seconds'])}/s decoded",
        }
    )
    return 0


@dataclass
class _Reads:
    """Reads of single chunks.

    Attributes:
        durations: The seconds of each read.
        sizes: The decoded bytes of each chunk.
        seconds: The seconds of all reads together.
    """

    durations: list[float]
    sizes: list[int]
    seconds: float


async def _measure(store: stores.Store, args: argparse.Namespace) -> dict[str, Any]:
    start = clock.monotonic()
    node = await open_node(store, path=args.path)
    open_seconds = clock.monotonic() - start
    array = await _largest_array(node)
    concurrency = args.concurrency or array.store.concurrency
    one = await _read_chunks(array, args.seconds / 2, 1)
    many = await _read_chunks(array, args.seconds / 2, concurrency)
    await store.close()
    return {
        "array": array.name,
        "chunks": array.chunks,
        "open_ms": open_seconds * 1000,
        "one at a time": {
            "reads": len(one.sizes),
            "median_ms": statistics.median(one.durations) * 1000,
            "p99_ms": float(np.percentile(one.durations, 99)) * 1000,
        },
        "side by side": {
            "reads": len(many.sizes),
            "concurrency": concurrency,
            "seconds": many.seconds,
            "bytes": sum(many.sizes),
        },
    }


async def _largest_array(node: AsyncArray | AsyncGroup) -> AsyncArray:
    """Return the node itself, or the largest array below a group.

    Raises:
        SelectionError: If no array has elements.
    """
    if isinstance(node, AsyncArray):
        if not node.size:
            raise SelectionError(f"{node.name} has no elements", shape=node.shape)
        return node
    members = [member for _, member in await node.members(None)]
    arrays = [member for member in members if isinstance(member, AsyncArray) and member.size]
    if not arrays:
        raise SelectionError(f"{node.name} contains no array with elements")
    return max(arrays, key=lambda array: array.nbytes)


async def _read_chunks(array: AsyncArray, seconds: float, concurrency: int) -> _Reads:
    """Read random chunks for some time."""
    rng = np.random.default_rng()
    begin = clock.monotonic()
    reads, grid = _Reads([], [], 0.0), array.metadata.read_grid

    async def reader() -> None:
        while not reads.durations or clock.monotonic() - begin < seconds:
            coords = tuple(int(rng.integers(axis.nchunks)) for axis in grid.axes)
            start = clock.monotonic()
            values = np.asarray(await array.view[(*grid.box(coords), ...)].read())
            reads.durations.append(clock.monotonic() - start)
            reads.sizes.append(values.nbytes)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(reader())
    reads.seconds = clock.monotonic() - begin
    return reads
