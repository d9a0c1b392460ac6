"""Counts the requests, bytes and round trips of everyday tasks on S3, for zarrasync and its peers.

    python benchmarks/s3_requests.py [--only TASK …] [--engines ENGINE …] [--times] [--out DIRECTORY] [--write-docs]

All engines use the same S3 server (moto) through a proxy that logs requests (see ``servers.py``). The numbers do not
depend on the machine. Round trips are the longest chain of requests that each began after the response to the one
before. Prints a table and writes requests.json and requests.md. With ``--times`` xarray's datasets are opened, each response
takes 50 ms, the table contains durations, and the files are named requests-times.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import servers
from harness import EngineProcess, add_hidden, columns, make_parser, markdown_table, parse_publishable, save

BUCKET = "zarrasync"
CHILDREN = 1000
KEYS = {"key": "test", "secret": "test"}
INNER = (64, 64)
SHARD = (1024, 1024)
"""256 inner chunks of 16 KiB, that do not compress: a shard of 4 MiB."""


MANY: dict[str, Any] = {"combine": "nested", "concat_dim": "run", "data_vars": "minimal", "coords": "minimal",
                        "compat": "override", "join": "override"}  # fmt: skip
"""Arguments of ``open_mfdataset`` with which no values are compared."""


def scattered() -> tuple[np.ndarray, np.ndarray]:
    """Twenty points in different inner chunks of one shard."""
    rng = np.random.default_rng(1)
    where = rng.permutation(256)[:20]
    return where // 16 * 64 + 5, where % 16 * 64 + 7


# ---------------------------------------------------------------------- engines


class Engine:
    """A library as its documentation recommends for S3.

    Attributes:
        root: The place in the bucket that the task has for itself.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def open_array(self, path: str, *, write: bool = False, with_format: bool = True) -> Any:
        raise NotImplementedError

    def open_group(self, path: str, *, with_format: bool = True) -> Any:
        raise NotImplementedError("it has no groups")

    def children(self, group: Any) -> int:
        raise NotImplementedError

    def create(self, path: str) -> Any:
        raise NotImplementedError

    def get(self, array: Any, box: Any) -> Any:
        return array[box]

    def points(self, array: Any, where: Any) -> Any:
        return array.vindex[where]

    def put(self, array: Any, box: Any, value: Any) -> None:
        array[box] = value

    def append(self, array: Any, rows: np.ndarray) -> None:
        array.append(rows)

    def resize(self, array: Any, shape: tuple[int, ...]) -> None:
        array.resize(shape)

    def write_dataset(self, path: str, dataset: Any) -> None:
        raise NotImplementedError("it has no datasets")

    def open_dataset(self, path: str) -> Any:
        raise NotImplementedError("it has no datasets")

    def open_tree(self, path: str) -> Any:
        raise NotImplementedError("it has no datasets")

    def load(self, dataset: Any) -> None:
        dataset.load()

    def open_many(self, paths: list[str]) -> Any:
        raise NotImplementedError("it has no datasets")


class Zarrasync(Engine):
    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        from zarrasync import sync

        self.sync = sync
        self.options = {**KEYS, "endpoint_url": endpoint}

    def _call(self, name: str, path: str, **options: Any) -> Any:
        return getattr(self.sync, name)(f"s3://{BUCKET}/{path}", storage_options=self.options, **options)

    def open_array(self, path: str, *, write: bool = False, with_format: bool = True) -> Any:
        return self._call(
            "open_array", path, mode="r+" if write else "r", **({"zarr_format": 3} if with_format else {})
        )

    def open_group(self, path: str, *, with_format: bool = True) -> Any:
        return self._call("open_group", path, **({"zarr_format": 3} if with_format else {}))

    def children(self, group: Any) -> int:
        return len(group.arrays())

    def create(self, path: str) -> Any:
        return self._call("create_array", path, shape=SHARD, chunks=INNER, dtype="f4", zarr_format=3)

    def write_dataset(self, path: str, dataset: Any) -> None:
        from zarrasync.integrations.xarray import write_dataset

        write_dataset(dataset, f"s3://{BUCKET}/{path}", storage_options=self.options)

    def open_dataset(self, path: str) -> Any:
        import xarray as xr

        return xr.open_dataset(f"s3://{BUCKET}/{path}", engine="zarrasync", storage_options=self.options)

    def open_tree(self, path: str) -> Any:
        import xarray as xr

        return xr.open_datatree(f"s3://{BUCKET}/{path}", engine="zarrasync", storage_options=self.options)

    def load(self, dataset: Any) -> None:
        from zarrasync.integrations.xarray import load

        load(dataset)

    def open_many(self, paths: list[str]) -> Any:
        from zarrasync.integrations.xarray import open_mfdataset

        return open_mfdataset([f"s3://{BUCKET}/{path}" for path in paths], storage_options=self.options, **MANY)


