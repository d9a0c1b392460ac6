"""Registered data types, codecs and chunk grids of format 3, against the vectors of their texts and of other readers."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.api import Api
from zarrasync import codecs, stores, sync
from zarrasync.codecs import ArraySpec, parse_codecs
from zarrasync.errors import CodecError, MetadataError, ShapeError, UnknownCodecError, UnsupportedByFormat
from zarrasync.model import dtypes, fill_values

ml_dtypes = pytest.importorskip("ml_dtypes")


def bound(data_type: Any, shape: tuple[int, ...], *entries: Any, fill: Any = None) -> Any:
    """Codecs bound to a chunk."""
    found = dtypes.from_numpy(data_type)
    value = found.default_fill() if fill is None else fill_values.fill_from_json(found, fill)
    spec = ArraySpec(shape, found, value)
    return parse_codecs([*entries]).settle(spec).bind(spec)


def entry(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def both_ways(chain: Any, values: np.ndarray, encoded: str) -> None:
    assert bytes(chain.encode(values)).hex() == encoded
    found = chain.decode(bytes.fromhex(encoded))
    assert found.shape == values.shape
    np.testing.assert_array_equal(np.asarray(found).astype(values.dtype), values)


LITTLE, BIG = entry("bytes", endian="little"), entry("bytes", endian="big")

# ------------------------------------------------------------------ data types


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
async def test_small_numbers(api: Api, name: str, fill: Any, stored: str):
    """The fill value, as documents have it, becomes these bytes, and the other way round."""
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
    with pytest.raises(CodecError, match="values are from -8 to 7, found -1 to 8"):
        await api.write(array, np.s_[:2], np.array([3, 8]))


def test_a_fill_value_is_kept_or_refused():
    for name, value in (("float4_e2m1fn", np.nan), ("float4_e2m1fn", np.inf), ("float8_e8m0fnu", np.inf), ("float8_e4m3fnuz", -np.inf),
                        ("float32", 1e300), ("float8_e4m3", 1e5)):  # fmt: skip
        with pytest.raises(MetadataError, match="the type has no"):
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


# ------------------------------------------------------------------ packbits


BOOLS = np.array([1, 0, 0, 1, 0, 1, 1, 0, 1, 1], bool)


@pytest.mark.parametrize(
    ("data_type", "values", "options", "encoded"),
    [
        ("bool", BOOLS, {}, "6903"),
        ("bool", BOOLS, {"padding_encoding": "first_byte"}, "066903"),
        ("bool", BOOLS, {"padding_encoding": "last_byte"}, "690306"),
        ("bool", BOOLS[:8], {"padding_encoding": "first_byte"}, "0069"),
        ("int4", [-8, -1, 0, 7, 3], {}, "f87003"),
        ("uint4", [0, 1, 2, 15, 9], {"padding_encoding": "last_byte"}, "10f20904"),
        ("int2", [-2, -1, 0, 1, 1], {}, "4e01"),
        ("uint2", [0, 1, 2, 3, 1], {}, "e401"),
        ("float4_e2m1fn", [0.5, -6, 1.5, 0, -0.0], {}, "f10308"),
        ("float6_e2m3fn", [0.125, -7.5, 1.5, 1, -0.0], {}, "c1cf2020"),
        ("float6_e3m2fn", [0.0625, -28, 1.5, 1, -0.0], {}, "c1ef3020"),
        ("int16", [-12, -8, -4, 0, 4, 8], {"first_bit": 2, "last_bit": 10}, "fdfdff07104000"),
        ("complex64", [1 + 2j, -1j], {"first_bit": 16}, "803f0040008080bf"),
    ],
)
def test_packbits(data_type: str, values: Any, options: dict[str, Any], encoded: str):
    array = np.array(values, dtypes.from_numpy(data_type).numpy)
    both_ways(bound(data_type, array.shape, entry("packbits", **options)), array, encoded)


def test_packbits_is_strict():
    chain = bound("bool", (10,), entry("packbits", padding_encoding="first_byte"))
    for wrong in ("076903", "6903", "06690300", ""):
        with pytest.raises(CodecError):
            chain.decode(bytes.fromhex(wrong))
    for options in ({"first_bit": 9}, {"first_bit": 3, "last_bit": 2}, {"padding_encoding": "start_byte"}, {"x": 1}):
        with pytest.raises(MetadataError):
            bound("uint8", (4,), entry("packbits", **options))


# ------------------------------------------------------------------ bitround, reshape, scale_offset


def test_bitround():
    chain = bound("float32", (8,), entry("bitround", keepbits=3), LITTLE)
    values = np.array([0.1, 1.2, 12.3, 123.4, 1234.5, np.nan, np.inf, -np.inf], "f4")
    want = np.array([0.1015625, 1.25, 12, 120, 1280, np.nan, np.inf, -np.inf], "f4")
    np.testing.assert_array_equal(chain.decode(chain.encode(values)), want)
    small = bound("uint8", (10,), entry("bitround", keepbits=3), "bytes")
    given_ = np.array([0, 1, 10, 11, 100, 123, 200, 208, 209, 255], "u1")
    assert np.asarray(small.decode(small.encode(given_))).tolist() == [0, 1, 10, 12, 96, 128, 192, 192, 224, 224]
    import numcodecs

    floats = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-20, 20).repeat(25)
    for kind in ("f2", "f4", "f8"):
        with np.errstate(over="ignore"):
            own = floats.astype(kind)
        own = own[np.isfinite(own)]
        for keep in (1, 4, 9):
            chain = bound(kind, own.shape, entry("bitround", keepbits=keep), LITTLE)
            theirs = numcodecs.BitRound(keep).encode(own.copy()).view(kind)
            np.testing.assert_array_equal(chain.decode(chain.encode(own)), theirs)
    with pytest.raises(MetadataError):
        bound("bool", (2,), entry("bitround", keepbits=3), "bytes")


@pytest.mark.parametrize(
    ("shape", "made"),
    [
        ([[0, 1], [2], 3], (20, 4, 3)),
        ([[0, 1], [2], -1], (20, 4, 3)),
        ([[0], -1, [3]], (5, 16, 3)),
        ([[0], -1, [2, 3]], (5, 4, 12)),
        ([-1, 2, 2, [3]], (20, 2, 2, 3)),
        ([-1, 2, 2, [4]], None),
        ([2, 2, 2], None),
        ([[1], [0]], None),
        ([[1, 0], 10], None),
        ([[0, 2], 12], None),
        ([-1, -1], None),
        ([240.0], None),
    ],
)
def test_reshape(shape: Any, made: Any):
    given_ = np.arange(240, dtype="i4").reshape(5, 4, 4, 3)
    if made is None:
        with pytest.raises(MetadataError):
            bound("int32", given_.shape, entry("reshape", shape=shape), LITTLE)
        return
    chain = bound(
        "int32",
        given_.shape,
        entry("reshape", shape=shape),
        entry("transpose", order=list(range(len(made)))[::-1]),
        LITTLE,
    )
    data = chain.encode(given_)
    assert bytes(data) == given_.reshape(made).T.tobytes()
    np.testing.assert_array_equal(chain.decode(data), given_)


def test_scale_offset():
    both_ways(
        bound("float32", (3,), entry("scale_offset", offset=5, scale=0.1), BIG, fill=5),
        np.array([5, 5.5, 15], "f4"),
        "000000003d4ccccd3f800000",
    )
    both_ways(
        bound("uint16", (2,), entry("scale_offset", offset=1000), BIG, fill=1000),
        np.array([1000, 1255], "u2"),
        "000000ff",
    )
    chain = bound(
        "float64",
        (6,),
        entry("scale_offset", offset=-10, scale=0.1),
        entry("cast_value", data_type="uint8", scalar_map={"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}),
        "bytes",
        fill="NaN",
    )
    encoded = chain.encode(np.array([0, 2540, np.nan, 1270, 5, 12]))
    assert bytes(encoded) == bytes([1, 255, 0, 128, 2, 2])
    assert np.isnan(chain.decode(encoded)[2])
    for data_type, options, values in (
        ("uint16", {"offset": 1000}, None),  # the fill value 0 has no room
        ("int8", {"scale": 2}, [64]),
        ("uint8", {"offset": 100, "scale": 1}, [50]),
        ("int8", {"scale": 0}, None),
        ("int8", {"scale": 1.5}, None),
        ("bool", {}, None),
        ("float32", {"offset": None}, None),
        ("float32", {"other": 1}, None),
    ):
        with pytest.raises((MetadataError, CodecError)):
            chain = bound(data_type, (1,), entry("scale_offset", **options), "bytes" if "8" in data_type else LITTLE)
            chain.encode(np.array(values, data_type))
    with pytest.raises(CodecError, match="no multiple"):
        bound("int8", (1,), entry("scale_offset", scale=2), "bytes").decode(b"\x03")


# ------------------------------------------------------------------ cast_value


def cast(source: str, target: str, values: Any, *, decode: bool = False, fill: Any = None, **options: Any) -> list[Any]:
    if "8" not in target:
        stored = LITTLE
    else:
        stored = "bytes"
    chain = bound(source, (len(values),), entry("cast_value", data_type=target, **options), stored, fill=fill)
    data = chain.encode(np.array(values, dtypes.from_numpy(source).numpy))
    return np.frombuffer(bytes(data), dtypes.from_numpy(target).numpy).tolist()


HALVES = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.3, -0.3, 0.7, -0.7]


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [
        ("nearest-even", [0, 2, 2, 0, -2, -2, 0, 0, 1, -1]),
        ("towards-zero", [0, 1, 2, 0, -1, -2, 0, 0, 0, 0]),
        ("towards-positive", [1, 2, 3, 0, -1, -2, 1, 0, 1, 0]),
        ("towards-negative", [0, 1, 2, -1, -2, -3, 0, -1, 0, -1]),
        ("nearest-away", [1, 2, 3, -1, -2, -3, 0, 0, 1, -1]),
    ],
)
def test_cast_value_rounds(rounding: str, wanted: list[int]):
    assert cast("float64", "int8", HALVES, rounding=rounding) == wanted


@pytest.mark.parametrize(
    ("source", "target", "values", "options", "wanted"),
    [
        ("float64", "uint8", [255.4, -0.5], {}, [255, 0]),
        ("float64", "uint8", [255.5], {}, None),
        ("float64", "uint8", [255.5], {"rounding": "towards-zero"}, [255]),
        ("float64", "uint8", [-0.6], {"out_of_range": "clamp"}, [0]),
        ("float64", "uint8", [-0.6], {"out_of_range": "wrap"}, [255]),
        ("float64", "int8", [128, 300, -129, 1e300, 2.0**70], {"out_of_range": "wrap"}, [-128, 44, 127, 0, 0]),
        ("float64", "int8", [128], {"out_of_range": "clamp"}, [127]),
        ("int64", "int16", [32768, 32769, -32769], {"out_of_range": "wrap"}, [-32768, -32767, 32767]),
        ("uint64", "int8", [2**64 - 1], {"out_of_range": "wrap"}, [-1]),
        ("float64", "int64", [2.0**63], {}, None),
        ("float64", "int64", [2.0**63], {"out_of_range": "clamp"}, [2**63 - 1]),
        ("float64", "uint64", [2.0**63], {}, [2**63]),
        ("float64", "uint64", [2.0**64, -1.0], {"out_of_range": "wrap"}, [0, 2**64 - 1]),
        ("float64", "int8", [np.nan], {"out_of_range": "clamp"}, None),
        ("float64", "int8", [np.inf], {"out_of_range": "clamp"}, None),
        ("float64", "float32", [1e300], {}, None),
        ("float64", "float32", [1e300], {"out_of_range": "clamp", "rounding": "towards-zero"}, [np.inf]),
        ("float64", "float32", [3.4028235677973362e38], {}, [3.4028234663852886e38]),
        ("float64", "float32", [3.4028235677973366e38], {}, None),
        ("float64", "float32", [1e-50, -1e-50], {"rounding": "towards-positive"}, [1.401298464324817e-45, -0.0]),
        ("float64", "float32", [1 + 2**-24], {}, [1.0]),
        ("float64", "float32", [1 + 2**-24], {"rounding": "nearest-away"}, [1.0000001192092896]),
        ("int64", "float32", [2**24 + 1], {}, [16777216.0]),
        ("int64", "float32", [2**24 + 1], {"rounding": "nearest-away"}, [16777218.0]),
        ("int32", "float16", [70000], {}, None),
        ("int32", "float16", [70000], {"out_of_range": "clamp"}, [np.inf]),
        ("float64", "float16", [65519.9], {}, [65504.0]),
        ("float64", "float16", [65520], {}, None),
        ("float64", "int8", [np.nan, 1.5, 2.5], {"scalar_map": {"encode": [["NaN", 0], [1.5, 9]]}}, [0, 9, 2]),
        ("float64", "uint8", [1.0], {"scalar_map": {"encode": [[1.0, 2], [1.0, 3]]}}, [2]),
        ("int8", "uint4", [15, 0], {}, [15, 0]),
        ("int8", "uint4", [16], {}, None),
        ("int8", "int4", [9, -9], {"out_of_range": "wrap"}, [-7, 7]),
        ("float32", "float32", [np.nan, -0.0, np.inf], {}, [np.nan, -0.0, np.inf]),
    ],
)
def test_cast_value(source: str, target: str, values: Any, options: dict[str, Any], wanted: Any):
    if wanted is None:
        with pytest.raises(CodecError, match="cast_value can not encode"):
            cast(source, target, values, **options)
        return
    found = cast(source, target, values, **options)
    np.testing.assert_array_equal(found, wanted)
    assert [np.signbit(x) for x in found] == [np.signbit(x) for x in wanted]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_casting_floats_rounds_to_a_neighbour(data: Any):
    """Each way of rounding gives the right one of the two values around, found by search."""
    target = data.draw(st.sampled_from(["float16", "float32", "bfloat16", "float8_e4m3", "float8_e5m2"]))
    dtype = dtypes.from_numpy(target).numpy
    top = float(ml_dtypes.finfo(dtype).max if dtype.type.__module__ == "ml_dtypes" else np.finfo(dtype).max)
    values = np.array(data.draw(st.lists(st.floats(-top, top), min_size=1, max_size=20)))
    with np.errstate(all="ignore"):
        near = values.astype(dtype)
        steps = [near, np.nextafter(near, np.array(-np.inf, dtype)), np.nextafter(near, np.array(np.inf, dtype))]
    around = np.sort(np.clip(np.array([s.astype("f8") for s in steps]), -top, top), axis=0)
    below = np.where(around[1] <= values, np.where(around[2] <= values, around[2], around[1]), around[0])
    above = np.where(around[1] >= values, np.where(around[0] >= values, around[0], around[1]), around[2])
    for rounding, wanted in (
        ("towards-negative", below),
        ("towards-positive", above),
        ("towards-zero", np.where(values < 0, above, below)),
    ):
        found = cast("float64", target, values, rounding=rounding)
        np.testing.assert_array_equal(np.array(found, "f8"), wanted)
    for rounding in ("nearest-even", "nearest-away"):
        found = np.array(cast("float64", target, values, rounding=rounding), "f8")
        assert ((found == below) | (found == above)).all()
        assert (np.abs(found - values) <= np.minimum(values - below, above - values)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"data_type": "float32", "out_of_range": "wrap"},
        {"data_type": "uint8", "rounding": "up"},
        {"data_type": "uint8", "out_of_range": "error"},
        {"data_type": "string"},
        {"data_type": "uint8", "surprise": 1},
        {"data_type": "uint8", "scalar_map": {"other": []}},
        {"data_type": "uint8", "scalar_map": {"encode": [[1, 256]]}},
        {},
    ],
)
def test_cast_value_is_strict(options: dict[str, Any]):
    with pytest.raises(MetadataError):
        bound("float64", (2,), entry("cast_value", **options), "bytes")
    with pytest.raises(MetadataError, match="fill value"):
        bound("float64", (2,), entry("cast_value", data_type="uint8"), "bytes", fill="NaN")


# ------------------------------------------------------------------ zfp, n5_default, conditional


def test_zfp():
    pytest.importorskip("zfpy")
    ramp = np.arange(8, dtype="f4")
    chain = bound("float32", (8,), entry("zfp", mode="reversible"))
    assert bytes(chain.encode(ramp)).hex().startswith("050e5482c43201")
    np.testing.assert_array_equal(chain.decode(bytes.fromhex("050e5482c4320100")), ramp)
    integers = np.array([[1, 2], [3, -4]], "i4")
    np.testing.assert_array_equal(
        bound("int32", (2, 2), entry("zfp", mode="reversible")).decode(
            bytes.fromhex("1f00000081434e044003130000000000")
        ),
        integers,
    )
    smooth = np.sin(np.arange(4096.0) / 50).reshape(16, 16, 16)
    for mode in ({"mode": "fixed_accuracy", "tolerance": 0.01}, {"mode": "fixed_rate", "rate": 16.0},
                 {"mode": "fixed_precision", "precision": 20}):  # fmt: skip
        chain = bound("float64", smooth.shape, entry("zfp", **mode))
        data = chain.encode(smooth)
        assert len(data) < smooth.nbytes / 2
        np.testing.assert_allclose(chain.decode(data), smooth, atol=0.02)
    for kind in ("int8", "uint8", "int16", "uint16"):
        info = np.iinfo(kind)
        values = np.linspace(info.min, info.max, 64).astype(kind).reshape(8, 8)
        chain = bound(kind, (8, 8), entry("zfp", mode="reversible"))
        np.testing.assert_array_equal(chain.decode(chain.encode(values)), values)
    with pytest.raises(MetadataError, match="up to 4 dimensions"):
        bound("float32", (2,) * 5, entry("zfp", mode="reversible"))


def test_n5_default():
    inner = [entry("transpose", order=[1, 0]), BIG]
    chain = bound("int16", (2, 3), entry("n5_default", codecs=inner))
    values = np.array([[1, 2, 3], [4, 5, 6]], "i2")
    both_ways(chain, values, "000000020000000200000003" + "000100040002000500030006")
    cut = bytes.fromhex("000000020000000200000002" + "0001000400020005")
    np.testing.assert_array_equal(chain.decode(cut), [[1, 2, 0], [4, 5, 0]])
    for wrong in (b"", bytes.fromhex("00010002"), cut[:-1], bytes.fromhex("0000000200ffffff00ffffff")):
        with pytest.raises(CodecError):
            chain.decode(wrong)
    with pytest.raises(MetadataError):
        bound("int16", (2, 3), entry("n5_default", codecs=[LITTLE]))


def test_conditional():
    chain = bound("uint8", (1000,), "bytes", entry("conditional", codecs=[entry("gzip", level=5), "crc32c"]))
    zeros, noise = np.zeros(1000, "u1"), np.random.default_rng(1).integers(0, 256, 1000, "u1")
    assert chain.encode(noise)[0] == 0
    assert bytes(chain.encode(noise))[1:] == noise.tobytes()
    assert chain.encode(zeros)[0] == 1
    for values in (zeros, noise):
        np.testing.assert_array_equal(chain.decode(chain.encode(values)), values)
    for wrong in (b"", b"\x04" + noise.tobytes(), b"\x00" + noise.tobytes()[:-1]):
        with pytest.raises(CodecError):
            chain.decode(wrong)


# ------------------------------------------------------------------ rectilinear grids


GRIDS = [
    {"chunks": [[4, 3, 5], [2, 2, 6]]},
    {"chunks": [[4, 3, 5], 4]},
    {"chunks": [[[4, 3]], [2, [4, 2]]]},
    {"chunks": (2, 2), "shards": [[4, 2, 6], [6, 4]]},
]


@pytest.mark.parametrize("options", GRIDS)
async def test_rectilinear_grids(api: Api, options: dict[str, Any]):
    rng, data = np.random.default_rng(1), np.arange(120, dtype="i4").reshape(12, 10)
    store: dict[str, bytes] = {}
    made = await api(api.create_array(store, shape=(12, 10), dtype="i4", **options))
    await api.write(made, np.s_[...], data)
    array = await api(api.open_array(store, mode="r+"))
    assert array.metadata == made.metadata
    np.testing.assert_array_equal(await api(array.get_basic_selection()), data)
    for _ in range(40):
        box = tuple(slice(*sorted(rng.integers(0, n + 1, 2)), int(rng.integers(1, 4))) for n in data.shape)
        np.testing.assert_array_equal(await api(array.get_basic_selection(box)), data[box])
        data[box] = values = rng.integers(0, 99, data[box].shape)
        await api.write(array, box, values)
        points = tuple(rng.integers(0, n, 7) for n in data.shape)
        np.testing.assert_array_equal(await api(array.get_coordinate_selection(points)), data[points])
    first = array.write_chunk_sizes[0]
    corner = await api(array.get_block_selection((1, 0)))
    np.testing.assert_array_equal(corner, data[first[0] : sum(first[:2]), : array.write_chunk_sizes[1][0]])
    await api(array.resize((7, 10)))
    await api(array.resize((25, 12)))
    expected = np.zeros((25, 12), "i4")
    expected[:7, :10] = data[:7]
    again = await api(api.open_array(store))
    np.testing.assert_array_equal(await api(again.get_basic_selection()), expected)


async def test_rectilinear_documents(api: Api):
    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, data=np.array([1, 2, 3, 4, 5, 6], "u1"), chunks=[[1, 2, 5, 4]], fill_value=9,
                                       compressors=None))  # fmt: skip
    assert store["c/2"] == bytes([4, 5, 6, 9, 9])
    assert "c/3" not in store
    assert json.loads(store["zarr.json"])["chunk_grid"] == entry(
        "rectilinear", kind="inline", chunk_shapes=[[1, 2, 5, 4]]
    )
    assert array.read_chunk_sizes == ((1, 2, 3),)
    assert array.chunks == (5,)
    assert "[1, 2, 5, 4]" in str(array.info)
    regular = await api(api.create_array({}, shape=(7, 5), chunks=(3, 2)))
    assert regular.read_chunk_sizes == ((3, 3, 1), (2, 2, 1))
    for wrong in ([[1, 2]], [[0, 6]], [[6], [6]], [["x"]]):
        with pytest.raises(ShapeError):
            await api(api.create_array({}, shape=6, dtype="u1", chunks=wrong))
    with pytest.raises(UnsupportedByFormat, match="different sizes"):
        await api(api.create_array({}, shape=6, dtype="u1", chunks=[[1, 5]], zarr_format=2))
    for grid in ({"kind": "inline"}, {"kind": "other", "chunk_shapes": [6]}, {"kind": "inline", "chunk_shapes": [[3, [2, 0]]]},
                 {"kind": "inline", "chunk_shapes": [[[1, 10**12]]]}, {"kind": "inline", "chunk_shapes": [[3]]}):  # fmt: skip
        document = json.loads(store["zarr.json"]) | {"chunk_grid": {"name": "rectilinear", "configuration": grid}}
        with pytest.raises((MetadataError, ShapeError)):
            await api(api.open_array({"zarr.json": json.dumps(document).encode()}))


def test_rectilinear_grids_of_zarr_python(tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3.4")
    data = np.arange(120, dtype="i4").reshape(12, 10)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        theirs = zarr.create_array(tmp_path / "theirs", shape=data.shape, dtype="i4", chunks=[[4, 3, 5], [2, 2, 6]])
        theirs[...] = data
        np.testing.assert_array_equal(sync.open_array(tmp_path / "theirs")[...], data)
        sync.create_array(tmp_path / "ours", data=data, chunks=[[4, 3, 5], [2, 2, 6]])
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours")[...], data)


# ------------------------------------------------------------------ extensions of others


@dataclass(frozen=True)
class Xor(codecs.BytesBytesCodec):
    """Turns bits around."""

    name = "test.xor"
    mask: int = 255

    def configuration(self) -> dict[str, Any]:
        return {"mask": self.mask}

    def encoded_size(self, size: int) -> int:
        return size

    def encode(self, data: Any) -> bytes:
        return bytes(byte ^ self.mask for byte in bytes(data))

    def decode(self, data: Any, size: int | None, limit: int, out: Any) -> bytes:
        return self.encode(data)


class Upside:
    """A storage transformer that turns keys around."""

    name = "test.upside"

    def __init__(self, options: Any) -> None:
        self.options = dict(options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Upside) and other.options == self.options

    def __hash__(self) -> int:
        return hash(self.name)

    def configuration(self) -> dict[str, Any]:
        return self.options

    def wrap(self, store: stores.Store) -> stores.Store:
        return _Upside(store)


class _Upside(stores.WrapperStore):
    async def fetch(self, requests, *, versions=False):
        return await self.inner.fetch([r._replace(key=r.key[::-1]) for r in requests], versions=versions)

    async def put(self, key, data, *, if_version=None):
        return await self.inner.put(key[::-1], data, if_version=if_version)

    async def list_prefix(self, prefix):
        return [key[::-1] for key in await self.inner.list_prefix("")]


async def test_codecs_of_others(api: Api):
    with pytest.raises(UnknownCodecError, match=r"test\.xor"):
        parse_codecs(["bytes", "test.xor"])
    api.register_codec(Xor)
    try:
        store: dict[str, bytes] = {}
        await api(api.create_array(store, data=np.arange(3, dtype="u1"), compressors=[Xor(3)]))
        assert store["c/0"] == bytes([3, 2, 1])
        assert json.loads(store["zarr.json"])["codecs"][1] == entry("test.xor", mask=3)
        assert (await api(api.load(store))).tolist() == [0, 1, 2]
        with pytest.raises(MetadataError, match="test.xor.*unexpected keyword"):
            parse_codecs(["bytes", entry("test.xor", other=3)])
        with pytest.raises(ValueError, match="already"):
            api.register_codec(type("Gzip", (Xor,), {"name": "gzip"}))
        with pytest.raises(TypeError):
            api.register_codec(Xor(3))
    finally:
        codecs._registered.clear()


class _Plain:
    """A bound codec that says no more than it has to."""

    encoded_size = None
    stored_dtype = None

    def __init__(self, spec: codecs.ArraySpec) -> None:
        self.spec = spec

    def encode(self, array: np.ndarray) -> bytes:
        return array.tobytes()

    def decode(self, data: Any) -> np.ndarray:
        return np.frombuffer(data, self.spec.dtype.numpy).reshape(self.spec.shape)

    def locate(self, region: Any, out: Any) -> None:
        return None

    def merge(self, data: Any, region: Any, values: Any) -> bytes:
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(codecs.ArrayBytesCodec):
    name = "test.plain"

    def bind(self, spec: codecs.ArraySpec) -> _Plain:
        return _Plain(spec)


@dataclass(frozen=True)
class Short(codecs.ArrayArrayCodec):
    """Loses elements, and notes on which threads."""

    name = "test.short"
    threads: ClassVar[set[str]] = set()

    def encode(self, array: np.ndarray, spec: Any) -> np.ndarray:
        return array

    def decode(self, array: np.ndarray, spec: Any) -> np.ndarray:
        self.threads.add(threading.current_thread().name)
        return array[:2]


@pytest.mark.parametrize("far", [False, True])
async def test_codecs_of_others_that_say_little_or_do_wrong(api: Api, far: bool):
    target = stores.LatencyStore(stores.MemoryStore(), 0.0) if far else stores.MemoryStore()
    api.register_codec(Plain)
    api.register_codec(Short)
    Short.threads.clear()
    try:
        array = await api(api.create_array(target, path="plain", data=np.arange(6), serializer=Plain()))
        assert (await api(array[2:5])).tolist() == [2, 3, 4]
        array = await api(api.create_array(target, path="short", data=np.arange(6), filters=[Short()]))
        for key in (1, np.s_[1:2], np.s_[::-1]):
            with pytest.raises(CodecError, match=r"short/c/0 .*an array of shape \(2,\) came out, not \(6,\)"):
                await api(array[key])
        # What is not known to be brief keeps no event loop from its other work.
        assert not far or all(name.startswith("zarrasync-codec") for name in Short.threads)
    finally:
        codecs._registered.clear()


async def test_data_types_of_others(api: Api):
    api.register_data_type("test.cents", lambda options: dtypes.DataType("test.cents", np.dtype("i8"), dict(options)))
    try:
        store: dict[str, bytes] = {}
        await api(api.create_array(store, data=[1, 2], dtype="test.cents"))
        assert json.loads(store["zarr.json"])["data_type"] == "test.cents"
        array = await api(api.open_array(store))
        assert array.metadata.dtype.name == "test.cents"
        assert (await api(array.get_basic_selection())).tolist() == [1, 2]
        with pytest.raises(ValueError, match="already"):
            api.register_data_type("int8", lambda options: dtypes.STRING)
    finally:
        dtypes._registered.clear()


@pytest.mark.parametrize("zarr_format", [3, "3-draft"])
async def test_storage_transformers_of_others(api: Api, zarr_format: Any):
    from dataclasses import replace

    from zarrasync.formats import by_name
    from zarrasync.model import storage_transformers

    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, shape=4, dtype="u1", chunks=2, zarr_format=zarr_format, compressors=None))
    metadata = replace(array.metadata, transformers=(Upside({"a": 1}),), source=None)
    store.update(by_name(zarr_format).render("", metadata))
    with pytest.raises(MetadataError, match=r"unknown storage transformer 'test\.upside'"):
        await api(api.open_array(store))
    api.register_storage_transformer("test.upside", Upside)
    try:
        array = await api(api.open_array(store, mode="r+"))
        assert array.metadata.transformers[0].options == {"a": 1}
        await api.write(array, np.s_[...], np.array([1, 2, 3, 4]))
        assert any(key.endswith(("1/c", "1c")) for key in store)
        assert (await api(array.get_basic_selection())).tolist() == [1, 2, 3, 4]
        await api(array.update_attributes({"x": 1}))
        assert (await api(api.load(store))).tolist() == [1, 2, 3, 4]
    finally:
        storage_transformers._known.clear()


def test_extensions_are_found_by_entry_points(tmp_path, monkeypatch):
    info = tmp_path / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zarrasync.codecs]\ntest.xor = test_extensions:Xor\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from zarrasync._util import plugins

    plugins._all.cache_clear()
    try:
        (codec,) = parse_codecs(["bytes", entry("test.xor", mask=1)]).bytes_bytes
        assert type(codec).__name__ == "Xor"
    finally:
        plugins._all.cache_clear()


# ------------------------------------------------------------------ objects of format 2


async def test_objects_of_format_2(api: Api):
    import numcodecs
    from numcodecs.vlen import VLenArray

    ragged = np.empty(3, object)
    ragged[:] = [np.arange(2.0), np.arange(0.0), np.arange(3.0)]
    mixed = np.array([["a", 1], [None, {"x": [2]}]], object)
    kinds = [
        (numcodecs.JSON(), mixed),
        (VLenArray("f8"), ragged),
        (numcodecs.Pickle(), np.array([{1, 2}, (3,)], object)),
        (numcodecs.Categorize(["a", "b"], dtype=object), np.array(["a", "b", "a"], object)),
        (numcodecs.Categorize(["aé", "b"], dtype="U2"), np.array(["aé", "b", "b"])),
    ]
    pytest.importorskip("msgpack")
    from numcodecs.msgpacks import MsgPack

    kinds.append((MsgPack(), mixed))
    for codec, values in kinds:
        store: dict[str, bytes] = {}
        array = await api(
            api.create_array(store, shape=values.shape, dtype=values.dtype, zarr_format=2, filters=[codec])
        )
        await api.write(array, np.s_[...], values)
        if codec.codec_id == "pickle":
            with pytest.raises(MetadataError, match="allow_pickle"):
                await api(api.open_array(store))
        again = await api(api.open_array(store, config={"allow_pickle": True}))
        found = await api(again.get_basic_selection())
        assert [np.asarray(x).tolist() for x in found.ravel()] == [np.asarray(x).tolist() for x in values.ravel()]
        (key,) = [key for key in store if not key.startswith(".")]
        with pytest.raises(CodecError):
            store[key] = store[key][: len(store[key]) // 2]
            await api((await api(api.open_array(store, config={"allow_pickle": True}))).get_basic_selection())
    for dtype, codec, value in (
        (str, numcodecs.VLenUTF8(), "é"),
        (bytes, numcodecs.VLenBytes(), b"b"),
    ):  # said in other words
        array = await api(api.create_array({}, data=[value], dtype=dtype, zarr_format=2, filters=[codec]))
        assert (await api(array.get_basic_selection())).tolist() == [value] and not array.filters
        with pytest.raises(UnknownCodecError, match="makes bytes of objects"):
            await api(api.create_array({}, shape=2, dtype="i4", zarr_format=2, filters=[codec]))
    with pytest.raises(MetadataError, match="says nothing about what is stored"):
        await api(api.create_array({}, shape=2, dtype=object, zarr_format=2))
    with pytest.raises(MetadataError, match="use str for text"):
        await api(api.create_array({}, shape=2, dtype=object))


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


@dataclass(frozen=True)
class Odd(codecs.BytesBytesCodec):
    """Says that bytes stay as many as they are, and does what it is told."""

    name = "test.odd"
    does: str = "right"

    def encoded_size(self, size: int) -> int | None:
        return size

    def encode(self, data: Any) -> Any:
        match self.does:
            case "loses":
                return bytes(data)[1:]
            case "raises":
                raise IndexError("too far")
            case "forgets":
                return None
        return bytes(data)

    def decode(self, data: Any, size: int | None, limit: int, out: Any) -> Any:
        assert bytes(data)[:1] != b"\xff", "marked"
        return bytes(data)[:7] if bytes(data)[:1] == b"\xfe" else bytes(data)


@dataclass(frozen=True)
class Shorter(codecs.ArrayArrayCodec):
    """Returns less than there was."""

    name = "test.shorter"

    def encode(self, array: Any, spec: ArraySpec) -> Any:
        return array[:1]

    def decode(self, array: Any, spec: ArraySpec) -> Any:
        return array


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"compressors": [Odd("loses")]}, "7 bytes came out, not 8"),
        ({"compressors": [Odd("raises")]}, "IndexError: too far"),
        ({"compressors": [Odd("forgets")]}, "TypeError"),
        ({"filters": [Shorter()], "compressors": None}, r"an array of shape \(1,\) came out, not \(2,\)"),
    ],
)
async def test_codecs_of_others_that_store_what_can_not_be_read(api: Api, wanted: dict[str, Any], message: str):
    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, shape=(4,), chunks=(2,), dtype="i4", **wanted))
    with pytest.raises(CodecError, match=f"c/0 in .* can not encode: {message}"):
        await api.write(array, ..., [1, 2, 3, 4])
    assert list(store) == ["zarr.json"]


@dataclass(frozen=True)
class Wide(Odd):
    """Makes numbers of more than a byte."""

    name = "test.wide"

    def encode(self, data: Any) -> Any:
        return np.frombuffer(bytes(data), ">u2")


class _PlainArrays(_Plain):
    def encode(self, array: np.ndarray) -> Any:
        return np.ascontiguousarray(array)


@dataclass(frozen=True)
class PlainArrays(codecs.ArrayBytesCodec):
    """Makes arrays of more than one axis."""

    name = "test.arrays"

    def bind(self, spec: codecs.ArraySpec) -> _Plain:
        return _PlainArrays(spec)


@pytest.mark.parametrize("size", [8, 512])
@pytest.mark.parametrize("wanted", [{"compressors": [Wide()]}, {"serializer": PlainArrays(), "compressors": None}])
async def test_what_codecs_of_others_make_is_counted_in_bytes(api: Api, wanted: dict[str, Any], size: int):
    data = np.arange(4 * size * size, dtype="u2").reshape(2 * size, 2 * size)
    for layout in ({"chunks": (size, size)}, {"chunks": (size, size), "shards": data.shape}):
        array = await api(api.create_array({}, data=data, **layout, **wanted))
        np.testing.assert_array_equal(await api(array[...]), data)


async def test_codecs_of_others_that_fail_for_what_is_damaged(api: Api):
    api.register_codec(Odd)
    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, data=np.arange(4, dtype="i4"), chunks=(2,), compressors=[Odd()]))
    assert (await api(array[...])).tolist() == [0, 1, 2, 3]
    for damage, message in ((b"\xff", "AssertionError: marked"), (b"\xfe", "7 bytes came out, not 8")):
        store["c/1"] = damage * 8
        with pytest.raises(CodecError, match=f"c/1 in .* can not decode: {message}"):
            await api(array[...])


@dataclass(frozen=True)
class ByUri(codecs.BytesBytesCodec):
    """Has a URI for a name, as codecs of the draft have."""

    name = "https://example.org/codecs/xor/1.0"
    key: int = 1

    def encoded_size(self, size: int) -> int | None:
        return size

    def encode(self, data: Any) -> Any:
        return (np.frombuffer(bytes(data), "u1") ^ self.key).tobytes()

    def decode(self, data: Any, size: int | None, limit: int, out: Any) -> Any:
        return self.encode(data)


@pytest.mark.parametrize("zarr_format", [3, "3-draft"])
async def test_codecs_that_are_known_by_their_uri(api: Api, zarr_format: Any):
    api.register_codec(ByUri)
    store: dict[str, bytes] = {}
    values = np.arange(4, dtype="u1")
    await api(api.create_array(store, path="a", data=values, compressors=[ByUri(3)], zarr_format=zarr_format))
    found = await api(api.open_array(store, path="a"))
    assert found.compressors == (ByUri(3),)
    assert (await api(found[...])).tolist() == [0, 1, 2, 3]
    chunk = store["data/a/c0" if zarr_format == "3-draft" else "a/c/0"]
    assert chunk == bytes([3, 2, 1, 0])
    copied: dict[str, bytes] = {}
    await api(api.copy(store, copied, zarr_format=3 if zarr_format == "3-draft" else "3-draft"))
    again = await api(api.open_array(copied, path="a"))
    assert (again.compressors, (await api(again[...])).tolist()) == ((ByUri(3),), [0, 1, 2, 3])
