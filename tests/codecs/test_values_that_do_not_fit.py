"""Values that a data type or a filter cannot store raise an error instead of changing without notice."""

from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.api import Api
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
