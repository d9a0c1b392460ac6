"""Reading with the kernel: the same values and the same errors as without it."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from tests.property.array_machine import accessor
from tests.property.selections import selections
from tests.property.strategies import SEEDS, array_options, same, values_of
from tests.support.covering import covering
from zarrasync import stores, sync
from zarrasync.errors import UnsupportedByFormat, ZarrError
from zarrasync.model import dtypes
from zarrasync.stores.base import DirectFiles

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
CHECKS = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]
EXAMPLES = int(os.environ.get("ZARRASYNC_EXAMPLES", "150"))

FOLDERS = {"name": "v2", "separator": "/"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {"compressors": "zstd"},
    "blosc": {"compressors": "blosc"},
    "lz4": {"compressors": {"name": "numcodecs.lz4", "configuration": {}}},
    "gzip": {"compressors": "gzip"},
    "zlib": {"zarr_format": 2, "compressors": {"id": "zlib", "level": 1}, "chunk_key_encoding": FOLDERS},
    "shuffle": {
        "zarr_format": 2,
        "filters": [{"id": "shuffle", "elementsize": 4}],
        "compressors": {"id": "zlib", "level": 1},
        "chunk_key_encoding": FOLDERS,
    },
    "delta": {
        "zarr_format": 2,
        "filters": [{"id": "delta", "dtype": "<i4"}, {"id": "shuffle", "elementsize": 4}],
        "compressors": {"id": "zlib", "level": 1},
        "chunk_key_encoding": FOLDERS,
    },
    "two checksums": {"compressors": ["crc32c", "zstd", "crc32c"]},
    "columns": {"order": "F", "compressors": "blosc"},
    "big-endian": {"compressors": None, "serializer": {"name": "bytes", "configuration": {"endian": "big"}}},
    "version 2": {"zarr_format": 2, "compressors": "zstd", "chunk_key_encoding": FOLDERS},
    "flat names": {"compressors": "zstd", "chunk_key_encoding": {"name": "default", "separator": "."}},
    "shards": {"shards": (20, 30), "compressors": "zstd"},
    "raw shards": {"shards": (20, 30), "compressors": None},
    "index first": {"shards": {"shape": (20, 30), "index_location": "start"}},
}
SHAPE, CHUNKS = (64, 75), (10, 15)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LAYOUTS[request.param]


@pytest.fixture
def made(tmp_path: Path, layout: dict[str, Any]) -> tuple[Path, np.ndarray]:
    """A stored array without the chunks of some columns, and its values."""
    values = np.random.default_rng(0).integers(1, 99, SHAPE).cumsum(0).astype("i4")
    values[20:40, 30:60] = 7
    array = sync.create_array(tmp_path / "a", dtype="i4", shape=SHAPE, chunks=CHUNKS, fill_value=7, **layout)
    array[...] = values
    return tmp_path / "a", values


def files(path: Path) -> list[Path]:
    """Return the files of the chunks."""
    return sorted(
        file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".z") and file.suffix != ".json"
    )


def outcome(read: Callable[[], Any]) -> Any:
    """Return a result, or the kind of an error and its message."""
    try:
        return read()
    except ZarrError as error:
        return type(error), str(error)


def check_equal(path: Path, read: Callable[[sync.Array], Any]) -> Any:
    """Assert that the kernel and Python read the same. Return it."""
    one, other = [outcome(lambda: read(sync.open_array(path, config=za.Config(native=n)))) for n in ("require", "off")]
    if isinstance(one, tuple):
        assert one == other
    else:
        assert same(np.asarray(one), np.asarray(other))
    return one


# ------------------------------------------------------------------ values

ROWS, COLUMNS = np.random.default_rng(1).integers(0, 64, (3, 40)), np.random.default_rng(2).integers(0, 75, (3, 40))
MASK = np.random.default_rng(3).random(SHAPE) < 0.05
SELECTIONS: list[Callable[[Any], Any]] = [
    lambda a: a[...],
    lambda a: a[3:50, 20:70],
    lambda a: a[::-3, 1::17],
    lambda a: a[33, 44:46],
    lambda a: a[10:20, 15:30],
    lambda a: (
        a.oindex[[60, 2, 2, 31], ::2] if isinstance(a, sync.Array) else a[np.ix_([60, 2, 2, 31], range(0, 75, 2))]
    ),
    lambda a: a.oindex[::5, [0, 74]] if isinstance(a, sync.Array) else a[np.ix_(range(0, 64, 5), [0, 74])],
    lambda a: a.vindex[ROWS, COLUMNS] if isinstance(a, sync.Array) else a[ROWS, COLUMNS],
    lambda a: a.vindex[MASK] if isinstance(a, sync.Array) else a[MASK],
    lambda a: a[ROWS, 70:20:-3],
    lambda a: a[4:60, COLUMNS],
]


def test_only_the_kernel_reads(made: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch):
    """No value passes through the store, in synchronous and in asynchronous calls."""
    path, values = made
    array = sync.open_array(path)

    async def fail(*arguments: Any, **named: Any) -> None:
        raise AssertionError(arguments)

    for name in ("fetch", "fetch_values"):
        monkeypatch.setattr(stores.LocalStore, name, fail)
    monkeypatch.setattr(stores.LocalStore, "direct_files", DirectFiles(f"{path}/".encode(), fsync=False))
    for number, select in enumerate(SELECTIONS):
        assert same(select(array), np.asarray(select(values))), number


@pytest.mark.parametrize("layout", ["raw", "zstd", "shards"], indirect=True)
@pytest.mark.parametrize("kind", ["oindex", "vindex"])
def test_index_arrays_that_the_caller_changes(made: tuple[Path, np.ndarray], kind: str):
    """A selection keeps the indices that it was made with."""
    path, values = made
    rows, columns = np.array([3, 1, 60]), np.array([0, 70, 5])
    selection = getattr(sync.open_array(path).view, kind)[rows, columns]
    expected = values[np.ix_(rows, columns)] if kind == "oindex" else values[rows, columns]
    rows += 10**9
    columns -= 10**9
    assert same(selection.read(), expected)


def test_asynchronous_reads(made: tuple[Path, np.ndarray]):
    async def read() -> Any:
        array = await za.open_array(made[0], config=za.Config(native="require"))
        assert array._chunks.kernel_array is not None
        whole, part = await asyncio.gather(array.view.read(), array.view[3:50, 20:70].read())
        return whole, part

    whole, part = asyncio.run(read())
    assert same(whole, made[1])
    assert same(part, made[1][3:50, 20:70])


@given(array_options(), SEEDS, st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_random_arrays(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], seed: int, data: st.DataObject
):
    path = tmp_path_factory.mktemp("array") / "a"
    data_type = dtypes.from_numpy(options["dtype"])
    shape = options["shape"]
    fill = values_of(data_type, 1, seed + 1)[0]
    try:
        array = sync.create_array(path, fill_value=fill, **options)
    except UnsupportedByFormat:
        return
    values = values_of(data_type, int(np.prod(shape, dtype=int)), seed).reshape(shape)
    array[...] = values
    chance = random.Random(seed)
    for file in files(path):
        if chance.random() < 0.2:
            file.unlink()
    chosen = data.draw(selections(shape, array.write_chunk_sizes))
    one = check_equal(path, lambda a: accessor(a, chosen.kind)[chosen.key])
    assert not isinstance(one, tuple)


def test_parts_of_a_large_shard(tmp_path: Path):
    """Several threads share the inner chunks of a shard."""
    values = np.random.default_rng(0).integers(0, 9, (1024, 1536)).astype("i4")
    layout: dict[str, Any] = {"chunks": (64, 64), "shards": (1024, 1536)}
    array = sync.create_array(tmp_path / "a", data=values, config=za.Config(threads=4, native="require"), **layout)
    assert same(array[...], values)
    assert same(array[5:1000, ::-1], values[5:1000, ::-1])
    assert same(array.oindex[[3, 700, 1], 10:1500], values[[3, 700, 1], 10:1500])


@pytest.mark.parametrize("shards", [None, (500, 512)])
def test_points_of_many_chunks(tmp_path: Path, shards: tuple[int, ...] | None):
    """More chunks than one pass sorts."""
    values = np.random.default_rng(0).integers(0, 99, (500, 512)).astype("i2")
    options: dict[str, Any] = {"chunks": (4, 2), "shards": shards, "compressors": None}
    array = sync.create_array(tmp_path / "a", data=values, config=za.Config(threads=3, native="require"), **options)
    for count in (1, 7, 40_000):
        rows, columns = (np.random.default_rng(count).integers(0, length, count) for length in values.shape)
        assert same(array.vindex[rows, columns], values[rows, columns])
        assert same(array.view[rows, None, columns].read(), values[rows, None, columns])
    mask = values > 90
    assert same(array.vindex[mask], values[mask])


@pytest.mark.parametrize("count", [1, 3, 60, 5000])
@pytest.mark.parametrize("options", [{"order": "F"}, {"shards": (600, 400)}])
def test_points_of_large_raw_chunks(tmp_path: Path, options: dict[str, Any], count: int):
    """A few points are read one by one, and many with all bytes between them."""
    values = np.random.default_rng(0).random((600, 400))
    array = sync.create_array(tmp_path / "a", data=values, chunks=(300, 200), compressors=None, **options)
    rows, columns = (np.random.default_rng(count).integers(0, length, count) for length in values.shape)
    assert same(array.vindex[rows, columns], values[rows, columns])
    assert same(array.view[rows.reshape(1, -1), 180:220].read(), values[rows.reshape(1, -1), 180:220])
    near = 100 + rows % 3, 100 + columns % 9
    assert same(array.vindex[near], values[near])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "F"},
        {"shards": (120, 160, 200)},
        {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}},
    ],
)
def test_raw_chunks_that_are_read_in_pieces(tmp_path: Path, options: dict[str, Any]):
    """Of chunks of 4 MB, at most 1 MiB is read at a time."""
    values = np.arange(120 * 160 * 200, dtype="i4").reshape(120, 160, 200)
    array = sync.create_array(tmp_path / "a", data=values, chunks=(120, 80, 100), compressors=None, **options)
    for key in [
        (...,),
        (slice(3, 119), slice(None), slice(5, 199)),
        (slice(None, None, 7), slice(1, None, 3), slice(None)),
        (slice(None), 60, slice(None)),
        (slice(None, None, -1), slice(None, None, 159), slice(99, 102)),
    ]:
        assert same(array[key], values[key])
    rows = np.sort(np.random.default_rng(4).integers(0, 120, 90))
    assert same(array.oindex[rows, :, 3:170], values[rows][:, :, 3:170])
    assert same(
        array.oindex[[0, 0, 119], [5, 150, 151, 151], ::9],
        values[np.ix_([0, 0, 119], [5, 150, 151, 151], range(0, 200, 9))],
    )
    out = np.asfortranarray(np.zeros_like(values))
    array.view[...].read(out=out)
    assert same(out, values)


def test_points_of_more_chunks_than_numbers(tmp_path: Path):
    """Numbers of chunks that do not fit into 64 bits are left to Python."""
    size = 2**40
    array = sync.create_array(tmp_path / "a", shape=(size, size), chunks=(1, 1), dtype="i1", fill_value=1)
    array[5, size - 1] = 2
    found = check_equal(tmp_path / "a", lambda a: a.vindex[[5, 0, size - 1, 5], [size - 1, 0, 7, 0]])
    assert found.tolist() == [2, 1, 1, 1]


def test_many_absent_chunks(tmp_path: Path):
    array = sync.create_array(tmp_path / "a", shape=(300, 300), chunks=(1, 1), dtype="i2", fill_value=-3)
    array[7, 299] = 5
    result = array[...]
    assert result[7, 299] == 5
    assert (result == -3).sum() == result.size - 1


# ------------------------------------------------------------------ files that are not what they should be


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def extend(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x40
    data[-1] ^= 1
    file.write_bytes(data)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


CONTENTS: list[Callable[[Path], Any]] = [
    truncate, extend, flip, lambda file: file.write_bytes(b""), lambda file: file.write_bytes(bytes(1 << 20)),
]  # fmt: skip
PLACES: list[Callable[[Path], Any]] = [make_directory, make_pipe, make_loop, Path.unlink]


@pytest.mark.parametrize(
    ("layout", "damage"),
    [*product(LAYOUTS, CONTENTS), *product(["zstd", "flat names", "raw shards"], PLACES)],
    indirect=["layout"],
)
def test_damaged_files(made: tuple[Path, np.ndarray], damage: Callable[[Path], None]):
    path, _ = made
    chosen = files(path)
    damage(chosen[len(chosen) // 2])
    for select in SELECTIONS:
        found = check_equal(path, select)
        if damage in (extend, truncate) and isinstance(found, tuple):
            assert str(chosen[len(chosen) // 2].relative_to(path)) in found[1]
    damage(chosen[0])
    check_equal(path, SELECTIONS[0])


@given(SEEDS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_random_damage(made: tuple[Path, np.ndarray], seed: int):
    """Damaged chunks give the same errors or values, and the kernel survives them."""
    chance = random.Random(seed)
    file = chance.choice(files(made[0]))
    whole = file.read_bytes()
    data = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(len(data))] = chance.choice((0, 255, chance.randrange(256)))
    try:
        file.write_bytes(data)
        check_equal(made[0], lambda a: a[...])
    finally:
        file.write_bytes(whole)


# ------------------------------------------------------------------ what reads report


def read_present(view: Callable[[sync.Array], Any], array: sync.Array) -> Any:
    return view(array).read(missing="error")


def test_missing_chunks(made: tuple[Path, np.ndarray]):
    for file in files(made[0])[1::3]:
        file.unlink()
    found = check_equal(made[0], lambda a: a.view.read(missing="error"))
    assert isinstance(found, tuple)
    views: list[Callable[[sync.Array], Any]] = [lambda a: a.view.vindex[MASK], lambda a: a.view[ROWS, 4:60]]
    for view in views:
        found = check_equal(made[0], partial(read_present, view))
        assert isinstance(found, tuple)


def test_progress(made: tuple[Path, np.ndarray]):
    for select in (
        lambda v: v,
        lambda v: v[::2, 3:],
        lambda v: v.oindex[[5, 60], 3:],
        lambda v: v.vindex[ROWS, COLUMNS],
    ):
        totals = []
        for native in ("require", "off"):
            steps: list[int] = []
            view = select(sync.open_array(made[0], config=za.Config(native=native)).view)
            view.read(progress=steps.append)
            totals.append(sum(steps))
            assert totals[-1] == view.nbytes
        assert totals[0] == totals[1]


def test_reads_into_memory_of_the_caller(made: tuple[Path, np.ndarray]):
    array = sync.open_array(made[0], config=za.Config(native="require"))
    for out in (np.zeros(SHAPE, "i4", "F"), np.zeros((SHAPE[0], 200), "i4")[:, 5:80], np.zeros(SHAPE, "i4")[::-1]):
        array.view.read(out=out)
        assert same(np.ascontiguousarray(out), made[1])


@pytest.mark.parametrize(("dtype", "step"), covering(["u1", "i2", "f4", ">f8", "c16", "S3"], [1, 2], strength=1))
def test_axes_in_another_order(tmp_path: Path, dtype: str, step: int):
    """Chunks in the order of columns are written from rows, and read into rows, also in reversed order."""
    values = np.random.default_rng(3).integers(1, 99, (5, 37, 41)).astype(dtype)
    array = sync.create_array(
        tmp_path / "a", data=values, zarr_format=2, chunks=(3, 19, 21), order="F", compressors=None
    )
    out = np.empty((5, 37, 41), array.dtype)[:, ::-step, ::step]
    array.view[:, ::step, ::step].read(out=out)
    np.testing.assert_array_equal(out, values[:, ::step, ::step])
    pure = sync.open_array(tmp_path / "a", config={"native": "off"})
    np.testing.assert_array_equal(pure[...], values)


@pytest.mark.processes
def test_children_read_after_a_fork(made: tuple[Path, np.ndarray]):
    array = sync.open_array(made[0], config=za.Config(native="require"))
    array[...]
    child = os.fork()
    if child == 0:
        os._exit(0 if same(array[...], made[1]) else 1)
    assert os.waitpid(child, 0)[1] == 0


def open_descriptors() -> Iterator[str]:
    return iter(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_descriptor_stays_open(made: tuple[Path, np.ndarray]):
    array = sync.open_array(made[0], config=za.Config(native="require"))
    truncate(files(made[0])[0])
    before = len(list(open_descriptors()))
    for select in SELECTIONS:
        outcome(lambda: select(array))
    assert len(list(open_descriptors())) == before


@pytest.mark.parametrize("shards", [None, (256,)])
def test_the_last_chunk_of_the_longest_axis(tmp_path: Path, shards: tuple[int, ...] | None):
    """Its end would not fit into 64 bits."""
    end = 2**63 - 1
    array = sync.create_array(tmp_path / "a", shape=(end,), chunks=(16,), shards=shards, dtype="i1", fill_value=3)
    array[end - 40 :] = 4
    assert check_equal(tmp_path / "a", lambda a: a.oindex[[1, end - 3, end - 1]]).tolist() == [3, 4, 4]
    assert check_equal(tmp_path / "a", lambda a: a[end - 42 :]).tolist() == [3, 3, *[4] * 40]
    assert check_equal(tmp_path / "a", lambda a: a[end - 1 :]).tolist() == [4]


@pytest.mark.parametrize("index_codecs", [["bytes", "crc32c"], ["bytes"]], ids=["checksum", "plain"])
@pytest.mark.parametrize(
    "entry",
    [(1 << 62, 3), (1 << 62, 8), (0, 0), (0, 7), ((1 << 64) - 1, 8), (0, (1 << 64) - 1), (1 << 20, 8), (0, 1 << 40)],
)
def test_impossible_entries_of_indexes(tmp_path: Path, entry: tuple[int, int], index_codecs: list[str]):
    """They are the same error as without the kernel, also if they belong to inner chunks that are not wanted."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = [little if name == "bytes" else {"name": name} for name in index_codecs]
    sharding = {"chunk_shape": [2], "codecs": [little], "index_codecs": codecs, "index_location": "end"}
    serializer = {"name": "sharding_indexed", "configuration": sharding}
    array = sync.create_array(tmp_path, shape=8, chunks=8, dtype="i4", serializer=serializer, compressors=None)
    array[:] = range(1, 9)
    path, size = tmp_path / "c/0", 64
    data = path.read_bytes()
    index = bytearray(data[32 : 32 + size])
    index[48:64] = struct.pack("<QQ", *entry)
    checksum = crc32c(bytes(index)).to_bytes(4, "little") if "crc32c" in index_codecs else b""
    path.write_bytes(data[:32] + bytes(index) + checksum)

    def outcome(native: str, change: Callable[[sync.Array], Any]) -> str:
        path.write_bytes(data[:32] + bytes(index) + checksum)
        try:
            return repr(change(sync.open_array(tmp_path, mode="r+", config={"native": native})))
        except ZarrError as error:
            return f"{type(error).__name__}: {error}"

    def write(array: sync.Array) -> None:
        array[0] = 5

    for change in (
        lambda a: a[0:2].tolist(),
        lambda a: a[5:8].tolist(),
        lambda a: a[:].tolist(),
        lambda a: a[[1, 3]].tolist(),
        write,
    ):
        assert outcome("require", change) == outcome("off", change)
