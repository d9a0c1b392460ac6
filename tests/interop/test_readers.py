"""zarr-python, tensorstore and zarrista read the same values, if they support the data type and the codec.

The table in docs/status.md lists what they support. A reader that refuses a listed type or reads other values fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.codec_documents import entry
from zarrasync import sync
from zarrasync.model import dtypes

pytestmark = pytest.mark.foreign

pytest.importorskip("ml_dtypes")
SHAPE = (5, 7)


def zarr_python(path: Path) -> np.ndarray:
    import zarr

    if (path / "zarr.json").exists() and "rectilinear" in (path / "zarr.json").read_text():
        pytest.importorskip("zarr", minversion="3.4")
        with zarr.config.set({"array.rectilinear_chunks": True}):
            return np.asarray(zarr.open_array(str(path), mode="r")[...])
    return np.asarray(zarr.open_array(str(path), mode="r")[...])


def tensorstore(path: Path) -> np.ndarray:
    ts = pytest.importorskip("tensorstore")
    driver = "zarr3" if (path / "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    return np.asarray(ts.open(spec, read=True).result().read().result())


def zarrista(path: Path) -> np.ndarray:
    module = pytest.importorskip("zarrista")
    from zarrista.store import FilesystemStore

    found = module.Array.open(FilesystemStore(str(path))).retrieve_array_subset(())
    return np.asarray(found)


READERS: dict[str, Callable[[Path], np.ndarray]] = {"zp": zarr_python, "ts": tensorstore, "zi": zarrista}
ALL = "zp ts zi"

TYPES = {
    **dict.fromkeys(dtypes.CORE, ALL),
    **dict.fromkeys(["bfloat16", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"], "ts"),
    **dict.fromkeys(["int2", "int4"], "ts"),
    **dict.fromkeys(["M8[ns]", "M8[25us]", "m8[s]", "U5", "S6"], "zp"),
}  # fmt: skip
CODECS: dict[str, tuple[dict[str, Any], str]] = {
    "big-endian": ({"serializer": entry("bytes", endian="big")}, ALL),
    "transpose": ({"filters": [entry("transpose", order=[1, 0])]}, ALL),
    "gzip": ({"compressors": [entry("gzip", level=9)]}, ALL),
    "zstd, checksum": ({"compressors": [entry("zstd", level=3, checksum=True)]}, ALL),
    "blosc": (
        {"compressors": [entry("blosc", cname="zstd", clevel=5, shuffle="bitshuffle", typesize=4, blocksize=0)]},
        ALL,
    ),
    "gzip, crc32c": ({"compressors": ["gzip", "crc32c"]}, ALL),
    "shards": ({"shards": (4, 6)}, ALL),
    "shards, transposed inside": ({"shards": (4, 6), "order": "F"}, ALL),
    "keys as in format 2": ({"chunk_key_encoding": entry("v2", separator="/")}, ALL),
    "packbits": ({"serializer": entry("packbits", first_bit=0, last_bit=11)}, "zi"),
    "bitround": ({"filters": [entry("bitround", keepbits=20)]}, "zi"),
    "reshape": ({"filters": [entry("reshape", shape=[[0], 3, 1])]}, "zi"),
    "chunks of different sizes": ({"chunks": [[2, 1, 2], [3, 4]]}, "zp zi"),
    "numcodecs.lz4": ({"compressors": [entry("numcodecs.lz4")]}, "zp"),
    "numcodecs.delta": ({"filters": [entry("numcodecs.delta", dtype="<i4")]}, "zp"),
    "numcodecs.shuffle": ({"compressors": [entry("numcodecs.shuffle", elementsize=4)]}, "zp zi"),
}


def sample(data_type: dtypes.DataType) -> np.ndarray:
    raw = np.random.default_rng(8).integers(0, 256, (*SHAPE, data_type.numpy.itemsize), dtype="u1")
    if data_type.numpy.kind in "US":
        return np.array(["", "ab", "é" if data_type.numpy.kind == "U" else "e"], data_type.numpy)[raw[..., 0] % 3]
    if data_type.limits is not None:
        return (raw[..., 0].astype("i2") % 4 - (2 if data_type.numpy.kind == "i" else 0)).astype(data_type.numpy)
    if data_type.numpy.kind == "b":
        return (raw[..., 0] % 2).astype(bool)
    return np.ascontiguousarray(raw).view(data_type.numpy)[..., 0]


def check(path: Path, values: np.ndarray, reader: str) -> None:
    try:
        found = READERS[reader](path)
    except ImportError:
        pytest.skip(f"{reader} is not installed")
    if values.dtype.kind in "fc" or values.dtype.type.__module__ == "ml_dtypes":
        np.testing.assert_array_equal(found.astype("c16"), values.astype("c16"))
    else:
        np.testing.assert_array_equal(found.astype(values.dtype), values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "reader"), [(n, r) for n, known in TYPES.items() for r in known.split()])
def test_types(tmp_path: Path, name: str, reader: str):
    data_type = dtypes.from_numpy(name)
    values, fill = sample(data_type), sample(data_type)[0, 0]
    array = sync.create_array(tmp_path, shape=SHAPE, dtype=name, chunks=(2, 3), fill_value=fill)
    array[:3] = values[:3]
    expected = np.full(SHAPE, fill, data_type.numpy)
    expected[:3] = values[:3]
    check(tmp_path, expected, reader)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "reader"), [(n, r) for n, (_, known) in CODECS.items() for r in known.split()])
def test_codecs(tmp_path: Path, name: str, reader: str):
    kind = "f4" if name == "bitround" else "i4"
    values = np.arange(35, dtype=kind).reshape(SHAPE)
    array = sync.create_array(
        tmp_path, **{"shape": SHAPE, "dtype": kind, "chunks": (2, 3), "fill_value": 9, **CODECS[name][0]}
    )
    array[:3, :5] = values[:3, :5]
    expected = np.full(SHAPE, 9, kind)
    expected[:3, :5] = values[:3, :5]
    check(tmp_path, expected, reader)
