"""Bounds on requests and bytes in flight, counted by a store that has no limiter, over every way of reading and writing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.s3_server import Bucket
from zarrasync import stores
from zarrasync.stores import MemoryStore
from zarrasync.testing import FaultyStore

ROWS, WIDTH = 32, 64
VALUES = np.random.default_rng(0).integers(1, 255, (ROWS, WIDTH), dtype="u1")
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (1, WIDTH)},
    "nested shards": {"chunks": (4, WIDTH), "shards": (16, WIDTH)},
    "irregular": {"chunks": [[1] * 12 + [2] * 10, [WIDTH]]},
}


class Counting(stores.WrapperStore):
    """Counts the requests and the bytes of requested chunks that are in flight, on tasks or on threads."""

    def __init__(self, inner: stores.Store, *, blocking: bool = False) -> None:
        super().__init__(inner)
        self.blocking = blocking
        self._lock, self.now, self.most, self.nbytes, self.most_bytes = threading.Lock(), 0, 0, 0, 0

    @contextmanager
    def _counted(self, requests: int, nbytes: int = 0) -> Iterator[None]:
        with self._lock:
            self.now, self.nbytes = self.now + requests, self.nbytes + nbytes
            self.most, self.most_bytes = max(self.most, self.now), max(self.most_bytes, self.nbytes)
        try:
            yield
        finally:
            with self._lock:
                self.now, self.nbytes = self.now - requests, self.nbytes - nbytes

    async def _pause(self) -> None:
        if self.blocking:
            threading.Event().wait(0.001)
        else:
            await asyncio.sleep(0.001)

    async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
        chunks = sum("c/" in request.key for request in requests)
        with self._counted(1 if self.blocking else len(requests), chunks * WIDTH):
            await self._pause()
            return await self.inner.fetch(requests, versions=versions)

    async def erase_values(self, keys: Any) -> None:
        keys = list(keys)
        with self._counted(1 if self.blocking else len(keys)):
            await self._pause()
            await self.inner.erase_values(keys)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        return await stores.Store.list_sizes(self, prefix)  # a request for each key

    @property
    def sizes_listings(self) -> bool:
        return False


def _operation(name: str) -> Any:
    async def run(self: Counting, *args: Any, **options: Any) -> Any:
        with self._counted(1):
            await self._pause()
            return await getattr(self.inner, name)(*args, **options)

    return run


for _name in ("put", "erase", "erase_prefix", "list_prefix", "list_few", "list_dir", "stat"):
    setattr(Counting, _name, _operation(_name))


async def use_all_ways(api: Api, store: Any, layout: dict[str, Any], config: dict[str, Any]) -> None:
    """Create, write, read, copy, compare and move an array, in part and as a whole."""
    await api(api.create_group(store, config=config))
    array = await api(api.create_array(store, name="a", data=VALUES, **layout, config=config))
    expected = VALUES.copy()
    rows = np.arange(0, ROWS, 3)
    await api.write(array, slice(3, 25), 7)
    expected[3:25] = 7
    view = array if api.name == "async" else array.view
    await api(view[30:, 5:9].write(9))
    expected[30:, 5:9] = 9
    for selection, wanted in (
        (view[...], expected),
        (view[::4], expected[::4]),
        (view[5, 5:7], expected[5, 5:7]),
        (view[:, 3], expected[:, 3]),
        (array.oindex[rows, [1, 5]], expected[np.ix_(rows, np.array([1, 5]))]),
        (array.vindex[rows, rows % 5], expected[rows, rows % 5]),
    ):
        found = await api(selection.read()) if hasattr(selection, "read") else selection
        np.testing.assert_array_equal(found, wanted)
    if isinstance(layout["chunks"], tuple):
        await api(array.append(VALUES[:4]))
        await api(array.resize((ROWS, WIDTH)))
    await api(api.copy(array, store, dest_path="b", config=config, verify=True))
    await api(api.validate(store, config=config))
    group = await api(api.open_group(store, mode="r+", config=config))
    await api(group.members(None))
    await api(group.move("b", "c"))
    await api(group.delete("c"))


@pytest.mark.parametrize(("layout", "blocking"), [*((layout, False) for layout in LAYOUTS), ("chunks", True)])
async def test_requests_keep_to_the_setting_in_all_ways(api: Api, layout: str, blocking: bool):
    store = Counting(MemoryStore(), blocking=blocking)
    nested = stores.CachingStore(stores.TracingStore(FaultyStore(store)))
    await use_all_ways(api, nested, LAYOUTS[layout], {"concurrency": 3, "threads": 8, "coalesce_gap": 0})
    assert (1 if blocking else 2) <= store.most <= 3  # one thread reads small chunks from blocking stores


async def test_calls_with_different_limits_share_the_largest():
    store = Counting(MemoryStore())
    await za.create_array(store, data=VALUES, chunks=(1, WIDTH), compressors=None)
    for setting, sizes in (("concurrency", (3, 5)), ("memory_budget", (8 * WIDTH, 9 * WIDTH))):
        arrays = [await za.open_array(store, config={setting: size}) for size in sizes]
        store.most = store.most_bytes = 0
        await asyncio.gather(*(array[...].read() for array in arrays * 2))
        most = store.most if setting == "concurrency" else store.most_bytes
        assert sizes[0] <= most <= sizes[1]
    plain = Counting(MemoryStore())
    array = await za.create_array(plain, data=VALUES, chunks=(1, WIDTH), shards=(ROWS, WIDTH), compressors=None)
    plain.concurrency, plain.most = 4, 0
    array = await za.open_array(plain, config={"coalesce_gap": 0})
    np.testing.assert_array_equal(await array[::2], VALUES[::2])
    assert 2 <= plain.most <= 4  # the store's own limit, where there is no setting


@pytest.mark.parametrize("backend", ["obstore", "fsspec", "http"])
async def test_requests_at_a_server_keep_to_the_setting(api: Api, bucket: Bucket, backend: str):
    """Also at a store that was opened with another limit."""
    lock, busy, most = threading.Lock(), 0, 0

    def count(key: str, data: bytes | None) -> None:
        nonlocal busy, most
        with lock:
            busy, most = busy + 1, max(most, busy + 1)
        time.sleep(0.005)
        with lock:
            busy -= 1

    bucket.values.clear()
    with za.config.set(concurrency=64):
        if backend == "http":
            store = stores.resolve(f"{bucket.url}/bucket")
        else:
            store = stores.resolve("s3://bucket", bucket.options(backend=backend))
    writable = stores.resolve("s3://bucket", bucket.options())
    for name, shards in (("a", None), ("b", (ROWS, WIDTH))):
        await api(api.create_array(writable, name=name, data=VALUES, chunks=(1, WIDTH), shards=shards))
    bucket.fault = count
    for name in ("a", "b"):
        mode = "r" if backend == "http" else "r+"
        array = await api(api.open_array(store, path=name, mode=mode, config={"concurrency": 3}))
        np.testing.assert_array_equal(await api(array[::2]), VALUES[::2])
        if mode == "r+":
            await api.write(array, slice(0, 16), 5)
    assert 2 <= most <= 3
