"""zarr-python and tensorstore read arrays of zarrasync, and the other way round."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.covering import covering
from zarrasync import sync

pytestmark = pytest.mark.foreign

zarr = pytest.importorskip("zarr")
ts = pytest.importorskip("tensorstore")

SHAPE, CHUNKS = (23, 17), (6, 5)


def values(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, SHAPE).astype(bool)
    if kind == "f":
        return rng.normal(size=SHAPE).astype(dtype)
    if kind == "c":
        return (rng.normal(size=SHAPE) + 1j * rng.normal(size=SHAPE)).astype(dtype)
    if kind in "mM":
        return rng.integers(0, 10**6, SHAPE).astype("i8").view(dtype)
    if kind in "US":
        return np.array([["", "a", "bcd"][i % 3] for i in range(np.prod(SHAPE))], dtype).reshape(SHAPE)
    info = np.iinfo(dtype)
    native = np.dtype(dtype).newbyteorder("=")
    return rng.integers(info.min, info.max, SHAPE, dtype=native, endpoint=True)


DTYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def entry(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


V3_CODECS = {
    "none": None,
    "gzip": [entry("gzip", level=1)],
    "zstd": [entry("zstd", level=1, checksum=False)],
    "zstd-checksum": [entry("zstd", level=1, checksum=True), entry("crc32c")],
    "blosc-lz4": [entry("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4, blocksize=0)],
    "blosc-zstd": [entry("blosc", cname="zstd", clevel=3, shuffle="bitshuffle", typesize=2, blocksize=0)],
}
V2_CODECS = {
    "none": None,
    "zlib": {"id": "zlib", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "zstd": {"id": "zstd", "level": 1},
    "bz2": {"id": "bz2", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
}


def check_peers(path: Path, data: np.ndarray, driver: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = zarr.open_array(str(path), mode="r")[...]
    np.testing.assert_array_equal(found, data)
    if data.dtype.kind in "mMUS":
        return  # tensorstore lacks these data types
    other = ts.open({"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}, read=True).result()
    np.testing.assert_array_equal(other.read().result(), data)


def check_ours(path: Path, data: np.ndarray) -> None:
    found = sync.open_array(path)
    got = found[...]
    assert got.dtype == data.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, data)
    np.testing.assert_array_equal(found[3:20:4, ::-1], data[3:20:4, ::-1])


@pytest.mark.parametrize(("dtype", "codec"), covering(DTYPES, [*V3_CODECS], strength=1))
def test_v3_ours_to_theirs(tmp_path, dtype, codec):
    """Every core data type and codec, with all orders, separators and shards."""
    data = values(dtype)
    for number, (order, separator, shards) in enumerate(itertools.product("CF", "/.", (None, (12, 10)))):
        path = tmp_path / str(number)
        sync.create_array(
            path,
            data=data,
            chunks=CHUNKS,
            shards=shards,
            order=order,  # type: ignore[arg-type]  # product() knows no literals
            compressors=V3_CODECS[codec],
            chunk_key_encoding={"name": ("default", "v2")[number % 2], "configuration": {"separator": separator}},
            serializer=entry("bytes", endian=("little", "big")[number % 2]) if data.itemsize > 1 else "auto",
        )
        check_peers(path, data, "zarr3")


@pytest.mark.parametrize(("dtype", "codec"), covering(DTYPES, [*V3_CODECS], strength=1))
def test_v3_theirs_to_ours(tmp_path, dtype, codec):
    data = values(dtype)
    for number, (separator, shards, location) in enumerate(itertools.product("/.", (None, (12, 10)), ("start", "end"))):
        path = tmp_path / f"zarr{number}"
        if location == "end":
            array = zarr.create_array(
                str(path),
                shape=SHAPE,
                dtype=dtype,
                chunks=CHUNKS,
                shards=shards,
                compressors=V3_CODECS[codec],
                chunk_key_encoding={"name": "default", "separator": separator},
            )
            array[...] = data
            check_ours(path, data)
        path = tmp_path / f"ts{number}"
        inner = [entry("transpose", order=[1, 0]), entry("bytes", **({"endian": "big"} if data.itemsize > 1 else {}))]
        chain = inner + (V3_CODECS[codec] or [])
        if shards:
            index = [entry("bytes", endian="little"), entry("crc32c")]
            chain = [
                entry(
                    "sharding_indexed",
                    chunk_shape=CHUNKS,
                    codecs=chain,
                    index_codecs=index,
                    index_location=location,
                )
            ]
        written = ts.open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": str(path)},
                "metadata": {
                    "shape": SHAPE,
                    "data_type": data.dtype.name,
                    "chunk_grid": entry("regular", chunk_shape=shards or CHUNKS),
                    "chunk_key_encoding": entry("default", separator=separator),
                    "codecs": chain,
                },
            },
            create=True,
            open=True,
        ).result()
        written.write(data).result()
        check_ours(path, data)


@pytest.mark.parametrize(
    ("dtype", "codec"),
    covering([*DTYPES, ">i4", ">f8", "M8[ns]", "m8[s]", "S3", "U3"], [*V2_CODECS], strength=1),
)
def test_v2_both_ways(tmp_path, dtype, codec):
    data = values(dtype)
    for number, (order, separator) in enumerate(itertools.product("CF", "./")):
        path = tmp_path / f"ours{number}"
        serializer = entry("bytes", endian="big") if np.dtype(dtype).byteorder == ">" else "auto"
        sync.create_array(
            path,
            data=data,
            chunks=CHUNKS,
            order=order,  # type: ignore[arg-type]  # product() knows no literals
            compressors=V2_CODECS[codec],
            zarr_format=2,
            serializer=serializer,
            chunk_key_encoding={"name": "v2", "configuration": {"separator": separator}},
        )
        if np.dtype(dtype).byteorder == ">":
            assert json.loads((path / ".zarray").read_text())["dtype"] == dtype
        check_peers(path, data, "zarr")
        path = tmp_path / f"theirs{number}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.create_array(
                str(path),
                shape=SHAPE,
                dtype=dtype,
                chunks=CHUNKS,
                order=order,
                zarr_format=2,
                compressors=None if V2_CODECS[codec] is None else _numcodec(V2_CODECS[codec]),
                chunk_key_encoding={"name": "v2", "separator": separator},
            )
            array[...] = data
        check_ours(path, data)


def _numcodec(config: dict[str, Any]) -> Any:
    import numcodecs

    return numcodecs.get_codec(dict(config))


@pytest.mark.smoke
@pytest.mark.parametrize(
    "config",
    [
        {"id": "delta", "dtype": "<i4"},
        {"id": "delta", "dtype": "<i4", "astype": "<i2"},
        {"id": "fixedscaleoffset", "offset": 3, "scale": 2, "dtype": "<i4", "astype": "<i4"},
        {"id": "shuffle", "elementsize": 4},
        {"id": "crc32"},
        {"id": "adler32"},
        {"id": "fletcher32"},
        {"id": "astype", "encode_dtype": "<i8", "decode_dtype": "<i4"},
        {"id": "lz4", "acceleration": 1},
        {"id": "lzma", "preset": 1},
    ],
    ids=lambda config: config["id"],
)
def test_numcodecs_filters_both_ways(tmp_path, config):
    data = np.random.default_rng(0).integers(0, 50, SHAPE).astype("i4")
    sync.create_array(
        tmp_path / "v2", data=data, chunks=CHUNKS, filters=config, compressors={"id": "zlib"}, zarr_format=2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "v2"), mode="r")[...], data)
        array = zarr.create_array(
            str(tmp_path / "theirs"), shape=SHAPE, dtype="i4", chunks=CHUNKS, zarr_format=2, filters=[_numcodec(config)]
        )
        array[...] = data
    check_ours(tmp_path / "theirs", data)
    if config["id"] == "adler32":
        return
    name = {"name": f"numcodecs.{config['id']}", "configuration": {k: v for k, v in config.items() if k != "id"}}
    value_codec = config["id"] in ("delta", "fixedscaleoffset", "astype")
    sync.create_array(
        tmp_path / "v3",
        data=data,
        chunks=CHUNKS,
        filters=[name] if value_codec else None,
        compressors=None if value_codec else [name],
    )
    check_ours(tmp_path / "v3", data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "v3"), mode="r")[...], data)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_strings_both_ways(tmp_path, zarr_format):
    data = np.array([["", "héllo", "日本"], ["x" * 300, "b", "c"]], dtype=np.dtypes.StringDType())
    sync.create_array(tmp_path / "ours", data=data, chunks=(1, 2), zarr_format=zarr_format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = zarr.open_array(str(tmp_path / "ours"), mode="r")[...]
        assert found.tolist() == data.tolist()
        array = zarr.create_array(
            str(tmp_path / "theirs"), shape=data.shape, dtype=str, chunks=(1, 2), zarr_format=zarr_format
        )
        array[...] = data
    got = sync.open_array(tmp_path / "theirs")[...]
    assert got.tolist() == data.tolist()
    assert got.dtype == np.dtypes.StringDType()


@pytest.mark.smoke
def test_groups_and_attributes_both_ways(tmp_path):
    for zarr_format in (2, 3):
        ours, theirs = tmp_path / f"ours{zarr_format}", tmp_path / f"theirs{zarr_format}"
        sync.create_hierarchy(
            ours, {"": {"attributes": {"a": 1}}, "g/x": {"data": np.arange(3)}}, zarr_format=zarr_format
        )
        group = zarr.open_group(str(ours), mode="r")
        assert dict(group.attrs) == {"a": 1}
        assert group["g/x"][...].tolist() == [0, 1, 2]
        other = zarr.create_group(str(theirs), zarr_format=zarr_format, attributes={"b": [1, None]})
        other.create_array("h/y", data=np.arange(4))
        found = sync.open_group(theirs)
        assert dict(found.attrs) == {"b": [1, None]}
        assert found["h/y"][...].tolist() == [0, 1, 2, 3]
        assert found.tree().splitlines() == ["/", "└── h", "    └── y (4,) int64"]


@pytest.mark.smoke
def test_dimension_names_and_fill_values_both_ways(tmp_path):
    for number, fill in enumerate([np.nan, -np.inf, 0.1, 1e300]):
        path = tmp_path / str(number)
        sync.create_array(path, shape=(3, 2), dtype="f8", fill_value=fill, dimension_names=("y", None))
        array = zarr.open_array(str(path), mode="r")
        np.testing.assert_array_equal(array[...], np.full((3, 2), fill))
        assert array.metadata.dimension_names == ("y", None)


def test_structured_types_of_zarr_python(tmp_path):
    values = np.array([(1, 2.5), (300, -1.0)], [("a", "i2"), ("b", "f8")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that other readers may not support them
        theirs = zarr.create_array(tmp_path / "x", data=values, chunks=(1,))
    ours = sync.open_array(tmp_path / "x")
    assert ours[...].tolist() == theirs[...].tolist() == values.tolist()
