"""``write_dataset`` refuses to lose stored data, to leave unreadable datasets and to change values unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.errors import MetadataError, NodeExistsError, ShapeError, UnsupportedOperation

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")

from zarrasync.integrations.xarray import WriteOptions, write_dataset, write_dataset_async  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


def days(*names: str, start: int = 0, count: int = 3) -> Any:
    values = np.arange(start, start + count)
    return xr.Dataset(dict.fromkeys(names, ("time", values * 10.0)), {"time": values})


def contents(store: Any) -> dict[str, list[float]]:
    return {name: array[...].tolist() for name, array in sync.open_group(store).arrays()}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_is_not_replaced_by_a_variable(tmp_path: Path, zarr_format: Any):
    root = sync.create_group(tmp_path / "x", zarr_format=zarr_format)
    root.create_array("station/wind", data=np.arange(3.0))
    with pytest.raises(NodeExistsError, match=r"/station in .* is a group, so variable 'station'"):
        write_dataset(days("new", "station"), tmp_path / "x", mode="a")
    assert [name for name, _ in root.members(None)] == ["station", "station/wind"]
    write_dataset(days("station"), tmp_path / "x", mode="w")
    assert sorted(contents(tmp_path / "x")) == ["station", "time"]


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("where", ["dataset", "variable"])
def test_invalid_attributes_change_nothing(mode: Any, where: str):
    store = stores.MemoryStore()
    write_dataset(days("t", "u"), store, mode="w")
    before = contents(store)
    bad = days("t", "u", start=7)
    (bad if where == "dataset" else bad["t"]).attrs["made"] = {1, 2}
    with pytest.raises(MetadataError, match="the attribute 'made' cannot be written as JSON"):
        write_dataset(bad, store, mode=mode)
    assert contents(store) == before


def test_all_variables_become_longer_or_none():
    store = stores.MemoryStore()
    write_dataset(days("t", "u"), store, mode="w")
    before = contents(store)
    with pytest.raises(ShapeError, match="u would stay shorter along 'time' than t, time"):
        write_dataset(days("t", start=3), store, append_dim="time")
    assert contents(store) == before
    # A variable with fewer rows may catch up alone.
    sync.open_array(store, path="u", mode="r+").resize((1,))
    write_dataset(days("u", start=1, count=2).drop_vars("time"), store, append_dim="time")
    assert contents(store)["u"] == [0.0, 10.0, 20.0]
    xr.testing.assert_identical(xr.open_dataset(store, engine="zarrasync").load(), days("t", "u"))


def test_an_unknown_region_keyword_is_refused():
    store = stores.MemoryStore()
    write_dataset(days("t"), store, mode="w")
    with pytest.raises(ValueError, match="must be 'auto' or a mapping of dimensions to slices, found 'nonsense'"):
        write_dataset(days("t", start=1, count=1), store, region="nonsense")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_replacement_keeps_the_encoding(tmp_path: Path, zarr_format: Any):
    """Same encoding as xarray's own engine uses; a variable of another kind is encoded like a new one."""
    old = xr.Dataset({"t": (("x", "y"), np.arange(48.0).reshape(6, 8))}, {"time": ("x", np.arange(6).astype("M8[D]"))})
    packed: dict[str, Any] = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1, "chunks": (2, 4)}
    if zarr_format == 3:
        packed["shards"] = (6, 8)
    encoding = {"t": packed, "time": {"units": "hours since 1960-01-01", "dtype": "i4"}}
    new = old.assign(t=old.t * 1.5)
    new["t"][0, 0] = np.nan
    for engine in ("zarr", "zarrasync"):
        write_dataset(old, tmp_path / engine, encoding=encoding, zarr_format=zarr_format)
        if engine == "zarr":
            new.to_zarr(tmp_path / engine, mode="a", zarr_format=zarr_format, consolidated=False)
        else:
            write_dataset(new, tmp_path / engine, mode="a")
    theirs, ours = (sync.open_group(tmp_path / engine) for engine in ("zarr", "zarrasync"))
    for name in ("t", "time"):
        for told in ("dtype", "chunks", "shards", "fill_value", "attrs", "compressors"):
            assert getattr(theirs[name], told) == getattr(ours[name], told), (name, told)
        np.testing.assert_array_equal(theirs[name][...], ours[name][...])
    large = new * 1000  # does not fit
    write_dataset(large, tmp_path / "zarrasync", mode="a")
    found = sync.open_array(tmp_path / "zarrasync", path="t")
    assert (found.dtype, found.chunks, found.shards) == (np.float64, ours["t"].chunks, ours["t"].shards)
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "zarrasync", engine="zarrasync").load(), large)


