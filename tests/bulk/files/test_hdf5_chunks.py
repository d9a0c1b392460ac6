"""Reading the chunks of HDF5 files without the library: filters, layouts, damaged files, and each chunk once."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import sync
from zarrasync._util.memory import MemoryPool
from zarrasync.bulk.files.sources.hdf5 import find_chunks
from zarrasync.bulk.files.sources.headers import ReaderOptions
from zarrasync.bulk.files.sources.identify import identity_of
from zarrasync.bulk.files.sources.readers import OpenFiles

xr = pytest.importorskip("xarray", reason="xarray opens the files")
h5py = pytest.importorskip("h5py", reason="h5py locates the chunks")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")

SHAPE, CHUNKS = (7, 30, 50), (2, 16, 20)
DATA = np.random.default_rng(0).integers(-900, 900, SHAPE).astype("i2")
REGION = (slice(1, 6), slice(5, 30), slice(0, 41))


def write(path: Path, values: Any = DATA, dtype: Any = None, **options: Any) -> str:
    """Write a netCDF-4 file with one variable."""
    options = {"chunksizes": CHUNKS, **options}
    with nc.Dataset(path, "w") as file:
        for name, n in zip(("time", "lat", "lon"), SHAPE, strict=True):
            file.createDimension(name, None if name == "time" else n)
        variable = file.createVariable("v", values.dtype if dtype is None else dtype, ("time", "lat", "lon"), **options)
        variable[:] = values
    return str(path)


def read_both(path: str, name: str = "v", region: Any = REGION, **options: Any) -> tuple[Any, Any]:
    """Return the values of the chunks, and those that xarray reads."""
    chunked = find_chunks(path, name, ReaderOptions(**options), za.config.get())
    assert chunked is not None
    with xr.open_dataset(path, mask_and_scale=False, decode_times=False, group=options.get("group")) as dataset:
        return chunked.read(region, MemoryPool()), dataset.variables[name][region].values


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "i2"),
        ({"compression": "zlib", "complevel": 1}, "u1"),
        ({"compression": "zlib", "complevel": 4, "shuffle": False}, "f4"),
        ({"compression": "zlib", "fletcher32": True}, "f8"),
        ({"compression": "zlib", "fletcher32": True}, "i2"),
        ({"fletcher32": True}, "i8"),
        ({"compression": "zstd"}, "f8"),
        ({"compression": "blosc_lz4"}, "f4"),
        ({"compression": "zlib", "endian": "big"}, "i8"),
        ({"compression": "zlib", "endian": "big"}, "f4"),
    ],
    ids=str,
)
def test_filters(tmp_path: Path, options: dict[str, Any], dtype: str):
    try:
        order = ">" if options.get("endian") == "big" else "="
        path = write(tmp_path / "a.nc", DATA.astype(order + dtype), **options)
    except RuntimeError as error:
        pytest.skip(f"this build of netCDF lacks the filter: {error}")
    if options == {"compression": "zlib", "fletcher32": True} and dtype in ("f8", "i8"):
        # The checksum comes first, and makes the size no multiple of that of the elements.
        assert find_chunks(path, "v", ReaderOptions(), za.config.get()) is None
        return
    values, expected = read_both(path)
    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)


def test_chunks_that_were_never_written(tmp_path: Path):
    for number, fill in enumerate((None, -7)):
        path = str(tmp_path / f"{number}.nc")
        with nc.Dataset(path, "w") as file:
            file.createDimension("time", None)
            file.createDimension("lat", 6)
            variable = file.createVariable("v", "f4", ("time", "lat"), chunksizes=(2, 3), fill_value=fill)
            variable[6:8] = 1
        values, expected = read_both(path, region=(slice(0, 8), slice(1, 6)))
        np.testing.assert_array_equal(values, expected)
        assert (values[:6] == (fill or np.float32(nc.default_fillvals["f4"]))).all()


def test_chunks_that_a_filter_left_out_are_left_to_the_library(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("v", (4, 4), "i4", chunks=(2, 4), compression="gzip")
        dataset[:] = 1
        dataset.id.write_direct_chunk((0, 0), np.arange(8, dtype="i4").tobytes(), filter_mask=1)
    assert find_chunks(str(tmp_path / "a.h5"), "v", ReaderOptions(), za.config.get()) is None


def test_other_layouts_are_left_to_the_library(tmp_path: Path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["contiguous"] = DATA
        file.create_dataset("lzf", data=DATA, chunks=CHUNKS, compression="lzf")
        file.create_dataset("complex", data=np.ones((4, 4), "c8"), chunks=(2, 2))
        file.create_dataset("bool", data=np.ones((4, 4), bool), chunks=(2, 2))
        file.create_dataset("text", data=np.array([b"a", b"b"]), chunks=(1,))
        marked = file.create_dataset("marked", data=np.ones((4, 4), "i1"), chunks=(2, 2))
        marked.attrs["dtype"] = "bool"  # which xarray decodes
        file.create_dataset("hidden", data=np.ones(3), chunks=(3,))
        file.create_dataset("_nc4_non_coord_hidden", data=np.zeros(3), chunks=(3,))
        file.create_group("group")
        names = [*file, "absent"]
    for name in set(names) - {"_nc4_non_coord_hidden"}:
        assert find_chunks(path, name, ReaderOptions(), za.config.get()) is None, name
    with h5py.File(tmp_path / "block.h5", "w", userblock_size=512) as file:
        file.create_dataset("v", data=DATA, chunks=CHUNKS)
    assert find_chunks(str(tmp_path / "block.h5"), "v", ReaderOptions(), za.config.get()) is None
    plain = write(tmp_path / "a.nc")
    assert find_chunks(plain, "v", ReaderOptions(), za.config.get()) is not None
    assert find_chunks(plain, "v", ReaderOptions(decode=True), za.config.get()) is None
    assert find_chunks(plain, "v", ReaderOptions(engine="other"), za.config.get()) is None
    DATA.tofile(tmp_path / "other.nc")
    assert find_chunks(str(tmp_path / "other.nc"), "v", ReaderOptions(), za.config.get()) is None


def create(path: Path, kind: Any, values: Any, chunks: tuple[int, ...]) -> None:
    """Write a dataset whose elements have a type of HDF5."""
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunks)
        dataset = h5py.h5d.create(file.id, b"v", kind, h5py.h5s.create_simple(values.shape), properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def twelve_bits() -> Any:
    kind = h5py.h5t.STD_I16LE.copy()
    kind.set_precision(12)
    kind.set_offset(2)
    return kind


def other_exponent() -> Any:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(100)
    return kind


@pytest.mark.parametrize(
    ("kind", "values"), [(twelve_bits, np.arange(-8, 8, dtype="i2")), (other_exponent, np.arange(16, dtype="f4"))]
)
async def test_elements_that_numpy_does_not_have(api: Api, tmp_path: Path, kind: Any, values: Any):
    path = tmp_path / "a.h5"
    create(path, kind(), values, (4,))
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["v"][...], values)
    assert find_chunks(str(path), "v", ReaderOptions(), za.config.get()) is None
    await api(api.ingest([path], store := {}, concat="x", dims="x", engine="h5netcdf"))
    np.testing.assert_array_equal(sync.open_array(store, path="v")[...], values)


def test_links_to_other_files_are_left_to_the_library(tmp_path: Path):
    for name, factor in (("a", 1), ("b", 10)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("v", data=factor * np.arange(8), chunks=(4,))
            file.create_dataset("group/v", data=factor * np.arange(8), chunks=(4,))
            file["same"] = h5py.SoftLink("/v")
            file["link"] = h5py.ExternalLink("b.h5", "v")
            file["folder"] = h5py.ExternalLink("b.h5", "group")
            file["hops"] = h5py.SoftLink("/folder/v")
            file["lost"] = h5py.ExternalLink("absent.h5", "v")
    path = str(tmp_path / "a.h5")
    for name, group in (("link", ""), ("v", "folder"), ("hops", ""), ("lost", "")):
        assert find_chunks(path, name, ReaderOptions(group=group), za.config.get()) is None, name
    for name, group in (("v", "group"), ("same", "")):
        chunked = find_chunks(path, name, ReaderOptions(group=group), za.config.get())
        assert chunked is not None
        np.testing.assert_array_equal(chunked.read((slice(0, 8),), MemoryPool()), np.arange(8))


def test_large_chunks_are_left_to_the_library(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, size in (("large", 1 << 31), ("small", 1 << 30)):
            file.create_dataset(name, (size,), "u1", chunks=(size,))
    assert find_chunks(str(tmp_path / "a.h5"), "large", ReaderOptions(), za.config.get()) is None
    assert find_chunks(str(tmp_path / "a.h5"), "small", ReaderOptions(), za.config.get()) is not None


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
async def test_the_settings_of_a_job_apply_to_its_files(api: Api, tmp_path: Path, processes: int):
    path, config = write(tmp_path / "a.nc"), {"max_chunk_bytes": 2 * np.prod(CHUNKS).item() - 1}
    call = partial(api.ingest, [path], concat="time", chunks=(1, 8, 8), executor=processes)
    with pytest.raises(ValueError, match=r"a\.nc: cannot read 'v': .*max_chunk_bytes = 1,279$"):
        await api(call(store=tmp_path / "a.zarr", config=config))
    await api(call(store=tmp_path / "b.zarr", config={"max_chunk_bytes": 2 * np.prod(CHUNKS).item()}))


def test_the_memory_of_blocks_is_reused(tmp_path: Path):
    shape = (2, 512, 600)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(4):
            file.create_dataset(f"v{number}", data=np.full(shape, number, "f8"), chunks=(1, 512, 600), shuffle=True)
    files, file = OpenFiles(ReaderOptions()), identity_of(str(tmp_path / "a.h5"), {})
    first = files.read(file, "v0", (slice(0, 2), slice(None), slice(None)))
    address, row = first.ctypes.data, first[1]
    del first
    second = files.read(file, "v1", (slice(0, 2), slice(None), slice(None)))
    assert (row == 0).all()  # a view of the first block keeps its memory
    assert second.ctypes.data != address
    del row
    third = files.read(file, "v2", (slice(0, 1), slice(None), slice(None)))
    assert third.ctypes.data == address
    assert (second == 1).all()
    assert (third == 2).all()
    del second, third
    gc.collect()
    fourth = files.read(file, "v3", (slice(0, 2), slice(None), slice(None)))
    assert (fourth == 3).all()
    files.close()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_each_process_reads_each_chunk_of_its_files_once(tmp_path: Path, processes: int):
    paths = [write(tmp_path / "0.nc", chunksizes=(1, *SHAPE[1:]))]
    options: dict[str, Any] = {"concat": "time", "chunks": (7, 8, 10), "executor": processes}
    config = {"memory_budget": 3 * 7 * 32 * 50 * DATA.itemsize // 2}  # one block with all chunks of a file fits
    report = sync.ingest(paths, tmp_path / "out.zarr", config=config, **options)
    assert report.blocks == 1
    np.testing.assert_array_equal(sync.open_array(tmp_path / "out.zarr", path="v")[...], DATA)


def test_the_places_of_all_variables_are_limited(tmp_path: Path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(6):
            file.create_dataset(f"v{number}", data=np.full(20, number), chunks=(1 if number < 5 else 20,))
    files, file = OpenFiles(ReaderOptions(), most_places=45), identity_of(str(path), {})
    kept = []
    for number in (*range(6), 0):
        assert (files.read(file, f"v{number}", (slice(3, 9),)) == number).all()
        kept.append(sum(variable.count for variable in files._chunked.values() if variable is not None))
    assert kept == [20, 40, 40, 40, 40, 41, 41]
    files.close()
    files = OpenFiles(ReaderOptions(), most_places=5)
    for name in ("v0", "v1"):
        files.read(file, name, (slice(3, 9),))
        assert [key[2] for key in files._chunked] == [name]
    files.close()


async def test_files_are_joined_without_the_library(api: Api, tmp_path: Path):
    pieces = np.split(np.arange(4 * DATA.size, dtype="f4").reshape(4 * SHAPE[0], *SHAPE[1:]), 4)
    paths = [write(tmp_path / f"{n}.nc", piece, compression="zlib") for n, piece in enumerate(pieces)]
    store: dict[str, bytes] = {}
    await api(api.ingest(paths, store, concat="time", chunks={"time": 5, "lat": 7}, verify=True))
    np.testing.assert_array_equal(sync.open_array(store, path="v")[...], np.concatenate(pieces))
    files = OpenFiles(ReaderOptions())
    np.testing.assert_array_equal(files.read(identity_of(paths[1], {}), "v", REGION), pieces[1][REGION])
    assert not files._open


@pytest.mark.parametrize("damage", ["chunk", "end"])
async def test_damaged_files(api: Api, tmp_path: Path, damage: str):
    path = write(tmp_path / "a.nc", compression="zlib", fletcher32=True)
    options = ReaderOptions()
    with h5py.File(path) as opened:
        chunk = opened["v"].id.get_chunk_info(3)
    files, file = OpenFiles(options), identity_of(path, {})
    files.read(file, "v", REGION)
    data = bytearray(Path(path).read_bytes())
    if damage == "end":
        Path(path).write_bytes(data[: chunk.byte_offset + 5])
        with pytest.raises(ValueError, match=r"cannot read 'v' of .*a\.nc.*(incomplete|ends)"):
            files.read(file, "v", (slice(None),) * 3)
        return
    data[chunk.byte_offset + chunk.size // 2] ^= 255
    Path(path).write_bytes(data)
    with pytest.raises(ValueError, match=r"cannot read 'v' of .*a\.nc"):
        files.read(file, "v", (slice(None),) * 3)
    store: dict[str, bytes] = {}
    with pytest.raises(ValueError, match=r"a\.nc"):
        await api(api.ingest([path], store, concat="time"))
    assert "zarr.json" not in store


def test_a_file_that_is_replaced_is_not_read(tmp_path: Path):
    path = write(tmp_path / "a.nc")
    files, file = OpenFiles(ReaderOptions()), identity_of(path, {})
    np.testing.assert_array_equal(files.read(file, "v", REGION), DATA[REGION])
    Path(write(tmp_path / "b.nc", DATA[::-1] + 1)).replace(path)
    np.testing.assert_array_equal(files.read(file, "v", REGION), DATA[REGION])
    with pytest.raises(ValueError, match="has changed"):
        OpenFiles(ReaderOptions()).read(file, "v", REGION)


class Chunked:
    """An array that counts how often each of its chunks is read."""

    dtype, shape, chunks = np.dtype("f4"), (8, 64, 64), (1, 64, 64)

    def __init__(self) -> None:
        self.reads = np.zeros(8, int)

    def __getitem__(self, region: tuple[slice, ...]) -> Any:
        self.reads[region[0]] += 1
        shape = [len(range(*part.indices(n))) for part, n in zip(region, self.shape, strict=True)]
        return np.ones(shape, "f4")


async def test_each_chunk_of_a_source_is_read_once(api: Api):
    source, store = Chunked(), {}
    budget = 3 * source.dtype.itemsize * 8 * 64 * 64 // 2  # one block fits
    await api(api.ingest(source, store, chunks=(8, 16, 16), config={"memory_budget": budget, "threads": 3}))
    assert source.reads.tolist() == [1] * 8
    assert (sync.open_array(store)[...] == 1).all()


async def test_blocks_are_smaller_if_memory_does_not_suffice(api: Api):
    source, store = Chunked(), {}
    budget = source.dtype.itemsize * 8 * 64 * 64 // 2
    await api(api.ingest(source, store, chunks=(8, 16, 16), config={"memory_budget": budget, "threads": 3}))
    assert source.reads.max() > 1
    assert (sync.open_array(store)[...] == 1).all()
