"""Registered codecs of values: packbits, bitround, reshape, scale_offset, cast_value, zfp, n5_default, conditional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.codec_documents import BIG, LITTLE, both_ways, bound, entry
from zarrasync.errors import CodecError, MetadataError
from zarrasync.model import dtypes

ml_dtypes = pytest.importorskip("ml_dtypes")

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
        ("uint16", {"offset": 1000}, None),  # the fill value 0 is out of range
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
    with pytest.raises(CodecError, match="not a multiple"):
        bound("int8", (1,), entry("scale_offset", scale=2), "bytes").decode(b"\x03")


def cast(source: str, target: str, values: Any, *, decode: bool = False, fill: Any = None, **options: Any) -> list[Any]:
    stored = LITTLE if "8" not in target else "bytes"
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
        with pytest.raises(CodecError, match="cast_value cannot encode"):
            cast(source, target, values, **options)
        return
    found = cast(source, target, values, **options)
    np.testing.assert_array_equal(found, wanted)
    assert [np.signbit(x) for x in found] == [np.signbit(x) for x in wanted]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_casting_floats_rounds_to_a_neighbour(data: Any):
    """Every rounding mode returns the right neighbour, compared with a search."""
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
