"""Chunks that the kernel reads and writes one by one: those of grids with several shapes, and those that a caller lists."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from tests.kernel.test_read import LAYOUTS, files, outcome
from tests.kernel.test_write import content, fail
from tests.property.strategies import same
from zarrasync import stores, sync
from zarrasync.stores.base import DirectFiles

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
EDGES = [[10, 20, 10, 24], [15, 30, 15, 15]]
SHAPE = (64, 75)
REGULAR_ONLY = {name for name, options in LAYOUTS.items() if options.get("zarr_format") == 2 or "shards" in options}


@pytest.fixture(params=[name for name in LAYOUTS if name not in REGULAR_ONLY])
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LAYOUTS[request.param]


@pytest.fixture
def values() -> np.ndarray:
    values = np.random.default_rng(0).integers(1, 99, SHAPE).cumsum(0).astype("i4")
    values[10:30, 15:45] = 7
    return values


def make(path: Path, native: str, **options: Any) -> sync.Array:
    return sync.create_array(
        path, dtype="i4", shape=SHAPE, chunks=EDGES, fill_value=7, config={"native": native, "threads": 2}, **options
    )


def test_only_the_kernel(tmp_path: Path, layout: dict[str, Any], values: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    """No whole chunk passes through the store, in synchronous and in asynchronous calls."""
    array = make(tmp_path / "a", "require", **layout)
    for name in ("put", "put_values", "fetch", "fetch_values"):
        monkeypatch.setattr(stores.LocalStore, name, fail)
    monkeypatch.setattr(stores.LocalStore, "direct_files", DirectFiles(f"{tmp_path}/a/".encode(), fsync=False))
    array[...] = values
    assert same(array[...], values)
    assert same(array[5:50:3, ::-1], values[5:50:3, ::-1])
    assert same(array.oindex[[60, 2, 31], :], values[[60, 2, 31]])

    async def read() -> Any:
        return await array._async.view[3:50, 20:70].read()

    assert same(asyncio.run(read()), values[3:50, 20:70])


def test_the_same_files_and_values(tmp_path: Path, layout: dict[str, Any], values: np.ndarray):
    rng = random.Random(0)
    arrays = {native: make(tmp_path / native, native, **layout) for native in ("require", "off")}
    for number in range(12):
        rows, columns = (sorted(rng.sample(range(size + 1), 2)) for size in SHAPE)
        key = (slice(*rows), slice(*columns)) if number else ...
        for array in arrays.values():
            array[key] = values[key] if number % 4 else 7
        assert content(tmp_path / "require") == content(tmp_path / "off")
        assert same(arrays["require"][key], arrays["off"][key])


def test_absent_and_damaged_chunks(tmp_path: Path, values: np.ndarray):
    array = make(tmp_path / "a", "require", compressors="zstd")
    array[...] = values
    stored = files(tmp_path / "a")
    stored[3].unlink()
    with pytest.raises(za.errors.MissingChunkError, match="2 of the chunks"):  # one has only fill values
        array.view.read(missing="error")
    stored[5].write_bytes(stored[5].read_bytes()[:-3])
    errors = [
        outcome(lambda: sync.open_array(tmp_path / "a", config={"native": native})[...])  # called at once
        for native in ("require", "off")
    ]
    assert errors[0] == errors[1]
    assert stored[5].relative_to(tmp_path / "a").as_posix() in errors[0][1]


def test_progress(tmp_path: Path, values: np.ndarray):
    array = make(tmp_path / "a", "require")
    for transfer in (
        lambda report: array.view.write(values, progress=report),
        lambda report: array.view.read(progress=report),
    ):
        steps: list[int] = []
        transfer(steps.append)
        assert sum(steps) == values.nbytes


@pytest.mark.parametrize("order", ["C", "F", "morton"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_orders_of_inner_chunks(tmp_path: Path, order: Any, location: str, values: np.ndarray):
    """New shards contain their inner chunks in the order that the codec gives."""
    codec = za.codecs.ShardingCodec(
        (8, 5),
        za.codecs.CodecChain.of([za.codecs.BytesCodec(), za.codecs.Crc32cCodec()]),
        index_location=location,
        order=order,
    )
    for native in ("require", "off"):
        array = sync.create_array(
            tmp_path / native,
            shape=SHAPE,
            chunks=(32, 25),
            dtype="i4",
            fill_value=7,
            serializer=codec,
            compressors=None,
            config={"native": native},
        )
        array[...] = values
        array[3:40, :60] = values[:37, :60]
    assert content(tmp_path / "require") == content(tmp_path / "off")
    assert same(sync.open_array(tmp_path / "require")[40:], values[40:])
