"""Commands that show stores without changing them: info, tree, ls, cat, stats, validate, bench."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import stores, sync
from zarrasync._concurrency import clock
from zarrasync._concurrency.bridge import run
from zarrasync.cli import cat
from zarrasync.cli.arguments import (
    Commands,
    add_monitoring,
    add_raw,
    count,
    levels,
    monitored,
    open_node,
    options,
    presented_arrays,
    select,
)
from zarrasync.cli.console import Console
from zarrasync.display.info import encoding_facts
from zarrasync.display.presentation import Presentation
from zarrasync.display.text import chunk_shapes, printable, size_text
from zarrasync.errors import SelectionError, UnsupportedOperation
from zarrasync.nodes.access import array_encoding
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open as open_async
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.statistics import Summary, number_text, statistics_facts, summarize

_DEFAULT_BINS = 20


def add(command: Commands) -> None:
    """Add the commands."""
    info = command("info", "describe an array or group", _info, examples=["info s3://bucket/era5.zarr -o anon=true"])
    info.add_argument("--stored", action="store_true", help="list the store to determine stored sizes and compression")
    tree = command(
        "tree",
        "print the hierarchy below a group",
        _tree,
        examples=["tree data.zarr", "tree s3://bucket/data.zarr --depth 1"],
    )
    tree.add_argument("--depth", type=levels, metavar="N", help="show only N levels, and list no group below them")
    ls = command("ls", "list the members of a group", _ls, examples=["ls -l data.zarr", "ls -r data.zarr --path raw"])
    ls.add_argument("-l", "--long", action="store_true", help="print shapes, types, chunks and stored sizes")
    ls.add_argument("-r", "--recursive", action="store_true", help="list all nodes below the group")
    cat.add(command)
    stats = command("stats", "print statistics of arrays", _stats, examples=["stats data.zarr --path t2m --histogram"])
    stats.add_argument("-s", "--select", default="...", metavar="SELECTION", help="use only this selection")
    stats.add_argument(
        "--histogram", nargs="?", type=count, const=_DEFAULT_BINS, default=0, metavar="BINS", help="draw a histogram"
    )
    add_raw(stats)
    validate = command(
        "validate",
        "check an array or group and all nodes below it for errors",
        _validate,
        examples=["validate data.zarr --data"],
    )
    validate.add_argument("--data", action="store_true", help="also decode every chunk")
    validate.add_argument("--repair", action="store_true", help="remove temporary files of writers that were killed")
    add_monitoring(validate)
    validate.add_argument("--manifest", metavar="FILE", help="compare all files with the files in a manifest")
    manifest = command(
        "manifest",
        "print the digests of all files, for `validate --manifest`",
        _manifest,
        examples=["manifest data.zarr > data.manifest.json", "manifest data.zarr --digest"],
        as_json=False,
    )
    manifest.add_argument(
        "--digest", action="store_true", help="print only the digest of the whole, as DANDI defines it"
    )
    _add_bench(command)


# ------------------------------------------------------------------ nodes


def _info(args: argparse.Namespace, console: Console) -> int:
    node = open_node(args)
    if args.stored and isinstance(node, sync.Group):
        raise ValueError(f"{node.name} is a group; `ls -l -r` lists the stored sizes of the arrays below")
    items = (node.info_complete() if args.stored and isinstance(node, sync.Array) else node.info).items
    if isinstance(node, sync.Array):  # bounds have the units of their coordinate
        items = {**items, **encoding_facts(run(array_encoding(node.async_), blocking=node.store.blocking))}
    if not console.as_json:
        console.facts(items)
        return 0
    facts: dict[str, Any] = _facts(node) | {"store": repr(node.store), "attributes": dict(node.attrs)}
    if args.stored and isinstance(node, sync.Array):
        facts["nbytes_stored"] = node.nbytes_stored()
    console.data(facts)
    return 0


def _facts(node: sync.Array | sync.Group) -> dict[str, Any]:
    """Return facts about a node for JSON."""
    if isinstance(node, sync.Group):
        return {"name": node.name, "kind": "group", "zarr_format": node.zarr_format}
    return {
        "name": node.name,
        "kind": "array",
        "zarr_format": node.zarr_format,
        "shape": node.shape,
        "dtype": str(node.dtype),
        **chunk_shapes(node.metadata),
        "dimension_names": node.dimension_names,
        "fill_value": str(node.fill_value),
        "codecs": [codec.label for codec in node.metadata.codecs.codecs],
        "nbytes": node.nbytes,
    }


def _tree(args: argparse.Namespace, console: Console) -> int:
    node = open_node(args)
    deepest = None if args.depth is None else args.depth - 1
    if console.as_json:
        console.data([_facts(node), *(_facts(member) for _, member in _members(node, deepest))])
    else:
        console.text(node.tree(deepest) if isinstance(node, sync.Group) else f"{node.name} {node.shape} {node.dtype}")
    return 0


def _members(node: sync.Array | sync.Group, depth: int | None = None) -> Iterator[tuple[str, Any]]:
    if isinstance(node, sync.Group):
        yield from node.members(depth)


def _ls(args: argparse.Namespace, console: Console) -> int:
    node = open_node(args)
    members = list(_members(node, None if args.recursive else 0))
    if not members and isinstance(node, sync.Array):
        members = [("", node)]
    sizes = {name: _stored_bytes(member) for name, member in members} if args.long else {}
    if console.as_json:
        stored = {name: {"nbytes_stored": size} for name, size in sizes.items()}
        console.data([{"path": name, **_facts(member), **stored.get(name, {})} for name, member in members])
    elif not args.long:
        for name, member in members:
            console.text(printable(_display_name(name, member)))
    else:
        rows = [
            (
                _display_name(name, member),
                *(("", "", "", "") if isinstance(member, sync.Group) else _columns(member)),
                "" if sizes[name] is None else size_text(sizes[name] or 0),
            )
            for name, member in members
        ]
        console.table(("name", ">shape", "dtype", ">chunks", ">size", ">stored"), rows)
    return 0


def _display_name(name: str, member: sync.Array | sync.Group) -> str:
    return f"{name}/" if isinstance(member, sync.Group) else name or member.name


def _columns(array: sync.Array) -> tuple[str, str, str, str]:
    shapes = chunk_shapes(array.metadata)
    chunks = "×".join(map(_sizes_text, shapes["chunks"]))
    if array.shards:
        chunks += f" in {'×'.join(map(_sizes_text, shapes['shards']))}"
    return "×".join(map(str, array.shape)) or "scalar", str(array.dtype), chunks, size_text(array.nbytes)


def _sizes_text(sizes: int | list[int]) -> str:
    """Return the size of chunks along an axis, or the first of several sizes."""
    return str(sizes) if isinstance(sizes, int) else f"[{', '.join(map(str, sizes[:4]))}{', …' * (len(sizes) > 4)}]"


def _stored_bytes(node: sync.Array | sync.Group) -> int | None:
    """Return the stored bytes of an array; ``None`` if the store cannot list."""
    try:
        return node.nbytes_stored() if isinstance(node, sync.Array) else None
    except UnsupportedOperation:
        return None


# ------------------------------------------------------------------ values


def _stats(args: argparse.Namespace, console: Console) -> int:
    summaries: dict[str, tuple[Summary, Presentation]] = {}
    skipped = []
    for name, array, presentation in presented_arrays(args):
        if array.dtype.kind not in "biuf":
            skipped.append(f"{name} ({array.dtype})")
            continue
        view = select(array, args.select).async_
        summary = run(summarize(view, presentation, args.histogram), blocking=array.store.blocking)
        summaries[name] = summary, presentation
    if skipped:
        print(f"zarrasync: skipped arrays without numbers: {', '.join(skipped)}", file=sys.stderr)
    if skipped and not summaries:
        return 1
    if console.as_json:
        console.data({name: statistics_facts(*item) for name, item in summaries.items()})
        return 0
    console.table(
        ("array", ">values", ">missing", ">inf", ">min", ">max", ">mean", ">std", "unit"),
        [(name, *_statistics_texts(*item)) for name, item in summaries.items()],
    )
    for name, (summary, presentation) in summaries.items():
        if note := statistics_facts(summary, presentation).get("note"):
            print(f"zarrasync: {name}: the times are shown as numbers: {note}", file=sys.stderr)
        if summary.histogram and summary.low is not None and summary.high is not None:
            console.text(f"\n{name}{f' [{presentation.unit}]' if presentation.unit else ''}")
            width = (summary.high - summary.low) / len(summary.histogram)
            labels = [f"{summary.low + i * width:.4g}" for i in range(len(summary.histogram))]
            console.bars(labels, summary.histogram)
    return 0


def _statistics_texts(summary: Summary, presentation: Presentation) -> list[str]:
    counts = [f"{number:,}" for number in (summary.count, summary.invalid, summary.infinite)]
    numbers = (summary.minimum, summary.maximum, summary.mean)
    dates, _ = presentation.dates(numbers)
    texts = [date or number_text(number) for date, number in zip(dates, numbers, strict=True)]
    return [*counts, *texts, number_text(summary.std), presentation.unit]


def _validate(args: argparse.Namespace, console: Console) -> int:
    from zarrasync.bulk.digests import Manifest

    manifest = None if args.manifest is None else Manifest.loads(Path(args.manifest).read_bytes())
    with monitored(args) as watch:
        report = sync.validate(
            args.url,
            path=args.path,
            data=args.data,
            manifest=manifest,
            repair=args.repair,
            progress=watch.progress,
            storage_options=options(args.option),
        )
        watch.report = report
    console.report(report)
    return 0 if report.ok else 1


def _manifest(args: argparse.Namespace, console: Console) -> int:
    manifest = sync.manifest(args.url, path=args.path, storage_options=options(args.option))
    console.text(manifest.digest if args.digest else manifest.dumps().rstrip())
    return 0


# ------------------------------------------------------------------ bench


def _add_bench(command: Commands) -> None:
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


async def _measure(store: stores.Store, args: argparse.Namespace) -> dict[str, Any]:
    start = clock.monotonic()
    node = await open_async(store, path=args.path)
    open_seconds = clock.monotonic() - start
    array = await _largest_array(node)
    concurrency = args.concurrency or array.store.concurrency
    one, _, _ = await _read_chunks(array, args.seconds / 2, 1)
    many, nbytes, seconds = await _read_chunks(array, args.seconds / 2, concurrency)
    await store.close()
    return {
        "array": array.name,
        "chunks": array.chunks,
        "open_ms": open_seconds * 1000,
        "one at a time": {
            "reads": len(one),
            "median_ms": statistics.median(one) * 1000,
            "p99_ms": float(np.percentile(one, 99)) * 1000,
        },
        "side by side": {"reads": len(many), "concurrency": concurrency, "seconds": seconds, "bytes": nbytes},
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


async def _read_chunks(array: AsyncArray, seconds: float, concurrency: int) -> tuple[list[float], int, float]:
    """Read random chunks for some time. Return the seconds of each read, the decoded bytes, and the seconds of all."""
    rng, grid, begin = np.random.default_rng(), array.metadata.read_grid, clock.monotonic()
    durations, sizes = list[float](), list[int]()

    async def reader() -> None:
        while not durations or clock.monotonic() - begin < seconds:
            coords = tuple(int(rng.integers(axis.nchunks)) for axis in grid.axes)
            start = clock.monotonic()
            values = np.asarray(await array.view[(*grid.box(coords), ...)].read())
            durations.append(clock.monotonic() - start)
            sizes.append(values.nbytes)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(reader())
    return durations, sum(sizes), clock.monotonic() - begin
