"""``to_xarray`` of groups and arrays, and ``dataset.zarrasync``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray", reason="xarray is not installed")
from tests.support.api import Api
from zarrasync import sync
from zarrasync.errors import LabelError
from zarrasync.stores.counting import CountingStore
from zarrasync.stores.local import LocalStore

UNITS = {"units": "days since 2000-01-01"}


def create(store: Any) -> None:
    group = sync.create_group(store)
    group.create_array("a/time", data=np.arange(5), dimension_names=["time"], attributes=UNITS)
    packed = {"scale_factor": 0.5, "_FillValue": -1}
    values = np.arange(20, dtype="i2").reshape(5, 4) - 1
    group.create_array("a/t2m", data=values, chunks=(2, 2), dimension_names=["time", "x"], attributes=packed)


async def test_nodes_become_objects_of_xarray(api: Api, tmp_path: Path):
    create(tmp_path)
    expected = xr.open_dataset(tmp_path, engine="zarrasync", group="a")
    group = await api(api.open_group(tmp_path, path="a"))
    xr.testing.assert_identical(await api(group.to_xarray()), expected)
    array = await api(group.get("t2m"))
    xr.testing.assert_identical(await api(array.to_xarray()), expected.t2m)
    assert (await api(array.to_xarray(chunks={}))).chunks == ((2, 2, 1), (2, 2))
    assert (await api(group.to_xarray(decode_times=False))).time.dtype.kind == "i"
    alone = await api(api.create_array({}, data=np.array([1, 2], "i2"), attributes={"scale_factor": 0.5}))
    assert (await api(alone.to_xarray())).values.tolist() == [0.5, 1.0]


async def test_levels_of_pyramids(api: Api, tmp_path: Path):
    axes = [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    datasets = [
        {"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": [2.0**n, 2.0**n]}]} for n in range(2)
    ]
    ome = {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}}
    image = sync.create_group(tmp_path, attributes=ome)
    for n in range(2):
        image.create_array(str(n), data=np.zeros((8 >> n, 8 >> n)), dimension_names=["y", "x"])
    array = await api(api.open_array(tmp_path, path="1"))
    level = await api(array.to_xarray())
    assert (level.shape, level.x.values.tolist()) == ((4, 4), [0, 2, 4, 6])
    part = await api(array.sel(x=slice(2, 5), y=0))
    assert part.shape == (2,)
    group = await api(api.open_group(tmp_path))
    with pytest.raises(LabelError, match="use sel of one of them"):
        await api(group.sel(x=2))


async def test_without_xarray(api: Api, monkeypatch: pytest.MonkeyPatch):
    array = await api(api.create_array({}, data=[1, 2]))
    for name in [name for name in sys.modules if name.startswith("zarrasync.integrations.xarray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'zarrasync\[xarray\]'"):
        await api(array.to_xarray())


def test_what_loading_takes(tmp_path: Path):
    create(tmp_path)
    store = CountingStore(LocalStore(tmp_path))
    dataset = xr.open_dataset(store, engine="zarrasync", group="a")
    assert dataset.zarrasync.store.identity == store.identity
    assert dataset.zarrasync.chunks == {"t2m": (2, 2)}
    for part in (dataset, dataset.isel(x=1), dataset.sel(time="2000-01-02"), dataset.isel(time=[0, 4], x=[0, 1])):
        (explanation,) = part.zarrasync.explain().values()
        assert explanation == part.t2m.zarrasync.explain()
        assert explanation.shape == part.t2m.shape
        store.reset()
        part.load()
        assert store.counts.fetches == explanation.requests > 0
        assert part.zarrasync.explain() == {}
    pointwise = xr.open_dataset(store, engine="zarrasync", group="a").t2m[xr.DataArray([0, 4], dims="p"), [1, 2]]
    assert pointwise.zarrasync.selection.shape == (2, 2)
    np.testing.assert_array_equal(pointwise.zarrasync.selection.read() / 2, pointwise.values)
    with pytest.raises(ValueError, match="'t2m' is not lazy"):
        _ = pointwise.load().zarrasync.chunks
    with pytest.raises(ValueError, match="found 0 stores"):
        _ = xr.Dataset().zarrasync.store
