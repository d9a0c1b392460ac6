"""Copying between formats and layouts, validation, and their commands."""

from __future__ import annotations

import json
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.codecs import BytesCodec
from zarrasync.errors import ChecksumError, NodeExistsError, NodeNotFoundError, StoreError, UnsupportedByFormat
from zarrasync.testing import LatencyStore

FORMATS = [2, 3, "3-draft", "3-draft-2022"]
FIELD = np.random.default_rng(4).normal(size=(31, 17)).astype("f4")


async def example(api: Api, store: Any, zarr_format: Any) -> None:
    root = await api(api.create_group(store, zarr_format=zarr_format, attributes={"title": "né", "list": [1, None]}))
    shards = {} if zarr_format == 2 else {"shards": (16, 16)}
    await api(
        root.create_array("g/field", data=FIELD, chunks=(8, 8), fill_value=np.nan, attributes={"unit": "K"}, **shards)
    )
    await api(root.create_array("g/big", data=np.arange(20, dtype=">i8"), chunks=6, order="F", compressors="gzip"))
    await api(root.create_array("times", data=np.array(["2020-01-01", "NaT"], "M8[s]")))
    await api(root.create_array("sparse", shape=(100,), dtype="u2", chunks=10, fill_value=3))
    sparse = await api(root.get("sparse"))
    await api.write(sparse, slice(30, 40), np.arange(10))
    await api(root.create_array("scalar", data=2.5, compressors=None))
    if zarr_format != "3-draft":
        await api(root.create_array("text", data=np.array(["a", "né", ""]), chunks=2))
        await api(root.create_array("fixed", data=np.array(["a", "né", ""], "U2"), chunks=2))


async def loaded(api: Api, store: Any) -> dict[str, Any]:
    return {name: (values.dtype, values.tolist()) for name, values in (await api(api.load(store))).items()}


@pytest.mark.parametrize(
    ("source", "dest"), [*zip(FORMATS, FORMATS[1:] + FORMATS[:1], strict=True), *permutations([2, 3])]
)
async def test_any_format_into_any_other(api: Api, source: Any, dest: Any):
    one: dict[str, bytes] = {}
    other: dict[str, bytes] = {}
    await example(api, one, source)
    if dest == "3-draft" and source != dest:
        with pytest.raises(UnsupportedByFormat, match="data type"):
            await api(api.copy(one, {}, zarr_format=dest))
        root = await api(api.open_group(one, mode="r+"))
        await api(root.delete("text"))
        await api(root.delete("fixed"))
    report = await api(api.copy(one, other, zarr_format=dest, verify=True))
    assert report.arrays == (5 if "3-draft" in (source, dest) else 7)
    assert report.groups == 2
    found = await api(api.open_group(other))
    assert found.zarr_format == dest
    assert json.loads(json.dumps(dict(found.attrs))) == {"title": "né", "list": [1, None]}
    want, have = await loaded(api, one), await loaded(api, other)
    assert repr(have) == repr(want)
    field = await api(found.get("g/field"))
    assert dict(field.attrs) == {"unit": "K"}
    assert field.shards == (None if 2 in (source, dest) else (16, 16))
    assert field.chunks == (8, 8)
    big = await api(found.get("g/big"))
    assert [codec.label for codec in big.compressors] == ["gzip"]
    assert isinstance(big.serializer, BytesCodec)
    sparse = await api(found.get("sparse"))
    assert await api(sparse.nchunks_initialized()) == 1
    assert (await api(api.validate(other, data=True))).ok


async def test_values_that_need_no_change_are_not_decoded(api: Api):
    one: dict[str, bytes] = {}
    await api(api.create_array(one, data=FIELD, chunks=(8, 8), compressors="gzip"))
    (key,) = [key for key in one if key.endswith("c/3/2")]
    one[key] = b"damaged"
    for zarr_format in (2, 3, "3-draft"):
        other: dict[str, bytes] = {}
        report = await api(api.copy(one, other, zarr_format=zarr_format))
        assert report.copied == 12
        assert b"damaged" in other.values()


