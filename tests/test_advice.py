"""Advice in errors is followed, in the situation in which the error is raised, and leads to success."""

# mypy: disable-error-code="func-returns-value, arg-type"
# Situations are made by tuples of calls, most of which return nothing.

import pickle
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numcodecs
import numpy as np
import pytest
import xarray as xr

from tests.support.advice import changes, option_changes, texts_with_advice
from tests.support.api import Api
from tests.support.netcdf import PACKED, day, write_days
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.integrations.xarray import WriteOptions, write_dataset, write_dataset_async

# ------------------------------------------------------------------ situations, in the current directory

A: dict[str, Any] = {"data": np.arange(6.0), "chunks": 2}
GRID = xr.Dataset({"v": (("t", "x"), [[1.0, 2.0]])}, {"t": [0], "x": [1.0, 2.0]})
DATASET = xr.Dataset({"u": ("x", [1.0, 2.0, 3.0, 4.0])}, {"x": [0, 1, 2, 3]})
TIME: dict[str, Any] = {"concat": "time"}
IMAGE: dict[str, Any] = {"axes": "yx", "levels": 2}
UNLABELLED: dict[str, Any] = {"concat": "time", "dims": "time"}


def array(**options: Any) -> Any:
    sync.create_array("a.zarr", **{**A, **options})


def group(**options: Any) -> Any:
    sync.create_group("a.zarr", **options).create_array("x", **A)


def dataset(**options: Any) -> Any:
    write_dataset(DATASET, "a.zarr", **options)


def days(*numbers: int, **options: Any) -> Any:
    write_days(Path("nc"), numbers, **options)


def ingested(*numbers: int, **options: Any) -> Any:
    days(*numbers)
    sync.ingest([f"nc/day{number}.nc" for number in numbers], "a.zarr", **{**TIME, **options})


def changed() -> Any:
    """Day 0 is ingested, and then has other values."""
    ingested(0)
    day(0, seed=8).to_netcdf("nc/day0.nc", encoding=PACKED)


def numbers(*counts: int) -> Any:
    """The rows have no labels."""
    for number, count in enumerate(counts):
        np.save(f"{number}.npy", np.arange(count) + 10 * number)


def numbers_ingested(*counts: int) -> Any:
    numbers(*counts)
    sync.ingest("0.npy", "a.zarr", **UNLABELLED)


def numbers_changed(count: int = 3) -> Any:
    numbers_ingested(3)
    np.save("0.npy", np.ones(count, "i8"))


def other_files() -> Any:
    array()
    Path("a.zarr/notes.txt").write_text("x")


def damaged(*others: str) -> Any:
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


def of_two_types() -> Any:
    for number, kind in enumerate(("f4", "f8")):
        xr.Dataset({"v": ("time", np.ones(1, kind))}, {"time": [number]}).to_netcdf(f"{number}.nc")


def packed() -> Any:
    for number in range(2):
        encoding = {"v": {"dtype": "i2", "scale_factor": 0.1 * (number + 1), "_FillValue": -1}}
        xr.Dataset({"v": ("time", [1.0])}, {"time": [number]}).to_netcdf(f"{number}.nc", encoding=encoding)


def unsigned() -> Any:
    values = np.array([-2], "i1")
    xr.Dataset({"v": ("time", values, {"_Unsigned": "true"})}, {"time": [0]}).to_netcdf("0.nc")


def with_another_variable() -> Any:
    for number in range(2):
        names = ("v", "w")[: number + 1]
        xr.Dataset({n: ("time", [1.0]) for n in names}, {"time": [number]}).to_netcdf(f"{number}.nc")


def implicit() -> Any:
    array(path="g/x", zarr_format="3-draft")


def pickles() -> Any:
    options = {"filters": numcodecs.Pickle(), "zarr_format": 2, "config": {"allow_pickle": True}}
    sync.create_array("a.zarr", shape=3, dtype=object, fill_value=None, compressors=None, **options)


