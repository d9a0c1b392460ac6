"""Files that cannot be read, or do not fit the others: all are named, and the others are ingested if that is requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.cli import main
from zarrasync.errors import SourceFilesError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
h5py = pytest.importorskip("h5py", reason="h5py finds the chunk to damage")
pytest.importorskip("h5netcdf", reason="h5netcdf writes the files")

REASONS = {
    "01.nc": "the file is empty (0 bytes)",
    "02.nc": "contains a web page (HTML) instead of data: '<!DOCTYPE html><title>Bad Gateway</title>'",
    "03.nc": "the file is truncated: its header describes",
    "04.nc": "cannot read 't': its chunk 2.0 is damaged",
    "05.nc": "'t' has the dimensions (time: 4, x: 10)",
    "06.nc": "lacks the variable 't', which",
    "07.nc": "'x' must be the same in all files",
}


def day(path: Path, number: int, columns: int = 6000) -> Any:
    time = np.datetime64("2024-01-01", "ns") + (4 * number + np.arange(4)) * np.timedelta64(6, "h")
    values = np.random.default_rng(number).normal(size=(4, columns)).astype("f4")
    dataset = xr.Dataset({"t": (("time", "x"), values)}, {"time": time, "x": np.arange(columns) * 1.0})
    dataset.to_netcdf(path, engine="h5netcdf", encoding={"t": {"zlib": True, "chunksizes": (1, columns)}})
    return dataset


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write 12 files, of which 7 are bad, each in another way."""
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / f"{number:02}.nc" for number in range(12)]
    for number, path in enumerate(paths):
        dataset = day(path, number, 10 if number == 5 else 6000)
        if number in (6, 7):
            changed = dataset.drop_vars("t") if number == 6 else dataset.assign_coords(x=dataset.x + 0.5)
            changed.to_netcdf(path, engine="h5netcdf")
    paths[1].write_bytes(b"")
    paths[2].write_bytes(b"\n<!DOCTYPE html><title>Bad Gateway</title>")
    paths[3].write_bytes(paths[3].read_bytes()[:-1000])
    with h5py.File(paths[4]) as file:
        offset = file["t"].id.get_chunk_info(2).byte_offset
    data = bytearray(paths[4].read_bytes())
    data[offset + 500 : offset + 600] = bytes(100)
    paths[4].write_bytes(data)
    return [path.name for path in paths]


def good_values(files: list[str]) -> Any:
    names = [name for name in files if name not in REASONS]
    return np.concatenate([xr.open_dataset(name, engine="h5netcdf").t.values for name in names])


async def test_all_bad_files_are_named(api: Api, files: list[str]):
    with pytest.raises(SourceFilesError, match=r"6 of 12 files cannot be ingested: .*on_bad_file='skip'") as caught:
        await api(api.ingest_files(files, store := {}, concat="time"))
    named = {Path(name).name: reason for name, reason in caught.value.files.items()}
    assert named.keys() == REASONS.keys() - {"04.nc"}  # whose values are read later
    assert all(REASONS[name] in reason for name, reason in named.items())
    assert store == {}


@pytest.mark.parametrize("executor", [None, pytest.param(2, marks=pytest.mark.processes)])
async def test_others_are_ingested(api: Api, tmp_path: Path, files: list[str], executor: int | None):
    options: dict[str, Any] = {"concat": "time", "executor": executor}
    report = await api(api.ingest_files(files, out := tmp_path / "out.zarr", on_bad_file="skip", **options))
    named = {Path(name).name: reason for name, reason in report.bad_files.items()}
    assert named.keys() == REASONS.keys()
    assert all(REASONS[name] in reason for name, reason in named.items())
    assert report.losses()
    assert (report.files, report.rows) == (5, 20)
    np.testing.assert_array_equal(sync.open_array(out, path="t")[...], good_values(files))
    with pytest.raises(SourceFilesError, match=r"04.nc.* chunk 2.0 is damaged: .*fetch the file again"):
        names = [name for name in files if name not in REASONS.keys() - {"04.nc"}]
        await api(api.ingest_files(names, tmp_path / "new.zarr", **options))
    for number, name in enumerate(files):  # they are ingested when they are repaired
        if name in REASONS:
            day(Path(name), number)
    options |= {"append": True, "on_late": "insert", "on_bad_file": "skip"}
    report = await api(api.ingest_files(files, out, **options))
    assert (report.files, report.known, report.bad_files) == (7, 5, {})
    expected = np.concatenate([xr.open_dataset(name, engine="h5netcdf").t.values for name in files])
    np.testing.assert_array_equal(sync.open_array(out, path="t")[...], expected)


def test_the_command(files: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", *files, "out.zarr", "--concat", "time"]) == 1
    error = capsys.readouterr().err
    assert all(name in error for name in REASONS.keys() - {"04.nc"})
    assert "--on-bad-file skip" in error
    assert main(["ingest", *files, "out.zarr", "--concat", "time", "--on-bad-file", "skip", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["bad_files"].keys() == {str(Path(name).absolute()) for name in REASONS}
    assert main(["ingest", *files, "out.zarr", "--concat", "time", "--append", "--on-bad-file", "skip"]) == 3
    assert "5 ingested before" in capsys.readouterr().out


async def test_a_feed_whose_only_new_file_is_bad(api: Api, files: list[str]):
    await api(api.ingest_files(files[:1], store := {}, concat="time"))
    before = dict(store)
    for name in list(REASONS)[:3]:
        report = await api(api.ingest_files([files[0], name], store, concat="time", append=True, on_bad_file="skip"))
        assert (report.files, report.known, len(report.bad_files)) == (0, 1, 1)
    assert store == before


async def test_tasks_of_a_plan_name_bad_files(api: Api, tmp_path: Path, files: list[str]):
    plan = await api(api.plan_ingest([*files[8:], files[4]], tmp_path / "out.zarr", concat="time"))
    with pytest.raises(SourceFilesError, match=r"04.nc.* chunk 2.0 is damaged"):
        await api(plan.run())
    await api(plan.abandon())


def test_no_file_is_good(files: list[str], capsys: pytest.CaptureFixture[str]):
    """Each has a reason of its own, and none hides the others."""
    own = [name for name in files if name in REASONS and name not in ("04.nc", "07.nc")]
    assert main(["ingest", "check", *own, "--concat", "time"]) == 3
    printed = capsys.readouterr().out
    assert "5 files checked" in printed
    assert [name for name in ("01.nc", "02.nc", "03.nc", "06.nc") if f"{name}: " not in printed] == []
    assert main(["ingest", *own, "out.zarr", "--concat", "time"]) == 1
    error = capsys.readouterr().err
    assert [name for name in ("01.nc", "02.nc", "03.nc", "06.nc") if f"{name}: " not in error] == []
