"""Counts updates that are lost when several processes write into the same chunks and append to the same array.

    python benchmarks/updates.py [--processes N] [--writes N] [--only SETTING …] [--engines ENGINE …] [--out DIRECTORY] [--write-docs]

Each process writes different elements, which share chunks (or shards) with elements of other processes. Afterwards all
of them must be present. Runs on local files and on S3 (moto). Prints a table and writes updates.json and updates.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from harness import add_hidden, columns, make_parser, markdown_table, parse_publishable, save

BUCKET = "zarrasync"
KEYS = {"key": "test", "secret": "test"}
SETTINGS = {
    "files-chunks": "local files, parts of chunks",
    "files-shards": "local files, parts of shards",
    "files-append": "local files, rows appended",
    "s3-chunks": "S3, parts of chunks",
    "s3-shards": "S3, parts of shards",
    "s3-append": "S3, rows appended",
}
COLUMNS = 8


class Zarrasync:
    def __init__(self) -> None:
        from zarrasync import sync

        self.sync = sync

    def open(self, url: str, endpoint: str) -> Any:
        options = {"storage_options": {**KEYS, "endpoint_url": endpoint}} if endpoint else {}
        return self.sync.open_array(url, mode="r+", zarr_format=3, **options)

    def put(self, array: Any, index: tuple[int, int], value: int) -> None:
        array[index] = value

    def append(self, array: Any, row: np.ndarray) -> None:
        array.append(row)


class ZarrPython(Zarrasync):
    def __init__(self) -> None:
        import zarr

        self.zarr = zarr

    def open(self, url: str, endpoint: str) -> Any:
        store: Any = url
        if endpoint:
            from obstore.store import S3Store

            options: Any = {"allow_http": True}
            store = self.zarr.storage.ObjectStore(
                S3Store(
                    BUCKET, prefix=url.removeprefix(f"s3://{BUCKET}/"), endpoint=endpoint, region="us-east-1",
                    access_key_id="test", secret_access_key="test", client_options=options,
                )
            )  # fmt: skip
        return self.zarr.open_array(store, mode="r+", zarr_format=3)


class TensorStore(Zarrasync):
    def __init__(self) -> None:
        import tensorstore

        self.ts = tensorstore

    def open(self, url: str, endpoint: str) -> Any:
        kvstore: Any = {"driver": "file", "path": f"{url}/"}
        if endpoint:
            kvstore = {
                "driver": "s3", "bucket": BUCKET, "path": url.removeprefix(f"s3://{BUCKET}/") + "/",
                "endpoint": endpoint, "aws_region": "us-east-1", "aws_credentials": {"type": "environment"},
            }  # fmt: skip
        return self.ts.open({"driver": "zarr3", "kvstore": kvstore}, read=True, write=True).result()

    def put(self, array: Any, index: tuple[int, int], value: int) -> None:
        array[index].write(value).result()

    def append(self, array: Any, row: np.ndarray) -> None:
        raise NotImplementedError("it does not append")


ENGINES = {"zarrasync": Zarrasync, "zarr-python": ZarrPython, "tensorstore": TensorStore}


def worker(name: str, url: str, endpoint: str, number: int, processes: int, writes: int) -> None:
    """Run one process: wait for the others, then write its elements."""
    engine = ENGINES[name]()
    array = engine.open(url, endpoint)
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(writes):
        value = number * writes + turn + 1
        if "append" in url:
            engine.append(array, np.full((1, COLUMNS), value, "i4"))
        else:
            engine.put(array, divmod(turn * processes + number, COLUMNS), value)


def create(url: str, endpoint: str, setting: str, count: int) -> None:
    from zarrasync import sync

    options: dict[str, Any] = {"storage_options": {**KEYS, "endpoint_url": endpoint}} if endpoint else {}
    if "append" in setting:
        sync.create_array(url, shape=(0, COLUMNS), chunks=(10, COLUMNS), dtype="i4", **options)
    elif "shards" in setting:
        shape = (-(-count // COLUMNS), COLUMNS)
        sync.create_array(url, shape=shape, chunks=(5, 4), shards=(50, 8), dtype="i4", **options)
    else:
        sync.create_array(url, shape=(-(-count // COLUMNS), COLUMNS), chunks=(50, 8), dtype="i4", **options)


def measure(name: str, setting: str, endpoint: str, root: Path, processes: int, writes: int) -> dict[str, Any]:
    """Return how many of all updates are lost, and the rate of updates."""
    path = f"{uuid.uuid4().hex}-{setting}"
    url = f"s3://{BUCKET}/{path}" if endpoint else str(root / path)
    create(url, endpoint, setting, processes * writes)
    command = [sys.executable, __file__, "--worker", name, "--url", url, "--endpoint", endpoint]
    command += ["--writes", str(writes), "--processes", str(processes), "--number"]
    workers = [
        subprocess.Popen(
            [*command, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for process in workers:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.perf_counter()
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    messages = [process.communicate()[1] for process in workers]
    seconds = time.perf_counter() - start
    pairs = zip(messages, workers, strict=True)
    failures = [message.strip().splitlines()[-1] for message, process in pairs if process.returncode]
    if failures:
        return {"failed": failures[0][:200]}
    return {
        "lost": processes * writes - count_present(url, endpoint, setting),
        "of": processes * writes,
        "per_second": processes * writes / seconds,
    }


def count_present(url: str, endpoint: str, setting: str) -> int:
    """Return how many updates are present in an array."""
    from zarrasync import sync

    options: dict[str, Any] = {"storage_options": {**KEYS, "endpoint_url": endpoint}} if endpoint else {}
    values = sync.open_array(url, **options)[...]
    if "append" in setting:
        values = values[(values == values[:, :1]).all(axis=1), 0]
    return len(set(values.ravel().tolist()) - {0})


def table(section: dict[str, Any]) -> str:
    """Return lost updates, and updates per second, as Markdown."""

    def cell(result: dict[str, Any]) -> str:
        return f"{result['lost']:,} lost ({result['per_second']:,.0f}/s)" if "lost" in result else "–"

    rows = section["rows"]
    names = columns(rows)
    head = [f"{section['processes']} processes, {section['writes']} updates each", *names]
    return markdown_table(
        head, ([SETTINGS[setting], *(cell(row.get(name, {})) for name in names)] for setting, row in rows.items())
    )


def main() -> None:
    parser = make_parser(__doc__, only=SETTINGS, engines=ENGINES)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--writes", type=int, default=200)
    add_hidden(parser, "--worker", "--url", "--endpoint")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parse_publishable(parser)
    if args.worker:
        worker(args.worker, args.url, args.endpoint, args.number, args.processes, args.writes)
        return
    import servers

    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    rows: dict[str, dict[str, Any]] = {}
    names = list(args.engines or ENGINES)
    with servers.moto(BUCKET) as endpoint, tempfile.TemporaryDirectory() as root:
        for setting in args.only or SETTINGS:
            rows[setting] = {}
            for name in names:
                s3 = endpoint if setting.startswith("s3") else ""
                rows[setting][name] = measure(name, setting, s3, Path(root), args.processes, args.writes)
                print(setting, name, rows[setting][name], flush=True)

    save(args, "updates", table, {"processes": args.processes, "writes": args.writes, "rows": rows})


if __name__ == "__main__":
    main()
