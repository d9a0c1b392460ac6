"""Measures bulk ingestion with zarrasync and peers: a global land mask and a large field, into files and S3.

    python benchmarks/ingest.py [--gigabytes N] [--rounds N] [--only SETTING …] [--engines ENGINE …] [--out DIRECTORY] [--write-docs]

Sources are memory-mapped .npy files. Each run has a new process, and the median counts. Files are on a RAM disk if there
is one. With ``--s3`` the arrays are written to Ceph's gateway (keys of a running one are in the AWS_* environment variables).
Payloads are not hashed if the library supports that, as zarrasync does not hash them with TLS. Prints a table, and writes ingest-files.json
and ingest-files.md, or ingest-s3.json and ingest-s3.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import servers
from harness import columns, make_parser, markdown_table, medians, parse_publishable, ram_disk, remove, rotate, save

MIB = 1 << 20
LAYOUTS: dict[str, dict[str, Any]] = {
    "mask": {"chunks": (1350, 2700), "shards": None},
    "field": {"chunks": (512, 512), "shards": (4096, 4096)},
    "field-chunks": {"chunks": (1024, 1024), "shards": None},
}
TITLES = {
    "mask": "the land mask, 21,600 x 43,200 bool, chunks of 3.6 MB",
    "field": "float32, shards of 64 MiB of chunks of 1 MiB",
    "field-chunks": "float32, chunks of 4 MiB",
}
LEVEL = 1


def boxes(shape: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    cuts = [[slice(a, min(a + s, n)) for a in range(0, n, s)] for n, s in zip(shape, steps, strict=True)]
    return product(*cuts)


# ---------------------------------------------------------------------- engines


def zarrasync(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    from zarrasync import sync

    options = {"storage_options": s3} if s3 else {}
    codec = {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}}
    sync.ingest(
        source, target, mode="w", chunks=layout["chunks"], shards=layout["shards"], compressors=codec, **options
    )


def _zarr_array(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> Any:
    import zarr

    store: Any = target
    if s3:
        from obstore.store import S3Store

        bucket, _, prefix = target.removeprefix("s3://").partition("/")
        client: Any = {"allow_http": True}
        store = zarr.storage.ObjectStore(
            S3Store(
                bucket, prefix=prefix, endpoint=s3["endpoint_url"], access_key_id=s3["key"], unsigned_payload=True,
                secret_access_key=s3["secret"], region="us-east-1", client_options=client,
            )
        )  # fmt: skip
    return zarr.create_array(
        store, shape=source.shape, dtype=source.dtype, chunks=layout["chunks"], shards=layout["shards"],
        compressors=zarr.codecs.ZstdCodec(level=LEVEL), overwrite=True,
    )  # fmt: skip


def zarr_python(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    array = _zarr_array(source, target, layout, s3)
    step = 4 * (layout["shards"] or layout["chunks"])[0] if not layout["shards"] else layout["shards"][0]
    for start in range(0, source.shape[0], step):  # all at once would hold all of it in memory
        array[start : start + step] = source[start : start + step]


def zarr_python_dask(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    import dask.array as da

    array = _zarr_array(source, target, layout, s3)
    da.store(da.from_array(source, chunks=layout["shards"] or layout["chunks"]), array, lock=False)


def tensorstore(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    import tensorstore as ts

    kvstore: dict[str, Any] = {"driver": "file", "path": f"{target}/"}
    if s3:
        bucket, _, prefix = target.removeprefix("s3://").partition("/")
        kvstore = {
            "driver": "s3", "bucket": bucket, "path": f"{prefix}/", "endpoint": s3["endpoint_url"],
            "aws_region": "us-east-1", "aws_credentials": {"type": "environment"},
        }  # fmt: skip
    else:
        kvstore["file_io_sync"] = False
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs.append({"name": "zstd", "configuration": {"level": LEVEL}})
    if layout["shards"]:
        codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": layout["chunks"], "codecs": codecs}}]
    grid = {"name": "regular", "configuration": {"chunk_shape": layout["shards"] or layout["chunks"]}}
    data_type = "bool" if source.dtype == bool else "float32"
    metadata = {"shape": source.shape, "data_type": data_type, "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    array = ts.open(spec, create=True, delete_existing=True).result()
    pending: list[Any] = []
    for box in boxes(source.shape, layout["shards"] or layout["chunks"]):
        pending.append(array[box].write(source[box]))
        if len(pending) > 4:
            pending.pop(0).result()
    for one in pending:
        one.result()


def zarrista(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    import zarrista as peer

    from zarrasync import sync

    codec = {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}}
    sync.create_array(
        target, shape=source.shape, dtype=source.dtype, chunks=layout["chunks"], shards=layout["shards"],
        compressors=codec, overwrite=True, storage_options=s3 or None,
    )  # fmt: skip
    step = layout["shards"] or layout["chunks"]
    if s3:
        asyncio.run(zarrista_s3(source, target, step, s3))
        return
    array = peer.Array.open(peer.store.FilesystemStore(target), "/")
    rows = step[0] * (1 if layout["shards"] else 4)
    for start in range(0, source.shape[0], rows):
        box = (slice(start, min(start + rows, source.shape[0])), *(slice(0, n) for n in source.shape[1:]))
        array.store_array_subset(box, np.ascontiguousarray(source[box]))


async def zarrista_s3(source: np.ndarray, target: str, step: tuple[int, ...], s3: dict[str, str]) -> None:
    """Store several chunks at a time, as the library leaves concurrency to its callers."""
    import zarrista as peer
    from obstore.store import S3Store

    bucket, _, prefix = target.removeprefix("s3://").partition("/")
    store = S3Store(
        bucket, prefix=prefix, endpoint=s3["endpoint_url"], access_key_id=s3["key"], secret_access_key=s3["secret"],
        region="us-east-1", client_options={"allow_http": True}, unsigned_payload=True,
    )  # fmt: skip
    array = await peer.AsyncArray.open(store, "/")
    semaphore = asyncio.Semaphore(8)

    async def one(box: tuple[slice, ...]) -> None:
        async with semaphore:
            await array.store_array_subset(box, np.ascontiguousarray(source[box]))

    await asyncio.gather(*(one(box) for box in boxes(source.shape, step)))


def floor(source: np.ndarray, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    """No library: the codec on all cores, and a file for each chunk (whole shards count as one)."""
    if s3:
        raise NotImplementedError("files")
    import numcodecs

    codec = numcodecs.Zstd(level=LEVEL)
    os.makedirs(target, exist_ok=True)

    def one(item: tuple[int, tuple[slice, ...]]) -> None:
        number, box = item
        block, parts = source[box], []
        for inner in boxes(block.shape, layout["chunks"]):
            part = block[inner]
            if part.any():
                parts.append(codec.encode(np.ascontiguousarray(part)))
        if parts:
            with open(f"{target}/{number}.part", "wb") as file:
                file.writelines(parts)
            os.replace(f"{target}/{number}.part", f"{target}/{number}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, enumerate(boxes(source.shape, layout["shards"] or layout["chunks"]))))


ENGINES = {
    "zarrasync": zarrasync,
    "zarr-python": zarr_python,
    "zarr-python + dask": zarr_python_dask,
    "tensorstore": tensorstore,
    "zarrista": zarrista,
    "floor": floor,
}

# ---------------------------------------------------------------------- measuring


def worker(name: str, source: str, target: str, layout: dict[str, Any], s3: dict[str, str]) -> None:
    """Run one engine once, and print time and memory."""
    data = np.load(source, mmap_mode="r")
    ENGINES[name](data[: layout["chunks"][0], : layout["chunks"][1]], f"{target}-warm", {**layout, "shards": None}, s3)
    anonymous = _anonymous()
    stop = False
    most = anonymous

    def watch() -> None:
        nonlocal most
        while not stop:
            most = max(most, _anonymous())
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        ENGINES[name](data, target, layout, s3)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        stop = True
        watching.result()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"s": seconds, "cpu_s": cpu, "peak_mib": (most - anonymous) / MIB}), flush=True)


def _anonymous() -> int:
    """Return the bytes of anonymous memory, which excludes mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def make_sources(folder: Path, gigabytes: float) -> dict[str, Path]:
    """Create the source files."""
    sources = {}
    try:
        from global_land_mask import globe

        rows, columns = np.linspace(-90, 90, 21600), np.linspace(-180, 180, 43200)
        mask = np.empty((21600, 43200), bool)
        for start in range(0, 21600, 1350):
            mask[start : start + 1350] = globe.is_land(rows[start : start + 1350, None], columns[None])
        np.save(folder / "mask.npy", mask)
        sources["mask"] = folder / "mask.npy"
    except ImportError:
        print("global-land-mask is not installed: skipping the mask")
    side = int((gigabytes * 2**30 / 4) ** 0.5) // 4096 * 4096
    field = np.lib.format.open_memmap(folder / "field.npy", "w+", "f4", (side, side))
    x = np.linspace(0, 60, side, dtype="f4")
    noise = np.random.default_rng(0)
    for start in range(0, side, 1024):
        y = np.linspace(start, start + 1024, 1024, dtype="f4")[:, None] / 300
        field[start : start + 1024] = (np.sin(x + y) * 20 + noise.normal(size=(1024, side))).round(1)
    del field
    sources["field"] = sources["field-chunks"] = folder / "field.npy"
    return sources


