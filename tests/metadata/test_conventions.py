"""Copies into other formats mean the same to xarray: dimension names and missing values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.cli import main

xarray = pytest.importorskip("xarray")
pd = pytest.importorskip("pandas")

ENCODING = {"packed": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -99}, "gaps": {"_FillValue": -1.0}}


def dataset() -> Any:
    """Return a dataset with zeros, which are values, and missing values."""
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
    """Copy a hierarchy to another format."""
    match how:
        case "copy":
            sync.copy(source, target, zarr_format=zarr_format)
        case "convert" | "ingest":
            assert main([how, str(source), str(target), "--zarr-format", str(zarr_format)]) == 0
        case _:
            group = sync.create_group(target, zarr_format=zarr_format, attributes=sync.open_group(source).attrs)
            for name, array in sync.open_group(source).arrays():
                more: dict[str, Any] = {} if array.ndim or zarr_format == 3 else {"dimension_names": ()}
                sync.ingest(array, group.store, path=name, zarr_format=zarr_format, **more)


def opened(path: Path, engine: str) -> Any:
    return xarray.open_dataset(path, engine=engine, consolidated=False).load()


@pytest.mark.parametrize("how", ["copy", "convert", "ingest", "each"])
@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 2)])
def test_copies_in_another_format_read_the_same(tmp_path: Path, first: int, second: int, how: str):
    dataset().to_zarr(tmp_path / "a", zarr_format=first, encoding=ENCODING, consolidated=False)
    before = xarray.open_dataset(tmp_path / "a", engine="zarr", consolidated=False).load()
    copies(tmp_path / "a", tmp_path / "b", how, second)
    for engine in ("zarr", "zarrasync"):
        xarray.testing.assert_identical(opened(tmp_path / "b", engine), before)
    copies(tmp_path / "b", tmp_path / "c", how, first)
    xarray.testing.assert_identical(opened(tmp_path / "c", "zarr"), before)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_values_in_files_of_small_types(tmp_path: Path, zarr_format: int):
    """Unsigned numbers stored as signed ones, and characters, which have no missing value."""
    pytest.importorskip("scipy")
    given = xarray.Dataset({"u": ("x", [1.0, np.nan, 3.0]), "letters": ("x", np.array([b"a", b"-"], "S1")[[0, 1, 0]])})
    encoding = {"u": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, "letters": {"_FillValue": b"-"}}
    given.to_netcdf(tmp_path / "a.nc", engine="scipy", encoding=encoding)
    assert main(["ingest", str(tmp_path / "a.nc"), str(tmp_path / "a.zarr"), "--zarr-format", str(zarr_format)]) == 0
    for engine in ("zarr", "zarrasync"):
        found = xarray.open_dataset(tmp_path / "a.zarr", engine=engine, consolidated=False).load()
        np.testing.assert_array_equal(found["u"], [1.0, np.nan, 3.0])


@pytest.mark.parametrize("library", ["h5netcdf", "scipy"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_files_are_ingested_as_they_are_stored(tmp_path: Path, library: str, zarr_format: int):
    pytest.importorskip(library)
    given = dataset().drop_vars(["names", "flags"])  # netCDF 3 has no unsigned types
    given.to_netcdf(tmp_path / "a.nc", engine=library, encoding=ENCODING)
    assert main(["ingest", str(tmp_path / "a.nc"), str(tmp_path / "a.zarr"), "--zarr-format", str(zarr_format)]) == 0
    packed = sync.open_array(tmp_path / "a.zarr", path="packed")
    assert (packed.dtype, packed.attrs["scale_factor"]) == (np.int16, 0.01)
    expected = xarray.open_dataset(tmp_path / "a.nc", engine=library).load()
    for engine in ("zarr", "zarrasync"):
        found = opened(tmp_path / "a.zarr", engine)
        xarray.testing.assert_identical(found, expected)
        assert sorted(found.coords) == ["other", "x"]


async def test_arrays_without_dimension_names_keep_their_fill_values(api: Api):
    """Only arrays with dimension names follow xarray's conventions; others keep their fill values."""
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
    ],
)
def test_missing_values_in_every_format(dtype: Any, value: Any, word: Any):
    second: dict[str, bytes] = {}
    options: dict[str, Any] = {
        "attributes": {"_ARRAY_DIMENSIONS": ["x"]},
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    }
    sync.create_array(second, shape=(2,), dtype=dtype, zarr_format=2, fill_value=value, **options)
    third: dict[str, bytes] = {}
    sync.copy(second, third, zarr_format=3)
    assert json.loads(third["zarr.json"])["attributes"] == {"_FillValue": word}
    again: dict[str, bytes] = {}
    sync.copy(third, again, zarr_format=2)
    assert (json.loads(again[".zarray"]), again[".zattrs"]) == (json.loads(second[".zarray"]), second[".zattrs"])


