"""Large variables without rows, which must be equal in all files: what is read of them, and how often."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from tests.support.ingested import run_all, work_of
from tests.support.shifted_clock import ShiftedClock
from zarrasync import stores, sync
from zarrasync._concurrency import clock
from zarrasync.bulk.checksum import checksum, slabs, value_checksum
from zarrasync.bulk.files.ingestion import make_job
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.reports import FilesReport
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
h5py = pytest.importorskip("h5py", reason="h5py locates the chunks")
pytest.importorskip("netCDF4", reason="netCDF4 writes the files")

LENGTH = 150
"""Such a square of 64-bit numbers is larger than the values that headers contain."""


def write(folder: Path, number: int, mask: int = 1, **attributes: Any) -> str:
    """Write a file of one row, with a large variable that has no rows."""
    folder.mkdir(exist_ok=True)
    square = ("y", "x"), np.random.default_rng(mask).normal(size=(LENGTH, LENGTH))
    variables: dict[str, Any] = {"v": (("time", "y"), np.full((1, LENGTH), number), attributes), "mask": square}
    path = folder / f"{number}.nc"
    dataset = xr.Dataset(variables, {"time": ("time", [number])})
    dataset.to_netcdf(path, engine="netcdf4", encoding={"mask": {"zlib": True, "chunksizes": (50, 150)}})
    return str(path)


def damage(path: str, name: str) -> None:
    """Overwrite a chunk of a variable."""
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info(1)
    with open(path, "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)


@pytest.mark.parametrize("attributes", [{}, {"coordinates": "mask"}, {"grid_mapping": "mask"}], ids=str)
async def test_variables_that_are_not_stored_are_not_read(api: Api, tmp_path: Path, attributes: dict[str, Any]):
    paths = [write(tmp_path, number, **attributes) for number in range(2)]
    damage(paths[1], "mask")
    if attributes:
        with pytest.raises(ValueError, match=r"cannot read the header of .*1\.nc"):
            await api(api.ingest(paths, {}, concat="time", variables="v"))
        return
    with pytest.raises(ValueError, match=r"cannot read the header of .*1\.nc"):
        await api(api.ingest(paths, {}, concat="time"))
    await api(api.ingest(paths, store := {}, concat="time", variables="v", verify=True))
    assert sorted(sync.open_group(store)) == ["time", "v"]


@pytest.mark.parametrize("mask", [1, 2])
@pytest.mark.parametrize("attribute", ["coordinates", "grid_mapping"])
async def test_only_the_first_file_refers_to_a_large_variable(api: Api, tmp_path: Path, attribute: str, mask: int):
    """It is compared in all files, also if headers are read elsewhere, and left out if they differ."""
    refers: dict[str, Any] = {attribute: "mask"}
    paths = [write(tmp_path, 0, **refers), *(write(tmp_path, n) for n in range(1, 16)), write(tmp_path, 16, mask)]
    for number in (0, 2):
        with (
            clock.replaced(ShiftedClock(100)),  # so that it takes long to read headers
            ThreadPoolExecutor(number) if number else contextlib.nullcontext() as executor,
        ):
            report = await api(api.ingest(paths, store := {}, concat="time", variables="v", executor=executor))
        assert isinstance(report, FilesReport)
        assert ("mask: left out, because files differ in it" in report.left_out) == (mask == 2)
        assert ("mask" in sync.open_group(store)) == (mask == 1)


@pytest.mark.parametrize(
    ("dtypes", "result", "count"),  # of 15,000 numbers, one of two is small, and of 20,000 both are large
    [
        ("f8 f4", "compared", 15_000),
        ("f4 f4", "compared", 20_000),
        ("i8 i2", "compared", 15_000),
        ("i4 u2", "compared", 20_000),
        (">f8 <f4", "compared", 20_000),
        ("f8 i4", "refused in one job", 15_000),
        ("f8 i2", "refused in one job", 20_000),
    ],
)
async def test_constants_of_different_data_types(api: Api, tmp_path: Path, dtypes: str, result: str, count: int):
    """The second file is compared with the first one, and with the destination."""
    first, second = dtypes.split()
    values = np.arange(count) % 1000 / (2 if "i" not in dtypes else 1)
    values[:2] = (0, 0) if "i" in dtypes else (np.nan, -0.0)
    paths = [tmp_path / f"{name}.nc" for name in ("first", "same", "other")]
    for path, dtype in zip(paths, (first, second, second), strict=True):
        own = values.astype(dtype)
        own[1] = own[1] if path == paths[0] else 0
        own[7] += path == paths[2]
        variables: dict[str, Any] = {"v": (("time", "y"), [[1.0, 2.0]]), "k": ("x", own)}
        xr.Dataset(variables, {"time": ("time", [paths.index(path)])}).to_netcdf(path, engine="netcdf4")
    for other in paths[1:]:
        for is_appended in (False, True):
            store: dict[str, bytes] = {}
            if is_appended:
                await api(api.ingest(paths[0], store, concat="time"))
            sources = other if is_appended else [paths[0], other]
            is_compared = result == "compared" or is_appended  # the destination would store them as its own type
            message = (
                f"'k' must be the same in all files, but {'(differs|is)' if is_compared else 'its values cannot be'}"
            )
            if is_compared and other == paths[1]:
                await api(api.ingest(sources, store, concat="time", append=is_appended))
                assert len(sync.open_array(store, path="v")) == 2
                continue
            with pytest.raises(ShapeError, match=message):
                await api(api.ingest(sources, store, concat="time", append=is_appended))


async def test_large_times_with_other_units_are_not_equal(api: Api, tmp_path: Path):
    for number in range(2):
        times = ("x", np.arange(20_000), {"units": f"days since 200{number}-01-01"})
        variables: dict[str, Any] = {"v": (("time", "y"), [[1.0, 2.0]]), "begin": times}
        xr.Dataset(variables, {"time": ("time", [number])}).to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    with pytest.raises(ShapeError, match="'begin' must be the same in all files, but differs"):
        await api(api.ingest(str(tmp_path / "*.nc"), {}, concat="time"))


async def test_a_large_constant_in_a_file_of_one_row(api: Api, tmp_path: Path):
    """Its values are not read with the header, because such files usually have rows of all variables."""
    first, second = write(tmp_path, 0), write(tmp_path, 1)
    with xr.open_dataset(second) as opened:
        opened.isel(time=0, drop=True).to_netcdf(tmp_path / "row.nc", engine="netcdf4")
    await api(api.ingest(first, store := {}, concat="time", variables=["v", "mask"]))
    del sync.open_group(store, mode="r+")["time"]
    with pytest.raises(ShapeError, match=r"'mask' .* cannot be compared: it is large, and .*row.nc has one row"):
        await api(api.ingest(tmp_path / "row.nc", store, concat="time", append=True))
    await api(api.ingest(tmp_path / "row.nc", store, concat="time", append=True, variables="v"))
    assert sync.open_array(store, path="v")[:, 0].tolist() == [0, 1]


LOSSY: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "f4"},
    "float32 in format 2": {"dtype": "f4"},
    "scale and offset": {
        "filters": [
            {
                "name": "numcodecs.fixedscaleoffset",
                "configuration": {"offset": 0, "scale": 100, "dtype": "<f8", "astype": "<i2"},
            }
        ]
    },
    "rounded bits": {"filters": [{"name": "numcodecs.bitround", "configuration": {"keepbits": 6}}]},
    "quantized": {"filters": [{"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": "<f8"}}]},
    "in shards": {
        "filters": [{"name": "numcodecs.bitround", "configuration": {"keepbits": 6}}],
        "chunks": (50, 30),
        "shards": (100, 150),
    },
}


@pytest.mark.parametrize(("loss", "length"), covering(list(LOSSY), [LENGTH, 20], strength=1))
async def test_constants_that_are_stored_with_loss(api: Api, tmp_path: Path, loss: str, length: int):
    """Another file has the same values before they are stored."""
    values = np.random.default_rng(1).normal(size=(LENGTH, length))
    values[3] = -0.0
    paths = []
    for number in range(4):
        own = values + (1 if number == 3 else 0)
        variables: dict[str, Any] = {"v": (("time", "y"), np.full((1, LENGTH), number)), "mask": (("y", "x"), own)}
        dataset = xr.Dataset(variables, {"time": ("time", [number])})
        paths.append(tmp_path / f"{number}.nc")
        (dataset.transpose("x", "time", "y") if number == 2 else dataset).to_netcdf(paths[-1], engine="netcdf4")
    encoding: dict[str, Any] = {"chunks": (50, 10), **LOSSY[loss]}
    if length < 100:
        encoding = {"dtype": encoding["dtype"]} if "dtype" in encoding else {"filters": encoding["filters"]}
    options: dict[str, Any] = {"concat": "time", "append": True, "encoding": {"mask": encoding}}
    if loss.endswith("format 2"):
        options["zarr_format"] = 2
    await api(api.ingest(paths[0], store := {}, **options))
    assert not np.array_equal(sync.open_array(store, path="mask")[:], values)
    report = await api(api.ingest(paths[0], store, **options))
    assert isinstance(report, FilesReport)
    assert report.notes == []
    for path in paths[1:3]:
        await api(api.ingest(path, store, **options))
    with pytest.raises(ShapeError, match="'mask' must be the same in all files"):
        await api(api.ingest(paths[3], store, **options))
    assert len(sync.open_array(store, path="v")) == 3


@pytest.mark.parametrize("dtype", ["b1", "i1", "u8", "f2", "f4", "c8", "U3", "M8[s]"])
def test_checksums_of_values(dtype: str):
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    wide = {"i1": "i4", "f2": ">f8", "f4": "f8", "c8": "c16", "u8": "i8"}.get(dtype, dtype)
    assert value_checksum(values) == value_checksum(values.astype(wide))
    assert value_checksum(values.astype(wide), value_checksum(values)) == value_checksum(
        np.concatenate([values, values])
    )
    assert value_checksum(values) != value_checksum(values.T[:, ::-1])


def test_finishing_a_plan_does_not_read_constants(tmp_path: Path):
    paths, store = [write(tmp_path / "nc", number) for number in range(2)], stores.MemoryStore()
    sync.ingest(paths[0], store, concat="time")
    plan, _ = make_job(parameters_of(files=paths[1], store=store, concat="time", append=True)).plan_only(FileWorkers())
    assert plan is not None
    counting = stores.CountingStore(store)
    work = work_of(plan, counting)
    run_all(work)
    counting.reset()
    work.finish(verify=False)
    assert counting.counts.bytes_read < LENGTH * LENGTH
    assert len(sync.open_array(store, path="v")) == 2


@pytest.mark.parametrize("dims", [("y", "x"), ("x", "y")])
@pytest.mark.parametrize("chunks", [(7, 20), (40, 3), (100, 100), (0, 0), None], ids=str)
def test_slabs_contain_whole_chunks(dims: Any, chunks: Any):
    values = np.arange(6000, dtype="u1").reshape(100, 60)
    regions = list(slabs(dims, values.shape, 1, chunks, slab_bytes=1000))
    axis = dims.index("x")
    cuts = [region[axis].start for region, _ in regions]
    assert len(cuts) > 1 or chunks == (100, 100)
    if chunks and chunks[axis]:
        assert all(cut % chunks[axis] == 0 for cut in cuts)
    for data in (values, values.astype(object)):
        digest = 0
        for region, axes in regions:
            digest = checksum(data[region].transpose(axes), digest)
        assert digest == checksum(data.transpose(sorted((0, 1), key=dims.__getitem__)))


async def test_large_constants_of_strings(api: Api, tmp_path: Path):
    names = np.array([f"station {number}" for number in range(9000)], object)
    for number, own in enumerate([names, names, names[::-1]]):
        group = sync.create_group(tmp_path / f"{number}.zarr")
        group.create_array("v", data=np.array([number]), dimension_names=("time",))
        array = group.create_array("name", shape=9000, dtype=str, chunks=1000, dimension_names=("station",))
        array[:] = own
    paths = sorted(tmp_path.glob("*.zarr"))
    await api(api.ingest(paths[:2], store := {}, concat="time"))
    assert sync.open_array(store, path="name")[:].tolist() == names.tolist()
    for append in (False, True):
        with pytest.raises(ShapeError, match=r"'name' must be the same in all files, but differs"):
            await api(api.ingest(paths[1:], store if append else {}, concat="time", append=append))
