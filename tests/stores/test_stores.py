"""One suite of behaviour for every store."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from tests.support.store_kinds import make_store
from zarrasync import stores
from zarrasync.errors import InvalidKeyError, WriteConflictError
from zarrasync.stores import ABSENT, Listing, Request


async def test_a_value_comes_back(store):
    await store.set("a/b", b"hello")
    assert await store.get("a/b") == b"hello"
    await store.set("a/b", bytearray(b"other"))
    assert await store.get("a/b") == b"other"
    await store.set("empty", b"")
    assert await store.get("empty") == b""
    assert await store.exists("empty")


async def test_an_absent_key_is_none(store):
    await store.set("a/b", b"x")
    for key in ("nothing", "a", "a/b/c", "a/bb", "b/c/d"):
        assert await store.get(key) is None
        assert await store.stat(key) is None
        assert await store.fetch([Request(key, 9, 0, out=memoryview(bytearray()))]) == [None]
        assert not await store.exists(key)


async def test_looking_at_a_value_returns_the_version_that_reading_returns(store):
    """Otherwise caches would take each value for a new one."""
    await store.set("k", b"0123456789")
    (read,) = await store.fetch([Request("k")], versions=True)
    (part,) = await store.fetch([Request("k", 2, 3)], versions=True)
    looked = await store.stat("k")
    assert read.version == part.version
    assert read.version is None or looked.version == read.version


@pytest.mark.parametrize("backend", ["", "fsspec"])
async def test_versions_of_web_servers(http, backend: str):
    url, root = http
    (root / "k").write_bytes(b"0123456789")
    async with stores.resolve(url, {"backend": backend} if backend else None) as store:
        (read,) = await store.fetch([Request("k")], versions=True)
        looked = await store.stat("k")
        assert read.version is not None
        assert (looked.version, looked.size) == (read.version, 10)


async def test_ranges_are_clipped_like_slices(store):
    value = b"0123456789"
    await store.set("k", value)
    await store.set("e", b"")
    asked = [(0, 3), (3, None), (8, 5), (10, 2), (25, 4), (0, 0), (-3, None), (-30, None), (4, 1)]
    found = await store.get_partial_values([("k", part) for part in asked])
    want = [value[s:] if n is None else value[s : s + n] for s, n in asked]
    assert found == want
    assert await store.get_partial_values([("e", (0, 2)), ("e", (-2, None)), ("no", (0, 2)), ("no", (-2, None))]) == [
        b"",
        b"",
        None,
        None,
    ]


async def test_fetch_uses_given_memory_only_if_the_value_fits(store):
    await store.set("k", b"abcdef")
    for size in (3, 6, 20):
        memory = memoryview(bytearray(size))
        (value,) = await store.fetch([Request("k", out=memory)])
        assert bytes(value.data) == b"abcdef"


async def test_bad_ranges_are_refused(store):
    with pytest.raises(ValueError, match="cannot have a length"):
        await store.get_partial_values([("k", (-3, 2))])
    with pytest.raises(ValueError, match="at least 0"):
        await store.get_partial_values([("k", (0, -1))])


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "../a", "a\0b", "a\ud800", "a.zarrasync-partial/b"],
)
async def test_dangerous_keys_are_refused(key):
    with pytest.raises(InvalidKeyError, match="not a valid store key") as error:
        await stores.MemoryStore().get(key)
    assert error.value.key == key


async def test_each_operation_refuses_dangerous_keys(store):
    key, space = "../a", memoryview(bytearray(4))
    for operation in (
        lambda: store.get(key),
        lambda: store.set(key, b"x"),
        lambda: store.put(key, b"x"),
        lambda: store.put_values([key], [b"x"]),
        lambda: store.stat(key),
        lambda: store.fetch([Request("a"), Request(key, 0, 1)]),
        lambda: store.fetch_values(["a", key], [None, space]),
        lambda: store.erase(key),
        lambda: store.erase_values(["a", key]),
        lambda: store.list_prefix(f"{key}/"),
        lambda: store.list_dir(f"{key}/"),
        lambda: store.erase_prefix(f"{key}/"),
    ):
        with pytest.raises(InvalidKeyError):
            await operation()


async def test_keys_may_be_any_string(store):
    for key in ("ümläut/日本", "with space", "a.b-c_d", "...x", "UPPER", "upper"):
        await store.set(key, key.encode())
    for key in ("ümläut/日本", "with space", "a.b-c_d", "...x", "UPPER", "upper"):
        assert await store.get(key) == key.encode()


async def test_listing(store):
    for key in ("x", "a/b", "a/c/d", "a/c/e", "ab/f"):
        await store.set(key, b"1")
    assert sorted(await store.list()) == ["a/b", "a/c/d", "a/c/e", "ab/f", "x"]
    assert sorted(await store.list_prefix("a/")) == ["a/b", "a/c/d", "a/c/e"]
    assert await store.list_sizes("a/") == {"a/b": 1, "a/c/d": 1, "a/c/e": 1}
    few = await store.list_few("a/", 4)
    assert few is None or sorted(few) == ["a/b", "a/c/d", "a/c/e"]
    for limit in (1, 3):
        some = await store.list_few("a/", limit)
        assert some is None or (len(some) >= limit and set(some) <= {"a/b", "a/c/d", "a/c/e"})
    assert await store.list_dir("") == Listing(("x",), ("a/", "ab/"))
    assert await store.list_dir("a/") == Listing(("a/b",), ("a/c/",))
    assert await store.list_dir("none/") == Listing((), ())
    with pytest.raises(InvalidKeyError, match="end with '/'"):
        await store.list_prefix("a")


@pytest.mark.servers
async def test_listing_pages_past_a_thousand_keys(request, tmp_path):

    for kind in ("s3", "obstore", "local"):
        store = make_store(kind, request, tmp_path)
        keys = [f"d/{i:04}" for i in range(1203)]
        await asyncio.gather(*(store.set(key, b"") for key in keys))
        assert sorted(await store.list_prefix("d/")) == keys
        assert len((await store.list_dir("d/")).keys) == 1203
        some = await store.list_few("d/", 1000)
        assert (some is None) if kind == "s3" else (len(some or ()) == 1000 and set(some or ()) <= set(keys))
        await store.erase_values(keys[:204])
        if kind != "s3":  # fsspec cannot stop early
            assert sorted(await store.list_few("d/", 1000) or ()) == keys[204:]
        await store.erase_values(keys[204:1100])
        assert len(await store.list()) == 103
        await store.close()


async def test_erasing(store):
    for key in ("a/b", "a/c/d", "ab", "e"):
        await store.set(key, b"1")
    await store.erase("e")
    await store.erase("e")
    await store.erase("never")
    assert sorted(await store.list()) == ["a/b", "a/c/d", "ab"]
    await store.erase_prefix("a/")
    await store.erase_prefix("a/")
    await store.erase_prefix("ab/")  # not the value ab
    assert await store.get("ab") == b"1"
    assert await store.list() == ["ab"]
    await store.erase_values(["ab", "gone"])
    assert await store.list() == []
    await store.set("f", b"1")
    await store.erase_prefix("")
    assert await store.list() == []


async def test_partial_values_are_replaced(store):
    await store.set("k", b"hello")
    await store.set_partial_values([("k", 1, b"EL"), ("k", 7, b"!"), ("new", 2, b"x")])
    assert await store.get("k") == b"hELlo\0\0!"
    assert await store.get("new") == b"\0\0x"
    with pytest.raises(ValueError, match="must be at least 0"):
        await store.set_partial_values([("k", -1, b"x")])


async def test_written_memory_may_be_reused(store):
    data = bytearray(b"first")
    await store.set("k", data)
    data[:] = b"other"
    assert await store.get("k") == b"first"


async def test_creating_only(store):
    if not store.conditional:
        pytest.skip("the store does not compare versions")
    await store.put("k", b"1", if_version=ABSENT)
    with pytest.raises(WriteConflictError, match="changed meanwhile") as error:
        await store.put("k", b"2", if_version=ABSENT)
    assert error.value.key.endswith("k")
    assert await store.get("k") == b"1"


async def test_compare_and_swap(store):
    if not store.conditional:
        pytest.skip("the store does not compare versions")
    await store.set("k", b"1")
    (value,) = await store.fetch([Request("k")], versions=True)
    assert value.size == 1
    new = await store.put("k", b"2", if_version=value.version)
    with pytest.raises(WriteConflictError):
        await store.put("k", b"3", if_version=value.version)
    await store.put("k", b"4", if_version=new)
    assert await store.get("k") == b"4"
    assert [key for key in await store.list() if "k" in key] == ["k"]


async def test_a_store_pickles(store):
    if isinstance(store, stores.ZipStore):
        pytest.skip("an archive that is written belongs to one process")
    await store.set("k", b"v")
    other = pickle.loads(pickle.dumps(store))
    assert await other.get("k") == b"v"
    await other.close()
    await store.close()
    assert await store.get("k") == b"v"
    await store.close()


async def test_a_deep_copy_in_memory_can_be_written():
    store = stores.MemoryStore()
    await store.set("k", b"v")
    other = copy.deepcopy({"a": store, "b": store})
    await other["a"].set("k", b"w")
    assert (await other["b"].get("k"), await store.get("k")) == (b"w", b"v")


async def test_blocking_stores_never_suspend(store):
    if not store.blocking:
        pytest.skip("an asynchronous store")
    from zarrasync._concurrency.drive import drive

    drive(store.set("k", b"v"))
    assert drive(store.get("k")) == b"v"
    assert drive(store.list()) == ["k"]
    drive(store.close())


async def test_stores_close_in_a_with_block(store):
    async with store as inner:
        await inner.set("k", b"v")
    with store as inner:
        assert inner is store


async def test_store_works_in_one_loop_after_another(s3):
    url, options = s3
    store = stores.resolve(url, options)
    await asyncio.to_thread(lambda: asyncio.run(store.set("k", b"v")))
    assert await asyncio.to_thread(lambda: asyncio.run(store.get("k"))) == b"v"
    assert await store.get("k") == b"v"
    await store.close()
