"""Writing beside existing data: values that do not fit are refused, what others store stays."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.errors import CodecError, InvalidKeyError, NodeExistsError, NodeNotFoundError, NodeTypeError, ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import encode as encode_module
from zarrasync.integrations.xarray import plan as plan_module
from zarrasync.integrations.xarray import write_dataset

pytestmark = pytest.mark.filterwarnings("ignore")


def stored(*values: Any, **options: Any) -> stores.MemoryStore:
    store = stores.MemoryStore()
    write_dataset(xr.Dataset({"a": ("t", *values)}), store, **options)
    return store


def test_values_that_the_stored_units_cannot_express_are_refused():
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[ns]")
    half = np.timedelta64(12, "h")
    for first, other in ((days, days[:1] + half), (days - days[0], days[1:2] - days[0] + half)):
        store = stored(first)
        for place in ({"append_dim": "t"}, {"region": {"t": slice(1, 2)}}):
            with pytest.raises(CodecError, match="is not a whole number of 'days"):
                write_dataset(xr.Dataset({"a": ("t", other)}), store, **place)
        np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, first)
        write_dataset(xr.Dataset({"a": ("t", first[:1])}), store, append_dim="t", verify=True)
        np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, [*first, first[0]])


@pytest.mark.parametrize(
    ("lazy", "first", "other"),
    [
        (True, ["a", "bb"], ["cccc"]),
        (False, np.array([1, 2], "i2"), np.array([100_000])),
        (True, np.array([1, 2]), np.array([np.nan, 2.0])),
        (False, np.array([1, 2]), np.array([1.7])),
        (True, np.array([True, False]), np.array([2, 3])),
        (False, np.array([1.0], "f4"), np.array([1e300])),
        (True, np.array([1, 2]), np.array(["1", "2"])),
        (False, np.array([1.0, 2.0]), np.array([1 + 2j, 3])),
    ],
)
def test_values_that_do_not_fit_stored_variables_are_refused(lazy: bool, first: Any, other: Any):
    store = stored(first)
    dataset = xr.Dataset({"a": ("t", other)})
    for place in ({"append_dim": "t"}, {"region": {"t": slice(0, len(other))}}):
        with pytest.raises(CodecError, match=r"of 'a' cannot be stored|'a' contains values"):
            write_dataset(dataset.chunk() if lazy else dataset, store, **place)
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, first)


@pytest.mark.parametrize(
    ("lazy", "first", "other", "encoding"),
    [
        (True, np.array([1, 2], "i2"), np.array([7]), {}),
        (False, np.array([1.5], "f4"), np.array([0.1]), {}),
        (True, np.array([True]), np.array([1, 0]), {}),
        (False, ["a", "bb"], ["c"], {}),
        (True, [1.0, 2.5], [0.33, np.nan], {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}),
        (False, [1.0, np.nan], [2.0, np.nan], {"dtype": "i2", "_FillValue": -1}),
        (True, [1.5, 2.5], np.array([3]), {}),
        (False, [1.5, 2.5], np.array([3.0 + 0j]), {}),
    ],
)
def test_values_of_other_types_that_fit_are_accepted(lazy: bool, first: Any, other: Any, encoding: dict[str, Any]):
    store = stored(first, encoding={"a": encoding})
    dtype = sync.open_array(store, path="a").dtype
    dataset = xr.Dataset({"a": ("t", other)})
    write_dataset(dataset.chunk() if lazy else dataset, store, append_dim="t", verify=True)
    assert sync.open_array(store, path="a").dtype == dtype
    found = xr.open_dataset(store, engine="zarrasync").a.values
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, np.concatenate([first, other]), atol=0.05)
    else:
        np.testing.assert_array_equal(found, np.concatenate([first, np.asarray(other, found.dtype)]))


@pytest.mark.parametrize(
    "units",
    ["hours since 1900-01-01 00:00:0.0", "hours since 1800-1-1 00:00:0.0", "hour since 2000-01-01 0:0:0",
     "hours since 2000-01-01 00:00:00 +0:00", "hours since 2000-01-01 00:00 UTC", "days since 2000-02-30"],
)  # fmt: skip
def test_units_in_other_spellings(units: str):
    store = stores.MemoryStore()
    calendar = {"calendar": "360_day"} if "02-30" in units else {}
    options: dict[str, Any] = {"dimension_names": ("t",), "attributes": {"units": units, **calendar}}
    sync.create_group(store).create_array("t", data=np.arange(3), **options)
    if calendar:
        pytest.importorskip("cftime")
    there = xr.open_dataset(store, engine="zarrasync").load()
    write_dataset(there, store, append_dim="t", on_duplicate="allow", verify=True)
    assert sync.open_array(store, path="t")[...].tolist() == [0, 1, 2, 0, 1, 2]


def test_times_are_not_appended_to_numbers():
    store = stored(np.array([1, 2]))
    with pytest.raises(CodecError, match="contains dates, but numbers without units of times"):
        write_dataset(xr.Dataset({"a": ("t", np.array(["2000-01-01"], "M8[ns]"))}), store, append_dim="t")


def test_concurrent_writers_do_not_block_the_threads_of_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Threads that wait for values must not be the few threads that an event loop reads with."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.local import LocalFileSystem

    fs, count = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True), min(32, (os.cpu_count() or 1) + 4)
    write_dataset(xr.Dataset({"a": ("x", np.arange(4.0))}), tmp_path / "source")
    done, all_encode, encode = [], threading.Barrier(count), encode_module.encode_new

    def encode_at_once(*args: Any) -> Any:
        all_encode.wait(60)
        return encode(*args)  # this reads

    def write(number: int) -> None:
        source = xr.open_dataset(stores.FsspecStore(fs, str(tmp_path / "source")), engine="zarrasync", cache=False)
        encoding = {"a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
        write_dataset(source, tmp_path / str(number), encoding=encoding)
        done.append(number)

    monkeypatch.setattr(plan_module, "encode_new", encode_at_once)
    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert sorted(done) == list(range(count))
    assert xr.open_dataset(tmp_path / "0", engine="zarrasync")["a"].values.tolist() == [0, 1, 2, 3]


def test_a_dataset_is_not_erased_for_invalid_data_or_its_own_source(tmp_path: Path):
    store = stored([3, 4])
    other = xr.Dataset({"b": ("x", [3, 4]), "a": ("x", [3, 4])})
    with pytest.raises(ShapeError):
        write_dataset(other, store, mode="w", encoding={"a": {"chunks": (1, 1)}})
    for mode in ("w", "a", "r+"):
        with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
            write_dataset(xr.open_dataset(store, engine="zarrasync", chunks={}), store, mode=mode)
        write_dataset(xr.open_dataset(store, engine="zarrasync"), store, mode=mode)  # xarray reads it before it writes
    np.testing.assert_array_equal(xr.open_dataset(store, engine="zarrasync").a, [3, 4])
    with pytest.raises(ShapeError):
        write_dataset(other, tmp_path / "new", encoding={"a": {"chunks": (1, 1)}})
    assert not (tmp_path / "new").exists()


SIX = xr.Dataset({"a": ("t", np.arange(6.0)), "b": ("t", np.arange(6.0) + 10)}, attrs={"title": "all"})


@pytest.mark.parametrize(
    ("dataset", "options", "error", "match"),
    [
        (SIX, {"mode": "w", "append_dim": "t"}, ValueError, "append_dim adds to an existing one"),
        (SIX, {"mode": "w-", "region": {"t": slice(0, 6)}}, ValueError, "region adds to an existing one"),
        (SIX, {"mode": "a", "zarr_format": 2}, NodeExistsError, "of Zarr format 3"),
        (SIX, {"append_dim": "t", "zarr_format": 2}, NodeExistsError, "of Zarr format 3"),
        (SIX.rename(a="../x"), {"mode": "w"}, InvalidKeyError, "../x"),
        (SIX.rename(a=1), {"mode": "w"}, TypeError, "must be strings"),
        (SIX.rename(t=0), {"mode": "w"}, TypeError, "must be strings"),
        (SIX[["a"]].isel(t=slice(0, 4)), {"mode": "a"}, ShapeError, "a has the sizes .'t': 6. in the store"),
        (SIX, {"mode": "w", "encoding": {"a": {"chunk": (10,)}}}, ValueError, "unknown encoding 'chunk'"),
        (SIX, {"append_dim": "t", "encoding": {"a": {"chunks": (10,)}}}, ValueError, "cannot be chosen"),
        (SIX["a"].values, {"mode": "w"}, TypeError, "needs a Dataset, DataArray or DataTree, found ndarray"),
        (SIX, {"mode": "a", "encoding": {"a": {"chunks": (10,)}}}, ValueError, "cannot be chosen"),
        (SIX.assign(c=1), {"mode": "r+"}, NodeNotFoundError, "the array c does not exist"),
        (SIX.rename(t="u"), {"mode": "a"}, ShapeError, "a has the sizes .'t': 6. in the store, not .'u': 6."),
        (SIX.rename(t="u"), {"append_dim": "u"}, ValueError, "append_dim='u' is not a dimension of the stored"),
        (SIX, {"mode": "r+", "append_dim": "t"}, ValueError, "changes no sizes"),
        (SIX, {"mode": "b"}, ValueError, "mode must be one of"),
    ],
)
def test_destructive_writes_are_refused(dataset: Any, options: dict[str, Any], error: type[Exception], match: str):
    store: dict[str, bytes] = {}
    write_dataset(SIX, store)
    before = dict(store)
    with pytest.raises(error, match=match):
        write_dataset(dataset, store, **options)
    assert store == before


@pytest.mark.parametrize("options", [{}, {"zarr_format": 3}, {"mode": "w", "group": "q"}, {"group": "q"}])
def test_nothing_is_put_beside_nodes_of_another_format(options: dict[str, Any]):
    store: dict[str, bytes] = {}
    write_dataset(SIX, store, zarr_format=2)
    before = dict(store)
    with pytest.raises((NodeExistsError, NodeTypeError), match="format 2"):
        write_dataset(SIX, store, **options)
    assert store == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_new_variables_cannot_be_appended(zarr_format: Any):
    """Appending a new variable would leave variables of different lengths."""
    store: dict[str, bytes] = {}
    write_dataset(xr.Dataset({"a": ("t", np.arange(4))}), store, zarr_format=zarr_format)
    more = xr.Dataset({"a": ("t", np.arange(4)), "new": ("t", np.arange(4))})
    before = dict(store)
    with pytest.raises(ShapeError, match="new has 4 elements along 't', but a has 8"):
        write_dataset(more, store, append_dim="t")
    assert store == before
    write_dataset(more.assign(new=("y", np.arange(4))), store, append_dim="t")
    assert dict(xr.open_dataset(store, engine="zarrasync").sizes) == {"t": 8, "y": 4}


def test_a_fill_value_of_the_type_before_is_not_kept(tmp_path: Path):
    sync.create_array(tmp_path / "x", path="a", shape=(4,), dtype="f8", fill_value=np.nan, dimension_names=["t"])
    for engine in ("zarr", "zarrasync"):
        found = xr.open_dataset(tmp_path / "x", engine=engine, consolidated=False)
        found["a"].encoding.update(dtype="i2", _FillValue=-1)
        write_dataset(found, tmp_path / engine)
        assert sync.open_array(tmp_path / engine, path="a").dtype == np.dtype("i2")


def test_a_region_leaves_the_groups_attributes():
    store: dict[str, bytes] = {}
    write_dataset(SIX, store)
    write_dataset(SIX.isel(t=slice(2, 4)).assign_attrs(title="a part") + 0, store, region={"t": slice(2, 4)})
    assert dict(sync.open_group(store).attrs) == {"title": "all"}


@pytest.mark.parametrize("engine", ["zarr", "zarrasync"])
def test_fill_values_stay(engine: str, tmp_path: Path):
    sync.create_array(tmp_path / "x", path="a", shape=(4,), dtype="f8", fill_value=7.0, dimension_names=["t"])
    found = xr.open_dataset(tmp_path / "x", engine=engine, consolidated=False)
    found.to_zarr(tmp_path / "theirs", consolidated=False)
    write_dataset(found, tmp_path / "ours")
    for name in ("theirs", "ours"):
        assert sync.open_array(tmp_path / name, path="a").fill_value == 7.0


def test_trees_of_consolidated_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree = xr.DataTree.from_dict({"/": SIX, "/below": SIX + 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree.to_zarr(tmp_path / "tree", consolidated=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = xr.open_datatree("~/tree", engine="zarrasync", consolidated=True)
    xr.testing.assert_identical(found.load(), tree)


def test_an_element_of_strings_has_the_string_type():
    words = np.array(["a", "bb", "ccc"], dtype=np.dtypes.StringDType())
    store: dict[str, bytes] = {}
    sync.create_array(store, path="s", data=words, dimension_names=["x"])
    picked = xr.open_dataset(store, engine="zarrasync")["s"].isel(x=1)
    assert (picked.dtype, picked.load().dtype, picked.item()) == (words.dtype, words.dtype, "bb")


@pytest.mark.parametrize("lazy", [False, True])
def test_stores_without_conditional_writes(tmp_path, lazy):
    """Regions that cut chunks, and appends, need ``unaligned: allow`` in such stores."""
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    write_dataset(SIX, store, encoding={"a": {"chunks": (4,)}, "b": {"chunks": (4,)}})
    part = SIX.isel(t=slice(0, 3))
    part = part.chunk(t=3) if lazy else part
    for more in ({"region": {"t": slice(0, 3)}}, {"append_dim": "t"}):
        before = sync.open_group(store).attrs.asdict()
        with pytest.raises(ShapeError, match="unaligned': 'allow'"):
            write_dataset(part.assign_attrs(title="another"), store, **more)
        assert sync.open_group(store).attrs.asdict() == before
        write_dataset(part, store, config={"unaligned": "allow"}, **more)
    with xr.open_dataset(store, engine="zarrasync") as found:
        np.testing.assert_array_equal(found.a.values, np.concatenate([SIX.a.values, SIX.a.values[:3]]))
