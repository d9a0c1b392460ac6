"""Overwriting: nothing is erased before its replacement is valid, and never the source of the replacement."""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections import UserDict
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import (
    ChecksumError,
    CodecError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ShapeError,
)
from zarrasync.testing import LatencyStore

VALUES = np.arange(1, 6)


@pytest.fixture
def existing(tmp_path: Path) -> Path:
    """The path of an array that must not be lost."""
    sync.create_array(tmp_path / "existing", data=VALUES)
    return tmp_path / "existing"


def check(existing: Path) -> None:
    np.testing.assert_array_equal(sync.open_array(existing)[...], VALUES)


def test_values_from_the_array_they_replace(existing: Path, s3):
    """Values are read before the array is replaced."""
    sync.create_array(existing, data=sync.open_array(existing), overwrite=True, chunks=2)
    check(existing)
    sync.save(existing, sync.open_array(existing))
    check(existing)
    url, options = s3
    for where, given in ((str(existing.parent / "group"), None), (url, options)):
        group = sync.create_group(where, storage_options=given)
        group["x"] = VALUES
        group["x"] = group.get_array("x")
        np.testing.assert_array_equal(group["x"][...], VALUES)
        sync.save(where, x=group["x"], y=group["x"], storage_options=given)
        np.testing.assert_array_equal(sync.load(where, storage_options=given)["y"], VALUES)


async def test_arrays_that_are_not_read_yet(api: Api, existing: Path, s3):
    url, options = s3
    array = await api(api.open_array(existing))
    for number, (source, expected) in enumerate([(array, VALUES), (array.view[1::2], VALUES[1::2])]):
        far = await api(api.create_array(f"{url}/{number}", data=source, storage_options=options))
        near = await api(api.create_array({}, data=far))
        np.testing.assert_array_equal(await api(near.view[...].read()), expected)
        target: dict[str, bytes] = {}
        await api(api.ingest(source, target, verify=True))
        np.testing.assert_array_equal(sync.open_array(target)[...], expected)


def test_sources_that_read_from_the_array_they_replace(existing: Path):
    zarr = pytest.importorskip("zarr")
    from zarrasync.integrations.zarr import zarr_store

    inside = sync.create_group(existing.parent / "group")
    inside.create_array("deep/x", data=VALUES)
    far = zarr.storage.FsspecStore.from_url(f"file://{existing}")
    theirs = [zarr.open_array(store, mode="r") for store in (existing, far, zarr_store(existing))]
    partial = functools.partial(lambda region, array: array[region], array=sync.open_array(existing))
    for source in (sync.open_array(existing), sync.open_array(existing).view[::2], *theirs, partial):
        with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
            described: dict[str, Any] = {"shape": 5, "dtype": "i8"} if source is partial else {}
            sync.ingest(source, existing, mode="w", verify=True, **described)
    memory = zarr.storage.MemoryStore()
    with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
        sync.ingest(zarr.create_array(memory, shape=3, dtype="i4"), memory, mode="w")
    with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
        sync.ingest(inside["deep/x"], existing.parent / "group", mode="w")
    check(existing)
    sync.ingest(sync.open_array(existing), existing.parent / "elsewhere", mode="w", verify=True)
    sync.ingest(sync.open_array(existing.parent / "elsewhere"), existing, mode="w", verify=True)
    check(existing)


class _Reader:
    """A source whose object also refers to another array."""

    def __init__(self, array: Any, other: Any = None) -> None:
        self.array, self.other = array, other

    def block(self, region: Any) -> Any:
        return self.array[region]


