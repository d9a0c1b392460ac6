"""Arguments of ``write_dataset`` with the meaning that they have for xarray's ``to_zarr``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import codecs, stores, sync
from zarrasync.errors import NodeTypeError, ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from tests.support.covering import covering
from tests.support.datasets import dataset, rows
from zarrasync.integrations.xarray import (  # after the skip
    WriteOptions,
    WriteReport,
    write_dataset,
    write_dataset_async,
)
from zarrasync.integrations.xarray.functions import _is_lazy


def grid(**encoding: Any) -> Any:
    return xr.Dataset({"a": (("t", "x"), np.arange(48.0).reshape(6, 8)), "b": ("x", np.arange(8))}, {"t": np.arange(6)})


# ------------------------------------------------------------------ what is written


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("group", [None, "a/b"])
def test_the_readers_of_xarray_do_not_warn(tmp_path: Path, zarr_format: Any, group: Any):
    write_dataset(dataset(), tmp_path, zarr_format=zarr_format, group=group)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to open Zarr store with consolidated metadata")
        found = xr.open_zarr(tmp_path, group=group).load()
    xr.testing.assert_equal(found, dataset())
    assert sync.open_group(tmp_path, use_consolidated=True).attrs.asdict() == (dataset().attrs if group is None else {})


def test_consolidated_metadata_of_groups_above_is_updated(tmp_path: Path):
    write_dataset(grid(), tmp_path)
    write_dataset(grid(), tmp_path, group="a2/b2")
    write_dataset(grid().isel(t=[0, 1]), tmp_path, group="a2/b2", append_dim="t", on_duplicate="allow")
    copies = sync.open_group(tmp_path, use_consolidated=True)
    assert copies["a2/b2/t"].shape == (8,)
    write_dataset(grid()[["b"]], tmp_path, group="a2/b2", mode="w")
    copies = sync.open_group(tmp_path, use_consolidated=True)
    assert [path for path, _ in copies.members(None)] == ["a", "a2", "a2/b2", "a2/b2/b", "b", "t"]
    write_dataset(grid(), tmp_path / "none", options=WriteOptions(consolidated=False))
    assert sync.open_group(tmp_path / "none").metadata.attributes == {}
    with pytest.raises(KeyError, match="no consolidated metadata"):
        sync.open_group(tmp_path / "none", use_consolidated=True)


@pytest.mark.parametrize(
    ("kind", "zarr_format", "key"),
    covering(["numcodecs", "zarr", "ours", "json"], [2, 3], ["compressors", "compressor"]),
)
def test_codecs_as_objects(tmp_path: Path, zarr_format: Any, kind: str, key: str):
    import numcodecs
    import zarr.codecs

    configuration = {"name": "gzip", "configuration": {"level": 2}} if zarr_format == 3 else {"id": "gzip", "level": 2}
    codec: Any = {
        "numcodecs": numcodecs.GZip(2),
        "zarr": zarr.codecs.GzipCodec(level=2),
        "ours": codecs.GzipCodec(level=2),
        "json": configuration,
    }[kind]
    value = [codec] if key == "compressors" else codec
    write_dataset(grid(), tmp_path, zarr_format=zarr_format, encoding={"a": {key: value, "chunks": (2, 4)}})
    (stored,) = sync.open_array(tmp_path, path="a").compressors
    assert stored.label.startswith("gzip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xr.testing.assert_identical(xr.open_zarr(tmp_path).load(), grid())


def test_layouts_in_encodings(tmp_path: Path):
    import zarr.codecs

    options: dict[str, Any] = {
        "chunks": (2, 4),
        "shards": (6, 8),
        "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
        "serializer": zarr.codecs.BytesCodec(endian="big"),
        "compressors": None,
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    }
    write_dataset(grid(), tmp_path, encoding={"a": options})
    array = sync.open_array(tmp_path, path="a")
    assert (array.chunks, array.shards, array.compressors) == ((2, 4), (6, 8), ())
    assert (tmp_path / "a/0/0").exists()
    xr.testing.assert_identical(xr.open_zarr(tmp_path).load(), grid())


@pytest.mark.parametrize("keep", [True, False, None])
@pytest.mark.parametrize("where", ["config", "encoding"])
def test_empty_chunks(keep: Any, where: str):
    values = xr.Dataset({"a": ("x", np.array([np.nan, np.nan, 1.0, np.nan]))})
    encoding = {"a": {"chunks": (2,), **({"write_empty_chunks": keep} if where == "encoding" else {})}}
    store: dict[str, bytes] = {}
    config = None if keep is None else {"write_empty_chunks": keep}
    write_dataset(values, store, encoding=encoding, config=config if where == "config" else None)
    assert ("a/c/0" in store) is bool(keep)
    write_dataset(values * np.nan, store, region={"x": slice(0, 4)}, config=config)
    assert ("a/c/1" in store) is bool(keep)
    if keep is not None and where == "encoding":
        write_dataset(values, other := {}, encoding=encoding, config={"write_empty_chunks": not keep})
        assert ("a/c/0" in other) is keep  # the encoding of a variable has priority


def test_groups_are_named_by_strings_and_are_not_arrays(tmp_path: Path):
    for group in (None, "0"):
        write_dataset(xr.Dataset({"u": ("x", [1.0])}), tmp_path, group=group)
    for call in (xr.open_dataset, xr.open_datatree):
        with pytest.raises(TypeError, match="path must be a string, found 0"):
            call(tmp_path, engine="zarrasync", group=0)
    with pytest.raises(TypeError, match="path must be a string, found 0"):
        write_dataset(xr.Dataset({"u": ("x", [1.0])}), tmp_path, group=0)
    for group in ("u", "0/u"):
        with pytest.raises(NodeTypeError, match=group):
            xr.open_dataset(tmp_path, engine="zarrasync", group=group)


def test_arrays_keep_their_names():
    for name, expected in ((None, None), ("a", "a"), ("x", "x")):
        store: dict[str, bytes] = {}
        array = xr.DataArray(np.arange(4.0), {"x": np.arange(4)}, ("x",), name)
        write_dataset(array, store)
        found = xr.open_dataarray(store, engine="zarrasync").load()
        xr.testing.assert_identical(found, array)
        assert found.name == expected


def test_fill_values_of_format_2_are_encodings_of_xarray():
    """There they mean missing, so a fill_value as in format 3 would turn values into missing ones."""
    values = xr.Dataset({"a": ("x", np.arange(4.0))})
    with pytest.raises(ValueError, match="pass it as _FillValue"):
        write_dataset(values, {}, zarr_format=2, encoding={"a": {"fill_value": 2.0}})
    for zarr_format, key in ((2, "_FillValue"), (3, "fill_value")):
        store: dict[str, bytes] = {}
        write_dataset(values, store, zarr_format=zarr_format, encoding={"a": {key: 9.0}})
        assert sync.open_array(store, path="a").fill_value == 9.0


# ------------------------------------------------------------------ modes


def test_appending_only_what_grows():
    store = stores.MemoryStore()
    write_dataset(rows(0), store)
    write_dataset(rows(1).assign(area=("lat", np.zeros(4)), new=4), store, append_dim="t", mode="a-")
    found = xr.open_dataset(store, engine="zarrasync").load()
    expected = xr.concat([rows(0), rows(1)], "t", data_vars="minimal", compat="override", coords="minimal")
    xr.testing.assert_equal(found.drop_vars("new"), expected)
    write_dataset(rows(1)[["area"]] * 0, store, mode="a-")  # as "a" without a dimension
    assert not sync.open_array(store, path="area")[...].any()


def test_existing_values_are_replaced_in_place():
    store: dict[str, bytes] = {}
    write_dataset(grid().assign_attrs(title="first"), store, encoding={"a": {"dtype": "f4", "chunks": (2, 4)}})
    documents = {key: store[key] for key in store if key.endswith("zarr.json")}
    write_dataset((grid() * 2).assign_attrs(title="second"), store, mode="r+")
    assert {key: store[key] for key in documents} == documents
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), grid() * 2)
    with pytest.raises(FileNotFoundError):
        write_dataset(grid(), {}, mode="r+")


# ------------------------------------------------------------------ chunks of dask


@pytest.mark.parametrize("conditional", [True, False])
def test_blocks_that_share_chunks(tmp_path: Path, conditional: bool):
    pytest.importorskip("dask")
    zarr = pytest.importorskip("zarr")
    store: Any = tmp_path if conditional else stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    lazy, encoding = grid().chunk(t=3, x=3), {"a": {"chunks": (2, 4)}, "b": {"chunks": (4,)}}
    write_dataset(lazy, store, encoding=encoding, mode="w")  # blocks are rechunked
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), grid())
    unsafe: dict[str, Any] = {"encoding": encoding, "mode": "w", "options": WriteOptions(align_chunks=False)}
    if conditional:
        write_dataset(lazy, store, **unsafe)  # chunks are locked
    else:
        with pytest.raises(ShapeError, match="blocks of the source share chunks along the axes"):
            write_dataset(lazy, store, **unsafe)
    alone = WriteOptions(align_chunks=False, chunkmanager_store_kwargs={"scheduler": "synchronous"})
    write_dataset(lazy, store, **unsafe | {"options": alone}, config={"unaligned": "allow"})
    xr.testing.assert_equal(xr.open_dataset(store, engine="zarrasync").load(), grid())
    with pytest.raises(ShapeError, match="share chunks"):
        write_dataset(lazy, store, config={"unaligned": "error"}, **unsafe)


@pytest.mark.parametrize("lazy", [False, True])
def test_regions_that_cut_chunks(tmp_path: Path, lazy: bool):
    zarr = pytest.importorskip("zarr")
    store = stores.ZarrPythonStore(zarr.storage.LocalStore(tmp_path))
    write_dataset(grid(), store, encoding={"a": {"chunks": (4, 8)}})
    part = grid()[["a"]].isel(t=slice(0, 3)).drop_vars("t") * 0
    part = part.chunk() if lazy else part
    with pytest.raises(ShapeError):
        write_dataset(part, store, region={"t": slice(0, 3)})
    write_dataset(part, store, region={"t": slice(0, 3)}, config={"unaligned": "allow"})
    assert sync.open_array(store, path="a")[:3].any() == np.False_


# ------------------------------------------------------------------ reports


@pytest.mark.parametrize("lazy", [False, True])
async def test_reports_and_progress(lazy: bool):
    given = dataset().drop_vars("names").chunk(lat=2) if lazy else dataset()
    steps: list[int] = []
    report = await write_dataset_async(given, {}, progress=steps.append, encoding={"t2m": {"dtype": "f8"}})
    assert isinstance(report, WriteReport)
    assert sum(steps) == report.nbytes == sum(one.nbytes for one in report.values())
    assert list(report) == list(map(str, given.variables))
    text = repr(report)
    assert text.startswith(f"{len(given.variables)} variables written: ")
    assert str(report) == text
    assert len(text.splitlines()) == len(given.variables) + 2
    assert ">t2m</td>" in report._repr_html_()
    assert report.requests > 0
    assert report.stored > 0


def test_lazy_arrays_are_detected_in_data_and_in_coordinates():
    """In a task of a dask worker, writes of lazy arrays free the task's thread for the computation."""
    pytest.importorskip("dask.array")
    array = xr.DataArray(np.zeros(4), dims="x", coords={"y": ("x", np.arange(4))})
    assert not _is_lazy(array)
    assert _is_lazy(array.chunk(x=2))
    assert _is_lazy(array.assign_coords(y=array.y.chunk(x=2)))
