"""Strings of a fixed length, whose length differs between files and the destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from tests.support.ingested import run_all, work_of
from zarrasync import stores, sync
from zarrasync.bulk.files.ingestion import make_job
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.errors import ShapeError

OPTIONS: dict[str, Any] = {"concat": "row", "dims": "row", "append": True}


LARGE = 33_000
"""A variable with this many strings is read by the tasks; the values of others are known from the headers."""


@pytest.fixture(params=[1, LARGE], ids=["small", "large"])
def times(request: pytest.FixtureRequest) -> int:
    """How many times each file contains its values."""
    return int(request.param)


def write(path: Path, values: list[str], dtype: str, times: int = 1) -> Path:
    np.savez(path, names=np.array(values * times, dtype))
    return path


@pytest.mark.parametrize(("lengths", "zarr_format", "kind"), covering([(3, 5), (5, 3)], [2, 3], ["U", "S"]))
async def test_strings_that_fit(api: Api, tmp_path: Path, times: int, kind: str, zarr_format: int, lengths: Any):
    first, second = (write(tmp_path / f"{n}.npz", ["abc", f"{n}"], f"{kind}{n}", times) for n in lengths)
    await api(api.ingest(first, store := {}, zarr_format=zarr_format, **OPTIONS))
    await api(api.ingest(second, store, verify=True, **OPTIONS))
    array = sync.open_array(store, path="names")
    assert array.dtype == np.dtype(f"{kind}{lengths[0]}")
    assert array[:].astype("U").tolist() == ["abc", str(lengths[0])] * times + ["abc", str(lengths[1])] * times


@pytest.mark.parametrize("kind", ["U", "S"])
async def test_a_string_that_is_too_long(api: Api, tmp_path: Path, times: int, kind: str):
    first = write(tmp_path / "0.npz", ["abc", "d"], f"{kind}3", times)
    second = write(tmp_path / "1.npz", ["abcdefg", "d"], f"{kind}9", times)
    await api(api.ingest(first, store := {}, **OPTIONS))
    unit = "bytes" if kind == "S" else "characters"
    message = rf"'names' has a string of 7 {unit} in .*1.npz, but the array stores at most 3 .*'dtype': '{kind}7'"
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest(second, store, **OPTIONS))
    assert len(sync.open_array(store, path="names")) == 2 * times
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest([first, second], {}, encoding={"names": {"dtype": f"{kind}3"}}, **OPTIONS))


@pytest.mark.parametrize("kind", ["U", "S"])
async def test_a_new_dataset_gets_the_longest_strings(api: Api, tmp_path: Path, times: int, kind: str):
    paths = [write(tmp_path / f"{n}.npz", ["x" * n], f"{kind}{n}", times) for n in (2, 7, 4)]
    await api(api.ingest(paths, store := {}, verify=True, **OPTIONS))
    array = sync.open_array(store, path="names")
    assert array.dtype == np.dtype(f"{kind}7")
    assert array[:].astype("U").tolist() == ["xx"] * times + ["x" * 7] * times + ["xxxx"] * times


def test_a_task_of_a_plan_finds_a_string_that_is_too_long(tmp_path: Path):
    first = write(tmp_path / "0.npz", ["abc"], "U3", LARGE)
    second = write(tmp_path / "1.npz", ["abcd"], "U4", LARGE)
    sync.ingest(first, store := stores.MemoryStore(), **OPTIONS)
    plan, _ = make_job(parameters_of(files=second, store=store, concat="row", dims="row", append=True)).plan_only(
        FileWorkers()
    )
    assert plan is not None
    with pytest.raises(ShapeError, match="'names' has a string of 4 characters"):
        run_all(work_of(plan, store))


async def test_labels(api: Api, tmp_path: Path):
    for number, labels in enumerate((["a", "b"], ["abcde"], ["c"])):
        np.savez(tmp_path / f"{number}.npz", row=np.array(labels), v=np.arange(len(labels)))
    paths = [tmp_path / f"{number}.npz" for number in range(3)]
    await api(api.ingest(paths[:2], store := {}, **OPTIONS))
    await api(api.ingest(paths, store, **OPTIONS))
    assert sync.open_array(store, path="row")[:].tolist() == ["a", "b", "abcde", "c"]
    await api(api.ingest(paths[0], store := {}, **OPTIONS))
    with pytest.raises(ShapeError, match=r"'row' has a string of 5 characters in .*1.npz, .* at most 1"):
        await api(api.ingest(paths[1], store, **OPTIONS))


@pytest.mark.parametrize("count", [2, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("is_appended", [False, True])
async def test_constants(api: Api, tmp_path: Path, count: int, *, is_appended: bool):
    """They are equal if their values are, whatever the length."""
    for number, (length, text) in enumerate([(4, "abc"), (9, "abc"), (3, "abc"), (9, "abcde"), (4, "abcd")]):
        values = np.full(count, text, f"U{length}")
        np.savez(tmp_path / f"{number}.npz", rows=np.full((count, 1), number), names=values)
    paths = [tmp_path / f"{number}.npz" for number in range(5)]
    for path in paths[1:]:
        store: dict[str, bytes] = {}
        if is_appended:
            await api(api.ingest(paths[0], store, concat="dim_1"))
        sources = path if is_appended else [paths[0], path]
        if path in paths[1:3]:
            await api(api.ingest(sources, store, concat="dim_1", append=is_appended))
            assert sync.open_array(store, path="names").dtype.kind == "U"
            continue
        with pytest.raises(ShapeError, match=r"'names' (must be the same in all files|has a string of 5)"):
            await api(api.ingest(sources, store, concat="dim_1", append=is_appended))


@pytest.mark.parametrize("shape", ["row", "axis", "large axis", "constant"])
@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
async def test_strings_of_netcdf_have_any_length(api: Api, tmp_path: Path, shape: str, engine: str):
    xr = pytest.importorskip("xarray", reason="xarray opens the files")
    for package in ("netCDF4", "h5netcdf"):
        pytest.importorskip(package, reason="the engine of xarray")
    paths, times = [tmp_path / f"{number}.nc" for number in range(2)], LARGE if shape == "large axis" else 1
    for path, name in zip(paths, ["a", "a" if shape == "constant" else "longer"], strict=True):
        dims = "row" if "axis" in shape else ()
        variables: dict[str, Any] = {"name": (dims, np.array([name] * times if dims else name, object))}
        if shape == "constant":
            variables["v"] = ("row", np.array([1]))
        xr.Dataset(variables).to_netcdf(path, engine=engine)
    options: dict[str, Any] = {"concat": "row", "append": True, "engine": engine, "verify": True}
    store: dict[str, Any] = {}
    for path in paths:
        await api(api.ingest(path, store, **options))
    array = sync.open_array(store, path="name")
    assert array.metadata.dtype.name == "string"
    assert array[...].tolist() == ("a" if shape == "constant" else ["a"] * times + ["longer"] * times)


async def test_strings_of_netcdf_and_of_a_fixed_length(api: Api, tmp_path: Path, times: int):
    """An array keeps its length. A new one has none if one of the files has strings of any length."""
    xr = pytest.importorskip("xarray", reason="xarray opens the files")
    pytest.importorskip("netCDF4", reason="writes a file")
    fixed, other = tmp_path / "0.zarr", tmp_path / "1.nc"
    sync.create_group(fixed).create_array("names", data=np.array(["abcd"] * times), dimension_names=("row",))
    options: dict[str, Any] = {"concat": "row", "append": True, "verify": True}
    xr.Dataset({"names": ("row", np.array(["ef"] * times, object))}).to_netcdf(other)
    await api(api.ingest(fixed, store := {}, **options))
    await api(api.ingest(other, store, **options))
    assert sync.open_array(store, path="names")[:].tolist() == ["abcd"] * times + ["ef"] * times
    xr.Dataset({"names": ("row", np.array(["longer"] * times, object))}).to_netcdf(other)
    with pytest.raises(ShapeError, match=r"a string of 6 characters in .*1.nc, but the array stores at most 4"):
        await api(api.ingest(other, store, on_duplicate="replace", **options))
    for paths in ([fixed, other], [other, fixed]):
        await api(api.ingest(paths, store := {}, **options))
        assert sorted(sync.open_array(store, path="names")[:].tolist()) == ["abcd"] * times + ["longer"] * times


async def test_a_long_text(api: Api, tmp_path: Path):
    """A single string may have more than 64 KiB, such as metadata in XML."""
    store: dict[str, Any] = {}
    xr = pytest.importorskip("xarray", reason="xarray opens the files")
    pytest.importorskip("netCDF4", reason="writes a file")
    paths = [tmp_path / f"{number}.nc" for number in range(2)]
    for number, path in enumerate(paths):
        text = np.array("x" * 20_000, object)
        xr.Dataset({"v": ("row", [number]), "text": ((), text)}).to_netcdf(path)
    for path in paths:
        await api(api.ingest(path, store, concat="row", append=True))
    assert sync.open_array(store, path="text")[...] == "x" * 20_000


@pytest.mark.parametrize("times", [1, 5000])
async def test_strings_of_format_2(api: Api, tmp_path: Path, times: int):
    """Their fill value is an empty string, which xarray calls a missing value, and other files do not have it."""
    xr = pytest.importorskip("xarray", reason="xarray opens the files")
    zarr = pytest.importorskip("zarr", reason="writes a hierarchy")
    pytest.importorskip("netCDF4", reason="writes a file")
    paths = [tmp_path / "0.zarr", tmp_path / "1.nc", tmp_path / "2.zarr"]
    for path in paths:
        values = np.array([path.name, ""] * times, object)
        if path.suffix == ".nc":
            xr.Dataset({"name": ("row", values)}).to_netcdf(path)
        else:
            attributes = {"_ARRAY_DIMENSIONS": ["row"]}
            group = zarr.open_group(path, mode="w", zarr_format=2)
            group.create_array("name", shape=2 * times, dtype=str, attributes=attributes)[:] = values
    options: dict[str, Any] = {"concat": "row", "verify": True}
    for zarr_format in (2, 3):
        await api(api.ingest(paths[0], store := {}, zarr_format=zarr_format, **options))
        await api(api.ingest(paths, store, append=True, **options))
        expected = [text for path in paths for text in [path.name, ""] * times]
        assert sync.open_array(store, path="name")[:].tolist() == expected
        await api(api.ingest(paths, store := {}, zarr_format=zarr_format, **options))
        assert sync.open_array(store, path="name")[:].tolist() == expected