def test_functions_may_replace_what_they_do_not_read(existing: Path):
    """Functions and iterables are not inspected, and the values of a mapping are not read."""
    array = sync.open_array(existing)
    options: dict[str, Any] = {"shape": 5, "dtype": "i8", "mode": "w"}
    sync.ingest(_Reader(VALUES + 1, array).block, existing, **options)
    assert sync.open_array(existing)[...].tolist() == [2, 3, 4, 5, 6]
    reader = _Reader(VALUES)
    sync.ingest(lambda region: reader.array[region], existing, **options)
    check(existing)

    class Bucket(UserDict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("nobody needs all of them")

    bucket = Bucket(k=VALUES)
    sync.ingest(lambda region: bucket["k"][region], existing, **options)
    check(existing)


def test_filesystems_that_zarr_python_has_made_asynchronous(existing: Path):
    """Not every such filesystem is local."""
    zarr = pytest.importorskip("zarr")
    place = f"memory:/{existing}"
    sync.create_array(place, data=VALUES)
    around = zarr.storage.WrapperStore(zarr.storage.FsspecStore.from_url(place))
    source = zarr.open_array(around, mode="r")
    with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
        sync.ingest(source, place, mode="w")
    sync.ingest(source, existing, mode="w")  # a directory of the same name
    check(existing)


@pytest.mark.parametrize("wrapper", ["WrapperStore", "LoggingStore"])
def test_stores_wrapped_by_zarr_python(existing: Path, wrapper: str):
    zarr = pytest.importorskip("zarr")
    around = getattr(zarr.storage, wrapper)(
        zarr.storage.LocalStore(existing), **({} if wrapper == "WrapperStore" else {"log_level": "ERROR"})
    )
    with pytest.raises(NodeExistsError, match="cannot copy"):
        sync.copy(around, existing, overwrite=True)
    with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
        sync.ingest(zarr.open_array(around, mode="r"), existing, mode="w")
    check(existing)


def test_one_object_by_different_clients(s3):
    """The same object through obstore, s3fs and zarr-python, and through two names of one endpoint."""
    s3fs = pytest.importorskip("s3fs")
    zarr = pytest.importorskip("zarr")
    url, options = s3
    sync.save(url, VALUES, storage_options=options)
    client = s3fs.S3FileSystem(**options)
    mapper = client.get_mapper(url.removeprefix("s3://"))
    other = {**options, "endpoint_url": options["endpoint_url"].replace("127.0.0.1", "localhost")}
    for source, target in ((url, mapper), (mapper, url), (url, url)):
        given = {"source_options": options, "dest_options": other}
        own = {
            name: value
            for name, value in given.items()
            if {"source_options": source, "dest_options": target}[name] is url
        }
        with pytest.raises(NodeExistsError, match="cannot copy"):
            sync.copy(source, target, overwrite=True, **own)
    theirs = zarr.open_array(zarr.storage.FsspecStore.from_url(url, storage_options=options), mode="r")
    for array in (theirs, sync.open_array(mapper)):
        with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
            sync.ingest(array, url, mode="w", storage_options=options)
    np.testing.assert_array_equal(sync.load(url, storage_options=options), VALUES)


def test_dask_over_its_own_source(existing: Path):
    da = pytest.importorskip("dask.array")
    from zarrasync.integrations.dask import from_zarr, to_zarr

    lazies = [from_zarr(existing), from_zarr(existing, inline_array=False), da.from_array(sync.open_array(existing))]
    if importlib.util.find_spec("zarr"):
        lazies.append(da.from_zarr(str(existing)))
    for lazy in lazies:
        with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
            to_zarr(lazy * 10, existing, overwrite=True)
    check(existing)
    for wrong, error in (
        ({"bogus": 1}, TypeError),
        ({"unaligned": "bogus"}, ValueError),
        ({"chunks": (1, 1)}, ShapeError),
    ):
        with pytest.raises(error, match=r"bogus|chunks"):
            to_zarr(from_zarr(existing) * 10, existing.parent / "other", overwrite=True, **wrong)
    assert not (existing.parent / "other").exists()


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("engine", ["zarrasync", "zarr"])
def test_xarray_over_its_own_source(tmp_path: Path, engine: str, chunks: Any):
    xr = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    from zarrasync.integrations.xarray import write_dataset

    write_dataset(xr.Dataset({"x": ("t", VALUES)}), tmp_path)
    existing = xr.open_dataset(tmp_path, engine=engine, chunks=chunks, consolidated=False if engine == "zarr" else None)
    for source in (existing.x, existing.x.variable):
        with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
            sync.ingest(source, tmp_path, path="x", mode="w")
    np.testing.assert_array_equal(sync.open_array(tmp_path, path="x")[...], VALUES)


async def test_nodes_that_take_each_others_values(api: Api):
    store: dict[str, bytes] = {}
    group = sync.create_group(store)
    group["x"], group["y"] = VALUES, -VALUES
    described = {"x": {"data": group["y"]}, "y": {"data": group["x"]}}
    await api(api.create_hierarchy(store, described, overwrite=True))
    assert (group["x"][0], group["y"][0]) == (-1, 1)
    wrong = {"x": {"data": VALUES}, "y": {"data": ["a"], "dtype": "i4"}}
    with pytest.raises(CodecError):
        await api(api.create_hierarchy(store, wrong, overwrite=True))
    with pytest.raises(MetadataError):
        await api(api.save(store, x=VALUES, y=np.array([object()])))
    assert (group["x"][0], group["y"][0]) == (-1, 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"data": np.arange(3), "shape": 4}, ShapeError),
        ({"data": np.array(["x", "y"]), "dtype": "i4"}, CodecError),
        ({"data": [1, "y"], "dtype": "i4"}, CodecError),
        ({"data": [300], "dtype": "u1"}, CodecError),
    ],
)
@pytest.mark.parametrize("overwrite", [True, False])
async def test_data_that_do_not_fit_replace_nothing(
    api: Api, existing: Path, options: dict[str, Any], error: type[Exception], overwrite: bool
):
    place = existing if overwrite else existing.parent / "new"
    with pytest.raises(error):
        await api(api.create_array(place, overwrite=overwrite, **options))
    check(existing)
    assert not (existing.parent / "new").exists()


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        (np.arange(4), {"unaligned": "oops"}, ValueError),
        (np.arange(4), {"concurrency": "many"}, ValueError),
        (np.arange(4), {"concurrency": np.int64(-1)}, ValueError),
        (np.arange(6).reshape(2, 3), {"region": (slice(0, 1), slice(0, 3))}, NodeNotFoundError),
        (np.arange(4), {"region": slice(0, 4)}, NodeNotFoundError),
        (np.arange(4), {"chunks": (2, 2)}, ShapeError),
    ],
)
async def test_invalid_ingestions_replace_nothing(
    api: Api, existing: Path, source: Any, options: dict[str, Any], error: type[Exception]
):
    for place in (existing, existing.parent / "new"):
        with pytest.raises(error):
            await api(api.ingest(source, place, mode="w", **options))
    check(existing)
    assert not (existing.parent / "new").exists()


