"""The two dialects of the draft of format 3, against their specifications and zarr-python 2.18."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import codecs, stores
from zarrasync.errors import (
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    UnknownCodecError,
    UnsupportedByFormat,
)

TEXT, OLD = "3-draft", "3-draft-2022"
DIALECTS = (TEXT, OLD)
ENTRY = {
    "zarr_format": "https://purl.org/zarr/spec/core/3.0",
    "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
    "extensions": [],
}
ARRAY: dict[str, Any] = {
    "shape": [4, 3],
    "data_type": "int32",
    "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "/"},
    "chunk_memory_layout": "C",
    "fill_value": -1,
    "extensions": [],
    "attributes": {"unit": "m"},
}
VALUES = np.arange(12, dtype="i4").reshape(4, 3)


def store_of(entry: dict[str, Any] | None = None, **array: Any) -> dict[str, bytes]:
    """Return a store with one array ``a`` whose first chunk is stored."""
    document = {name: value for name, value in {**ARRAY, **array}.items() if value is not ...}
    return {
        "zarr.json": json.dumps(ENTRY if entry is None else entry).encode(),
        "meta/a.array.json": json.dumps(document).encode(),
        "data/a/c0/0": VALUES[:2].astype("<i4").tobytes(),
    }


# ------------------------------------------------------------------ what is on disk


async def test_the_text_as_it_is_written(api: Api):
    store: dict[str, bytes] = {}
    root = await api(api.create_group(store, zarr_format=TEXT, attributes={"spam": "ham"}))
    array = await api(root.create_array("foo/baz", data=VALUES, chunks=(2, 3), compressors={"id": "gzip", "level": 1}))
    assert sorted(store) == ["data/foo/baz/c0/0", "data/foo/baz/c1/0", "meta/foo/baz.array.json", "meta/group.json",
                             "zarr.json"]  # fmt: skip
    assert json.loads(store["zarr.json"]) == ENTRY
    assert json.loads(store["meta/group.json"]) == {"attributes": {"spam": "ham"}}
    assert json.loads(store["meta/foo/baz.array.json"]) == {
        **ARRAY,
        "fill_value": 0,
        "attributes": {},
        "codecs": [{"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}],
    }
    assert array.zarr_format == TEXT
    again = await api(api.open_array(store, path="foo/baz"))
    np.testing.assert_array_equal(await api(again.get_basic_selection()), VALUES)


async def test_the_older_dialect_as_it_is_written(api: Api):
    store: dict[str, bytes] = {}
    other: dict[str, bytes] = {}
    await api(api.create_array(store, data=VALUES.astype(">i4"), chunks=(2, 3), zarr_format=OLD, compressors="zstd"))
    await api(api.create_array(other, path="x", fill_value=np.nan, zarr_format=OLD, data=1.5))
    assert set(store) == {"zarr.json", "meta/root.array.json", "data/root/c0/0", "data/root/c1/0"}
    assert set(other) == {"zarr.json", "meta/root/x.array.json", "data/root/x/c0"}
    entry = json.loads(store["zarr.json"])
    assert set(entry) == {"zarr_format", "metadata_encoding", "metadata_key_suffix", "extensions"}
    assert "/protocol/" in entry["zarr_format"]
    document = json.loads(store["meta/root.array.json"])
    assert document["data_type"] == ">i4"
    assert document["compressor"]["codec"] == "https://purl.org/zarr/spec/codec/zstd/1.0"
    assert json.loads(other["meta/root/x.array.json"])["fill_value"] == "NaN"


# ------------------------------------------------------------------ everything that can be said


KINDS = ["?", "i1", "u1", "<i2", ">i4", "<i8", ">u8", "<f2", ">f4", "<f8", "<c8", ">c16", "V3", "<M8[ns]", ">m8[3s]"]


def sample(dtype: np.dtype) -> np.ndarray:
    raw = np.random.default_rng(3).integers(0, 255, (7, 5, dtype.itemsize), dtype="u1")
    return (raw % 2).view("?")[..., 0] if dtype.kind == "b" else raw.view(dtype)[..., 0]


@pytest.mark.parametrize("kind", KINDS)
async def test_types_round_trip(api: Api, kind: str):
    zarr_format = TEXT if api.name == "sync" else OLD
    dtype = np.dtype(kind)
    values = sample(dtype)
    for order, shards, separator in (("C", None, "/"), ("F", None, "."), ("C", (4, 4), "/"), ("F", (4, 4), ".")):
        store: dict[str, bytes] = {}
        fill = values[3, 3] if dtype.kind != "V" else values[3, 3].tobytes()
        array = await api(api.create_array(
            store, shape=(7, 5), dtype=dtype, chunks=(2, 2), shards=shards, order=order, fill_value=fill,
            zarr_format=zarr_format, chunk_key_encoding={"name": "default", "separator": separator},
        ))  # fmt: skip
        await api.write(array, np.s_[2:6, 1:], values[2:6, 1:])
        expected = np.full((7, 5), values[3, 3], dtype)
        expected[2:6, 1:] = values[2:6, 1:]
        again = await api(api.open_array(store))
        assert again.dtype == dtype.newbyteorder("=")
        assert again.shards == shards
        found = await api(again.get_basic_selection())
        assert found.tobytes() == expected.astype(found.dtype).tobytes()
        assert again.metadata.codecs == array.metadata.codecs
        assert np.asarray(again.fill_value).tobytes() == np.asarray(array.fill_value).tobytes()


async def test_the_older_dialect_has_text_objects_and_structures(api: Api):
    texts = np.array(["", "né", "x" * 40])
    pairs = np.array([(1, b"a"), (2, b"bc"), (3, b"")], [("n", "<i4"), ("s", "S2")])
    for values, dtype in ((texts, str), (texts, "<U40"), (np.array([b"a", b"bc"]), "S2"),
                          (pairs, pairs.dtype)):  # fmt: skip
        store: dict[str, bytes] = {}
        await api(api.create_array(store, data=values, dtype=dtype, chunks=2, zarr_format=OLD))
        found = await api(api.load(store))
        assert found.tolist() == values.tolist()
        with pytest.raises(UnsupportedByFormat, match="data type"):
            await api(api.create_array({}, data=values, dtype=dtype, zarr_format=TEXT))


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"dimension_names": ["y", "x"]}, "dimension_names"),
        ({"filters": codecs.TransposeCodec((0, 1))}, "codecs"),
        ({"chunk_key_encoding": "v2"}, "chunk_key_encoding"),
        ({"fill_value": None, "zarr_format": TEXT}, "fill_value"),
    ],
)
async def test_unsupported_arrays_are_refused_before_anything_is_written(api: Api, options, feature: str):
    store: dict[str, bytes] = {}
    with pytest.raises(UnsupportedByFormat) as caught:
        await api(api.create_array(store, shape=(4, 3), dtype="i4", **{"zarr_format": OLD, **options}))
    assert caught.value.feature == feature
    assert store == {}


# ------------------------------------------------------------------ reading what others may write


@pytest.mark.parametrize(
    ("change", "fill"),
    [
        ({"data_type": "<i4"}, -1),
        ({"fill_value": "0xffffffff"}, -1),
        ({"fill_value": "0b" + 32 * "1"}, -1),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 3]}}, -1),
        ({"codecs": []}, -1),
        ({"extensions": [{"extension": "https://example.org/x", "must_understand": False}]}, -1),
        ({"data_type": {"extension": "https://example.org/t", "type": 7, "fallback": ["q9", "int32"]}}, -1),
    ],
)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_variants_that_mean_the_same(api: Api, change, fill):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        store = store_of(**change)
        array = await api(api.open_array(store, path="a", mode="r+"))
    expected = VALUES.copy()
    expected[2:] = fill
    np.testing.assert_array_equal(await api(array.get_basic_selection()), expected)
    await api(array.update_attributes({"new": 1}))  # other members of the document are kept
    assert {**json.loads(store["meta/a.array.json"]), "attributes": None} == {
        **ARRAY, **change, "attributes": None}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where"),
    [
        *(({name: ...}, f"$.{name}") for name in ARRAY),
        ({"surprise": 1}, "$.surprise"),
        ({"fill_value": None}, "$.fill_value"),
        ({"fill_value": 1.5}, "$.fill_value"),
        ({"fill_value": 1 << 40}, "$.fill_value"),
        ({"fill_value": "0xff"}, "$.fill_value"),
        ({"fill_value": 1.0}, "$.fill_value"),
        *(({"fill_value": value, "data_type": "bool"}, "$.fill_value") for value in (0, 1, "0x02", "true")),
        ({"fill_value": True, "data_type": "float64"}, "$.fill_value"),
        ({"data_type": "int33"}, "$.data_type"),
        ({"data_type": "r7"}, "$.data_type"),
        ({"data_type": {"extension": "https://example.org/t", "type": "x"}}, "$.data_type"),
        ({"chunk_memory_layout": "K"}, "$.chunk_memory_layout"),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "/"}}, "$"),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "-"}}, "$.chunk_grid.separator"),
        ({"chunk_grid": {"type": "hexagons"}}, "$.chunk_grid"),
        ({"extensions": [{"extension": "https://example.org/x", "must_understand": True}]}, "$.extensions[0]"),
        ({"storage_transformers": [{"extension": "https://example.org/x", "type": "y"}]}, "$.storage_transformers[0]"),
        ({"attributes": None}, "$.attributes"),
        *(
            ({name: value}, f"$.{name}")
            for name in ("extensions", "codecs", "storage_transformers")
            for value in (None, {}, 0, "")
        ),
        ({"storage_transformers": [{"extension": "https://example.org/x"}]}, "$.storage_transformers[0]"),
        ({"storage_transformers": [{"extension": "https://example.org/x", "type": 5}]}, "$.storage_transformers[0]"),
        (
            {"storage_transformers": [{"extension": "https://example.org/x", "type": "y", "configuration": []}]},
            "$.storage_transformers[0]",
        ),
        ({"codecs": [{"type": "https://example.org/x"}]}, "$.codecs[0]"),
    ],
)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_documents_that_the_specification_forbids(api: Api, change, where: str):
    with pytest.raises(MetadataError) as caught:
        await api(api.open_array(store_of(**change), path="a"))
    assert {problem.location for problem in caught.value.problems} == {where}
    assert {problem.key for problem in caught.value.problems} == {"meta/a.array.json"}


async def test_an_unknown_codec_is_named(api: Api):
    with pytest.raises(UnknownCodecError, match="snappier"):
        await api(
            api.open_array(store_of(codecs=[{"type": "https://purl.org/zarr/spec/codecs/snappier/1.0"}]), path="a")
        )


@pytest.mark.parametrize(
    "change",
    [
        {"zarr_format": "https://purl.org/zarr/spec/core/4.0"},
        {"zarr_format": "https://example.org/"},
        {"metadata_encoding": {"type": "bson", "metadata_key_suffix": ".bson"}},
        {"metadata_encoding": {"extension": "https://example.org/e", "type": "json", "metadata_key_suffix": ".json"}},
        {"extensions": [{"extension": "https://example.org/x", "must_understand": True}]},
        {"extensions": 7},
        {"surprise": 1},
    ],
)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_entry_points_that_are_refused(api: Api, change):
    with pytest.raises(MetadataError, match=r"^zarr\.json"):
        await api(api.open_array(store_of({**ENTRY, **change}), path="a"))


async def test_entry_points_that_are_read(api: Api):
    later = {**ENTRY, "zarr_format": "https://purl.org/zarr/spec/core/3.7", "surprise": 1}
    ignorable = {**ENTRY, "extensions": [{"extension": "https://example.org/x", "must_understand": False}]}
    other = {**ENTRY, "metadata_encoding": {"type": "json", "metadata_key_suffix": ".txt"}}
    for entry in (later, ignorable, other):
        store = store_of(entry)
        store["meta/a.array.txt"] = store["meta/a.array.json"]
        group = await api(api.open_group(store, mode="r+"))
        assert await api(group.array_keys()) == ("a",)
        await api(group.create_group("b"))
        assert json.loads(store["zarr.json"]) == entry
    assert "meta/b.group.txt" in store


@pytest.mark.parametrize("name", ["c", "c0", ""])
async def test_the_chunk_of_an_array_without_axes_has_many_names(api: Api, name: str, tmp_path: Path):
    """Writers of the older dialect used different keys."""
    document = {"shape": [], "data_type": "<i4", "chunk_grid": {"type": "regular", "chunk_shape": []}}
    (tmp_path / "zarr.json").write_text(json.dumps({**ENTRY, "metadata_encoding": ENTRY["zarr_format"],
                                                    "metadata_key_suffix": ".json"}))  # fmt: skip
    (tmp_path / "meta/root").mkdir(parents=True)
    (tmp_path / "meta/root/a.array.json").write_text(json.dumps(document))
    key = tmp_path / "data/root/a" / name
    key.parent.mkdir(parents=True)
    key.write_bytes(b"\x07\0\0\0")
    array = await api(api.open_array(tmp_path, path="a", mode="r+"))
    assert await api(array.get_basic_selection()) == 7


@pytest.mark.parametrize("policy", ["warn", "error", "allow"])
async def test_a_fallback_is_used_as_the_settings_say(api: Api, policy: str):
    store = store_of(data_type={"extension": "https://example.org/t", "type": "x", "fallback": "int32"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if policy == "error":
            with pytest.raises(MetadataError, match=r"dtype_fallback"):
                await api(api.open_array(store, path="a", config={"dtype_fallback": policy}))
        else:
            await api(api.open_array(store, path="a", config={"dtype_fallback": policy}))
    assert len([w for w in caught if "its fallback 'int32' is used" in str(w.message)]) == (policy == "warn")


# ------------------------------------------------------------------ hierarchies


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_groups_exist_because_of_what_lies_below(api: Api, zarr_format: str):
    values: dict[str, bytes] = {}
    counting = stores.CountingStore(stores.MemoryStore(values))
    await api(api.create_array(counting, path="a/b/x", data=VALUES, zarr_format=zarr_format))
    await api(api.create_group(counting, path="a/c", zarr_format=zarr_format))
    assert not [key for key in values if "a.group" in key or "b.group" in key]
    root = await api(api.open_group(counting))
    counting.reset()
    found = await api(root.members(max_depth=None))
    assert [(name, type(node).__name__.removeprefix("Async")) for name, node in found] == [
        ("a", "Group"), ("a/b", "Group"), ("a/b/x", "Array"), ("a/c", "Group")]  # fmt: skip
    assert counting.counts.lists == 1
    assert await api(root.keys()) == ("a",)
    implied = await api(api.open_group(counting, path="a/b", mode="r+"))
    assert dict(implied.attrs) == {}
    await api(implied.update_attributes({"now": "explicit"}))
    assert dict((await api(api.open(counting, path="a/b"))).attrs) == {"now": "explicit"}
    with pytest.raises(NodeNotFoundError):
        await api(api.open(counting, path="a/d"))
    assert (await api(root.get("a/d"))) is None


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_erasing_and_moving(api: Api, zarr_format: str):
    store: dict[str, bytes] = {}
    root = await api(api.create_group(store, zarr_format=zarr_format))
    await api(root.create_array("a/x", data=VALUES, chunks=(2, 3)))
    await api(root.create_array("a/y", data=VALUES + 1, chunks=(2, 3)))
    await api(root.create_array("ab", data=VALUES, chunks=(2, 3)))
    await api(root.move("a/x", "b/z"))
    assert not [key for key in store if "/a/x" in key]
    np.testing.assert_array_equal(await api((await api(root.get("b/z"))).get_basic_selection()), VALUES)
    await api(root.delete("a"))
    assert {key for key in store if "ab" in key and key.startswith("data")}, "a name that begins alike is another"
    assert not [key for key in store if "/a/" in key or "/a." in key]
    assert await api(root.keys()) == ("ab", "b")
    await api(root.create_array("ab", data=VALUES[:2] * 0, chunks=(2, 3), overwrite=True))
    assert not [key for key in store if "/ab/c" in key], "nothing of what was replaced is left"


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_names(api: Api, zarr_format: str):
    root = await api(api.create_group({}, zarr_format=zarr_format))
    for name in ("a b", "é", "a/..x y", "..."):
        with pytest.raises(InvalidKeyError):
            await api(root.create_group(name))
    for name in ("FOO", "foo", "a.b-c_9", "c0", "x.array"):
        await api(root.create_group(name))
    assert set(await api(root.group_keys())) == {"FOO", "foo", "a.b-c_9", "c0", "x.array"}


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_other_formats_in_the_same_store(api: Api, zarr_format: str):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="x", data=VALUES, zarr_format=zarr_format))
    before = dict(store)
    with pytest.raises(MetadataError, match="entry point"):
        await api(api.create_group(store, path="y"))
    with pytest.raises(MetadataError, match="entry point"):
        await api(api.create_group(store, path="y", zarr_format=DIALECTS[zarr_format == TEXT]))
    with pytest.raises(MetadataError, match="entry point"):
        await api(api.open(store, zarr_format=3))
    with pytest.raises(NodeExistsError):
        await api(api.create_group(store, path="x", zarr_format=zarr_format))
    with pytest.raises(NodeTypeError):
        await api(api.create_group(store, path="x/y", zarr_format=zarr_format))
    assert store == before
    await api(api.create_group(store, overwrite=True))
    assert list(store) == ["zarr.json"]
    with pytest.raises(MetadataError, match="format 3"):
        await api(api.create_group(store, path="y", zarr_format=zarr_format))


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_replacing_a_whole_store(api: Api, zarr_format: str):
    store: dict[str, bytes] = {}
    for number in range(3):
        await api(api.save(store, x=[number], zarr_format=zarr_format))
        assert (await api(api.load(store)))["x"].tolist() == [number]
    for other in (3, 2, DIALECTS[zarr_format == TEXT], zarr_format):
        await api(api.save(store, x=[1], zarr_format=other))
        assert (await api(api.open(store))).zarr_format == other
        assert (await api(api.load(store)))["x"].tolist() == [1]


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_codecs_without_a_name_in_the_format(api: Api, zarr_format: str):
    documents: list[dict[str, Any]] = [
        {"data": np.array([True, False]), "serializer": "packbits"},
        {"data": np.ones(4, "f4"), "serializer": {"name": "numcodecs.zfpy", "configuration": {"mode": 4}}},
    ]
    for options in documents:
        store: dict[str, bytes] = {}
        with pytest.raises(UnsupportedByFormat):
            await api(api.create_array(store, zarr_format=zarr_format, **options))
        assert store == {}
        source: dict[str, bytes] = {}
        await api(api.create_array(source, path="a", **options))
        report = await api(api.copy(source, store, zarr_format=zarr_format, verify=True))
        assert report.notes
        assert (await api(api.load(store)))["a"].tolist() == options["data"].tolist()


@pytest.mark.parametrize("zarr_format", DIALECTS)
async def test_an_array_does_not_take_the_place_of_members(api: Api, zarr_format: str):
    store: dict[str, bytes] = {}
    root = await api(api.create_group(store, zarr_format=zarr_format))
    await api(root.create_array("g/x", data=[1, 2, 3]))
    with pytest.raises(NodeExistsError, match="nodes exist below"):
        await api(root.create_array("g", data=[9]))
    await api(root.create_group("g", attributes={"now": "explicit"}))
    assert await api(root.contains("g/x"))


async def test_other_names_of_a_chunk_go_with_it(api: Api):
    store: dict[str, bytes] = {}
    root = await api(api.create_group(store, zarr_format=OLD))
    await api(root.create_array("x", data=np.int32(7), compressors=None))
    store["data/root/x"] = store.pop("data/root/x/c0")
    await api(root.move("x", "y"))
    assert await api((await api(root.get("y"))).get_basic_selection()) == 7
    await api(root.delete("y"))
    await api(root.create_array("y", shape=(), dtype="i4"))
    assert await api((await api(root.get("y"))).get_basic_selection()) == 0


async def test_a_group_that_is_called_like_consolidated_metadata(api: Api):
    store: dict[str, bytes] = {}
    root = await api(api.create_group(store, zarr_format=OLD))
    await api(root.create_group("a"))
    await api(api.consolidate_metadata(store))
    assert await api(root.keys()) == ("a",)
    await api(root.create_array("consolidated/x", data=[1]))
    assert await api(root.keys()) == ("a", "consolidated")


async def test_opening_costs_little(api: Api):
    counting = stores.CountingStore(stores.MemoryStore(store_of()))
    group = await api(api.open_group(counting))
    counting.reset()
    await api(group.get("a"))
    assert counting.reset().requests == 2, "a child of a known group costs its two documents"
    await api(api.open_array(counting, path="a", zarr_format=TEXT))
    assert counting.reset().requests == 2


# ------------------------------------------------------------------ against zarr-python 2.18


@pytest.fixture(scope="session")
def theirs(zarr2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zarr2")
    zarr2("write", folder)
    return folder


@pytest.mark.foreign
async def test_data_written_by_zarr_python_2_are_read(theirs: Path):
    count = 0
    for description in sorted(theirs.glob("*.json")):
        spec, where = json.loads(description.read_text()), theirs / description.stem
        for path, entry in spec["arrays"].items():
            wanted = np.load(theirs / entry["npy"])
            found = await (await za.open_array(where, path=path))[...].read()
            if entry["dtype"] == "|O":
                assert found.astype(object).tolist() == wanted.astype(object).tolist(), (where, path)
            else:
                assert found.dtype == wanted.dtype.newbyteorder("="), (where, path)
                assert found.shape == wanted.shape, (where, path)
                assert found.tobytes() == wanted.astype(found.dtype).tobytes(), (where, path)
            count += 1
        for path, attrs in spec["attrs"].items():
            assert json.loads(json.dumps(dict((await za.open(where, path=path)).attrs))) == attrs
        for path in spec["groups"]:
            assert isinstance(await za.open(where, path=path), za.AsyncGroup)
    assert count == 145


async def test_consolidated_metadata_of_zarr_python_2(theirs: Path):
    counting = stores.CountingStore(stores.LocalStore(theirs / "consolidated"))
    root = await za.open_group(counting, use_consolidated=True)
    counting.reset()
    members = dict(await root.members(max_depth=None))
    assert {"a/sharded", "a/b/c/x", "p/q/y"} <= set(members)
    assert counting.reset().requests == 0


@pytest.mark.foreign
async def test_zarr_python_2_reads_what_we_write(zarr2, tmp_path: Path):
    spec: dict[str, Any] = {"arrays": {}, "attrs": {}, "groups": ["", "g"]}
    store = tmp_path / "ours"
    root = await za.create_group(store, zarr_format=OLD, attributes={"title": "né"})
    await root.create_group("g", attributes={"n": [1, None]})
    spec["attrs"] = {"": {"title": "né"}, "g": {"n": [1, None]}}

    async def add(name: str, values: np.ndarray, part: Any = ..., **options: Any) -> None:
        options = {
            "chunks": tuple(max(1, n // 2) for n in values.shape),
            "compressors": {"id": "zlib", "level": 1},
        } | options
        array = await root.create_array(name, shape=values.shape, dtype=values.dtype, **options)
        await array[part].write(values[part])
        expected = np.empty(values.shape, values.dtype)
        expected[...] = array.fill_value if array.fill_value is not None else 0
        expected[part] = values[part]
        np.save(tmp_path / f"{len(spec['arrays'])}.npy", expected)
        spec["arrays"][name] = {"npy": f"{len(spec['arrays'])}.npy", "dtype": expected.dtype.str}

    for kind in [kind for kind in KINDS if kind not in ("V3", ">m8[3s]")]:
        values = sample(np.dtype(kind))
        if values.dtype.kind in "fc":
            values = np.arange(35).reshape(7, 5).astype(kind)
        await add(f"types/{np.dtype(kind).str.strip('<>|')[:2]}{np.dtype(kind).itemsize}", values, np.s_[:3])
    await add("types/U", np.array(["né", "b"]))
    await add("types/S", np.array([b"a", b"bcd"]))
    await add("types/struct", np.array([(1, 2.5), (3, 4.5)], [("a", "<i2"), ("b", ">f8")]))
    for kind in ("gzip", "blosc", "bz2", "lz4", "lzma", "zstd"):
        await add(f"compressors/{kind}", VALUES, compressors={"id": kind})
    await add("compressors/none", VALUES, compressors=None)
    await add("filters/delta", VALUES, filters={"id": "delta", "dtype": "<i4"})
    await add("order/F", VALUES, order="F", chunk_key_encoding={"name": "default", "separator": "."})
    await add("shards/C", VALUES, np.s_[:3], chunks=(1, 2), shards=(2, 4), fill_value=-1)
    await add("shards/F", VALUES, chunks=(2, 1), shards=(4, 3), order="F")
    await add("scalar", np.array(2.5), compressors=None)
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert zarr2("check", store, tmp_path / "spec.json") == "OK"

    await za.consolidate_metadata(store)
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "consolidated": ["meta/root/consolidated/.zmetadata"]}))
    assert zarr2("check", store, tmp_path / "spec.json") == "OK"
