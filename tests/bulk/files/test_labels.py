"""Labels of rows, and rows without them: large numbers, order, single rows, and variables with fewer rows than others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")


def write(folder: Path, number: int, labels: Any, dim: str = "id") -> Path:
    path = folder / f"{number}.nc"
    xr.Dataset({"v": (dim, np.full(len(labels), number))}, coords={dim: labels}).to_netcdf(path)
    return path


@pytest.mark.parametrize("on_duplicate", ["error", "skip"])
@pytest.mark.parametrize("start", [2**60, 2**63 - 2, 2**64 - 6])
async def test_neighbouring_large_labels(api: Api, tmp_path: Path, on_duplicate: Any, start: int):
    labels = [start + number for number in range(6)]
    paths = [write(tmp_path, n, np.array(labels[3 * n : 3 * n + 3], "u8")) for n in range(2)]
    await api(api.ingest(paths[1], store := {}, concat="id", on_duplicate=on_duplicate))
    await api(api.ingest(paths[0], store, concat="id", append=True, on_duplicate=on_duplicate))
    await api(api.ingest(paths[::-1], other := {}, concat="id", on_duplicate=on_duplicate))
    for found in (store, other):
        assert sync.open_array(found, path="id")[:].tolist() == labels
        assert sync.open_array(found, path="v")[:].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0, 2, 1], "1 follows 2 in row 2, but labels must increase"),
        ([2, 0, 1], "1 follows 0 in row 2, but labels must decrease"),
        ([0, 1, 1], "1 of row 1 is repeated in row 2, but labels must differ"),
        ([1, 1, 2], "1 of row 0 is repeated in row 1, but labels must differ"),
        ([2, 1, 2], "2 of row 0 is repeated in row 2, but labels must differ"),
    ],
)
async def test_labels_out_of_order(api: Api, tmp_path: Path, labels: list[int], reason: str):
    with pytest.raises(ShapeError, match=rf"0.nc are not in order: {reason}; sort the file first"):
        await api(api.ingest(write(tmp_path, 0, labels), {}, concat="id"))


async def test_files_of_one_row_before_and_after_others(api: Api, tmp_path: Path):
    path = write(tmp_path, 0, [0, 1])
    with xr.open_dataset(write(tmp_path, 1, [2, 3])) as dataset:
        dataset.isel(id=0).to_netcdf(tmp_path / "one.nc")
    for order in ([path, tmp_path / "one.nc"], [tmp_path / "one.nc", write(tmp_path, 2, [4, 5])]):
        store: dict[str, Any] = {}
        for file in order:
            await api(api.ingest(file, store, concat="id", append=True))
        assert len(sync.open_array(store, path="v")[:]) == 3


async def test_a_dimension_that_no_file_has(api: Api, tmp_path: Path):
    paths = [write(tmp_path, n, [2 * n, 2 * n + 1]) for n in range(2)]
    message = "'id' must be the same .* The files have no dimension 'ix', so each of them is one row; they have id"
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(paths, {}, concat="ix"))


@pytest.mark.parametrize("labelled", [False, True])
async def test_variables_with_fewer_rows_than_others(api: Api, tmp_path: Path, labelled: bool):
    """netCDF-4 stores the rows of each variable up to the last one that was written."""
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.nc")
        with nc.Dataset(paths[-1], "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", 30)
            if labelled:
                file.createVariable("time", "i4", ("time",))[:] = np.arange(5) + 5 * number
            file.createVariable("long", "f4", ("time", "x"), chunksizes=(2, 30))[:] = np.full((5, 30), number)
            file.createVariable("short", "f4", ("time", "x"), chunksizes=(2, 30), fill_value=-1)[:2] = number
    await api(api.ingest(paths, store := {}, concat="time", chunks={"time": 3}, verify=True))
    expected = [value for number in range(2) for value in (number, number, -1, -1, -1)]
    np.testing.assert_array_equal(sync.open_array(store, path="short")[:, 0], expected)


async def test_single_numbers_become_rows(api: Api, tmp_path: Path):
    """Whether a variable has rows does not depend on the number of files in the first job."""
    paths = []
    for number in range(3):
        variables = {"v": number // 2, "crs": 0, "utm": ((), 0, {"grid_mapping_name": "transverse_mercator"})}
        dataset = xr.Dataset({**variables, "image": ("x", [1.0, 2], {"grid_mapping": "crs: x"})})
        paths.append(tmp_path / f"{number}.nc")
        dataset.to_netcdf(paths[-1])
    for parts in ([paths], [paths[:1], paths[1:]], [[path] for path in paths]):
        store: dict[str, Any] = {}
        for part in parts:
            await api(api.ingest(part, store, concat="time", append=True))
        assert sync.open_array(store, path="v")[:].tolist() == [0, 0, 1]
        assert sync.open_array(store, path="crs").shape == sync.open_array(store, path="utm").shape == ()
    await api(api.ingest(paths, store := {}, concat="time", variables=["image"]))
    assert set(sync.open_group(store)) == {"image", "crs"}


async def test_labels_that_nearly_repeat_each_other(api: Api, tmp_path: Path):
    """The same times, which two programs have rounded in different ways."""
    hours = np.arange(24)
    paths = [
        write(tmp_path, 0, hours / 24, "time"),
        write(tmp_path, 1, np.cumsum(np.full(30, 1 / 24)) - 1 / 24, "time"),
    ]
    report = await api(api.ingest(paths, {}, concat="time", on_duplicate="skip"))
    assert any(re.search(r"pairs of labels in 'time' nearly repeat .*; both rows are stored", n) for n in report.notes)
    await api(api.ingest(paths[0], store := {}, concat="time"))
    late = write(tmp_path, 2, np.nextafter(23 / 24, 2) + np.arange(3) / 24, "time")
    report = await api(api.ingest(late, store, concat="time", append=True))
    assert [note.partition(" nearly")[0] for note in report.notes] == ["1 pair of labels in 'time'"]
    nanoseconds = 1_700_000_000_000_000_000 + np.arange(6)
    paths = [write(tmp_path, 3 + n, nanoseconds[3 * n : 3 * n + 3], "time") for n in range(2)]
    assert (await api(api.ingest(paths, {}, concat="time"))).notes == []


@pytest.mark.parametrize("suffix", ["nc", "zarr", "npz"])
@pytest.mark.parametrize("rows", [3, 9000])
async def test_labels_of_long_files(api: Api, tmp_path: Path, suffix: str, rows: int):
    """The labels of a file with more than 8,192 rows, such as the hours of a year, need more than 64 KiB."""
    paths = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for number, path in enumerate(paths):
        labels, values = np.arange(rows) + rows * number, np.full(rows, number, "i1")
        dataset = xr.Dataset({"v": ("id", values)}, {"id": labels})
        if suffix == "npz":
            np.savez(path, v=values, id=labels)
        else:
            dataset.to_netcdf(path) if suffix == "nc" else dataset.to_zarr(path, consolidated=False)
    options: dict[str, Any] = {"concat": "id", "dims": "id"}
    await api(api.ingest(paths[::-1], store := {}, **options))
    assert (sync.open_array(store, path="id")[:] == np.arange(2 * rows)).all()
    assert (sync.open_array(store, path="v")[:] == np.repeat([0, 1], rows)).all()
    report = await api(api.ingest(paths, store, append=True, **options))
    assert (report.known, report.files) == (2, 0)
    with pytest.raises(ShapeError, match="already contains the label 0"):
        await api(api.ingest(_copy(paths[0]), store, append=True, **options))


def _copy(path: Path) -> Path:
    return Path((shutil.copytree if path.is_dir() else shutil.copy)(path, path.with_name(f"copy-{path.name}")))


@pytest.mark.parametrize("units", ["1", "hours since 2000-01-01"])
async def test_labels_with_the_attribute_unsigned(api: Api, tmp_path: Path, units: str):
    """netCDF-3 has no unsigned integers, so an attribute says that signed ones are unsigned."""
    paths = []
    for number, labels in enumerate([[100, 120], [127, 128], [200, 255]]):
        paths.append(tmp_path / f"{number}.nc")
        with nc.Dataset(paths[-1], "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("id", 2)
            own = file.createVariable("id", "i1", ("id",))
            own.setncatts({"_Unsigned": "true", "units": units})
            own.set_auto_maskandscale(False)
            own[:] = np.array(labels, "u1").view("i1")
            file.createVariable("v", "i4", ("id",))[:] = [number, number]
    options: dict[str, Any] = {"concat": "id", "verify": True}
    await api(api.ingest([paths[1], paths[0]], store := {}, **options))
    await api(api.ingest(paths, store, append=True, **options))
    report = await api(api.ingest(paths, store, append=True, **options))
    assert (report.known, report.files) == (3, 0)
    with pytest.raises(ShapeError, match=r"already contains the label (200|2000-01-09T08:00:00) of .*copy"):
        await api(api.ingest(_copy(paths[2]), store, append=True, **options))
    assert sync.open_array(store, path="v")[:].tolist() == [0, 0, 1, 1, 2, 2]
    with xr.open_dataset(store, engine="zarrasync", decode_times=False) as dataset:
        assert dataset.id.to_numpy().tolist() == [100, 120, 127, 128, 200, 255]
