"""Values that a data type or a filter cannot store raise an error instead of changing without notice."""

from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.api import Api
from zarrasync import sync
from zarrasync.codecs.numcodecs import find_loss, is_within_range, may_lose_values
from zarrasync.codecs.objects import _is_same
from zarrasync.errors import CodecError


async def written(api: Api, values: Any, **options: Any) -> Any:
    """Return values after writing them to an array of format 2 and reading them from it, opened again."""
    store: dict[str, bytes] = {}
    array = await api(api.create_array(store, shape=len(values), zarr_format=2, **options))
    elements = np.empty(len(values), options["dtype"])
    elements[:] = values
    await api.write(array, ..., elements)
    return (await api((await api(api.open_array(store))).view.read())).tolist()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["U0", "S0"])
async def test_strings_of_length_zero_hold_no_characters(api: Api, dtype: str, zarr_format: int):
    array = await api(api.create_array({}, shape=3, dtype=dtype, zarr_format=zarr_format))
    for values in ("x", ["", "a", ""], np.array(["", "b", ""]), np.array(["", "c", ""], object)):
        with pytest.raises(CodecError, match="no room for characters"):
            await api.write(array, ..., values)
    await api.write(array, ..., ["", "", ""])
    assert not (await api(array.view.read())).astype(bool).any()


async def test_fields_of_length_zero_hold_no_characters(api: Api):
    dtype, wider = [("a", "U0"), ("b", "i4"), ("c", [("d", "S0")])], [("a", "U3"), ("b", "i4"), ("c", [("d", "S1")])]
    array = await api(api.create_array({}, shape=1, dtype=dtype))
    for values in ([("abc", 1, (b"",))], [("", 1, (b"e",))]):
        with pytest.raises(CodecError, match="no room for characters"):
            await api.write(array, ..., np.array(values, wider))
    await api.write(array, ..., np.array([("", 7, (b"",))], wider))
    assert (await api(array.view.read()))["b"].tolist() == [7]


SCALED = numcodecs.FixedScaleOffset(offset=0, scale=2, dtype="f8", astype="u1")


@pytest.mark.parametrize(
    ("codec", "dtype", "values", "refused"),
    [
        (SCALED, "f8", [0.5, 127.0], [0.5, 1e6]),
        (SCALED, "f8", [0.25], [np.nan]),  # 0.25 is rounded to the precision of the filter
        (numcodecs.AsType(encode_dtype="i2", decode_dtype="i4"), "i4", [-32768, 5], [40000]),
        (numcodecs.AsType(encode_dtype="f4", decode_dtype="f8"), "f8", [0.1, np.nan, np.inf], [1e300]),
        (numcodecs.Delta(dtype="i4", astype="i1"), "i4", [1, 100, 3], [0, 1000]),
        (numcodecs.Delta(dtype="i4"), "i4", [2**31 - 1, -(2**31)], None),
        (numcodecs.Quantize(digits=1, dtype="f8", astype="f4"), "f8", [0.123, np.nan], [1e300]),
    ],
    ids=lambda value: getattr(value, "codec_id", None),
)
async def test_filters_refuse_values_beyond_their_range(
    api: Api, codec: Any, dtype: str, values: list[float], refused: list[float] | None
):
    options: dict[str, Any] = {"dtype": dtype, "filters": [codec], "compressors": None}
    np.testing.assert_allclose(await written(api, values, **options), values, atol=0.26)
    if refused is not None:
        with pytest.raises(CodecError, match="would be read back as"):
            await written(api, refused, **options)


async def test_filters_of_format_3_refuse_values_beyond_their_range(api: Api):
    array = await api(api.create_array({}, shape=2, dtype="f8", filters=[SCALED]))
    await api.write(array, ..., [1.0, 2.5])
    with pytest.raises(CodecError, match=r"1000000.0 would be read back as 64.0"):
        await api.write(array, ..., [1.0, 1e6])
    assert (await api(array.view.read())).tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (numcodecs.Categorize(["a", "b"], dtype=object), ["a", "zz"]),
        (numcodecs.VLenArray("i1"), [np.array([300])]),
        (numcodecs.VLenArray("i8"), [np.array([1.5])]),
        (numcodecs.VLenArray(str), [np.array(["a", "bb"], object)]),
        (numcodecs.VLenArray(object), [np.array(["a", "bb"], object)]),
        (numcodecs.JSON(), [{1: "one"}]),
    ],
    ids=lambda value: getattr(value, "codec_id", None),
)
async def test_objects_that_would_change_are_refused(api: Api, codec: Any, values: list[Any]):
    with pytest.raises(CodecError, match="read back"):
        await written(api, values, dtype=object, filters=[codec])


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (numcodecs.Categorize(["a", "b"], dtype=object), ["a", "b"]),
        (numcodecs.VLenArray("i1"), [np.array([3, -3]), np.array([])]),
        (numcodecs.VLenArray("f4"), [np.array([1.5, np.nan], "f4")]),
        (numcodecs.JSON(), [{"a": [1, None, 2.5]}, "b", None, (1, 2)]),
        (numcodecs.MsgPack(), [{"a": [1, None, 2.5]}, "b", float("nan")]),
    ],
    ids=lambda value: getattr(value, "codec_id", None),
)
async def test_objects_round_trip(api: Api, codec: Any, values: list[Any]):
    read = await written(api, values, dtype=object, filters=[codec])
    for result, value in zip(read, values, strict=True):
        is_sequence = isinstance(value, tuple | np.ndarray)  # JSON has lists
        np.testing.assert_equal(list(result) if is_sequence else result, list(value) if is_sequence else value)


