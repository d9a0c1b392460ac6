"""Writing with the kernel: the same files as without it."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from tests.kernel.test_read import CHECKS, CHUNKS, EXAMPLES, LAYOUTS, SHAPE, files, outcome
from tests.property.array_machine import accessor
from tests.property.selections import selections
from tests.property.strategies import SEEDS, array_options, same, values_of
from zarrasync import stores, sync
from zarrasync._kernel.symbols import symbols
from zarrasync.errors import UnsupportedByFormat
from zarrasync.model import dtypes
from zarrasync.nodes.access import chunks_of
from zarrasync.stores.base import DirectFiles

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
VALUES = np.random.default_rng(0).integers(1, 99, SHAPE).cumsum(0).astype("i4")
VALUES[20:40, 30:60] = 7


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def make(path: Path, native: str, **options: Any) -> sync.Array:
    return sync.create_array(
        path, dtype="i4", shape=SHAPE, chunks=CHUNKS, fill_value=7, config={"native": native}, **options
    )


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LAYOUTS[request.param]


async def fail(*arguments: Any, **named: Any) -> None:
    raise AssertionError(arguments)


def test_only_the_kernel_writes(tmp_path: Path, layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """No value passes through the store, in synchronous and in asynchronous calls, and also if chunks are written in part."""
    array = make(tmp_path / "a", "require", **layout)
    whole, part = (slice(None), slice(None)), (slice(5, 44), slice(3, 70))
    array[0:1, 0:1] = 1  # creates folders
    for name in ("put", "put_values"):
        monkeypatch.setattr(stores.LocalStore, name, fail)
    monkeypatch.setattr(stores.LocalStore, "direct_files", DirectFiles(f"{tmp_path}/a/".encode(), fsync=False))
    expected = VALUES.copy()
    array[whole] = expected
    array[part] = expected[part] = VALUES[part][::-1]
    assert same(sync.open_array(tmp_path / "a", config={"native": "off"})[whole], expected)

    async def write() -> None:
        array = await za.open_array(tmp_path / "a", mode="r+")
        await array.setitem(part, VALUES[part])

    asyncio.run(write())
    assert same(sync.open_array(tmp_path / "a", config={"native": "off"})[whole], VALUES)


def test_files_are_the_same(tmp_path: Path, layout: dict[str, Any]):
    found: dict[str, list[dict[str, bytes]]] = {}
    for native in ("require", "off"):
        array = make(tmp_path / native, native, **layout)
        array[...] = VALUES
        array[5:44, :] = 3
        array[20:50, 15:45] = VALUES[20:50, 15:45][::-1, ::-1]
        array[40:60, 0:75] = 7
        array.oindex[[0, 9, 33], 3:70] = VALUES[:3, 3:70]
        array[0:20, 0:30] = np.asfortranarray(VALUES[20:40, 0:30])
        found[native] = [content(tmp_path / native)]
        array[40:60] = VALUES[40:60].astype(">i8")  # values of other types and shapes
        array[0:20] = np.arange(75)
        array[20:40] = 5
        found[native].append(content(tmp_path / native))
    assert found["require"] == found["off"]


def write_both(
    place: Callable[[str], Any], options: dict[str, Any], seed: int, data: st.DataObject, **config: Any
) -> None:
    """Write a random array and a part of it, with the kernel and without it. Formats may refuse the options.

    Args:
        place: Returns where to store the array, for a setting ``native``.
        options: Options of the array.
        seed: Determines the values.
        data: Chooses the part.
        **config: Other settings.
    """
    data_type, shape = dtypes.from_numpy(options["dtype"]), options["shape"]
    fill = values_of(data_type, 1, seed + 1)[0]
    values = values_of(data_type, int(np.prod(shape, dtype=int)), seed).reshape(shape)
    chosen = None
    for native in ("require", "off"):
        try:
            array = sync.create_array(place(native), fill_value=fill, config={"native": native, **config}, **options)
        except UnsupportedByFormat:
            return
        array[...] = values
        chosen = chosen or data.draw(selections(shape, array.write_chunk_sizes))
        if chosen.kind != "block" and not chosen.repeats:
            accessor(array, chosen.kind)[chosen.key] = np.flip(np.asarray(values.ravel()[chosen.at]))
            accessor(array, chosen.kind)[chosen.key] = fill


@given(array_options(), SEEDS, st.booleans(), st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_random_writes(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], seed: int, keep: bool, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("arrays")
    write_both(lambda native: folder / native, options, seed, data, write_empty_chunks=keep)
    assert content(folder / "require") == content(folder / "off")


@pytest.mark.parametrize("dtype", ["|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", ">i4", "<f4"])
def test_differences(tmp_path: Path, dtype: str):
    """Differences of integers wrap around. The kernel leaves other types to Python."""
    limits = np.iinfo(dtype if "f" not in dtype else "i4")
    values = np.random.default_rng(0).integers(limits.min, limits.max, (40, 30), limits.dtype.newbyteorder("="))
    values[0, :2] = limits.min, limits.max
    options: dict[str, Any] = {"zarr_format": 2, "filters": [{"id": "delta", "dtype": dtype}], "compressors": None}
    for native in ("require", "off"):
        array = sync.create_array(
            tmp_path / native, data=values.astype(dtype), chunks=(7, 30), config={"native": native}, **options
        )
        array[3:9, 1:20] = values[4:10, :19]
    assert content(tmp_path / "require") == content(tmp_path / "off")
    for native in ("require", "off"):
        array = sync.open_array(tmp_path / "off", config={"native": native})
        reads = native == "require" and dtype not in (">i4", "<f4")
        assert (chunks_of(array._async).kernel_array is not None) == reads
        if "f" not in dtype:  # whose sums are rounded
            assert same(array[10:], values[10:].astype(array.dtype))


@pytest.mark.parametrize("keys", ["/", "."])
def test_a_name_that_is_taken(tmp_path: Path, keys: str):
    """A directory with the name of a chunk gives the same error, and no temporary file remains."""
    errors = []
    for native in ("require", "off"):
        path = tmp_path / native / "a"
        array = make(path, native, chunk_key_encoding={"name": "default", "separator": keys})
        (path / f"c{keys}2{keys}1" / "x").mkdir(parents=True)
        errors.append(outcome(lambda: array.__setitem__(..., VALUES)))  # called at once
        assert not [name for name in content(path) if "tmp" in name or name.count(".") > 3]
    assert errors[0] is not None
    assert errors[0][0] is errors[1][0]


def test_a_path_through_a_file(tmp_path: Path):
    array = make(tmp_path / "a", "require")
    array[0:10] = VALUES[0:10]
    (tmp_path / "a" / "c" / "3").write_bytes(b"")
    kind, message = outcome(lambda: array.__setitem__(..., VALUES))
    assert kind is za.errors.StoreError
    assert "c/3" in message


def test_progress(tmp_path: Path, layout: dict[str, Any]):
    array = make(tmp_path / "a", "require", **layout)
    steps: list[int] = []
    array.view.write(VALUES, progress=steps.append)
    assert sum(steps) == VALUES.nbytes


def test_fsync(tmp_path: Path):
    """With the setting fsync, Python writes, so that the directory is flushed as well."""
    array = make(tmp_path / "a", "require")
    array = sync.open_array(stores.LocalStore(tmp_path / "a", fsync=True), mode="r+")
    array[...] = VALUES
    assert same(array[...], VALUES)


@pytest.mark.parametrize(("shape", "chunks"), [((64, 64), (8, 8)), ((4000,), (8,)), ((4, 16, 16), (1, 2, 8))])
def test_writers_of_a_new_array(tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]):
    """Several writers find that a folder of chunks does not exist, and each chunk is from one of them."""
    for number in range(12):
        path = tmp_path / str(number)
        array = sync.create_array(
            path, shape=shape, chunks=chunks, dtype="i4", config={"native": "require", "threads": 3}
        )
        start = threading.Barrier(3)

        def write(key: Any, value: int, array: sync.Array = array, start: threading.Barrier = start) -> None:
            start.wait()
            array[key] = value

        writes = [(..., 1), (..., 2), ((..., 3), 5)]
        threads = [threading.Thread(target=write, args=arguments) for arguments in writes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = array[...]
        assert set(np.unique(np.delete(found, 3, -1))) <= {1, 2}
        assert set(np.unique(found[..., 3])) <= {1, 2, 5}
        first = array.blocks[(0,) * len(shape)]
        assert len(np.unique(np.delete(first, 3, -1))) == 1
        assert not [name for name in content(path) if "tmp" in name or name.count(".") > 3]


@pytest.mark.parametrize("stored", [(), (5,), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_folders_that_exist(tmp_path: Path, stored: tuple[int, ...]):
    """Chunks that are stored already are kept or replaced, as without the kernel."""
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    for native in ("require", "off"):
        array = sync.create_array(tmp_path / native, shape=(8, 8), chunks=(1, 1), dtype="i4", config={"native": native})
        for row in stored:
            array[row, 2] = 99
            array[row, 0] = 98
        (tmp_path / native / "c" / "6").mkdir(parents=True, exist_ok=True)
        array[:, 1:] = values[:, 1:]
        array[3:5, 1:] = 0
    assert content(tmp_path / "require") == content(tmp_path / "off")
    assert not list((tmp_path / "require").rglob("*.*-*"))


def test_folders_without_chunks_are_not_made(tmp_path: Path):
    array = sync.create_array(tmp_path / "a", shape=(6, 8), chunks=(1, 2), dtype="i4", config={"native": "require"})
    array[:4] = np.repeat(np.array([[0], [1], [0], [0]], "i4"), 8, 1)
    assert sorted(path.name for path in (tmp_path / "a" / "c").iterdir()) == ["1"]
    array = sync.create_array(
        tmp_path / "b", shape=(6, 6, 6), chunks=(2, 2, 2), dtype="i4", config={"native": "require"}
    )
    array[1:4, 1:4, 1:4] = 0
    assert not (tmp_path / "b" / "c").exists()


@pytest.mark.parametrize("name", ["c", "c/2"])
def test_a_link_that_leads_nowhere(tmp_path: Path, name: str):
    """A link in the place of a folder is not replaced, and the error is the same."""
    outcomes = []
    for native in ("require", "off"):
        path = tmp_path / native
        array = sync.create_array(path, shape=(6, 8), chunks=(1, 2), dtype="i4", config={"native": native})
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).symlink_to(path / "nowhere")
        outcomes.append(outcome(lambda: array.__setitem__(..., 1)))  # called at once
        assert (path / name).is_symlink()
    assert outcomes[0] is not None
    assert outcomes[0][0] is outcomes[1][0]


def test_whole_writes_survive_partial_ones(tmp_path: Path):
    """Rows that one thread writes are not undone by another thread, which changes single columns of the same chunks."""
    array = sync.create_array(tmp_path / "a", shape=(64, 64), chunks=(8, 8), dtype="i8", config={"native": "require"})
    array[...] = -1
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            array[:, 3] = 5

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for number in range(60):
            array[...] = number
            found = array[...]
            assert set(np.unique(found)) <= {number, 5}
            assert (np.delete(found, 3, 1) == number).all()
    finally:
        stop.set()
        thread.join()


@pytest.mark.processes
def test_children_write_after_a_fork(tmp_path: Path):
    array = make(tmp_path / "a", "require")
    array[0:10] = VALUES[0:10]
    child = os.fork()
    if child == 0:
        array[...] = VALUES
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert same(array[...], VALUES)


@pytest.mark.parametrize("dtype", ["U3", "U20", "c16"])
def test_fill_values_of_reversed_words(tmp_path: Path, dtype: str):
    """Chunks of the fill value are not stored, however long their big-endian elements are."""
    fill = {"U3": "abc", "U20": "abc", "c16": 1 + 2j}[dtype]
    serializer = {"name": "bytes", "configuration": {"endian": "big"}}
    for native in ("require", "off"):
        array = sync.create_array(
            tmp_path / native,
            shape=(8,),
            chunks=(2,),
            dtype=dtype,
            fill_value=fill,
            serializer=serializer,
            compressors=None,
            config={"native": native},
        )
        array[...] = np.array([*[fill] * 4, *np.arange(1, 5).astype(dtype)])
    assert len(files(tmp_path / "require")) == 2
    assert content(tmp_path / "require") == content(tmp_path / "off")


@pytest.mark.parametrize("prefixes", [("zng_",), ("blosc_compress",), ("blosc_",)])
def test_missing_functions(tmp_path: Path, prefixes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """The kernel does not try chunks for which no library has the functions."""
    found = {name: None if name.startswith(prefixes) else address for name, address in symbols().items()}
    monkeypatch.setattr("zarrasync._kernel.structs.symbols", lambda: found)
    codec = "gzip" if prefixes == ("zng_",) else "blosc"
    array = make(tmp_path / "a", "require", compressors=codec)
    array[...] = VALUES
    assert same(array[...], VALUES)
    described = asyncio.run(za.open_array(tmp_path / "a"))._chunks.kernel_array
    assert (described is None) == (prefixes == ("blosc_",))
    assert described is None or not described.can_write


def test_a_folder_that_is_replaced_during_a_change(tmp_path: Path):
    """The change is in the new folder."""
    values = np.random.default_rng(0).integers(0, 1 << 30, (1, 4 << 20))
    array = sync.create_array(tmp_path / "a", data=values, chunks=values.shape, config={"native": "require"})
    folder = tmp_path / "a" / "c" / "0"
    for turn in range(20):
        old = tmp_path / f"old{turn}"
        shutil.copytree(folder, tmp_path / "copy")
        with ThreadPoolExecutor(1) as crew:
            change = crew.submit(array.__setitem__, (0, slice(5, 9)), turn)
            while len(os.listdir(folder)) < 2 and not change.done():  # until there is a temporary file
                pass
            folder.rename(old)
            is_in_time = len(os.listdir(old)) == 2
            (tmp_path / "copy").rename(folder)
            change.result()
        if is_in_time:
            assert sync.open_array(tmp_path / "a")[0, 4:10].tolist() == [values[0, 4], *[turn] * 4, values[0, 9]]
            assert len(os.listdir(folder)) == 1
            return
        shutil.rmtree(old)
    raise AssertionError("each change was complete before the folder was replaced")
