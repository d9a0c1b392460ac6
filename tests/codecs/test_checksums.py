"""Checksums of stored values: damage is detected on every way of reading, and arrays without checksums are reported."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.codecs import BloscCodec, ZstdCodec
from zarrasync.errors import ChecksumError, CodecError
from zarrasync.testing import LatencyStore

FORMATS = [2, 3, "3-draft", "3-draft-2022"]
CHECKSUM_FLAG = 4


def chunk_keys(values: Any) -> list[str]:
    return [key for key, data in values.items() if bytes(data[:4]) == b"\x28\xb5\x2f\xfd"]


@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_new_arrays_have_checksums(api: Api, zarr_format: Any):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="a", data=np.arange(40_000), chunks=20_000, zarr_format=zarr_format))
    assert len(chunk_keys(store)) == 2
    assert all(store[key][4] & CHECKSUM_FLAG for key in chunk_keys(store))
    array = await api(api.open_array(store, path="a", mode="r+"))
    await api.write(array, slice(0, 10), np.arange(10))  # as the documents describe it
    await api.write(array, slice(None), np.arange(40_000) + 1)
    assert all(store[key][4] & CHECKSUM_FLAG for key in chunk_keys(store))


def test_documents():
    """Version 3 requires the parameter. numcodecs before 0.13 rejects it, and a frame shows whether it has a checksum."""
    store: dict[str, bytes] = {}
    sync.create_array(store, path="a", shape=4)
    assert json.loads(store["a/zarr.json"])["codecs"][-1] == {
        "name": "zstd",
        "configuration": {"level": 0, "checksum": True},
    }
    for zarr_format, key in ((2, ".zarray"), ("3-draft-2022", "meta/root.array.json"), ("3-draft", "meta/array.json")):
        other: dict[str, bytes] = {}
        sync.create_array(other, shape=4, zarr_format=zarr_format)
        assert "checksum" not in other[key].decode() if key in other else False, other.keys()


LAYOUTS: dict[str, dict[str, Any]] = {
    "one chunk": {"chunks": 3000},
    "large chunk": {"chunks": 100_000, "shape": 100_000},
    "many chunks": {"chunks": 50},
    "shards": {"chunks": 50, "shards": 1500},
    "format 2": {"chunks": 300, "zarr_format": 2},
    "draft": {"chunks": 300, "zarr_format": "3-draft-2022"},
}
READS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda array: array[...],
    "reversed": lambda array: array[::-1],
    "parts": lambda array: array[1 : array.shape[0] - 1],
    "points": lambda array: array.vindex[np.arange(array.shape[0])[::-1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_flipped_bits_never_become_values(api: Api, layout: str):
    options = dict(LAYOUTS[layout])
    count = options.pop("shape", 3000)
    values = np.cumsum(np.random.default_rng(0).integers(-3, 4, count)).astype("i4") + 1000
    store = stores.MemoryStore()
    await api(api.create_array(store, data=values, **options))
    source = store if api.name == "sync" else LatencyStore(store, 0)
    key = max(
        store.values, key=lambda name: len(store.values[name]) * ("json" not in name and not name.startswith("."))
    )
    original = store.values[key]
    rng = np.random.default_rng(1)
    array = await api(api.open_array(source))
    for position in rng.integers(0, len(original), 40).tolist():
        damaged = bytearray(original)
        damaged[position] ^= 1 << int(rng.integers(8))
        store.values[key] = bytes(damaged)
        for read in READS.values():
            try:
                found = await api(read(array))
            except CodecError:
                continue
            np.testing.assert_array_equal(np.sort(found), np.sort(values[1:-1] if len(found) < count else values))


async def test_the_error(api: Api):
    store: dict[str, bytes] = {}
    values = np.random.default_rng(0).normal(size=1000)
    await api(api.create_array(store, data=values, chunks=1000))
    damaged = bytearray(store["c/0"])
    damaged[5000] ^= 1  # incompressible values are stored as they are: nothing but a checksum detects it
    store["c/0"] = bytes(damaged)
    array = await api(api.open_array(store))
    with pytest.raises(ChecksumError, match=r"c/0 in .*codec zstd cannot decode: .*checksum"):
        await api(array[...])
    report = await api(api.validate(store, data=True))
    assert not report.ok
    assert "checksum" in str(report)


# ------------------------------------------------------------------ reports of arrays without checksums


@pytest.mark.parametrize(
    ("compressors", "has_checksum"),
    [
        ("auto", True),
        ("zstd", True),
        ("gzip", True),
        (["zstd", "crc32c"], True),
        (["crc32c", ZstdCodec(checksum=False)], True),
        ("numcodecs.zlib", True),
        (ZstdCodec(checksum=False), False),
        (BloscCodec(), False),
        ("numcodecs.lz4", False),
        (None, False),
    ],
)
async def test_arrays_without_checksums_are_reported(api: Api, compressors: Any, has_checksum: bool):
    store: dict[str, bytes] = {}
    shards = 20 if api.name == "sync" else None
    options = {"chunks": 10, "shards": shards, "compressors": compressors}
    await api(api.create_array(store, path="a", data=np.arange(40), **options))
    report = await api(api.validate(store, data=True))
    assert report.ok
    assert ("stored values have no checksum" in str(report)) is not has_checksum
    assert "no checksum" not in str(await api(api.validate(store)))


def test_values_of_other_writers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A document of format 2 does not show whether there are checksums. The values do."""
    array = sync.create_array(tmp_path, data=np.arange(1000), chunks=100, zarr_format=2)
    assert main(["validate", str(tmp_path), "--data"]) == 0
    assert "no checksum" not in capsys.readouterr().out
    (tmp_path / "3").write_bytes(bytes(numcodecs.Zstd().encode(np.arange(300, 400))))
    assert main(["validate", str(tmp_path), "--data"]) == 0
    assert "1 of 10 stored values have no checksum" in capsys.readouterr().out
    np.testing.assert_array_equal(array[...], np.arange(1000))


