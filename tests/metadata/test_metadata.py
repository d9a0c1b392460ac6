"""Metadata documents: refused ones, with every problem named, and accepted ones."""

from __future__ import annotations

import json
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync import errors, formats, sync
from zarrasync.errors import MetadataError, NodeTypeError, UnknownCodecError
from zarrasync.model import dtypes, fill_values
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.paths import join, normalize_path

ARRAY3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
ARRAY2 = {
    "zarr_format": 2,
    "shape": [4, 4],
    "chunks": [2, 2],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


def opened(document, key: str = "zarr.json"):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return sync.open({key: data})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zarr_format": 4}, r"zarr.json: \$.zarr_format: expected 3, found 4"),
        ({"zarr_format": True}, r"expected 3, found True"),
        ({"node_type": "table"}, r"\$.node_type: expected 'array' or 'group', found 'table'"),
        ({"shape": [4, -1]}, r"\$.shape: expected a list of integers of at least 0, found \[4, -1\]"),
        ({"shape": [4.0, 4]}, r"\$.shape: expected"),
        ({"shape": "x"}, r"\$.shape: expected"),
        ({"shape": [2**70, 4]}, r"\$.shape: expected"),
        ({"shape": [4]}, r"chunks \(2, 2\) must have one size for each axis of shape \(4,\)"),
        ({"data_type": "int12"}, r"\$.data_type: unknown data type 'int12'"),
        ({"data_type": "r12"}, r"multiple of 8"),
        ({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "x"}}}, r"invalid configuration"),
        ({"data_type": 3}, r"a name or an object with a name, found 3"),
        ({"chunk_grid": {"name": "hexagonal"}}, r"chunk grid, found"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 2]}}}, r"at least 1, found \[0, 2\]"),
        (
            {"chunk_key_encoding": {"name": "x"}},
            r"\$.chunk_key_encoding: the chunk key encoding must be 'default' or 'v2'",
        ),
        ({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "-"}}}, r"'/' or '.', found '-'"),
        ({"fill_value": "x"}, r"\$.fill_value: fill value 'x' does not fit data type int32"),
        ({"fill_value": 2**40}, r"does not fit data type int32"),
        ({"fill_value": 1.5}, r"expected an integer"),
        ({"data_type": "string", "fill_value": None, "codecs": ["vlen-utf8"]}, r"does not fit"),
        ({"codecs": []}, r"exactly one array -> bytes codec"),
        ({"codecs": "bytes"}, r"expected a list of codecs"),
        ({"attributes": []}, r"\$.attributes: expected an object"),
        ({"dimension_names": ["a"]}, r"\$.dimension_names: expected 2 names or nulls"),
        ({"storage_transformers": [{"name": "x"}]}, r"unknown storage transformer"),
        ({"surprise": 1}, r"\$.surprise: unknown member"),
        ({"data_type": "r17179869184"}, r"at most 536870912"),
        (
            {"codecs": [{"name": "bytes", "configuration": {"endian": "little", "stored": ">i4"}}]},
            r"unknown member 'stored'",
        ),
        ({"codecs": [{"name": "transpose", "configuration": {"order": [1.0, 0.0]}}, "bytes"]}, r"permutation"),
        ({"surprise": {"must_understand": True}}, r"\$.surprise: unknown member"),
    ],
)
def test_bad_v3_documents(change, message):
    with pytest.raises(MetadataError, match=message) as error:
        opened({**ARRAY3, **change})
    assert error.value.problems
    assert all(problem.key == "zarr.json" for problem in error.value.problems)


@pytest.mark.parametrize("member", [m for m in ARRAY3 if m not in ("zarr_format", "node_type")])
def test_missing_v3_members(member):
    with pytest.raises(MetadataError, match=rf"\$.{member}: this required member is missing"):
        opened({name: value for name, value in ARRAY3.items() if name != member})


def test_every_problem_is_named():
    with pytest.raises(MetadataError) as error:
        opened({**ARRAY3, "shape": [-1, 4], "data_type": "x", "dimension_names": 3})
    assert [problem.location for problem in error.value.problems] == ["$.shape", "$.dimension_names", "$.data_type"]
    assert str(error.value).count("\n") == 3