@pytest.mark.parametrize(("zarr_format", "lazy"), [(2, False), (3, True)])
@pytest.mark.parametrize(
    ("encoding", "there", "given", "dtype"),
    [
        ({"dtype": "i2", "scale_factor": 0.1}, [0.0, 1.0], [2.0, 3.0], "i2"),  # without a missing value
        ({"dtype": "i2", "scale_factor": 0.1}, [0.0, 1.0], [2.0, np.nan], "f8"),
        ({"dtype": "i2", "scale_factor": 0.1}, [0.0, 1.0], [2.0, 1e6], "f8"),
        ({"dtype": "f4"}, [0.5, 1.5], [2.5, 3.5], "f4"),
        ({"dtype": "f4"}, [0.5, 1.5], [1e8 + 1, 1 / 3], "f8"),
        ({"dtype": "i4"}, [1, 2], [3, 4], "i4"),
        ({"dtype": "i4"}, [1, 2], [2**40, 4], "i8"),
        ({}, ["a", "b"], ["c", "d"], "U1"),
        ({}, ["a", "b"], ["abc", "d"], "U3"),
        ({"units": "days since 2000-01-01", "dtype": "i4"}, [0, 1], [2, 3], "i4"),
    ],
)
def test_a_replacement_loses_nothing(
    zarr_format: Any, lazy: bool, encoding: dict[str, Any], there: list[Any], given: list[Any], dtype: str
):
    """Another data type is used where the values do not fit, or where they are not known yet."""
    store = stores.MemoryStore()
    kind = "M8[D]" if "units" in encoding else None
    old, new = (xr.Dataset({"a": ("x", np.array(values, kind))}) for values in (there, given))
    write_dataset(old, store, encoding={"a": {**encoding, "chunks": (1,)}}, zarr_format=zarr_format)
    if lazy:
        pytest.importorskip("dask")
        new = new.chunk({"x": 2})
    write_dataset(new, store, mode="a", verify=True)
    found = sync.open_array(store, path="a")
    assert found.chunks == (1,)
    assert lazy or found.dtype == np.dtype(dtype)
    xr.testing.assert_allclose(xr.open_dataset(store, engine="zarrasync").load(), new.compute())


def test_encodings_of_variables_are_used():
    store = stores.MemoryStore()
    values = xr.Dataset({"a": ("x", np.arange(4.0))})
    write_dataset(values, store, encoding={"a": {"dtype": "i2", "chunks": (2,)}})
    values["a"].encoding = {"dtype": "f4"}
    write_dataset(values, store, mode="a")
    found = sync.open_array(store, path="a")
    assert (found.dtype, found.chunks) == (np.float32, (2,))


def test_unknown_arguments_name_the_called_function():
    with pytest.raises(TypeError, match=r"write_dataset\(\) got an unexpected keyword argument 'progress_'"):
        write_dataset(xr.Dataset(), {}, progress_=True)


def test_a_region_that_cuts_chunks_of_one_variable_changes_no_other():
    store = stores.MemoryStore()
    write_dataset(days("t", "u", count=10), store, encoding={"t": {"chunks": (5,)}, "u": {"chunks": (10,)}})
    before = contents(store)
    with pytest.raises(ShapeError, match="covers only parts of the chunks"):
        part = days("t", "u", start=70, count=5).drop_vars("time")
        write_dataset(part, store, region={"time": slice(5)}, config={"unaligned": "error"})
    assert contents(store) == before


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
@pytest.mark.parametrize("compute", [True, False])
def test_dask_blocks_that_share_chunks_change_nothing(mode: Any, compute: bool):
    pytest.importorskip("dask.array")
    store = stores.MemoryStore()
    write_dataset(days("t", "u", count=10), store, encoding={"t": {"chunks": (5,)}})
    before = contents(store)
    new = days("t", "u", start=70, count=10)
    new["t"] = new.t.chunk(time=3)
    new.t.encoding["chunks"] = (5,)
    with pytest.raises(ShapeError, match="blocks of the source share chunks"):
        strict: Any = {"options": WriteOptions(align_chunks=False, compute=compute), "config": {"unaligned": "error"}}
        write_dataset(new, store, mode=mode, **strict)
    assert contents(store) == before


