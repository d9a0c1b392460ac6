"""Common mistakes raise errors that name the remedy; common expectations are met."""

import asyncio
import copy
import json
import pickle
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import numpy as np
import pytest

import zarrasync as za
from tests.support.servers import http_server
from zarrasync import stores, sync
from zarrasync.errors import (
    CodecError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ShapeError,
    StoreError,
    UnknownCodecError,
)

# ------------------------------------------------------------------ attributes


async def test_attributes_of_asynchronous_nodes_are_read_only(api):
    a = await api(api.create_array({}, shape=3, attributes={"x": {"y": [1, 2]}}))
    held = a.attrs if api.name == "async" else a.attrs["x"]
    for change in (
        lambda: held.__setitem__("z", 1),
        lambda: held.update(z=1),
        lambda: held.pop("x"),
        lambda: a.attrs["x"].__setitem__("y", 1),
        lambda: a.attrs["x"]["y"].append(3),
        lambda: a.attrs["x"]["y"].sort(),  # noqa: PLW0108  # all of it is to fail
    ):
        with pytest.raises(TypeError, match=r"await node.update_attributes"):
            change()
    assert a.attrs["x"] == {"y": [1, 2]}
    assert json.dumps(a.attrs["x"]) == '{"y": [1, 2]}'
    for plain in (pickle.loads(pickle.dumps(a.attrs["x"])), copy.deepcopy(a.attrs["x"])):
        plain["y"].append(3)
        assert plain == {"y": [1, 2, 3]}


async def test_attributes_equal_their_stored_form(api):
    store: dict = {}
    a = await api(api.create_array(store, shape=3, attributes={"n": np.float32(0.5), "t": (1, 2)}))
    await api(a.update_attributes({"v": np.arange(3), 5: np.nan}))
    wanted = {"n": 0.5, "t": [1, 2], "v": [0, 1, 2], "5": "NaN"}
    assert dict(a.attrs) == wanted
    assert dict((await api(api.open_array(store))).attrs) == wanted


# ------------------------------------------------------------------ forgotten awaits


def test_synchronous_protocols_of_asynchronous_nodes_raise():
    async def main():
        group = await za.create_group({})
        a = await group.create_array("a", data=np.arange(6).reshape(2, 3))
        for attempt, remedy in (
            (lambda: "a" in group, r"await group.contains\('a'\)"),
            (lambda: list(group), "async for name in group"),
            (lambda: list(a), "async for region, block"),
            (lambda: list(a[0]), "async for region, block"),
            (lambda: np.asarray(a), r"await array\[...\]"),
            (lambda: a == np.ones(2), r"await array\[...\]"),
            (lambda: a[0] == 1, r"await array\[...\]"),
            (lambda: a[0] != 1, r"await array\[...\]"),
            (lambda: 1 in a[0], r"await array\[...\]"),
            (lambda: 1 in a, r"await array\[...\]"),
            (lambda: np.asarray(a[0]), r"await array\[...\]"),
            (lambda: a.__setitem__(0, 1), r"\.write\(values\)"),
            (lambda: a[0].__setitem__(0, 1), r"\.write\(values\)"),
            (lambda: a.oindex.__setitem__(0, 1), r"\.write\(values\)"),
            (lambda: group["a"][0], r"\(await group\['a'\]\)"),
        ):
            with pytest.raises(TypeError, match=remedy):
                attempt()
        with pytest.raises(AttributeError, match=r"\(await group\['a'\]\)\.shape"):
            _ = group["a"].shape

    asyncio.run(main())


# ------------------------------------------------------------------ what may be expected to work


async def test_assigning_to_a_group_stores_an_array(api):
    group = await api(api.create_group({}))
    await api(group.setitem("a", np.arange(3)))
    await api(group.setitem("a", np.ones((2, 2), "f4")))
    assert (await api((await api(group.getitem("a")))[...])).tolist() == [[1, 1], [1, 1]]
    facade = sync.create_group({})
    facade["b"] = [1, 2]
    assert facade["b"][...].tolist() == [1, 2]
    assert facade._ipython_key_completions_() == ["b"]