def test_optional_extensions_are_ignored():
    found = opened({**ARRAY3, "extra": {"must_understand": False, "x": 1}})
    assert found.shape == (4, 4)
    group = opened({"zarr_format": 3, "node_type": "group", "consolidated_metadata": None})
    assert isinstance(group, sync.Group)
    bare = opened({**ARRAY3, "chunk_key_encoding": "default", "codecs": ["bytes"], "data_type": "int8"})
    assert bare[...].shape == (4, 4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON: an empty document"),
        (b"{", "not valid JSON: .* at line 1 column 2"),
        (b"[1]", "expected a JSON object, found list"),
        (b'{"a": ' + b"1" * 5000 + b"}", "unsupported JSON"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b'{"a": ' + b"[" * 100_000 + b"}", "nested too deeply|not valid JSON"),
        (json.dumps(ARRAY3).replace('"data_type": "int32"', '"data_type": NaN').encode(), "the token nan is not JSON"),
    ],
)
def test_broken_json(data, message):
    with pytest.raises(MetadataError, match=message):
        opened(data)
    for key in (".zarray", ".zgroup"):
        if data:
            with pytest.raises(MetadataError):
                opened(data, key)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("key", ["zarr.json", ".zarray"])
def test_tokens_are_tolerated_as_fill_values(key, token):
    """Early releases of zarr-python 3 wrote them; a changed document has strings."""
    document = {**ARRAY3, "data_type": "float32"} if key == "zarr.json" else {**ARRAY2, "dtype": "<f4"}
    store = {
        key: json.dumps({**document, "fill_value": 0}).replace('"fill_value": 0', f'"fill_value": {token}').encode()
    }
    array = sync.open_array(store, mode="r+")
    np.testing.assert_array_equal(array[0, 0], np.float32(token.replace("Infinity", "inf")))
    assert any("not JSON" in str(issue) for issue in sync.validate(store).findings)
    array.resize((5, 5))
    assert f'"fill_value": "{token}"' in store[key].decode()
    assert sync.validate(store).ok
    with pytest.raises(MetadataError, match="does not fit"):
        opened({**ARRAY3, "fill_value": float("nan")})


def test_tokens_are_tolerated_in_attributes():
    text = json.dumps({**ARRAY3, "attributes": {"a": 1}}).replace('"a": 1', '"a": NaN, "b": [-Infinity]')
    found = opened(text.encode())
    assert np.isnan(found.attrs["a"])
    assert found.attrs["b"] == [-np.inf]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zarr_format": 3}, r".zarray: \$.zarr_format: expected 2, found 3"),
        ({"shape": None}, r"\$.shape"),
        ({"chunks": [0, 2]}, r"\$.chunks"),
        ({"chunks": [2]}, r"one size for each axis"),
        ({"dtype": "int32"}, r"\$.dtype: 'int32' is not a NumPy data type: it must start with the byte order"),
        ({"dtype": "<q9"}, r"\$.dtype"),
        ({"dtype": "|O"}, r"the first filter of an object array must be one of vlen-utf8, vlen-bytes"),
        ({"dtype": [["a"]]}, r"a field must be \[name, type\]"),
        ({"order": "K"}, r"\$.order: expected 'C' or 'F', found 'K'"),
        ({"dimension_separator": "-"}, r"\$.dimension_separator"),
        ({"filters": {}}, None),
        ({"filters": [3]}, r"\$.filters"),
        ({"compressor": "zlib"}, r"\$.compressor: expected a codec configuration or null"),
        ({"compressor": {"id": "zlib", "nosuch": 1}}, r"\$.compressor"),
        ({"compressor": {"level": 1}}, r"needs an 'id'"),
        ({"compressor": {}}, r"\$.compressor: expected a codec configuration or null"),
        ({"dtype": "|S2000000000"}, r"more than the maximum 67,108,864"),
        ({"dtype": "|O", "filters": [{"id": []}]}, r"the first filter of an object array must be one of"),
        ({"dtype": [["a", "|O", [2]]]}, r"\$.dtype"),
        ({"filters": [{"id": "delta", "dtype": "zz"}]}, r"\$.filters"),
        ({"fill_value": "x"}, r"\$.fill_value: 'x' does not fit dtype '<i4'"),
        ({"fill_value": 2**40}, r"\$.fill_value"),
    ],
)
def test_bad_v2_documents(change, message):
    if message is None:
        assert opened({**ARRAY2, **change}, ".zarray").shape == (4, 4)
        return
    with pytest.raises(MetadataError, match=message):
        opened({**ARRAY2, **change}, ".zarray")