def measure(
    sources: dict[str, Path], setting: str, names: list[str], scratch: str, s3: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Return one row: the medians of all engines."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    layout = json.dumps(LAYOUTS[setting])
    for number in range(rounds):
        for name in rotate(names, number):
            if any("failed" in result for result in results[name]):
                continue
            target = f"s3://zarrasync/{uuid.uuid4().hex}" if s3 else f"{scratch}/{uuid.uuid4().hex}"
            command = [sys.executable, __file__, "--worker", name, str(sources[setting]), target, layout]
            process = subprocess.run([*command, json.dumps(s3)], capture_output=True, text=True, check=False)
            last = process.stderr.strip().splitlines()[-1:] or ["no output"]
            failed = {"failed": last[0][:200]}
            results[name].append(failed if process.returncode else json.loads(process.stdout))
            for path in (target, f"{target}-warm"):
                remove(path, s3)
    return {name: medians(runs) for name, runs in results.items()}


def table(section: dict[str, Any]) -> str:
    """Return seconds and memory as Markdown."""

    def cell(result: dict[str, Any]) -> str:
        return f"{result['s']:.2f} s, {result['peak_mib']:,.0f} MiB" if "s" in result else "–"

    rows = section["rows"]
    names = columns(rows)
    return markdown_table(
        [f"into {section['place']}", *names],
        ([TITLES[setting], *(cell(row.get(name, {})) for name in names)] for setting, row in rows.items()),
    )


def main() -> None:
    parser = make_parser(__doc__, only=LAYOUTS, engines=ENGINES, rounds=3)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="the size of the field")
    parser.add_argument(
        "--s3", help="write to an S3 server with a bucket 'zarrasync': its endpoint, or 'radosgw' to start one"
    )
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parse_publishable(parser)
    if args.worker:
        name, source, target, layout, s3 = args.worker
        worker(name, source, target, json.loads(layout), json.loads(s3))
        return
    names = list(args.engines or ENGINES)
    rows: dict[str, dict[str, Any]] = {}
    with ram_disk("ingest") as scratch, servers.s3_options(args.s3, int(args.gigabytes * 1e9)) as options:
        sources = make_sources(Path(scratch), args.gigabytes)
        for setting in args.only or sources:
            rows[setting] = measure(sources, setting, names, scratch, options, args.rounds)
            for name, result in rows[setting].items():
                print(setting, name, result, flush=True)
    place = "S3" if args.s3 else "files"
    results = {"place": place, "gigabytes": args.gigabytes, "rounds": args.rounds, "rows": rows}
    save(args, f"ingest-{place.lower()}", table, results)


if __name__ == "__main__":
    main()
