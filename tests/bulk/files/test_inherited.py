"""Groups whose dimensions have their coordinates in groups above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.bulk.files.sources.headers import ReaderOptions
from zarrasync.bulk.files.sources.identify import find_files
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray", reason="opens the files")
nc = pytest.importorskip("netCDF4", reason="writes the files")

KINDS = ["netcdf4", "h5netcdf", "zarr"]


def write(folder: Path, kind: str, number: int, rows: int = 3) -> Path:
    """Write a file with the times in its root, the latitudes in the group ``obs``, and values in ``obs/raw``."""
    hours = np.datetime64("2024-01-01", "ns") + np.arange(number * rows, (number + 1) * rows) * np.timedelta64(1, "h")
    values = np.arange(rows * 4 * 5.0).reshape(rows, 4, 5) + 100 * number
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset(coords={"time": ("time", hours, {"long_name": "hour"})}),
            "/obs": xr.Dataset(coords={"lat": np.arange(4.0)}),
            "/obs/raw": xr.Dataset({"v": (("time", "lat", "x"), values), "w": ("x", np.arange(5))}),
        }
    )
    path = folder / f"{number}.{'zarr' if kind == 'zarr' else 'nc'}"
    if kind == "zarr":
        pytest.importorskip("zarr", reason="writes the hierarchy")
        tree.to_zarr(path, consolidated=False)
    else:
        pytest.importorskip(kind.replace("netcdf4", "netCDF4"), reason="the engine")
        tree.to_netcdf(path, engine=kind, encoding={"/": {"time": {"units": f"hours since 2024-01-0{1 + number}"}}})
    return path


@pytest.mark.parametrize("kind", KINDS)
async def test_coordinates_of_groups_above(api: Api, tmp_path: Path, kind: str):
    paths = [write(tmp_path, kind, number) for number in (1, 0, 2)]
    engine = None if kind == "zarr" else kind
    options: dict[str, Any] = {"concat": "time", "group": "obs/raw", "engine": engine}
    report = await api(api.ingest(paths[:2], store := {}, verify=True, **options))
    assert report.notes == []
    await api(api.ingest(paths, store, append=True, **options))
    with pytest.raises(ShapeError, match="already contains the label 2024-01-01T00:00:00"):
        (again := tmp_path / f"again{paths[1].suffix}").parent.mkdir(exist_ok=True)
        paths[1].rename(again)
        await api(api.ingest(again, store, append=True, **options))
    arguments = {"engine": "zarr", "consolidated": False} if kind == "zarr" else {"engine": kind}
    trees = [xr.open_datatree(path, **arguments)["obs/raw"].to_dataset() for path in (again, paths[0], paths[2])]
    expected = xr.concat(trees, "time", data_vars="minimal")
    with xr.open_dataset(store, engine="zarrasync") as found:
        xr.testing.assert_equal(found.load(), expected.load())
        assert found.time.attrs == {"long_name": "hour"}


def with_groups(path: Path, sizes: tuple[int, int], *, root: bool = True) -> Path:
    """Write a file whose groups define a dimension anew."""
    with nc.Dataset(path, "w") as file:
        file.createDimension("time", 3)
        if root:
            file.createVariable("time", "i4", ("time",))[:] = [7, 8, 9]
        outer = file.createGroup("a")
        outer.createDimension("time", sizes[0])
        outer.createVariable("u", "i4", ("time",))[:] = range(sizes[0])
        inner = outer.createGroup("b")
        inner.createDimension("time", sizes[1])
        inner.createVariable("v", "i4", ("time",))[:] = range(sizes[1])
    return path


@pytest.mark.parametrize(("sizes", "group"), [((4, 4), "a"), ((4, 3), "a/b"), ((3, 5), "/a/b/")])
async def test_other_dimensions_with_the_same_name(api: Api, tmp_path: Path, sizes: tuple[int, int], group: str):
    path = with_groups(tmp_path / "0.nc", sizes)
    report = await api(api.ingest(path, store := {}, concat="time", group=group))
    assert report.notes[-1] == "the group has no labels 'time': rows are in the order of the files"
    assert "time" not in sync.open_group(store)


@pytest.mark.parametrize("kind", KINDS)
async def test_own_coordinates_come_first(api: Api, tmp_path: Path, kind: str):
    """Also groups above are not opened if they are not needed."""
    path = write(tmp_path, kind, 0)
    files = OpenFiles(ReaderOptions(group="obs", dim="lat"))
    (header,) = files.headers(find_files(path, {}))
    assert list(header.variables) == ["lat"]
    await api(api.ingest(path, store := {}, concat="lat", group="obs"))
    assert list(sync.open_group(store)) == ["lat"]


async def test_a_folder_that_is_not_a_group(api: Api, tmp_path: Path):
    pytest.importorskip("zarr", reason="writes the hierarchy")
    path = write(tmp_path, "zarr", 0)
    (path / "obs" / "zarr.json").unlink()
    await api(api.ingest(path, store := {}, concat="time", group="obs/raw"))
    assert sorted(sync.open_group(store)) == ["time", "v", "w"]