def test_two_concurrent_starts_of_one_ingestion(tmp_path: Path):
    """The second caller continues with the array that the first has created."""
    for number in range(8):
        errors: list[BaseException] = []
        barrier = threading.Barrier(2)

        def run(number: int = number, errors: Any = errors, barrier: Any = barrier) -> None:
            barrier.wait()
            try:
                sync.ingest(np.arange(100.0), tmp_path / str(number), chunks=10)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        np.testing.assert_array_equal(sync.open_array(tmp_path / str(number))[...], np.arange(100.0))


def test_verifying_arrays_of_arrays(tmp_path: Path):
    source = np.empty(1, object)
    source[0] = np.arange(5000, dtype="i4")
    options: dict[str, Any] = {"zarr_format": 2, "filters": [numcodecs.VLenArray("i4")]}
    sync.ingest(source, tmp_path / "a", verify=True, **options)
    source[0] = source[0].copy()
    source[0][2500] = -1
    with pytest.raises(ChecksumError):
        sync.ingest(source, tmp_path / "a", verify=True)
    source[0] = np.arange(3, dtype="i8")
    sync.ingest(source, tmp_path / "b", verify=True, **options)


def test_what_an_array_of_zarr_python_says_of_itself():
    zarr = pytest.importorskip("zarr")
    existing = zarr.storage.MemoryStore()
    source = zarr.create_array(existing, shape=(4,), dtype="f8", attributes={"q": 1}, dimension_names=("a",))
    target: dict[str, bytes] = {}
    sync.ingest(source, target)
    array = sync.open_array(target)
    assert (dict(array.attrs), array.dimension_names) == ({"q": 1}, ("a",))


class Asynchronous:
    async def __call__(self, region: Any) -> Any:
        return VALUES[region]


async def test_functions_that_return_awaitables(api: Api):
    for source in (Asynchronous(), lambda region: Asynchronous()(region)):  # noqa: PLW0108  # it is a plain function
        target: dict[str, bytes] = {}
        await api(api.ingest(source, target, shape=(5,), dtype="i8", chunks=2, verify=True))
        np.testing.assert_array_equal(sync.open_array(target)[...], VALUES)


@pytest.mark.parametrize("pairs", [[np.zeros(2)], [((slice(0, 2),), None)], [(1, 2, 3)]])
async def test_values_that_are_not_pairs(api: Api, pairs: list[Any]):
    for store in ({}, LatencyStore(stores.MemoryStore(), 0.001)):
        with pytest.raises(TypeError, match="pairs of a region and its values, found"):
            await api(api.ingest(pairs, store, shape=(2,), dtype="i4"))


