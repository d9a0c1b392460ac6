"""Requests and bytes of appending one row of 1 MiB to datasets in several layouts. The counts do not depend on the machine.

python benchmarks/appends.py
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from zarrasync import Layout, stores, sync
from zarrasync.integrations.xarray import write_dataset

ROWS = 100
LAYOUTS = {
    "chunks of one row": Layout(chunks={"time": 1}, compressors=None),
    "chunks of 24 rows": Layout(chunks={"time": 24}, compressors=None),
    "shards of 24 rows": Layout(chunks={"time": 1}, shards={"time": 24}, compressors=None),
    "shards of 240 rows": Layout(chunks={"time": 1}, shards={"time": 240}, compressors=None),
}


class Counting(stores.WrapperStore):
    """A store that counts requests and bytes."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    async def fetch(self, requests: Sequence[Any], *, versions: bool = False) -> list[Any]:
        found = await self.inner.fetch(requests, versions=versions)
        self.counts["GET"] += len(found)
        self.counts["read"] += sum(len(value.data) for value in found if value is not None)
        return found

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self.counts.update({"PUT": 1, "written": len(bytes(data))})
        return await self.inner.put(key, data, if_version=if_version)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        self.counts["DELETE"] += 1
        await self.inner.erase(key, if_version=if_version)

    async def erase_values(self, keys: Iterable[str]) -> None:
        self.counts["DELETE"] += 1
        await self.inner.erase_values(keys)

    async def list_prefix(self, prefix: str) -> list[str]:
        self.counts["LIST"] += 1
        return await self.inner.list_prefix(prefix)


def write(path: Path, first: int, rows: int) -> Path:
    """Write a file with some rows of 1 MiB."""
    time = np.datetime64("2024-01-01", "ns") + np.arange(first, first + rows) * np.timedelta64(1, "h")
    values = np.random.default_rng(first).normal(size=(rows, 512, 512)).astype("f4")
    xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": time}).to_netcdf(path, engine="h5netcdf")
    return path


def main() -> None:
    """Print the table."""
    print("| function | layout | PUT | GET | DELETE, LIST | read | written |\n|---|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, row = write(folder / "first.nc", 0, ROWS), write(folder / "row.nc", ROWS, 1)
        dataset = xr.open_dataset(row, engine="h5netcdf").load()
        functions: dict[str, Callable[[stores.Store], object]] = {
            "ingest_files": lambda store: sync.ingest_files(row, store, concat="time", append=True),
            "write_dataset": lambda store: write_dataset(dataset, store, append_dim="time"),
        }
        for function, append in functions.items():
            for layout, options in LAYOUTS.items():
                store = Counting(stores.MemoryStore())
                sync.ingest_files(first, store, concat="time", layout=options)
                store.counts.clear()
                append(store)
                n = store.counts
                sizes = " | ".join(f"{n[kind] / (1 << 20):.1f} MiB" for kind in ("read", "written"))
                print(f"| {function} | {layout} | {n['PUT']} | {n['GET']} | {n['DELETE'] + n['LIST']} | {sizes} |")


if __name__ == "__main__":
    main()