@pytest.mark.parametrize(
    ("options", "chunks", "shards"),
    [
        ({"chunks": (5, 7)}, (5, 7), None),
        ({"chunks": (4, 4), "shards": (16, 12)}, (4, 4), (16, 12)),
        ({"shards": None}, (8, 8), None),
        ({"chunks": "auto"}, (31, 17), None),
        ({"compressors": None}, (8, 8), (16, 16)),
        ({"compressors": "gzip", "chunks": 3}, (3, 3), None),
    ],
)
async def test_other_chunks_and_compressors(api: Api, options: Any, chunks: Any, shards: Any):
    one: dict[str, bytes] = {}
    other: dict[str, bytes] = {}
    await api(api.create_array(one, data=FIELD, chunks=(8, 8), shards=(16, 16), dimension_names=["y", "x"]))
    await api(api.copy(one, other, verify=True, config={"memory_budget": 3000}, **options))
    found = await api(api.open_array(other))
    assert (found.chunks, found.shards) == (chunks, shards)
    assert found.dimension_names == ("y", "x")
    np.testing.assert_array_equal(await api(found.get_basic_selection()), FIELD)
    if "compressors" in options:
        assert len(found.compressors) == (options["compressors"] is not None)


async def test_the_report_names_all_arrays(api: Api):
    group = sync.create_group(source := {})
    for name, shape in {"empty": (0, 5), "scalar": (), "vector": (6,)}.items():
        group.create_array(name, data=np.ones(shape))
    report = await api(api.copy(source, {}))
    assert {name: member.nbytes for name, member in report.members.items()} == {
        "/empty": 0,
        "/scalar": 8,
        "/vector": 48,
    }


async def test_names_of_axes_live_where_the_format_has_room(api: Api):
    one: dict[str, bytes] = {}
    old: dict[str, bytes] = {}
    new: dict[str, bytes] = {}
    await api(api.create_array(one, data=FIELD, dimension_names=["y", "x"]))
    await api(api.copy(one, old, zarr_format=2))
    assert json.loads(old[".zattrs"]) == {"_ARRAY_DIMENSIONS": ["y", "x"]}
    await api(api.copy(old, new, zarr_format=3))
    found = await api(api.open_array(new))
    assert found.dimension_names == ("y", "x")
    assert dict(found.attrs) == {}
    partly: dict[str, bytes] = {}
    await api(api.create_array(partly, data=FIELD, dimension_names=["y", None]))
    report = await api(api.copy(partly, {}, zarr_format=2))
    assert "dimension names" in report.notes[0]


async def test_filters_move_or_are_undone(api: Api):
    old: dict[str, bytes] = {}
    values = np.arange(50, dtype="i4").cumsum()
    delta = {"id": "delta", "dtype": "<i4"}
    await api(api.create_array(old, data=values, chunks=9, zarr_format=2, filters=[delta], compressors={"id": "zlib"}))
    new: dict[str, bytes] = {}
    await api(api.copy(old, new, zarr_format=3, verify=True))
    assert [codec["name"] for codec in json.loads(new["zarr.json"])["codecs"]] == [
        "numcodecs.delta",
        "bytes",
        "numcodecs.zlib",
    ]
    back: dict[str, bytes] = {}
    await api(api.copy(new, back, zarr_format=2, verify=True))
    assert json.loads(back[".zarray"])["filters"] == [{"id": "delta", "dtype": "<i4", "astype": "<i4"}] or (
        json.loads(back[".zarray"])["filters"][0]["id"] == "delta"
    )
    scaled: dict[str, bytes] = {}
    scale = {"name": "scale_offset", "configuration": {"offset": 1, "scale": 2}}
    await api(api.create_array(scaled, data=values, filters=[scale], compressors="gzip", fill_value=1))
    plain: dict[str, bytes] = {}
    report = await api(api.copy(scaled, plain, zarr_format=2, verify=True))
    assert "scale_offset" in report.notes[0]
    assert json.loads(plain[".zarray"])["compressor"]["id"] == "gzip"


async def test_a_copy_goes_on_where_it_was_interrupted(api: Api, tmp_path: Path):
    source, calls = stores.MemoryStore(), []
    await api(api.create_array(source, path="a", data=np.arange(1000), chunks=10, compressors=None))
    await api(api.create_array(source, path="b", data=np.arange(1000), chunks=10))

    class Stop(Exception):  # it is no error
        pass

    def tell(nbytes: int) -> None:
        calls.append(nbytes)
        if len(calls) == 3:
            raise Stop

    small = {"memory_budget": 1000}
    with pytest.raises(Stop):
        await api(api.copy(source, tmp_path, chunks=25, progress=tell, config=small))
    assert not list(tmp_path.rglob("zarr.json"))  # readers see nothing of it
    with pytest.raises(
        NodeExistsError,
        match=r"a job was interrupted .*; pass overwrite=True to replace them, or resume=True to complete an interrupted copy$",
    ):
        await api(api.copy(source, tmp_path, chunks=25))
    with pytest.raises(NodeExistsError, match=r"cannot resume the copy to .*: the interrupted one has another layout"):
        await api(api.copy(source, tmp_path, chunks=20, resume=True))
    missing = 80 - len(list(tmp_path.glob("*/c/*")))
    counting = stores.CountingStore(stores.LocalStore(tmp_path))
    report = await api(api.copy(source, counting, chunks=25, resume=True, verify=True, config=small))
    assert report.skipped > 0
    assert counting.counts.puts == missing + 3 + 3  # documents, and changes of the claim
    loaded_ = await api(api.load(tmp_path))
    assert all((values == np.arange(1000)).all() for values in loaded_.values())
    assert (await api(api.copy(source, tmp_path, chunks=25, resume=True))).copied == 0