def different_constants() -> Any:
    for number in range(2):
        data = {"v": ("time", [1.0]), "c": ((), float(number))}
        xr.Dataset(data, {"time": [number]}).to_netcdf(f"{number}.nc")


def folder_in_archive() -> Any:
    with stores.ZipStore("a.zip", "w") as store:
        sync.create_array(stores.PrefixStore(store, "f/"), **A)


def archive() -> Any:
    with stores.ZipStore("a.zip", "w") as store:
        sync.create_array(store, **A)


def image(**options: Any) -> Any:
    options = {"chunks": (2, 2), "chunk_key_encoding": {"name": "v2", "separator": "/"}, **options}
    sync.create_array("a.zarr", path="0", zarr_format=2, **{"data": np.ones((8, 8)), **options})


def pyramid() -> Any:
    image()
    sync.pyramid("a.zarr", path="0", **IMAGE)


class Row(NamedTuple):
    """A call that fails.

    Attributes:
        hint: A part of the text in the source, where values are ``{}``.
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
    Row("; use zarr_format=3", "create_array", ("a.zarr",), {**A, "zarr_format": 2, "shards": 4}),
    Row("; use zarr_format=3", "create_array", ("a.zarr",), {"shape": 3, "dtype": str, "zarr_format": "3-draft"}),
    Row("open the store with zarr_format='3-draft'", "open", ("a.zarr",), {"zarr_format": 3}, lambda: array(zarr_format="3-draft")),
    Row("supports only codecs of numcodecs", "create_array", ("a.zarr",), {**A, "zarr_format": 2, "filters": {"name": "cast_value", "configuration": {"data_type": "int8"}}}),
    Row("nodes exist below it; pass overwrite=True", "create_array", ("a.zarr",), {"path": "g", "zarr_format": "3-draft", **A}, implicit),
    Row("nodes exist below it; pass overwrite=True", "open_array", ("a.zarr",), {"path": "g", "zarr_format": "3-draft", "mode": "w-", **A}, implicit),
    Row("nodes exist below it ({}); pass overwrite=True", "ingest", (np.arange(3), "a.zarr"), {}, lambda: (sync.create_array("a.zarr", path="c", zarr_format=2, **A), Path("a.zarr/.zgroup").unlink())),
    Row("open it with config={'allow_pickle': True}", "open", ("a.zarr",), {}, pickles),
    Row("omit copy=False", lambda api, **options: np.array(sync.open_array("a.zarr"), **options), (), {"copy": False}, array),
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
    Row("the values of {}, {}; pass mode='w'", "ingest", ("1.npy", "a.zarr"), {}, lambda: (numbers(3, 3), sync.ingest("0.npy", "a.zarr"))),
    # files
    Row("files need the name of a dimension", "ingest", (["nc/day0.nc", "nc/day1.nc"], "a.zarr"), {}, lambda: days(0, 1)),
    Row("applies to single variables", "ingest", ("nc/day0.nc", "a.zarr"), {**TIME, "dtype": "f8"}, lambda: days(0), (lambda za: za.ingest("nc/day0.nc", "a.zarr", **TIME, encoding={"t2m": {"dtype": "f8"}}),)),
    Row("the name of the dimension along which files are joined", "ingest", ("v20240101.npy", "a.zarr"), {"labels": "v%Y%m%d"}, lambda: np.save("v20240101.npy", np.ones((2, 2)))),
    Row("the name of the dimension along which files are joined", "ingest", ("nc/day0.nc", "a.zarr"), {"append": True}, lambda: days(0)),
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
    Row("pass decode=True if the destination has no", "ingest", ("0.nc", "a.zarr"), {**TIME, "encoding": {"v": {"dtype": "i2"}}}, unsigned),
    Row("locate the rows by their labels", "ingest", ("nc/day1.nc", "a.zarr"), {**TIME, "region": slice(0, 24)}, lambda: ingested(0, 1)),
    Row("or pass on_gap='report'", "ingest", (["nc/day0.nc", "nc/day3.nc"], "a.zarr"), {**TIME, "on_gap": "error"}, lambda: days(0, 3)),
    Row("slice({}, {})} instead of append to write only", "ingest", ("0.npy", "a.zarr"), {**UNLABELLED, "append": True}, numbers_changed),
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
        "which {} has; choose the variables to store",
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
    Row("or copy without all_files", "copy", ("a.zarr", "b.zarr"), {"all_files": True}, lambda: (other_files(), Path("b.zarr").mkdir(), Path("b.zarr/notes.txt").write_text("y"))),
    Row("although {place} has no arrays", "ingest", ("nc/day0.nc", "a.zarr"), TIME, lambda: (days(0), sync.create_array("a.zarr", path="t2m", **A), Path("a.zarr/zarr.json").unlink())),
    Row("pass decode=True to unpack the values", "ingest", ("1.nc", "a.zarr"), {**TIME, "append": True}, lambda: (packed(), sync.ingest("0.nc", "a.zarr", **TIME, decode=True))),
    Row("and leave this one out", "ingest", ("?.nc", "a.zarr"), TIME, different_constants, (lambda za: za.ingest("?.nc", "a.zarr", **TIME, variables=["v"]),)),
    Row("the same length, or pass mode='w'", "ingest", ("nc/day1.nc", "a.zarr"), {**TIME, "append": True}, lambda: (days(1), ingested(0), sync.open_array("a.zarr", path="t2m", mode="r+").resize((30, 6, 8)))),
    Row("{} with group=…", "ingest", ("0.nc", "a.zarr"), {"concat": "x"}, lambda: DATASET.to_netcdf("0.nc", group="obs"), (lambda za: za.ingest("0.nc", "a.zarr", concat="x", group="obs"),)),
    Row("labels {} of its own; omit labels", "ingest", ("day20240101.nc", "a.zarr"), {**TIME, "labels": "day%Y%m%d"}, lambda: day(0).to_netcdf("day20240101.nc")),
    # datasets
    Row("differs from the stored one, which labels", "write_dataset", (GRID.assign_coords(x=[5.0, 6.0], t=[1]), "a.zarr"), {"append_dim": "t"}, lambda: write_dataset(GRID, "a.zarr")),
    Row("or pass unaligned='allow'", "write_dataset", (DATASET.chunk({"x": 1}), "a.zarr"), {"encoding": {"u": {"chunks": (2,)}}, "options": WriteOptions(align_chunks=False), "config": {"unaligned": "error"}}),
    Row("mode='w' replaces the dataset", "write_dataset", (DATASET.assign_coords(x=[4, 5, 6, 7]) * 1e9, "a.zarr"), {"append_dim": "x"}, lambda: dataset(encoding={"u": {"dtype": "i2", "_FillValue": -1}})),
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
    Row("convention='zarr-conventions'", "pyramid", ("a.zarr",), {"path": "0", "levels": 2, "axes": "yxc"}, lambda: image(data=np.ones((4, 4, 4)), chunks=(2, 2, 2))),
    Row(
        "{}, or convention='zarr-conventions'",
        "pyramid",
        ("a.zarr",),
        {"path": "0", **IMAGE},
        lambda: image(chunk_key_encoding={"name": "v2", "separator": "."}),
        (lambda za: za.pyramid("a.zarr", path="0", dest="b.zarr", **IMAGE),),
    ),
    # stores
    Row("open it with mode='r+'", "append", ("a.zarr",), {}, array),
    Row("make it with read_only=False", "append_by_zarr", (), {"read_only": True}, array),
    Row("are in the folder {}; pass path={}", "open", ("a.zip",), {}, folder_in_archive),
    Row("read them with missing='fill'", lambda api, **o: api.read(**o), (), {"missing": "error"}, lambda: sync.create_array("a.zarr", shape=3, dtype="i4")),
    Row("or allow it with config={'unaligned': 'allow'}", "append", ("a.zarr",), {"mode": "r+", "config": {"unaligned": "error"}}, lambda: array(chunks=4)),
    Row("; use mode='a' to append to it", lambda api, mode: stores.ZipStore("a.zip", mode), (), {"mode": "x"}, archive),
    Row("send a store with mode='r'", lambda api, mode: pickle.dumps(stores.ZipStore("a.zip", mode)), (), {"mode": "a"}, archive),
    Row("open it with mode='a'", "append", ("a.zip",), {"mode": "r"}, archive),
]  # fmt: skip


class _Functions:
    """The functions of one of the APIs, and ``write_dataset``."""

    def __init__(self, api: Api) -> None:
        self.write_dataset = write_dataset_async if api.name == "async" else write_dataset
        self._api = api

    async def append(self, place: Any, mode: str = "r", **options: Any) -> None:
        """Open an array, and append to it."""
        store = stores.ZipStore(place, mode) if str(place).endswith(".zip") else place
        node = await self._api(self._api.open_array(store, mode="r+" if store is not place else mode, **options))
        await self._api(node.append(np.ones(2)))

    async def append_by_zarr(self, **options: Any) -> None:
        await self.append(pytest.importorskip("zarr.storage").LocalStore("a.zarr", **options), mode="r+")

    async def read(self, **options: Any) -> None:
        node = await self._api(self._api.open_array("a.zarr"))
        await self._api((node if self._api.name == "async" else node.view)[:].read(**options))

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


async def test_files_that_were_left_out_are_copied(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    other_files()
    report = await api(api.copy("a.zarr", "b.zarr"))
    (options,) = changes(str(report), {})
    await api(api.copy("a.zarr", "b.zarr", **options))
    assert Path("b.zarr/notes.txt").read_text() == "x"


# ------------------------------------------------------------------ the command line

INGEST = ["ingest", "nc/day0.nc", "a.zarr", "--concat", "time"]


def planned() -> None:
    days(0, 1)
    assert main(["ingest", "plan", "nc/*.nc", "a.zarr", "--concat", "time", "--plan", "plan.json"]) == 0


class Command(NamedTuple):
    """A command that fails.

    Attributes:
        hint: A part of the text in the source.
        words: Its arguments.
        prepare: Makes what the command finds.
        ways: Commands that the error advises, in order, if they are not read from the message.
    """

    hint: str
    words: list[str]
    prepare: Callable[[], Any] = lambda: None
    ways: tuple[list[str], ...] = ()


COMMANDS = [
    Command("or resume=True to complete", ["copy", "a.zarr", "b.zarr"], lambda: (array(), sync.copy("a.zarr", "b.zarr"))),
    Command(
        "pass zarr_format={}",
        ["copy", "a.zarr", "b.zarr", "--dest-path", "y"],
        lambda: (array(), sync.create_group("b.zarr", zarr_format=2)),
        (["convert", "a.zarr", "b.zarr", "--dest-path", "y", "--zarr-format", "2"],),
    ),
    Command("append=True to add rows", ["ingest", "nc/day1.nc", *INGEST[2:]], lambda: (days(1), ingested(0))),
    Command("append=True with on_duplicate='replace'", INGEST, changed, ([*INGEST, "--append", "--on-duplicate", "replace"],)),
    Command("the destination already contains the label", [*INGEST, "--append"], changed),
    Command("write to another path, or pass mode='w' to replace it", [*INGEST, "--append"], lambda: (days(0), array())),
    Command(
        "choose the variables to store{} with variables={}",
        ["ingest", "?.nc", "a.zarr", "--concat", "time"],
        damaged,
        (["ingest", "?.nc", "a.zarr", "--concat", "time", "--variable", "v"],),
    ),
    Command(
        "{} with group=…",
        ["ingest", "0.nc", "a.zarr", "--concat", "time"],
        lambda: day(0).to_netcdf("0.nc", group="obs"),
        (["ingest", "0.nc", "a.zarr", "--concat", "time", "--path", "obs"],),
    ),
    Command("is not finished: run its tasks", [*INGEST, "--wait", "0"], planned, (["ingest", "run", "plan.json"], ["ingest", "finish", "plan.json"])),
    Command(
        "drop the plan with `zarrasync ingest abandon PLAN`, and make a new one",
        ["ingest", "run", "plan.json"],
        lambda: (planned(), day(0, seed=3).to_netcdf("nc/day0.nc", encoding=PACKED)),
        (
            ["ingest", "abandon", "plan.json"],
            ["ingest", "plan", "nc/*.nc", "a.zarr", "--concat", "time", "--plan", "plan.json"],
        ),
    ),
    Command("in different stores; use `zarrasync copy`", ["mv", "a.zarr", "memory://b"], array, (["copy", "a.zarr", "b.zarr"], ["rm", "a.zarr", "-y"])),
    Command("the node has that place already", ["mv", "a.zarr", "a.zarr"], array, (["mv", "a.zarr", "b.zarr"],)),
    Command("pass KEY=VALUE, --file or --delete", ["attrs", "set", "a.zarr"], array, (["attrs", "set", "a.zarr", "x=1"],)),
    Command("or pass --string for a string", ["attrs", "set", "a.zarr", "x={"], array, (["attrs", "set", "a.zarr", "--string", "x={"],)),
    Command("select an array with --path", ["cat", "a.zarr"], group, (["cat", "a.zarr", "--path", "x"],)),
]  # fmt: skip


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.hint)
def test_advice_of_commands_works(row: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def enter(name: str) -> None:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        row.prepare()
        capsys.readouterr()

    enter("refused")
    assert main(row.words) == 1
    message = capsys.readouterr().err
    assert not re.search(r"(?<!-o )\b(?!ZARRASYNC)[a-z]\w+=['\[{TF]", message), message
    for words in row.ways:
        assert main(words) == 0, capsys.readouterr().err
    for number, words in enumerate([] if row.ways else option_changes(message, row.words)):
        enter(str(number))
        assert main(words) == 0, (words, capsys.readouterr().err)


# ------------------------------------------------------------------ completeness

ELSEWHERE = {
    "request them one after the other with f={}": "tests/server/test_edr.py",
    "on_late='insert' to insert them": "tests/bulk/files/test_late_files.py",
    "on_bad_file='skip' to leave such files out": "tests/bulk/files/test_bad_files.py",
    "FileOptions(ignore_attributes=[{}]) to keep the first": "tests/bulk/files/test_differing_files.py",
    "or pass source=FileOptions(ignore_attributes=['units'])": "tests/bulk/files/test_differing_files.py",
    "FileOptions(coordinate_tolerance=…) if": "tests/bulk/files/test_differing_files.py",
    "give the variable a _FillValue with preprocess=…": "tests/bulk/files/test_differing_files.py",
    "and pass preprocess='module:function'": "tests/bulk/files/test_differing_files.py",
    "with labels=… or preprocess=…": "tests/bulk/files/test_differing_files.py",
    "pass on_duplicate='replace' to write them again": "tests/bulk/files/test_histories.py",
    "have the same labels along all dimensions": "tests/bulk/files/test_differing_files.py",
    "set its `blocking` to False": "a store of the user",
    "write from fewer processes at a time": "depends on other processes",
    "and continue with mode='a'": "tests/bulk/test_ingest.py",
    "repeat it with the same files and parameters": "tests/bulk/files/test_interrupted.py",
    "Add this coordinate, or ingest files that are one row": "tests/bulk/files/test_single_rows.py",
    "added before, delete that value": "tests/bulk/files/test_without_labels.py",
    "have the same row {} in the destination": "recorded by earlier versions",
    "append the files of the other rows again": "tests/bulk/files/test_regrown.py",
    "ingest them one by one with group=…": "tests/bulk/files/test_unread.py",
    "complete that with `zarrasync ingest abandon PLAN`": "tests/bulk/files/test_plans_icechunk.py",
    "complete it with `zarrasync ingest finish PLAN`": "tests/bulk/files/test_plans_interrupted.py",
    "{}. Drop the plan with": "tests/bulk/files/test_plans_icechunk.py",
    "lower config.memory_budget, or use": "a worker was killed",
    "or 'str' for strings of any length": "tests/bulk/files/test_strings.py",
    "choose messages that fit together": "tests/bulk/files/test_grib.py",
    "with engine=…": "the engine is unknown",
    "{}; pass engine='h5netcdf'": "tests/bulk/files/test_sources.py",
    "or pass engine='NAME'": "the engine is unknown",
    "pass decode=True to unpack them": "tests/bulk/files/test_times.py",
    "pass all_files=True with resume=True": "test_files_that_were_left_out_are_copied",
    "pass method='nearest' for the nearest label": "tests/nodes/test_sel.py",
    "cannot be planned; call write_dataset": "tests/integrations/xarray/test_plans.py",
    "the plane, as a selection of the axes": "the description of a parameter",
    "slices of all axes, or labels of coordinates": "the description of a parameter",
    "a job was interrupted that has written values": "tests/bulk/test_copy_and_validate.py",
    "the interrupted one has another layout": "tests/bulk/test_copy_and_validate.py",
    "repeat it with mode='r+'": "tests/bulk/test_ingest_interrupted.py",
    "set config.allow_pickle to check them": "tests/bulk/test_copy_and_validate.py",
    "use --output FILE or a pipe": "tests/cli/test_cli.py",
    "or use --format csv": "needs a large array",
    "plans, whose tasks run anywhere": "help",
    "pass --resume or --overwrite, not both": "tests/cli/test_ingest_command.py",
    "zarrasync ingest run {} --task N": "tests/cli/test_ingest_files_command.py",
    "pass --verify to `ingest run` and": "tests/cli/test_ingest_files_command.py",
    "(pass|use) zarr_format": "a pattern",
    "use `zarrasync convert` with": "the text for the pattern",
    "pass --axes, such as": "tests/cli/test_pyramid_command.py",
    "omit it, or pass --convention ome": "tests/cli/test_pyramid_command.py",
    "nodes of a URL pipeline are moved": "tests/cli/test_move_command.py",
    "write `with config.set(...):`": "a warning about the code of the caller",
    "repeat the call when it has ended, or raise": "depends on another writer",
    "pass consolidated=False or omit it": "tests/integrations/xarray/test_refusals.py",
    "allow it with --allow-host": "tests/server/test_access.py",
    "use backend='fsspec'": "tests/stores/test_resolve.py",
    "or pass backend='fsspec'": "tests/concurrency/test_fork.py",
    "pass the storage option anon=True": "tests/stores/cloud/test_read_faults.py",
    "with simple_templates=False only": "tests/stores/fsspec/test_references.py",
    "raise config.max_document_bytes": "tests/stores/fsspec/test_references.py",
    "pass the storage option allow_targets": "tests/stores/fsspec/test_references.py",
    "with path=… for a '|'": "tests/stores/test_pipelines.py",
    "or raise config.request_timeout": "depends on a server",
    "with config.unaligned='allow'": "tests/stores/cloud/test_unconditional.py",
    "pass convention={}, or dest": "tests/bulk/test_pyramid.py",
    "pass method='nearest'": "tests/nodes/test_sel.py",
    "make the store of zarr-python with read_only=False": "tests/interop/test_zarr_python_objects.py",
}
"""Parts of other texts with advice, and the tests that follow it, or why none does."""


def test_all_advice_is_followed():
    followed = [*(row.hint for row in ROWS), *(row.hint for row in COMMANDS), *ELSEWHERE]
    texts = list(texts_with_advice())
    assert [item for item in texts if not any(hint in item[1] for hint in followed)] == []
    assert [hint for hint in followed if not any(hint in text for _, text in texts)] == []
