"""Chunk grids with chunks of different sizes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.codec_documents import entry
from zarrasync import sync
from zarrasync.errors import MetadataError, ShapeError, UnsupportedByFormat

ml_dtypes = pytest.importorskip("ml_dtypes")

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
        ends = (sorted(rng.integers(0, n + 1, 2).tolist()) for n in data.shape)
        box = tuple(slice(start, stop, int(rng.integers(1, 4))) for start, stop in ends)
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
