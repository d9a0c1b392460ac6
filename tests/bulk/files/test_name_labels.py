"""Times in the names of files as the labels of their rows."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.bulk.files.sources.headers import ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.identify import find_files
from zarrasync.bulk.files.sources.name_labels import label_of
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError, ShapeError

xr = pytest.importorskip("xarray", reason="its users read the times")

OPTIONS: dict[str, Any] = {"concat": "time", "dims": "y,x", "labels": "ndvi_%Y%m%d"}


def write(folder: Path, *days: int, add: int = 0, name: str = "ndvi_202401{:02}.npy") -> list[Path]:
    paths = [folder / name.format(day) for day in days]
    for path, day in zip(paths, days, strict=True):
        before = path.stat().st_mtime_ns if path.exists() else 0
        np.save(path, np.full((2, 3), day + add, "f4"))
        os.utime(path, ns=(0, max(before + 1, path.stat().st_mtime_ns)))
    return paths


def rows(store: Any) -> dict[str, int]:
    with xr.open_dataset(store, engine="zarrasync") as dataset:
        times = np.datetime_as_string(dataset.time.values, unit="D").tolist()
        return dict(zip(times, dataset["values"].values[:, 0, 0].astype(int).tolist(), strict=True))


def of(*days: int, add: int = 0) -> dict[str, int]:
    return {f"2024-01-{day:02}": day + add for day in days}


@pytest.mark.parametrize(
    ("name", "pattern", "time"),
    [
        ("ndvi_20240103.tif", "ndvi_%Y%m%d", "2024-01-03"),
        ("ndvi_20240103.tif", "%Y%m%d.tif", "2024-01-03"),
        ("scene_2024-01-03T10-30.npy", "%Y-%m-%dT%H-%M", "2024-01-03T10:30"),
        ("tile_12345678_20240103_001.npy", "%Y%m%d", "2024-01-03"),
        ("20240103_001.npy", "%Y%m%d_", "2024-01-03"),
        ("S2B_MSIL2A_20240103T103421_N0510_20240104T141501.tif", "S2?_*_%Y%m%dT%H%M%S_N", "2024-01-03T10:34:21"),
        ("MOD13A2.A2024003.h18v04.061.tif", "A%Y%j", "2024-01-03"),
        ("2024/01/03/b.tif", "%Y/%m/%d/b", "2024-01-03"),
        ("2024/x_20240103.tif", "%Y/x_%Y%m%d", "2024-01-03"),
        ("x_24_3Jan.tif", "x_%y_3%b", "2024-01-01"),
        ("100%_2024.tif", "%%_%Y", "2024-01-01"),
        ("x_202401030130+0200.tif", "%Y%m%d%H%M%z", "2024-01-02T23:30"),
        ("x_20240103T233000Z.tif", "%Y%m%dT%H%M%S%z", "2024-01-03T23:30"),
        ("x_01_30_PM_1960.tif", "%I_%M_%p_%Y", "1960-01-01T13:30"),
    ],
)
def test_patterns(name: str, pattern: str, time: str):
    expected = int(np.datetime64(time, "s").astype("i8"))
    for url in (f"/data/1999/{name}", f"https://host/1999/{name}?X-Amz-Date=20200101"):
        assert label_of(SourceFile(url), pattern) == expected
    assert label_of(SourceFile("a_20240103T000000.5"), "%Y%m%dT%H%M%S.%f") == int(
        np.datetime64("2024-01-03T00:00:00.5", "us").astype("i8")
    )


@pytest.mark.parametrize(
    ("name", "pattern", "message"),
    [
        ("ndvi.tif", "ndvi_%Y%m%d", r"the name of /data/ndvi.tif contains no time that matches labels='ndvi_%Y%m%d'"),
        ("ndvi_20241303.tif", "ndvi_%Y%m%d", "contains no time"),
        ("ndvi_2024010310.tif", "ndvi_%Y%m%d", "contains no time"),
        (
            "LC08_20240103_20240112.tif",
            "%Y%m%d",
            "several times .*: 2024-01-03T00:00:00, 2024-01-12T00:00:00; write more",
        ),
        ("2023_x_20240103.tif", "%Y_x_%Y%m%d", "contains no time"),
    ],
)
def test_names_that_do_not_match(name: str, pattern: str, message: str):
    with pytest.raises(ShapeError, match=message):
        label_of(SourceFile(f"/data/{name}"), pattern)


async def test_invalid_arguments(api: Api, tmp_path: Path):
    paths = write(tmp_path, 1, 2)
    for pattern, message in [("%Q%Y", "the code '%Q'"), ("%Y%", "the code '%'"), ("x%m", "no year")]:
        with pytest.raises(ValueError, match=message):
            await api(api.ingest(paths, {}, **{**OPTIONS, "labels": pattern}))
    with pytest.raises(TypeError, match="labels must be a pattern of names"):
        await api(api.ingest(paths, {}, **{**OPTIONS, "labels": ["%Y"]}))
    with pytest.raises(ValueError, match="labels need the name of the dimension"):
        await api(api.ingest(paths[0], {}, labels="%Y%m%d"))
    with pytest.raises(ShapeError, match=r"the name of .*other.npy contains no time"):
        await api(api.ingest([*paths, *write(tmp_path, 3, name="other.npy")], tmp_path / "out.zarr", **OPTIONS))
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_labels_of_a_new_dataset(api: Api, tmp_path: Path, zarr_format: int):
    report = await api(
        api.ingest(
            [write(tmp_path, day)[0] for day in (5, 1, 2, 3)],
            store := {},
            **OPTIONS,
            zarr_format=zarr_format,
            chunks={"time": 2},
            verify=True,
        )
    )
    assert report.notes == ["1 gap in 'time': 2024-01-03T00:00:00 to 2024-01-05T00:00:00"]
    assert list(rows(store).items()) == list(of(1, 2, 3, 5).items())
    array = sync.open_array(store, path="time")
    assert (array.dtype, array.attrs["units"]) == (np.dtype("i8"), "seconds since 1970-01-01")


async def test_appends_and_repeated_labels(api: Api, tmp_path: Path):
    write(tmp_path, 1, 2)
    pattern, store = str(tmp_path / "*.npy"), dict[str, bytes]()
    await api(api.ingest(pattern, store, **OPTIONS))
    write(tmp_path, 3, 4)
    report = await api(api.ingest(pattern, store, append=True, **OPTIONS))
    assert (report.known, report.files) == (2, 2)
    other = write(tmp_path, 2, 3, add=100, name="new_ndvi_202401{:02}.npy")
    with pytest.raises(ShapeError, match=r"label 2024-01-02T00:00:00 of .*new_ndvi_20240102.npy"):
        await api(api.ingest(other, store, append=True, **OPTIONS))
    await api(api.ingest(other, store, append=True, on_duplicate="skip", **OPTIONS))
    assert rows(store) == of(1, 2, 3, 4)
    await api(api.ingest(other[0], store, region="auto", **OPTIONS))
    assert rows(store) == {**of(1, 2, 3, 4), **of(2, add=100)}
    assert (await api(api.ingest(other, store, append=True, on_duplicate="replace", **OPTIONS))).known == 2
    await api(api.ingest(other[1], store, region="auto", **OPTIONS))
    assert rows(store) == {**of(1, 2, 3, 4), **of(2, 3, add=100)}
    await api(api.ingest(write(tmp_path, 0, name="ndvi_20231231.npy"), store, append=True, **OPTIONS))
    assert list(rows(store).items())[1:] == list({**of(1, 2, 3, 4), **of(2, 3, add=100)}.items())
    with pytest.raises(NodeExistsError, match="other parameters"):
        await api(api.ingest(pattern, store, **{**OPTIONS, "labels": "%Y%m%d"}))


async def test_labels_in_other_units(api: Api, tmp_path: Path):
    """Files without labels follow files with labels, in the units of the dataset."""
    pytest.importorskip("netCDF4", reason="writes the first file")
    time = np.array(["2024-01-01"], "M8[ns]")
    first = xr.Dataset({"values": (("time", "y", "x"), np.ones((1, 2, 3), "f4"))}, {"time": time})
    first.to_netcdf(tmp_path / "0.nc", encoding={"time": {"units": "hours since 2000-01-01"}})
    await api(api.ingest(tmp_path / "0.nc", store := {}, concat="time"))
    await api(api.ingest(write(tmp_path, 2, 3), store, append=True, **OPTIONS))
    assert rows(store) == of(1, 2, 3)
    encoding = {"time": {"attributes": {"units": "days since 2024-01-01"}, "dtype": "i4"}}
    await api(api.ingest(write(tmp_path, 2, 3), store := {}, encoding=encoding, **OPTIONS))
    assert sync.open_array(store, path="time")[:].tolist() == [1, 2]


async def test_files_with_the_dimension(api: Api, tmp_path: Path):
    options = {**OPTIONS, "dims": "time,x"}
    paths = [tmp_path / f"ndvi_2024010{day}.npy" for day in (1, 2)]
    for path in paths:
        np.save(path, np.ones((1, 3)))
    await api(api.ingest(paths, store := {}, **options))
    assert sync.open_array(store, path="values").shape == (2, 3)
    np.save(paths[1], np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"ndvi_20240102.npy has 2 rows along 'time'"):
        await api(api.ingest(paths, {}, **options))
    np.savez(tmp_path / "ndvi_20240103.npz", values=np.ones((1, 3)), time=[5])
    with pytest.raises(ShapeError, match=r"ndvi_20240103.npz has labels 'time' of its own; omit labels="):
        await api(api.ingest(tmp_path / "ndvi_20240103.npz", {}, **options))


def test_labels_that_tasks_read(tmp_path: Path):
    """Plans of many files do not contain the labels."""
    (file,) = find_files(write(tmp_path, 2), {})
    with closing(OpenFiles(ReaderOptions(dim="time", labels=OPTIONS["labels"]))) as files:
        label = files.headers([file])[0].variables["time"].values
        assert files.read(file, "time", ()) == label
        assert files.read(file, "time", (slice(0, 1),)) == [label]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, 1, 2)
    out, plan = str(tmp_path / "out.zarr"), str(tmp_path / "job.plan")
    words = [str(tmp_path / "*.npy"), out, "--concat", "time", "--dims", "y,x", "--labels", "ndvi_%Y%m%d"]
    assert main(["ingest", *words]) == 0
    assert rows(out) == of(1, 2)
    write(tmp_path, 3, 4)
    assert main(["ingest", "plan", *words, "--append", "--plan", plan]) == 0
    assert main(["ingest", "run", plan]) == 0
    assert main(["ingest", "finish", plan, "--verify"]) == 0
    assert rows(out) == of(1, 2, 3, 4)
    assert main(["ingest", *words, "--append"]) == 0
    assert "4 files ingested before" in capsys.readouterr().out
    write(tmp_path, 5, name="other.npy")
    assert main(["ingest", *words, "--append"]) == 1
    assert "contains no time that matches --labels 'ndvi_%Y%m%d'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["ingest", str(tmp_path / "ndvi_20240101.npy"), out, "--labels", "%Y"])
    assert "--labels needs --concat DIM" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["ingest", "--help"])
    assert "--labels 'ndvi_%Y%m%d'" in capsys.readouterr().out
