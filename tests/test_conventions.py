"""What xarray reads of copies into other formats: names of axes, and what means missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Api

from zarrasync import sync
from zarrasync.cli import main

xarray = pytest.importorskip("xarray")
pd = pytest.importorskip("pandas")

ENCODING = {"packed": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -99}, "gaps": {"_FillValue": -1.0}}


def dataset() -> Any:
    """Zeros, which are values, beside what is missing."""
    return xarray.Dataset(
        {
            "numbers": ("x", [0.0, 1.0, np.nan]),
            "counts": ("x", [0, 1, 2]),
            "flags": ("x", np.array([False, True, True])),
            "names": ("x", np.array(["", "a", "bb"], object)),
            "packed": ("x", [0.0, np.nan, 0.03]),
            "gaps": ("x", [0.0, np.nan, 3.0]),
            "scalar": ((), 0),
            "time": ("x", pd.date_range("2000", periods=3)),
        },
        coords={"x": [0, 1, 2], "other": ("x", [0.0, 5.0, 6.0])},
    )


def copies(source: Path, target: Path, how: str, zarr_format: int) -> None:
    """Make a copy in another format."""
    match how:
        case "copy":
            sync.copy(source, target, zarr_format=zarr_format)
        case "convert" | "ingest":
            assert main([how, str(source), str(target), "--to", str(zarr_format)]) == 0
        case _:
            group = sync.create_group(target, zarr_format=zarr_format, attributes=sync.open_group(source).attrs)
            for name, array in sync.open_group(source).arrays():
                more = {} if array.ndim or zarr_format == 3 else {"dimension_names": ()}
                sync.ingest(array, group.store, path=name, zarr_format=zarr_format, **more)


@pytest.mark.parametrize("how", ["copy", "convert", "ingest", "each"])
@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 2)])
def test_copies_in_another_format_read_the_same(tmp_path: Path, first: int, second: int, how: str):
    dataset().to_zarr(tmp_path / "a", zarr_format=first, encoding=ENCODING, consolidated=False)
    before = xarray.open_dataset(tmp_path / "a", engine="zarr", consolidated=False).load()
    copies(tmp_path / "a", tmp_path / "b", how, second)
    for engine in ("zarr", "zarrasync"):
        xarray.testing.assert_identical(
            xarray.open_dataset(tmp_path / "b", engine=engine, consolidated=False).load(), before
        )
    copies(tmp_path / "b", tmp_path / "c", how, first)
    xarray.testing.assert_identical(
        xarray.open_dataset(tmp_path / "c", engine="zarr", consolidated=False).load(), before
    )


@pytest.mark.parametrize("library", ["h5netcdf", "scipy"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_files_are_ingested_as_they_are_stored(tmp_path: Path, library: str, zarr_format: int):
    pytest.importorskip(library)
    given = dataset().drop_vars(["names", "flags"])  # which netCDF 3 has not
    given.to_netcdf(tmp_path / "a.nc", engine=library, encoding=ENCODING)
    assert main(["ingest", str(tmp_path / "a.nc"), str(tmp_path / "a.zarr"), "--to", str(zarr_format)]) == 0
    packed = sync.open_array(tmp_path / "a.zarr", path="packed")
    assert (packed.dtype, packed.attrs["scale_factor"]) == (np.int16, 0.01)
    expected = xarray.open_dataset(tmp_path / "a.nc", engine=library).load()
    for engine in ("zarr", "zarrasync"):
        found = xarray.open_dataset(tmp_path / "a.zarr", engine=engine, consolidated=False).load()
        xarray.testing.assert_identical(found, expected)
        assert sorted(found.coords) == ["other", "x"]


async def test_arrays_of_nobody_keep_their_fill_values(api: Api):
    """Only axes with names make an array xarray's, and only zeros are not chosen."""
    for names, fill, expected in ((None, 0, 0), (("x",), 0, None), (("x",), 7, 7), (None, 7, 7)):
        source: dict[str, bytes] = {}
        target: dict[str, bytes] = {}
        await api(api.create_array(source, data=np.arange(4), chunks=(2,), dimension_names=names, fill_value=fill))
        await api(api.copy(source, target, zarr_format=2))
        assert json.loads(target[".zarray"])["fill_value"] == expected
        back: dict[str, bytes] = {}
        await api(api.copy(target, back, zarr_format=3))
        document = json.loads(back["zarr.json"])
        told = {"_FillValue": 7} if names and fill else {}
        assert (document["attributes"], document["fill_value"]) == (told, fill)
        assert (await api((await api(api.open_array(back)))[...])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "value", "word"),
    [
        ("f4", -1.5, "AAAAAAAA+L8="),
        ("c8", 1 + 2j, ["AAAAAAAA8D8=", "AAAAAAAAAEA="]),
        ("?", True, True),
        ("u1", 255, 255),
        ("S2", b"ab", "YWI="),
        ("U2", "ab", "ab"),
        (str, "none", "none"),
    ],
)
def test_what_means_missing_in_the_words_of_each_format(dtype: Any, value: Any, word: Any):
    second: dict[str, bytes] = {}
    sync.create_array(
        second, shape=(2,), dtype=dtype, zarr_format=2, fill_value=value, attributes={"_ARRAY_DIMENSIONS": ["x"]}
    )
    third: dict[str, bytes] = {}
    sync.copy(second, third, zarr_format=3)
    assert json.loads(third["zarr.json"])["attributes"] == {"_FillValue": word}
    again: dict[str, bytes] = {}
    sync.copy(third, again, zarr_format=2)
    assert (json.loads(again[".zarray"]), again[".zattrs"]) == (json.loads(second[".zarray"]), second[".zattrs"])
