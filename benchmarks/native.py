"""Measures how fast a compiled loop over small chunks could be: C code without checks, zarrasync, and peers.

    python benchmarks/native.py [--rounds N]

Requires a C compiler (``cc``). The C code gets the names of a batch of files, or a shard in memory, and the positions of
the chunks, and calls the decompressors of numcodecs. Python plans, and runs it on one or two threads. Prints a table.
"""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import engines
import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import tasks
from harness import make_parser, markdown_table, ram_disk
from workloads import WORKLOADS

HERE = Path(__file__).parent
PEERS = ("zarrasync", "zarrs-python", "zarrista", "tensorstore")
ABLE = ("read", "write", "boxes", "threads")
"""Tasks that all peers support in a comparable way."""
Call = Callable[[], Any]
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int64


class Native:
    """The compiled loop.

    Args:
        folder: The directory for the library.
    """

    def __init__(self, folder: Path) -> None:
        target = folder / "native.so"
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", target, HERE / "native.c"], check=True)
        self._library = ctypes.CDLL(str(target))
        blosc, self._zstd = ctypes.CDLL(numcodecs.blosc.__file__), ctypes.CDLL(numcodecs.zstd.__file__)
        self._blosc, self._pack = (
            ctypes.cast(part, POINTER) for part in (blosc.blosc_decompress_ctx, blosc.blosc_compress_ctx)
        )
        self._zstd.ZSTD_createDCtx.restype = POINTER
        self._of_thread = threading.local()

    def files(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read a plane of blosc or raw chunks."""
        (n, m), (step, _) = WORKLOADS[name].shape, WORKLOADS[name].chunks
        decompress = self._blosc if WORKLOADS[name].codec else None

        def call() -> np.ndarray:
            out = np.empty((n, m), "f4")
            names, at, place = _plane(n, m, step)

            def share(part: slice) -> int:
                return self._library.files(
                    bytes(path), names, _at(at[part]), NUMBER(len(at[part])), decompress, _at(out), _at(place[part]),
                    NUMBER(step), NUMBER(4 * step), NUMBER(4 * m),
                )  # fmt: skip

            _check(crew.map(share, _shares(len(at), threads)))
            return out

        return call

    def store(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Write a plane of blosc or raw chunks."""
        (n, m), (step, _) = WORKLOADS[name].shape, WORKLOADS[name].chunks
        data = WORKLOADS[name].data()
        compress = self._pack if WORKLOADS[name].codec else None

        def call() -> None:
            for i in range(n // step):
                (path / "c" / str(i)).mkdir(parents=True)
            names, at, place = _plane(n, m, step)

            def share(part: slice) -> int:
                return self._library.store(
                    bytes(path), names, _at(at[part]), NUMBER(len(at[part])), _at(data), _at(place[part]),
                    NUMBER(step), NUMBER(4 * step), NUMBER(4 * m), NUMBER(part.start), compress,
                )  # fmt: skip

            _check(crew.map(share, _shares(len(at), threads)))

        return call

    def shards(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read shards of blosc chunks."""
        whole = tuple(slice(0, n) for n in WORKLOADS[name].shape)
        return lambda: self._box(path, name, whole, {}, crew, threads)

    def boxes(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read boxes of shards one after the other. Shards are read once, as zarrasync keeps their indexes."""
        boxes = tasks.random_boxes(WORKLOADS[name], 64, 40)
        shards: dict[tuple[int, ...], np.ndarray] = {}
        return lambda: np.concatenate([self._box(path, name, box, shards, crew, threads) for box in boxes])

    def _box(
        self, path: Path, name: str, box: tuple[slice, ...], shards: dict[tuple[int, ...], np.ndarray],
        crew: ThreadPoolExecutor, threads: int,
    ) -> np.ndarray:  # fmt: skip
        workload = WORKLOADS[name]
        assert workload.shards is not None
        out = np.empty([part.stop - part.start for part in box], "f4")
        steps, outer = workload.chunks, workload.shards
        counts = [n // c for n, c in zip(outer, steps, strict=True)]
        total = int(np.prod(counts))
        strides = np.array(out.strides) // 4
        three = [1] * (3 - len(steps)) + [*steps]
        for coords in product(*(range(p.start // n, -(-p.stop // n)) for p, n in zip(box, outer, strict=True))):
            file = path / "c" / "/".join(map(str, coords))
            shard = shards.get(coords)
            if shard is None:
                shard = np.fromfile(file, "u1")
                if shards is not None and box != tuple(slice(0, n) for n in workload.shape):
                    shards[coords] = shard
            index = shard[-4 - 16 * total : -4].view("<i8").reshape(-1, 2)
            spans = []
            for part, first, n, c in zip(box, coords, outer, steps, strict=True):
                begin, end = max(part.start, first * n), min(part.stop, (first + 1) * n)
                cells = np.arange((begin - first * n) // c, -(-(end - first * n) // c))
                low = np.maximum(begin, first * n + cells * c)
                high = np.minimum(end, first * n + (cells + 1) * c)
                spans.append((cells, low - first * n - cells * c, high - first * n - cells * c, low - part.start))
            grid = np.meshgrid(*(np.arange(len(part[0])) for part in spans), indexing="ij")
            picked = [[part[k][axis.reshape(-1)] for part, axis in zip(spans, grid, strict=True)] for k in range(4)]
            numbers = np.ravel_multi_index(picked[0], counts)
            place = sum(part * step for part, step in zip(picked[3], strides.tolist(), strict=True))
            ends = [np.zeros(len(numbers), "i8"), np.ones(len(numbers), "i8")] * (3 - len(steps))
            for low, high in zip(picked[1], picked[2], strict=True):
                ends += [low, high]
            bounds, chosen = np.stack(ends, axis=1).astype("i8"), index[numbers].copy()
            moves = [0] * (3 - len(steps)) + strides.tolist()

            def share(
                part: slice, shard: Any = shard, chosen: Any = chosen, place: Any = place, bounds: Any = bounds,
                moves: Any = moves,
            ) -> int:  # fmt: skip
                return self._library.inner(
                    _at(shard), _at(chosen[part]), NUMBER(len(chosen[part])), self._blosc, _at(out), _at(place[part]),
                    _at(bounds[part]), *map(NUMBER, three), NUMBER(moves[0]), NUMBER(moves[1]),
                )  # fmt: skip

            _check(crew.map(share, _shares(len(numbers), threads)))
        return out

    def points(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read random points of a plane of zstd chunks."""
        (n, _), (step, _) = WORKLOADS[name].shape, WORKLOADS[name].chunks
        where = tasks.random_indices(WORKLOADS[name], tasks.POINTS)
        contexts = [ctypes.c_void_p(self._zstd.ZSTD_createDCtx()) for _ in range(threads)]
        decompress = ctypes.cast(self._zstd.ZSTD_decompressDCtx, POINTER)

        def call() -> np.ndarray:
            ids = (where[0] // step) * (n // step) + where[1] // step
            order = np.argsort(ids.astype("u2"), kind="stable")
            inside = ((where[0] % step) * step + where[1] % step)[order]
            edges = np.array([0, *np.flatnonzero(np.diff(ids[order])) + 1, len(ids)])
            numbers = ids[order[edges[:-1]]]
            names, at = _names([divmod(number, n // step) for number in numbers.tolist()])
            out = np.empty(len(ids), "f4")

            def share(part: slice, context: ctypes.c_void_p) -> int:
                return self._library.points(
                    bytes(path), names, _at(at[part]), NUMBER(len(at[part])), decompress, context, NUMBER(4 * step * step),
                    _at(edges[part.start :]), _at(inside), _at(order), _at(out),
                )  # fmt: skip

            _check(crew.map(share, _shares(len(at), threads), contexts))
            return out

        return call

    def strided(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read every seventh row and every fifth column of a plane of zstd chunks."""
        box = tuple(slice(0, n, step) for n, step in zip(WORKLOADS[name].shape, (7, 5), strict=True))
        return lambda: self._steps(path, name, box, crew, threads)

    def orthogonal(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read rows and columns of a plane of zstd chunks."""
        side = WORKLOADS[name].chunks[0]
        rows, columns = (np.sort(indices) for indices in tasks.random_indices(WORKLOADS[name], 500))
        decompress = ctypes.cast(self._zstd.ZSTD_decompressDCtx, POINTER)

        def call() -> np.ndarray:
            out = np.empty((len(rows), len(columns)), "f4")
            runs = [_runs(part // side) for part in (rows, columns)]
            cuts = list(product(*runs))
            names, at = _names([(row[0], column[0]) for row, column in cuts])
            bounds = np.array([(*row[1:], *column[1:]) for row, column in cuts])
            inside = rows % side, columns % side

            def share(part: slice) -> int:
                return self._library.picks(
                    bytes(path), names, _at(at[part]), NUMBER(len(at[part])), decompress, self._context(), NUMBER(side),
                    _at(bounds[part]), _at(inside[0]), _at(inside[1]), _at(out), NUMBER(len(columns)),
                )  # fmt: skip

            _check(crew.map(share, _shares(len(at), threads)))
            return out

        return call

    def threads(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read a plane of zstd chunks from eight threads, like the task of this name."""
        (n, m), count = WORKLOADS[name].shape, tasks.THREADS
        rows = n // count

        def work(first: int) -> None:
            for block in [*range(first, count), *range(first)]:
                self._steps(path, name, (slice(block * rows, (block + 1) * rows), slice(0, m)))

        def call() -> None:
            with ThreadPoolExecutor(count if threads > 1 else 1) as many:
                list(many.map(work, range(count)))

        return call

    def concurrent(self, path: Path, name: str, crew: ThreadPoolExecutor, threads: int) -> Call:
        """Read boxes of a plane of zstd chunks at once, asynchronously, each on one thread."""
        boxes = tasks.boxes_apart(WORKLOADS[name])

        async def read() -> list[np.ndarray]:
            run = partial(asyncio.get_running_loop().run_in_executor, crew)
            return await asyncio.gather(*(run(self._steps, path, name, box) for box in boxes))

        crew = ThreadPoolExecutor(threads)  # to limit their number
        return lambda: asyncio.run(read())

    def _steps(
        self, path: Path, name: str, box: tuple[slice, ...], crew: ThreadPoolExecutor | None = None, threads: int = 1
    ) -> np.ndarray:
        side = WORKLOADS[name].chunks[0]
        spans = [range(*part.indices(n)) for part, n in zip(box, WORKLOADS[name].shape, strict=True)]
        out = np.empty([len(span) for span in spans], "f4")
        cuts = list(product(*(_cuts(span, side) for span in spans)))
        names, at = _names([(row[0], column[0]) for row, column in cuts])
        bounds = np.array([(*row[1], *column[1]) for row, column in cuts])
        place = np.array([row[2] * len(spans[1]) + column[2] for row, column in cuts])
        decompress = ctypes.cast(self._zstd.ZSTD_decompressDCtx, POINTER)

        def share(part: slice) -> int:
            return self._library.steps(
                bytes(path), names, _at(at[part]), NUMBER(len(at[part])), decompress, self._context(), NUMBER(side),
                _at(bounds[part]), _at(out), _at(place[part]), NUMBER(len(spans[1])),
            )  # fmt: skip

        _check(map(share, [slice(0, len(at))]) if crew is None else crew.map(share, _shares(len(at), threads)))
        return out

    def _context(self) -> ctypes.c_void_p:
        if not hasattr(self._of_thread, "context"):
            self._of_thread.context = ctypes.c_void_p(self._zstd.ZSTD_createDCtx())
        return self._of_thread.context


def _cuts(span: range, side: int) -> list[tuple[int, tuple[int, int, int], int]]:
    """Return the chunks of a span: for each the first index, the step and the count, and the position of the first."""
    cuts, done = [], 0
    while done < len(span):
        chunk, first = divmod(span[done], side)
        count = min(len(span) - done, -(-(side - first) // span.step))
        cuts.append((chunk, (first, span.step, count), done))
        done += count
    return cuts


def _runs(chunks: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the chunks of sorted indices, and for each the range of its indices."""
    edges = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(chunks)]
    return [(int(chunks[a]), a, b) for a, b in pairwise(edges)]


def _plane(n: int, m: int, step: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return the names of a plane's chunks, the offset of each name, and the offset of each chunk in bytes."""
    coords = list(product(range(n // step), range(m // step)))
    rows, columns = np.array(coords).T
    return *_names(coords), 4 * step * (rows * m + columns)


def _names(coords: list[tuple[int, int]]) -> tuple[bytes, np.ndarray]:
    """Return the names of chunks in one piece of memory, and their offsets."""
    names = [f"c/{i}/{j}\0".encode() for i, j in coords]
    return b"".join(names), np.cumsum([0, *map(len, names[:-1])])


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _shares(count: int, threads: int) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(k * count // threads for k in range(threads + 1))]


def _check(codes: Any) -> None:
    if any(codes):
        raise SystemExit("the C code cannot decode a chunk")


ROWS = [
    ("blosc-lz4-tiny", "read", "files"),
    ("raw-64k", "read", "files"),
    ("blosc-lz4-64k", "read", "files"),
    ("shards-128k", "read", "shards"),
    ("shards-4k", "read", "shards"),
    ("shards-4k", "boxes", "boxes"),
    ("zstd-64k", "points", "points"),
    ("zstd-64k", "orthogonal", "orthogonal"),
    ("zstd-64k", "strided", "strided"),
    ("zstd-64k", "threads", "threads"),
    ("zstd-64k", "async", "concurrent"),
    ("raw-1m", "write", "store"),
    ("raw-64k", "write", "store"),
    ("blosc-lz4-64k", "write", "store"),
    ("raw-tiny", "write", "store"),
]
"""Workloads, tasks and the methods of ``Native`` for them."""


def main() -> None:
    rounds = make_parser(__doc__, rounds=9).parse_args().rounds
    names = [*PEERS, "C, 1 thread", "C, 2 threads"]
    print(markdown_table(["task", "array", *names], [], labels=2))
    with ram_disk("native") as root, ThreadPoolExecutor(2) as crew:
        native = Native(Path(root))
        for name, task, method in ROWS:
            times = measure_row(native, Path(root), name, task, method, crew, rounds)
            cells = [f"{times[engine]:.0f}" if engine in times else "–" for engine in (*PEERS, "C, 1", "C, 2")]
            print(f"| {tasks.TITLES[task]} | {WORKLOADS[name].title} | {' | '.join(cells)} |", flush=True)


def measure_row(
    native: Native, root: Path, name: str, task: str, method: str, crew: ThreadPoolExecutor, rounds: int
) -> dict[str, float]:
    """Return milliseconds of all engines, after checking that they agree."""
    path, workload = root / (f"{name}-new" if task == "write" else name), WORKLOADS[name]
    peers = [peer for peer in PEERS if task in ABLE or peer not in ("zarrs-python", "zarrista")]
    compiled = {f"C, {n}": getattr(native, method)(path, name, crew, n) for n in (1, 2)}
    if task == "write":
        calls = {peer: partial(engines.make(peer).write, path, workload, workload.data()) for peer in peers}
        check_written(native, path, name, crew)
        return measure({**calls, **compiled}, rounds, before=partial(shutil.rmtree, path, ignore_errors=True))
    if not path.exists():
        engines.make("zarrasync").write(path, workload, workload.data())
    calls = {peer: tasks.TASKS[task](engines.make(peer), path, workload) for peer in peers} | compiled
    results = [call() for call in calls.values()]
    assert all(np.array_equal(np.asarray(r), np.asarray(results[0])) for r in results if r is not None)
    return measure(calls, rounds)


def check_written(native: Native, path: Path, name: str, crew: ThreadPoolExecutor) -> None:
    """Check that the C code writes the same files as zarrasync, and erase them."""
    workload = WORKLOADS[name]
    written = []
    for write in (
        partial(engines.make("zarrasync").write, path, workload, workload.data()),
        native.store(path, name, crew, 2),
    ):
        write()
        written.append({file.relative_to(path): file.read_bytes() for file in path.glob("c/*/*")})
        shutil.rmtree(path)
    assert written[0] == written[1]


def measure(calls: dict[str, Call], rounds: int, before: Call = lambda: None) -> dict[str, float]:
    """Return the median of each call in milliseconds. The calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            before()
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(runs) for name, runs in times.items()}


if __name__ == "__main__":
    main()
