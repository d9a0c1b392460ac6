"""Decoded arrays: values as xarray decodes them, from the same requests as stored numbers, both ways."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xarray", reason="xarray is not installed")
from tests.support.api import Api
from tests.support.meanings import MEANINGS, Meant
from zarrasync import sync
from zarrasync.errors import CodecError, EncodingError, SelectionError, ShapeError
from zarrasync.stores import LocalStore, MemoryStore
from zarrasync.stores.counting import CountingStore

PACKED = {"scale_factor": 0.5, "_FillValue": -1, "units": "K"}
KEYS: list[Any] = [..., 0, (2, 3), (slice(None), slice(1, 3)), slice(0, 0), ([2, 0], slice(None))]


@pytest.mark.parametrize("meant", MEANINGS.values(), ids=MEANINGS)
async def test_values_and_dtypes_are_those_of_xarray(api: Api, meant: Meant, tmp_path: Path):
    meant.create(tmp_path)
    array = await api(api.open_array(tmp_path, path="v", decode=True))
    want = meant.values
    assert array.dtype == ("M8" if want.dtype.kind == "M" else want.dtype) or meant is MEANINGS["valid range"]
    for key in KEYS:
        values = await api(array[key])
        expected = want[key]
        if want.dtype.kind == "O":  # where None is missing
            missing = np.equal(expected, None) | (np.asarray(expected) != np.asarray(expected))
            assert np.array_equal(np.where(missing, None, expected), np.where(np.equal(values, None), None, values))
        else:
            np.testing.assert_array_equal(values, expected)
        assert np.shape(values) == np.shape(expected)
        assert np.asarray(values).dtype == array.dtype or array.dtype.kind in "mM"
    assert isinstance(await api(array[0, 0]), array.dtype.type) or want.dtype.kind == "O"


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_requests_are_those_of_stored_numbers(api: Api, kind: str, tmp_path: Path):
    store = CountingStore(MemoryStore() if kind == "memory" else LocalStore(tmp_path))
    array = await api(
        api.create_array(store, shape=(40, 40), dtype="i2", chunks=(5, 5), shards=(20, 20), attributes=PACKED)
    )
    await api.write(array, ..., np.arange(1600).reshape(40, 40))
    store.reset()
    array = await api(api.open_array(store))
    opening = store.reset()
    decoded = await api(api.open_array(store, decode=True))
    assert store.reset() == opening
    for key in [(3, 3), (slice(0, 25), slice(0, 3)), ([3, 30], slice(None)), ...]:
        counts = []
        for source in (array, decoded):
            await api(source.view[key].read())
            counts.append(store.reset())
        assert counts[0] == counts[1]
        assert counts[0].requests > 0
        plain, shown = array.view[key].explain(), decoded.view[key].explain()
        assert (plain.requests, plain.decoded_bytes, plain.share_text) == (
            shown.requests,
            shown.decoded_bytes,
            shown.share_text,
        )
        assert shown.result_bytes == 4 * plain.result_bytes
        assert "float64 from int16" in str(shown)


async def test_selections_compose_stream_and_fill_arrays(api: Api):
    numbers = np.arange(24, dtype="i2").reshape(4, 6) - 1
    array = await api(api.create_array({}, data=numbers, chunks=(2, 6), attributes=PACKED))
    want = np.where(numbers == -1, np.nan, numbers / 2)
    decoded = array.decoded
    np.testing.assert_array_equal(
        await api(decoded.view[1:][:, ::2].oindex[[0, 2], 1].read()), want[1:, ::2][[0, 2], 1]
    )
    out = np.empty((4, 6))
    assert await api(decoded.view.read(out=out)) is out
    np.testing.assert_array_equal(out, want)
    for wrong in (np.empty((4, 6), "f4"), np.empty((4, 5)), np.empty((4, 6), "i2")):
        with pytest.raises(ShapeError, match="decoded values"):
            await api(decoded.view.read(out=wrong))
    blocks = decoded.view.chunks()
    pairs = [pair async for pair in blocks] if api.name == "async" else list(blocks)
    assert [block.dtype for _, block in pairs] == [np.dtype("f8")] * 2
    np.testing.assert_array_equal(np.concatenate([block for _, block in pairs]), want)


async def test_options(api: Api):
    attributes = {"_FillValue": -1, "flag_values": [0, 1, 2], "flag_meanings": "sea land ice"}
    array = await api(api.create_array({}, data=np.array([[0, -1], [2, 7]], "i1"), attributes=attributes))
    decoded = array.decoded.with_options(masked=True)
    masked = await api(decoded[...])
    assert (masked.dtype, decoded.dtype) == ("i1", "i1")
    assert masked.tolist() == [[0, None], [2, 7]]
    names = array.decoded.with_options(flag_names=True)
    assert (await api(names[...])).tolist() == [["sea", ""], ["ice", "7"]]
    assert (await api(names[0, 0])) == "sea"
    with pytest.raises(TypeError, match="masked array"):
        await api(decoded.view.read(out=np.empty((2, 2), "i1")))
    out = np.ma.empty((2, 2), "i1")
    assert (await api(decoded.view.read(out=out))).tolist() == [[0, None], [2, 7]]
    bits = {"flag_masks": [1, 2], "flag_meanings": "cloud snow"}
    array = await api(api.create_array({}, data=np.arange(4, dtype="u1"), attributes=bits))
    assert (await api(array.decoded.with_options(flag_names=True)[:])).tolist() == ["", "cloud", "snow", "cloud snow"]
    array = await api(api.create_array({}, data=np.arange(4), attributes={"units": "m"}))
    with pytest.raises(CodecError, match="flag_meanings"):
        array.decoded.with_options(flag_names=True)


async def test_written_values_are_encoded(api: Api):
    array = await api(api.create_array({}, shape=(3,), dtype="i2", attributes=PACKED))
    await api.write(array.decoded, slice(0, 2), [0.5, np.nan])
    await api.write(array.decoded, 2, np.ma.masked_array([4.0], [True]))
    assert (await api(array[:])).tolist() == [1, -1, -1]
    with pytest.raises(EncodingError, match=r"the value 1000000\.0"):
        await api.write(array.decoded, 0, 1e6)
    assert (await api(array[:])).tolist() == [1, -1, -1]
    integers = await api(api.create_array({}, shape=(2,), dtype="i8", attributes={"_FillValue": -1}))
    await api.write(integers.decoded, ..., np.ma.masked_array([2**53 + 1, 0], [False, True]))
    assert (await api(integers[:])).tolist() == [2**53 + 1, -1]
    with pytest.raises(EncodingError, match=f"the integer {2**53 + 1} cannot be decoded to float64"):
        await api(integers.decoded[:])
    times = await api(api.create_array({}, shape=(2,), dtype="i4", attributes={"units": "hours since 2000-01-01"}))
    await api.write(times.decoded, ..., np.array(["2000-01-02", "2000-01-01T01"], "M8[s]"))
    assert (await api(times[:])).tolist() == [24, 1]
    out = np.empty(2, "M8[h]")
    await api(times.decoded.view.read(out=out))
    assert out.tolist() == np.array(["2000-01-02", "2000-01-01T01"], "M8[h]").tolist()
    with pytest.raises(ShapeError, match="not exact"):
        await api(times.decoded.view.read(out=np.empty(2, "M8[D]")))


async def test_attributes_that_change(api: Api):
    array = await api(api.create_array({}, data=np.array([2, 4], "i2"), attributes=PACKED))
    decoded = array.decoded
    assert (await api(decoded[:])).tolist() == [1, 2]
    await api(array.update_attributes({"scale_factor": 2.0}))
    assert (await api(decoded[:])).tolist() == [4, 8]
    assert array.decoded[:] is not None
    assert "dtype=float64 from int16 unit='K'" in repr(decoded)
    assert decoded.info["Values"] == "float64, in K"
    assert "float64, in K" in decoded._repr_html_()


async def test_bounds_inherit_the_units_of_times(api: Api):
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    units = {"units": "days since 2000-01-01", "bounds": "time_bnds"}
    root.create_array("time", data=np.arange(2), attributes=units, dimension_names=("time",))
    root.create_array("time_bnds", data=np.array([[0, 1], [1, 2]]), dimension_names=("time", "bnds"))
    want = np.array([["2000-01-01", "2000-01-02"], ["2000-01-02", "2000-01-03"]], "M8[D]")
    bounds = await api(api.open_array(store, path="time_bnds", decode=True))
    np.testing.assert_array_equal(await api(bounds[...]), want)
    restored = pickle.loads(pickle.dumps(bounds))
    np.testing.assert_array_equal(await api(restored[...]), want)
    sync.consolidate_metadata(store)
    array = await api((await api(api.open_group(store))).get("time_bnds"))
    np.testing.assert_array_equal(await api(array.decoded[...]), want)


async def test_limits_apply_to_values(api: Api):
    array = await api(api.create_array({}, data=np.arange(8, dtype="i2"), attributes=PACKED))
    array = await api(api.open_array(array.store, config={"max_read_bytes": 32}, decode=True))
    assert len(await api(array[:4])) == 4
    with pytest.raises(SelectionError, match="40 bytes"):
        await api(array.view[:5].read())


def test_jobs_take_decoded_values(tmp_path: Path):
    array = sync.create_array({}, data=np.arange(6, dtype="i2"), chunks=(2,), attributes=PACKED)
    for source in (array.decoded, array.decoded.async_, array.decoded.view):
        sync.ingest(source, tmp_path / "a", mode="w")
        np.testing.assert_array_equal(sync.load(tmp_path / "a"), array.decoded[:])
    copy: Any = sync.create_array({}, data=array.decoded)
    assert (copy.dtype, copy[2]) == ("f8", 1.0)