@pytest.mark.parametrize("dtype", ["S2", "U2", str, bytes, "M8[s]"])
async def test_strings_and_bytes_have_no_missing_value(api: Api, dtype: Any):
    """xarray cannot read a missing value for strings, so none is written and the whole group stays readable."""
    values = np.array([b"a", b""] if dtype in ("S2", bytes) else ["a", ""] if dtype != "M8[s]" else [1, 2], object)
    values = values if dtype in (str, bytes) else values.astype(dtype)
    second: dict[str, bytes] = {}
    await api(api.create_group(second, zarr_format=2))
    told = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "zarr_format": 2, "path": "a"}
    await api(api.create_array(second, data=values, dtype=dtype, **told))
    third: dict[str, bytes] = {}
    await api(api.copy(second, third, zarr_format=3))
    assert json.loads(third["a/zarr.json"])["attributes"] == {}
    assert (await api((await api(api.open_array(third, path="a")))[...])).tolist() == values.tolist()
    if dtype is not bytes:
        assert xarray.open_dataset(third, engine="zarrasync")["a"].shape == (2,)


async def test_missing_chunks_are_stored_where_they_would_be_undefined(api: Api):
    """Some readers return arbitrary values for missing chunks without a fill value."""
    source: dict[str, bytes] = {}
    array = await api(api.create_array(source, shape=(8,), chunks=(2,), dtype="i4", dimension_names=("x",)))
    await api.write(array, slice(2, 4), 5)
    for how in ("copy", "ingest"):
        target: dict[str, bytes] = {}
        if how == "copy":
            await api(api.copy(source, target, zarr_format=2))
        else:
            await api(api.ingest(array, target, zarr_format=2, chunks=(2,)))
        assert json.loads(target[".zarray"])["fill_value"] is None
        assert sorted(key for key in target if key[0] != ".") == ["0", "1", "2", "3"]
        assert (await api((await api(api.open_array(target)))[...])).tolist() == [0, 0, 5, 5, 0, 0, 0, 0]


async def test_very_many_chunks_that_are_absent_stay_so(api: Api):
    for missing in ({}, {"_FillValue": -1}):
        source: dict[str, bytes] = {}
        options = {"shape": (100_000,), "chunks": (1,), "dtype": "i4", "dimension_names": ("x",), "attributes": missing}
        await api.write(await api(api.create_array(source, **options)), 7, 7)
        target: dict[str, bytes] = {}
        report = await api(api.copy(source, target, zarr_format=2, config={"threads": 1}))
        assert len(target) == 3
        assert json.loads(target[".zarray"])["fill_value"] == 0
        assert any("reads the fill value 0 as missing" in note for note in report.notes) == (not missing)


async def test_a_copy_in_the_same_format_is_gone_on_with(api: Api):
    source: dict[str, bytes] = {}
    target: dict[str, bytes] = {}
    await api(api.create_hierarchy(source, {"a": {"data": np.arange(3), "dimension_names": ("x",)}, "s": {"data": 5}}))
    await api(api.copy(source, target))
    assert (await api(api.copy(source, target, resume=True))).copied == 0


@pytest.mark.parametrize(
    ("dtype", "word", "options", "expected"),
    [
        ("i1", 255, {}, (0, {"_FillValue": 255})),
        ("i2", -9.5, {}, (0, {"_FillValue": -9.5})),
        ("f8", 7, {}, (7.0, {})),
        ("i2", 7, {"dtype": "f8"}, (7.0, {})),
        ("i2", -9, {"dtype": "u1"}, (0, {"_FillValue": -9})),
        ("i2", 7, {"fill_value": 0}, (0, {"_FillValue": 7})),
    ],
)
async def test_words_that_do_not_fit_are_left(
    api: Api, dtype: str, word: Any, options: dict[str, Any], expected: tuple[Any, dict[str, Any]]
):
    source, target = dict[str, bytes](), dict[str, bytes]()
    told = {"dimension_names": ("x",), "attributes": {"_FillValue": word}}
    array = await api(api.create_array(source, data=np.arange(3, dtype=dtype), **told))
    await api(api.ingest(array, target, zarr_format=2, **options))
    found = await api(api.open_array(target))
    assert (found.fill_value, dict(found.attrs)) == (expected[0], {"_ARRAY_DIMENSIONS": ["x"], **expected[1]})


async def test_a_fill_value_comes_before_the_attribute_as_in_xarray(api: Api):
    for fill, word in ((7.0, "AAAAAAAAHEA="), (None, "AAAAAAAAIkA=")):
        second, third = dict[str, bytes](), dict[str, bytes]()
        told = {"attributes": {"_ARRAY_DIMENSIONS": ["x"], "_FillValue": 9.0}, "fill_value": fill}
        await api(api.create_array(second, data=np.arange(3.0), zarr_format=2, **told))
        await api(api.copy(second, third, zarr_format=3))
        assert json.loads(third["zarr.json"])["attributes"] == {"_FillValue": word}


async def test_negative_zero_differs_from_zero(api: Api):
    source, target = dict[str, bytes](), dict[str, bytes]()
    await api(api.create_array(source, shape=(2,), dtype="f8", fill_value=-0.0, dimension_names=("x",)))
    await api(api.copy(source, target, zarr_format=2, verify=True))
    assert np.signbit((await api(api.open_array(target))).fill_value)
