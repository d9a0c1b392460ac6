"""A remark about rows that are added one by one to large stored values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import Layout

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")


def write(path: Path, first: int, rows: int) -> Path:
    time = np.datetime64("2024-01-01", "ns") + np.arange(first, first + rows) * np.timedelta64(1, "h")
    values = np.random.default_rng(first).normal(size=(rows, 200, 200)).astype("f4")
    xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": time}).to_netcdf(path, engine="h5netcdf")
    return path


@pytest.mark.parametrize("sharded", [True, False])
async def test_one_row_in_a_large_stored_value(api: Api, tmp_path: Path, *, sharded: bool):
    """160,000 bytes are added to 12 rows, to 2 rows, and to a new stored value."""
    rows = {"time": 14}
    layout: dict[str, Any] = {"chunks": {"time": 1}, "shards": rows} if sharded else {"chunks": rows}
    out = tmp_path / "out.zarr"
    await api(api.ingest_files(write(tmp_path / "0.nc", 0, 12), out, concat="time", layout=Layout(**layout)))
    report = await api(api.ingest_files(write(tmp_path / "1.nc", 12, 1), out, concat="time", append=True))
    unit = "shards" if sharded else "chunks"
    (note,) = [note for note in report.notes if "written again" in note]
    assert note.startswith(
        f"1.8 MiB of 't' are written again to add 156 KiB to the same {unit}; add more rows at a time"
    )
    report = await api(api.ingest_files(write(tmp_path / "2.nc", 13, 3), out, concat="time", append=True))
    assert any("2.0 MiB" in note for note in report.notes)
    report = await api(api.ingest_files(write(tmp_path / "3.nc", 16, 1), out, concat="time", append=True))
    assert not any("written again" in note for note in report.notes)
