"""Validation of arrays that share dimensions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.integrations.xarray import write_dataset


@pytest.mark.processes
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_an_append_to_a_dataset_that_was_killed(api: Api, zarr_format: Any, tmp_path: Path):
    """The process dies after it has reserved rows, and before it writes them."""
    xarray = pytest.importorskip("xarray")
    target = str(tmp_path / "data.zarr")
    first = xarray.Dataset({"t2m": ("time", np.ones(5)), "time": np.arange(5.0)})
    write_dataset(first, target, zarr_format=zarr_format, encoding={"time": {"chunks": (5,)}, "t2m": {"chunks": (5,)}})
    assert not (await api(api.validate(target))).findings
    program = f"""
import os, numpy as np, xarray
from zarrasync.integrations.xarray import write_dataset
from zarrasync.stores import LocalStore

class Dying(LocalStore):
    async def put(self, key, data, **options):
        if key.rpartition("/")[2] in ("1", "c/1") or key.endswith("c/1"):
            os._exit(9)
        return await super().put(key, data, **options)

more = xarray.Dataset({{"t2m": ("time", np.ones(7)), "time": np.arange(5.0, 12.0)}})
write_dataset(more, Dying({target!r}), append_dim="time")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 9, done.stderr
    assert sync.open_array(target, path="t2m").shape == (12,)
    findings = [each for each in (await api(api.validate(target))).findings if each.key.startswith("time/")]
    (found,) = [each for each in findings if each.key != "time/.appends"]  # the claim of the append
    assert found.severity == "note"
    assert "the last 7 values of the coordinate are not stored" in found.message
    group = sync.open_group(target, mode="r+")
    for name in ("t2m", "time"):
        group[name].resize(5)
    assert {each.key for each in (await api(api.validate(target))).findings} <= {"time/.appends"}


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_axes_of_one_name_that_are_not_equally_long(api: Api, zarr_format: int):
    """Variables of different lengths, as a killed append on an object store leaves them."""
    store: dict[str, bytes] = {}
    for path, length in {"g/a": 3, "g/b": 4, "g/time": 4, "alone": 9}.items():
        named: dict[str, Any] = {"dimension_names": ("time",)}
        if zarr_format == 2:
            named = {"attributes": {"_ARRAY_DIMENSIONS": ["time"]}}
        await api(api.create_array(store, path=path, shape=length, dtype="i4", zarr_format=zarr_format, **named))
    await api(api.create_array(store, path="g/c", shape=7, dtype="i4", zarr_format=zarr_format))
    report = await api(api.validate(store))
    assert report.ok
    (found,) = report.findings
    assert (found.severity, found.key) == ("note", "g/zarr.json" if zarr_format == 3 else "g/.zgroup")
    assert "different sizes along 'time' (3 in a; 4 in b, time)" in found.message
    group = await api(api.open_group(store, path="g", mode="r+"))
    levels = [{"asset": name} for name in ("a", "b", "time")]
    declared = [{"uuid": "d35379db-88df-4056-af3a-620245f8e347"}]
    await api(group.update_attributes({"multiscales": {"layout": levels}, "zarr_conventions": declared}))
    assert not (await api(api.validate(store))).findings


def test_coordinates_of_any_size():
    """Chunks of an array whose size is not credible are not looked up one by one."""
    store: dict[str, bytes] = {}
    array = sync.create_array(store, path="time", shape=1 << 60, dtype="i4", chunks=1, dimension_names=("time",))
    array[:3] = [1, 2, 3]
    (found,) = [each for each in sync.validate(store).findings if each.key == "time/zarr.json"]
    assert f"the last {(1 << 60) - 3:,} values of the coordinate are not stored" in found.message
