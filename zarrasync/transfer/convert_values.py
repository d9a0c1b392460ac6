"""Conversion of values to the array's data type before they are stored. Long conversions run on a worker thread."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync.codecs.spec import Array
from zarrasync.errors import CodecError, ShapeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.dtypes import BYTES, OBJECT, DataType

_LONG = 1 << 20
"""Bytes of values whose conversion would block an event loop for too long."""
_CAST_TOGETHER = 1 << 24
"""Bytes of numbers up to which they are cast together, so that the compiled kernel can write them; others chunk by chunk."""
_NUMBER_KINDS = "biufc"
_BYTES_TYPES = (bytes, bytearray, memoryview)
_TIME_TYPES = (str, type(None), dt.date, dt.timedelta, np.datetime64)
_PANDAS_MISSING = ("NAType", "NaTType")
_FINE_UNITS = ("ms", "us", "ns", "ps", "fs", "as")
"""Units in which an int64 cannot hold all times of Python's ``datetime``."""
_LONGEST_DAYS = 106_751_991
"""Days above which NumPy silently converts a duration to a wrong one."""
T = TypeVar("T")


async def run_conversion(
    convert: Callable[[], T],
    values: npt.ArrayLike,
    dtype: np.dtype[Any],
    *,
    casts_numbers: bool = False,
    computes: bool = False,
) -> T:
    """Return the result of a conversion to a dtype. A long conversion runs on a worker thread.

    Objects that convert themselves to arrays may read them with synchronous calls. They do so on a new thread.

    Args:
        convert: The conversion.
        values: The values to convert.
        dtype: The dtype.
        casts_numbers: Whether it also casts numbers, as ``fit`` does.
        computes: Whether it computes with the values, which takes longer than a cast.
    """
    if not isinstance(values, np.ndarray):
        is_foreign = hasattr(values, "__array__") and not isinstance(values, np.generic)
        return await run_in_new_thread(convert) if is_foreign else convert()
    if max(values.nbytes, values.size * dtype.itemsize) < (_LONG >> 4 if computes else _LONG):
        return convert()
    casts = _needs_cast(values, dtype) and (casts_numbers or not _are_numbers(values.dtype, dtype))
    return await compute(convert) if computes or casts or isinstance(values, np.ma.MaskedArray) else convert()


def as_storable(values: npt.ArrayLike, metadata: ArrayMetadata) -> Array:
    """Convert values to the shape and data type of an array.

    Raises:
        ShapeError: If they do not broadcast to its shape.
        CodecError: If they cannot be stored as its data type.
    """
    return fit(values, metadata.shape, metadata.dtype.numpy, metadata.spec.fill_value, metadata.dtype)


def fit(values: npt.ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any, data_type: DataType) -> Array:
    """Broadcast values to a shape, and convert them unless they can be cast chunk by chunk.

    Args:
        values: The values.
        shape: The shape of the selection that they are written to.
        dtype: The dtype of the selection, with only the written fields.
        fill: The value that replaces masked elements.
        data_type: The array's data type.

    Returns:
        A read-only view.

    Raises:
        ShapeError: If they do not broadcast to the shape.
        CodecError: If they cannot be stored.
    """
    if data_type == OBJECT and not shape and (isinstance(values, list | tuple) or getattr(values, "ndim", False)):
        return _element(values)
    array = as_array(values, dtype, fill)
    while array.ndim > len(shape) and array.shape[0] == 1:
        array = array[0, ...]  # NumPy's assignment drops leading axes of size 1, too
    if _needs_cast(array, dtype):
        array = cast(array, dtype)
    if data_type == BYTES:
        for value in array.reshape(-1).tolist():
            if not isinstance(value, _BYTES_TYPES):
                raise CodecError(f"{value!r} cannot be stored: it is not bytes", direction="encode")
    if array.shape == shape:
        array = array.view()
        array.flags.writeable = False  # like the result of broadcasting: no codec may change the caller's memory
        return array
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ShapeError(
            f"values of shape {array.shape} do not fit a selection of shape {shape}; pass values that broadcast to it",
            found=array.shape,
            wanted=shape,
        ) from None


def as_array(values: npt.ArrayLike, dtype: np.dtype[Any], fill: Any) -> Array:
    """Convert values to an array that can be cast to a dtype; masked elements become the fill value.

    Raises:
        CodecError: If they cannot be stored as that dtype.
    """
    try:
        if isinstance(values, np.ma.MaskedArray):
            return _filled(values, dtype, fill)
        return _CONVERTERS.get(dtype.kind, _from_any)(values, dtype)
    except CodecError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"{_shortened(values)} cannot be stored as {dtype}: {error}", direction="encode") from error


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast an array to another dtype.

    Raises:
        CodecError: If the dtype has no such values.
    """
    if array.dtype == dtype:
        return array
    try:
        with np.errstate(invalid="ignore"):
            result = array.astype(dtype, order="C")
        if dtype.kind == array.dtype.kind and dtype.kind in "mM" and _wraps_around(array, result):
            raise OverflowError("some values are out of range")
        if _has_no_room(array, dtype):
            raise ValueError("strings of length 0 have no room for characters")
    except (ValueError, TypeError, OverflowError) as error:
        text = f"values of {array.dtype} cannot be stored as {dtype}: {error}"
        raise CodecError(text, direction="encode") from error
    return result


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _NUMBER_KINDS or dtype.type.__module__ == "ml_dtypes"


def _needs_cast(values: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether an array is cast before it is written. Many numbers are cast chunk by chunk, which cannot fail."""
    if values.dtype == dtype:
        return False
    return not _are_numbers(values.dtype, dtype) or values.size * dtype.itemsize <= _CAST_TOGETHER


