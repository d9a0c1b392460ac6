"""Datasets that are changed, erased or replaced after a job that writes them was killed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.cli import main

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.dying import die_at
from tests.support.netcdf import assert_same, joined, write_days

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")]
OPTIONS: dict[str, Any] = {"concat": "time", "chunks": {"time": 10, "lat": 4}}
PUBLISHED = ("erase", ".ingest/record")
"""This happens as soon as the result is published."""
PUBLISHING = ("put", "zarr.json")
"""This makes new rows visible, after the shapes of arrays and the journal."""
RECORDING = ("put", "time/.sources")
"""This records the files in the journal, after the shapes of arrays."""


def write_unlabelled(folder: Path, count: int) -> list[Path]:
    """Write files whose rows have no labels, so that only the journal tells which ones a dataset contains."""
    paths = write_days(folder, range(count))
    for path in paths:
        with xr.open_dataset(path) as opened:
            dataset = opened.drop_vars("time").load()
        dataset.to_netcdf(path)
    return paths


async def test_a_group_that_was_replaced_contains_no_files(api: Api, tmp_path: Path):
    """The group is replaced after a job has published its files, and before it has removed its own state."""
    paths = write_unlabelled(tmp_path / "nc", 2)
    die_at(*PUBLISHED, paths, out := tmp_path / "out.zarr", **OPTIONS)
    await api(api.create_group(out, overwrite=True))
    assert (out / ".ingest/claim").exists()
    report = await api(api.ingest(paths, out, append=True, **OPTIONS))
    assert (report.known, report.files) == (0, 2)
    with xr.open_zarr(out) as stored:
        assert stored["t2m"].notnull().all()


@pytest.mark.parametrize("event", [PUBLISHED, PUBLISHING])
async def test_values_that_were_erased_are_written_again(api: Api, tmp_path: Path, event: tuple[str, str]):
    """The dataset is erased after its job was killed, while or after it published the result of all tasks."""
    paths = write_days(tmp_path / "nc", range(2))
    die_at(*event, paths, out := tmp_path / "out.zarr", **OPTIONS)
    assert (out / ".ingest/record").exists()
    if event != PUBLISHED:
        await api(api.create_group(out))  # a folder without a group is not erased
    assert main(["rm", "-y", str(out)]) == 0
    report = await api(api.ingest(paths, out, **OPTIONS))
    assert (report.known, report.skipped) == (0, 0)
    assert_same(out, joined(paths))


def resize_all(out: Path, length: int) -> None:
    group = sync.open_group(out, mode="r+")
    for _, array in group.arrays():
        if array.dimension_names[0] == "time":
            array.resize((length, *array.shape[1:]))


@pytest.mark.parametrize("event", [PUBLISHED, PUBLISHING])
@pytest.mark.parametrize("length", [12, 24, 60, 0])
async def test_a_changed_dataset_can_be_replaced(api: Api, tmp_path: Path, event: tuple[str, str], length: int):
    """Rows are removed or added, or an array is deleted, after a job was killed that publishes rows."""
    paths = write_days(tmp_path / "nc", range(2))
    sync.ingest(paths[:1], out := tmp_path / "out.zarr", **OPTIONS)
    die_at(*event, paths, out, append=True, **OPTIONS)
    if length:
        resize_all(out, length)
    else:
        shutil.rmtree(out / "t2m")
    await api(api.ingest(paths, out, mode="w", **OPTIONS))
    assert_same(out, joined(paths))
    assert not (out / ".ingest").exists()


@pytest.mark.parametrize("event", [PUBLISHED, PUBLISHING, RECORDING])
@pytest.mark.parametrize("length", [12, 24])
async def test_rows_that_were_removed_are_written_again(api: Api, tmp_path: Path, event: tuple[str, str], length: int):
    """Rows are removed after a job was killed that publishes rows. They do not come back as fill values."""
    paths = write_days(tmp_path / "nc", range(2))
    sync.ingest(paths[:1], out := tmp_path / "out.zarr", **OPTIONS)
    die_at(*event, paths, out, append=True, **OPTIONS)
    resize_all(out, length)
    report = await api(api.ingest(paths, out, append=True, on_duplicate="skip", **OPTIONS))
    is_undone = any("another writer has changed it since" in note for note in report.notes)
    assert is_undone == (event == RECORDING)
    assert_same(out, joined(paths))


async def test_rows_that_are_appended_again(api: Api, tmp_path: Path):
    """The journal contains the files already, but their rows were removed, then the job that adds them is killed."""
    paths = write_days(tmp_path / "nc", range(2))
    sync.ingest(paths[:1], out := tmp_path / "out.zarr", **OPTIONS)
    sync.ingest(paths, out, append=True, **OPTIONS)
    resize_all(out, 24)
    die_at("put", "t2m/zarr.json", paths, out, append=True, **OPTIONS)
    await api(api.ingest(paths, out, append=True, **OPTIONS))
    assert_same(out, joined(paths))


@pytest.mark.parametrize("lengths", [(24,), (60, 24)], ids=str)
async def test_rows_without_labels_that_were_removed_are_written_again(
    api: Api, tmp_path: Path, lengths: tuple[int, ...]
):
    """Rows are removed after a job was killed that publishes rows."""
    names = ("t2m", "u")
    paths = write_unlabelled(tmp_path / "nc", 2)
    for path in paths:
        with xr.open_dataset(path, mask_and_scale=False) as opened:
            dataset = opened.load().assign(u=opened["t2m"] + 1)
        dataset.to_netcdf(path)
    sync.ingest(paths[:1], out := tmp_path / "out.zarr", **OPTIONS)
    die_at(*PUBLISHING, paths, out, append=True, **OPTIONS)
    for length in lengths:
        for name in names:
            array = sync.open_array(out, path=name, mode="r+")
            array.resize((length, *array.shape[1:]))
    await api(api.ingest(paths, out, append=True, **OPTIONS))
    with xr.open_zarr(out, mask_and_scale=False) as stored, xr.open_dataset(paths[1], mask_and_scale=False) as expected:
        for name in ("t2m", "u"):
            assert (stored[name][24:].to_numpy() == expected[name].to_numpy()).all()
