"""Codecs of objects in format 2."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync._util.memory import BudgetExceeded
from zarrasync.codecs.objects import check_msgpack
from zarrasync.errors import CodecError, MetadataError, UnknownCodecError

ml_dtypes = pytest.importorskip("ml_dtypes")


async def test_objects_of_format_2(api: Api):
    import numcodecs
    from numcodecs.vlen import VLenArray

    ragged = np.empty(3, object)
    ragged[:] = [np.arange(2.0), np.arange(0.0), np.arange(3.0)]
    mixed = np.array([["a", 1], [None, {"x": [2]}]], object)
    kinds = [
        (numcodecs.JSON(), mixed),
        (VLenArray("f8"), ragged),
        (numcodecs.Pickle(), np.array([{1, 2}, (3,)], object)),
        (numcodecs.Categorize(["a", "b"], dtype=object), np.array(["a", "b", "a"], object)),
        (numcodecs.Categorize(["aé", "b"], dtype="U2"), np.array(["aé", "b", "b"])),
    ]
    pytest.importorskip("msgpack")
    from numcodecs.msgpacks import MsgPack

    kinds.append((MsgPack(), mixed))
    for codec, values in kinds:
        store: dict[str, bytes] = {}
        array = await api(
            api.create_array(store, shape=values.shape, dtype=values.dtype, zarr_format=2, filters=[codec])
        )
        await api.write(array, np.s_[...], values)
        if codec.codec_id == "pickle":
            with pytest.raises(MetadataError, match="allow_pickle"):
                await api(api.open_array(store))
        again = await api(api.open_array(store, config={"allow_pickle": True}))
        found = await api(again.get_basic_selection())
        assert [np.asarray(x).tolist() for x in found.ravel()] == [np.asarray(x).tolist() for x in values.ravel()]
        (key,) = [key for key in store if not key.startswith(".")]
        with pytest.raises(CodecError):
            store[key] = store[key][: len(store[key]) // 2]
            await api((await api(api.open_array(store, config={"allow_pickle": True}))).get_basic_selection())
    for dtype, codec, value in (
        (str, numcodecs.VLenUTF8(), "é"),
        (bytes, numcodecs.VLenBytes(), b"b"),
    ):  # another spelling
        array = await api(api.create_array({}, data=[value], dtype=dtype, zarr_format=2, filters=[codec]))
        assert (await api(array.get_basic_selection())).tolist() == [value]
        assert not array.filters
        with pytest.raises(UnknownCodecError, match="converts objects to bytes"):
            await api(api.create_array({}, shape=2, dtype="i4", zarr_format=2, filters=[codec]))
    with pytest.raises(MetadataError, match="does not define how elements are stored"):
        await api(api.create_array({}, shape=2, dtype=object, zarr_format=2))
    with pytest.raises(MetadataError, match="use str or bytes"):
        await api(api.create_array({}, shape=2, dtype=object))


def memory_of(value: Any) -> int:
    """Return the bytes that an object and those that it contains take."""
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(map(memory_of, inner))


@pytest.mark.parametrize(
    "value",
    [
        [list(range(10))] * 10,
        [list(range(1000, 1000 + length)) for length in (16, 70_000)],
        {f"key {number}": {"a": [], "b": {}} for number in range(500)},
        [dict.fromkeys(range(length), 1.5) for length in (15, 16, 70_000)],
        ["", "é" * 31, "ü" * 200, "漢" * 300, "🙂" * 70_000, b"", bytes(300), bytes(70_000), None, True, -1, 1 << 40],
    ],
    ids=["small arrays", "arrays", "maps", "large maps", "values"],
)
def test_the_memory_of_objects_is_bounded_before_they_are_decoded(value: Any):
    msgpack = pytest.importorskip("msgpack")
    data = msgpack.packb(value)
    nbytes = memory_of(msgpack.unpackb(data, strict_map_key=False))
    check_msgpack(data, 6 * nbytes)
    with pytest.raises(BudgetExceeded):
        check_msgpack(data, nbytes - 1)