KINDS: dict[str, Any] = {
    "u1": np.arange(200, dtype="u1"),
    "f4": np.linspace(0, 1, 200, dtype="f4"),
    "bool": np.arange(200) % 3 == 0,
    "M8[s]": np.arange(200).astype("M8[s]"),
    "S4": np.arange(200).astype("S4"),
    "str": np.arange(200).astype(str).astype("T"),
    "scalar": np.float64(2.5),
}
CODECS = [None, {"id": "gzip"}, {"id": "bz2"}, {"id": "lzma"}, {"id": "zlib"}]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec["id"] if codec else "default")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_flipped_bits_of_all_kinds_of_values(zarr_format: int, codec: dict[str, Any] | None):
    """In the layouts that ``create_array`` makes by default, and with the other codecs that have checksums."""
    rng = np.random.default_rng(2)
    for values in KINDS.values():
        options: dict[str, Any]
        for options in ({}, {"chunks": 50, "shards": 100}):
            if options and (zarr_format == 2 or not values.ndim):
                continue
            store: dict[str, bytes] = {}
            chosen: dict[str, Any] = {**options, **({"compressors": [codec]} if codec else {})}
            array = sync.create_array(store, data=values, zarr_format=zarr_format, **chosen)
            expected = np.asarray(array[...]).tolist()
            key = next(name for name in store if not name.endswith(("json", ".zarray", ".zattrs")))
            original = bytes(store[key])
            for position in rng.permutation(len(original))[:40].tolist():
                damaged = bytearray(original)
                damaged[position] ^= 1 << int(rng.integers(8))
                store[key] = bytes(damaged)
                with contextlib.suppress(CodecError):
                    assert np.asarray(sync.open_array(store)[...]).tolist() == expected
