"""Measures reads through a server whose answers take 50 ms to begin, as those of object stores do.

    python benchmarks/remote.py [--rounds N] [--delay MS] [--only TASK …] [--engines ENGINE …] [--out DIRECTORY]

Each engine has a process of its own; rounds are interleaved, the median counts. All read the same files through
nginx (see ``servers.py``). Prints a table and writes remote.json and remote.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
POINTS = 300
ARRAYS = 50

ARRAYS_OF = {
    "small": {"shape": (4096, 4096), "chunks": (128, 128), "compressors": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]},
    "large": {"shape": (16384, 8192), "chunks": (1024, 1024), "compressors": None},
    "tiny": {"shape": (2000, 2000), "chunks": (20, 20), "compressors": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]},
    "sharded": {"shape": (8192, 8192), "chunks": (128, 128), "shards": (2048, 2048), "compressors": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]},
}  # fmt: skip
TASKS = {
    "small": "1,024 chunks of 64 KiB",
    "large": "128 chunks of 4 MiB",
    "tiny": "10,000 chunks of 1.6 KB",
    "points": f"{POINTS} points in 16 shards of 256 chunks of 64 KiB",
    "boxes": "100 boxes of 100 x 100 in the same, at once",
    "fifty": f"open and read {ARRAYS} arrays of one chunk",
}


def data(name: str) -> np.ndarray:
    """Values that compress by a third or so."""
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
    """Write what is read."""
    from zarrasync import sync

    for name, options in ARRAYS_OF.items():
        sync.create_array(root / name, dtype="f4", **options)[...] = data(name)
    for number in range(ARRAYS):
        values = np.full((128, 128), number, "f4")
        sync.create_array(root / "many" / str(number), data=values, chunks=(128, 128))


# ---------------------------------------------------------------------- engines


class Engine:
    """A library at one setting; reads asynchronously what the tasks want.

    Attributes:
        package: Its distribution's name, for the version.
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
        """What is measured: reading is, opening is not, but where the task says so."""
        if task == "fifty":
            return self._fifty
        array = await self.open("sharded" if task in ("points", "boxes") else task)
        if task == "points":
            where = points()
            return lambda: self.points(array, where)
        if task == "boxes":
            wanted = boxes()

            async def read() -> Any:
                return await asyncio.gather(*(self.get(array, box) for box in wanted))

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
        import zarr

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

    async def _get(self, path: str, wanted: str = "") -> bytes:
        async with self.session.get(f"{self.url}/{path}", headers={"Range": wanted} if wanted else {}) as answer:
            return b"" if answer.status == 404 else await answer.read()

    async def _chunks(self, shard: tuple[int, int], wanted: list[tuple[int, int]]) -> list[np.ndarray]:
        """Inner chunks of a shard: its index, then a request for each of them."""
        import numcodecs

        path = f"sharded/c/{shard[0]}/{shard[1]}"
        index = np.frombuffer((await self._get(path, f"bytes=-{16 * 256 + 4}"))[:-4], "<u8").reshape(16, 16, 2)
        spans = [index[spot].tolist() for spot in wanted]
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
            found = await self._chunks(shard, [tuple(n % 16 for n in spots[number].tolist()) for number in numbers])
            for number, chunk in zip(numbers, found, strict=True):
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
            found = await self._chunks(shard, [(i % 16, j % 16) for i, j in spots])
            for (i, j), chunk in zip(spots, found, strict=True):
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


ENGINES: dict[str, type[Engine]] = {
    "zarrasync": Zarrasync,
    "zarrasync s3": ZarrasyncS3,
    "zarr-python": ZarrPython,
    "zarr-python 256": ZarrPython256,
    "zarr-python obstore": ZarrPythonObstore,
    "zarr-python obstore 256": ZarrPythonObstore256,
    "zarr-python obstore fused 256": ZarrPythonFused256,
    "zarrista": Zarrista,
    "tensorstore": TensorStore,
    "tensorstore 256": TensorStore256,
    "bare aiohttp 256": Client,
}

# ---------------------------------------------------------------------- measuring


def total(result: Any) -> float:
    """What tells right values from wrong ones."""
    parts = result if isinstance(result, list) else [result]
    return round(float(sum(np.asarray(part).sum(dtype="f8") for part in parts)), 1)


def worker(name: str, url: str) -> None:
    """One engine in a process of its own: takes tasks on standard input, answers with measurements."""
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
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3
        return {"ms": ms, "cpu_ms": cpu, "sum": total(result)}

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                found = await asyncio.wait_for(measure(line.strip()), 120)
            except Exception as error:  # a peer's failure is a row's result
                found = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(found), flush=True)

    asyncio.run(serve())


class Worker:
    """An engine's process."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", name, "--url", url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.hello = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"failed": "the process ended"}

    def ask(self, task: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        if self.process.poll() is not None:
            return {"failed": "the process ended"}
        self.process.stdin.write(f"{task}\n")
        self.process.stdin.flush()
        return self._answer()


def measure(workers: list[Worker], task: str, rounds: int) -> dict[str, Any]:
    """One row: the medians of all engines."""
    found: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(rounds):
        turn = number % len(workers)
        for one in workers[turn:] + workers[:turn]:
            own = found[one.name]
            if not any("failed" in answer for answer in own) and not (own and own[0]["ms"] > 5000):
                own.append(one.ask(task))
    sums = {answer["sum"] for own in found.values() for answer in own if "sum" in answer}
    if len(sums) > 1:
        raise SystemExit(f"{task}: the engines read different values: {sums}")
    row: dict[str, Any] = {}
    for name, own in found.items():
        failed = next((answer["failed"] for answer in own if "failed" in answer), None)
        row[name] = (
            {"failed": failed} if failed else {k: statistics.median(a[k] for a in own) for k in ("ms", "cpu_ms")}
        )
    return row


def table(rows: dict[str, dict[str, Any]], names: list[str]) -> str:
    """Milliseconds, and CPU milliseconds, as Markdown."""
    lines = ["| read | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for task, row in rows.items():
        cells = [f"{r['ms']:,.0f} ({r['cpu_ms']:,.0f})" if "ms" in r else "–" for r in (row[name] for name in names)]
        lines.append(f"| {TASKS[task]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=int, default=50, help="milliseconds until an answer begins")
    parser.add_argument("--only", nargs="*", choices=list(TASKS))
    parser.add_argument("--engines", nargs="*", choices=list(ENGINES))
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.url)
        return
    import servers

    given.out.mkdir(parents=True, exist_ok=True)
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="zarrasync-remote-") as scratch:
        root = Path(scratch) / "data"
        make(root)
        with servers.nginx(root, Path(scratch) / "nginx", given.delay) as url:
            workers = [Worker(name, url) for name in given.engines or ENGINES]
            for one in workers:
                if "version" not in one.hello:
                    print(f"{one.name}: {one.hello}")
            workers = [one for one in workers if "version" in one.hello]
            rows = {}
            for task in given.only or TASKS:
                rows[task] = measure(workers, task, given.rounds)
                print(TASKS[task])
                for name, result in rows[task].items():
                    shown = (
                        f"{result['ms']:8.0f} ms {result['cpu_ms']:8.0f} ms CPU" if "ms" in result else result["failed"]
                    )
                    print(f"    {name:<32}{shown}", flush=True)
            for one in workers:
                one.process.kill()
    text = table(rows, [one.name for one in workers])
    (given.out / "remote.md").write_text(text + "\n")
    (given.out / "remote.json").write_text(json.dumps({"delay_ms": given.delay, "rows": rows}, indent=1))
    print(text)


if __name__ == "__main__":
    main()
