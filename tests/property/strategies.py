"""Random arrays of every format, values with any bit pattern, attributes, and comparisons by bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from zarrasync.model import dtypes

FORMATS = [2, 3, "3-draft", "3-draft-2022"]
NAMES = [
    *dtypes.CORE, *dtypes.SMALL_FLOATS, "int2", "int4", "uint2", "uint4", "complex_bfloat16", "complex_float16",
    "complex_float32", "complex_float8_e4m3", "complex_float4_e2m1fn", "r24", "string", "bytes", "U3", "S4", "<M8[ns]", "<m8[7s]", ">i4", ">f8", ">U2",
]  # fmt: skip
STRUCT = np.dtype([("a", "<i2"), ("b", [("x", "<f4"), ("s", "S3")])])


def values_of(data_type: dtypes.DataType, count: int, seed: int) -> np.ndarray:
    """Return values with any bit pattern of a data type."""
    rng, dtype = np.random.default_rng(seed), data_type.numpy
    if data_type.name == "string":
        return np.array(["", "é", "x" * 9, "日本"], dtype)[rng.integers(0, 4, count)]
    if data_type.name == "bytes":
        return np.array([b"", b"\0a", b"x" * 9], object)[rng.integers(0, 3, count)]
    if data_type.limits is not None:
        return rng.integers(data_type.limits[0], data_type.limits[1] + 1, count).astype(dtype)
    if dtype.kind == "U":
        return np.array(["", "é", "日本語"[: dtype.itemsize // 4]], dtype)[rng.integers(0, 3, count)]
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype="u1")
    if dtype.kind == "b":
        raw %= 2
    if data_type.bits < 8:
        raw %= 1 << data_type.bits
    return np.frombuffer(raw.tobytes(), dtype)


def filled(shape: tuple[int, ...], fill: Any, data_type: dtypes.DataType) -> np.ndarray:
    """Return an array of one value."""
    if data_type.is_variable:
        return np.array([fill] * int(np.prod(shape, dtype=int)), data_type.numpy).reshape(shape)
    return np.full(shape, fill, data_type.numpy)


def same(one: Any, other: Any) -> bool:
    """Return whether two arrays have the same dtype, the same shape and the same bits."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind in "TO":
        return one.astype(object).tolist() == other.astype(object).tolist()
    return one.tobytes() == other.tobytes()


@st.composite
def array_options(draw: st.DrawFn, max_size: int = 9) -> dict[str, Any]:
    """Draw the parameters of ``create_array``. Some formats do not support all of them."""
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, max_size)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    name = draw(st.sampled_from([*NAMES, STRUCT]))
    zarr_format = draw(st.sampled_from(FORMATS))
    options: dict[str, Any] = {"shape": shape, "dtype": name, "chunks": chunks, "zarr_format": zarr_format}
    if ndim and draw(st.booleans()):
        options["shards"] = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    elif ndim and zarr_format == 3 and draw(st.booleans()):
        edges = [draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)) for _ in range(ndim)]
        options["chunks"] = [[*own, max(n - sum(own), 1)] for own, n in zip(edges, shape, strict=True)]
    options["order"] = draw(st.sampled_from("CF"))
    filters = [None, {"id": "fletcher32"}]
    compressors: list[Any] = [None, "gzip", "zstd", {"id": "zlib", "level": 1}, {"id": "lz4"}, {"id": "crc32"}, "auto"]
    compressors += [["crc32c"], ["gzip", "crc32c"], [{"id": "adler32"}, "zstd"]]
    options["compressors"] = draw(st.sampled_from(compressors))
    if zarr_format == 3:
        if name in ("bool", "int4", "uint2", "float4_e2m1fn") and draw(st.booleans()):
            options["serializer"] = "packbits"
        if name not in ("string", "bytes") and ndim and draw(st.booleans()):
            options["filters"] = [{"name": "transpose", "configuration": {"order": draw(st.permutations(range(ndim)))}}]
    elif zarr_format == 2 and name not in ("string", "bytes"):
        options["filters"] = [f for f in [draw(st.sampled_from(filters))] if f]
    if draw(st.booleans()) and zarr_format != "3-draft-2022":
        names = ["default", "v2"] if zarr_format == 3 else ["v2"] if zarr_format == 2 else ["default"]
        options["chunk_key_encoding"] = {"name": draw(st.sampled_from(names)), "separator": draw(st.sampled_from("./"))}
    return options


SEEDS = st.integers(0, 1 << 30)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    _SCALARS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
ATTRIBUTES = st.dictionaries(st.sampled_from(["title", "é", "", "a/b", "count"]), JSON, max_size=3)