@pytest.mark.parametrize("key", [..., np.s_[0], np.s_[::-1, 1], np.s_[:, [2, 0]]])
def test_sequences_of_values(tmp_path, key):
    """Selections and arrays are compared and iterated as NumPy's arrays with the same values."""
    values = np.arange(6.0).reshape(2, 3)
    array = sync.create_array(tmp_path, data=values, chunks=(1, 2))
    expected, found = values[key], array.view[key]
    np.testing.assert_array_equal(found == expected, np.ones(expected.shape, bool))
    np.testing.assert_array_equal(found != array.view[key], np.zeros(expected.shape, bool))
    with pytest.raises(TypeError, match=r"value in selection\.read\(\)"):
        assert 2.0 in found
    np.testing.assert_array_equal(list(found), list(expected))
    np.testing.assert_array_equal(array == values, np.ones((2, 3), bool))
    assert array == sync.open_array(tmp_path, mode="r+")
    assert not array == "zstd"  # noqa: SIM201  # the values are not read


def test_pandas_takes_selections(tmp_path):
    pandas = pytest.importorskip("pandas")
    view = sync.create_array(tmp_path, data=np.arange(6.0).reshape(2, 3)).view
    assert pandas.DataFrame({"a": view[:, 0], "b": view[:, 1]}).to_numpy().tolist() == [[0, 1], [3, 4]]
    assert pandas.Series(view[1]).dtype == "float64"


def test_arrays_are_paths_of_dask(tmp_path):
    dask = pytest.importorskip("dask.array")
    array = sync.create_array(tmp_path, path="a", data=np.arange(6), chunks=2)
    assert dask.from_zarr(array).sum().compute() == 15
    with pytest.raises(TypeError, match=r"zarrasync\.integrations\.dask\.from_zarr\(array\)"):
        dask.from_zarr(sync.create_array({}, data=np.arange(6)))


async def test_codecs_of_zarr_python_are_taken(api):
    codecs = pytest.importorskip("zarr.codecs")
    a = await api(
        api.create_array(
            {},
            data=np.arange(100),
            chunks=50,
            filters=codecs.TransposeCodec(order=(0,)),
            serializer=codecs.BytesCodec(endian="big"),
            compressors=[codecs.BloscCodec(cname="zstd"), codecs.Crc32cCodec()],
        )
    )
    assert [codec.name for codec in (*a.filters, a.serializer, *a.compressors)] == [
        "transpose",
        "bytes",
        "blosc",
        "crc32c",
    ]
    assert (await api(a[...])).tolist() == list(range(100))


async def test_codecs_of_inner_chunks_are_shown(api):
    a = await api(api.create_array({}, shape=8, chunks=2, shards=4, compressors="gzip"))
    assert ([c.name for c in a.filters], a.serializer.name, [c.name for c in a.compressors]) == ([], "bytes", ["gzip"])
    assert not a.read_only
    assert (await api(api.open_array(a.store))).read_only


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_byte_order_is_kept(api, zarr_format):
    store: dict = {}
    values = np.arange(4, dtype=">i4")
    a = await api(api.create_array(store, data=values, zarr_format=zarr_format, compressors=None))
    assert a.dtype == np.dtype("i4")
    stored = next(data for key, data in store.items() if not key.rpartition("/")[2].startswith((".z", "zarr.")))
    assert bytes(stored) == values.tobytes()
    assert (await api((await api(api.open_array(store)))[...])).tolist() == [0, 1, 2, 3]


async def test_masked_elements_become_the_fill_value(api):
    a = await api(api.create_array({}, shape=4, dtype="i4", fill_value=-9))
    await api.write(a, ..., np.ma.masked_array([1, 2, 3, 4], mask=[False, True, False, True]))
    assert (await api(a[...])).tolist() == [1, -9, 3, -9]
    await api(a.append(np.ma.masked_array([5, 6], mask=[True, False])))
    assert (await api(a[4:])).tolist() == [-9, 6]
    real = await api(api.create_array({}, shape=3, dtype="f4", fill_value=np.nan))
    await api.write(real, ..., np.ma.masked_array([1, 2, 3], mask=[False, True, False]))  # integers have no NaN
    np.testing.assert_array_equal(await api(real[...]), [1, np.nan, 3])
    pair = np.dtype([("a", "i4"), ("b", "f8")])
    both = await api(api.create_array({}, shape=2, dtype=pair, fill_value=(7, 0.5)))
    await api.write(both, "a", np.ma.masked_array([1, 2], mask=[True, False]))
    assert (await api(both["a"])).tolist() == [7, 2]


