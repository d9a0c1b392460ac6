"""Advice in errors is followed, in the situation in which the error is raised, and leads to success."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import xarray as xr

import zarrasync as za
from tests.support.advice import changes, option_changes, texts_with_advice
from tests.support.api import Api
from tests.support.netcdf import PACKED, day, write_days
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.cli.arguments import FORMATS
from zarrasync.integrations.xarray import write_dataset, write_dataset_async

# ------------------------------------------------------------------ situations, in the current directory

A = {"data": np.arange(6.0), "chunks": 2}
DATASET = xr.Dataset({"u": ("x", [1.0, 2.0, 3.0, 4.0])}, {"x": [0, 1, 2, 3]})
TIME = {"concat": "time"}
IMAGE = {"axes": "yx", "levels": 2}
UNLABELLED = {"concat": "time", "dims": "time"}


def array(**options: Any) -> None:
    sync.create_array("a.zarr", **{**A, **options})


def group(**options: Any) -> None:
    sync.create_group("a.zarr", **options).create_array("x", **A)


def dataset(**options: Any) -> None:
    write_dataset(DATASET, "a.zarr", **options)


def days(*numbers: int, **options: Any) -> None:
    write_days(Path("nc"), numbers, **options)


def ingested(*numbers: int, **options: Any) -> None:
    days(*numbers)
    sync.ingest([f"nc/day{number}.nc" for number in numbers], "a.zarr", **{**TIME, **options})


def changed() -> None:
    """Day 0 is ingested, and then has other values."""
    ingested(0)
    day(0, seed=8).to_netcdf("nc/day0.nc", encoding=PACKED)


def numbers(*counts: int) -> None:
    """The rows have no labels."""
    for number, count in enumerate(counts):
        np.save(f"{number}.npy", np.arange(count) + 10 * number)


def numbers_ingested(*counts: int) -> None:
    numbers(*counts)
    sync.ingest("0.npy", "a.zarr", **UNLABELLED)


def numbers_changed(count: int = 3) -> None:
    numbers_ingested(3)
    np.save("0.npy", np.ones(count, "i8"))


def linked() -> None:
    numbers(3)
    Path("1.npy").symlink_to("0.npy")


def other_files() -> None:
    array()
    Path("a.zarr/notes.txt").write_text("x")


def damaged(*others: str) -> None:
    """A constant of a file cannot be read."""
    for number in range(2):
        with h5py.File(f"{number}.nc", "w") as file:
            file.create_dataset("time", data=[float(number)]).make_scale("time")
            for name in ("v", *others):
                file.create_dataset(name, data=[1.0]).dims[0].attach_scale(file["time"])
            bad = file.create_dataset("bad", data=np.arange(100.0), chunks=(50,), compression="gzip")
            offset = bad.id.get_chunk_info(0).byte_offset
        with open(f"{number}.nc", "r+b") as raw:
            raw.seek(offset)
            raw.write(bytes(20))


def of_two_types() -> None:
    for number, kind in enumerate(("f4", "f8")):
        xr.Dataset({"v": ("time", np.ones(1, kind))}, {"time": [number]}).to_netcdf(f"{number}.nc")


def packed() -> None:
    for number in range(2):
        encoding = {"v": {"dtype": "i2", "scale_factor": 0.1 * (number + 1), "_FillValue": -1}}
        xr.Dataset({"v": ("time", [1.0])}, {"time": [number]}).to_netcdf(f"{number}.nc", encoding=encoding)


def with_another_variable() -> None:
    for number in range(2):
        names = ("v", "w")[: number + 1]
        xr.Dataset({n: ("time", [1.0]) for n in names}, {"time": [number]}).to_netcdf(f"{number}.nc")


def archive() -> None:
    with stores.ZipStore("a.zip", "w") as store:
        sync.create_array(store, **A)


def image(**options: Any) -> None:
    options = {"chunks": (2, 2), "chunk_key_encoding": {"name": "v2", "separator": "/"}, **options}
    sync.create_array("a.zarr", path="0", data=np.ones((8, 8)), zarr_format=2, **options)


def pyramid() -> None:
    image()
    sync.pyramid("a.zarr", path="0", **IMAGE)


class Row(NamedTuple):
    """A call that fails.

    Attributes:
        hint: A part of the text in the source.
        call: The name of a function, or a function of the API.
        arguments: Its arguments.
        options: Its keyword arguments.
        prepare: Makes what the call finds.
        ways: Calls that the error also advises, in words. Others are read from the message.
    """

    hint: str
    call: str | Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = {}
    prepare: Callable[[], Any] = lambda: None
    ways: tuple[Callable[[Any], Any], ...] = ()


ROWS = [
    # creation
    Row("exists at {} in {}; pass overwrite=True", "create_array", ("a.zarr",), A, array),
    Row("exists at {} in {}; pass overwrite=True", "create_group", ("a.zarr",), {}, array),
    Row("exists at {} in {}; pass overwrite=True", "open_array", ("a.zarr",), {"mode": "w-", **A}, array),
    Row("exists at {} in {}; pass overwrite=True", "open_group", ("a.zarr",), {"mode": "w-"}, array),
    Row("exists at {} in {}; pass overwrite=True", "create_hierarchy", ("a.zarr", {"": None}), {}, group),
    Row("exists at {} in {}; pass overwrite=True", "write_dataset", (DATASET, "a.zarr"), {}, dataset),
    Row("exists at {} in {}; pass overwrite=True", "ingest", (np.arange(3), "a.zarr"), {"mode": "w-"}, array),
    Row("pass zarr_format={}", "create_array", ("a.zarr",), {"path": "y", **A}, lambda: group(zarr_format=2)),
    Row("pass zarr_format={}", "write_dataset", (DATASET, "a.zarr"), {"group": "y"}, lambda: group(zarr_format=2)),
    Row("there: pass zarr_format={}", "open", ("a.zarr",), {"zarr_format": 3}, lambda: array(zarr_format=2)),
    Row("omit the parameter to use", "open_array", ("a.zarr",), {"mode": "a", "shape": (5, 5), "dtype": "i4"}, array),
    Row("does not support {}; use zarr_format=3", "create_array", ("a.zarr",), {**A, "zarr_format": 2, "shards": 4}),
    Row("draft of Zarr format 3 ({}) does not", "create_array", ("a.zarr",), {"shape": 3, "dtype": str, "zarr_format": "3-draft"}),
    # copies
    Row("or resume=True to complete", "copy", ("a.zarr", "b.zarr"), {}, lambda: (array(), sync.copy("a.zarr", "b.zarr"))),
    Row(
        "differs from the copy in more than attributes",
        "copy",
        ("a.zarr", "b.zarr"),
        {"resume": True},
        lambda: (array(), sync.create_array("b.zarr", **A, dtype="f4")),
    ),
    # arrays
    Row("exists in Zarr format {}, not {}", "ingest", (np.arange(6.0), "a.zarr"), {"zarr_format": 2}, array),
    Row("exists with the fill value", "ingest", (np.arange(6.0), "a.zarr"), {"fill_value": 3}, array),
    Row("is a group, not an array; pass the path", "ingest", (np.arange(6.0), "a.zarr"), {}, group),
    Row("verify=True to compare all values", "ingest", (np.arange(3), "a.zarr"), {"statistics": True}),
    Row("the values of {}, {}; pass mode='w'", "ingest", ("1.npy", "a.zarr"), {}, lambda: (numbers(3, 3), sync.ingest("0.npy", "a.zarr"))),
    # files
    Row("files need the name of a dimension", "ingest", (["nc/day0.nc", "nc/day1.nc"], "a.zarr"), {}, lambda: days(0, 1)),
    Row("append and region need the name", "ingest", ("nc/day0.nc", "a.zarr"), {"append": True}, lambda: days(0)),
    Row("a group exists at {place}; pass mode='w'", "ingest", ("nc/day0.nc", "a.zarr"), {**TIME, "mode": "w-"}, lambda: ingested(0)),
    Row("were joined along {}; pass concat={}", "ingest", ("nc/day0.nc", "a.zarr"), {"concat": "lat"}, lambda: ingested(0)),
    Row("with other parameters (chunks", "ingest", ("nc/day1.nc", "a.zarr"), {**TIME, "chunks": {"time": 6}}, lambda: (days(1), ingested(0))),
    Row("append=True to add rows", "ingest", ("nc/day1.nc", "a.zarr"), TIME, lambda: (days(1), ingested(0))),
    Row("append=True with on_duplicate='replace'", "ingest", ("nc/day0.nc", "a.zarr"), TIME, changed),
    Row("append=True with on_duplicate='replace'", "ingest", ("0.npy", "a.zarr"), UNLABELLED, numbers_changed),
    Row("write to another path, or pass mode='w' to replace it", "ingest", ("nc/day0.nc", "a.zarr"), TIME, lambda: (days(0), array())),
    Row(
        "write to another path, or pass mode='w' to replace it",
        "ingest",
        ("nc/day0.nc", "a.zarr"),
        {**TIME, "append": True},
        lambda: (days(0), array()),
    ),
    Row("is in {} and in {}, and {}; pass on_duplicate", "ingest", (["nc/day0.nc", "b.nc"], "a.zarr"), TIME, lambda: (days(0), day(0).to_netcdf("b.nc", encoding=PACKED))),
    Row("the destination already contains the label", "ingest", ("nc/day0.nc", "a.zarr"), {**TIME, "append": True}, changed),
    Row("to convert both", "ingest", ("?.nc", "a.zarr"), TIME, of_two_types),
    Row("pass decode=True to store unpacked", "ingest", ("?.nc", "a.zarr"), TIME, packed),
    Row("locate the rows by their labels", "ingest", ("nc/day1.nc", "a.zarr"), {**TIME, "region": slice(0, 24)}, lambda: ingested(0, 1)),
    Row("or pass on_gap='report'", "ingest", (["nc/day0.nc", "nc/day3.nc"], "a.zarr"), {**TIME, "on_gap": "error"}, lambda: days(0, 3)),
    Row("the same file, so its rows would", "ingest", (["0.npy", "1.npy"], "a.zarr"), UNLABELLED, linked),
    Row("or region={{}: slice({}, {})} instead of append", "ingest", ("0.npy", "a.zarr"), {**UNLABELLED, "append": True}, numbers_changed),
    Row(
        "ingest all files into a new destination, or pass mode='w'",
        "ingest",
        ("0.npy", "a.zarr"),
        {**UNLABELLED, "append": True, "on_duplicate": "replace"},
        lambda: numbers_changed(4),
    ),
    Row("choose the variables to store{} with variables={}", "ingest", ("?.nc", "a.zarr"), TIME, damaged),
    Row("choose the variables to store{} with variables={}", "ingest", ("0.nc", "a.zarr"), {}, damaged),
    Row(
        "but {} does not; choose the variables to store",
        "ingest",
        ("?.nc", "a.zarr"),
        TIME,
        with_another_variable,
        (lambda za: za.ingest("?.nc", "a.zarr", **TIME, variables=["v"]),),
    ),
    Row(
        "choose the variables to store with variables={}",
        "ingest",
        ("1.nc", "a.zarr"),
        {**TIME, "append": True},
        lambda: (with_another_variable(), sync.ingest("0.nc", "a.zarr", **TIME)),
    ),
    # datasets
    Row("pass mode='a' or no mode", "write_dataset", (DATASET.isel(x=[0]).assign_coords(x=[9]), "a.zarr"), {"append_dim": "x", "mode": "r+"}, dataset),
    Row("pass on_duplicate='skip' to leave out", "write_dataset", (DATASET, "a.zarr"), {"append_dim": "x"}, dataset),
    Row("or pass lossy='allow' to store it", "write_dataset", (DATASET * 1e9, "a.zarr"), {"encoding": {"u": {"dtype": "i2", "_FillValue": -1}}}),
    Row(
        "locate the region by its coordinates",
        "write_dataset",
        (DATASET[{"x": slice(1, 3)}], "a.zarr"),
        {"region": {"x": slice(0, 2)}},
        dataset,
        (lambda za: za.write_dataset(DATASET[{"x": slice(1, 3)}].drop_vars("x"), "a.zarr", region={"x": slice(0, 2)}),),
    ),
    # pyramids
    Row("to replace the levels of the pyramid", "pyramid", ("a.zarr",), {"path": "0", "method": "max", **IMAGE}, pyramid),
    # stores
    Row("open it with mode='r+'", "append", ("a.zarr",), {}, array),
    Row("; use mode='a' to append to it", lambda api, mode: stores.ZipStore("a.zip", mode), (), {"mode": "x"}, archive),
    Row("open it with mode='a'", "append", ("a.zip",), {"mode": "r"}, archive),
]  # fmt: skip


ELSEWHERE: dict[str, str] = {}


class _Functions:
    """The functions of one of the APIs, and ``write_dataset``."""

    def __init__(self, api: Api) -> None:
        self.write_dataset = write_dataset_async if api.name == "async" else write_dataset
        self._api = api

    async def append(self, place: str, mode: str = "r") -> None:
        """Open an array, and append to it."""
        store = stores.ZipStore(place, mode) if place.endswith(".zip") else place
        node = await self._api(self._api.open_array(store, mode="r+" if place.endswith(".zip") else mode))
        await self._api(node.append(np.ones(2)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def _enter(folder: Path, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.chdir(folder)
    row.prepare()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.hint)
async def test_advice_works(api: Api, row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    functions = _Functions(api)
    call = getattr(functions, row.call) if isinstance(row.call, str) else partial(row.call, functions)
    _enter(tmp_path / "refused", row, monkeypatch)
    with pytest.raises(Exception, match=r"\w") as caught:
        await api(call(*row.arguments, **row.options))
    advised = changes(str(caught.value), row.options)
    assert advised or row.ways, caught.value
    for number, options in enumerate(advised):
        _enter(tmp_path / str(number), row, monkeypatch)
        await api(call(*row.arguments, **options))
    for number, way in enumerate(row.ways):
        _enter(tmp_path / f"way{number}", row, monkeypatch)
        await api(way(functions))
