"""Documents as other writers store them: read where the meaning is certain, a located error otherwise."""

import json
import lzma
import zlib
from typing import Any

import numpy as np
import pytest
import zstandard

from zarrasync import sync
from zarrasync.errors import MetadataError

pytestmark = pytest.mark.foreign

VALUES = np.arange(21, dtype="<i4").reshape(3, 7)


def document2(**members: Any) -> dict[str, Any]:
    return {
        "zarr_format": 2,
        "shape": [3, 7],
        "chunks": [3, 7],
        "dtype": "<i4",
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "compressor": None,
        **members,
    }


def store2(data: bytes | None = None, **members: Any) -> dict[str, bytes]:
    document = {".zarray": json.dumps(document2(**members)).encode()}
    return document if data is None else {**document, "0.0": data}


@pytest.mark.parametrize("size", [0, "0", "4", 4])
def test_shuffle_of_netcdf(size: Any):
    """netCDF-C stores an element size of 0, which means that of the data type."""
    shuffled = np.frombuffer(VALUES.tobytes(), "u1").reshape(-1, 4).T.tobytes()
    codecs = {"filters": [{"id": "shuffle", "elementsize": size}], "compressor": {"id": "zlib", "level": "4"}}
    store = store2(zlib.compress(shuffled), **codecs)
    array = sync.open_array(store, mode="r+")
    np.testing.assert_array_equal(array[:], VALUES)
    array[...] = VALUES[::-1]
    written = np.frombuffer(zlib.decompress(store["0.0"]), "u1").reshape(4, -1).T
    assert written.tobytes() == VALUES[::-1].tobytes()
    copy: dict[str, bytes] = {}
    sync.copy(store, copy, zarr_format=3)
    np.testing.assert_array_equal(sync.open_array(copy)[:], VALUES[::-1])


@pytest.mark.parametrize(
    "compressor",
    [
        {"id": "blosc", "cname": "lz4", "clevel": "5", "shuffle": "1", "blocksize": "0"},
        {"id": "zstd", "level": "3"},
        {"id": "gzip", "level": "1"},
        {"id": "bz2", "level": "5"},
        {"id": "lz4", "acceleration": "1"},
        {"id": "lzma", "preset": "2"},
    ],
    ids=lambda value: value["id"],
)
def test_numbers_as_strings(compressor: dict[str, str]):
    store = store2(compressor=compressor)
    sync.open_array(store, mode="r+")[...] = VALUES
    np.testing.assert_array_equal(sync.open_array(store)[...], VALUES)


@pytest.mark.parametrize("compressor", [{"id": "zstd", "level": "high"}, {"id": "zlib", "level": "1.5"}])
def test_strings_that_are_no_numbers(compressor: dict[str, str]):
    with pytest.raises(MetadataError, match=r"\.zarray: \$\.compressor"):
        sync.open_array(store2(compressor=compressor))


@pytest.mark.parametrize("flag", ["NO", "YES", "false"])
def test_flags_of_gdal(flag: str):
    """GDAL writes whether zstd frames have checksums as a string."""
    store = store2(zstandard.ZstdCompressor().compress(VALUES.tobytes()), compressor={"id": "zstd", "checksum": flag})
    np.testing.assert_array_equal(sync.open_array(store)[...], VALUES)
    with pytest.raises(MetadataError, match="checksum must be true or false"):
        sync.open_array(store2(compressor={"id": "zstd", "checksum": "maybe"}))


@pytest.mark.parametrize("distance", [0, 1, 4])
def test_delta_of_lzma(distance: int):
    """GDAL stores the distance of the delta filter as a member, and streams that describe themselves."""
    delta: list[dict[str, Any]] = [{"id": lzma.FILTER_DELTA, "dist": distance}] if distance else []
    data = lzma.compress(VALUES.tobytes(), filters=[*delta, {"id": lzma.FILTER_LZMA2, "preset": 2}])
    store = store2(data, compressor={"id": "lzma", "preset": 2, "delta": distance})
    array = sync.open_array(store, mode="r+")
    np.testing.assert_array_equal(array[...], VALUES)
    array[...] = VALUES + 1
    np.testing.assert_array_equal(np.frombuffer(lzma.decompress(store["0.0"]), "<i4").reshape(3, 7), VALUES + 1)


@pytest.mark.parametrize(
    ("dtype", "fill", "expected"),
    [("<i4", [-7], -7), ("<f4", [1.5], 1.5), ("<f8", "2.5e3", 2500.0), ("|b1", [True], True), ("<U3", ["abc"], "abc")],
)
def test_fill_values_of_netcdf(dtype: str, fill: Any, expected: Any):
    store = store2(dtype=dtype, fill_value=fill)
    assert sync.open_array(store)[0, 0] == expected
    assert any("standard form" in str(finding) for finding in sync.validate(store).findings)


@pytest.mark.parametrize("fill", [[], [1, 2], [[1]], "x", "1x"])
def test_fill_values_without_a_certain_meaning(fill: Any):
    with pytest.raises(MetadataError, match=r"\$\.fill_value"):
        sync.open_array(store2(fill_value=fill))


@pytest.mark.parametrize("data_type", ["float32", "uint8", "bool", "complex64"])
def test_null_fill_values_of_gdal(data_type: str):
    store: dict[str, bytes] = {}
    sync.create_array(store, shape=2, dtype=data_type)
    document = json.loads(store["zarr.json"])
    store["zarr.json"] = json.dumps({**document, "fill_value": None}).encode()
    assert sync.open_array(store)[:].tolist() == [0, 0]
    assert any("null is not a fill value" in str(finding) for finding in sync.validate(store).findings)