async def test_a_difference_is_found(api: Api):
    class Forgetful(stores.MemoryStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            return None if key.endswith("c/3") else await super().put(key, data, if_version=if_version)

    source: dict[str, bytes] = {}
    await api(api.create_array(source, data=np.arange(1, 41), chunks=10))
    await api(api.copy(source, Forgetful()))
    with pytest.raises(ChecksumError, match=r"/\[0:40\] .* differs"):
        await api(api.copy(source, Forgetful(), verify=True))


async def test_invalid_copies(api: Api, tmp_path: Path):
    with pytest.raises(NodeNotFoundError):
        await api(api.copy({}, {}))
    await api(api.create_group(tmp_path / "x"))
    with pytest.raises(NodeExistsError, match="one contains the other"):
        await api(api.copy(tmp_path / "x", tmp_path / "x", overwrite=True))
    objects: dict[str, bytes] = {}
    import numcodecs

    await api(api.create_array(objects, shape=1, dtype=object, zarr_format=2, filters=[numcodecs.JSON()]))
    target: dict[str, bytes] = {}
    with pytest.raises(UnsupportedByFormat, match=r"/ to Zarr format 3: .* 'json2'"):
        await api(api.copy(objects, target, zarr_format=3))
    assert target == {}


@pytest.mark.parametrize("fill", ["undefined", "given"])
async def test_strings_of_format_2_become_strings_of_format_3(api: Api, fill: str):
    import numcodecs

    values: Any
    for codec, values, fill_value in (
        (numcodecs.VLenUTF8(), ["é", "", "abc"], "?"),
        (numcodecs.VLenBytes(), [b"\x00", b"", b"abc"], b"?"),
    ):
        source, target = stores.MemoryStore(), stores.MemoryStore()
        options = {"fill_value": fill_value if fill == "given" else None, "filters": [codec], "zarr_format": 2}
        array = await api(api.create_array(source, shape=6, chunks=3, dtype=object, **options))
        objects = np.array(values, object)
        await api.write(array, slice(0, 3), objects)
        await api(api.copy(source, target, zarr_format=3))
        copied = await api(api.open_array(target))
        default = type(values[0])()
        assert (await api(copied[...])).tolist() == [*values, *[fill_value if fill == "given" else default] * 3]


async def test_invalid_copies_erase_nothing(api: Api, tmp_path: Path):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="a/b", data=np.arange(1, 7), chunks=3))
    before = dict(store)
    for source, dest in (("a/b", "a"), ("a", ""), ("a", "a"), ("a", "a/c"), ("a/b", "a/b/c"), ("", "a/d")):
        node = await api(api.open(store, path=source))
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(NodeExistsError, match="one contains the other"):
                await api(api.copy(node, store, dest_path=dest, **options))
    assert store == before
    await api(api.copy(await api(api.open(store, path="a")), store, dest_path="backup"))
    assert (await api(api.load(store, path="backup/b"))).tolist() == list(range(1, 7))


async def test_conversions_that_fail_erase_nothing(api: Api):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="a/b", data=np.arange(1, 7), chunks=3))
    texts: dict[str, bytes] = {}
    await api(api.create_array(texts, path="t", data=np.array(["a"])))
    with pytest.raises(UnsupportedByFormat):
        await api(api.copy(texts, store, zarr_format="3-draft", overwrite=True))
    assert (await api(api.load(store, path="a/b"))).tolist() == list(range(1, 7))
    with pytest.raises(ValueError, match="overwrite or resume, not both"):
        await api(api.copy(texts, {}, resume=True, overwrite=True))


