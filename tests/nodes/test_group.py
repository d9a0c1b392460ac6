"""Groups and hierarchies: members, moving, deleting, saving and loading."""

from __future__ import annotations

import numpy as np
import pytest

from zarrasync import stores
from zarrasync.errors import (
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ShapeError,
    UnsupportedOperation,
)


async def hierarchy(api, store):
    return await api(
        api.create_hierarchy(
            store,
            {
                "": {"attributes": {"title": "t"}},
                "x": {"shape": (3,), "dtype": "i4"},
                "g/y": {"shape": (2, 2)},
                "g/h/z": {"data": np.arange(4)},
                "e": None,
            },
        )
    )


async def test_a_hierarchy_takes_few_requests(api):
    """Parent groups that were just created are not looked up again."""
    counting = stores.CountingStore(stores.MemoryStore())
    nodes = {f"g{i}/a{j}": {"shape": (1,), "dtype": "i4"} for i in range(3) for j in range(10)}
    made = await api(api.create_hierarchy(counting, nodes))
    counts = counting.reset()
    assert (counts.puts, len(made)) == (34, 30)
    assert counts.fetches <= 8  # existing documents at the root, and copies in four groups
    with pytest.raises(NodeExistsError):
        await api(api.create_hierarchy(counting, {"g0/a0": {"shape": (2,)}, "g0/new": {"shape": (2,)}}))
    await api(api.create_hierarchy(counting, {"g0/a0": {"shape": (2,)}, "g0/b": {"shape": (2,)}}, overwrite=True))
    assert (await api(api.open_array(counting, path="g0/a0"))).shape == (2,)
    assert (await api(api.open_array(counting, path="g0/a1"))).shape == (1,)
    with pytest.raises(NodeTypeError):
        await api(api.create_hierarchy(counting, {"g0/a1/x": {"shape": (2,)}}))


async def test_groups(api, store):
    made = await hierarchy(api, store)
    assert sorted(made) == ["", "e", "g/h/z", "g/y", "x"]
    g = await api(api.open_group(store, mode="r+"))
    assert [name for name, _ in await api(g.members())] == ["e", "g", "x"]
    assert [name for name, _ in await api(g.members(1))] == ["e", "g", "g/h", "g/y", "x"]
    assert [name for name, _ in await api(g.members(None))] == ["e", "g", "g/h", "g/h/z", "g/y", "x"]
    assert await api(g.nmembers(None)) == 6
    assert await api(g.array_keys()) == ("x",)
    assert await api(g.group_keys()) == ("e", "g")
    assert [a.name for _, a in await api(g.arrays())] == ["/x"]
    assert [a.name for _, a in await api(g.groups())] == ["/e", "/g"]
    assert await api(g.contains("g/h/z"))
    assert not await api(g.contains("nothing"))
    assert await api(g.get("nothing")) is None
    assert await api(g.get("nothing", 3)) == 3
    z = await api(g["g/h/z"])
    assert (await api(z[...])).tolist() == [0, 1, 2, 3]
    with pytest.raises(NodeNotFoundError, match="/nothing"):
        await api(g["nothing"])
    if api.name == "sync":
        assert list(g) == ["e", "g", "x"]
        assert len(g) == 3
        assert "x" in g
        assert "y" not in g
        assert 3 not in g
        assert dict(g.items()).keys() == {"e", "g", "x"}
        assert [n.name for n in g.values()] == ["/e", "/g", "/x"]
        del g["e"]
    else:
        assert [name async for name in g] == ["e", "g", "x"]
        await g.delete("e")
    assert not await api(g.contains("e"))
    with pytest.raises(NodeNotFoundError):
        await api(g.delete("e"))
    assert await api(g.tree()) == (
        "/\n├── g\n│   ├── h\n│   │   └── z (4,) int64\n│   └── y (2, 2) float64\n└── x (3,) int32"
    )
    with pytest.raises(ValueError, match="max_depth"):
        await api(g.members(-1))
    await store.close()


async def test_require(api):
    g = await api(api.create_group({}))
    a = await api(g.require_array("a", shape=(3,), dtype="i4"))
    assert await api(g.require_array("a", shape=3, dtype="i8")) == a
    with pytest.raises(ShapeError, match=r"has shape \(3,\), not \(4,\)"):
        await api(g.require_array("a", shape=4))
    with pytest.raises(NodeTypeError, match="data type int32, not int64"):
        await api(g.require_array("a", shape=3, dtype="i8", exact=True))
    h = await api(g.require_group("h", attributes={"x": 1}))
    assert await api(g.require_group("h")) == h
    with pytest.raises(NodeTypeError, match="/a is an array, not a group"):
        await api(g.require_group("a"))
    with pytest.raises(NodeTypeError, match="/h is a group, not an array"):
        await api(g.require_array("h", shape=3))
    with pytest.raises(NodeExistsError):
        await api(g.create_array("a", shape=3))
    await api(g.create_array("a", shape=5, overwrite=True))
    assert (await api(g["a"])).shape == (5,)


