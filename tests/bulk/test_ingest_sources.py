"""Sources that can be ingested, and what they specify: shapes, data types, chunks, attributes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api import Api
from tests.support.blocks import VALUES, blocks_of
from tests.support.covering import covering
from zarrasync import stores
from zarrasync.bulk.block_plan import PairCoverage
from zarrasync.errors import EncodingError, ShapeError
from zarrasync.model.chunk_grids import grid_of
from zarrasync.testing import LatencyStore


class Sources:
    """The same values in every form that can be ingested."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.folder, self.api = folder, api

    async def make(self, kind: str) -> tuple[Any, dict[str, Any]]:
        described = {"shape": VALUES.shape, "dtype": "i4"}
        if kind == "numpy":
            return VALUES, {}
        if kind == "npy":
            np.save(self.folder / "x.npy", VALUES)
            return self.folder / "x.npy", {}
        if kind == "dask":
            return pytest.importorskip("dask.array").from_array(VALUES, chunks=(33, 17)), {}
        if kind == "xarray":
            xarray = pytest.importorskip("xarray")
            return xarray.DataArray(VALUES, dims=("y", "x"), attrs={"unit": "K"}), {}
        if kind == "zarr-python":
            zarr = pytest.importorskip("zarr")
            return zarr.create_array({}, data=VALUES, chunks=(31, 31)), {}
        if kind == "zarrasync":
            return await self.api(self.api.create_array({}, data=VALUES, chunks=(7, 70))), {}
        if kind == "remote":
            store = LatencyStore(stores.MemoryStore(), 0.001)
            return await self.api(self.api.create_array(store, data=VALUES, chunks=(7, 70))), {}
        if kind == "function":
            return lambda region: VALUES[region], described
        if kind == "coroutine function":
            return self.later, described
        if kind == "pairs":
            return iter(blocks_of(VALUES, 20)), described
        return self.pairs(), described

    async def later(self, region: tuple[slice, ...]) -> np.ndarray:
        await asyncio.sleep(0)
        return VALUES[region]

    async def pairs(self) -> Any:
        for pair in blocks_of(VALUES, 20):
            await asyncio.sleep(0)
            yield pair


KINDS = [
    "numpy", "npy", "dask", "xarray", "zarr-python", "zarrasync", "remote", "function", "coroutine function", "pairs",
    "asynchronous pairs",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "target"), covering(KINDS, ["memory", "local", "latency"], strength=1))
async def test_sources(api: Api, kind: str, target: str, tmp_path: Path):
    source, options = await Sources(tmp_path, api).make(kind)
    store: Any = {"memory": {}, "local": tmp_path / "t"}.get(target)
    if target == "latency":
        store = LatencyStore(stores.MemoryStore(), 0.001)
    seen: list[int] = []
    report = await api(api.ingest(source, store, chunks=(20, 20), verify=True, progress=seen.append, **options))
    array = await api(api.open_array(store))
    np.testing.assert_array_equal(await api(array[...]), VALUES)
    assert array.dtype == VALUES.dtype
    assert report.nbytes == sum(seen) == VALUES.nbytes
    assert report.blocks == report.verified > 0
    assert report.stored > 1000
    assert report.requests >= 20
    assert "written" in str(report)
    if kind == "xarray":
        assert array.dimension_names == ("y", "x")
        assert dict(array.attrs) == {"unit": "K"}


async def test_bad_sources(api: Api, tmp_path: Path):
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(TypeError, match="needs shape and dtype"):
        await api(api.ingest(lambda region: None, {}))
    with pytest.raises(TypeError, match="cannot ingest an object"):
        await api(api.ingest(5, {}))
    with pytest.raises(TypeError, match=r"neither an .npy file nor an array"):
        await api(api.ingest(str(tmp_path / "x.csv"), {}))
    with pytest.raises(ShapeError, match=r"have shape \(1,\), expected \(4,\)"):
        await api(api.ingest(lambda region: np.zeros(1), {}, shape=(4,), dtype="i4", chunks=4))
    with pytest.raises(ShapeError, match="tuple of 1 slices"):
        await api(api.ingest([(3, np.zeros(1))], {}, shape=(4,), dtype="i4"))
    with pytest.raises(ZeroDivisionError):
        await api(api.ingest(lambda region: 1 / 0, {}, shape=(4,), dtype="i4"))


