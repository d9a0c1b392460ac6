"""Values that are written come back; values that do not fit are refused whole."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any, ClassVar

import numcodecs
import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import CodecError, ShapeError, UnsupportedOperation

ZERO = np.array([0, 0, 5, 0])


@pytest.mark.parametrize("zarr_format", [2, "3-draft-2022"])
@pytest.mark.parametrize("dtype", ["i4", "M8[s]"])
async def test_without_a_fill_value_no_chunk_is_left_out(api: Api, zarr_format: Any, dtype: str):
    """With a fill value ``null``, other readers may return anything for missing chunks."""
    store: dict[str, bytes] = {}
    options = {"shape": 4, "chunks": 2, "dtype": dtype, "zarr_format": zarr_format, "fill_value": None}
    array = await api(api.create_array(store, **options))
    await api.write(array, ..., ZERO.astype(dtype))
    assert await api(array.nchunks_initialized()) == 2
    await api.write(array, 2, np.array(0, dtype))  # part of a chunk; the rest becomes zero
    assert await api(array.nchunks_initialized()) == 2
    np.testing.assert_array_equal(await api(array.view.read(missing="error")), np.zeros(4, dtype))
    await api(array.resize(3))
    await api(array.resize(4))
    assert await api(array.nchunks_initialized()) == 2
    copied: dict[str, bytes] = {}
    await api(api.copy(store, copied, compressors=None))
    assert await api((await api(api.open_array(copied))).nchunks_initialized()) == 2


class Unlisted(stores.MemoryStore):
    """A store without listing, like many web servers."""

    async def list_prefix(self, prefix: str) -> list[str]:
        raise UnsupportedOperation("no listing here")


@pytest.mark.parametrize("listable", [True, False])
async def test_copies_without_a_fill_value_stay_sparse(api: Api, listable: bool):
    data: dict[str, bytes] = {}
    options = {"shape": (100, 70), "chunks": (10, 10), "dtype": "i4", "zarr_format": 2, "fill_value": None}
    source = await api(api.create_array(data, **options))
    await api.write(source, (slice(33, 38), slice(61, 70)), 7)
    await api.write(source, (slice(0, 10), slice(0, 10)), 0)  # stored zeros are values
    store = stores.MemoryStore(data) if listable else Unlisted(data)
    for chunks, count in (((5, 7), 2 * 2 + 2 * 2), ((20, 30), 2), ((100, 70), 1)):
        copied: dict[str, bytes] = {}
        done: list[int] = []
        report = await api(api.copy(store, copied, chunks=chunks, progress=done.append))
        target = await api(api.open_array(copied))
        wanted = count if listable else target.cdata_shape[0] * target.cdata_shape[1]
        assert await api(target.nchunks_initialized()) == wanted
        assert sum(done) == source.nbytes
        np.testing.assert_array_equal(await api(target.view.read()), await api(source.view.read()))
        if listable:
            assert report.nbytes < source.nbytes or chunks == (100, 70)
            again = await api(api.copy(data, copied, chunks=chunks, resume=True, verify=True))
            assert again.copied == 0


def test_zeros_beside_no_fill_value_are_read_by_zarr_python(tmp_path: Path):
    zarr = pytest.importorskip("zarr")
    theirs = zarr.create_array(tmp_path, shape=(4,), chunks=(2,), dtype="M8[s]", zarr_format=2, fill_value=None)
    theirs[:] = np.array([9, 9, 9, 9], "M8[s]")
    sync.open_array(tmp_path, mode="r+")[0:2] = np.zeros(2, "M8[s]")
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[:], np.array([0, 0, 9, 9], "M8[s]"))


@pytest.mark.parametrize("dtype", ["bool", "i1", ">i2", "f4", "M8[s]", "c16", "S3", [("a", "i4"), ("b", "u1")]])
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_chunks_of_fill_values_are_detected_by_every_element(api: Api, dtype: Any):
    values = np.zeros((8, 4, 5), dtype)
    at = [(1, 0, 0), (2, 3, 4), (3, 2, 1), (5, 1, 4), (6, 3, 3)]
    for spot in at:
        values[spot] = np.ones((), dtype)
    for chunks in ((1, 4, 5), (1, 2, 5)):
        array = await api(
            api.create_array({}, data=values, chunks=chunks, compressors=None, fill_value=values[0, 0, 0])
        )
        assert await api(array.nchunks_initialized()) == len(at)
        np.testing.assert_array_equal(await api(array.view.read()), values)


@pytest.mark.parametrize("dtype", [str, np.str_, "U", "<U", np.dtype(str), "string"])
def test_strings_of_any_length(dtype: Any):
    array = sync.create_array({}, shape=2, dtype=dtype)
    array[:] = ["abc", "de"]
    assert array[:].tolist() == ["abc", "de"]


@pytest.mark.parametrize("dtype", [bytes, np.bytes_, "S", np.dtype(bytes), "bytes"])
def test_bytes_of_any_length(dtype: Any):
    array = sync.create_array({}, shape=2, dtype=dtype)
    array[:] = [b"abc\0", bytearray(b"de")]
    assert array[:].tolist() == [b"abc\0", b"de"]


def test_strings_of_length_zero_can_be_reopened():
    for zarr_format, dtype in ((2, "S0"), (2, "U0"), (3, "S0"), (3, "U0")):
        store: dict[str, bytes] = {}
        sync.create_array(store, shape=3, dtype=dtype, zarr_format=zarr_format)
        assert sync.open_array(store)[:].tolist() == np.zeros(3, dtype).tolist()


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_strings_are_refused(missing: Any):
    dtype = np.dtypes.StringDType(na_object=missing)
    array = sync.create_array({}, shape=2, dtype="string")
    array[:] = np.array(["a", "b"], dtype)
    assert array[:].tolist() == ["a", "b"]
    with pytest.raises(CodecError, match="cannot be stored"):
        array[:] = np.array(["c", missing], dtype)
    assert array[:].tolist() == ["a", "b"]


@pytest.mark.parametrize(("dtype", "value"), [("bytes", b"ab\0\0"), ("U4", "ab"), ("string", "ab"), ("i4", 7)])
async def test_arrays_without_axes_keep_type_and_value(api: Api, dtype: str, value: Any):
    array = await api(api.create_array({}, shape=(), dtype=dtype))
    await api.write(array, (), value)
    copied = await api(api.create_array({}, data=array.view))
    assert copied.dtype == array.dtype
    for one in (array, copied):
        assert await api(one.view[()].read()) == value
        blocks = one.view.chunks()
        found = [block async for block in blocks] if api.name == "async" else list(blocks)
        assert [(at, block.dtype, block.tolist()) for at, block in found] == [((), array.dtype, value)]
    if api.name == "sync":
        for made in (np.asarray(array), np.asarray(array.view), np.asarray(copied)):
            assert (made.dtype, made.tolist()) == (array.dtype, value)
        other = sync.create_array({}, shape=1, dtype=dtype)
        other[:] = array
        assert other[:].tolist() == [value]


@pytest.mark.parametrize("dtype", ["i4", "string", "bytes"])
async def test_single_elements(api: Api, dtype: str):
    value = {"i4": 5, "string": "x", "bytes": b"x"}[dtype]
    array = await api(api.create_array({}, shape=(3, 3), dtype=dtype, chunks=2))
    for key, given in (((0, 0), [value]), ((1, 2), np.array([[value]], array.dtype)), ((2, 0, None), [value])):
        await api.write(array, key, given)
        assert await api(array.view[key].read()) == value
    out = np.empty(1, array.dtype)
    await api(array.view[2, 0, None].read(out=out))
    assert out.tolist() == [value]


def test_elements_that_are_arrays_or_lists():
    ragged = sync.create_array({}, shape=3, dtype=object, zarr_format=2, filters=[numcodecs.VLenArray("i4")])
    ragged[0], ragged[1] = np.array([1, 2], "i4"), np.array([3], "i4")
    assert [value.tolist() for value in ragged[:]] == [[1, 2], [3], []]
    options: dict[str, Any] = {"dtype": object, "zarr_format": 2, "filters": [numcodecs.JSON()], "fill_value": [1, 2]}
    listed: Any = sync.create_array({}, shape=3, chunks=2, **options)
    listed[0] = [3, [4]]
    listed[1] = {"a": 1}
    listed.resize(1)
    listed.resize(3)
    assert listed[:].tolist() == [[3, [4]], [1, 2], [1, 2]]


async def test_values_for_nothing_have_to_fit_all_the_same(api: Api):
    array = await api(api.create_array({}, shape=4, dtype="i4"))
    with pytest.raises(ShapeError, match="do not fit"):
        await api.write(array, slice(0, 0), [1, 2, 3])
    with pytest.raises(CodecError, match="cannot be stored"):
        await api.write(array, slice(0, 0), ["x"])
    await api.write(array, slice(0, 0), 3)
    await api.write(array, slice(0, 0), np.empty(0))


@pytest.mark.parametrize(
    "given",
    [
        np.array(["2000-01-01", "2000-01-02", "NaT", "2500-01-01"], "M8[s]"),
        np.array(["2000", "2000", "NaT", "0101"], ">M8[Y]"),
        ["2000-01-01", "2000-01-02", "NaT", "2500-01-01"],
        np.array(["2000-01-01", "2000-01-02", "NaT", "never"], object),
        [dt.datetime(2000, 1, 1), dt.datetime(2000, 1, 2), None, dt.datetime(2500, 1, 1)],
        np.ma.array(
            np.array(["2000-01-01", "2000-01-02", "1000-01-01", "2500-01-01"], "M8[D]"),
            mask=[False, False, True, False],
        ),
    ],
)
async def test_times_that_do_not_fit_are_refused(api: Api, given: Any):
    array = await api(api.create_array({}, shape=4, dtype="M8[ns]", chunks=2))
    with pytest.raises(CodecError, match="cannot be stored as datetime64"):
        await api.write(array, ..., given)
    assert await api(array.nchunks_initialized()) == 0
    await api.write(array, slice(3), given[:3])
    days = ["2000-01-01", "2000-01-01" if str(given[1]) == "2000" else "2000-01-02", "NaT", "NaT"]
    np.testing.assert_array_equal(await api(array.view.read()), np.array(days, "M8[ns]"))


def test_times_of_objects_and_numbers():
    """Same results as in NumPy, in the units of the array."""
    spans = sync.create_array({}, shape=2, dtype="m8[ns]")
    for given in (
        np.array([np.timedelta64(1500, "ns"), np.timedelta64(1, "ns")], object),
        [1500, 1],
        np.array([1500, 1], object),
    ):
        spans[:] = given
        assert spans[:].astype("i8").tolist() == [1500, 1]
    months = sync.create_array({}, shape=2, dtype="m8[M]")
    months[:] = np.array([np.timedelta64(2, "Y"), None], object)
    assert months[:].astype("i8")[0] == 24
    moments = sync.create_array({}, shape=2, dtype="M8[s]")
    for given in ([5, None], np.array([5, None], object)):
        moments[:] = given
        np.testing.assert_array_equal(moments[:], np.array([5, "NaT"], "M8[s]"))
    for array in (spans, moments):
        with pytest.raises(CodecError):
            array[:] = [1.5, 2.7]
    for unit in ("D", "us", "ns"):
        with pytest.raises(CodecError, match=r"out of range|Overflow"):
            short: Any = sync.create_array({}, shape=2, dtype=f"m8[{unit}]")
            short[:] = [dt.timedelta(days=999999999), None]


@pytest.mark.parametrize("dtype", [str, "U3", "S3", bytes, "M8[s]", "f8", "i4"])
def test_fully_masked_values_become_the_fill_value(dtype: Any):
    array = sync.create_array({}, shape=2, dtype=dtype)
    fill = array[0].copy() if isinstance(array[0], np.generic) else array[0]
    array[0] = np.ma.masked
    array[:] = np.ma.array([1.5, 2.5], mask=True)
    assert np.array_equal(array[0], fill) or np.isnat(array[0])


@pytest.mark.parametrize("how", ["array", "function"])
async def test_verification_refuses_the_same_values(api: Api, how: str):
    times = np.array(["2000-01-01", "9999-01-01"], "M8[s]")
    source = times if how == "array" else lambda region: times[region]
    for verify in (True, False):
        options = {"shape": 2, "dtype": "M8[ns]", "verify": verify, "mode": "w"}
        with pytest.raises(CodecError, match=r"out of range|Overflow"):
            await api(api.ingest(source, {}, **options))


def test_durations_of_all_kinds():
    array: Any = sync.create_array({}, shape=3, dtype="m8[ms]")
    for given in (
        [1, 2, 3],
        ["1", "2", "NaT"],
        [dt.timedelta(seconds=1), None, dt.timedelta(0)],
        np.arange(3, dtype="m8[s]"),
    ):
        array[:] = given
        np.testing.assert_array_equal(array[:], np.asarray(given, "m8[ms]"))
    with pytest.raises(CodecError, match="cannot be stored"):
        array[:] = np.array([1, 2, 1 << 62], "m8[s]")


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, pytest.importorskip("pandas").NA])
@pytest.mark.parametrize("dtype", ["U4", "S4"])
async def test_missing_strings_are_not_stored_as_nan(api: Api, dtype: str, missing: Any):
    array = await api(api.create_array({}, shape=3, dtype=dtype, chunks=1))
    given = np.array(["ab", "cd", missing], object)
    for values in (given, given.tolist(), np.ma.array(given, mask=[True, False, False])):
        with pytest.raises(CodecError, match="the data type has no missing value"):
            await api.write(array, ..., values)
    assert await api(array.nchunks_initialized()) == 0
    await api.write(array, ..., np.ma.array(given, mask=[False, False, True]))
    np.testing.assert_array_equal(await api(array.view.read()), np.array(["ab", "cd", ""], dtype))
    await api.write(array, ..., [1, "ef", 2.5])
    np.testing.assert_array_equal(await api(array.view.read()), np.array(["1", "ef", "2.5"], dtype))


async def test_non_bytes_are_refused_before_anything_is_stored(api: Api):
    array = await api(api.create_array({}, shape=3, dtype=bytes, chunks=1))
    given = np.array([b"a", b"b", None], object)
    for bad in ("text", None, 7, -1, np.int64(7), True, 1.5, [1, 2]):  # bytes(7) would be seven zero bytes
        given[2] = bad
        with pytest.raises(CodecError, match="not bytes"):
            await api.write(array, ..., given)
    assert await api(array.nchunks_initialized()) == 0
    await api.write(array, 0, bytearray(b"xyz"))
    await api.write(array, 1, memoryview(b"uv"))
    assert (await api(array.view.read())).tolist() == [b"xyz", b"uv", b""]


def test_fields_that_are_masked_become_fill_values():
    dtype = np.dtype([("a", "i4"), ("b", [("c", "f8"), ("d", "i2")])])
    array = sync.create_array({}, shape=2, dtype=dtype, fill_value=(7, (8.0, 9)))
    array[:] = np.ma.array([(1, (2, 3)), (4, (5, 6))], mask=[(0, (1, 0)), (1, (0, 1))], dtype=dtype)  # type: ignore[arg-type]  # NumPy's stubs know no masks of fields
    assert array[:].tolist() == [(1, (8.0, 3)), (7, (5.0, 9))]


async def test_progress_counts_bytes_of_the_array(api: Api):
    dtype = np.dtype([("a", "i4"), ("b", "f8")])
    for array_type, fields, given, each in (("f4", None, "f8", 4), ("i8", None, "i1", 8), (dtype, "a", "i8", 4)):
        array = await api(api.create_array({}, shape=100, dtype=array_type, chunks=10))
        done: list[int] = []
        view = array.view if fields is None else array.view[fields]
        await api(view.write(np.ones(100, given), progress=done.append))
        assert sum(done) == 100 * each


class Watched(np.ndarray):
    """Values that record the threads that access them."""

    threads: ClassVar[list[int]] = []

    def __getitem__(self, key: Any) -> Any:
        self.threads.append(threading.get_ident())
        return np.asarray(self)[key]


@pytest.mark.parametrize("how", ["write", "append"])
async def test_casts_of_whole_arrays_do_not_block_the_event_loop(how: str):
    days = np.arange(1 << 18).astype("M8[D]")
    array = await za.create_array({}, shape=days.size, dtype="M8[s]", chunks=days.size)
    given = np.ma.MaskedArray(days.view(Watched), days < days[9], keep_mask=True)
    Watched.threads.clear()
    await (array[:].write(given) if how == "write" else array.append(given))
    assert Watched.threads
    assert threading.get_ident() not in Watched.threads
    np.testing.assert_array_equal((await array[-days.size :])[9:], days[9:])
