"""Values made fit for an array before anything of them is stored. Pure, but for the thread that long work is done on."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.offload import compute
from zarrasync.codecs.spec import Array
from zarrasync.errors import ChecksumError, CodecError, ShapeError
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.dtypes import BYTES, OBJECT, DataType

__all__ = ["as_array", "beside", "cast", "check_kept", "fit", "storable"]

_LONG = 1 << 20
"""Bytes of values that take an event loop's time to cast."""
_NUMBERS = "biufc"
_BYTES = (bytes, bytearray, memoryview)
_TIMES = (str, type(None), dt.date, dt.timedelta, np.datetime64)
_PANDAS = ("NAType", "NaTType")
_FINE = ("ms", "us", "ns", "ps", "fs", "as")
"""Units of which an int64 does not hold all of Python's times."""
_LONGEST = 106_751_991
"""Days from which on NumPy takes durations for others."""
T = TypeVar("T")


async def beside(work: Callable[[], T], values: npt.ArrayLike, dtype: np.dtype[Any]) -> T:
    """What becomes of values that are made fit for a data type: on another thread than an event loop's, if that takes long."""
    masked = isinstance(values, np.ma.MaskedArray)
    if not isinstance(values, np.ndarray) or values.nbytes < _LONG or not (masked or _is_cast(values.dtype, dtype)):
        return work()

    return await compute(work)


def storable(values: npt.ArrayLike, metadata: ArrayMetadata) -> Array:
    """Values as an array of some metadata can hold them, so that nothing about them can be wrong later.

    Raises:
        ShapeError: If they do not broadcast to its shape.
        CodecError: If they can not be stored as its data type.
    """
    return fit(values, metadata.shape, metadata.dtype.numpy, metadata.spec.fill_value, metadata.dtype)


def fit(values: npt.ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Any, data_type: DataType) -> Array:
    """Values of a shape, which can be cast chunk by chunk; a view that can not be written to.

    Args:
        values: The values.
        shape: The shape that they are broadcast to.
        dtype: What they are to be, of the fields that are written alone.
        fill: What masked elements become.
        data_type: The array's data type.

    Raises:
        ShapeError: If they do not broadcast to the shape.
        CodecError: If they can not be stored.
    """
    if data_type == OBJECT and not shape and (isinstance(values, list | tuple) or getattr(values, "ndim", False)):
        return _element(values)
    given = as_array(values, dtype, fill)
    while given.ndim > len(shape) and given.shape[0] == 1:
        given = given[0, ...]  # NumPy's assignment drops leading axes of size 1, too
    if _is_cast(given.dtype, dtype):
        given = cast(given, dtype)
    if data_type == BYTES:
        for value in given.reshape(-1).tolist():
            if not isinstance(value, _BYTES):
                raise CodecError(f"{value!r} can not be stored: it is not bytes", direction="encode")
    if given.shape == shape:
        given = given.view()
        given.flags.writeable = False  # as NumPy makes what it broadcasts: no codec works in the caller's memory
        return given
    try:
        return np.broadcast_to(given, shape)
    except ValueError:
        raise ShapeError(
            f"values of shape {given.shape} do not fit a selection of shape {shape}", found=given.shape, wanted=shape
        ) from None


def as_array(values: npt.ArrayLike, dtype: np.dtype[Any], fill: Any) -> Array:
    """Values as an array that can be cast to a data type; masked elements become the fill value.

    Raises:
        CodecError: If they can not be stored as that type.
    """
    try:
        if isinstance(values, np.ma.MaskedArray):
            return _filled(values, dtype, fill)
        return _READERS.get(dtype.kind, _any)(values, dtype)
    except CodecError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"{_shown(values)} can not be stored as {dtype}: {error}", direction="encode") from error


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array as one of another data type.

    Raises:
        CodecError: If that has no such values.
    """
    if array.dtype == dtype:
        return array
    try:
        with np.errstate(invalid="ignore"):
            found = array.astype(dtype, order="C")
        if dtype.kind == array.dtype.kind and dtype.kind in "mM" and _has_wrapped(array, found):
            raise OverflowError("some are beyond its range")
    except (ValueError, TypeError, OverflowError) as error:
        text = f"values of {array.dtype} can not be stored as {dtype}: {error}"
        raise CodecError(text, direction="encode") from error
    return found


def check_kept(values: Any, found: Array) -> None:
    """Complain about values that a cast has changed, but for rounded floating-point numbers.

    Args:
        values: What was cast; looked at if it is an array of numbers, times or text.
        found: What has become of it.

    Raises:
        ChecksumError: If it is something else; says what.
    """
    known = isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray)
    if not known or values.dtype == found.dtype or {values.dtype.kind, found.dtype.kind} - set("biufcmMSU"):
        return
    with np.errstate(all="ignore"):
        if values.dtype.kind in "fc" and found.dtype.kind in "fc":
            changed = np.isfinite(values) & ~np.isfinite(found)
            if found.dtype.kind == "f":
                changed |= np.imag(values) != 0
        else:
            changed = (found.astype(values.dtype) != values) & ~(_nowhere(values) & _nowhere(found))
    if changed.any():
        first = tuple(np.argwhere(changed)[0].tolist())
        raise ChecksumError(
            f"{int(changed.sum()):,} of {changed.size:,} values change when they are stored as {found.dtype}: "
            f"{values[first]!r} becomes {found[first]!r}",
            direction="encode",
        )


def _nowhere(values: Array) -> Any:
    """Which of some values are not a time."""
    return np.isnat(values) if values.dtype.kind in "mM" else np.False_


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _NUMBERS or dtype.type.__module__ == "ml_dtypes"


def _is_cast(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether an array is cast before it is written. Numbers are chunk by chunk, which can not fail."""
    return found != wanted and not (_is_number(found) and _is_number(wanted))


