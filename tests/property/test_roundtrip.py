"""Documents and values of random arrays (formats, data types, codecs, grids) survive a round trip."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zarrasync import formats, sync
from zarrasync.errors import UnsupportedByFormat
from zarrasync.metadata import ArrayMetadata
from zarrasync.model import dtypes

pytest.importorskip("ml_dtypes")

EXAMPLES = int(os.environ.get("ZARRASYNC_EXAMPLES", "200"))
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


def same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind in "TO":
        return one.astype(object).tolist() == other.astype(object).tolist()
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@st.composite
def arrays(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """Draw the parameters of ``create_array``, and a seed for its values."""
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 9)) for _ in range(ndim))
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
    return options, draw(st.integers(0, 1 << 30))


@given(arrays(), st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arrays_come_back(given_: tuple[dict[str, Any], int], data: Any):
    options, seed = given_
    data_type = dtypes.from_numpy(options["dtype"])
    count = int(np.prod(options["shape"], dtype=int))
    fill = values_of(data_type, 1, seed + 1)[0]
    store: dict[str, bytes] = {}
    try:
        made = sync.create_array(store, fill_value=fill, attributes={"a": [1, "é"]}, **options)
    except UnsupportedByFormat:
        assert store == {}
        return
    if options["zarr_format"] in (2, "3-draft-2022") and not same(made.fill_value, fill):
        assert np.isnan(fill)  # these formats have a single NaN, which the array uses at once
        fill = made.fill_value
    expected = np.full(options["shape"], fill, data_type.numpy) if not data_type.is_variable else np.array(
        [fill] * count, data_type.numpy).reshape(options["shape"])  # fmt: skip
    values = values_of(data_type, count, seed).reshape(options["shape"])
    box = tuple(slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in options["shape"])
    made[box] = expected[box] = values[box]
    array = sync.open_array(store, mode="r+")
    assert same(array[...], expected)
    assert same(array[box], values[box])
    array[...] = values
    assert same(sync.open_array(store)[...], values)
    documents_come_back(array, options["zarr_format"])


def documents_come_back(array: sync.Array, zarr_format: Any) -> None:
    """Assert that metadata survives rendering and parsing, twice."""
    format_ = formats.by_name(zarr_format)
    metadata = replace(array.metadata, source=None)
    documents = format_.render("p", metadata)
    again = format_.parse("p", documents)
    assert isinstance(again, ArrayMetadata)
    assert format_.render("p", replace(again, source=None)) == documents
    assert format_.render("p", again) == documents
    one, other = replace(metadata, fill_value=None), replace(again, source=None, fill_value=None)
    assert one == other
    assert same(
        np.asarray(metadata.fill_value, metadata.dtype.numpy), np.asarray(again.fill_value, metadata.dtype.numpy)
    )


@given(arrays(), st.sampled_from(FORMATS))
@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_copies_are_equal(given_: tuple[dict[str, Any], int], target: Any):
    options, seed = given_
    data_type = dtypes.from_numpy(options["dtype"])
    store: dict[str, bytes] = {}
    try:
        made = sync.create_array(store, **options)
        count = int(np.prod(options["shape"], dtype=int))
        made[...] = values_of(data_type, count, seed).reshape(options["shape"])
        other: dict[str, bytes] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sync.copy(store, other, zarr_format=target, verify=True)
    except UnsupportedByFormat:
        return
    assert sync.validate(other, data=True).ok


@pytest.mark.parametrize("dtype", ["S0", "U0"])
@pytest.mark.parametrize("options", [{}, {"compressors": None}, {"zarr_format": 2}, {"shards": 4}], ids=str)
def test_strings_of_length_zero_round_trip(dtype: str, options: dict[str, Any]):
    """NumPy widens such strings to one character, but the stored values have no bytes."""
    a = sync.create_array({}, shape=4, dtype=dtype, chunks=2, config={"write_empty_chunks": True}, **options)
    a[...] = np.zeros(4, dtype)
    a[1:3] = np.zeros(2, dtype)
    assert a.dtype.itemsize == 0
    assert a[...].tolist() == np.zeros(4, dtype).tolist()