class ZarrPython(Engine):
    backend = "fsspec"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import zarr

        self.zarr = zarr

    def _store(self, path: str) -> Any:
        if self.backend == "obstore":
            from obstore.store import S3Store

            options: Any = {"allow_http": True}
            return self.zarr.storage.ObjectStore(
                S3Store(
                    BUCKET, prefix=path, endpoint=self.endpoint, region="us-east-1", access_key_id="test",
                    secret_access_key="test", client_options=options,
                )
            )  # fmt: skip
        return self.zarr.storage.FsspecStore.from_url(
            f"s3://{BUCKET}/{path}", storage_options={**KEYS, "endpoint_url": self.endpoint}
        )

    def open_array(self, path: str, *, write: bool = False, with_format: bool = True) -> Any:
        return self.zarr.open_array(
            self._store(path), mode="r+" if write else "r", zarr_format=3 if with_format else None
        )

    def open_group(self, path: str, *, with_format: bool = True) -> Any:
        return self.zarr.open_group(self._store(path), mode="r", zarr_format=3 if with_format else None)

    def children(self, group: Any) -> int:
        return len(list(group.arrays()))

    def create(self, path: str) -> Any:
        return self.zarr.create_array(self._store(path), shape=SHARD, chunks=INNER, dtype="f4", zarr_format=3)

    def write_dataset(self, path: str, dataset: Any) -> None:
        dataset.to_zarr(self._store(path))

    def open_dataset(self, path: str) -> Any:
        import xarray as xr

        return xr.open_dataset(self._store(path), engine="zarr")

    def open_tree(self, path: str) -> Any:
        import xarray as xr

        return xr.open_datatree(self._store(path), engine="zarr")

    def open_many(self, paths: list[str]) -> Any:
        import xarray as xr

        return xr.open_mfdataset([self._store(path) for path in paths], engine="zarr", **MANY)


class ZarrPythonObstore(ZarrPython):
    backend = "obstore"


class TensorStore(Engine):
    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        import tensorstore

        self.ts = tensorstore

    def _spec(self, path: str) -> dict[str, Any]:
        kvstore = {
            "driver": "s3", "bucket": BUCKET, "path": f"{path}/", "endpoint": self.endpoint,
            "aws_region": "us-east-1", "aws_credentials": {"type": "environment"},
        }  # fmt: skip
        return {"driver": "zarr3", "kvstore": kvstore}

    def open_array(self, path: str, *, write: bool = False, with_format: bool = True) -> Any:
        if not with_format:
            raise NotImplementedError("the format is to be given")
        return self.ts.open(self._spec(path), read=True, write=write).result()

    def get(self, array: Any, box: Any) -> Any:
        return array[box].read().result()

    def points(self, array: Any, where: Any) -> Any:
        return array.vindex[where].read().result()

    def put(self, array: Any, box: Any, value: Any) -> None:
        array[box].write(value).result()

    def append(self, array: Any, rows: np.ndarray) -> None:
        start = array.shape[0]
        array = array.resize(exclusive_max=[start + len(rows), *array.shape[1:]]).result()
        array[start : start + len(rows)].write(rows).result()

    def resize(self, array: Any, shape: tuple[int, ...]) -> None:
        array.resize(exclusive_max=shape).result()

    def create(self, path: str) -> Any:
        grid = {"name": "regular", "configuration": {"chunk_shape": INNER}}
        metadata = {"shape": SHARD, "data_type": "float32", "chunk_grid": grid}
        return self.ts.open({**self._spec(path), "metadata": metadata}, create=True).result()


ENGINES: dict[str, type[Engine]] = {
    "zarrasync": Zarrasync,
    "zarr-python": ZarrPython,
    "zarr-python obstore": ZarrPythonObstore,
    "tensorstore": TensorStore,
}