def _has_wrapped(times: Array, found: Array) -> bool:
    """Whether times of a finer unit are others than they were; not every NumPy says so."""
    return np.can_cast(times.dtype, found.dtype, "safe") and not np.array_equal(
        found.astype(times.dtype), times, equal_nan=True
    )


# ------------------------------------------------------------------ by kinds of data types


def _any(values: Any, dtype: np.dtype[Any]) -> Array:
    return np.asarray(values, None if hasattr(values, "dtype") else dtype)


def _objects(values: Any, dtype: np.dtype[Any]) -> Array:
    if isinstance(values, _BYTES):
        return _element(bytes(values))
    return values if isinstance(values, np.ndarray) else np.array(values, object)


def _text(values: Any, dtype: np.dtype[Any]) -> Array:
    """Text is never made of what is none, nor is it spelt out that there is none."""
    values = _with_missing(values)
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind not in "OTU":
        raise TypeError("it is not text; values.astype(str) makes text of it")
    return np.asarray(values, np.dtypes.StringDType(coerce=False) if kind == "O" else dtype)


def _sized_text(values: Any, dtype: np.dtype[Any]) -> Array:
    """NumPy spells out numbers, which is as well, and what is missing."""
    given = np.asarray(_with_missing(values), None if hasattr(values, "dtype") else object)
    if given.dtype.kind != "O":
        return given
    found = given.reshape(-1).tolist()
    if set(map(type, found)) <= {str, bytes}:
        return np.asarray(values, dtype)
    for value in found:
        if value is None or _is_nan(value) or type(value).__name__ in _PANDAS:
            raise TypeError(f"{value!r} is no text, and there is no way to say that some is missing")
    return given


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _times(values: Any, dtype: np.dtype[Any]) -> Array:
    """Texts and Python's own times may be beyond the range of a unit, which NumPy does not say."""
    given = np.asarray(values)
    if given.dtype.kind in "mM" or (given.dtype.kind not in "TUSO" and hasattr(values, "dtype")):
        return given  # what does not fit is told when it is cast
    found = given.astype(dtype) if hasattr(values, "dtype") else np.asarray(values, dtype)
    if _tells_units(given, dtype) and np.datetime_data(dtype)[0] in _FINE:
        second = np.timedelta64(1, "s")
        seconds = given.astype(f"{dtype.kind}8[s]")
        if (np.abs(found.astype(seconds.dtype) - seconds) > second).any():
            raise OverflowError("some are beyond its range")
    return found


def _tells_units(given: Array, dtype: np.dtype[Any]) -> bool:
    """Whether values are times by themselves, and not numbers of units.

    Raises:
        OverflowError: If NumPy does not know how long one is.
    """
    if given.dtype.kind != "O":
        return dtype.kind == "M"  # texts of durations are numbers
    found = given.reshape(-1).tolist()
    if any(isinstance(value, dt.timedelta) and abs(value.days) >= _LONGEST for value in found):
        raise OverflowError("some are beyond its range")
    return all(issubclass(kind, _TIMES) for kind in set(map(type, found)))


_READERS: dict[str, Callable[[Any, np.dtype[Any]], Array]] = {
    "O": _objects,
    "T": _text,
    "U": _sized_text,
    "S": _sized_text,
    "m": _times,
    "M": _times,
}


def _with_missing(values: Any) -> Any:
    """Text with objects for what is missing, which NumPy would spell out."""
    missing = isinstance(values, np.ndarray) and hasattr(values.dtype, "na_object")
    return values.astype(object) if missing else values


def _element(value: Any) -> Array:
    """An array of one object, whatever it is."""
    array = np.empty((), object)
    array[()] = value
    return array


def _filled(values: np.ma.MaskedArray[Any, Any], dtype: np.dtype[Any], fill: Any) -> Array:
    data, mask = np.ma.getdata(values), np.ma.getmaskarray(values)
    if mask.dtype.names is None and not (_is_number(data.dtype) and _is_number(dtype)):
        given = np.empty(data.shape, dtype)
        given[mask] = fill
        if not mask.all():
            given[~mask] = cast(as_array(data[~mask], dtype, fill), dtype)
        return given
    with np.errstate(all="ignore"):  # what lies under the mask may be anything
        given = data.astype(dtype)
    _fill_masked(given, mask, fill)
    return given


def _fill_masked(array: Array, mask: npt.NDArray[Any], fill: Any) -> None:
    """Put the fill value where a mask says so, which has fields as the array has."""
    if mask.dtype.names is None:
        array[mask] = fill
        return
    for name in mask.dtype.names:
        _fill_masked(array[name], mask[name], fill[name])


def _shown(values: Any) -> str:
    text = repr(values)
    return text if len(text) < 60 else f"{text[:50]}… ({type(values).__name__})"