async def test_old_copies_of_metadata_are_not_believed(api: Api):
    for zarr_format in (2, 3):
        source: dict[str, bytes] = {}
        await api(api.create_array(source, path="x", data=np.arange(4), chunks=2, zarr_format=zarr_format))
        await api(api.consolidate_metadata(source))
        await api((await api(api.open_array(source, path="x", mode="r+"))).append(np.arange(4, 10)))
        await api(api.create_array(source, path="y", data=[1, 2], zarr_format=zarr_format))
        target: dict[str, bytes] = {}
        await api(api.copy(source, target, verify=True))
        assert (await api(api.load(target)))["x"].tolist() == list(range(10))
        assert "y" in await api(api.load(target))


async def test_attributes_survive_an_interruption(api: Api):
    source: dict[str, bytes] = {}
    await api(api.create_array(source, path="x", data=np.arange(4), attributes={"unit": "K"}, zarr_format=2))
    for cut in ("x/.zattrs", "x/.zarray"):

        class Cut(stores.WrapperStore):
            async def put(self, key: str, data: Any, *, if_version: object = None, cut: str = cut) -> object:
                if key == cut:
                    raise StoreError("power cut", key=key)
                return await self.inner.put(key, data, if_version=if_version)

        target = stores.MemoryStore()
        with pytest.raises(StoreError, match="power cut"):
            await api(api.copy(source, Cut(target)))
        await api(api.copy(source, target, resume=True, verify=True))
        assert dict((await api(api.open_array(target, path="x"))).attrs) == {"unit": "K"}


async def test_blocking_stores_do_not_hold_up_the_loop():
    import asyncio
    import time

    class Disk(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            time.sleep(0.03 * len(requests))
            return await self.inner.fetch(requests, versions=versions)

    class Remote(stores.WrapperStore):
        def __init__(self, inner: stores.Store) -> None:
            super().__init__(inner)
            self.blocking = False

        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            await asyncio.sleep(0)
            return await self.inner.put(key, data, if_version=if_version)

    source, longest = stores.MemoryStore(), 0.0
    await za.create_array(source, path="x", data=np.arange(1, 21), chunks=1)

    async def tick() -> None:
        nonlocal longest
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - begin)

    ticking = asyncio.create_task(tick())
    report = await za.copy(Disk(source), Remote(stores.MemoryStore()))
    ticking.cancel()
    assert report.copied == 20
    assert longest < 0.3


async def test_pickles_are_not_looked_at(api: Api):
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit('code was run')",))

    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "compressor": None, "fill_value": None, "order": "C",
             "filters": [{"id": "pickle", "protocol": 5}]}  # fmt: skip
    store = {".zarray": json.dumps(array).encode(), "0": pickle.dumps(Evil())}
    report = await api(api.validate(store, data=True))
    assert ["pickles" in finding.message for finding in report.findings] == [True]


# ------------------------------------------------------------------ validation


async def test_every_problem_has_a_place(api: Api, tmp_path: Path):
    root = await api(api.create_group(tmp_path))
    await api(root.create_array("a/x", data=np.arange(100.0).reshape(10, 10), chunks=(4, 4)))
    await api(root.create_array("b", data=np.arange(10), chunks=3))
    await api(root.create_array("c", data=np.arange(10), chunks=5, shards=10))
    (tmp_path / "a/x/c/0/1").write_bytes(b"junk")
    (tmp_path / "a/x/c/2/2").unlink()
    (tmp_path / "a/x/c/9").write_bytes(b"")
    (tmp_path / "a/x/c/7").mkdir()
    (tmp_path / "a/x/c/7/7").write_bytes(b"")
    (tmp_path / "c/c/0").write_bytes((tmp_path / "c/c/0").read_bytes()[:-1])
    document = json.loads((tmp_path / "b/zarr.json").read_text())
    document |= {"fill_value": "x", "codecs": [{"name": "zz"}], "surprise": 1}
    (tmp_path / "b/zarr.json").write_text(json.dumps(document))
    (tmp_path / "notes.txt").write_text("")
    report = await api(api.validate(tmp_path, data=True))
    found = {(f.severity, f.key, f.location) for f in report.findings}
    assert found == {
        ("note", "a/x/", ""),
        ("error", "a/x/c/0/1", ""),
        ("note", "a/x/c/9", ""),
        ("warning", "a/x/c/7/7", ""),
        ("error", "b/zarr.json", "$.surprise"),
        ("error", "c/c/0", ""),
        ("note", "notes.txt", ""),
    }
    assert not report.ok
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False
    document.pop("surprise")
    (tmp_path / "b/zarr.json").write_text(json.dumps(document))
    report = await api(api.validate(tmp_path))
    assert {(f.key, f.location) for f in report.findings if f.severity == "error"} == {
        ("b/zarr.json", "$.codecs[0].name"), ("b/zarr.json", "$.fill_value")}  # fmt: skip
    assert (await api(api.validate(tmp_path, path="a"))).ok
    with pytest.raises(NodeNotFoundError):
        await api(api.validate(tmp_path, path="none"))


