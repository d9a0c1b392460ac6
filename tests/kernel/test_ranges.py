"""Small reads, which the kernel does with one call, without a coroutine: the same values and errors as other reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.test_library import needs_kernel
from tests.kernel.test_read import CHECKS, EXAMPLES, LAYOUTS, check_equal, files, outcome
from tests.property.strategies import SEEDS, array_options, same, values_of
from zarrasync import _sync_base, sync
from zarrasync.errors import CodecError, MetadataError, SelectionError, UnsupportedByFormat
from zarrasync.model import dtypes

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
VALUES = np.arange(64 * 75, dtype="i4").reshape(64, 75)


@pytest.fixture(params=LAYOUTS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A stored array with two absent chunks or one absent shard."""
    layout = LAYOUTS[request.param]
    array = sync.create_array(tmp_path / "a", dtype="i4", shape=VALUES.shape, chunks=(10, 15), fill_value=-1, **layout)
    array[...] = VALUES
    return tmp_path / "a"


@pytest.fixture
def only_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads fail that need a coroutine."""

    def fail(*arguments: Any, **named: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(_sync_base, "run", fail)


KEYS: list[Any] = [
    (7, 11), (-1, -1), (np.int64(7), np.uint8(11)), (slice(0, 10), slice(0, 15)), (slice(3, 7), 4), (5, slice(2, 70)),
    (slice(None), 74), (..., 3), (7, 11, ...), slice(9, 11), (slice(0, 64, 7), slice(3, 75, 5)), 63,
]  # fmt: skip
NOT_AT_ONCE: list[Any] = [
    slice(0, 0), (slice(None, None, -1), 3), (slice(0, 64, 31), 3), (None, 3, 4), ([1, 2], 3), np.zeros((64, 75), bool),
]  # fmt: skip


def test_small_reads_need_no_coroutine(path: Path, request: pytest.FixtureRequest):
    array = sync.open_array(path)
    assert array._async._chunks.ranges_reader is not None
    request.getfixturevalue("only_at_once")
    for key in KEYS:
        found = array[key]
        assert type(found) is type(VALUES[key])
        assert same(np.asarray(found), np.asarray(VALUES[key])), key


def test_other_selections_are_left(path: Path):
    array = sync.open_array(path)
    for key in NOT_AT_ONCE:
        assert array.view[key].async_._read_at_once() is None, key
        assert same(array[key], VALUES[key])


def test_absent_chunks(path: Path):
    for file in files(path)[::2]:
        file.unlink()
    for key in KEYS:
        check_equal(path, itemgetter(key))


@given(array_options(), SEEDS, st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_random_boxes(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], seed: int, data: st.DataObject
):
    path, shape, chance = tmp_path_factory.mktemp("array") / "a", options["shape"], random.Random(seed)
    data_type = dtypes.from_numpy(options["dtype"])
    try:
        array = sync.create_array(path, fill_value=values_of(data_type, 1, seed + 1)[0], **options)
    except UnsupportedByFormat:
        return
    array[...] = values_of(data_type, int(np.prod(shape, dtype=int)), seed).reshape(shape)
    for file in files(path):
        if chance.random() < 0.2:
            file.unlink()
    items = [st.integers(-n, n - 1) | st.slices(n) if n else st.slices(n) for n in shape]  # integers drop their axis
    key = tuple(data.draw(item) for item in items)
    check_equal(path, itemgetter(key))
    assert type(array[key]) is type(array.view[key].read())


def damage_by(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(change(file.read_bytes()))  # type: ignore[return-value]  # the size


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: data + b"more"])
def test_damaged_chunks(path: Path, change: Callable[[bytes], bytes]):
    for file in files(path):
        damage_by(change)(file)
    for key in KEYS:
        check_equal(path, itemgetter(key))
    for file in files(path):
        file.write_bytes(b"")
    with pytest.raises(CodecError):
        sync.open_array(path)[7, 11]


@pytest.mark.parametrize("compressors", [None, "zstd"])
@pytest.mark.parametrize("shards", [None, (2000, 2000)])
def test_large_chunks_are_read_at_once_only_in_part(
    tmp_path: Path, compressors: str | None, shards: tuple[int, int] | None
):
    values = np.arange(4_000_000, dtype="f4").reshape(2000, 2000)
    array = sync.create_array(tmp_path / "a", data=values, chunks=(1000, 1000), shards=shards, compressors=compressors)
    small: list[Any] = [(7, 11), (7, slice(0, 400)), (slice(0, 30), slice(3))]
    large: list[Any] = [(slice(0, 1000), 3), (999, slice(999, 1002))]
    for key in small + large:
        at_once = array.view[key].async_._read_at_once()
        assert (at_once is not None) == (key in small and compressors is None)
        assert same(np.asarray(array[key]), np.asarray(values[key]))


@pytest.mark.parametrize(("length", "is_at_once"), [(1 << 15, True), (1 << 16, False)])
def test_indexes_above_a_size_are_not_read_at_once(tmp_path: Path, length: int, is_at_once: bool):
    values = np.arange(length, dtype="u1")
    array = sync.create_array(tmp_path / "a", data=values, chunks=(1,), shards=(length,))
    assert (array.view[5].async_._read_at_once() is not None) == is_at_once
    assert array[5] == 5


def test_settings_that_limit_reads(tmp_path: Path):
    sync.create_array(tmp_path / "a", data=np.arange(100, dtype="i4"), chunks=(50,))
    limited = sync.open_array(tmp_path / "a", config={"max_read_bytes": 40})
    assert limited[3] == 3
    assert outcome(lambda: limited[3:13]).tolist() == [*range(3, 13)]
    with pytest.raises(SelectionError, match="max_read_bytes"):
        limited[3:14]
    with pytest.raises(MetadataError, match="max_chunk_bytes"):
        sync.open_array(tmp_path / "a", config={"max_chunk_bytes": 100})[3]


def test_structures_and_dates(tmp_path: Path):
    records = np.array([(1, 2.5), (3, 4.5)], [("a", "i2"), ("b", "f8")])
    array = sync.create_array(tmp_path / "records", data=records)
    assert array[1] == records[1]
    assert array[1].base is not records
    assert array["b"].tolist() == [2.5, 4.5]
    dates = np.array(["2026-01-01", "NaT"], "M8[s]")
    assert str(sync.create_array(tmp_path / "dates", data=dates)[0]) == "2026-01-01T00:00:00"


def test_results_in_the_order_of_chunks(tmp_path: Path):
    values = np.arange(24, dtype="i2").reshape(2, 3, 4)
    array = sync.create_array(tmp_path / "a", data=values, order="F")
    for key in ((...,), (1,), (slice(None), 2), (slice(None), slice(1, 3), 3)):
        result = array[key]
        assert same(result, values[key])
        assert result.flags.f_contiguous


def test_no_dimensions(tmp_path: Path, request: pytest.FixtureRequest):
    array = sync.create_array(tmp_path / "a", data=np.float32(2.5))
    request.getfixturevalue("only_at_once")
    assert array[()] == np.float32(2.5)
    assert type(array[()]) is np.float32
    assert type(array[...]) is np.ndarray