async def test_strings_are_never_made_from_other_types(api):
    a = await api(api.create_array({}, shape=2, dtype=str))
    for wrong in ([None, "a"], 5, np.array([1, 2])):
        with pytest.raises(CodecError, match="cannot be stored as StringDType"):
            await api.write(a, ..., wrong)
    with pytest.raises(CodecError, match="cannot be stored as StringDType"):
        await api(a.append([5]))
    await api.write(a, ..., np.array(["x", "yz"]))
    await api.write(a, 0, "é")
    assert (await api(a[...])).tolist() == ["é", "yz"]


async def test_load_finds_nested_arrays(api):
    store: dict = {}
    await api(api.create_hierarchy(store, {"a": {"data": [1]}, "g/h/b": {"data": [2, 3]}}))
    found = await api(api.load(store))
    assert {name: values.tolist() for name, values in found.items()} == {"a": [1], "g/h/b": [2, 3]}


async def test_tree_shows_itself(api):
    group = await api(api.create_group({}))
    await api(group.create_array("a", shape=3, dtype="i4"))
    assert repr(await api(group.tree())) == "/\n└── a (3,) int32"


# ------------------------------------------------------------------ messages


async def test_an_existing_array_must_match_the_description(api):
    store: dict = {}
    options = {"shape": (0, 4), "dtype": "i4", "chunks": (2, 2), "mode": "a"}
    a = await api(api.open_array(store, **options))
    await api(a.append(np.ones((3, 4), "i4")))
    assert (await api(api.open_array(store, **options))).shape == (3, 4)
    with pytest.raises(ShapeError, match=r"/ in .* exists with shape \(3, 4\), not \(5,\)"):
        await api(api.open_array(store, shape=5))
    with pytest.raises(ShapeError, match=r"/ in .* exists with chunks \(2, 2\), not \(4, 4\)"):
        await api(api.open_array(store, mode="a", chunks=4))
    with pytest.raises(ShapeError, match=r"/ in .* exists with shards None, not \(4, 4\)"):
        await api(api.open_array(store, mode="a", shards=4))
    with pytest.raises(NodeTypeError, match=r"/ in .* exists with data type int32, not float64"):
        await api(api.open_array(store, mode="r+", dtype="f8"))


async def test_absence_is_explained(api, tmp_path):
    root = tmp_path / "x"
    await api(api.create_array(root, path="g/a", shape=3, zarr_format=2))
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.csv").write_text("")
    for arguments, reason in (
        ({"store": root, "path": "g/a", "zarr_format": 3}, "a node of Zarr format 2 exists there"),
        ({"store": root, "path": "g/a/b"}, "/g/a is an array, which has no members"),
        ({"store": root, "path": "g/b"}, ": no array or group exists there. Members of /g: a."),
        ({"store": root, "path": "h/a"}, ". Members of /: g."),
        ({"store": tmp_path / "nowhere"}, "; the directory does not exist; check the path"),
        ({"store": tmp_path / "file"}, "it is a file; only directories"),
        ({"store": tmp_path / "other"}, "the directory contains data.csv"),
        ({"store": None}, "the store is empty"),
        ({"store": "~/x.zarr"}, "'~' is not expanded"),
    ):
        for function in (api.open, api.open_array, api.open_group):
            with pytest.raises(NodeNotFoundError, match=re.escape(reason)):
                await api(function(**arguments))


async def test_similar_names_are_suggested(api, tmp_path):
    root = tmp_path / "x"
    names = ["lat", "lon", "t2m", "tp"]
    await api(api.create_hierarchy(root, {name: {"shape": 3, "dtype": "i2"} for name in (*names, "g/wind")}))
    group = await api(api.open_group(root))
    members = re.escape(". Members of /: g, lat, lon, t2m, tp. Did you mean 't2m'?")
    for call in (lambda: group["t2"], lambda: api.open(root, path="t2")):
        with pytest.raises(NodeNotFoundError, match=members):
            await api(call())
    for path, expected in (("g/wnd", ". Members of /g: wind. Did you mean 'wind'?"), ("h/b/c", "lat, lon, t2m, tp.")):
        with pytest.raises(NodeNotFoundError, match=re.escape(expected)):
            await api(group.delete(path))
    await api(api.create_hierarchy(root, {f"a{n}": {"shape": 3, "dtype": "i2"} for n in range(20)}))
    with pytest.raises(NodeNotFoundError, match=re.escape("a16, a17, … (25 in total).")):
        await api(group.delete("x"))


