"""Opening: modes, missing nodes, and the documents that are requested."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from zarrasync import stores
from zarrasync.errors import (
    InvalidKeyError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ReadOnlyError,
    ZarrError,
)
from zarrasync.testing import LatencyStore


async def test_modes(api):
    values: dict = {}
    with pytest.raises(
        NodeNotFoundError, match=r"cannot open / in MemoryStore.*: no array or group exists there"
    ) as error:
        await api(api.open_array(values))
    assert error.value.tried[:4] == ("zarr.json", ".zarray", ".zgroup", ".zattrs")
    assert len(set(error.value.tried)) == len(error.value.tried)
    with pytest.raises(NodeNotFoundError) as error:
        await api(api.open_group(values, path="x/y", mode="r+"))
    assert isinstance(error.value, KeyError | FileNotFoundError)
    assert error.value.tried[0] == "x/y/zarr.json"
    assert values == {}
    a = await api(api.open_array(values, mode="a", shape=(3,), dtype="i2"))
    await api.write(a, ..., 5)
    again = await api(api.open_array(values, mode="a", shape=(9,)))
    assert again.shape == (3,)
    with pytest.raises(NodeExistsError, match="mode='w'"):
        await api(api.open_array(values, mode="w-", shape=(3,)))
    with pytest.raises(NodeTypeError, match="is an array; open it with open_array or open"):
        await api(api.open_group(values))
    fresh = await api(api.open_array(values, mode="w", shape=(2,), dtype="i2"))
    assert (await api(fresh[...]) == 0).all()
    with pytest.raises(ValueError, match="mode must be one of r, r"):
        await api(api.open_array(values, mode="x"))
    with pytest.raises(ValueError, match="takes mode 'r' or 'r"):
        await api(api.open(values, mode="w"))
    group = await api(api.open_group({}, mode="w-", attributes={"a": 1}))
    assert dict(group.attrs) == {"a": 1}
    with pytest.raises(NodeTypeError, match="is a group; open it with open_group or open"):
        await api(api.open_array(group.store))


async def test_reading_mode_refuses_every_change(api):
    values: dict = {}
    await api(api.create_array(values, name="a", data=np.arange(4)))
    before = dict(values)
    a = await api(api.open_array(values, path="a"))
    g = await api(api.open_group(values))
    for attempt in (
        lambda: api.write(a, 0, 9),
        lambda: api(a.resize((2,))),
        lambda: api(a.append([1])),
        lambda: api(a.update_attributes({"x": 1})),
        lambda: api(g.create_group("b")),
        lambda: api(g.delete("a")),
        lambda: api(g.move("a", "b")),
    ):
        with pytest.raises(ReadOnlyError, match="opened for reading"):
            await attempt()
    assert values == before


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("where", ["local", "latency"])
async def test_concurrent_callers_create_one_array(api, tmp_path, zarr_format, where):
    """One caller creates the array, and all callers get it."""
    store = tmp_path / "x" if where == "local" else LatencyStore(stores.MemoryStore(), 0.005)

    async def together(make):
        if api.name == "async":
            return await asyncio.gather(*(make() for _ in range(6)))
        return await asyncio.gather(*(asyncio.to_thread(make) for _ in range(6)))

    opened = await together(lambda: api.open_group(store, path="g", mode="a", zarr_format=zarr_format))
    assert {group.path for group in opened} == {"g"}
    (group, *_) = opened
    assert {below.path for below in await together(lambda: group.require_group("a"))} == {"g/a"}
    arrays = await together(lambda: group.require_array("b", shape=(3,), dtype="i4"))
    assert {array.path for array in arrays} == {"g/b"}
    with pytest.raises(NodeTypeError, match="is an array"):
        await api(group.require_group("b"))
    with pytest.raises(NodeTypeError, match="is an array"):
        await api(api.open_group(store, path="g/b", mode="a"))


async def test_opening_and_creating_never_list(api):
    store = stores.CountingStore(stores.MemoryStore())
    await api(api.create_hierarchy(store, {"g": None, "g/a": {"shape": 4, "chunks": 2}}))
    assert store.counts.lists == 0
    store.reset()
    a = await api(api.open_array(store, path="g/a"))
    assert store.reset().fetches == 3  # one batch: the documents of both formats
    known = await api(api.open_array(store, path="g/a", zarr_format=3))
    assert store.reset().requests == 1
    g = await api(api.open_group(store, path="g"))
    store.reset()
    await api(g["a"])
    assert store.reset().requests == 1  # a child's format is known
    await api(known[...])
    assert store.reset().requests == 2
    await api(g.members())
    assert (store.counts.lists, store.counts.fetches) == (1, 1)
    repr(a), a.info, repr(g), g.info, a.view[0].explain()
    assert store.counts.requests == 2


@pytest.mark.parametrize(("first", "second"), [(2, "3-draft"), ("3-draft", 2), (3, "3-draft"), (3, 2)])
async def test_nodes_of_another_format_are_not_hidden(api, first, second):
    """Also if the caller names the format."""
    store = {}
    await api(api.create_array(store, path="a", data=np.arange(2), zarr_format=first))
    before = dict(store)
    with pytest.raises(ZarrError):
        await api(api.create_array(store, path="b", data=np.arange(2), zarr_format=second))
    assert store == before


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_names_with_surrogates(api, zarr_format, tmp_path):
    for store in ({}, tmp_path / "x"):
        with pytest.raises(InvalidKeyError, match="surrogates"):
            await api(api.create_array(store, path="a\ud800", shape=(1,), dtype="i4", zarr_format=zarr_format))
        with pytest.raises(InvalidKeyError, match="surrogates"):
            await api(api.open_array(store, path="\ud800"))