# ---------------------------------------------------------------------- tasks

Begin = Callable[[Engine, str], Callable[[], Any]]


def _open(*, with_format: bool) -> Begin:
    return lambda engine, root: lambda: engine.open_array(f"{root}/plain", with_format=with_format)


def _group(*, consolidated: bool, with_format: bool) -> Begin:
    path = "many-consolidated" if consolidated else "many"
    return lambda engine, root: lambda: engine.children(engine.open_group(f"groups/{path}", with_format=with_format))


def _read(path: str, box: Any, *, warm: bool = False) -> Begin:
    def begin(engine: Engine, root: str) -> Callable[[], Any]:
        array = engine.open_array(f"{root}/{path}")
        if warm:
            engine.get(array, (slice(200, 201), slice(200, 201)))
        return lambda: engine.get(array, box)

    return begin


def _points(engine: Engine, root: str) -> Callable[[], Any]:
    array, where = engine.open_array(f"{root}/sharded"), scattered()
    return lambda: engine.points(array, where)


def _put(path: str, box: Any) -> Begin:
    def begin(engine: Engine, root: str) -> Callable[[], Any]:
        array = engine.open_array(f"{root}/{path}", write=True)
        return lambda: engine.put(array, box, np.full(tuple(s.stop - s.start for s in box), 7, "f4"))

    return begin


def _append(engine: Engine, root: str) -> Callable[[], Any]:
    array = engine.open_array(f"{root}/rows", write=True)
    return lambda: engine.append(array, np.ones((1, 1024), "f4"))


def _resize(engine: Engine, root: str) -> Callable[[], Any]:
    array = engine.open_array(f"{root}/plain", write=True)
    return lambda: engine.resize(array, (2048, 2048))


def _create(engine: Engine, root: str) -> Callable[[], Any]:
    return lambda: engine.create(f"{root}/new-{uuid.uuid4().hex}")


def _dataset(engine: Engine, root: str) -> Callable[[], Any]:
    import xarray as xr

    values = {f"v{n}": (("t", "x"), np.ones((4, 8))) for n in range(20)}
    dataset = xr.Dataset(values, {"t": np.arange(4), "x": np.arange(8)})
    return lambda: engine.write_dataset(f"{root}/dataset", dataset)


def _tree(engine: Engine, root: str) -> Callable[[], Any]:
    import xarray as xr

    group = xr.Dataset({"a": ("t", np.ones(4)), "b": ("t", np.ones(4))}, {"t": np.arange(4)})
    tree = xr.DataTree.from_dict({f"/g{n}": group for n in range(8)})
    return lambda: engine.write_dataset(f"{root}/tree", tree)


def _open_dataset(path: str) -> Begin:
    return lambda engine, root: lambda: engine.open_dataset(f"groups/{path}")


def _open_tree(path: str) -> Begin:
    return lambda engine, root: lambda: engine.open_tree(f"groups/{path}")


def _load(engine: Engine, root: str) -> Callable[[], Any]:
    dataset = engine.open_dataset("groups/dataset")
    return lambda: engine.load(dataset)


def _open_many(engine: Engine, root: str) -> Callable[[], Any]:
    return lambda: engine.open_many([f"groups/day{n}" for n in range(20)])