async def test_what_was_read_with_patience_is_told(api: Api):
    array = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|b1", "compressor": None, "fill_value": 0, "order": "C",
             "filters": None, "surprise": 1}  # fmt: skip
    store = {".zarray": json.dumps(array).encode(), ".zattrs": b'{"x": [NaN]}', "zarr.json": b"{}"}
    report = await api(api.validate(store, zarr_format=2))
    assert [(f.severity, f.location) for f in report.findings] == [
        ("warning", "$.fill_value"), ("warning", "$.surprise"), ("warning", "$.x[0]")]  or {
        f.location for f in report.findings} == {"$.fill_value", "$.surprise", "$.x[0]", ""}  # fmt: skip
    grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    document = {"zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "bool", "chunk_grid": grid, "fill_value": 0,
                "chunk_key_encoding": "default", "codecs": ["endian"]}  # fmt: skip
    report = await api(api.validate({"zarr.json": json.dumps(document).encode()}))
    assert {f.location for f in report.findings} == {"$.codecs[0]", "$.fill_value"}
    assert report.ok


# ------------------------------------------------------------------ commands


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sync.create_group(tmp_path / "one").create_array("a/x", data=FIELD, chunks=(8, 8))
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert main(["convert", one, two, "--zarr-format", "2", "--chunks", "5,5", "--compressor", "gzip", "--verify"]) == 0
    assert "1 array and 2 groups" in capsys.readouterr().out
    np.testing.assert_array_equal(sync.open_array(two, path="a/x")[...], FIELD)
    assert main(["convert", one, two]) == 1
    assert "pass --overwrite" in capsys.readouterr().err
    assert main(["convert", one, two, "--zarr-format", "3", "--overwrite", "--shards", "16,16", "--path", "a/x"]) == 0
    assert sync.open_array(two).shards == (16, 16)
    capsys.readouterr()
    assert main(["validate", one, "--data"]) == 0
    assert "no problems found" in capsys.readouterr().out
    (tmp_path / "one/a/x/c/0/0").write_bytes(b"x")
    assert main(["validate", one, "--data", "--json"]) == 1
    errors = [item for item in json.loads(capsys.readouterr().out)["findings"] if item["severity"] == "error"]
    assert [error["key"] for error in errors] == ["a/x/c/0/0"]
    assert main(["validate", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith(f"zarrasync: cannot open {tmp_path / 'none'}: ")


@pytest.mark.parametrize("dtype", ["f4", "c8"])
@pytest.mark.parametrize("zarr_format", [2, "3-draft-2022"])
async def test_a_nan_without_a_representation_in_the_format(api: Api, zarr_format: Any, dtype: str):
    """The values are kept; the fill value becomes the only NaN of the format, also in the open array."""
    odd = np.array([0x7FC00123, 0], "u4").view("f4")
    fill = odd[0] if dtype == "f4" else odd.view("c8")[0]
    source: dict[str, bytes] = {}
    array = await api(api.create_array(source, shape=(6,), chunks=3, dtype=dtype, fill_value=fill))
    await api.write(array, slice(0, 2), np.full(2, fill, dtype))
    dest: dict[str, bytes] = {}
    await api(api.copy(source, dest, zarr_format=zarr_format, verify=True))
    values = await api((await api(api.open_array(dest)))[...])
    assert values.tobytes() == (await api(array[...])).tobytes()
    made = await api(api.create_array({}, shape=(2,), dtype=dtype, fill_value=fill, zarr_format=zarr_format))
    assert np.array([made.fill_value], dtype).view("u4")[0] == 0x7FC00000


async def test_arrays_are_copied_side_by_side(api: Api):
    """The number of round trips does not grow with the number of small arrays."""
    source: dict[str, bytes] = {}
    nodes = {f"g/a{number}": {"data": np.arange(6) + number, "chunks": (3,)} for number in range(12)}
    await api(api.create_hierarchy(source, nodes))
    watched = stores.TracingStore(LatencyStore(stores.MemoryStore(), 0.02))
    in_flight = most = 0

    class Watched(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            try:
                return await super().put(key, data, if_version=if_version)
            finally:
                in_flight -= 1

    target = Watched(watched)
    report = await api(api.copy(source, target))
    assert (report.arrays, report.copied) == (12, 24)
    assert most >= 12
    again = await api(api.copy(source, target, resume=True, verify=True))
    assert (again.copied, again.skipped) == (0, 24)
    for path, own in nodes.items():
        array = await api(api.open_array(target, path=path))
        np.testing.assert_array_equal(await api(array.view[...].read()), own["data"])


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
async def test_names_that_a_document_has_twice(api: Api, zarr_format: int | str):
    """Readers differ in which duplicate they use."""
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="a", data=np.arange(4), zarr_format=zarr_format))
    (key,) = (key for key in store if key.endswith(("a/.zarray", "a/zarr.json", "a.array.json")))
    assert (await api(api.validate(store))).findings == []
    store[key] = store[key].replace(b'"shape"', b'"shape": [9], "shape"', 1)
    (finding,) = (await api(api.validate(store))).findings
    assert (finding.severity, finding.key) == ("warning", key)
    assert "'shape' more than once" in finding.message


@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
async def test_groups_that_arrays_hide(api: Api, zarr_format: int | str):
    store: dict[str, bytes] = {}
    group = await api(api.create_group(store, zarr_format=zarr_format))
    await api(group.create_array("a", data=np.arange(4)))
    await api(group.create_group("b"))
    (other,) = (key for key in store if key.endswith(("b/.zgroup", "b.group.json")))
    hidden = re.sub(r"\bb\b", "a", other)
    store[hidden] = store[other]
    (finding,) = (await api(api.validate(store))).findings
    assert (finding.severity, finding.key) == ("warning", hidden)
    assert finding.message == "this group is hidden by an array at the same path, /a"


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_consolidated_metadata_that_is_damaged(api: Api, zarr_format: int):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="a", data=np.arange(4), zarr_format=zarr_format))
    await api(api.consolidate_metadata(store))
    key = ".zmetadata" if zarr_format == 2 else "zarr.json"
    store[key] = store[key].replace(b'"zarr_consolidated_format": 1', b'"zarr_consolidated_format": 7')
    store[key] = store[key].replace(b'"kind": "inline"', b'"kind": "elsewhere"')
    (finding,) = (await api(api.validate(store))).findings
    assert (finding.severity, finding.key) == ("error", key)
    assert "consolidated" in finding.location


