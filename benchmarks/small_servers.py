"""Measures the first read of many small chunks from servers that are small, usual, or far, by a new process.

    python benchmarks/small_servers.py [--rounds N] [--only SERVER …] [--engines ENGINE …] [--out DIRECTORY]

Python's web server has a queue of five connections, and closes each after its answer, as moto does. The engines have
their default settings. Each measurement opens an array and reads it once, in a separate process. Rounds are interleaved,
and the median counts. Prints a table and writes small_servers.json and small_servers.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import servers
from harness import add_hidden, columns, make_parser, markdown_table, medians, ram_disk, rotate, save

NAME, BUCKET, DELAY_MS = "a.zarr", "bench", 50
VALUES = np.arange(2500 * 400, dtype="i4").reshape(1000, 1000)
CHUNKS = (20, 20)
KEYS = {"key": "test", "secret": "test"}
SERVERS = {
    "http.server": "Python's http.server",
    "nginx": "nginx",
    "far": f"nginx after {DELAY_MS} ms",
    "moto": "moto (S3)",
}


def zarrasync(url: str, endpoint: str) -> Any:
    from zarrasync import sync

    return sync.open_array(url, storage_options={**KEYS, "endpoint_url": endpoint} if endpoint else None)[...]


def zarr_fsspec(url: str, endpoint: str) -> Any:
    import zarr

    options = {**KEYS, "client_kwargs": {"endpoint_url": endpoint}} if endpoint else {}
    return zarr.open_array(zarr.storage.FsspecStore.from_url(url, storage_options=options), mode="r")[...]


def zarr_obstore(url: str, endpoint: str) -> Any:
    import obstore
    import zarr

    options = {
        "endpoint": endpoint,
        "access_key_id": KEYS["key"],
        "secret_access_key": KEYS["secret"],
        "region": "us-east-1",
    }
    store = obstore.store.from_url(url, **(options if endpoint else {}), client_options={"allow_http": True})
    return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), mode="r")[...]


ENGINES: dict[str, Callable[[str, str], Any]] = {
    "zarrasync": zarrasync,
    "zarr-python, FsspecStore": zarr_fsspec,
    "zarr-python, ObjectStore": zarr_obstore,
}


def worker(name: str, url: str, endpoint: str) -> None:
    """Read the array once, and print the milliseconds."""
    read = ENGINES[name]
    __import__("zarrasync" if name == "zarrasync" else "zarr")
    start = time.perf_counter()
    values = read(url, endpoint)
    milliseconds = (time.perf_counter() - start) * 1e3
    assert (np.asarray(values) == VALUES).all(), "the values are wrong"
    print(json.dumps({"ms": milliseconds}))


@contextmanager
def python_server(root: Path) -> Iterator[str]:
    port = servers.free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        servers.wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(name: str, root: Path, scratch: Path) -> Iterator[tuple[str, str]]:
    """Run a server with the array, and yield the URL of the array and the endpoint of S3."""
    from zarrasync import sync

    if name == "moto":
        with servers.moto(BUCKET) as endpoint:
            url = f"s3://{BUCKET}/{NAME}"
            sync.copy(root / NAME, url, dest_options={**KEYS, "endpoint_url": endpoint})
            yield url, endpoint
        return
    running = python_server(root) if name == "http.server" else servers.nginx(root, scratch, DELAY_MS * (name == "far"))
    with running as url:
        yield f"{url}/{NAME}", ""


def measure(engine: str, url: str, endpoint: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", engine, "--url", url, "--endpoint", endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failure = {"failed": done.stderr.strip().rpartition("\n")[2][:200]}
    return json.loads(done.stdout) if done.returncode == 0 else failure


def table(section: dict[str, Any]) -> str:
    """Return milliseconds as Markdown."""
    rows = section["rows"]
    names = columns(rows)
    cells = (
        [SERVERS[server], *(f"{row[name]['ms']:,.0f}" if "ms" in row[name] else "–" for name in names)]
        for server, row in rows.items()
    )
    return markdown_table(["2,500 chunks of 1.6 KB from", *names], cells)


def main() -> None:
    parser = make_parser(__doc__, only=SERVERS, engines=ENGINES, rounds=3)
    add_hidden(parser, "--worker", "--url", "--endpoint")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.url, args.endpoint)
        return
    from zarrasync import sync

    engines = list(args.engines or ENGINES)
    rows = {}
    with ram_disk("small-servers") as scratch:
        root = Path(scratch) / "data"
        sync.create_array(root / NAME, data=VALUES, chunks=CHUNKS)
        for server in args.only or SERVERS:
            with serving(server, root, Path(scratch) / server) as (url, endpoint):
                results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
                for number in range(args.rounds):
                    for engine in rotate(engines, number):
                        results[engine].append(measure(engine, url, endpoint))
            rows[server] = {engine: medians(runs) for engine, runs in results.items()}
            print(SERVERS[server], rows[server], flush=True)
    save(args, "small_servers", table, {"rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