async def test_datasets_of_hdf5(api: Api, tmp_path: Path):
    """Dimension names and attributes are kept, references to other datasets of the file are not."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("plain", "labelled", "scaled", "time"):
            file[name] = np.arange(6.0).reshape(2, 3) if name != "time" else np.arange(2.0)
        file["time"].make_scale("the time")
        file["labelled"].dims[1].label = "x"
        file["scaled"].dims[0].attach_scale(file["time"])
        told = {
            "units": np.bytes_("°C".encode()), "title": "né", "n": np.int32(3), "range": np.array([0.5, 2]),
            "one": np.array([7]), "words": np.array(["a", "b"], h5py.string_dtype()), "empty": h5py.Empty("S1"),
            "other": file["time"].ref, "several": np.array([file["time"].ref] * 2, h5py.ref_dtype),
            "table": np.array([[b"a", b"b"]]), "broken": np.bytes_(b"h\xff"), "complex": 1j, "CLASS": "mine",
        }  # fmt: skip
        file["plain"].attrs.update(told)
        for name, names in (
            ("plain", None),
            ("labelled", (None, "x")),
            ("scaled", ("time", None)),
            ("time", ("time",)),
        ):
            await api(api.ingest(file[name], tmp_path / "x.zarr", path=name, verify=True))
            found = await api(api.open_array(tmp_path / "x.zarr", path=name))
            assert (found.dimension_names, found.shape) == (names, file[name].shape)
            assert name == "plain" or not found.attrs
    found = await api(api.open_array(tmp_path / "x.zarr", path="plain"))
    assert dict(found.attrs) == {
        "units": "°C", "title": "né", "n": 3, "range": [0.5, 2], "one": 7, "words": ["a", "b"], "empty": "",
        "table": [["a", "b"]], "broken": "h\ufffd", "CLASS": "mine",
    }  # fmt: skip
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["text"] = np.array(["a", "bé"], h5py.string_dtype())
        await api(api.ingest(file["text"].asstr(), tmp_path / "x.zarr", path="text", dtype=str))
    assert (await api((await api(api.open_array(tmp_path / "x.zarr", path="text")))[...])).tolist() == ["a", "bé"]
    h5netcdf = pytest.importorskip("h5netcdf")
    with h5netcdf.File(tmp_path / "x.nc", "w") as file:
        file.dimensions = {"t": 2}
        file.create_variable("a", ("t",), "i4", data=[1, 2]).attrs["units"] = "m"
        await api(api.ingest(file.variables["a"], tmp_path / "a.zarr"))
    found = await api(api.open_array(tmp_path / "a.zarr"))
    assert (found.dimension_names, found.attrs["units"]) == (("t",), "m")


async def test_strings_and_structs(api: Api):
    words = np.array([["a", "bb"], ["ü", ""]], dtype=np.dtypes.StringDType())
    store: dict[str, bytes] = {}
    await api(api.ingest(words, store, chunks=(1, 2), verify=True))
    assert (await api((await api(api.open_array(store)))[...])).tolist() == words.tolist()
    pairs = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
    await api(api.ingest(pairs, other := {}, chunks=1, verify=True))
    np.testing.assert_array_equal(await api((await api(api.open_array(other)))[...]), pairs)


async def test_an_attribute_for_the_sign(api: Api):
    attributes = {"_Unsigned": "true", "_FillValue": -1}
    array = await api(api.create_array({}, data=np.array([1, -2], "i1"), attributes=attributes))
    for dtype in ("i2", "u1", "f4"):
        with pytest.raises(
            EncodingError, match=f"_Unsigned of the source, numbers of {np.dtype(dtype)} would stand for"
        ):
            await api(api.ingest(array, {}, dtype=dtype))
        await api(api.ingest(array.decoded, store := {}, dtype=dtype))
        assert (await api(api.load(store))).tolist() == [1, np.array(254).astype(dtype)]


async def test_metadata_of_sources(api: Api):
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    await api(api.ingest(masked, store := {}, fill_value=9, verify=True))
    assert (await api((await api(api.open_array(store)))[...])).tolist() == [1, 9, 3]
    await api(api.ingest(np.arange(3), store := {}, dtype="f4"))
    assert (await api(api.open_array(store))).dtype == np.float32
    with pytest.raises(ShapeError, match="source has shape"):
        await api(api.ingest(np.arange(3), {}, shape=(4,)))
    named = await api(api.create_array({}, data=np.arange(3), dimension_names=("x",), fill_value=-9))
    await api(api.ingest(named, store := {}, zarr_format=2))
    found = await api(api.open_array(store))
    assert (dict(found.attrs), found.fill_value) == ({"_ARRAY_DIMENSIONS": ["x"]}, -9)
    await api(api.ingest(np.array("abc", np.dtypes.StringDType()), store := {}, verify=True))
    assert await api((await api(api.open_array(store)))[()]) == "abc"
    dask = pytest.importorskip("dask.array")
    await api(api.ingest(dask.zeros((0, 3)), store := {}))
    assert (await api(api.open_array(store))).shape == (0, 3)


@pytest.mark.parametrize(
    ("kind", "options", "chunks", "shards"),
    [
        ("zarrasync", {}, (5, 10), (20, 40)),
        ("zarr-python", {}, (5, 10), (20, 40)),
        ("zarrasync", {"zarr_format": 2}, (5, 10), None),
        ("zarr-python", {"shards": None}, (5, 10), None),
        ("zarrasync", {"shards": (10, 10)}, (5, 10), (10, 10)),
        ("zarr-python", {"chunks": (9, 7)}, (9, 7), None),
        ("zarrasync", {"chunks": "auto"}, VALUES.shape, None),
    ],
)
async def test_chunks_and_shards_of_arrays_in_zarr_are_kept(
    api: Api, kind: str, options: dict[str, Any], chunks: tuple[int, ...], shards: tuple[int, ...] | None
):
    source = {"data": VALUES, "chunks": (5, 10), "shards": (20, 40)}
    if kind == "zarr-python":
        given = pytest.importorskip("zarr").create_array({}, **source)
    else:
        given = await api(api.create_array({}, **source))
    await api(api.ingest(given, store := {}, verify=True, **options))
    found = await api(api.open_array(store))
    assert (found.chunks, found.shards) == (chunks, shards)
    np.testing.assert_array_equal(await api(found[...]), VALUES)


@pytest.mark.parametrize("kind", ["zarrasync", "zarr-python"])
async def test_arrays_in_zarr_whose_chunks_differ_in_size(api: Api, kind: str):
    uneven = {"data": VALUES, "chunks": [[30, 60], [10, 40, 20]]}
    if kind == "zarr-python":
        zarr = pytest.importorskip("zarr", minversion="3.4")
        with zarr.config.set({"array.rectilinear_chunks": True}):
            given = zarr.create_array({}, **(uneven | {"data": None, "shape": VALUES.shape, "dtype": "i4"}))
            given[...] = VALUES
    else:
        given = await api(api.create_array({}, **uneven))
    await api(api.ingest(given, store := {}, verify=True))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES)


def test_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from zarrasync.cli import main

    assert main(["ingest", str(tmp_path / "none.npy"), str(tmp_path / "x")]) == 1
    assert "none.npy" in capsys.readouterr().err


@pytest.mark.parametrize("size", [20, 15])
@pytest.mark.parametrize("verify", [True, False])
async def test_pairs_that_come_again(api: Api, size: int, verify: bool):
    """Blocks of whole chunks are skipped as finished; blocks that cut chunks are written again."""
    options: dict[str, Any] = {"shape": VALUES.shape, "dtype": "i4", "chunks": (20, 20)}
    pairs = blocks_of(VALUES, size)
    store: dict[str, bytes] = {}
    with pytest.raises(ShapeError, match="ended without values"):
        await api(api.ingest(pairs[: len(pairs) // 2], store, **options))
    report = await api(api.ingest(pairs, store, verify=verify, **options))
    np.testing.assert_array_equal(await api((await api(api.open_array(store)))[...]), VALUES)
    assert report.skipped + report.blocks == len(pairs)
    assert report.skipped == len(pairs) // 2 if size == 20 else report.skipped < len(pairs) // 2


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_iterable_that_leaves_out_blocks(api: Api, asynchronous: bool, tmp_path: Path):
    def rows(numbers: Iterable[int]) -> Any:
        pairs = [((slice(10 * n, 10 * n + 10), slice(0, 6)), np.full((10, 6), n + 1)) for n in numbers]

        async def later() -> AsyncIterator[Any]:
            for pair in pairs:
                yield pair

        return later() if asynchronous else iter(pairs)

    options: dict[str, Any] = {"shape": (40, 6), "dtype": "i4", "chunks": (10, 3)}
    with pytest.raises(ShapeError) as caught:
        await api(api.ingest(rows([0, 2]), tmp_path / "a", **options))
    text = str(caught.value)
    assert (
        f"4 of 8 chunks of / in LocalStore({str(tmp_path / 'a')!r}): [10:20, 0:3], [10:20, 3:6], [30:40, 0:3]" in text
    )
    assert "mode='a'" in text
    await api(api.ingest(rows([1, 3]), tmp_path / "a", **options))
    array = await api(api.open_array(tmp_path / "a", mode="r+"))
    assert (await api(array[:, 0])).tolist() == [n for n in (1, 2, 3, 4) for _ in range(10)]
    region = (slice(20, 40), slice(0, 6))
    options.update(shape=(20, 6), mode="r+", region=region)
    with pytest.raises(ShapeError, match=r"2 of 4 chunks of / .*: \[10:20, 0:3\], \[10:20, 3:6\]\."):
        await api(api.ingest(rows([0]), tmp_path / "a", **options))
    with pytest.raises(ShapeError, match="4 of 4 chunks"):
        await api(api.ingest(rows([]), tmp_path / "a", **options))
    await api(api.ingest(rows([1, 0]), tmp_path / "a", **options))


BOUNDS = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(sorted)
REGIONS = st.lists(st.tuples(BOUNDS, BOUNDS).map(lambda pairs: tuple(slice(*pair) for pair in pairs)), max_size=6)


@given(REGIONS, st.tuples(BOUNDS, BOUNDS), st.sampled_from([(2, 3), (1, 11), (5, 5)]), st.booleans())
def test_chunks_that_regions_do_not_cover(regions: Any, part: Any, chunks: tuple[int, int], listed: bool):
    grid = grid_of((11, 11), chunks, ((2, 1, 3, 5), None) if listed else None)
    start, stop = zip(*part, strict=True)
    coverage, mask = PairCoverage(grid, start, stop), np.ones((11, 11), bool)
    inside = tuple(map(slice, start, stop))
    mask[inside] = False
    for region in regions:
        common = tuple(slice(max(r.start, p.start), min(r.stop, p.stop)) for r, p in zip(region, inside, strict=True))
        if all(axis.start < axis.stop for axis in common):
            coverage.add(common)
            mask[common] = True
    missing = dict(coverage.missing())
    for coords in np.ndindex(*grid.shape):
        box = tuple(
            slice(max(b.start, p.start), max(b.start, p.start, min(b.stop, p.stop)))
            for b, p in zip(grid.box(coords), inside, strict=True)
        )
        assert (coords in missing) is not mask[box].all()
        assert missing.get(coords, box) == box


@pytest.mark.parametrize("kind", ["local", "slow"])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_memory_that_an_iterable_uses_again(api: Api, kind: str, asynchronous: bool, tmp_path: Path):
    """An iterable may reuse one buffer for all blocks."""
    store: Any = stores.LocalStore(tmp_path) if kind == "local" else LatencyStore(stores.MemoryStore(), 0.001)

    def pairs() -> Iterator[Any]:
        buffer = np.empty((10, 100), "i4")
        for number in range(40):
            buffer[...] = number + 1
            yield (slice(10 * number, 10 * number + 10), slice(0, 100)), buffer

    async def later() -> AsyncIterator[Any]:
        for pair in pairs():
            yield pair

    given = later() if asynchronous else pairs()
    await api(api.ingest(given, store, shape=(400, 100), dtype="i4", chunks=(10, 100)))
    found = await api((await api(api.open_array(store)))[...])
    np.testing.assert_array_equal(found, np.repeat(np.arange(1, 41), 10)[:, None] * np.ones((1, 100), "i4"))


@pytest.mark.parametrize("where", ["local", "memory://closed"])
@pytest.mark.parametrize("bad", [True, False])
async def test_an_asynchronous_iterable_is_closed(api: Api, bad: bool, where: str, tmp_path: Path):
    """It is closed before the call returns, also if the call fails."""
    closed = []

    async def pairs() -> AsyncIterator[Any]:
        try:
            for start in range(0, 40, 10):
                yield (slice(start, start + 10),), np.ones(3 if bad and start == 20 else 10)
        finally:
            closed.append(True)

    how = pytest.raises(ShapeError, match="have shape") if bad else nullcontext()
    with how:
        store = tmp_path if where == "local" else f"{where}/{tmp_path.name}"
        await api(api.ingest(pairs(), store, shape=(40,), dtype="f8", chunks=(10,)))
    assert closed
