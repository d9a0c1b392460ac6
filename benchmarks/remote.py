"""Measures reads from a server whose responses begin after 50 ms, as object stores' responses do.

    python benchmarks/remote.py [--rounds N] [--delay MS] [--only TASK …] [--engines ENGINE …] [--out DIRECTORY] [--write-docs]

Each engine runs in a separate process. Rounds are interleaved, and the median counts. All engines read the same files through
nginx (see ``servers.py``). With a C compiler, the requests alone are measured as well (``fetch.c``). Prints a table and
writes remote.json and remote.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import (
    EngineProcess,
    add_hidden,
    columns,
    installed,
    make_parser,
    markdown_table,
    medians,
    parse_publishable,
    ram_disk,
    rotate,
    save,
)

POINTS = 300
ARRAYS = 50
INDEX_BYTES = 16 * 256 + 4
"""Bytes of the index of a shard."""
FETCH = "ZARRASYNC_BENCH_FETCH"
"""Environment variable with the path of the compiled fetch.c."""
SLOW_MS = 5000
"""Milliseconds from which on an engine is measured once only."""

_ZSTD = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
ARRAYS_OF: dict[str, dict[str, Any]] = {
    "small": {"shape": (4096, 4096), "chunks": (128, 128), "compressors": _ZSTD},
    "medium": {"shape": (4800, 4800), "chunks": (160, 160), "compressors": _ZSTD},
    "big": {"shape": (8640, 7000), "chunks": (720, 700), "compressors": _ZSTD},
    "large": {"shape": (16384, 8192), "chunks": (1024, 1024), "compressors": None},
    "tiny": {"shape": (2000, 2000), "chunks": (20, 20), "compressors": _ZSTD},
    "fewer": {"shape": (1600, 1600), "chunks": (20, 20), "compressors": _ZSTD},
    "sharded": {"shape": (8192, 8192), "chunks": (128, 128), "shards": (2048, 2048), "compressors": _ZSTD},
}
TASKS = {
    "small": "1,024 chunks of 64 KiB",
    "medium": "900 chunks of 100 KB",
    "big": "120 chunks of 2 MB",
    "large": "128 chunks of 4 MiB",
    "tiny": "10,000 chunks of 1.6 KB",
    "fewer": "6,400 chunks of 1.6 KB",
    "points": f"{POINTS} points in 16 shards of 256 chunks of 64 KiB",
    "boxes": "100 boxes of 100 x 100 in the same, at once",
    "fifty": f"open and read {ARRAYS} arrays of one chunk",
}


def data(name: str) -> np.ndarray:
    """Return values that compress by about a third."""
    rng = np.random.default_rng(len(name))
    return rng.normal(size=ARRAYS_OF[name]["shape"]).round(2).astype("f4")


def points() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    return tuple(rng.integers(0, n, POINTS) for n in ARRAYS_OF["sharded"]["shape"])


def boxes() -> list[tuple[slice, ...]]:
    rng = np.random.default_rng(4)
    return [
        tuple(slice(a, a + 100) for a in corner)
        for corner in zip(*(rng.integers(0, n - 100, 100).tolist() for n in ARRAYS_OF["sharded"]["shape"]), strict=True)
    ]


def make(root: Path) -> None:
    """Create the arrays."""
    from zarrasync import sync

    for name, options in ARRAYS_OF.items():
        sync.create_array(root / name, dtype="f4", **options)[...] = data(name)
    for number in range(ARRAYS):
        values = np.full((128, 128), number, "f4")
        sync.create_array(root / "many" / str(number), data=values, chunks=(128, 128))


# ---------------------------------------------------------------------- engines


class Engine:
    """A library with one configuration.

    Attributes:
        package: The name of its distribution.
    """

    package = ""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, name: str) -> Any:
        raise NotImplementedError

    async def get(self, array: Any, box: tuple[slice, ...]) -> Any:
        raise NotImplementedError

    async def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        raise NotImplementedError("it has no points")

    async def run(self, task: str) -> Callable[[], Awaitable[Any]]:
        """Return the call to measure. It does not include opening the array, except in the task for that."""
        if task == "fifty":
            return self._fifty
        array = await self.open("sharded" if task in ("points", "boxes") else task)
        if task == "points":
            where = points()
            return lambda: self.points(array, where)
        if task == "boxes":
            parts = boxes()

            async def read() -> Any:
                return await asyncio.gather(*(self.get(array, box) for box in parts))

            return read
        return lambda: self.get(array, tuple(slice(0, n) for n in ARRAYS_OF[task]["shape"]))

    async def _fifty(self) -> Any:
        async def one(number: int) -> Any:
            return await self.get(await self.open(f"many/{number}"), (slice(0, 128), slice(0, 128)))

        return await asyncio.gather(*(one(number) for number in range(ARRAYS)))


class Zarrasync(Engine):
    package = "zarrasync"

    async def open(self, name: str) -> Any:
        import zarrasync as za

        return await za.open_array(f"{self.url}/{name}", zarr_format=3)

    async def get(self, array: Any, box: tuple[slice, ...]) -> Any:
        return await array[box].read()

    async def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        return await array.vindex[where].read()


class ZarrasyncS3(Zarrasync):
    """The same files, as if they were in buckets."""

    async def open(self, name: str) -> Any:
        import zarrasync as za

        options = {"anon": True, "endpoint_url": self.url}
        return await za.open_array(f"s3://{name}", zarr_format=3, storage_options=options)


class ZarrPython(Engine):
    package = "zarr"
    concurrency = 0
    backend = "fsspec"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        import zarr.api.asynchronous
        import zarr.storage

        self.zarr = zarr
        if self.concurrency:
            zarr.config.set({"async.concurrency": self.concurrency})

    async def open(self, name: str) -> Any:
        store: Any
        if self.backend == "obstore":
            from obstore.store import HTTPStore

            options: Any = {"allow_http": True, "timeout": "600s"}
            store = self.zarr.storage.ObjectStore(
                HTTPStore.from_url(f"{self.url}/{name}", client_options=options), read_only=True
            )
        else:
            store = self.zarr.storage.FsspecStore.from_url(f"{self.url}/{name}", read_only=True)
        return await self.zarr.api.asynchronous.open_array(store=store, mode="r", zarr_format=3)

    async def get(self, array: Any, box: tuple[slice, ...]) -> Any:
        return await array.getitem(box)

    async def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        return await array.get_coordinate_selection(where)


class ZarrPython256(ZarrPython):
    concurrency = 256


class ZarrPythonObstore(ZarrPython):
    backend = "obstore"


class ZarrPythonObstore256(ZarrPythonObstore):
    concurrency = 256


class ZarrPythonFused256(ZarrPythonObstore256):
    """Its newer way to decode."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"})


