"""Writes that cut chunks are refused where others' data could be lost."""

from __future__ import annotations

import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.support.api import Api
from tests.support.blocks import VALUES
from zarrasync import stores
from zarrasync.errors import ReadOnlyError, ShapeError


@pytest.mark.parametrize("unaligned", ["default", "safe", "error"])
async def test_assignments_that_cut_chunks(api: Api, unaligned: str, tmp_path: Path):
    """They are refused before anything is stored, unless they are allowed or the store supports them."""
    zarr = pytest.importorskip("zarr")
    plain = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path / "plain"))  # without conditional writes and locks
    local = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "local"))  # with locks between processes
    memory = stores.FsspecStore(fsspec.filesystem("memory"), f"/cut-{time.monotonic_ns()}")  # private to this process
    others = stores.ZarrPythonStore(zarr.storage.WrapperStore(zarr.storage.MemoryStore()))
    config = {} if unaligned == "default" else {"config": {"unaligned": unaligned}}
    point = [("a", "i4"), ("b", "f8")]
    for store in (plain, local, memory, others, {}):
        refused = unaligned == "error" or store is plain
        await api(api.create_array(store, path="x", data=VALUES, chunks=(20, 20)))
        await api(api.create_array(store, path="p", shape=(8,), chunks=4, dtype=point))
        array = await api(api.open_array(store, path="x", mode="r+", **config))
        points = await api(api.open_array(store, path="p", mode="r+", **config))
        await api(array.view[20:40].write(5))
        await api(array.view[80:, 60:].write(6))  # to the end of the array
        await api(points.view[:4].write((1, 2)))
        cutting = [
            (lambda: array.view[5:30].write(7), r"x/c/0/0, x/c/0/1, x/c/0/2 and 5 more .*multiples of \(20, 20\)"),
            (lambda: array.set_orthogonal_selection(([1, 50],), 7), "x/c/0/0"),
            (lambda: array.view[0:40:2].write(7), "x/c/0/0"),
            (lambda: points.set_basic_selection(..., 7, fields="a"), "p/c/0, p/c/1 of"),
            (lambda: array.append(VALUES[:30]), "cannot write conditionally" if store is plain else "x/c/4/0"),
        ]
        for change, match in cutting:
            if not refused:
                await api(change())
                continue
            before = await api((await api(api.open_array(store, path="x")))[...])
            with pytest.raises(ShapeError, match=f"(?s){match}.*allow it with config="):
                await api(change())
            np.testing.assert_array_equal(await api((await api(api.open_array(store, path="x")))[...]), before)
        array = await api(api.open_array(store, path="x", mode="r+", config={"unaligned": "allow"}))
        await api(array.view[5:30].write(8))
        await api(array.append(VALUES[:30]))
        assert array.shape == (120 if refused else 150, 70)
    with pytest.raises(ValueError, match="config unaligned must be 'safe', 'allow' or 'error', found 'never'"):
        await api(api.open_array(plain, path="x", config={"unaligned": "never"}))


async def test_assignments_that_cover_chunks(api: Api, tmp_path: Path):
    """Selections of whole chunks are safe in every form."""
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    expected = VALUES.copy()
    array = await api(api.create_array(store, path="x", data=VALUES, chunks=(1, 35)))
    await api(array.view[::7].write(1))
    expected[::7] = 1
    await api(array.set_orthogonal_selection(([1, 50, 3], slice(35, 70)), 2))
    expected[[1, 50, 3], 35:] = 2
    mask = np.zeros(90, bool)
    mask[[4, 8]] = True
    await api(array.set_orthogonal_selection((mask,), 3))
    expected[mask] = 3
    rows, columns = np.meshgrid([60, 61], np.arange(35)[::-1], indexing="ij")
    await api(array.set_coordinate_selection((rows, columns), 4))
    expected[60:62, :35] = 4
    await api(array.append(VALUES[:0]))
    np.testing.assert_array_equal(await api(array[...]), expected)
    for selection in (([1, 50], slice(35, 69)), ([1, 50], [35, 36]), (slice(None), np.r_[0:34, 0])):
        with pytest.raises(ShapeError, match="x/c/"):
            await api(array.set_orthogonal_selection(selection, 5))
    with pytest.raises(ShapeError, match="x/c/60/0, x/c/61/0 of"):
        await api(array.set_coordinate_selection((rows[:, 1:], columns[:, 1:]), 5))
    points = await api(api.create_array(store, path="p", shape=(8,), chunks=4, dtype=[("a", "i4"), ("b", "f8")]))
    await api(points.view[["a", "b"]].write(np.ones(8, points.dtype)))
    single = await api(api.create_array(store, path="s", shape=(), dtype="i4"))
    await api(single.view[...].write(3))
    assert (await api(single[...]), (await api(points[...]))["b"].tolist()) == (3, [1.0] * 8)
    reading = await api(api.open_array(store, path="x"))
    with pytest.raises(ReadOnlyError):
        await api(reading.append(VALUES[:1]))
