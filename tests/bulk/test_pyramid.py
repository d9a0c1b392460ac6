"""Pyramids: values of levels, metadata of both conventions, resuming, other processes, and sparse arrays."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.conventions import geo_attributes, ome_attributes, write_ome_image
from zarrasync import Layout, PyramidAxes, stores, sync
from zarrasync.bulk.pyramid.downsample import downsample
from zarrasync.errors import (
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    StoreError,
    UnsupportedOperation,
)
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.testing import FaultyStore

VALUES = np.random.default_rng(0).integers(0, 1000, (3, 600, 500)).astype("u2")
CYX = ("c", "y", "x")


UNSHARDED = Layout(shards=None)


def write(store: Any, values: np.ndarray = VALUES, path: str = "0", **options: Any) -> sync.Array:
    settings = {"chunks": (1, 100, 100), "dimension_names": CYX, **options}
    return sync.create_array(store, path=path, data=values, **settings)


def levels_of(store: Any, path: str = "") -> dict[str, list[tuple[str, float, float]]]:
    """Return the axes of the levels of a pyramid, as xarray sees them."""
    xarray = pytest.importorskip("xarray")
    group = sync.open_group(store, path=path)
    found = {}
    for number, text in enumerate(group.info["Levels"].split("), ")):
        level = xarray.open_dataset(store, engine="zarrasync", group=path or None, level=number)
        found[text.split(" ")[0]] = [
            (name, float(level[name][1] - level[name][0]), float(level[name][0]))
            for name in level.coords
            if level[name].ndim
        ]
    return found


@pytest.mark.parametrize("method", ["mean", "max", "min", "mode", "nearest"])
async def test_levels_are_computed_from_the_level_before(api: Api, method):
    store: dict[str, bytes] = {}
    write(store)
    report = await api(api.pyramid(store, method=method, levels=4))
    assert [level.path for level in report.levels] == ["1", "2", "3"]
    assert str(report).startswith("1: 3 x 300 x 250: ")
    expected = VALUES
    for name in "123":
        expected = downsample(expected, (1, 2, 2), method)
        array = await api(api.open_array(store, path=name))
        np.testing.assert_array_equal(await api(array[...]), expected)
        assert (array.dimension_names, array.chunks, array.shards is not None) == (
            CYX,
            (1, 100, 100),
            True,
        ) or name != "1"
    assert (await api(api.validate(store))).findings == []
    assert sync.open_group(store).attrs["ome"]["multiscales"][0]["type"] == method


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
async def test_versions_of_ome_zarr(api: Api, tmp_path: Path, version):
    models = pytest.importorskip("ome_zarr_models")
    zarr = pytest.importorskip("zarr")
    zarr_format = 2 if version == "0.4" else 3
    names: Any = (
        {"dimension_names": None, "chunk_key_encoding": {"name": "v2", "separator": "/"}} if zarr_format == 2 else {}
    )
    sync.create_group(tmp_path / "a", zarr_format=zarr_format)
    write(tmp_path / "a", zarr_format=zarr_format, **names)
    steps, units = {"y": 0.5, "x": 0.25}, {"y": "micrometer", "x": "micrometer"}
    axes = PyramidAxes(names="cyx", scale=steps, units=units, factors=2)
    await api(api.pyramid(tmp_path / "a", levels=3, convention=f"ome-{version}", axes=axes))
    assert (await api(api.validate(tmp_path / "a"))).findings == []
    if version == "0.6":
        pytest.importorskip("ome_zarr_models.v06", reason="this release of ome-zarr-models does not know version 0.6")
    image = models.open_ome_zarr(zarr.open_group(str(tmp_path / "a"), mode="r"))
    assert image.ome_zarr_version == version
    assert levels_of(tmp_path / "a") == {
        "0": [("y", 0.5, 0.0), ("x", 0.25, 0.0)],
        "1": [("y", 1.0, 0.25), ("x", 0.5, 0.125)],
        "2": [("y", 2.0, 0.75), ("x", 1.0, 0.375)],
    }


async def test_factors_of_each_level(api: Api):
    store: dict[str, bytes] = {}
    write(store)
    report = await api(api.pyramid(store, axes=PyramidAxes(factors=[2, {"y": 3, "x": 2}, 4])))
    assert [level.shape for level in report.levels] == [(3, 300, 250), (3, 100, 125), (3, 25, 32)]
    expected = downsample(downsample(VALUES, (1, 2, 2), "mean"), (1, 3, 2), "mean")
    np.testing.assert_array_equal(sync.open_array(store, path="2")[...], expected)
    assert sync.open_group(store).info["Levels"] == "0 (y 1, x 1), 1 (y 2, x 2), 2 (y 6, x 4), 3 (y 24, x 16)"
    assert (await api(api.validate(store))).findings == []


def read_by_others(path: Path) -> list[np.ndarray]:
    """Return the levels that two independent readers of OME-Zarr find."""
    ngff_zarr, reader = pytest.importorskip("ngff_zarr"), pytest.importorskip("ome_zarr.reader")
    io = pytest.importorskip("ome_zarr.io")
    (node,) = reader.Reader(io.parse_url(str(path)))()
    levels = [np.asarray(level) for level in node.data]
    images = ngff_zarr.from_ngff_zarr(str(path)).images
    for one, other in zip(levels, images, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other.data))
    return levels


@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_readers_of_images_accept_packed_and_unsigned_levels(api: Api, tmp_path: Path, zarr_format: int):
    """Also after a conversion to the other format and back."""
    attributes: dict[str, Any] = {"_Unsigned": "true", "scale_factor": 0.1, "valid_range": [0, -2]}
    names: dict[str, Any] = {"dimension_names": ("y", "x")}
    if zarr_format == 2:
        names, attributes["_ARRAY_DIMENSIONS"] = {"fill_value": -1}, ["y", "x"]
    else:
        attributes["_FillValue"] = -1
    values = np.random.default_rng(0).integers(0, 65535, (120, 90)).astype("u2")
    source = sync.create_group(tmp_path / "a", zarr_format=zarr_format)
    source.create_array("v", data=values.view("i2"), chunks=(32, 32), attributes=attributes, **names)
    version = "0.4" if zarr_format == 2 else "0.5"
    await api(
        api.pyramid(
            tmp_path / "a",
            path="v",
            dest=tmp_path / "p",
            axes=PyramidAxes(factors=[2, 2]),
            convention=f"ome-{version}",
        )
    )
    levels = read_by_others(tmp_path / "p")
    for number, expected in enumerate([values, downsample(values, (2, 2), "mean")]):
        np.testing.assert_array_equal(levels[number].view("u2"), expected)
    for name, format_ in (("q", 5 - zarr_format), ("r", zarr_format)):
        report = await api(api.copy(tmp_path / {"q": "p", "r": "q"}[name], tmp_path / name, zarr_format=format_))
        assert not [note for note in report.notes if "OME" in note]
        assert (
            sync.open_group(tmp_path / name).info["Conventions"] == f"OME-Zarr {'0.4' if format_ == 2 else '0.5'} image"
        )
        for found, expected in zip(read_by_others(tmp_path / name), levels, strict=True):
            np.testing.assert_array_equal(found, expected)
    for name in "pqr":
        assert (await api(api.validate(tmp_path / name))).findings == []
    assert sync.open_group(tmp_path / "r").attrs == sync.open_group(tmp_path / "p").attrs


async def test_separators_that_images_do_not_allow(api: Api):
    store: dict[str, bytes] = {}
    sync.create_group(store, zarr_format=2)
    write(store, zarr_format=2, dimension_names=None)
    before = dict(store)
    with pytest.raises(MetadataError, match=r"requires chunk keys with the separator '/', but /0 has '\.'; pass dest"):
        await api(api.pyramid(store, axes="cyx"))
    assert store == before
    await api(api.pyramid(store, axes="cyx", dest=(dest := {}), convention="ome-0.4"))
    assert (await api(api.validate(dest))).findings == []


def test_the_nearest_element_keeps_its_coordinates():
    store: dict[str, bytes] = {}
    write(store)
    axes = PyramidAxes(scale={"y": 3, "x": 3}, factors={"y": 2, "x": 3})
    sync.pyramid(store, method="nearest", levels=3, axes=axes)
    assert levels_of(store)["2"] == [("y", 12.0, 0.0), ("x", 27.0, 12.0)]
    np.testing.assert_array_equal(sync.open_array(store, path="2")[0, :, 0], VALUES[0, ::4, 4])


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
async def test_images_get_more_levels(api: Api, version):
    """Metadata other than that of levels is kept, also of label images, whose most frequent labels are kept."""
    store: dict[str, bytes] = {}
    label: dict[str, Any] = {"image-label": {"source": {"image": "../../"}}}
    values = write_ome_image(store, version, shape=(2, 256, 256), levels=1, **label)
    before = sync.open_group(store).attrs
    kept = dict(before.get("ome", before))
    await api(api.pyramid(store, levels=3))
    after = sync.open_group(store).attrs
    found = dict(after.get("ome", after))
    assert found["image-label"] == kept["image-label"]
    first, old = dict(found["multiscales"][0]), dict(kept["multiscales"][0])
    assert {name: first[name] for name in old if name != "datasets"} == {n: old[n] for n in old if n != "datasets"}
    assert [item["path"] for item in first["datasets"]] == ["0", "1", "2"]
    assert first["datasets"][0] == old["datasets"][0]
    np.testing.assert_array_equal(sync.open_array(store, path="1")[...], downsample(values, (1, 2, 2), "mode"))
    assert (await api(api.validate(store))).ok
    assert levels_of(store)["2"][-1] == ("x", 2.0, 0.75)


def test_transformations_of_all_levels_are_not_applied_twice():
    store: dict[str, bytes] = {}
    attributes = ome_attributes("0.5", levels=1)
    attributes["ome"]["multiscales"][0]["coordinateTransformations"] = [{"type": "scale", "scale": [1, 10, 10]}]
    sync.create_group(store, attributes=attributes)
    write(store)
    sync.pyramid(store, levels=2)
    assert levels_of(store)["1"] == [("y", 10.0, 2.5), ("x", 10.0, 2.5)]


@pytest.mark.parametrize(
    ("steps", "shapes"),
    [
        ({"z": 4, "y": 1, "x": 1}, [(40, 256, 300), (40, 128, 150), (20, 64, 75)]),
        ({"z": 1, "y": 1, "x": 1}, [(20, 256, 300), (10, 128, 150), (5, 64, 75)]),
    ],
)
def test_steps_become_even(steps, shapes):
    store: dict[str, bytes] = {}
    sync.create_array(
        store, path="s0", shape=(40, 512, 600), dtype="u1", chunks=(8, 64, 64), dimension_names=("z", "y", "x")
    )
    sync.pyramid(store, axes=PyramidAxes(scale=steps), levels=4)
    assert [sync.open_array(store, path=f"s{n}").shape for n in (1, 2, 3)] == shapes


def test_automatic_levels_end_at_a_tile():
    store: dict[str, bytes] = {}
    sync.create_array(store, path="0", shape=(2, 5000, 300), dtype="u1", dimension_names=CYX)
    report = sync.pyramid(store)
    assert report.levels[-1].shape == (2, 157, 10)
    assert sync.pyramid(store, levels=1).levels == []


# ------------------------------------------------------------------ geographic grids


def write_geo(store: Any, path: str = "b", **attributes: Any) -> np.ndarray:
    values = np.random.default_rng(1).integers(1, 100, (300, 400)).astype("i2")
    values[:150] = -9999
    properties = {**geo_attributes(levels=False), "_FillValue": -9999, **attributes}
    properties["spatial:dimensions"] = ["y", "x"]
    sync.create_array(store, path=path, data=values, chunks=(64, 64), dimension_names=("y", "x"), attributes=properties)
    return values


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")  # GDAL does not read it before version 3.13
async def test_geographic_grids(api: Api, tmp_path: Path):
    values = write_geo(tmp_path / "a")
    report = await api(
        api.pyramid(tmp_path / "a", path="b", dest=tmp_path / "p", dest_path="bands/b", levels=3, layout=UNSHARDED)
    )
    assert (report.convention, report.path) == ("zarr-conventions", "bands/b")
    assert (await api(api.validate(tmp_path / "p"))).findings == []
    group = await api(api.open_group(tmp_path / "p", path="bands/b"))
    assert group.info["CRS"] == "EPSG:32633"
    assert levels_of(tmp_path / "p", "bands/b")["2"] == [("y", -40.0, 4599980.0), ("x", 40.0, 500020.0)]
    one = sync.open_array(tmp_path / "p", path="bands/b/1")
    np.testing.assert_array_equal(
        one[...], downsample(values, (2, 2), "mean", CFEncoding.from_attributes({"_FillValue": -9999}, "i2"))
    )
    assert one.attrs["spatial:transform"] == [20.0, 0.0, 500000.0, 0.0, -20.0, 4600000.0]
    rasterio = pytest.importorskip("rasterio")
    with rasterio.Env() as environment:
        if "Zarr" not in environment.drivers():
            pytest.skip("GDAL has no driver for Zarr")
    if tuple(map(int, rasterio.__gdal_version__.split(".")[:2])) < (3, 11):
        pytest.skip("GDAL does not know all codecs of format 3")
    with rasterio.open(tmp_path / "p/bands/b/2") as dataset:
        np.testing.assert_array_equal(dataset.read(1), sync.open_array(tmp_path / "p", path="bands/b/2")[...])


async def test_coordinates_in_arrays_of_a_dataset(api: Api, tmp_path: Path):
    group = sync.create_group(tmp_path / "a")
    for name, values, unit in (("lat", np.linspace(59.5, 0.5, 60), "north"), ("lon", np.arange(0.5, 80), "east")):
        group.create_array(name, data=values, dimension_names=(name,), attributes={"units": f"degrees_{unit}"})
    values = np.random.default_rng(0).random((2, 60, 80)).astype("f4")
    values[:, :5] = np.nan
    names = ("time", "lat", "lon")
    group.create_array("t2m", data=values, dimension_names=names, attributes={"units": "K", "grid_mapping": "crs"})
    group.create_array("crs", data=0, attributes={"crs_wkt": 'GEOGCS["WGS 84"]'})
    with pytest.raises(NodeTypeError, match=r"contains other arrays .*pass dest"):
        await api(api.pyramid(tmp_path / "a", path="t2m"))
    await api(api.pyramid(tmp_path / "a", path="t2m", dest=tmp_path / "a", dest_path="levels", levels=2))
    assert levels_of(tmp_path / "a", "levels") == {
        "0": [("lat", -1.0, 59.5), ("lon", 1.0, 0.5)],
        "1": [("lat", -2.0, 59.0), ("lon", 2.0, 1.0)],
    }
    coarse = sync.open_array(tmp_path / "a", path="levels/1")
    np.testing.assert_allclose(coarse[...], downsample(values, (1, 2, 2), "mean"))
    assert coarse.attrs["units"] == "K"
    assert sync.open_group(tmp_path / "a", path="levels").info["CRS"] == "WGS 84"
    assert (await api(api.validate(tmp_path / "a"))).ok


def test_conventions_can_be_chosen():
    store: dict[str, bytes] = {}
    write_geo(store, "image")
    report = sync.pyramid(store, path="image", levels=2, convention="ome", missing=None)
    assert report.left_out[0].startswith("the coordinates of 'y' are left out, because OME-Zarr has no descending ones")
    assert sync.open_group(store).info["Levels"] == "image (y 10, x 10), image_1 (y 20, x 20)"
    other: dict[str, bytes] = {}
    write(other)
    assert sync.pyramid(other, levels=2, convention="zarr-conventions").convention == "zarr-conventions"
    assert sync.open_group(other).info["Conventions"] == "multiscales, spatial"
    assert sync.validate(other).ok


# ------------------------------------------------------------------ resuming


async def test_interrupted_runs_are_resumed(api: Api):
    memory = stores.MemoryStore()
    write(memory)
    written: list[str] = []

    def fails(operation: str, key: str) -> bool:
        written.extend([key] if operation == "put" else [])
        return operation == "put" and key == "2/c/1/0/0"

    options: Any = {"levels": 4, "layout": Layout(shards=None, chunks=(1, 50, 50))}
    with pytest.raises(StoreError, match="simulated failure"):
        await api(api.pyramid(FaultyStore(memory, fails=fails), config={"memory_budget": 1 << 16}, **options))
    assert "ome" not in sync.open_group(memory).attrs
    there = {key: value for key, value in memory.values.items() if key.startswith(("1/", "2/"))}
    report = await api(api.pyramid(memory, **options))
    assert report.levels[0].blocks == 0
    assert report.levels[0].skipped == 3 * 6 * 5
    assert report.levels[1].skipped == sum(key.startswith("2/c") for key in there)
    assert all(memory.values[key] is value for key, value in there.items())
    expected: dict[str, bytes] = {}
    write(expected)
    sync.pyramid(expected, **options)
    assert {key: bytes(value) for key, value in memory.values.items()} == {k: bytes(v) for k, v in expected.items()}
    again = await api(api.pyramid(memory, **options))
    assert [level.blocks for level in again.levels] == [0, 0, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"method": "max"},
        {"layout": Layout(chunks=(1, 30, 30))},
        {"axes": PyramidAxes(factors={"y": 2})},
        {"missing": 0},
    ],
)
async def test_other_parameters_need_overwrite(api: Api, change):
    store: dict[str, bytes] = {}
    write(store)
    await api(api.pyramid(store, levels=4))
    before = dict(store)
    with pytest.raises(NodeExistsError, match="not computed with the same parameters; pass overwrite=True"):
        await api(api.pyramid(store, levels=3, **change))
    assert store == before
    report = await api(api.pyramid(store, levels=3, overwrite=True, **change))
    assert all(level.blocks for level in report.levels)
    fresh: dict[str, bytes] = {}
    write(fresh)
    sync.pyramid(fresh, levels=3, **change)
    assert {key: bytes(value) for key, value in store.items()} == {key: bytes(value) for key, value in fresh.items()}


@pytest.mark.parametrize("convention", ["ome", "zarr-conventions"])
async def test_levels_that_another_convention_describes_stay(api: Api, convention: Any):
    """Its description would name levels that are erased."""
    options: dict[str, Any] = {"levels": 3, "overwrite": True}
    write(store := {})
    await api(api.pyramid(store, levels=4, convention=convention))
    before = dict(store)
    (other,) = {"ome", "zarr-conventions"} - {convention}
    with pytest.raises(MetadataError, match=f"pass convention='{convention}', or dest"):
        await api(api.pyramid(store, convention=other, **options))
    assert store == before
    await api(api.pyramid(store, convention=convention, **options))
    await api(api.pyramid(store, dest=(dest := {}), convention=other, **options))
    assert sync.open_array(dest, path="2").shape == sync.open_array(store, path="2").shape


def test_changed_values_need_overwrite():
    store: dict[str, bytes] = {}
    array = write(store)
    sync.pyramid(store, levels=2)
    array[...] = 0
    sync.pyramid(store, levels=2, overwrite=True)
    assert not sync.open_array(store, path="1")[...].any()
    assert not [key for key in store if key.startswith("1/c")]


async def test_a_copy_of_the_finest_level_is_resumed(api: Api, tmp_path: Path):
    array = write(tmp_path / "a", path="")
    with pytest.raises(NodeTypeError, match=r"is the root of its store .*pass dest"):
        await api(api.pyramid(tmp_path / "a"))
    report = await api(api.pyramid(tmp_path / "a", dest=tmp_path / "p", levels=2))
    assert [level.blocks for level in report.levels] == [3 * 6 * 5, 1]
    (tmp_path / "p/0/c/2/5/4").unlink()
    report = await api(api.pyramid(tmp_path / "a", dest=tmp_path / "p", levels=2))
    assert [level.blocks for level in report.levels] == [1, 0]
    np.testing.assert_array_equal(sync.open_array(tmp_path / "p", path="0")[...], array[...])
    with pytest.raises(NodeExistsError, match="one contains the other"):
        await api(api.pyramid(tmp_path / "a", dest=tmp_path / "a", dest_path="b"))


# ------------------------------------------------------------------ stores and processes


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.processes
async def test_other_processes(api: Api, tmp_path: Path, processes: Executor):
    write(tmp_path / "a")
    progress: list[int] = []
    report = await api(
        api.pyramid(tmp_path / "a", levels=3, layout=UNSHARDED, executor=processes, progress=progress.append)
    )
    assert [level.blocks > 0 for level in report.levels] == [True, True]
    assert sum(progress) == sum(sync.open_array(tmp_path / "a", path=name).nbytes for name in "12")
    expected = downsample(VALUES, (1, 2, 2), "mean")
    np.testing.assert_array_equal(sync.open_array(tmp_path / "a", path="1")[...], expected)
    store: dict[str, bytes] = {}
    write(store)
    with pytest.raises(StoreError, match="exists only in this process"):
        await api(api.pyramid(store, levels=2, executor=processes))


async def test_sparse_arrays_are_listed_and_not_scanned(api: Api):
    """20 TB with three stored chunks."""
    memory = stores.MemoryStore()
    shape, chunks = (100, 1 << 19, 1 << 18), (1, 512, 512)
    array = sync.create_array(memory, path="0", shape=shape, dtype="u2", chunks=chunks, dimension_names=("z", "y", "x"))
    places = [(0, 0, 0), (50, 1 << 18, 7 << 9), (99, (1 << 19) - 512, (1 << 18) - 512)]
    for place in places:
        array[tuple(slice(start, start + size) for start, size in zip(place, chunks, strict=True))] = 8
    counting = stores.CountingStore(memory)
    layout, axes = Layout(chunks=(1, 256, 256), shards=(1, 512, 512)), PyramidAxes(factors={"y": 2, "x": 2})
    await api(api.pyramid(counting, levels=4, axes=axes, layout=layout))
    assert counting.counts.requests < 200
    for level in range(1, 4):
        coarse = sync.open_array(memory, path=str(level))
        assert sum(key.startswith(f"{level}/c") for key in memory.values) == 3
        for place in places:
            z, y, x = place[0], place[1] >> level, place[2] >> level
            part = coarse[z, y : y + (512 >> level), x : x + (512 >> level)]
            assert part.shape == (512 >> level,) * 2
            assert (part == 8).all()


@pytest.mark.parametrize("chunks", [(1, 77, 100), [[2, 1], [100, 200, 300], 50]])
def test_other_grids_and_little_memory(chunks):
    store: dict[str, bytes] = {}
    write(store, chunks=chunks)
    options: Any = {"axes": PyramidAxes(factors=3), "layout": Layout(chunks=(1, 64, 64), shards="auto")}
    sync.pyramid(store, levels=3, method="max", config={"memory_budget": 1 << 16}, **options)
    expected = downsample(downsample(VALUES, (1, 3, 3), "max"), (1, 3, 3), "max")
    np.testing.assert_array_equal(sync.open_array(store, path="2")[...], expected)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "median"}, ValueError, "mean, mode, nearest, max, min"),
        ({"levels": 0}, ValueError, "from 1 to 64"),
        ({"axes": PyramidAxes(factors={"q": 2})}, ValueError, "no axis has the name 'q'; the axes are c, y, x"),
        ({"axes": PyramidAxes(factors=0)}, ValueError, "at least 1"),
        ({"axes": PyramidAxes(factors=[2, 0])}, ValueError, "at least 1"),
        ({"axes": PyramidAxes(factors=[2, 2]), "levels": 2}, ValueError, "factors lists those of 2 levels"),
        ({"axes": PyramidAxes(factors=[600, 2, 2])}, ValueError, r"factors\[1\] would repeat the level"),
        ({"axes": "yx"}, MetadataError, "a name for each of the 3 axes"),
        ({"axes": PyramidAxes(scale={"q": 1})}, MetadataError, "no axis has the name 'q'"),
        ({"convention": "ome-0.4"}, MetadataError, "needs format 2"),
        ({"convention": "ome-0.7"}, ValueError, "'ome-0.4', 'ome-0.5', 'ome-0.6'"),
        ({"layout": Layout(order="F", encoding={"0": {}})}, ValueError, "omit order, encoding"),
        ({"convention": "geo"}, ValueError, "'zarr-conventions'"),
        ({"path": "none"}, NodeNotFoundError, "none"),
    ],
)
async def test_invalid_arguments_write_nothing(api: Api, options, error, words):
    store: dict[str, bytes] = {}
    write(store)
    before = dict(store)
    with pytest.raises(error, match=words):
        await api(api.pyramid(store, **options))
    assert store == before


async def test_axes_with_other_names(api: Api):
    store: dict[str, bytes] = {}
    write(store, VALUES[0], dimension_names=("row", "column"), chunks=(100, 100))
    await api(api.pyramid(store, levels=2))
    assert (await api(api.validate(store))).findings == []
    flat: dict[str, bytes] = {}
    write(flat, dimension_names=("y", "x", "c"))
    before = dict(flat)
    with pytest.raises(MetadataError, match=r"time must come first.*convention='zarr-conventions'"):
        await api(api.pyramid(flat, levels=2))
    assert flat == before


async def test_sources_without_a_pyramid(api: Api):
    store: dict[str, bytes] = {}
    write(store, dimension_names=None)
    with pytest.raises(MetadataError, match=r"different names for all axes.*pass axes, such as 'zyx'"):
        await api(api.pyramid(store))
    write(store, path="1")
    with pytest.raises(NodeTypeError, match="a group with 2 arrays; pass the path of one: 0, 1"):
        await api(api.pyramid(store))
    texts: dict[str, bytes] = {}
    sync.create_array(texts, path="0", data=np.array([["a", "b"], ["c", "d"]]), dimension_names=("y", "x"))
    with pytest.raises(UnsupportedOperation, match=r"'mean' cannot reduce .* use 'nearest'"):
        await api(api.pyramid(texts, levels=2))
    await api(api.pyramid(texts, levels=2, method="nearest"))
    assert sync.open_array(texts, path="1")[...].tolist() == [["a"]]
    turned: dict[str, bytes] = {}
    attributes = ome_attributes("0.6", levels=1)
    item = attributes["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"][0]
    item |= {"type": "affine", "affine": [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]}
    sync.create_group(turned, attributes=attributes)
    write(turned)
    with pytest.raises(MetadataError, match="coarser levels cannot be described"):
        await api(api.pyramid(turned))


def test_consolidated_metadata_contains_the_levels():
    store: dict[str, bytes] = {}
    write(store)
    sync.consolidate_metadata(store)
    sync.pyramid(store, levels=3)
    group = sync.open_group(store, use_consolidated=True)
    assert sorted(group.array_keys()) == ["0", "1", "2"]
    assert group.info["Levels"].startswith("0 (y 1, x 1), 1 ")


async def test_axes_that_have_no_names(api: Api):
    """The levels of zarr-conventions refer to names of dimensions, which arrays of format 2 have as an attribute."""
    for zarr_format in (2, 3):
        store: dict[str, bytes] = {}
        sync.create_array(store, path="0", data=np.ones((64, 64), "u2"), zarr_format=zarr_format)
        sync.open_group(store, mode="a", zarr_format=zarr_format)
        options: dict[str, Any] = {"axes": "yx", "levels": 2, "convention": "zarr-conventions"}
        await api(api.pyramid(store, dest=(dest := {}), **options))
        assert sync.validate(dest).ok
        if zarr_format == 2:
            await api(api.pyramid(store, **options))
            assert sync.validate(store).ok
            continue
        with pytest.raises(MetadataError, match="has no dimension names; pass dest"):
            await api(api.pyramid(store, **options))