@pytest.mark.parametrize("options", [{"compressors": "gzip"}, {"chunks": (30, 30)}])
async def test_sparse_arrays_are_copied_quickly(api: Api, options: dict[str, Any]):
    """Only stored chunks are read; old chunks of the destination are still erased."""
    source, target = stores.CountingStore(stores.MemoryStore()), stores.CountingStore(stores.MemoryStore())
    array = await api(api.create_array(source, shape=(2000, 2000), chunks=(10, 10), dtype="i4", fill_value=3))
    await api(array.view[995:1005, 7].write(np.arange(10), progress=False))
    left = await api(
        api.create_array(target, shape=(2000, 2000), dtype="i4", fill_value=3, chunks=options.get("chunks", (10, 10)))
    )
    await api(left.view[0, 0].write(5, progress=False))
    await target.erase("zarr.json")
    for store in (source, target):
        store.reset()
    report = await api(api.copy(source, target, **options))
    assert source.reset().fetches <= 24  # of 40,000
    assert target.reset().requests <= 18
    assert report.copied <= 5
    copied = await api(api.open_array(target))
    want = np.full((2000, 2000), 3)
    want[995:1005, 7] = np.arange(10)
    np.testing.assert_array_equal(await api(copied.view.read(progress=False)), want)


async def test_a_chunk_of_a_sparse_source_is_read_once(api: Api):
    """One read per source chunk, however many destination chunks it fills."""
    source = stores.CountingStore(stores.MemoryStore())
    array = await api(api.create_array(source, shape=(1000, 1000), chunks=(250, 250), dtype="i4"))
    part = np.random.default_rng(0).integers(1, 9, (250, 250))
    await api(array.view[250:500, :250].write(part, progress=False))
    source.reset()
    target: dict[str, Any] = {}
    await api(api.copy(source, target, chunks=(10, 10)))
    assert source.reset().fetches <= 6
    copied = await api(api.open_array(target))
    want = np.zeros((1000, 1000), "i4")
    want[250:500, :250] = part
    np.testing.assert_array_equal(await api(copied.view.read(progress=False)), want)