@pytest.mark.parametrize("member", [m for m in ARRAY2 if m not in ("zarr_format", "filters")])
def test_missing_v2_members(member):
    with pytest.raises(MetadataError, match=rf"\$.{member}: this required member is missing"):
        opened({name: value for name, value in ARRAY2.items() if name != member}, ".zarray")


@pytest.mark.parametrize(
    ("key", "document", "location"),
    [
        (".zarray", {name: value for name, value in ARRAY2.items() if name != "filters"}, "$.filters"),
        ("zarr.json", {**ARRAY3, "attributes": None}, "$.attributes"),
        ("zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": None}, "$.attributes"),
    ],
)
async def test_tolerated_documents(api, key, document, location):
    """zarr-python reads them as well."""
    store = {key: json.dumps(document).encode()}
    assert not (await api(api.open(store))).attrs
    (finding,) = (await api(api.validate(store))).findings
    assert (finding.severity, finding.location, finding.key) == ("warning", location, key)


def test_unknown_v2_codec():
    with pytest.raises(UnknownCodecError, match=r".zarray: \$.compressor: unknown codec 'nosuch'") as error:
        opened({**ARRAY2, "compressor": {"id": "nosuch"}}, ".zarray")
    assert error.value.codec == "nosuch"


def test_an_undefined_fill_value_stays_undefined():
    found = opened({**ARRAY2, "fill_value": None}, ".zarray")
    assert found.fill_value is None
    assert (found[...] == 0).all()


def test_both_formats_at_one_path():
    values = {"zarr.json": json.dumps(ARRAY3).encode(), ".zarray": json.dumps({**ARRAY2, "shape": [2, 2]}).encode()}
    with pytest.warns(UserWarning, match="Zarr formats 3 and 2; format 3 is used"):
        assert sync.open_array(values).shape == (4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sync.open_array(values, zarr_format=2).shape == (2, 2)


def test_limits():
    with pytest.raises(MetadataError, match=r"config.max_document_bytes is 100"):
        sync.open({"zarr.json": b" " * 101}, config={"max_document_bytes": 100})
    a = sync.create_array({}, shape=(100,), config={"max_chunk_bytes": 100, "max_read_bytes": 200}, chunks=20)
    with pytest.raises(MetadataError, match=r"a chunk decodes to 160 bytes, more than config.max_chunk_bytes = 100"):
        a[0]
    with pytest.raises(errors.SelectionError, match=r"has 800 bytes, more than config.max_read_bytes = 200"):
        a[...]


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("f4", np.float32(0.1), 0.10000000149011612),
        ("f8", np.nan, "NaN"),
        ("f8", -np.inf, "-Infinity"),
        ("f2", np.float16("nan"), "NaN"),
        ("f4", np.array([0x7FC00001], "u4").view("f4")[0], "0x7fc00001"),
        ("c8", np.complex64(complex(1, np.inf)), [1.0, "Infinity"]),
        ("r16", np.void(b"ab"), [97, 98]),
        ("?", True, True),
        ("M8[s]", np.datetime64("NaT", "s"), "NaT"),
        ("S4", b"ab", "YWI="),
    ],
)
def test_fill_values_are_exact(dtype, value, text):
    data_type = dtypes.from_numpy(dtype)
    scalar = fill_values.as_fill(data_type, value)
    assert fill_values.fill_to_json(data_type, scalar) == text
    back = fill_values.fill_from_json(data_type, json.loads(json.dumps(text)))
    assert np.asarray(back, data_type.numpy).tobytes() == np.asarray(scalar, data_type.numpy).tobytes()


def test_keys_and_paths():
    assert [ChunkKeyEncoding().encode(c) for c in ((), (1,), (2, 3))] == ["c", "c/1", "c/2/3"]
    assert [ChunkKeyEncoding("default", ".").encode(c) for c in ((), (1,), (2, 3))] == ["c", "c.1", "c.2.3"]
    assert [ChunkKeyEncoding("v2", ".").encode(c) for c in ((), (1,), (2, 3))] == ["0", "1", "2.3"]
    assert normalize_path("/a//b\\c/") == "a/b/c"
    assert join("", "a", "", "b") == "a/b"


# ------------------------------------------------------------------ errors and settings