async def test_a_string_filter_declares_the_type_of_objects(api: Api):
    assert await written(api, ["a", "bcd"], dtype=object, filters=[numcodecs.VLenUTF8()]) == ["a", "bcd"]
    assert await written(api, [b"a", b"bcd"], dtype=object, filters=[numcodecs.VLenBytes()]) == [b"a", b"bcd"]


async def test_iterators_are_not_values(api: Api):
    for data in ((n for n in range(3)), {1, 2}, {1: 2}.values(), map(int, "12")):
        with pytest.raises(TypeError, match=r"pass list\(data\)"):
            await api(api.create_array({}, data=data))


FLOATS = ["f2", "f4", "f8"]
INTEGERS = ["i1", "u1", "i2", "u2", "i4", "i8", "u8"]


@st.composite
def filters_and_values(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    kind = draw(st.sampled_from(["astype", "delta", "fixedscaleoffset", "quantize"]))
    dtype = draw(st.sampled_from(INTEGERS if kind == "delta" else FLOATS if kind == "quantize" else FLOATS + INTEGERS))
    target = draw(st.sampled_from({"delta": INTEGERS, "quantize": FLOATS}.get(kind, FLOATS + INTEGERS)))
    config: dict[str, Any] = {"id": kind, "dtype": f"<{dtype}", "astype": f"<{target}"}
    if kind == "astype":
        config = {"id": kind, "decode_dtype": f"<{dtype}", "encode_dtype": f"<{target}"}
    elif kind == "fixedscaleoffset":
        config |= {
            "scale": draw(st.sampled_from([0.1, 1, 100, 1e6, -3])),
            "offset": draw(st.sampled_from([0, 280, 1e9])),
        }
    elif kind == "quantize":
        config |= {"digits": draw(st.integers(-2, 6))}
    element = hnp.from_dtype(np.dtype(dtype), allow_nan=True) | st.integers(-300, 300).map(
        lambda n: np.array(n).astype(dtype)[()]
    )
    return config, draw(hnp.arrays(dtype, st.integers(1, 6), elements=element))


@settings(max_examples=300)
@given(filters_and_values())
def test_values_within_the_range_are_kept(filter_and_values: tuple[dict[str, Any], Any]):
    config, values = filter_and_values
    if not may_lose_values(config) or not is_within_range(config, values):
        return
    codec = numcodecs.get_codec(dict(config))
    with np.errstate(all="ignore"):
        try:
            encoded = codec.encode(values)
        except OverflowError:  # which is raised before the values are compared
            return
        decoded = np.asarray(codec.decode(encoded)).view(values.dtype).reshape(-1)
    assert find_loss(config, values, decoded) == ""


@pytest.mark.parametrize(
    ("config", "values", "expected"),
    [
        (
            {"id": "fixedscaleoffset", "offset": 280, "scale": 100, "dtype": "<f4", "astype": "<i2"},
            [250.0, 310.0],
            True,
        ),
        (
            {"id": "fixedscaleoffset", "offset": 280, "scale": 100, "dtype": "<f4", "astype": "<i2"},
            [250.0, 700.0],
            False,
        ),
        ({"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<f4", "astype": "<i2"}, [1.0, np.nan], False),
        ({"id": "quantize", "digits": 2, "dtype": "<f4", "astype": "<f4"}, [1.5, -1e30], True),
        ({"id": "quantize", "digits": 2, "dtype": "<f4", "astype": "<f4"}, [1e37], False),
        ({"id": "astype", "encode_dtype": "<f2", "decode_dtype": "<f4"}, [0.0, -60000.0], True),
        ({"id": "astype", "encode_dtype": "<f2", "decode_dtype": "<f4"}, [1e-7], False),
        ({"id": "delta", "dtype": "<i8", "astype": "<i2"}, [-5, 30000], True),
        ({"id": "delta", "dtype": "<i8", "astype": "<i2"}, [-5, 32766], False),
    ],
)
def test_ranges(config: dict[str, Any], values: Any, expected: bool):
    dtype = config.get("decode_dtype") or config["dtype"]
    assert is_within_range(config, np.array(values, dtype)) is expected


def test_missing_elements_are_compared_with_values_of_any_kind():
    assert [_is_same(None, decoded) for decoded in (None, "", b"", [], np.empty(0))] == [True] * 5
    assert [_is_same(None, decoded) for decoded in (0, 5, "a", [None], {}, False)] == [False] * 6


def test_values_that_cannot_be_compared_are_refused():
    class Odd(list[int]):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not comparable")

        __hash__ = None

        def __len__(self) -> int:
            raise RuntimeError("no length")

    values = np.empty(1, object)
    values[0] = Odd([1])
    array = sync.create_array({}, shape=1, dtype=object, zarr_format=2, filters=[numcodecs.MsgPack()])
    with pytest.raises(CodecError, match="msgpack2"):
        array[...] = values
