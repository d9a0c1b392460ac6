"""Requests that wait for each other when datasets are opened and loaded, whatever the number of variables and groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.covering import covering
from tests.support.servers import http_server
from tests.support.wave_store import WaveStore
from zarrasync import stores, sync
from zarrasync.errors import CodecError
from zarrasync.stores.counting import Event
from zarrasync.testing import LatencyStore

xr: Any = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import WriteOptions, load, write_dataset  # after the skip


def dataset_of(count: int) -> Any:
    coords: dict[str, Any] = {f"d{n}": np.arange(4) + n for n in range(1, count)}
    coords["d0"] = np.arange("2000-01-01", "2000-01-05", dtype="M8[D]").astype("M8[ns]")
    return xr.Dataset({f"v{n}": ((f"d{n}",), np.arange(4.0)) for n in range(count)}, coords)


def tree_of(count: int) -> Any:
    """A tree of groups below each other, each with coordinates of its own."""
    return xr.DataTree.from_dict({"/" + "/".join("abcdefgh"[: n + 1]) + f"/g{n}": dataset_of(3) for n in range(count)})


@pytest.fixture(params=["directories", "keys"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    """A store that lists directories, and one that lists only all keys at once."""
    return stores.LocalStore(tmp_path) if request.param == "directories" else stores.MemoryStore()


@pytest.mark.parametrize(
    ("zarr_format", "consolidated", "count", "group"), covering([2, 3], [False, True], [1, 12], [None, "a", "a/b"])
)
def test_opening_and_loading_a_dataset(
    stored: stores.Store, zarr_format: Any, consolidated: bool, count: int, group: str | None
):
    """Documents and listing of the group, documents of the variables, coordinates; then all other variables."""
    write_dataset(
        dataset_of(count), stored, group=group, zarr_format=zarr_format, options=WriteOptions(consolidated=False)
    )
    if consolidated:
        sync.consolidate_metadata(stored)
    store = WaveStore(stored)
    dataset = xr.open_dataset(store, engine="zarrasync", group=group)
    assert len(store.take()) == (2 if consolidated else 3)
    assert load(dataset) is dataset
    assert len(store.take()) == 1
    xr.testing.assert_identical(dataset, dataset_of(count))


@pytest.mark.parametrize(
    ("zarr_format", "consolidated", "count", "group"), covering([2, 3], [False, True], [1, 4], [None, "below"])
)
def test_opening_and_loading_a_tree(
    stored: stores.Store, zarr_format: Any, consolidated: bool, count: int, group: str | None
):
    """The depth of the tree does not matter."""
    write_dataset(
        tree_of(count), stored, group=group, zarr_format=zarr_format, options=WriteOptions(consolidated=False)
    )
    if consolidated:
        sync.consolidate_metadata(stored)
    store = WaveStore(stored)
    tree = xr.open_datatree(store, engine="zarrasync", group=group)
    assert len(store.take()) == (2 if consolidated else 3)
    assert load(tree) is tree
    assert len(store.take()) == 1
    xr.testing.assert_identical(tree, tree_of(count))
    groups = xr.open_groups(store, engine="zarrasync", group=group)
    assert len(store.take()) == (2 if consolidated else 3)
    assert sorted(groups) == sorted(tree.groups)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("group", ["g", "a/b"])
def test_trees_with_many_keys(tmp_path: Path, zarr_format: Any, group: str):
    """Two round trips more for each level of groups, to list it and to fetch its documents."""
    write_dataset(
        dataset_of(2), tmp_path, group=group, options=WriteOptions(consolidated=False), zarr_format=zarr_format
    )
    big = {"_ARRAY_DIMENSIONS": ["n"]}
    sync.create_array(
        tmp_path, path="x", data=np.ones(1200, "i1"), chunks=(1,), attributes=big, zarr_format=zarr_format
    )
    store = WaveStore(stores.LocalStore(tmp_path))
    tree = xr.open_datatree(store, engine="zarrasync")
    waves = store.take()
    names = {operation for wave in waves[-1:] for operation, key in wave}
    assert (len(waves), names) == (3 + 2 * (group.count("/") + 1), {"fetch"})
    assert sorted(key for _, key in waves[-1]) == [f"{group}/d{n}/{'c/' * (zarr_format == 3)}0" for n in range(2)]
    listed = [key for wave in waves for operation, key in wave if operation == "list"]
    assert len(listed) <= 2 * len({*listed})
    assert tree["x"].shape == (1200,)
    xr.testing.assert_identical(load(tree[group].to_dataset(inherit=False)), dataset_of(2))


def test_absent_documents_are_known_from_the_listing(tmp_path: Path):
    write_dataset(tree_of(2), tmp_path, zarr_format=2, options=WriteOptions(consolidated=False))
    store = WaveStore(stores.LocalStore(tmp_path))
    xr.open_datatree(store, engine="zarrasync")
    _, documents, _ = store.take()
    stored = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob(".z*")}
    assert {key for _, key in documents} == stored - {".zgroup", ".zattrs"}


@pytest.mark.parametrize("group", [None, "a"])
def test_stores_without_quick_listings_are_not_listed_early(tmp_path: Path, group: str | None):
    """A web server would have to look through a directory, only for a listing that consolidated metadata replace."""
    write_dataset(dataset_of(2), tmp_path, group=group, options=WriteOptions(consolidated=False))
    sync.consolidate_metadata(tmp_path)
    store = WaveStore(stores.LocalStore(tmp_path))
    store.quick_listing = False
    xr.open_dataset(store, engine="zarrasync", group=group)
    xr.open_datatree(store, engine="zarrasync", group=group)
    requests = [request for wave in store.take() for request in wave]
    assert not [key for operation, key in requests if operation == "list"]
    assert len(requests) == 2 * (4 + 2)


@pytest.mark.servers
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("group", ["", "a"])
@pytest.mark.parametrize(("consolidated", "trips"), [(False, 3), (True, 2), (None, 2)])
def test_web_servers(tmp_path: Path, zarr_format: Any, group: str, consolidated: bool | None, trips: int):
    """They list a group while it is opened only if consolidated metadata cannot make that unnecessary."""
    write_dataset(
        dataset_of(12), tmp_path, group=group or None, options=WriteOptions(consolidated=False), zarr_format=zarr_format
    )
    if consolidated is not False:
        sync.consolidate_metadata(tmp_path)
    with http_server(tmp_path, show_index=True) as url:
        inner = stores.HTTPStore(url)
        store = WaveStore(inner)
        store.quick_listing = inner.quick_listing
        dataset = xr.open_dataset(store, engine="zarrasync", group=group, consolidated=consolidated)
        waves = store.take()
        assert len(waves) == trips
        listed = [request for wave in waves for request in wave if request[0] == "list"]
        assert listed == ([("list", f"{group}/" if group else "")] if consolidated is False else [])
        xr.testing.assert_identical(load(dataset), dataset_of(12))


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_s3(s3: tuple[str, dict[str, Any]], backend: str):
    url, options = s3[0], {**s3[1], "backend": backend}
    write_dataset(tree_of(2), url, options=WriteOptions(consolidated=False), storage_options=options)
    store = stores.resolve(url, options)
    assert store.quick_listing
    events: list[Event] = []
    tree = xr.open_datatree(stores.TracingStore(store, on_event=events.append), engine="zarrasync")
    listed = [event.keys for event in events if event.operation == "list"]
    assert listed.count(("",)) == 2  # the directory and few keys, which fsspec leaves out
    assert len(listed) == 2 if backend == "obstore" else len(listed) > 2
    xr.testing.assert_identical(load(tree), tree_of(2))
    dataset = xr.open_dataset(url, engine="zarrasync", storage_options=options, group="a/g0")
    xr.testing.assert_identical(load(dataset), dataset_of(3))


def test_times_of_several_axes(tmp_path: Path):
    """xarray looks at the first and the last value to choose their data type."""
    times = np.arange("2000-01-01", "2000-01-05", dtype="M8[D]").astype("M8[ns]")
    valid = {f"valid{n}": (("time", "step"), times[:, None] + np.array([0, n], "m8[h]")) for n in range(3)}
    dataset = xr.Dataset({"v": (("time", "step"), np.ones((4, 2)))}, {"time": times, "now": times[0], **valid})
    write_dataset(dataset, tmp_path, options=WriteOptions(consolidated=False))
    store = WaveStore(stores.LocalStore(tmp_path))
    opened = xr.open_dataset(store, engine="zarrasync")
    assert len(store.take()) == 3
    points = xr.DataArray([3, 1], dims="p"), xr.DataArray([1, 0], dims="p")
    for part in (
        opened,
        opened.isel(time=[2, 0, 1], step=[1, 0]),
        opened.isel(time=slice(None, None, -2), step=1),
        opened.isel(time=points[0], step=points[1]),
        opened.isel(time=points[0], step=[1]),
    ):
        for name in (*valid, "time", "now"):
            assert part[name].dtype == times.dtype
    xr.testing.assert_identical(
        opened.isel(time=points[0], step=points[1]).load(), dataset.isel(time=points[0], step=points[1])
    )
    xr.testing.assert_identical(opened.isel(time=[2, 0], step=[1, 0]).load(), dataset.isel(time=[2, 0], step=[1, 0]))
    xr.testing.assert_identical(
        opened.isel(time=slice(None, None, -2), step=1).load(), dataset.isel(time=[3, 1], step=1)
    )
    xr.testing.assert_identical(opened.load(), dataset)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("count", [2, 20])
def test_writing_a_dataset(zarr_format: Any, lazy: bool, count: int):
    """Group, arrays, chunks, and the consolidated metadata, each with a look at what exists.

    The limits leave room for requests that begin late because values are encoded on other threads.
    """
    store = WaveStore(stores.MemoryStore())
    given = dataset_of(count).chunk() if lazy else dataset_of(count)
    write_dataset(
        given,
        store,
        zarr_format=zarr_format,
        options=WriteOptions(chunkmanager_store_kwargs={"scheduler": "synchronous"}),
    )
    assert len(store.take()) <= 12 + (count + 1 if lazy else 0)  # this scheduler computes one block after the other
    write_dataset(dataset_of(count), store, mode="w")
    assert len(store.take()) <= 16
    xr.testing.assert_identical(load(xr.open_dataset(store, engine="zarrasync")), dataset_of(count))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("count", [2, 8])
def test_writing_a_tree(zarr_format: Any, count: int):
    """One more round trip for the groups of each level."""
    store = WaveStore(stores.MemoryStore())
    tree = xr.DataTree.from_dict({f"/g{number}": dataset_of(3) for number in range(count)})
    write_dataset(tree, store, zarr_format=zarr_format)
    assert len(store.take()) <= 16
    xr.testing.assert_identical(load(xr.open_datatree(store, engine="zarrasync")), tree)


async def test_loading_inside_a_running_loop():
    memory = stores.MemoryStore()
    write_dataset(dataset_of(3), memory)
    dataset = load(xr.open_dataset(LatencyStore(memory, 0.001), engine="zarrasync"))
    xr.testing.assert_identical(dataset, dataset_of(3))
    assert load(xr.open_dataset(memory, engine="zarrasync")["v1"]).values.tolist() == [0, 1, 2, 3]


def test_coordinates_that_cannot_be_read_raise_the_error():
    memory = stores.MemoryStore()
    write_dataset(dataset_of(3), memory)
    memory.values["d1/c/0"] = b"damaged"
    store = LatencyStore(memory, 0.0)
    with pytest.raises(CodecError, match="d1/c/0"):
        xr.open_dataset(store, engine="zarrasync")
    dataset = xr.open_dataset(store, engine="zarrasync", drop_variables="d1")
    assert sorted(dataset.variables) == ["d0", "d2", "v0", "v1", "v2"]


def test_dropped_variables_may_be_broken():
    memory = stores.MemoryStore()
    write_dataset(dataset_of(2), memory)
    sync.open_group(memory, mode="r+").create_array("odd", data=[1], attributes={"_FillValue": {"a": 1}})
    dataset = xr.open_dataset(memory, engine="zarrasync", drop_variables=["odd"])
    assert "odd" not in dataset
    assert xr.open_datatree(memory, engine="zarrasync", drop_variables="odd")["v1"].shape == (4,)