async def test_suggestions_make_no_requests_on_remote_stores(tmp_path):
    sync.create_hierarchy(tmp_path / "x", {"t2m": {"shape": 3, "dtype": "i2"}})

    for consolidated in (False, True):
        if consolidated:
            sync.consolidate_metadata(tmp_path / "x")
        store = stores.CountingStore(stores.LocalStore(tmp_path / "x"))
        store.blocking = False
        group = await za.open_group(store)
        store.reset()
        with pytest.raises(NodeNotFoundError, match=": no array or group") as error:
            await group.getitem("t2")
        assert ("Did you mean 't2m'?" in str(error.value)) == consolidated
        counts = store.reset()
        assert (counts.lists, counts.fetches) == (0, 1)  # the member itself


async def test_absence_is_absence_where_looking_around_fails(api):
    """Parent documents cannot be read; the error is still that the array does not exist."""

    class Guarded(stores.MemoryStore):
        async def fetch(self, requests, *, versions=False):
            if any(not request.key.startswith("mine/") for request in requests):
                raise StoreError("could not read: 403")
            return await super().fetch(requests, versions=versions)

    with pytest.raises(NodeNotFoundError, match="cannot open /mine/a in"):
        await api(api.open_array(Guarded(), path="mine/a"))


async def test_codec_names_are_guessed(api):
    for name, meant in (("lz4", "did you mean 'numcodecs.lz4'?"), ("gzp", "did you mean 'gzip'?")):
        with pytest.raises(MetadataError, match=re.escape(meant)):
            await api(api.create_array({}, shape=3, compressors=name))


def test_errors_of_stores_name_the_store(tmp_path):
    a = sync.create_array(tmp_path / "x", data=np.arange(3))
    chunk = tmp_path / "x" / "c" / "0"
    chunk.unlink()
    chunk.mkdir()
    with pytest.raises(StoreError, match=r"could not write 'c/0' in .*LocalStore\('.*x'\): IsADirectoryError"):
        a[0] = 1


def test_missing_packages_are_named(monkeypatch):
    import fsspec.core

    def url_to_fs(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    with pytest.raises(ImportError, match=r"s3://.* pip install 'zarrasync\[s3\]'"):
        sync.open("s3://bucket/x", storage_options={"backend": "fsspec"})


async def test_values_that_do_not_fit_name_the_array(api):
    a = await api(api.create_array({}, name="x", shape=8, chunks=2, dtype="i4"))
    with pytest.raises(CodecError, match=r"^/x in MemoryStore\(.*\): values of <U1 cannot be stored as int32"):
        await api.write(a, ..., np.array(["a"] * 8))
    assert await api(a.nchunks_initialized()) == 0


# ------------------------------------------------------------------ nothing is lost by a slip


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
async def test_foreign_files_are_not_erased(api, tmp_path, zarr_format):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("years of work")
    for make in (
        lambda: api.create_group(tmp_path, overwrite=True, zarr_format=zarr_format),
        lambda: api.create_array(tmp_path, shape=3, overwrite=True, zarr_format=zarr_format),
        lambda: api.open_group(tmp_path, mode="w", zarr_format=zarr_format),
    ):
        await api(make())
        assert (tmp_path / "notes" / "thesis.tex").read_text() == "years of work"
    # orphaned chunks of an erased node may be replaced
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "c").mkdir()
    (tmp_path / "left" / "c" / "0").write_bytes(b"1")
    await api(api.create_array(tmp_path / "left", shape=3, overwrite=True, zarr_format=3))


async def test_files_that_only_look_like_chunks_are_not_erased(api, tmp_path):
    for name in ("2024", "notes"):
        (tmp_path / name).write_text("years of work")
    with pytest.raises(NodeExistsError, match=r"1 value would be erased \(2024\).*other files .*notes"):
        await api(api.create_array(tmp_path, shape=3, overwrite=True, zarr_format=2))
    assert (tmp_path / "2024").read_text() == "years of work"


async def test_formats_are_not_mixed_below_a_group(api, tmp_path):
    await api(api.create_group(tmp_path, zarr_format=2))
    with pytest.raises(NodeTypeError, match="pass zarr_format=2"):
        await api(api.create_array(tmp_path, path="a/b", shape=3))
    made = await api(api.create_array(tmp_path, path="a/b", shape=3, zarr_format=2))
    assert made.zarr_format == 2
    assert [name for name, _ in await api((await api(api.open_group(tmp_path))).members(None))] == ["a", "a/b"]