def _are_numbers(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    return _is_number(source) and _is_number(target)


def _wraps_around(times: Array, result: Array) -> bool:
    """Return whether times changed when cast to a finer unit; not every NumPy raises an error then."""
    return np.can_cast(times.dtype, result.dtype, "safe") and not np.array_equal(
        result.astype(times.dtype), times, equal_nan=True
    )


def _has_no_room(values: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether strings that are not empty would be stored as strings of length 0, in any field."""
    if dtype.names is not None:
        matching = values.dtype.names is not None and len(values.dtype.names) == len(dtype.names)
        pairs = zip(values.dtype.names or (), dtype.names, strict=True) if matching else ()
        return any(_has_no_room(values[source], dtype[target].base) for source, target in pairs)
    return dtype.kind in "US" and not dtype.itemsize and bool((values != np.zeros((), values.dtype)).any())


# ------------------------------------------------------------------ by kind of dtype


def _from_any(values: Any, dtype: np.dtype[Any]) -> Array:
    return np.asarray(values, None if hasattr(values, "dtype") else dtype)


def _from_objects(values: Any, dtype: np.dtype[Any]) -> Array:
    if isinstance(values, _BYTES_TYPES):
        return _element(bytes(values))
    return values if isinstance(values, np.ndarray) else np.array(values, object)


def _from_strings(values: Any, dtype: np.dtype[Any]) -> Array:
    """Convert strings of variable length. Other values, including missing ones, raise an error."""
    values = _with_missing_as_objects(values)
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind not in "OTU":
        raise TypeError("it is not a string; convert the values with values.astype(str)")
    return np.asarray(values, np.dtypes.StringDType(coerce=False) if kind == "O" else dtype)


def _from_fixed_strings(values: Any, dtype: np.dtype[Any]) -> Array:
    """Convert strings of fixed length. NumPy converts numbers to strings, as intended, but also missing values."""
    array = np.asarray(_with_missing_as_objects(values), None if hasattr(values, "dtype") else object)
    if array.dtype.kind != "O":
        return array
    elements = array.reshape(-1).tolist()
    if set(map(type, elements)) <= {str, bytes}:
        return np.asarray(values, dtype)
    for value in elements:
        if value is None or _is_nan(value) or type(value).__name__ in _PANDAS_MISSING:
            raise TypeError(f"{value!r} is not a string, and the data type has no missing value")
    return array


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _from_times(values: Any, dtype: np.dtype[Any]) -> Array:
    """Convert times. NumPy raises no error for strings and Python's times that are out of the range of a unit."""
    array = np.asarray(values)
    if array.dtype.kind in "mM" or (array.dtype.kind not in "TUSO" and hasattr(values, "dtype")):
        return array  # casting checks the range
    result = array.astype(dtype) if hasattr(values, "dtype") else np.asarray(values, dtype)
    if _are_times(array, dtype) and np.datetime_data(dtype)[0] in _FINE_UNITS:
        second = np.timedelta64(1, "s")
        seconds = array.astype(f"{dtype.kind}8[s]")
        if (np.abs(result.astype(seconds.dtype) - seconds) > second).any():
            raise OverflowError("some values are out of range")
    return result


def _are_times(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether values are times themselves, rather than numbers of units.

    Raises:
        OverflowError: If NumPy cannot represent one of them.
    """
    if array.dtype.kind != "O":
        return dtype.kind == "M"  # strings for durations are numbers
    elements = array.reshape(-1).tolist()
    if any(isinstance(value, dt.timedelta) and abs(value.days) >= _LONGEST_DAYS for value in elements):
        raise OverflowError("some values are out of range")
    return all(issubclass(kind, _TIME_TYPES) for kind in set(map(type, elements)))


_CONVERTERS: dict[str, Callable[[Any, np.dtype[Any]], Array]] = {
    "O": _from_objects,
    "T": _from_strings,
    "U": _from_fixed_strings,
    "S": _from_fixed_strings,
    "m": _from_times,
    "M": _from_times,
}


def _with_missing_as_objects(values: Any) -> Any:
    """Return strings with objects for missing ones, which NumPy would write as strings."""
    has_missing = isinstance(values, np.ndarray) and hasattr(values.dtype, "na_object")
    return values.astype(object) if has_missing else values


def _element(value: Any) -> Array:
    """Return an array of one object, whatever it is."""
    array = np.empty((), object)
    array[()] = value
    return array


def _filled(values: np.ma.MaskedArray[Any, Any], dtype: np.dtype[Any], fill: Any) -> Array:
    data, mask = np.ma.getdata(values), np.ma.getmaskarray(values)
    if mask.dtype.names is None and not (_is_number(data.dtype) and _is_number(dtype)):
        result = np.empty(data.shape, dtype)
        result[mask] = fill
        if not mask.all():
            result[~mask] = cast(as_array(data[~mask], dtype, fill), dtype)
        return result
    with np.errstate(all="ignore"):  # masked elements may be anything
        result = data.astype(dtype)
    _fill_masked(result, mask, fill)
    return result


def _fill_masked(array: Array, mask: npt.NDArray[Any], fill: Any) -> None:
    """Assign the fill value to masked elements; the mask has the fields of the array."""
    if mask.dtype.names is None:
        array[mask] = fill
        return
    for name in mask.dtype.names:
        _fill_masked(array[name], mask[name], fill[name])


def _shortened(values: Any) -> str:
    text = repr(values)
    return text if len(text) < 60 else f"{text[:50]}… ({type(values).__name__})"