def test_errors_pickle():
    for error in (
        errors.NodeNotFoundError("m", path="p", store="s", tried=["a"]),
        errors.MetadataError("m", problems=[errors.Problem("k", "$", "m")]),
        errors.CodecError("m", codec="c", direction="encode", key="k"),
        errors.SelectionError("m", shape=(1, 2)),
        errors.MissingChunkError("m", keys=["k"], count=1),
        errors.StoreError("m", key="k", attempts=3),
        errors.WriteConflictError("m", key="k"),
        errors.UnsupportedByFormat("m", zarr_format=2, feature="f"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert str(back) == str(error) == "m"
        assert vars(back) == vars(error)
        assert isinstance(back, za.ZarrError)
    assert isinstance(NodeTypeError("m"), TypeError)


def test_settings(monkeypatch):
    from zarrasync import config

    with config.set(concurrency=3) as inner:
        assert config.get() is inner
        assert config.get().concurrency == 3
        a = sync.create_array({}, shape=3, config={"threads": 1})
        assert (a.config.concurrency, a.config.threads) == (3, 1)
    assert config.get().concurrency != 3
    with config.set(zarr_format=2):
        assert sync.create_array({}, shape=3).zarr_format == 2
    with pytest.raises(TypeError, match="unknown setting 'nosuch'; the settings are zarr_format"), config.set(nosuch=1):
        pass
    with pytest.warns(UserWarning, match="no effect without a with block"):
        config.set(threads=2)
    for wrong in (1.5, "2", True):
        with pytest.raises(TypeError, match="config threads must have type int, found"):
            config.set(threads=wrong)
    with pytest.warns(UserWarning, match="ZARRASYNC_THREAD is not a setting; did you mean ZARRASYNC_THREADS"):
        config._read_environment({"ZARRASYNC_THREAD": "2"})
    for wrong in (
        {"request_timeout": -1},
        {"total_timeout": float("inf")},
        {"request_timeout": float("nan")},
        {"retries": -1},
    ):
        with (
            pytest.raises(ValueError, match=f"config {next(iter(wrong))} must be finite and at least 0"),
            config.set(**wrong),
        ):
            pass
    with pytest.raises(ValueError, match="memory_budget must be at least 1"):
        za.Config(memory_budget=0)
    read = config._read_environment
    found = read({"ZARRASYNC_THREADS": "3", "ZARRASYNC_FSYNC": "true", "ZARRASYNC_DTYPE_FALLBACK": "error"})
    assert (found.threads, found.fsync, found.dtype_fallback) == (3, True, "error")
    assert read({"ZARRASYNC_TOTAL_TIMEOUT": "2.5", "ZARRASYNC_REQUEST_TIMEOUT": "3"}).total_timeout == 2.5
    with pytest.raises(ValueError, match="ZARRASYNC_THREADS='x' is not a valid int"):
        read({"ZARRASYNC_THREADS": "x"})
    with pytest.raises(ValueError, match="ZARRASYNC_TOTAL_TIMEOUT='x' is not a valid float"):
        read({"ZARRASYNC_TOTAL_TIMEOUT": "x"})


# ------------------------------------------------------------------ documents that are alike


def test_documents_that_are_alike_are_parsed_once(tmp_path):
    for name in ("a", "b"):
        sync.create_array(tmp_path / name, shape=(6, 8), chunks=(3, 4), dtype="f4", attributes={"x": [1, {"y": 2}]})
    first, second = sync.open_array(tmp_path / "a"), sync.open_array(tmp_path, path="b")
    assert second.metadata.codecs is first.metadata.codecs
    assert second.metadata == first.metadata
    assert list(first.metadata.source.documents) == ["zarr.json"]
    assert list(second.metadata.source.documents) == ["b/zarr.json"]
    second.metadata.source.documents["b/zarr.json"]["shape"].append(3)
    third = sync.open_array(tmp_path / "b", mode="r+")
    assert third.metadata.source.documents == {"zarr.json": first.metadata.source.documents["zarr.json"]}


def test_stateful_metadata_is_not_shared(tmp_path):
    class Named:
        name = "tests.named"

        def __init__(self, options):
            self.options = options

        def configuration(self):
            return self.options

        def wrap(self, store):
            return store

    za.register_storage_transformer("tests.named", Named)
    chunks = {"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[1, 3], 2]}}}
    packed = {"name": "numcodecs.zlib", "configuration": {"level": 1}}
    for change in (
        {"storage_transformers": [{"name": "tests.named", "configuration": {"x": 1}}]},
        {"codecs": [*ARRAY3["codecs"], packed]},
        chunks,
    ):
        one, other = opened(ARRAY3 | change), opened(ARRAY3 | change)
        assert one.metadata.codecs is not other.metadata.codecs
        assert all(a is not b for a, b in zip(one.metadata.transformers, other.metadata.transformers, strict=True))


def test_few_documents_are_remembered():
    for number in range(300):
        opened(ARRAY3 | {"attributes": {"number": number}})
    assert len(formats.parsed_cache._nodes) <= 256
    large = ARRAY3 | {"attributes": {"text": "x" * (1 << 14)}}
    assert opened(large).metadata.codecs is not opened(large).metadata.codecs


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_that_are_alike_have_nothing_in_common(tmp_path, zarr_format):
    for name in ("a", "b"):
        sync.create_array(
            tmp_path / name, shape=(4,), chunks=(2,), dtype="i4", zarr_format=zarr_format, attributes={"x": 1}
        )
    first, second, again = (sync.open_array(tmp_path / name, mode="r+") for name in ("a", "b", "a"))
    first.attrs["x"] = 2  # each has the version of its own document
    second.attrs["x"] = 3
    first.resize((6,))
    assert again.attrs["x"] == 1
    assert [dict(sync.open_array(tmp_path / name).attrs) for name in ("a", "b")] == [{"x": 2}, {"x": 3}]
    assert (sync.open_array(tmp_path / "a").shape, sync.open_array(tmp_path / "b").shape) == ((6,), (4,))


def test_errors_name_the_document_that_is_wrong():
    wrong = json.dumps(ARRAY3 | {"shape": "x"}).encode()
    for path in ("a", "b/c"):
        with pytest.raises(MetadataError, match=rf"^invalid metadata in MemoryStore.*: {path}/zarr.json: \$.shape"):
            sync.open({f"{path}/zarr.json": wrong}, path=path)


def test_registrations_take_effect_at_once():
    @dataclass(frozen=True)
    class Twice(za.codecs.ArrayArrayCodec):
        name = "tests.twice"

        def encode(self, array, spec):
            return array * 2

        def decode(self, array, spec):
            return array // 2

    unknown = {"name": "tests.twice", "must_understand": False}
    document = json.dumps(ARRAY3 | {"codecs": [unknown, *ARRAY3["codecs"]]}).encode()
    store = {"zarr.json": document, "c/0/0": np.full((2, 2), 6, "<i4").tobytes()}
    assert sync.open_array(store)[0, 0] == 6
    za.codecs.register(Twice)
    assert sync.open_array(store)[0, 0] == 3


def test_a_fill_value_is_the_arrays_own():
    array = sync.create_array({}, shape=(2,), dtype=[("a", "i4"), ("b", "f4")], fill_value=(1, 2.0))
    array.fill_value["a"] = 9
    assert array.fill_value["a"] == array[0]["a"] == 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_that_differ_in_shape_and_attributes_share_the_rest(zarr_format: int):
    store: dict[str, bytes] = {}
    names = [f"a{number}" for number in range(1, 4)]
    for number, name in enumerate(names, 1):
        options: dict[str, Any] = {"shape": (number, 7), "attributes": {"number": number}, "fill_value": 3}
        sync.create_array(store, name=name, chunks=(2, 3), dtype="i2", zarr_format=zarr_format, **options)
    arrays = [sync.open_array(store, path=name, mode="r+") for name in names]
    assert len({id(array.metadata.chain) for array in arrays}) == 1
    assert [(array.shape, array.attrs["number"]) for array in arrays] == [((n, 7), n) for n in (1, 2, 3)]
    arrays[2][...] = np.arange(21).reshape(3, 7)
    assert arrays[2][2].tolist() == list(range(14, 21))
    assert arrays[1][...].tolist() == [[3] * 7] * 2
    arrays[1].resize((5, 7))
    assert [array.shape for array in arrays] == [(1, 7), (5, 7), (3, 7)]
    assert pickle.loads(pickle.dumps(arrays[2].metadata)) == arrays[2].metadata


def test_arrays_that_differ_in_shape_are_checked_all_the_same():
    empty = ARRAY3 | {"shape": [0, 4], "attributes": {"similar": True}}
    empty["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [0, 2]}}
    assert opened(empty).chunks == (1, 2)
    with pytest.raises(MetadataError, match="chunk_shape"):
        opened(empty | {"shape": [4, 0]})  # only a chunk along an empty axis may have the size 0
    for shape in ([3, "4"], [3, -1], [3.0, 4], [True, 4], [0, 4, 4]):
        with pytest.raises(MetadataError, match="shape"):
            opened(empty | {"shape": shape})
    with pytest.raises(MetadataError, match="attributes"):
        opened(empty | {"attributes": []})