async def test_values_that_do_not_fit_are_not_ingested(api):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, data=np.arange(4, dtype="i2"), chunks=2))
    with pytest.raises(NodeTypeError, match="cannot write float64 values"):
        await api(api.ingest(np.array([0.5, 1.5, 70000.5, np.nan]), store))
    with pytest.raises(ShapeError, match="exists with chunks"):
        await api(api.ingest(np.arange(4, dtype="i2"), store, chunks=4))
    assert (await api(api.ingest(np.arange(4, dtype="i2"), store, chunks=2))).skipped


async def test_copies_with_shapes_for_some_arrays_and_codecs_that_are_known(api):
    one: dict[str, bytes] = {}
    root = await api(api.create_group(one))
    for name, shape in (("cube", (4, 6, 8)), ("line", (6,)), ("point", ())):
        await api(root.create_array(name, data=np.arange(int(np.prod(shape))).reshape(shape)))
    other: dict[str, bytes] = {}
    await api(api.copy(one, other, chunks=(2, 3, 4), shards=(4, 6, 8), verify=True))
    found = await api(api.open_group(other))
    assert [(await api(found.get(name))).shards for name in ("cube", "line", "point")] == [(4, 6, 8), None, None]
    with pytest.raises(UnknownCodecError, match="did you mean 'zstd'"):
        await api(api.copy(one, {}, compressors="zsdt"))


async def test_the_fields_of_a_codec_are_kept(api):
    @dataclass(frozen=True)
    class Times(za.codecs.ArrayArrayCodec):
        name = "example.times"
        factor: int = 2

        def encode(self, array, spec):
            return array * self.factor

        def decode(self, array, spec):
            return array // self.factor

    za.register_codec(Times)
    store: dict[str, bytes] = {}
    await api(api.create_array(store, data=np.arange(5), filters=[Times(5)], compressors=None))
    assert b'"factor": 5' in store["zarr.json"]
    found = await api(api.open_array(store))
    np.testing.assert_array_equal(await api(found.get_basic_selection()), np.arange(5))


class Failing(MutableMapping[str, bytes]):
    """A mapping in which one chosen method raises."""

    def __init__(self) -> None:
        self.values_, self.bad = dict[str, bytes](), ""

    def _try(self, what: str) -> None:
        if what == self.bad:
            raise OSError("the disk is gone")

    def __getitem__(self, key: str) -> bytes:
        self._try("read")
        return self.values_[key]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._try("write")
        self.values_[key] = value

    def __delitem__(self, key: str) -> None:
        self._try("erase")
        del self.values_[key]

    def __iter__(self) -> Iterator[str]:
        self._try("list")
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


async def test_mappings_that_fail(api):
    mapping = Failing()
    group = await api(api.create_group(mapping))
    array = await api(group.create_array("a", data=np.arange(8), chunks=4))
    for what, call in {
        "read": lambda: array.view[:].read(),  # noqa: PLW0108
        "write": lambda: array.view[:].write(3),
        "erase": lambda: array.view[:].write(0),
        "list": group.array_keys,
    }.items():
        mapping.bad = what
        with pytest.raises(StoreError, match=f"could not {what} .*the disk is gone"):
            await api(call())
        mapping.bad = ""


@pytest.mark.servers
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("location", [("x.zarr/sub/t2", ""), ("x.zarr", "sub/t2")])
def test_names_in_consolidated_metadata_are_suggested_over_http(tmp_path, zarr_format, location):
    """Also where the URL ends with the path of the node, and where the server lists nothing."""
    folder = tmp_path / "data of 2020" / "x.zarr"
    group = sync.create_group(folder, zarr_format=zarr_format).create_group("sub")
    group.create_array("t2m", data=[1])
    group.create_array("lat", data=[1])
    url, path = location

    def message(server: str) -> str:
        with pytest.raises(NodeNotFoundError) as caught:
            sync.open_array(f"{server}/data%20of%202020/{url}", path=path)
        return str(caught.value)

    with http_server(tmp_path) as server:
        assert "Did you mean" not in message(server)
        sync.consolidate_metadata(folder)
        assert message(server).endswith("/sub: lat, t2m. Did you mean 't2m'?")