async def test_moving(api, store):
    await hierarchy(api, store)
    g = await api(api.open_group(store, mode="r+"))
    await api(g.move("g/h", "new/place"))
    z = await api(g["new/place/z"])
    assert (await api(z[...])).tolist() == [0, 1, 2, 3]
    assert not await api(g.contains("g/h"))
    assert await api(g.contains("new"))
    with pytest.raises(NodeExistsError, match="a node exists at"):
        await api(g.move("x", "g"))
    with pytest.raises(NodeExistsError, match="below itself"):
        await api(g.move("g", "g/inside"))
    with pytest.raises(NodeNotFoundError):
        await api(g.move("nothing", "somewhere"))
    with pytest.raises(InvalidKeyError):
        await api(g.move("x", "__bad"))
    assert await api(g.contains("x"))
    await api(g.move("x", "x"))
    assert await api(g.contains("x"))
    await store.close()


async def test_hierarchies_complain(api):
    with pytest.raises(NodeExistsError, match="same node"):
        await api(api.create_hierarchy({}, {"a": None, "/a/": None}))
    values: dict = {}
    with pytest.raises(NodeExistsError, match="'a/b/c' cannot be created below the array 'a'"):
        await api(api.create_hierarchy(values, {"x": {"shape": 3}, "a": {"shape": 3}, "a/b/c": None}))
    with pytest.raises(MetadataError, match="the attribute 'made' cannot be written"):
        await api(api.create_hierarchy(values, {"x": {"shape": 3}, "g/h": {"attributes": {"made": {1}}}}))
    other: dict[str, bytes] = {}
    await api(api.create_group(other, zarr_format=2))
    with pytest.raises(NodeTypeError, match=r"format 3 cannot be created below /.*another Zarr format"):
        await api(api.create_hierarchy(other, {"g/a": {"shape": 3}}))
    assert list(other) == [".zgroup"]
    assert not values
    await api(api.create_array(values, name="a", shape=3))
    with pytest.raises(NodeTypeError, match="expected a group at /a, found an array"):
        await api(api.create_hierarchy(values, {"a/b": None}))
    with pytest.raises(NodeExistsError):
        await api(api.create_hierarchy(values, {"a": {"shape": 4}}))
    await api(api.create_hierarchy(values, {"a": {"shape": 4}, "b": None}, overwrite=True))
    assert (await api(api.open_array(values, path="a"))).shape == (4,)


async def test_listing_in_a_store_without_listing(api, http):
    url, root = http
    await api(api.create_array(root / "x.zarr", name="a", data=np.arange(4)))
    group = await api(api.open_group(f"{url}/x.zarr"))
    assert (await api(group["a"])).shape == (4,)
    with pytest.raises(UnsupportedOperation, match=r"cannot list.*open nodes by their paths"):
        await api(group.members())
    await api(group.close())


async def test_save_and_load(api, tmp_path):
    data = np.arange(6).reshape(2, 3)
    await api(api.save(tmp_path / "one", data))
    np.testing.assert_array_equal(await api(api.load(tmp_path / "one")), data)
    await api(api.save(tmp_path / "two", data, data.T, named=np.array(["a", "bc"]), zarr_format=2))
    found = await api(api.load(tmp_path / "two"))
    assert sorted(found) == ["arr_0", "arr_1", "named"]
    np.testing.assert_array_equal(found["arr_1"], data.T)
    assert found["named"].tolist() == ["a", "bc"]
    with pytest.raises(TypeError, match="at least one array"):
        await api(api.save(tmp_path / "three"))


@pytest.mark.parametrize(
    ("names", "error", "match"),
    [
        (["..", "b"], InvalidKeyError, "not a valid store key"),
        (["a", "__x"], InvalidKeyError, "not a valid node name"),
        ([""], InvalidKeyError, "needs a name"),
        (["a", "a/b"], NodeExistsError, "'a/b' cannot be created below the array 'a'"),
        (["a", "/a/"], NodeExistsError, "two of the paths refer to 'a'"),
    ],
)
async def test_invalid_names_replace_nothing(api, names, error, match):
    values: dict = {}
    await api(api.save(values, kept=np.arange(3)))
    before = dict(values)
    with pytest.raises(error, match=match):
        await api(api.save(values, **dict.fromkeys(names, np.arange(2))))
    nodes = {name: {"shape": 2} for name in names}
    with pytest.raises((error, NodeExistsError), match=f"{match}|same node|below"):
        await api(api.create_hierarchy(values, {**nodes, "kept": {"shape": 2}}, overwrite=True))
    with pytest.raises(TypeError, match="'arr_0' is the name of an unnamed array"):
        await api(api.save(values, np.arange(3), arr_0=np.arange(2)))
    with pytest.raises(TypeError, match="nodes must be a mapping"):
        await api(api.create_hierarchy(values, ["a"]))
    assert values == before


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
async def test_damaged_nodes_can_be_erased(api, zarr_format):
    store = {}
    group = await api(api.create_group(store, zarr_format=zarr_format))
    await api(group.create_array("a", shape=(1,), dtype="i4"))
    (key,) = (key for key in store if key.endswith(("a/.zarray", "a/zarr.json", "a.array.json")))
    store[key] = b"{"
    with pytest.raises(MetadataError):
        await api(group.getitem("a"))
    await api(group.delete("a"))
    assert key not in store
    with pytest.raises(NodeNotFoundError):
        await api(group.delete("a"))
