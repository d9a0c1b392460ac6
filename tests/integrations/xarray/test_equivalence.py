"""Datasets mean the same whichever engine wrote or reads them, and need no more requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.nodes.access import handle_of
from zarrasync.stores import CountingStore, MemoryStore

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")

from zarrasync.integrations.xarray import WriteOptions, write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")
PLAIN = {"consolidated": False}


def read(store: Any, engine: str = "zarrasync", **options: Any) -> Any:
    return xr.open_dataset(store, engine=engine, **(PLAIN if engine == "zarr" else {}), **options)


def theirs(dataset: Any, path: Path, **options: Any) -> None:
    dataset.to_zarr(path, consolidated=False, **options)


# ------------------------------------------------------------------ what means missing


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("missing", "expected"),
    [(np.nan, [1, np.nan, 7, -5]), ([np.nan, -5.0], [1, np.nan, 7, np.nan]), (-5.0, [1, np.nan, 7, np.nan])],
    ids=["nan", "both", "number"],
)
def test_nan_among_missing_values(missing: Any, expected: list[float], zarr_format: Any, tmp_path: Path):
    given = xr.Dataset({"v": ("x", np.array([1, np.nan, 7, -5.0]), {"missing_value": missing})})
    theirs(given, tmp_path / "theirs", zarr_format=zarr_format)
    write_dataset(given, tmp_path / "ours", zarr_format=zarr_format)
    for name in ("theirs", "ours"):
        for engine in ("zarr", "zarrasync"):
            found = read(tmp_path / name, engine).load()
            np.testing.assert_array_equal(found.v, expected)
            if missing is not np.nan:  # noqa: PLW0177  # the object itself
                continue  # xarray does not encode variables with two different missing values
            again = tmp_path / f"{name}-{engine}"
            theirs(found, tmp_path / f"{name}-{engine}-theirs", zarr_format=zarr_format)
            write_dataset(found, again)
            write_dataset(found, again, append_dim="x")
            np.testing.assert_array_equal(read(again).v, [*expected, *expected])


def test_an_infinite_number_that_means_missing(tmp_path: Path):
    given = xr.Dataset({"v": ("x", [1.0, np.inf], {"missing_value": np.inf})})
    write_dataset(given, tmp_path / "ours")
    np.testing.assert_array_equal(read(tmp_path / "ours").v, [1, np.nan])


# ------------------------------------------------------------------ text


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_strings_of_format_2_open_as_in_xarrays_engine(zarr_format: Any, tmp_path: Path):
    theirs(xr.Dataset({"s": ("x", np.array(["a", "bb"], object))}), tmp_path / "theirs", zarr_format=2)
    write_dataset(read(tmp_path / "theirs", "zarr"), tmp_path / "ours", zarr_format=zarr_format)
    for engine in ("zarr", "zarrasync"):
        assert read(tmp_path / "ours", engine).s.values.tolist() == ["a", "bb"]


@pytest.mark.parametrize("lazy", [False, True])
def test_variable_and_fixed_width_strings(lazy: bool):
    store = MemoryStore()
    write_dataset(xr.Dataset({"s": ("x", np.array(["aa", "bbbb"]))}), store)
    more = xr.Dataset({"s": ("x", np.array(["cc", ""], object))})
    write_dataset(more.chunk(x=1) if lazy else more, store, append_dim="x")
    assert read(store).s.values.tolist() == ["aa", "bbbb", "cc", ""]
    with pytest.raises(ValueError, match="'ccccc' at index 0 of 's' cannot be stored"):
        write_dataset(xr.Dataset({"s": ("x", np.array(["ccccc"], object))}), store, append_dim="x")
    assert read(store).sizes == {"x": 4}


# ------------------------------------------------------------------ places


def grid() -> Any:
    times = np.array(["2000-01-01", "2000-01-02", "2000-01-03", "2000-01-04"], "M8[ns]")
    variables = {"v": (("time", "y", "x"), np.zeros((4, 2, 3))), "bounds": (("time", "b"), np.zeros((4, 2)))}
    return xr.Dataset(variables, {"time": times})


def test_a_region_along_axes_without_coordinates():
    """The region is the whole axis if the lengths agree."""
    store = MemoryStore()
    write_dataset(grid(), store)
    write_dataset(grid().isel(time=slice(1, 3)) + 1, store, region="auto")
    want = (grid() + 1).where(grid().time.isin(grid().time[1:3]), 0)
    xr.testing.assert_equal(read(store).load(), want)
    with pytest.raises(ValueError, match="the region along 'x' cannot be located"):
        write_dataset(grid().isel(x=[0]), store, region="auto")


def test_region_writes_keep_existing_coordinates():
    """Coordinates of several regions may share a chunk; different coordinates are an error."""
    store = CountingStore(MemoryStore())
    write_dataset(grid(), store)
    part = grid().isel(time=slice(1, 3)) + 1
    store.reset()
    write_dataset(part, store, region={"time": slice(1, 3)})
    assert store.reset().puts == 2  # the chunks of v and bounds
    with pytest.raises(ValueError, match="coordinates along 'time' differ from the stored"):
        write_dataset(part, store, region={"time": slice(0, 2)})
    write_dataset(part.drop_vars("time") * 2, store, region={"time": slice(0, 2)})
    assert read(store).bounds[:, 0].values.tolist() == [2, 2, 1, 0]
    xr.testing.assert_equal(read(store).time, grid().time)
    # Without stored coordinates the region writes its own.
    empty = grid().assign_coords(time=np.full(4, "NaT", "M8[ns]"))
    write_dataset(empty, store, mode="w", encoding={"time": {"units": "days since 2000-01-01", "dtype": "f8"}})
    for start in (0, 2):
        write_dataset(grid().isel(time=slice(start, start + 2)), store, region={"time": slice(start, start + 2)})
    xr.testing.assert_equal(read(store).load(), grid())


@pytest.mark.parametrize("how", [{"append_dim": "time", "on_duplicate": "allow"}, {"region": {"time": slice(0, 4)}}])
def test_axes_in_another_order(how: dict[str, Any]):
    store = MemoryStore()
    write_dataset(grid(), store)
    given = (grid() + xr.DataArray([0.0, 1, 2], dims="x")).transpose("x", "b", "y", "time")
    given["bounds"] = grid().bounds.T
    write_dataset(given, store, **how)
    found = read(store).isel(time=slice(-4, None))
    xr.testing.assert_equal(found.load(), given.transpose("time", "y", "x", "b"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, None])
def test_groups_are_found_in_the_copies_of_the_root(zarr_format: Any, consolidated: bool | None, tmp_path: Path):
    tree = xr.DataTree.from_dict({"/a": grid(), "/a/b": grid()[["v"]].drop_vars("time")})
    tree.to_zarr(tmp_path, zarr_format=zarr_format, consolidated=True)
    counting = CountingStore(stores.LocalStore(tmp_path))
    for group, want in (("a", grid()), ("/a/b/", grid()[["v"]].drop_vars("time"))):
        xr.testing.assert_equal(read(counting, group=group, consolidated=consolidated).load(), want)
    assert counting.reset().lists == 0
    found = xr.open_datatree(tmp_path, engine="zarrasync", group="a", consolidated=consolidated)
    xr.testing.assert_equal(found.to_dataset().load(), grid())
    assert set(found.children) == {"b"}
    # A later variable is not in the consolidated metadata.
    write_dataset(grid(), tmp_path, group="late", zarr_format=zarr_format, options=WriteOptions(consolidated=False))
    xr.testing.assert_equal(read(tmp_path, group="late").load(), grid())


def test_attributes_whose_names_begin_like_netcdfs(tmp_path: Path):
    given = xr.Dataset({"v": ("x", [1.0], {"_ncolumns": 3, "_NCkeep": "a"})}, attrs={"_ncx": 1})
    write_dataset(given, tmp_path)
    xr.testing.assert_identical(read(tmp_path).load(), given)


# ------------------------------------------------------------------ requests


def many(count: int = 20) -> Any:
    return xr.Dataset({f"v{n}": (("t", "x"), np.ones((3, 4))) for n in range(count)}, {"t": np.arange(3.0)})


@pytest.mark.parametrize("mode", ["w-", "w"])
@pytest.mark.parametrize("lazy", [False, True])
def test_the_requests_of_a_new_dataset(mode: Any, lazy: bool):
    """Each variable takes one request for its document and one for its chunk, and few more to look for nodes."""
    store = CountingStore(MemoryStore())
    given = many().chunk(t=3) if lazy else many()
    write_dataset(given, store, mode=mode)
    counts = store.reset()
    assert (counts.puts, counts.erases) == (
        2 * 21 + 2,
        0,
    )  # the group is stored twice; nothing exists that mode "w" would erase
    assert counts.fetches <= 6 + lazy  # dask's scheduler runs no tasks of ours, except for the chunk of the coordinate
    assert counts.lists <= 1
    write_dataset(many(), store, append_dim="t", on_duplicate="allow")
    counts = store.reset()
    assert counts.lists == 1
    assert (counts.puts, counts.erases) == (2 * 21 + 2, 1)  # and the consolidated metadata, and the claim of the rows
    # A document before and after, and the chunk of a coordinate or one that is appended to; and the claim of the rows.
    assert counts.fetches <= 3 * 21 + 8
    xr.testing.assert_identical(read(store).load(), xr.concat([many(), many()], "t"))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_requests_of_consolidating(zarr_format: Any):
    store = CountingStore(MemoryStore())
    write_dataset(many(), store, zarr_format=zarr_format, options=WriteOptions(consolidated=False))
    store.reset()
    sync.consolidate_metadata(store, zarr_format=zarr_format)
    counts = store.reset()
    documents = len(handle_of(sync.open_array(store, path="t").async_).format.document_keys("t"))
    assert counts.fetches <= (documents + 1) * 21 + 16
    assert read(store, consolidated=True).sizes == {"t": 3, "x": 4}


@pytest.mark.parametrize("mode", ["w-", "a", "w"])
def test_chunks_of_an_interrupted_replacement_do_not_reappear(mode: Any):
    """Orphaned chunks would reappear when the new array grows."""
    kept: dict[str, bytes] = {}
    write_dataset(xr.Dataset({"a": ("t", np.ones(8))}), kept, encoding={"a": {"chunks": (2,)}})
    del kept["a/zarr.json"]
    if mode != "a":
        del kept["zarr.json"]
    write_dataset(xr.Dataset({"a": ("t", np.zeros(2))}), kept, mode=mode, encoding={"a": {"chunks": (2,)}})
    array = sync.open_array(kept, path="a", mode="r+")
    array.resize((8,))
    assert np.isnan(array[2:]).all()


# ------------------------------------------------------------------ what is there already


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copies_of_metadata_that_are_old(tmp_path: Path, zarr_format: Any):
    """Outdated consolidated metadata is ignored in favour of the node's own document."""
    import zarr

    given = xr.Dataset({"v": ("x", np.arange(1.0, 5)), "w": ("y", np.arange(1.0, 5))})  # 0 is missing in format 2
    given.to_zarr(tmp_path, zarr_format=zarr_format, consolidated=True)
    group = zarr.open_group(tmp_path, use_consolidated=False, mode="r+", zarr_format=zarr_format)
    for name, dim in (("v", "x"), ("w", "y")):
        named: dict[str, Any] = {"dimension_names": [dim]}
        if zarr_format == 2:
            named = {"attributes": {"_ARRAY_DIMENSIONS": [dim]}}
        group.create_array(name, shape=4, chunks=(2,), dtype="f8", overwrite=True, **named)[:] = 7
    write_dataset(given[["v"]], tmp_path, region={"x": slice(0, 4)})
    write_dataset(given, tmp_path, append_dim="x")
    found: Any = zarr.open_group(tmp_path, use_consolidated=False)
    np.testing.assert_array_equal(found["v"][:], [1, 2, 3, 4] * 2)
    np.testing.assert_array_equal(found["w"][:], [1, 2, 3, 4])


