"""What messages about files that do not fit suggest: each hint works if it is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
nc = pytest.importorskip("netCDF4")
from tests.support.netcdf import PACKED, day
from zarrasync import sync
from zarrasync.bulk.files.sources.identify import find_files
from zarrasync.cli import main
from zarrasync.cli.console import error_line, for_shell
from zarrasync.errors import ShapeError, StoreError
from zarrasync.stores import ZipStore


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    day(0).to_netcdf("first.nc")
    return tmp_path / "first.nc"


def ingest(*files: str, out: str = "out.zarr", **options: Any) -> Any:
    return sync.ingest(list(files), out, concat="time", **options)


def test_another_mask_can_be_left_out(first: Path):
    other = day(1)
    other["mask"] = 1 - other["mask"]
    other.to_netcdf("other.nc")
    with pytest.raises(ShapeError, match=r"'mask' must be .* is 0 at position 0, 0 in .*variables=\[…\]"):
        ingest("first.nc", "other.nc")
    ingest("first.nc", "other.nc", variables=["t2m"])
    ingest("first.nc", out="both.zarr")
    with pytest.raises(ShapeError, match=r"variables=\[…\]"):
        ingest("other.nc", out="both.zarr", append=True)
    ingest("other.nc", out="both.zarr", append=True, variables=["t2m"])
    assert sync.open_array("both.zarr", path="t2m").shape[0] == 48


def test_another_type(first: Path):
    day(1).astype("f8").to_netcdf("other.nc")
    with pytest.raises(ShapeError, match=r"encoding=\{'t2m': \{'dtype': 'float64'\}\} to convert both"):
        ingest("first.nc", "other.nc", variables="t2m")
    ingest("first.nc", "other.nc", variables="t2m", encoding={"t2m": {"dtype": "float64"}})
    ingest("first.nc", out="single.zarr", variables="t2m")
    with pytest.raises(ShapeError, match=r"float64 in .*, but float32 in .*keeps its data type.*astype"):
        ingest("other.nc", out="single.zarr", append=True, variables="t2m")
    day(1).to_netcdf("converted.nc")
    ingest("converted.nc", out="single.zarr", append=True, variables="t2m")


def test_packed_values_for_an_existing_array(first: Path):
    day(1).to_netcdf("packed.nc", encoding=PACKED)
    day(2).to_netcdf("other.nc", encoding={"t2m": {**PACKED["t2m"], "scale_factor": 0.02}})
    ingest("first.nc")
    with pytest.raises(ShapeError, match=r"but no scale_factor in .*unpack the file first.*store it as float32"):
        ingest("packed.nc", append=True)
    ingest("first.nc", out="double.zarr", encoding={"t2m": {"dtype": "f8"}})
    with pytest.raises(ShapeError, match=r"pass decode=True to unpack the values of the file"):
        ingest("packed.nc", out="double.zarr", append=True)
    ingest("packed.nc", out="double.zarr", append=True, decode=True)
    ingest("packed.nc", out="packed.zarr")
    with pytest.raises(ShapeError, match=r"keeps its attributes"):
        ingest("other.nc", out="packed.zarr", append=True)


def test_the_command_line_names_what_was_typed(first: Path, capsys: pytest.CaptureFixture[str]):
    other = day(1).astype("f8")
    other.to_netcdf("other.nc")
    assert main(["ingest", "first.nc", "other.nc", "out.zarr", "--concat", "time"]) == 1
    error = capsys.readouterr().err
    assert "has the data type float64 in other.nc, but float32 in first.nc; pass --encoding FILE with" in error
    assert '{"t2m": {"dtype": "float64"}}' in error
    assert main(["ingest", "first.nc", str(first.parent / "out.zarr"), "--concat", "time", "--region", "auto"]) == 1
    assert "no group exists at out.zarr\n" in capsys.readouterr().err
    assert main(["ingest", str(first), str(first.parent / "out.zarr"), "--concat", "time", "--region", "auto"]) == 1
    assert f"no group exists at {first.parent}/out.zarr\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no node at /a/b in LocalStore('/data/x.zarr'); stop", "no node at /data/x.zarr/a/b; stop"),
        ("no node at / of LocalStore('/data/x.zarr')", "no node at /data/x.zarr"),
        ("'c/0' in LocalStore('/')", "'c/0' in /"),
        ("pass on_duplicate='skip', or mode='w'", "pass --on-duplicate skip, or --overwrite"),
        ("pass overwrite=True to replace", "pass --overwrite to replace"),
        ("with config={'allow_pickle': True}", "with the environment variable ZARRASYNC_ALLOW_PICKLE=true"),
        ("pass all_files=True", "pass --all"),
    ],
)
def test_messages_for_the_shell(message: str, expected: str):
    assert for_shell(message) == expected
    assert error_line(ValueError(message)) == expected


def test_paths_are_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    message = f"{tmp_path}/sub/a.zarr and {tmp_path}/sub/a.zarr2, {tmp_path}/b.nc, /x{tmp_path}/b.nc"
    assert for_shell(message, ["./sub/a.zarr/"]) == f"./sub/a.zarr and sub/a.zarr2, b.nc, /x{tmp_path}/b.nc"
    assert for_shell(message, [str(tmp_path / "b.nc")]) == message


# ------------------------------------------------------------------ variables that cannot be stored


def test_variables_without_a_data_type_of_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with nc.Dataset("a.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("time", "i4", ("time",))[:] = [0, 1]
        kind = file.createCompoundType(np.dtype([("real", "f4"), ("count", "i4")]), "pair")
        file.createVariable("pairs", kind, ("time",))[:] = np.array([(1, 2), (3, 4)], kind.dtype)
        lists = file.createVariable("lists", file.createVLType("i4", "list"), ("time",))
        lists[0], lists[1] = np.array([1], "i4"), np.array([1, 2], "i4")
    with pytest.raises(ShapeError, match=r"'pairs' of .*a.nc cannot be .* compound data type; .* variables="):
        ingest("a.nc", variables=["pairs"])
    with pytest.raises(ShapeError, match=r"'lists' of .*a.nc .*int32.* variables="):
        ingest("a.nc", variables=["lists"])
    assert ingest("a.nc", variables=["time"]).rows == 2


def test_names_of_axes_for_some_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", image=np.ones((3, 2)), count=np.ones(3))
    with pytest.raises(ShapeError, match=r"'count' of .*a.npz has 1 axis, .* time, x; .* variables="):
        ingest("a.npz", dims="time,x")
    assert ingest("a.npz", dims="time,x", variables=["image"]).rows == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"executor": 0}, ValueError, "executor must be at least 1 process, found 0"),
        ({"encoding": ["t2m"]}, TypeError, r"the encoding must be a mapping .*, found \['t2m'\]"),
        ({"concat": 5}, TypeError, "concat must be the name of a dimension, found 5"),
        (
            {"chunks": (1, 2, 3, 4)},
            ShapeError,
            r"chunks \(1, 2, 3, 4\) fits no variable of .*first.nc, .* have 1, 2, 3",
        ),
        ({"chunks": {"time": "x"}}, TypeError, "chunks must be a whole number along 'time', found 'x'"),
        ({"chunks": {"time": 2.5}}, TypeError, "chunks must be a whole number along 'time', found 2.5"),
    ],
)
def test_arguments(first: Path, options: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        sync.ingest("first.nc", "out.zarr", **{"concat": "time", **options})


@pytest.mark.parametrize("kind", ["dict", "zip"])
def test_stores_of_one_process(first: Path, kind: str):
    store: Any = {} if kind == "dict" else ZipStore("out.zarr.zip", mode="w")
    with pytest.raises(StoreError, match=r"exists only in this process, .*, or omit the executor"):
        sync.ingest("first.nc", store, concat="time", executor=2)


def test_numbers_of_other_scripts_in_names(first: Path):
    names = ["٣.nc", "10²5.nc", "10²12.nc"]
    for number, name in enumerate(names):
        day(number).to_netcdf(name)
    assert [Path(file.url).name for file in find_files("*[0-9٣].nc", {})] == names