def test_lost_values_cannot_be_verified(tmp_path: Path):
    """Each block is compared where it is written, and another one may replace it afterwards."""
    pytest.importorskip("dask.array")
    new = days("t", count=10)
    new["t"] = new.t.chunk(time=3)
    options: Any = {"options": WriteOptions(align_chunks=False), "encoding": {"t": {"chunks": (5,)}}}
    plain = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "plain"))  # without conditional writes
    with pytest.raises(ShapeError, match=r"verify=True cannot find values that blocks lose .*source.rechunk\(\(5,\)\)"):
        write_dataset(new, plain, verify=True, config={"unaligned": "allow"}, **options)
    write_dataset(new, tmp_path / "local", verify=True, **options)
    np.testing.assert_array_equal(sync.open_array(tmp_path / "local", path="t")[...], new.t.values)


def test_sizes_that_differ_from_existing_arrays():
    store = stores.MemoryStore()
    write_dataset(days("t"), store)
    before = contents(store)
    with pytest.raises(ShapeError, match=r"\(3,\) in the store, not \(5,\), and mode='r\+'"):
        write_dataset(days("t", count=5), store, mode="r+")
    assert contents(store) == before


class Unconsolidated(stores.WrapperStore):
    """A store without support for consolidated metadata, like sessions of icechunk."""

    def __init__(self, inner: stores.Store) -> None:
        super().__init__(inner)
        self.supports_consolidated_metadata = False


async def test_stores_without_consolidated_metadata(tmp_path: Path):
    store = Unconsolidated(stores.LocalStore(tmp_path))
    with pytest.raises(UnsupportedOperation, match="does not support consolidated metadata; pass consolidated=False"):
        write_dataset(days("t"), store, options=WriteOptions(consolidated=True))
    with pytest.raises(UnsupportedOperation, match="does not support consolidated metadata"):
        await write_dataset_async(days("t"), store, options=WriteOptions(consolidated=True))
    assert not list(tmp_path.iterdir())
    for consolidated in (None, False):
        write_dataset(days("t"), store, mode="w", options=WriteOptions(consolidated=consolidated))


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("where", ["conditional", "unconditional"])
def test_appended_blocks_that_share_chunks_change_nothing(tmp_path: Path, where: str, compute: bool):
    """Rows that continue a chunk are alright, but no two blocks share one."""
    pytest.importorskip("dask.array")
    store = stores.LocalStore(tmp_path)
    write_dataset(days("t", count=7), store, encoding={"t": {"chunks": (5,)}})
    options: Any = {"append_dim": "time", "options": WriteOptions(align_chunks=False, compute=compute)}
    if where == "conditional":
        options["config"] = {"unaligned": "error"}
    else:
        store.conditional = False
    before = contents(store)
    new = days("t", start=70, count=8)
    with pytest.raises(ShapeError, match="blocks of the source share chunks"):
        write_dataset(new.chunk(time=5), store, **options)
    assert contents(store) == before
    if where == "unconditional":  # 7 rows, then blocks of 3 and 5
        written = write_dataset(new.chunk(time=(3, 5)), store, **options)
        assert compute or written.compute()
        assert xr.open_dataset(store, engine="zarrasync").sizes["time"] == 15
    options |= {"config": {"unaligned": "allow"}}
    written = write_dataset(days("t", start=90, count=7).chunk(time=2), store, **options)
    assert compute or written.compute()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("mode", ["w", "a"])
def test_copies_above_a_group_describe_its_arrays_after_a_failed_write(mode: Any, zarr_format: Any):
    da = pytest.importorskip("dask.array")
    store = stores.MemoryStore()
    old = xr.Dataset({"t": ("time", np.arange(4, dtype="i4"))})
    write_dataset(xr.DataTree.from_dict({"/g": old}), store, zarr_format=zarr_format)

    def fail(block: Any) -> Any:
        raise RuntimeError("no values")

    lazy = da.zeros(4, chunks=2).map_blocks(fail, meta=np.empty(0))
    with pytest.raises(RuntimeError, match="no values"):
        new = xr.Dataset({"t": ("time", lazy), "u": ("time", np.ones(4))})
        write_dataset(new, store, group="g", mode=mode, zarr_format=zarr_format)
    arrays = dict(sync.open_group(store, use_consolidated=True)["g"].arrays())
    assert {name: str(array.dtype) for name, array in arrays.items()} == {"t": "float64", "u": "float64"}
