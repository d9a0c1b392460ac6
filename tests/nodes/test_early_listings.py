"""Listings that begin before they are needed: failures, writers, and stores that other programs wrote."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.wave_store import WaveStore
from zarrasync import stores, sync
from zarrasync.errors import MetadataError, StoreError
from zarrasync.testing import FaultyStore, LatencyStore

PATHS = ["a", "g", "g/b", "g/h", "g/h/c"]


@pytest.fixture
def local(tmp_path: Path) -> stores.LocalStore:
    array: dict[str, Any] = {"shape": 4, "chunks": 2, "dtype": "i4"}
    sync.create_hierarchy(tmp_path, {"a": array, "g/b": array, "g/h/c": array})
    return stores.LocalStore(tmp_path)


@pytest.fixture(params=["few keys", "many keys"])
def local_of_any_size(request: pytest.FixtureRequest, local: stores.LocalStore) -> stores.LocalStore:
    """A store whose keys one response lists, or one that it shows only some groups of."""
    if request.param == "many keys":
        sync.create_array(local, path="a", data=np.ones(1100, "i1"), chunks=1, overwrite=True)
    return local


def far(inner: stores.Store, fails: Any) -> stores.Store:
    """Return a store that lists like an object store, and fails as a function of the operation and the key decides."""
    return LatencyStore(FaultyStore(inner, fails=fails), 0.0)


def far_without_few(inner: stores.Store) -> WaveStore:
    """Return a store that lists directories alone, as some libraries do."""

    class Directories(WaveStore):
        async def list_few(self, prefix, limit):
            return None

    return Directories(inner)


class Slow(stores.WrapperStore):
    """Listings that never end."""

    async def list_dir(self, prefix) -> Any:
        await asyncio.Event().wait()

    async def list_few(self, prefix, limit) -> Any:
        await asyncio.Event().wait()


class OrderedWaves(WaveStore):
    """A store whose listings are in order, as those of object stores are."""

    async def list_few(self, prefix, limit):
        await self._before("list", prefix)
        return sorted(await self.inner.list_prefix(prefix))[:limit]


MANY = {"shape": 1100, "chunks": 1, "dtype": "i1"}


@pytest.mark.parametrize("groups", [["g"], ["a/b"], ["a/b/c/d/e"], ["a/b", "a/e", "d/b", "d/e"]])
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_a_walk_over_many_keys_takes_two_round_trips_for_each_level(api, tmp_path, groups, zarr_format):
    """One that lists the groups, and one that fetches the documents of their members; consolidated metadata saves them."""
    array: dict[str, Any] = {"shape": 4, "chunks": 2, "dtype": "i4"}
    nodes: dict[str, Any] = {f"{group}/{name}": array for group in groups for name in "xy"}
    sync.create_hierarchy(tmp_path, nodes | {f"{group}/big": MANY for group in groups}, zarr_format=zarr_format)
    for group in groups:
        sync.open_array(tmp_path, path=f"{group}/big", mode="r+")[:] = 1
    local = sync.open_group(tmp_path)
    levels = groups[0].count("/") + 2
    for store in (OrderedWaves(stores.LocalStore(tmp_path)), far_without_few(stores.LocalStore(tmp_path))):
        group = await api(api.open_group(store))
        store.take()
        assert [path for path, _ in await api(group.members(None))] == [path for path, _ in local.members(None)]
        waves = store.take()
        assert len(waves) == 2 * levels
        fetched = [key for wave in waves for operation, key in wave if operation == "fetch"]
        assert len(fetched) == len(set(fetched))
        assert not [key for key in fetched if "big/" in key and key.count("/") > groups[0].count("/") + 2]


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_a_walk_takes_two_round_trips(api, tmp_path, zarr_format):
    array: dict[str, Any] = {"shape": 4, "chunks": 2, "dtype": "i4"}
    sync.create_hierarchy(tmp_path, {"a": array, "g/b": array, "g/h/c": array}, zarr_format=zarr_format)
    store = WaveStore(stores.LocalStore(tmp_path))
    group = await api(api.open_group(store))
    store.take()
    assert [path for path, _ in await api(group.members(None))] == PATHS
    assert len(store.take()) == 2
    assert str(await api(group.tree())).count("\n") == len(PATHS)
    assert len(store.take()) == 2
    assert [path for path, _ in await api(group.members(1))] == PATHS[:4]
    assert len(store.take()) == 2
    await api(api.consolidate_metadata(store))
    assert len(store.take()) == 6  # open, look at the copies, list, fetch, store the copies, open again


async def test_members_of_a_group_that_is_open_for_writing_have_versions(api, local_of_any_size):
    """A change through a member must notice that another writer was faster."""
    memory = LatencyStore(stores.MemoryStore(), 0.0)
    await api(api.copy(local_of_any_size, memory))
    group = await api(api.open_group(memory, mode="r+"))
    members = dict(await api(group.members(None)))
    other = await api(api.open_array(memory, path="g/h/c", mode="r+", zarr_format=3))
    assert other.metadata.source.versions
    assert members["g/h/c"].metadata.source.versions == other.metadata.source.versions
    await api(other.update_attributes({"a": 1}))
    await api(members["g/h/c"].update_attributes({"b": 2}))
    assert dict((await api(api.open_array(memory, path="g/h/c"))).attrs) == {"a": 1, "b": 2}


async def test_a_store_that_cannot_be_listed(api, local_of_any_size):
    store = far(local_of_any_size, lambda operation, key: operation == "list")
    group = await api(api.open_group(store))
    with pytest.raises(StoreError, match="simulated failure: list"):
        await api(group.members(None))


async def test_one_document_that_cannot_be_read(api, local_of_any_size):
    local = local_of_any_size
    store = far(local, lambda operation, key: key == "g/h/c/zarr.json")
    group = await api(api.open_group(store))
    with pytest.warns(UserWarning, match="/g/h/c cannot be read"):
        assert [path for path, _ in await api(group.members(None))] == PATHS[:4]
    (Path(local.root) / "g/b/zarr.json").write_bytes(b"{")
    group = await api(api.open_group(LatencyStore(local, 0.0)))
    with pytest.warns(UserWarning, match="/g/b cannot be read"):
        assert [path for path, _ in await api(group.members(None))] == [path for path in PATHS if path != "g/b"]
    with pytest.raises(MetadataError):
        await api(api.copy(LatencyStore(local, 0.0), {}))


async def test_directories_that_are_no_groups(api, local_of_any_size):
    """Nodes below them are not members, whatever the listing shows."""
    local, root = local_of_any_size, Path(local_of_any_size.root)
    (root / "loose/inner").mkdir(parents=True)
    (root / "loose/inner/zarr.json").write_bytes((root / "a/zarr.json").read_bytes())
    (root / "a/nested").mkdir()
    (root / "a/nested/zarr.json").write_bytes((root / "a/zarr.json").read_bytes())
    (root / "a/my.zarr.json").write_bytes(b"not a document")
    for store in (local, LatencyStore(local, 0.0)):
        group = await api(api.open_group(store))
        assert [path for path, _ in await api(group.members(None))] == PATHS


def test_consolidated_metadata_do_not_wait_for_listings(local):
    xr: Any = pytest.importorskip("xarray")
    sync.consolidate_metadata(local)
    store = Slow(LatencyStore(local, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(xr.open_dataset(store, engine="zarrasync")) == ["a"]
        assert list(xr.open_dataset(store, engine="zarrasync", group="g/h")) == ["c"]
        assert xr.open_datatree(store, engine="zarrasync").groups == ("/", "/g", "/g/h")
    refusing = far(local, lambda operation, key: operation == "list")
    assert list(xr.open_dataset(refusing, engine="zarrasync")) == ["a"]
    assert xr.open_datatree(refusing, engine="zarrasync").groups == ("/", "/g", "/g/h")
    with pytest.raises(StoreError, match="simulated failure: list"):
        xr.open_dataset(refusing, engine="zarrasync", consolidated=False)


def test_a_missing_root_is_reported_at_once(local):
    xr: Any = pytest.importorskip("xarray")
    store = stores.PrefixStore(Slow(LatencyStore(local, 0.0)), "missing/")
    with pytest.raises(za.errors.NodeNotFoundError):
        xr.open_dataset(store, engine="zarrasync")
