"""Data types that NumPy does not have: small integers and floats, their limits and fill values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.codec_documents import LITTLE, entry
from zarrasync import sync
from zarrasync.errors import CodecError, MetadataError, UnsupportedByFormat
from zarrasync.model import dtypes, fill_values

ml_dtypes = pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize(
    ("name", "fill", "stored"),
    [
        ("bfloat16", 1.0, "803f"),
        ("bfloat16", "NaN", "c07f"),
        ("bfloat16", "0x7fc1", "c17f"),
        ("float8_e4m3", "0x7c", "7c"),
        ("float8_e4m3", 1.5, "3c"),
        ("float8_e5m2", "Infinity", "7c"),
        ("float8_e3m4", "NaN", "78"),
        ("float8_e8m0fnu", 1.0, "7f"),
        ("float8_e8m0fnu", "NaN", "ff"),
        ("float8_e4m3fnuz", "NaN", "80"),
        ("float6_e2m3fn", 1.5, "0c"),
        ("float4_e2m1fn", "0x0f", "0f"),
        ("int4", -8, "f8"),
        ("uint2", 3, "03"),
        ("complex_bfloat16", [1, "NaN"], "803fc07f"),
        ("complex_float4_e2m1fn", [1, 2], "0204"),
        ("complex_float16", [1.0, -2.0], "003c00c0"),
        ("complex_float32", [1.0, -2.0], "0000803f000000c0"),
    ],
)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_small_numbers(api: Api, name: str, fill: Any, stored: str):
    """The fill value of the document corresponds to these bytes, in both directions."""
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [3], "data_type": name, "fill_value": fill,
        "chunk_grid": entry("regular", chunk_shape=[2]), "chunk_key_encoding": entry("default"),
        "codecs": [LITTLE],
    }  # fmt: skip
    store: dict[str, bytes] = {"zarr.json": json.dumps(document).encode(), "c/0": bytes.fromhex(stored) * 2}
    array = await api(api.open_array(store, mode="r+", config={"write_empty_chunks": True}))
    values = await api(array.get_basic_selection())
    assert values[2:].tobytes() == values[:1].tobytes(), "what is absent is what is stored"
    await api.write(array, 2, values[0])
    assert store["c/1"] == bytes.fromhex(stored) * 2
    again: dict[str, bytes] = {}
    await api(api.create_array(again, shape=3, dtype=name, chunks=2, fill_value=array.fill_value))
    made = json.loads(again["zarr.json"])
    assert made["data_type"] == name
    data_type = dtypes.from_numpy(name)
    assert fill_values.fill_from_json(data_type, made["fill_value"]).tobytes().hex() == stored


@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("float4_e2m1fn", "NaN"),
        ("float6_e3m2fn", "Infinity"),
        ("float8_e4m3fnuz", "Infinity"),
        ("int4", 8),
        ("int2", -3),
        ("uint4", -1),
        ("bfloat16", "0x7fc"),
        ("complex_bfloat16", 1),
    ],
)
def test_small_numbers_have_limits(name: str, fill: Any):
    with pytest.raises(MetadataError, match="does not fit data type"):
        fill_values.fill_from_json(dtypes.from_numpy(name), fill)


async def test_upper_bits_of_small_integers_mean_nothing(api: Api):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, shape=4, dtype="int4", compressors=None))
    store["c/0"] = bytes([0x08, 0xF8, 0x77, 0x1F])
    array = await api(api.open_array(store, mode="r+"))
    assert (await api(array.get_basic_selection())).tolist() == [-8, -8, 7, -1]
    with pytest.raises(CodecError, match="values must be from -8 to 7, found -1 to 8"):
        await api.write(array, np.s_[:2], np.array([3, 8]))


def test_a_fill_value_is_kept_or_refused():
    for name, value in (("float4_e2m1fn", np.nan), ("float4_e2m1fn", np.inf), ("float8_e8m0fnu", np.inf), ("float8_e4m3fnuz", -np.inf),
                        ("float32", 1e300), ("float8_e4m3", 1e5)):  # fmt: skip
        with pytest.raises(MetadataError, match="the data type cannot represent"):
            sync.create_array({}, shape=1, dtype=name, fill_value=value)
    store: dict[str, bytes] = {}
    sync.create_array(store, shape=1, dtype="float8_e8m0fnu", fill_value=2.0)
    assert json.loads(store["zarr.json"])["fill_value"] == "0x80"
    sync.create_array(store, shape=1, dtype="S6", fill_value=b"ab", overwrite=True)
    assert json.loads(store["zarr.json"])["fill_value"] == "YWI="
    with pytest.raises(MetadataError, match="snappy"):
        sync.create_array({}, shape=1, compressors=[entry("blosc", cname="snappy", clevel=5, shuffle="shuffle")])
    assert dtypes.from_json(entry("numpy.datetime64", unit="\u03bcs", scale_factor=1)).numpy == np.dtype("M8[us]")


def test_numpy_dtypes_of_small_numbers():
    assert dtypes.from_numpy(ml_dtypes.bfloat16).name == "bfloat16"
    assert dtypes.from_numpy(ml_dtypes.int4).numpy == np.int8
    a = sync.create_array({}, data=np.array([1.5, -2], ml_dtypes.float8_e5m2))
    assert a.dtype == ml_dtypes.float8_e5m2
    assert a[...].astype("f4").tolist() == [1.5, -2]
    for zarr_format in (2, "3-draft", "3-draft-2022"):
        for name in ("bfloat16", "int4", "complex_float16"):
            with pytest.raises(UnsupportedByFormat, match=name):
                sync.create_array({}, shape=2, dtype=name, zarr_format=zarr_format)


async def test_structs_of_small_numbers(api: Api):
    fields = [("a", "int2"), ("b", "uint4"), ("z", "complex_bfloat16"), ("f", "float32")]
    inner = {"name": "struct", "configuration": {"fields": [{"name": "i", "data_type": "int4"}]}}
    listed = [{"name": name, "data_type": kind} for name, kind in (*fields, ("s", inner))]
    fill = {"a": -2, "b": 15, "z": [1.0, "NaN"], "f": 0.5, "s": {"i": -8}}
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [2, 3], "fill_value": fill, "attributes": {},
        "data_type": {"name": "struct", "configuration": {"fields": listed}},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
    }  # fmt: skip
    values = {"zarr.json": json.dumps(document).encode()}
    array = await api(api.open_array(values, mode="r+"))
    assert array.metadata.dtype.numpy.names == ("a", "b", "z", "f", "s")
    absent = await api(array.view[0, 0].read())
    assert (absent["a"], absent["b"], absent["f"], absent["s"]["i"]) == (-2, 15, 0.5, -8)
    assert (absent["z"]["real"], np.isnan(absent["z"]["imag"])) == (1, True)

    data = np.zeros((2, 3), array.dtype)
    data["a"], data["b"], data["f"] = [[-2, -1, 0], [1, 0, -1]], 9, np.arange(6).reshape(2, 3)
    data["z"]["real"], data["s"]["i"] = 3, [[-8, 7, 0], [1, 2, -3]]
    await api.write(array.view if api.name == "async" else array, ..., data)
    stored = values["c/0/0"]
    assert len(stored) == 6 * 11
    assert stored[5] == 0  # and the number after it begins with its most significant byte
    assert stored[11 + 6 : 11 + 10] == np.array(1, ">f4").tobytes()
    garbage = bytearray(stored)
    for element in range(6):
        for at, kept in ((0, 0b11), (1, 0b1111), (10, 0b1111)):
            garbage[11 * element + at] = garbage[11 * element + at] & kept | (0b10100000 & ~kept)
    values["c/0/0"] = bytes(garbage)
    again = await api(api.open_array(values))
    np.testing.assert_array_equal(await api(again.view[...].read()), data)
    np.testing.assert_array_equal(await api(again.view[1, ::2].read()), data[1, ::2])

    data["s"]["i"][1, 1] = 8
    with pytest.raises(CodecError, match="from -8 to 7"):
        await api.write(array.view if api.name == "async" else array, ..., data)
    copied: dict[str, bytes] = {}
    await api(api.copy(values, copied, chunks=(1, 3), progress=False))
    made = json.loads(copied["zarr.json"])
    assert made["data_type"] == document["data_type"]
    assert made["fill_value"] == fill
    found = await api(api.open_array(copied))
    np.testing.assert_array_equal((await api(found.view[...].read()))["s"]["i"], [[-8, 7, 0], [1, 2, -3]])