DATASETS = ("open-dataset", "open-dataset-consolidated", "load", "open-tree", "open-tree-consolidated", "open-many")
READS = (
    *DATASETS, "open", "detect", "group", "consolidated", "chunk", "chunks", "inner", "inner-warm", "scattered", "shard",
)  # fmt: skip
ONE = (slice(3, 4), slice(3, 4))
TASKS: dict[str, tuple[str, Begin, str]] = {
    "open": ("open an array, format given", _open(with_format=True), "1 in 1: its document"),
    "detect": ("open an array of any format", _open(with_format=False), "one per document of v3 and v2, in 1"),
    "group": (f"open a group and its {CHILDREN:,} arrays", _group(consolidated=False, with_format=True), "group, list, 1 per array in 3"),
    "consolidated": ("the same, consolidated", _group(consolidated=True, with_format=True), "1 in 1"),
    "chunk": ("read one chunk", _read("plain", ONE), "1 in 1"),
    "chunks": ("read 10 x 10 chunks", _read("plain", (slice(0, 640), slice(0, 640))), "100 in 1"),
    "inner": ("read one inner chunk of a shard", _read("sharded", ONE), "2 in 2: index, chunk"),
    "inner-warm": ("the same, after another one was read", _read("sharded", ONE, warm=True), "1 in 1"),
    "scattered": ("read 20 scattered inner chunks", _points, "index, then 20 or fewer, in 2"),
    "shard": ("read a shard whole", _read("sharded", (slice(0, 1024), slice(0, 1024))), "1 in 1"),
    "put-chunk": ("write one chunk whole", _put("plain", (slice(0, 64), slice(0, 64))), "1 in 1"),
    "put-part": ("write a part of a chunk", _put("plain", (slice(0, 9), slice(0, 9))), "2 in 2: get, put"),
    "put-shard": ("write an inner chunk of a shard", _put("sharded", (slice(0, 64), slice(0, 64))), "2 in 2: get, put"),
    "put-shard-whole": ("write a shard whole", _put("sharded", (slice(0, 1024), slice(0, 1024))), "1 in 1"),
    "append": ("append a row of 16 chunks", _append, "16 and the document, in 2"),
    "resize": ("make an array larger", _resize, "1 in 1: the document"),
    "create": ("create an array", _create, "1 in 1: the document, if none exists"),
    "dataset": ("write a dataset of 22 variables", _dataset, "46: 2 per variable, 2 of the group, in 4"),
    "tree": ("write a tree of 8 groups with 3 variables", _tree, "58: 2 per variable, 1 per group, 2 of the root, in 5"),
    "open-dataset": ("open a dataset of 12 coordinates and 12 variables", _open_dataset("dataset"), "24 documents, 12 chunks, group, list, in 3"),
    "open-dataset-consolidated": ("the same, consolidated", _open_dataset("dataset-consolidated"), "1 document, 12 chunks, in 2"),
    "load": ("load its 12 variables", _load, "12 in 1"),
    "open-tree": ("open a tree of 8 groups with 3 coordinates and 3 variables", _open_tree("tree"), "57 documents, 24 chunks, list, in 3"),
    "open-tree-consolidated": ("the same, consolidated", _open_tree("tree-consolidated"), "1 document, 24 chunks, in 2"),
    "open-many": ("open 20 datasets as one", _open_many, "80 documents, 40 chunks, 20 lists, in 3"),
}  # fmt: skip


def prepare(endpoint: str, root: str) -> None:
    """Create the arrays."""
    from zarrasync import sync

    options = {**KEYS, "endpoint_url": endpoint}
    rng = np.random.default_rng(0)
    url = f"s3://{BUCKET}/{root}"
    values = rng.normal(size=SHARD).astype("f4")
    common: dict[str, Any] = {"storage_options": options, "data": values}
    sync.create_array(f"{url}/plain", chunks=INNER, **common)
    sync.create_array(f"{url}/sharded", chunks=INNER, shards=SHARD, **common)
    sync.create_array(f"{url}/rows", chunks=(1, 64), storage_options=options, data=values[:4])


def prepare_groups(endpoint: str) -> None:
    """Create the groups."""
    from zarrasync import sync

    options = {**KEYS, "endpoint_url": endpoint}
    children = {f"{n}": {"shape": (4,), "chunks": (4,), "dtype": "f4"} for n in range(CHILDREN)}
    for name in ("many", "many-consolidated"):
        url = f"s3://{BUCKET}/groups/{name}"
        sync.create_hierarchy(url, {"": None, **children}, storage_options=options, zarr_format=3)
    sync.consolidate_metadata(f"s3://{BUCKET}/groups/many-consolidated", storage_options=options)
    try:
        import xarray as xr
    except ImportError:
        return
    from zarrasync.integrations.xarray import WriteOptions, write_dataset

    def dataset(count: int) -> Any:
        values = {f"v{n}": (f"d{n}", np.arange(4.0)) for n in range(count)}
        return xr.Dataset(values, {f"d{n}": np.arange(4) + n for n in range(count)})

    tree = xr.DataTree.from_dict({f"/g{n}": dataset(3) for n in range(8)})
    for name, data in (("dataset", dataset(12)), ("tree", tree)):
        for suffix, consolidated in (("", False), ("-consolidated", True)):
            url = f"s3://{BUCKET}/groups/{name}{suffix}"
            write_dataset(data, url, options=WriteOptions(consolidated=consolidated), storage_options=options)
    for number in range(20):
        day = dataset(1).assign_coords(run=number)
        write_dataset(
            day, f"s3://{BUCKET}/groups/day{number}", options=WriteOptions(consolidated=False), storage_options=options
        )