@pytest.mark.parametrize("encoding", [{"dtype": "f4"}, {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}, {}])
def test_regions_beside_coordinates_that_were_rounded(tmp_path: Path, encoding: dict[str, Any]):
    given = xr.Dataset({"v": ("x", np.arange(4.0))}, coords={"x": [0.1, 0.2, 0.3, 0.4]})
    theirs(given, tmp_path, encoding={"x": encoding})
    part = slice(1, 3)
    write_dataset((given + 5).isel(x=part), tmp_path, region={"x": part})
    np.testing.assert_array_equal(read(tmp_path).v, [0, 6, 7, 3])
    moved = given.assign_coords(x=given.x + 1)
    with pytest.raises(ValueError, match="coordinates along 'x' differ from the stored"):
        write_dataset(moved.isel(x=part), tmp_path, region={"x": part})


def test_a_template_with_unwritten_coordinates(tmp_path: Path):
    theirs(xr.Dataset({"v": ("x", np.zeros(4))}, coords={"x": np.zeros(4, int)}), tmp_path)
    given = xr.Dataset({"v": ("x", np.arange(4.0))}, coords={"x": np.arange(3, 7)})
    write_dataset(given, tmp_path, region={"x": slice(0, 4)})
    xr.testing.assert_identical(read(tmp_path).load(), given)


def test_undecodable_variables_do_not_hide_others(tmp_path: Path):
    given = xr.Dataset({"v": ("x", np.arange(4.0))})
    theirs(given.assign(t=("y", np.arange(3), {"units": "days since foo"})), tmp_path)
    write_dataset(given, tmp_path, append_dim="x")
    assert read(tmp_path, decode_times=False).v.values.tolist() == [0, 1, 2, 3] * 2


def test_single_bytes_keep_their_axis(tmp_path: Path):
    given = xr.Dataset({"v": ("x", np.arange(2.0))}, coords={"x": np.array([b"a", b"b"])})
    theirs(given, tmp_path)
    write_dataset(given + 10, tmp_path, region={"x": slice(0, 2)})
    np.testing.assert_array_equal(read(tmp_path).v, [10, 11])


def test_a_group_below_an_unreadable_root(tmp_path: Path):
    given = xr.Dataset({"v": ("x", np.arange(4.0))})
    theirs(given, tmp_path, group="g")
    (tmp_path / "zarr.json").write_text("{")
    xr.testing.assert_identical(xr.open_dataset(tmp_path, engine="zarrasync", group="g").load(), given)