def test_sources_of_unknown_size():
    da = pytest.importorskip("dask.array")
    lazy = da.arange(10, chunks=5)
    with pytest.raises(ShapeError, match="unknown size"):
        sync.ingest(lazy[lazy > 3], {})


async def test_shapes_are_whole_numbers(api: Api):
    array = await api(api.create_array({}, data=np.ones((3, 2))))
    for wrong in ((1.9, 2), "32", (-1, 2)):
        with pytest.raises(ShapeError):
            await api(array.resize(wrong))
    assert array.shape == (3, 2)
    await api(array.resize(np.array([2, 2])))
    assert array.shape == (2, 2)
    for described in (np.arange(3), 5):
        with pytest.raises(TypeError, match=r"nodes\['x'\] must be a mapping"):
            await api(api.create_hierarchy({}, {"x": described}))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"compressors": {"name": "gzip", "configuration": {"level": 99}}}, MetadataError, "from -1 to 9"),
        (
            {"chunks": (4,)},
            ShapeError,
            r"chunks \(4,\) must have a size for each axis, but the arrays have 2 dimensions",
        ),
        ({"shards": (4, 4, 4)}, ShapeError, "shards .* but the arrays have 2 dimensions"),
    ],
)
async def test_copies_are_made_as_asked_or_not_at_all(
    api: Api, tmp_path: Path, changes: dict[str, Any], error: type[Exception], match: str
):
    source = sync.create_array({}, data=np.ones((6, 10))).store
    with pytest.raises(error, match=match):
        await api(api.copy(source, tmp_path / "x", **changes))
    assert not (tmp_path / "x").exists()


def test_copies_of_objects_with_other_compressors():
    values = np.array([{"a": 1}, [2]], object)
    source = sync.create_array({}, data=values, zarr_format=2, filters=[numcodecs.JSON()])
    target: dict[str, bytes] = {}
    sync.copy(source.store, target, compressors="gzip")
    assert sync.open_array(target)[...].tolist() == values.tolist()


async def test_files_of_killed_writers_are_reported(api: Api, existing: Path):
    (existing / "c" / "0.1d20.a9f6-1.zarrasync-partial").write_bytes(b"x")
    for store in (existing, stores.PrefixStore(stores.LocalStore(existing.parent), "existing/")):
        report = await api(api.validate(store))
        assert [(found.severity, found.key) for found in report.findings] == [
            ("note", "c/0.1d20.a9f6-1.zarrasync-partial")
        ]


@pytest.mark.parametrize(
    "arguments",
    [["ingest", "{0}", "{0}"], ["ingest", "{0}/sub", "{0}"], ["ingest", "{0}", "{0}", "--dest-path", "sub"]],
)
def test_groups_are_not_ingested_into_themselves(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
):
    from zarrasync.cli import main

    group = sync.create_group(tmp_path / "g")
    group["a"] = VALUES
    group.create_group("sub")["b"] = VALUES
    assert main([text.format(tmp_path / "g") for text in arguments] + ["--overwrite", "--verify"]) == 1
    assert "one contains the other" in capsys.readouterr().err
    check(tmp_path / "g" / "a")
    check(tmp_path / "g" / "sub" / "b")


@pytest.mark.parametrize("kind", ["array", "group"])
async def test_nodes_of_another_format_are_not_passed_over(api: Api, kind: str):
    """No array is opened or created beside a node of another format at the same path."""
    store: dict[str, bytes] = {}
    await api(api.create_group(store))
    await api(api.create_array(store, path="a", data=VALUES))
    before = dict(store)
    with pytest.raises(NodeExistsError, match="of Zarr format 3"):
        if kind == "group":
            await api(api.open_group(store, mode="a", zarr_format=2))
        else:
            await api(api.open_array(store, path="a", mode="a", zarr_format=2, shape=5, dtype="i8"))
    assert store == before


def test_dask_over_arguments_of_its_functions(existing: Path):
    da = pytest.importorskip("dask.array")
    from zarrasync.integrations.dask import to_zarr

    array = sync.open_array(existing)
    lazy = da.zeros(5, chunks=2).map_blocks(
        lambda block, other, block_info=None: block + other[slice(*block_info[0]["array-location"][0])],
        array,
        dtype="i8",
    )
    with pytest.raises(NodeExistsError, match="with lazy values that are read from it"):
        to_zarr(lazy, existing, overwrite=True)
    check(existing)