class Zarrista(Engine):
    package = "zarrista"

    async def open(self, name: str) -> Any:
        import zarrista
        from obstore.store import HTTPStore

        options: Any = {"allow_http": True, "timeout": "600s"}
        return await zarrista.AsyncArray.open(HTTPStore.from_url(f"{self.url}/{name}", client_options=options), "/")

    async def get(self, array: Any, box: tuple[slice, ...]) -> Any:
        return np.asarray(await array.retrieve_array_subset(box))


class TensorStore(Engine):
    package = "tensorstore"
    concurrency = 0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        import tensorstore

        self.ts = tensorstore
        limit = {"http_request_concurrency": {"limit": self.concurrency}} if self.concurrency else {}
        self.context = tensorstore.Context(limit)

    async def open(self, name: str) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": f"{self.url}/{name}/"}}
        return await self.ts.open(spec, read=True, context=self.context)

    async def get(self, array: Any, box: tuple[slice, ...]) -> Any:
        return await array[box].read()

    async def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        return await array.vindex[where].read()


class TensorStore256(TensorStore):
    concurrency = 256


class Client(Engine):
    """No library: a loop of aiohttp requests on 256 connections, and the codec on all cores.

    It knows how all is stored, merges nothing and checks nothing.
    """

    package = "aiohttp"

    async def run(self, task: str) -> Callable[[], Awaitable[Any]]:
        import aiohttp

        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=256), timeout=aiohttp.ClientTimeout(600)
        )
        self.pool = ThreadPoolExecutor(2)
        if task == "points":
            return lambda: self._points(points())
        if task == "boxes":
            return lambda: asyncio.gather(*(self._box(box) for box in boxes()))
        if task == "fifty":
            return lambda: asyncio.gather(*(self._one(number) for number in range(ARRAYS)))
        return lambda: self._read(task)

    async def _get(self, path: str, byte_range: str = "") -> bytes:
        async with self.session.get(
            f"{self.url}/{path}", headers={"Range": byte_range} if byte_range else {}
        ) as response:
            return b"" if response.status == 404 else await response.read()

    async def _chunks(self, shard: tuple[int, int], coords: list[tuple[int, int]]) -> list[np.ndarray]:
        """Inner chunks of a shard: its index, then a request for each of them."""
        import numcodecs

        path = f"sharded/c/{shard[0]}/{shard[1]}"
        index = np.frombuffer((await self._get(path, f"bytes=-{INDEX_BYTES}"))[:-4], "<u8").reshape(16, 16, 2)
        spans = [index[spot].tolist() for spot in coords]
        values = await asyncio.gather(*(self._get(path, f"bytes={a}-{a + n - 1}") for a, n in spans))

        def decode() -> list[np.ndarray]:
            return [np.frombuffer(numcodecs.Zstd().decode(value), "f4").reshape(128, 128) for value in values]

        return await asyncio.get_running_loop().run_in_executor(self.pool, decode)

    async def _points(self, where: tuple[np.ndarray, ...]) -> np.ndarray:
        out, chunks = np.empty(POINTS, "f4"), np.stack([axis // 128 for axis in where], 1)
        spots, which = np.unique(chunks, axis=0, return_inverse=True)
        shards: dict[tuple[int, int], list[int]] = {}
        for number, (i, j) in enumerate(spots.tolist()):
            shards.setdefault((i // 16, j // 16), []).append(number)

        async def one(shard: tuple[int, int], numbers: list[int]) -> None:
            chunks = await self._chunks(shard, [tuple(n % 16 for n in spots[number].tolist()) for number in numbers])
            for number, chunk in zip(numbers, chunks, strict=True):
                mine = np.flatnonzero(which.reshape(-1) == number)
                out[mine] = chunk[where[0][mine] % 128, where[1][mine] % 128]

        await asyncio.gather(*(one(shard, numbers) for shard, numbers in shards.items()))
        return out

    async def _box(self, box: tuple[slice, ...]) -> np.ndarray:
        (a, b), (c, d) = ((s.start // 128, (s.stop - 1) // 128 + 1) for s in box)
        canvas = np.empty(((b - a) * 128, (d - c) * 128), "f4")
        shards: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for i in range(a, b):
            for j in range(c, d):
                shards.setdefault((i // 16, j // 16), []).append((i, j))

        async def one(shard: tuple[int, int], spots: list[tuple[int, int]]) -> None:
            chunks = await self._chunks(shard, [(i % 16, j % 16) for i, j in spots])
            for (i, j), chunk in zip(spots, chunks, strict=True):
                canvas[(i - a) * 128 : (i - a + 1) * 128, (j - c) * 128 : (j - c + 1) * 128] = chunk

        await asyncio.gather(*(one(shard, spots) for shard, spots in shards.items()))
        return canvas[tuple(slice(s.start - o * 128, s.stop - o * 128) for s, o in zip(box, (a, c), strict=True))]

    async def _one(self, number: int) -> np.ndarray:
        import numcodecs

        document = json.loads(await self._get(f"many/{number}/zarr.json"))
        value = await self._get(f"many/{number}/c/0/0")
        if not value:
            return np.full(document["shape"], document["fill_value"], "f4")
        return np.frombuffer(numcodecs.Zstd().decode(value), "f4").reshape(document["shape"])

    async def _read(self, task: str) -> Any:
        import numcodecs

        options = ARRAYS_OF[task]
        (height, width), shape = options["chunks"], options["shape"]
        zstd = numcodecs.Zstd() if options["compressors"] else None
        out = np.empty(shape, "f4")
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(2)
        pending: list[tuple[int, int, bytes]] = []
        jobs = []

        def decode(batch: list[tuple[int, int, bytes]]) -> None:
            for i, j, value in batch:
                raw = zstd.decode(value) if zstd else value
                out[i * height : (i + 1) * height, j * width : (j + 1) * width] = np.frombuffer(raw, "f4").reshape(
                    height, width
                )

        def flush() -> None:
            if pending:
                jobs.append(loop.run_in_executor(pool, decode, pending.copy()))
                pending.clear()

        places = iter([(i, j) for i in range(shape[0] // height) for j in range(shape[1] // width)])

        async def worker() -> None:
            for i, j in places:
                async with self.session.get(f"{self.url}/{task}/c/{i}/{j}") as answer:
                    pending.append((i, j, await answer.read()))
                if sum(len(value) for *_, value in pending) > 1 << 20:
                    flush()

        await asyncio.gather(*(worker() for _ in range(256)))
        flush()
        await asyncio.gather(*jobs)
        return out


class Timing(NamedTuple):
    """Milliseconds of a call that measures itself."""

    ms: float
    cpu_ms: float


class Requests(Engine):
    """The requests alone, in C: no codecs, no checks, and connections that are made before."""

    package = "numpy"
    connections = 256

    async def run(self, task: str) -> Callable[[], Awaitable[Any]]:
        lines = "\n\n".join("\n".join(f"{path} {part}" for path, part in phase) for phase in self._phases(task))

        async def call() -> Timing:
            command = [os.environ[FETCH], self.url.rpartition(":")[2], str(self.connections)]
            pipe = subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            printed, _ = await process.communicate(lines.encode())
            ms, cpu_ms, _ = printed.split()
            return Timing(float(ms), float(cpu_ms))

        return call

    def _phases(self, task: str) -> list[list[tuple[str, str]]]:
        """Return paths and byte ranges. A phase depends on the responses of the one before."""
        if task == "fifty":
            return [[(f"/many/{n}/{name}", "-") for n in range(ARRAYS)] for name in ("zarr.json", "c/0/0")]
        if task in ARRAYS_OF:
            counts = [n // c for n, c in zip(ARRAYS_OF[task]["shape"], ARRAYS_OF[task]["chunks"], strict=True)]
            return [[(f"/{task}/c/{i}/{j}", "-") for i, j in np.ndindex(*counts)]]
        if task == "points":
            chunks = np.unique(np.stack([axis // 128 for axis in points()], 1), axis=0).tolist()
        else:
            spans = [[range(part.start // 128, (part.stop - 1) // 128 + 1) for part in box] for box in boxes()]
            chunks = [pair for pair in spans for pair in product(*pair)]
        paths = [f"/sharded/c/{i // 16}/{j // 16}" for i, j in chunks]
        indexes = {path: self._index(path) for path in set(paths)}
        entries = [indexes[path][i % 16, j % 16].tolist() for path, (i, j) in zip(paths, chunks, strict=True)]
        ranges = [f"{start}-{start + size - 1}" for start, size in entries]
        return [[(path, f"-{INDEX_BYTES}") for path in indexes], list(zip(paths, ranges, strict=True))]

    def _index(self, path: str) -> np.ndarray:
        request = urllib.request.Request(f"{self.url}{path}", headers={"Range": f"bytes=-{INDEX_BYTES}"})
        with urllib.request.urlopen(request) as response:
            return np.frombuffer(response.read()[:-4], "<u8").reshape(16, 16, 2)


class Requests512(Requests):
    connections = 512


ENGINES: dict[str, type[Engine]] = {
    "zarrasync": Zarrasync,
    "zarrasync, S3": ZarrasyncS3,
    "zarr-python": ZarrPython,
    "zarr-python 256": ZarrPython256,
    "zarr-python obstore": ZarrPythonObstore,
    "zarr-python obstore 256": ZarrPythonObstore256,
    "zarr-python obstore fused 256": ZarrPythonFused256,
    "zarrista": Zarrista,
    "tensorstore": TensorStore,
    "tensorstore 256": TensorStore256,
    "bare aiohttp 256": Client,
    "requests in C 256": Requests,
    "requests in C 512": Requests512,
}

# ---------------------------------------------------------------------- measuring


def total(result: Any) -> float:
    """Return the sum of values, by which engines are compared."""
    parts = result if isinstance(result, list) else [result]
    return round(float(sum(np.asarray(part).sum(dtype="f8") for part in parts)), 1)


def worker(name: str, url: str) -> None:
    """Run one engine: read tasks from standard input, and print measurements."""
    try:
        engine = ENGINES[name](url)
        print(json.dumps({"version": version(engine.package)}), flush=True)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return

    async def measure(task: str) -> dict[str, Any]:
        call = await engine.run(task)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        result = await call()
        ms = (time.perf_counter() - start) * 1e3
        if isinstance(result, Timing):
            return result._asdict()
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3
        return {"ms": ms, "cpu_ms": cpu, "sum": total(result)}

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                results = await asyncio.wait_for(measure(line.strip()), 120)
            except Exception as error:  # failures of peers are reported
                results = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(results), flush=True)

    asyncio.run(serve())


def measure(workers: list[EngineProcess], task: str, rounds: int) -> dict[str, Any]:
    """Return one row: the medians of all engines."""
    results: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(rounds):
        for worker in rotate(workers, number):
            earlier = results[worker.name]
            if not any("failed" in result for result in earlier) and not (earlier and earlier[0]["ms"] > SLOW_MS):
                earlier.append(worker.ask(task))
    sums = {result["sum"] for runs in results.values() for result in runs if "sum" in result}
    if len(sums) > 1:
        raise SystemExit(f"{task}: the engines read different values: {sums}")
    return {name: medians(runs, ("ms", "cpu_ms")) for name, runs in results.items()}


def table(section: dict[str, Any]) -> str:
    """Return milliseconds, and CPU milliseconds, as Markdown."""

    def cell(result: dict[str, Any]) -> str:
        return f"{result['ms']:,.0f} ({result['cpu_ms']:,.0f})" if "ms" in result else "–"

    rows = section["rows"]
    names = columns(rows)
    return markdown_table(
        ["read", *names], ([TASKS[task], *(cell(row.get(name, {})) for name in names)] for task, row in rows.items())
    )


def compile_fetch(target: Path) -> str:
    """Compile the client in C, and return its path; empty without a compiler."""
    if shutil.which("cc") is None:
        print("requests in C: there is no C compiler")
        return ""
    subprocess.run(["cc", "-O2", "-o", str(target), str(Path(__file__).with_name("fetch.c"))], check=True)
    return str(target)


def main() -> None:
    parser = make_parser(__doc__, only=TASKS, engines=ENGINES, rounds=3)
    parser.add_argument("--delay", type=int, default=50, help="milliseconds until a response begins")
    add_hidden(parser, "--worker", "--url")
    args = parse_publishable(parser)
    if args.worker:
        worker(args.worker, args.url)
        return
    import servers

    rows = {}
    with ram_disk("remote") as scratch:
        root = Path(scratch) / "data"
        make(root)
        fetch = compile_fetch(Path(scratch) / "fetch")
        with servers.nginx(root, Path(scratch) / "nginx", args.delay) as url:
            command = [sys.executable, __file__, "--url", url, "--worker"]
            names = [name for name in args.engines or ENGINES if fetch or not issubclass(ENGINES[name], Requests)]
            workers = [EngineProcess(name, [*command, name], {FETCH: fetch}) for name in names]
            workers = installed(workers, all_needed=args.write_docs)
            for task in args.only or TASKS:
                rows[task] = measure(workers, task, args.rounds)
                print(TASKS[task])
                for name, result in rows[task].items():
                    times = f"{result['ms']:8.0f} ms {result['cpu_ms']:8.0f} ms CPU" if "ms" in result else ""
                    print(f"    {name:<32}{times or result['failed']}", flush=True)
            for process in workers:
                process.kill()
    save(args, "remote", table, {"rounds": args.rounds, "delay_ms": args.delay, "rows": rows})


if __name__ == "__main__":
    main()
