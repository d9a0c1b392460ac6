"""Groups above a new node, and consolidated metadata, while another process changes the same documents."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync.errors import NodeTypeError, StoreError
from zarrasync.nodes.access import handle_of, with_handle
from zarrasync.stores import LocalStore, MemoryStore, Store, WrapperStore


class Interrupted(WrapperStore):
    """A store where something else happens before a key is stored for the first time."""

    def __init__(self, inner: Store, key: str, before: Callable[[Store], Awaitable[None]]) -> None:
        super().__init__(inner)
        self.blocking = False
        self._key, self._before = key, before

    async def put(self, key, data, *, if_version=None):
        if key == self._key:
            self._key = ""
            await self._before(self.inner)
        return await self.inner.put(key, data, if_version=if_version)


async def fail(store: Store) -> None:
    raise StoreError("no room is left", key="")


async def create_group(store: Store) -> None:
    await za.create_group(store, path="g", attributes={"by": "another process"})


async def create_array(store: Store) -> None:
    await za.create_array(store, path="g", shape=3, dtype="i4")


async def test_groups_above_a_node_are_stored_before_it(api: Api):
    inner = MemoryStore()
    with pytest.raises(StoreError, match="no room"):
        await api(api.create_array(Interrupted(inner, "g/zarr.json", fail), path="g/h/a", shape=3, dtype="i4"))
    assert sorted(inner.values) == ["zarr.json"]


async def test_a_group_that_another_process_creates_meanwhile_is_kept(api: Api):
    inner = MemoryStore()
    await api(api.create_array(Interrupted(inner, "g/zarr.json", create_group), path="g/a", shape=3, dtype="i4"))
    group = await za.open_group(inner, path="g")
    assert group.attrs["by"] == "another process"
    assert await group.array_keys() == ("a",)


async def test_no_node_is_created_below_an_array_of_another_process(api: Api):
    inner = MemoryStore()
    with pytest.raises(NodeTypeError, match=r"there is an array at /g|/g is an array"):
        await api(api.create_array(Interrupted(inner, "g/zarr.json", create_array), path="g/a", shape=3, dtype="i4"))
    assert "g/a/zarr.json" not in inner.values


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_consolidating_keeps_what_others_store_meanwhile(api: Api, zarr_format: int, tmp_path):
    inner = LocalStore(tmp_path)
    group = await za.create_group(inner, zarr_format=zarr_format)
    await group.create_array("a", shape=3, dtype="i4")
    await za.consolidate_metadata(inner)

    async def change(store: Store) -> None:
        """As another machine does: without the locks of this one."""
        array = await za.open_array(store, path="a", mode="r+")
        await with_handle(array, handle_of(array).without_consolidated()).update_attributes({"new": 1})
        key = ".zmetadata" if zarr_format == 2 else "zarr.json"
        document = json.loads(await store.get(key))
        if zarr_format == 2:
            document["metadata"]["a/.zattrs"] = {"new": 1}
        else:
            document["attributes"] = {"new": 1}
            document["consolidated_metadata"]["metadata"]["a"]["attributes"] = {"new": 1}
        await store.put(key, json.dumps(document).encode())

    await with_handle(group, handle_of(group).without_consolidated()).create_group("b")
    key = ".zmetadata" if zarr_format == 2 else "zarr.json"
    await api(api.consolidate_metadata(Interrupted(inner, key, change)))
    found = await za.open_group(inner, use_consolidated=True)
    assert (await found.getitem("a")).attrs == {"new": 1}
    if zarr_format == 3:
        assert found.attrs == {"new": 1}
    assert handle_of(found).consolidated is not None
    assert "b" in await found.group_keys()
