"""Ingestion where other data exist already: keys below the new array, nodes of another format, concurrent creation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.blocks import VALUES
from zarrasync import stores
from zarrasync.errors import NodeExistsError, NodeTypeError, StoreError, UnsupportedOperation
from zarrasync.testing import FaultyStore


@pytest.mark.parametrize("how", ["ingest", "copy"])
@pytest.mark.parametrize("kept", ["an array", "files"])
async def test_foreign_keys_are_not_taken_for_chunks(api: Api, tmp_path: Path, how: str, kept: str):
    """Foreign arrays and files whose keys look like chunk keys are left alone."""
    if kept == "an array":
        await api(api.create_array(tmp_path, path="c", data=np.arange(8), chunks=2, zarr_format=2))
        (tmp_path / ".zgroup").unlink()
        match = "other nodes exist below it .c/.zarray"
    else:
        for name in ("0", "1", "notes"):
            (tmp_path / name).write_text("mine")
        match = r"2 values exist under keys of its chunks .0, 1., next to values that are not Zarr .notes."
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(NodeExistsError, match=match):
        if how == "ingest":
            await api(api.ingest(np.zeros(4), tmp_path, chunks=2, zarr_format=2 if kept == "files" else 3))
        else:
            source: dict[str, bytes] = {}
            await api(api.create_array(source, data=np.zeros(4), chunks=2, zarr_format=2 if kept == "files" else 3))
            await api(api.copy(source, tmp_path, resume=True))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_foreign_files_beside_chunks_are_kept(api: Api, tmp_path: Path):
    for name in ("notes", "7"):  # not a chunk of the array
        (tmp_path / name).write_text("mine")
    await api(api.ingest(np.arange(4), tmp_path, chunks=2, zarr_format=2))
    assert (await api((await api(api.open_array(tmp_path)))[...])).tolist() == [0, 1, 2, 3]
    assert [(tmp_path / name).read_text() for name in ("notes", "7")] == ["mine"] * 2


@pytest.mark.parametrize(("zarr_format", "new_takes", "old_takes"), [(None, 3 + 12, 3), (2, 4 + 12, 4), (3, 4 + 2, 4)])
async def test_the_requests_of_beginning(api: Api, zarr_format: int | None, new_takes: int, old_takes: int):
    """One batch looks for an array, one for conflicting nodes, and one listing finds orphaned chunks."""
    store = stores.CountingStore(stores.MemoryStore())
    given = {} if zarr_format is None else {"zarr_format": zarr_format}
    new = await api(api.ingest(VALUES[:80, :60], store, path="a/b", chunks=(20, 20), **given))
    counts = store.reset()
    assert new.requests == counts.requests
    assert (counts.fetches, counts.lists, counts.puts) == (new_takes, 1, 12 + 3)
    again = await api(api.ingest(VALUES[:80, :60], store, path="a/b", chunks=(20, 20), **given))
    counts = store.reset()
    assert again.requests == counts.requests
    assert (counts.fetches, counts.lists, counts.puts) == (old_takes, 1, 0)


@pytest.mark.parametrize("how", ["ingest", "copy"])
async def test_stores_without_listing_are_refused(api: Api, how: str):
    """A store without listing may contain orphaned chunks, so nothing is written."""

    class Unlisted(stores.Store):
        """A store without listing that does not declare it."""

        @property
        def identity(self) -> Any:
            return inner.identity

        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            return await inner.fetch(requests, versions=versions)

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return await inner.put(key, data, if_version=if_version)

    inner = stores.MemoryStore()
    await api(api.create_array(inner, data=np.arange(1, 9), chunks=2))
    del inner.values["zarr.json"]
    before = dict(inner.values)
    with pytest.raises(UnsupportedOperation):
        if how == "ingest":
            await api(api.ingest(np.zeros(8, "i8"), Unlisted(), chunks=2, fill_value=0))
        else:
            source: dict[str, bytes] = {}
            await api(api.create_array(source, data=np.zeros(8, "i8"), chunks=2))
            await api(api.copy(source, Unlisted(), resume=True))
    assert inner.values == before


@pytest.mark.filterwarnings("ignore:/g has documents of Zarr formats 3 and 2")
@pytest.mark.parametrize("mode", ["a", "w", "w-"])
async def test_a_format_that_is_named_below_a_group_of_another(api: Api, mode: Any):
    store: dict[str, bytes] = {}
    await api(api.create_group(store, path="g", zarr_format=2))
    await api(api.ingest(np.arange(4), store, path="g/x", mode=mode, zarr_format=3))
    found = await api(api.open_array(store, path="g/x"))
    assert (found.zarr_format, (await api(found[...])).tolist()) == (3, [0, 1, 2, 3])
    with pytest.raises(NodeTypeError, match=r"/g in .* is a group, not an array"):
        await api(api.ingest(np.arange(4), store, path="g", zarr_format=3))


@pytest.mark.parametrize("function", ["open_array", "ingest"])
async def test_an_array_that_another_makes_first(api: Api, function: str):
    """A caller that found no array uses the one that another caller has created meanwhile."""

    class Late(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            found = await super().fetch(requests, versions=versions)
            if "zarr.json" not in kept:
                await za.create_array(kept, shape=4, dtype="i8", chunks=2, fill_value=0)
            return found

    kept: dict[str, bytes] = {}
    store = Late(stores.MemoryStore(kept))
    if function == "ingest":
        await api(api.ingest(np.arange(4), store, chunks=2))
    else:
        array = await api(api.open_array(store, mode="a", shape=4, dtype="i8", chunks=2, fill_value=5))
        assert array.fill_value == 0
        await api.write(array, ..., np.arange(4))
    assert (await api((await api(api.open_array(kept)))[...])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
async def test_another_file_is_refused_although_no_chunk_of_the_first_is_stored(api: Api, tmp_path: Path, suffix: str):
    one, two = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path, values in ((one, np.zeros(9)), (two, np.ones(9))):
        if suffix == ".npy":
            np.save(path, values)
        else:
            await api(api.create_array(path, data=values, attributes={"units": "K"}))
    store: dict[str, bytes] = {}
    await api(api.ingest(one, store, attributes={"note": 1}, chunks=3))
    assert (await api(api.ingest(one, store, chunks=3))).skipped == 0
    with pytest.raises(NodeExistsError, match=f"contains the values of .*a{suffix}, not .*b{suffix}; pass mode='w'"):
        await api(api.ingest(two, store, chunks=3))
    array = await api(api.open_array(store))
    assert not (await api(array[:])).any()
    assert array.attrs["note"] == 1
    await api(api.ingest(two, store, region=(slice(0, 9),)))  # parts may come from other files
    await api(api.ingest(two, store, mode="r+"))
    await api(api.ingest(two, store))
    assert (await api(array[:])).all()
    with pytest.raises(NodeExistsError):
        await api(api.ingest(one, store))
    await api(api.ingest(one, store, mode="w", chunks=3))
    await api(api.ingest(one, store, chunks=3))
    await api(api.ingest(np.ones(9), store, chunks=3))  # arrays in memory have no identity


async def test_an_interrupted_replacement_is_not_complete(api: Api, tmp_path: Path):
    """Chunks of the first file do not count as chunks of the second one."""
    one, two = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(one, np.full(9, 1.0))
    np.save(two, np.full(9, 2.0))
    memory = stores.MemoryStore()
    await api(api.ingest(one, memory, chunks=3))
    faulty = FaultyStore(memory, fails=lambda operation, key: operation == "put" and key == "c/2")
    with pytest.raises(StoreError, match="simulated failure"):
        await api(api.ingest(two, faulty, mode="r+"))
    for path in (one, two):
        with pytest.raises(
            NodeExistsError, match=r"contains only some values of .*b.npy, .* repeat it with mode='r\+'"
        ):
            await api(api.ingest(path, memory, chunks=3))
    await api(api.ingest(two, memory, mode="r+"))
    assert (await api(api.ingest(two, memory, chunks=3))).skipped > 0
    np.testing.assert_array_equal(await api((await api(api.open_array(memory)))[...]), np.full(9, 2.0))
