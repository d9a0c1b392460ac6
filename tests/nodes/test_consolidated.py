"""Consolidated metadata of zarrasync and zarr-python: read, written, updated, and ignored on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.gated_store import GatedStore
from zarrasync import cli, stores, sync
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, StoreError, UnsupportedByFormat
from zarrasync.nodes.access import handle_of

FORMATS = [2, 3, "3-draft-2022"]


async def hierarchy(api: Api, store: Any, zarr_format: Any) -> None:
    root = await api(api.create_group(store, zarr_format=zarr_format, attributes={"title": "né", "nan": float("nan")}))
    await api(root.create_array("a/b/x", data=np.arange(6.0), chunks=2, attributes={"unit": "K"}))
    await api(root.create_array("y", shape=(3, 3), dtype="i2", fill_value=7))
    await api(root.create_group("empty"))


def counted() -> tuple[dict[str, bytes], stores.CountingStore]:
    values: dict[str, bytes] = {}
    return values, stores.CountingStore(stores.MemoryStore(values))


@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_members_open_from_consolidated_metadata(api: Api, zarr_format: Any):
    _, store = counted()
    await hierarchy(api, store, zarr_format)
    plain = dict(await api((await api(api.open_group(store))).members(max_depth=None)))
    made = await api(api.consolidate_metadata(store))
    assert set(await api(made.keys())) == {"a", "empty", "y"}
    for use in (None, True):
        root = await api(api.open_group(store, use_consolidated=use))
        store.reset()
        members = dict(await api(root.members(max_depth=None)))
        assert store.reset().requests == 0
        assert set(members) == {"a", "a/b", "a/b/x", "empty", "y"}
        assert {name: node.metadata for name, node in members.items()} == {n: m.metadata for n, m in plain.items()}
        inner = await api(root.get("a/b"))
        assert await api(inner.array_keys()) == ("x",)
        # A group without documents may have gained some since.
        assert store.reset().requests == (2 if use is None and zarr_format == "3-draft-2022" else 0)
        x = await api(inner.get("x"))
        assert (await api(x.get_basic_selection())).tolist() == list(range(6))
        assert "a" in str(await api(root.tree()))
    ignored = await api(api.open_group(store, use_consolidated=False))
    store.reset()
    await api(ignored.members())
    assert store.reset().requests > 0


@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_what_is_absent_there(api: Api, zarr_format: Any):
    _, store = counted()
    await hierarchy(api, store, zarr_format)
    await api(api.consolidate_metadata(store))
    late: dict[str, bytes] = {}
    await api(api.create_array(late, path="late", data=[1], zarr_format=zarr_format))
    for key, data in late.items():  # as programs do that do not update the copies
        if "late" in key:
            await store.put(key, data)
    asked = await api(api.open_group(store))
    assert (await api((await api(asked.get("late"))).get_basic_selection())).tolist() == [1]
    insisted = await api(api.open_group(store, use_consolidated=True))
    assert await api(insisted.get("late")) is None
    with pytest.raises(NodeNotFoundError):
        await api(insisted.getitem("late"))
    with pytest.raises(NodeNotFoundError, match="has no consolidated metadata"):
        await api(api.open_group(store, path="a", use_consolidated=True))


@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_writes_through_it_keep_it_fresh(api: Api, zarr_format: Any):
    _, store = counted()
    await hierarchy(api, store, zarr_format)
    await api(api.consolidate_metadata(store))
    root = await api(api.open_group(store, mode="r+", use_consolidated=True))
    await api((await api(root.get("a/b/x"))).update_attributes({"unit": "mK"}))
    await api((await api(root.get("y"))).resize((5, 3)))
    await api(root.create_array("a/new", data=[1, 2]))
    await api(root.create_array("y2/deep", data=[1]))
    await api(root.delete("empty"))
    await api(root.move("a/b", "moved"))
    await api(root.update_attributes({"title": "other"}))
    await api(root.create_array("y", shape=4, dtype="u1", overwrite=True))
    assert set(await api(root.keys())) == {"a", "moved", "y", "y2"}
    again = await api(api.open_group(store, use_consolidated=True))
    store.reset()
    members = dict(await api(again.members(max_depth=None)))
    assert store.reset().requests == 0
    assert set(members) == {"a", "a/new", "moved", "moved/x", "y", "y2", "y2/deep"}
    assert members["y"].shape == (4,)
    assert dict(members["moved/x"].attrs) == {"unit": "mK"}
    assert again.attrs["title"] == "other"
    report = await api(api.validate(store, data=True))
    assert [f for f in report.findings if f.severity != "note"] == []
    truth = await api(api.open_group(store, use_consolidated=False))
    assert {n: m.metadata for n, m in await api(truth.members(max_depth=None))} == {
        n: m.metadata for n, m in members.items()
    }


async def _open(api: Api, store: Any, path: str = "") -> Any:
    return await api(api.open(store, path=path, mode="r+", use_consolidated=False))


async def _resize(api: Api, store: Any) -> None:
    await api((await _open(api, store, "y")).resize((9, 3)))


async def _append(api: Api, store: Any) -> None:
    await api((await _open(api, store, "a/b/x")).append(np.ones(3)))


async def _set_attributes(api: Api, store: Any) -> None:
    for path in ("a", "a/b", "a/b/x", "y"):
        await api((await _open(api, store, path)).update_attributes({"new": path}))


async def _set_attributes_of_a_member(api: Api, store: Any) -> None:
    await api((await api((await _open(api, store)).getitem("a/b/x"))).update_attributes({"new": 1}))


async def _create(api: Api, store: Any) -> None:
    await api(
        api.create_array(store, path="a/b/c/z", shape=3, dtype="u1", zarr_format=(await _open(api, store)).zarr_format)
    )
    await api((await _open(api, store, "a")).create_group("h"))


async def _replace(api: Api, store: Any) -> None:
    zarr_format = (await _open(api, store)).zarr_format
    await api(api.create_array(store, path="a/b", shape=3, dtype="u1", overwrite=True, zarr_format=zarr_format))


async def _create_hierarchy(api: Api, store: Any) -> None:
    nodes = {"a/n/z": {"shape": (3,), "dtype": "u1"}, "a/b": {"attributes": {"k": 1}}, "m": None}
    zarr_format = (await _open(api, store)).zarr_format
    made = await api(api.create_hierarchy(store, nodes, overwrite=True, zarr_format=zarr_format))
    await api(made["a/n/z"].update_attributes({"later": 1}))


async def _erase(api: Api, store: Any) -> None:
    await api((await _open(api, store, "a")).delete("b"))


async def _move(api: Api, store: Any) -> None:
    await api((await _open(api, store)).move("a/b", "empty/b"))
    await api((await _open(api, store, "a")).update_attributes({"new": 1}))


async def _copy(api: Api, store: Any) -> None:
    await api(api.copy(await api(api.open(store, path="y")), store, dest_path="a/y"))


async def _ingest(api: Api, store: Any) -> None:
    await api(api.ingest(np.arange(6), store, path="a/i", zarr_format=(await _open(api, store)).zarr_format))


async def _pyramid(api: Api, store: Any) -> None:
    await api(api.pyramid(store, path="y", dest_path="a/p", levels=2, axes=("y", "x")))


async def _command(api: Api, store: Any) -> None:
    assert cli.main(["attrs", "set", str(store.root), "--path", "a/b/x", "new=1"]) == 0


CHANGES = [
    _resize,
    _append,
    _set_attributes,
    _set_attributes_of_a_member,
    _create,
    _replace,
    _create_hierarchy,
    _erase,
    _move,
    _copy,
    _ingest,
    _pyramid,
    _command,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
async def test_copies_follow_changes_through_any_handle(api: Api, tmp_path: Any, change: Any):
    """Groups above are consolidated, and the node is opened by its path or through a group that was opened without copies."""
    zarr_format = 2 if api.name == "sync" else 3
    store = stores.LocalStore(tmp_path)
    await hierarchy(api, store, zarr_format)
    for path in ("a/b", "a", ""):
        await api(api.consolidate_metadata(store, path=path))
    await change(api, store)
    for path in ("", "a"):
        report = await api(api.validate(store, path=path))
        assert [finding.message for finding in report.findings if "consolidated" in finding.message] == []
    assert pytest.importorskip("zarr").open_group(tmp_path, mode="r").metadata.consolidated_metadata is not None


class _Refusing(stores.WrapperStore):
    """A store in which the document of the root cannot be written."""

    async def put(self, key: str, data: Any, **options: Any) -> Any:
        if key == "zarr.json":
            raise StoreError("permission denied", key=key)
        return await self.inner.put(key, data, **options)


async def test_copies_that_cannot_be_stored_are_a_warning(api: Api):
    inner = stores.MemoryStore()
    await hierarchy(api, inner, 3)
    await api(api.consolidate_metadata(inner))
    array = await api(api.open_array(_Refusing(inner), path="y", mode="r+"))
    with pytest.warns(UserWarning, match="consolidated metadata of the group / .* change of /y.*permission denied"):
        await api(array.update_attributes({"new": 1}))
    assert (await api(api.open_array(inner, path="y"))).attrs["new"] == 1


async def test_writes_of_other_programs_are_reported(api: Api):
    _, store = counted()
    await hierarchy(api, store, 2)
    await api(api.consolidate_metadata(store))
    await store.put("y/.zattrs", b'{"new": 1}')
    report = await api(api.validate(store))
    assert [f.message for f in report.findings if f.key == ".zmetadata"] == [
        "the consolidated metadata is outdated: its copy of /y differs from the stored documents"
    ]


async def test_where_there_is_no_such_thing(api: Api):
    for zarr_format, path in (("3-draft", ""), ("3-draft-2022", "a")):
        _, store = counted()
        await hierarchy(api, store, zarr_format)
        with pytest.raises(UnsupportedByFormat, match="does not support consolidated metadata"):
            await api(api.consolidate_metadata(store, path=path))
    with pytest.raises(NodeTypeError):
        await api(api.consolidate_metadata(store, path="y"))
    with pytest.raises(NodeNotFoundError):
        await api(api.consolidate_metadata({}))


@pytest.mark.parametrize(
    "damage", [7, {"kind": "other"}, {"kind": "inline", "metadata": [1]}, {"kind": "inline", "metadata": {"a": 1}}]
)
async def test_damaged_copies_are_not_used(api: Api, damage: Any):
    document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": damage}
    for store in (
        {"zarr.json": json.dumps(document).encode()},
        {".zgroup": b'{"zarr_format": 2}', ".zmetadata": json.dumps({"metadata": damage}).encode()},
    ):
        with pytest.warns(UserWarning, match="consolidated metadata is damaged"):
            group = await api(api.open_group(store, mode="r+"))
        await api(group.update_attributes({"a": 1}))
        with pytest.raises(MetadataError, match=r"consolidated_metadata|zmetadata"):
            await api(api.open_group(store, use_consolidated=True))
        await api(api.open_group(store, use_consolidated=False))


async def test_changes_made_at_once(api: Api):
    """After concurrent changes by several writers, the copies equal the documents."""
    for zarr_format in FORMATS:
        _, store = counted()
        await hierarchy(api, store, zarr_format)
        await api(api.consolidate_metadata(store))
        await at_once(api, store)
        report = await api(api.validate(store))
        assert [f for f in report.findings if f.severity != "note"] == []


async def at_once(api: Api, store: Any) -> None:
    async def work(number: int) -> None:
        root = await api(api.open_group(store, mode="r+", use_consolidated=True))
        for step in range(4):
            await api(root.create_group(f"n{number}_{step}"))
            await api((await api(root.get("y"))).update_attributes({f"by{number}": step}))

    if api.name == "async":
        await asyncio.gather(*(work(number) for number in range(4)))
    else:
        crew = [threading.Thread(target=asyncio.run, args=(work(number),)) for number in range(4)]
        for member in crew:
            member.start()
        for member in crew:
            member.join()


@pytest.mark.processes
def test_changes_of_several_processes(tmp_path):
    for zarr_format in (2, 3):
        place = tmp_path / str(zarr_format)
        sync.create_group(place, zarr_format=zarr_format).create_group("first")
        sync.consolidate_metadata(place)
        context = multiprocessing.get_context("spawn")
        with context.Pool(3) as pool:
            pool.starmap(create_groups, [(place, number) for number in range(3)])
        assert sync.open_group(place, use_consolidated=True).nmembers() == 31


def create_groups(place: Any, number: int) -> None:
    group = sync.open_group(place, mode="r+", use_consolidated=True)
    for step in range(10):
        group.create_group(f"n{number}_{step}")


async def test_arrays_travel_without_the_hierarchy(api: Api, tmp_path):
    store = stores.LocalStore(tmp_path)
    await api(api.create_hierarchy(store, {f"a{n}": {"shape": (1,)} for n in range(200)}))
    group = await api(api.consolidate_metadata(store))
    member = await api(group.get("a7"))
    assert len(pickle.dumps(member)) < 20_000
    _, orphan = counted()
    await api(api.create_array(orphan, path="sub/a", data=[1]))
    known = await api(api.consolidate_metadata(orphan, path="sub"))
    await api((await api(api.open_group(orphan, mode="r+"))).delete("sub"))
    with contextlib.suppress(NodeNotFoundError):
        await api(known.delete("a"))


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_reads_it_and_we_read_theirs(tmp_path, zarr_format: int):
    zarr = pytest.importorskip("zarr")
    root = sync.create_group(tmp_path / "ours", zarr_format=zarr_format, attributes={"title": "né"})
    root.create_array("a/x", data=np.arange(6.0), chunks=2, compressors=None)
    sync.consolidate_metadata(tmp_path / "ours")
    theirs = zarr.open_consolidated(str(tmp_path / "ours"))
    assert theirs["a/x"][...].tolist() == list(range(6))
    assert theirs.metadata.consolidated_metadata is not None
    made = zarr.create_group(tmp_path / "theirs", zarr_format=zarr_format)
    made.create_group("g/h").create_array("x", data=np.arange(3))
    made["g"].attrs["nan"] = float("nan")
    zarr.consolidate_metadata(made.store)
    store = stores.CountingStore(stores.LocalStore(tmp_path / "theirs"))
    ours = sync.open_group(store, use_consolidated=True)
    store.reset()
    assert [name for name, _ in ours.members(max_depth=None)] == ["g", "g/h", "g/h/x"]
    assert store.reset().requests == 0
    assert pickle.loads(pickle.dumps(ours))["g/h/x"][...].tolist() == [0, 1, 2]
    assert sync.validate(store).ok


async def test_copies_of_other_writers_keep_their_text(api: Api):
    values: dict[str, bytes] = {}
    await hierarchy(api, values, 3)
    await api(api.consolidate_metadata(values))
    document = json.loads(values["zarr.json"])
    document["consolidated_metadata"]["metadata"]["y"]["attributes"] = {"x": 1.50, "é": "\u00fc"}
    values["zarr.json"] = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    group = await api(api.open_group(values, mode="r+"))
    await api(group.create_group("new"))
    assert '"attributes":{"x":1.5,"é":"ü"}'.encode() in values["zarr.json"]
    assert dict((await api(group.getitem("y"))).attrs) == {"x": 1.5, "é": "ü"}
    assert {name for name, _ in await api(group.members())} == {"a", "y", "empty", "new"}


async def test_a_copy_contains_no_tokens_and_no_other_copies(api: Api):
    values: dict[str, bytes] = {}
    await hierarchy(api, values, 3)
    await api(api.consolidate_metadata(values, path="a"))
    values["y/zarr.json"] = values["y/zarr.json"].replace(b'"attributes": {}', b'"attributes": {"x": NaN}')
    await api(api.consolidate_metadata(values))
    copies = json.loads(values["zarr.json"])["consolidated_metadata"]["metadata"]
    assert copies["y"]["attributes"] == {"x": "NaN"}
    assert set(copies["a"]) == {"zarr_format", "node_type", "attributes"}
    root = await api(api.open_group(values, mode="r+"))
    await api((await api(root.getitem("a"))).update_attributes({"z": 1}))  # the group's document contains copies
    copies = json.loads(values["zarr.json"])["consolidated_metadata"]["metadata"]
    assert copies["a"] == {"zarr_format": 3, "node_type": "group", "attributes": {"z": 1}}
    assert "consolidated_metadata" in json.loads(values["a/zarr.json"])


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff"])
async def test_a_damaged_document_does_not_damage_the_copies(damage: bytes):
    """Another writer damages a document before it is copied."""
    store: dict[str, bytes] = {}
    group = await za.create_group(store)
    await group.create_array("a", data=[1])
    await group.create_array("b", data=[2])
    await za.consolidate_metadata(store)
    group = await za.open_group(store, mode="r+")
    copies = handle_of(group).consolidated
    store["a/zarr.json"] = damage
    await copies.update(handle_of(group).store, ["a/zarr.json"], config=za.Config())
    assert list(json.loads(store["zarr.json"])["consolidated_metadata"]["metadata"]) == ["b"]


async def test_refreshed_groups_find_what_others_changed(api: Api):
    values, store = counted()
    await api(api.create_array(values, path="a", data=np.arange(4), chunks=(2,)))
    await api(api.consolidate_metadata(values))
    root = await api(api.open_group(store))
    member = await api(root.getitem("a"))
    writer = await api(api.open_array(values, path="a", mode="r+"))
    await api(writer.append(np.arange(4, 6)))
    await api(api.create_array(values, path="b", data=np.arange(2)))
    store.reset()
    for node in (root, member):
        await api(node.refresh(max_age=3600))
    assert store.counts.fetches == 0
    assert (await api(root.getitem("a"))).shape == member.shape == (4,)
    for node in (root, member):
        await api(node.refresh(max_age=1e-9))
    assert (await api(root.getitem("a"))).shape == member.shape == (6,)
    assert (await api(root.array_keys())) == ("a", "b")
    del values["zarr.json"]
    with pytest.raises(NodeNotFoundError):
        await api(root.refresh())


async def test_nodes_from_other_processes_are_of_unknown_age(api: Api, tmp_path: Path):
    array = await api(api.create_array(tmp_path, path="a", shape=(4,), chunks=(2,), dtype="i4"))
    other = pickle.loads(pickle.dumps(array))
    await api(array.resize((9,)))
    await api(other.refresh(max_age=3600))
    assert other.shape == (9,)


async def test_one_of_many_calls_reads_again():
    values: dict[str, bytes] = {}
    await za.create_array(values, path="a", shape=(4,), chunks=(2,), dtype="i4")
    await za.consolidate_metadata(values)
    store = GatedStore(stores.MemoryStore(values))
    root = await za.open_group(store)
    await (await za.open_array(values, path="a", mode="r+")).resize((6,))
    store.most, store.open = 0, False
    calls = [asyncio.ensure_future(root.refresh(max_age=1e-9)) for _ in range(50)]
    await asyncio.wait(calls[1:])  # they do not wait
    assert dict(await root.arrays())["a"].shape == (4,)
    store.open = True
    await calls[0]
    assert dict(await root.arrays())["a"].shape == (6,)
    assert store.most <= 2