@pytest.mark.parametrize("disk", [False, True])
async def test_caches_drop_replaced_values(api: Api, tmp_path: Path, disk: bool):
    """Caches also drop chunks that others have erased, which no listing shows."""
    kept = stores.MemoryStore()
    inner = LatencyStore(kept, 0.0)
    store = stores.DiskCachingStore(inner, tmp_path) if disk else stores.CachingStore(inner)
    array = await api(api.create_array(store, path="x", data=np.full(4, 5), chunks=2))
    assert (await api(array[...])).tolist() == [5] * 4
    await kept.erase("x/c/1")
    again = await api(api.create_array(store, path="x", shape=4, chunks=2, dtype=array.dtype, overwrite=True))
    assert (await api(again[...])).tolist() == [0] * 4


async def test_an_array_behind_a_link(api: Api, tmp_path: Path):
    await api(api.create_array(tmp_path / "real", data=np.full(4, 5), chunks=2))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "x").symlink_to(tmp_path / "real")
    again = await api(api.create_array(tmp_path / "store", path="x", shape=4, chunks=2, dtype="i8", overwrite=True))
    assert (await api(again[...])).tolist() == [0] * 4


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft", "3-draft-2022"])
async def test_existing_arrays_are_opened_whatever_the_creation_options(api: Api, zarr_format: Any):
    store: dict[str, bytes] = {}
    await api(api.create_array(store, path="x", data=VALUES, zarr_format=zarr_format))
    await api(api.create_array(store, path="g/y", data=VALUES, zarr_format=zarr_format))
    before = dict(store)
    for options in ({}, {"shape": VALUES.shape, "dtype": "f4"}):
        with pytest.raises(NodeTypeError, match=r"/g in .* is a group"):
            await api(api.open_array(store, path="g", mode="a", **options))
    found = await api(api.open_array(store, path="x", mode="a"))
    np.testing.assert_array_equal(await api(found[...]), VALUES)
    with pytest.raises(TypeError, match="needs shape or data"):
        await api(api.open_array(store, path="none", mode="a"))
    assert store == before


async def test_invalid_values_are_an_error_of_the_creator(api: Api):
    """The error is raised although an array exists then, as another caller could have created it."""

    class Full(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if key.startswith("c/"):
                raise CodecError("no room")
            return await super().put(key, data, if_version=if_version)

    with pytest.raises(CodecError, match="no room"):
        await api(api.open_array(Full(stores.MemoryStore()), mode="a", data=VALUES))


@pytest.mark.parametrize("place", ["local", "link", "s3", "s3-fsspec"])
@pytest.mark.parametrize("group", ["", "inner"])
async def test_datasets_that_would_replace_themselves(
    api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]], place: str, group: str
):
    pytest.importorskip("xarray", reason="ingest reads the dataset with xarray")
    url, options = (f"{s3[0]}.zarr", s3[1]) if place.startswith("s3") else (str(tmp_path / "a.zarr"), None)
    values = np.random.default_rng(0).normal(size=(4, 5000))
    parameters: dict[str, Any] = {"dimension_names": ("time", "x"), "storage_options": options}
    sync.create_array(url, path=f"{group}/v".strip("/"), data=values, chunks=(1, 5000), **parameters)
    source = url
    if place == "link":
        source = str(tmp_path / "link.zarr")
        Path(source).symlink_to(url)
    if place == "s3-fsspec":
        s3fs = pytest.importorskip("s3fs", reason="the destination is a filesystem of fsspec")
        destination: Any = s3fs.S3FileSystem(**options).get_mapper(url)
    else:
        destination = url
    arguments = {"concat": "time", "group": group, "source_options": options, "chunks": {"time": 2}}
    storage = {} if place == "s3-fsspec" else {"storage_options": options}
    with pytest.raises(NodeExistsError, match=r"contains them and is erased first; write to another path"):
        await api(api.ingest([source], destination, mode="w", **arguments, **storage))
    found = sync.open_array(url, path=f"{group}/v".strip("/"), storage_options=options)
    np.testing.assert_array_equal(found[...], values)
    for _ in range(2):  # a group below is not read, and can be replaced
        await api(api.ingest([source], destination, mode="w", path="below", **arguments, **storage))
    below = sync.open_array(url, path="below/v", storage_options=options)
    np.testing.assert_array_equal(below[...], values)
