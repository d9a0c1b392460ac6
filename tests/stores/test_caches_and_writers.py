"""Caches beside other writers: what they have read is not used where it would hide a change or lose it."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.shifted_clock import ShiftedClock
from zarrasync import stores, sync
from zarrasync._concurrency import clock


def caches(inner: stores.Store, tmp_path: Path) -> list[stores.Store]:
    return [stores.CachingStore(inner, max_age=60), stores.DiskCachingStore(inner, tmp_path / uuid.uuid4().hex)]


@pytest.mark.parametrize("which", ["memory", "small memory", "disk"])
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_new_documents_are_not_combined_with_old_chunks(api: Api, which: str, zarr_format: Any, tmp_path: Path):
    """The chunk that others append to was read after the document, so that it would expire later."""
    array = await api(
        api.create_array(
            tmp_path / "a", data=np.arange(1, 5), chunks=8, compressors=None, zarr_format=zarr_format, dtype="i4"
        )
    )
    (tmp_path / "a" / "other").write_bytes(bytes(1100))
    inner, time = stores.LocalStore(tmp_path / "a"), ShiftedClock()
    cache: stores.Store = stores.DiskCachingStore(inner, tmp_path / "cache", max_age=60)
    if which != "disk":
        cache = stores.CachingStore(inner, 5000 if which == "memory" else 2000, max_age=60, absent=False)
    with clock.replaced(time):
        reader = await api(api.open_array(cache))
        time.ahead += 0 if which == "disk" else 30
        for path in (tmp_path / "cache").rglob("*"):  # the clock of files is that of the system
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 30))
        assert len(await cache.get("other") or b"") == 1100  # in a small cache, it replaces the document
        assert (await api(reader.get_basic_selection(...))).tolist() == [1, 2, 3, 4]
        await api(array.append(np.arange(5, 7, dtype="i4")))
        time.ahead += 40
        again = await api(api.open_array(cache))
        assert again.shape == (6,)
        assert (await api(again.get_basic_selection(...))).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("which", [0, 1])
async def test_rows_are_appended_behind_those_of_others(api: Api, which: int, tmp_path: Path):
    await api(api.create_array(tmp_path / "a", data=np.zeros(4, "i4"), chunks=4))
    cached = await api(api.open_array(caches(stores.LocalStore(tmp_path / "a"), tmp_path)[which], mode="r+"))
    other = await api(api.open_array(tmp_path / "a", mode="r+"))
    await api(other.append(np.full(4, 1, "i4")))
    await api(cached.append(np.full(4, 2, "i4")))
    assert sync.open_array(tmp_path / "a")[...].tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("which", [0, 1])
async def test_a_value_that_is_read_while_it_is_erased_is_not_cached(which: int, tmp_path: Path):
    class Slow(stores.WrapperStore):
        async def fetch(self, requests, *, versions=False):
            values = await super().fetch(requests, versions=versions)
            begun.set()
            await erased.wait()
            return values

        async def erase_prefix(self, prefix):
            tasks.append(asyncio.ensure_future(cache.get("a/k")))
            await begun.wait()
            await super().erase_prefix(prefix)

    begun, erased, tasks = asyncio.Event(), asyncio.Event(), list[asyncio.Task[Any]]()
    inner = Slow(stores.MemoryStore({"a/k": b"old"}))
    inner.blocking = False
    cache = caches(inner, tmp_path)[which]
    await cache.erase_prefix("a/")
    erased.set()
    assert await tasks[0] == b"old"
    assert await cache.get("a/k") is None


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["memory", "local", "fsspec"])
async def test_changes_use_the_stored_value(api: Api, which: int, kind: str, tmp_path: Path):
    """Changes use the stored value, also without conditional writes; changes of the other handle are kept."""
    inner: stores.Store = {
        "memory": stores.MemoryStore(),
        "local": stores.LocalStore(tmp_path / "a"),
        "fsspec": stores.resolve(f"memory://{uuid.uuid4().hex}"),
    }[kind]
    await api(api.create_array(inner, data=np.zeros(8, "i4"), chunks=8))
    cached = await api(api.open_array(caches(inner, tmp_path)[which], mode="r+"))
    other = await api(api.open_array(inner, mode="r+"))
    await api(cached.view[0:2].read())
    await api(other.view[0].write(1))
    await api(other.update_attributes({"x": 1}))
    await api(cached.view[1].write(2))
    await api(cached.update_attributes({"y": 2}))
    found = await api(api.open_array(inner))
    assert (await api(found.view[:3].read())).tolist() == [1, 2, 0]
    assert dict(found.attrs) == {"x": 1, "y": 2}


@pytest.mark.parametrize("which", [0, 1])
async def test_fill_values_replace_what_others_stored_in_an_absent_chunk(api: Api, which: int, s3: Any, tmp_path: Path):
    """The cache contains the chunk's absence, and nothing would be stored over an absent chunk."""
    url, options = s3
    inner = stores.resolve(url, options)
    await api(api.create_array(inner, shape=(6,), dtype="i4", chunks=3))
    cached = await api(api.open_array(caches(inner, tmp_path)[which], mode="r+"))
    other = await api(api.open_array(inner, mode="r+"))
    await api(cached.view[0].write(0))
    await api(other.view[0:2].write([1, 2]))
    await api(cached.view[0].write(0))
    assert (await api(other.view[:3].read())).tolist() == [0, 2, 0]
    await api(cached.view[3:5].write(0))
    await api(other.view[3:5].write([3, 4]))
    await api(cached.view[3:5].write(0))
    assert (await api(other.view[3:].read())).tolist() == [0, 0, 0]
