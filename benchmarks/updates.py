"""Counts updates that are lost when several processes write into the same chunks and append to the same array.

    python benchmarks/updates.py [--processes N] [--writes N] [--only SETTING …] [--engines ENGINE …] [--out DIRECTORY]

Each process writes elements of its own, which share chunks (or shards) with those of the others; afterwards all must be
there. On local files and on S3 (moto). Prints a table and writes updates.json and updates.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
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

    def put(self, array: Any, at: tuple[int, int], value: int) -> None:
        array[at] = value

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

    def put(self, array: Any, at: tuple[int, int], value: int) -> None:
        array[at].write(value).result()

    def append(self, array: Any, row: np.ndarray) -> None:
        raise NotImplementedError("it does not append")


ENGINES = {"zarrasync": Zarrasync, "zarr-python": ZarrPython, "tensorstore": TensorStore}


def worker(name: str, url: str, endpoint: str, number: int, processes: int, writes: int) -> None:
    """One process: waits for the others, then writes what is its own."""
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
    """How many of all updates are lost, and how many a second were made."""
    place = f"{uuid.uuid4().hex}-{setting}"
    url = f"s3://{BUCKET}/{place}" if endpoint else str(root / place)
    create(url, endpoint, setting, processes * writes)
    command = [
        sys.executable,
        __file__,
        "--worker",
        name,
        "--url",
        url,
        "--endpoint",
        endpoint,
        "--writes",
        str(writes),
    ]
    workers = [
        subprocess.Popen(
            [*command, "--processes", str(processes), "--number", str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip
    for one in workers:
        assert one.stdout is not None
        one.stdout.readline()
    start = time.perf_counter()
    for one in workers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    failures = [one.communicate()[1] for one in workers]
    seconds = time.perf_counter() - start
    failed = [text.strip().splitlines()[-1] for text, one in zip(failures, workers, strict=True) if one.returncode]
    if failed:
        return {"failed": failed[0][:200]}
    from zarrasync import sync

    options: dict[str, Any] = {"storage_options": {**KEYS, "endpoint_url": endpoint}} if endpoint else {}
    found = sync.open_array(url, **options)[...]
    if "append" in setting:
        found = found[(found == found[:, :1]).all(axis=1), 0]
    lost = processes * writes - len(set(found.ravel().tolist()) - {0})
    return {"lost": lost, "of": processes * writes, "per_second": processes * writes / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--writes", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS))
    parser.add_argument("--engines", nargs="*", choices=list(ENGINES))
    parser.add_argument("--out", type=Path, default=HERE / "out")
    for hidden in ("--worker", "--url", "--endpoint"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.url, given.endpoint, given.number, given.processes, given.writes)
        return
    import os

    import servers

    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    given.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    with servers.moto(BUCKET) as endpoint, tempfile.TemporaryDirectory() as root:
        for setting in given.only or SETTINGS:
            rows[setting] = {}
            for name in given.engines or ENGINES:
                where = endpoint if setting.startswith("s3") else ""
                rows[setting][name] = measure(name, setting, where, Path(root), given.processes, given.writes)
                print(setting, name, rows[setting][name], flush=True)
    names = list(given.engines or ENGINES)
    lines = [
        f"| {given.processes} processes x {given.writes} updates | " + " | ".join(names) + " |",
        "|---|" + "--:|" * len(names),
    ]
    for setting, row in rows.items():
        cells = [f"{r['lost']:,} lost ({r['per_second']:,.0f}/s)" if "lost" in r else "–" for r in row.values()]
        lines.append(f"| {SETTINGS[setting]} | " + " | ".join(cells) + " |")
    (given.out / "updates.md").write_text("\n".join(lines) + "\n")
    (given.out / "updates.json").write_text(json.dumps(rows, indent=1))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