# ---------------------------------------------------------------------- measuring


def worker(name: str, endpoint: str, root: str) -> None:
    """Run one engine: prepare a task, print a line, and run it after reading a line."""
    try:
        engine = ENGINES[name](endpoint)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            call = TASKS[line.strip()][1](engine, root)
            print("{}", flush=True)
            sys.stdin.readline()
            call()
            print("{}", flush=True)
        except Exception as error:  # a peer's failure is a row's result
            print(json.dumps({"failed": f"{type(error).__name__}: {error}"[:200]}), flush=True)


def measure(name: str, tasks: list[str], proxy: Any, endpoint: str, root: str, rounds: int) -> dict[str, Any]:
    """Return the requests of an engine by task, for tasks that only read in the fastest of several rounds."""
    command = [sys.executable, __file__, "--worker", name, "--endpoint", endpoint, "--root", root]
    process = EngineProcess(name, command)
    results: dict[str, Any] = {}
    for task in tasks if process.is_installed else ():
        for number in range(rounds if task in READS else 1):
            response = process.ask(task)
            if "failed" not in response:
                proxy.take()
                begun = time.perf_counter()
                response = process.ask("go")
            if "failed" in response:
                results[task] = response
                break
            seconds, seen = time.perf_counter() - begun, proxy.take()
            if number > 1 and seconds > results[task]["seconds"]:
                continue  # after the first round the proxy has all responses
            results[task] = {
                "requests": len(seen), "seconds": seconds, "bytes": sum(entry.nbytes for entry in seen),
                "round_trips": servers.round_trips(seen), "methods": sorted({entry.method for entry in seen}),
                "log": [f"{entry.method} {entry.target} {entry.byte_range} {entry.status}" for entry in seen[:40]],
            }  # fmt: skip
    process.kill()
    return results


def size(nbytes: int) -> str:
    return f"{nbytes / 1024:,.0f} KiB" if nbytes >= 10_240 else f"{nbytes:,} B"


def table(section: dict[str, Any]) -> str:
    """Return requests, round trips and bytes, or milliseconds, as Markdown."""

    def cell(result: dict[str, Any]) -> str:
        if "requests" not in result:
            return "–"
        last = f"{1000 * result['seconds']:,.0f} ms" if section["times"] else size(result["bytes"])
        return f"{result['requests']:,} in {result['round_trips']}, {last}"

    rows = section["rows"]
    names = columns(rows)
    lines = [
        [TASKS[task][0], TASKS[task][2], *(cell(row.get(name, {})) for name in names)] for task, row in rows.items()
    ]
    return markdown_table(["task", "least", *names], lines, labels=2 + len(names))


def main() -> None:
    parser = make_parser(__doc__, only=TASKS, engines=ENGINES)
    parser.add_argument("--times", action="store_true", help="measure durations of datasets, at 50 ms per response")
    add_hidden(parser, "--worker", "--endpoint", "--root")
    args = parse_publishable(parser)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    if args.worker:
        worker(args.worker, args.endpoint, args.root)
        return
    tasks = args.only or [task for task in TASKS if (task in DATASETS) == args.times]
    rows: dict[str, dict[str, Any]] = {task: {} for task in tasks}
    with servers.moto(BUCKET) as target:
        prepare_groups(target)
        proxy = servers.Proxy(target, 50 if args.times else 300)
        with proxy.running() as endpoint:
            for name in args.engines or ENGINES:
                root = uuid.uuid4().hex
                prepare(target, root)
                results = measure(name, tasks, proxy, endpoint, root, rounds=6 if args.times else 2)
                for task, result in results.items():
                    rows[task][name] = result
                    print(name, task, {k: v for k, v in result.items() if k != "log"}, flush=True)
    section = "requests-times" if args.times else "requests"
    save(args, section, table, {"times": args.times, "rows": rows})


if __name__ == "__main__":
    main()
