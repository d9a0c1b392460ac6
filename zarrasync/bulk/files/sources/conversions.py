"""Values of files in the data type and the units of the dataset, without changing numbers silently. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync.errors import CodecError, ShapeError
from zarrasync.metadata.conventions.cf_attributes import MISSING_NUMBERS, OFFSET, SCALE, UNSIGNED, signed_dtype
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_times import TimeUnits, convert_numbers


def convert_values(values: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """Return values with another data type. Only the rounding of floating-point numbers may change them.

    Args:
        values: The values.
        dtype: The data type of the array. Strings become Python objects.
        name: The name of the variable and the file, for messages.

    Raises:
        CodecError: If a value would change, such as NaN or 70,000 in an array of 16-bit integers.
    """
    if dtype.kind in "OT":
        return values.astype(object)
    try:
        return transfer.cast(transfer.as_exact_array(values, dtype, None), dtype)  # safe casts as well
    except CodecError as error:
        raise _unfit(
            f"the values of {name} do not fit the data type {dtype} of the destination: {error}; the encoding of the "
            "variable specifies its data type"
        ) from error


def _unfit(message: str) -> CodecError:
    return CodecError(message, direction="encode")


def check_strings(name: str, values: npt.NDArray[Any] | None, url: str, dtype: np.dtype[Any]) -> None:
    """Check that strings of a file fit into an array with strings of a fixed length.

    Args:
        name: The name of the variable.
        values: Its values, as far as they are known.
        url: The file.
        dtype: The data type of the array.

    Raises:
        ShapeError: If one is too long.
    """
    if values is None or dtype.kind not in "SU" or values.dtype.kind not in "SUTO" or not values.size:
        return
    if values.dtype.kind == dtype.kind and values.dtype.itemsize <= dtype.itemsize:
        return
    if values.dtype.kind in "SU":
        longest = int(np.char.str_len(values).max())
    else:
        longest = max(len(value) if isinstance(value, str | bytes) else 0 for value in values.reshape(-1).tolist())
    stored, unit = (dtype.itemsize, "bytes") if dtype.kind == "S" else (dtype.itemsize // 4, "characters")
    if longest > stored:
        kind = dtype.kind
        raise ShapeError(
            f"{name!r} has a string of {longest} {unit} in {url}, but the array stores at most {stored} ({kind}{stored}); "
            f"shorten the strings of the file, or ingest all files into a new dataset with encoding={{{name!r}: {{'dtype': "
            f"'{kind}{longest}'}}}}, or 'str' for strings of any length"
        )


def with_sign(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return integers with the sign that the attribute for the sign gives them. Formats without such data types use it.

    Args:
        values: The stored values.
        attributes: The attributes of the variable.
    """
    dtype = signed_dtype(attributes, values.dtype)
    return values if dtype == values.dtype else values.view(dtype)


# ------------------------------------------------------------------ times


_FINER = ("hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_NAT = np.iinfo(np.int64).min
"""The 64-bit integer that stands for a missing time in NumPy and xarray."""
_PACKING = {SCALE: 1, OFFSET: 0, UNSIGNED: "false"}
"""Attributes that change the meaning of stored numbers, with the values that do not."""


def convert_times(
    values: npt.NDArray[Any],
    source: TimeUnits,
    target: TimeUnits,
    dtype: np.dtype[Any],
    name: str,
    attributes: Mapping[str, Any],
) -> npt.NDArray[Any]:
    """Return encoded times in other units. Missing times keep their number.

    Args:
        values: The encoded times.
        source: Their units.
        target: The units to convert to.
        dtype: The data type of the result.
        name: The name of the variable and the file, for messages.
        attributes: The attributes of the variable, which specify missing values and packing.

    Raises:
        CodecError: If the calendars differ for these times, the units of packed times differ, or a time is not exact in
            the units and the data type.
    """
    if source == target and values.dtype == dtype:
        return values
    missing = find_missing(values, attributes)
    known, encoded = values[~missing], values[~missing]
    if source != target and known.size:
        _check_unpacked(attributes, source, target, name)
        encoded = _encode(known, source, target, name)
    with np.errstate(invalid="ignore", over="ignore"):  # such numbers are found below
        converted = encoded.astype(dtype)
    _check_exact(converted, encoded, known, source, target, name)
    result = np.empty(values.shape, dtype)
    result[~missing] = converted
    result[missing] = _convert_missing(values[missing], dtype, name, attributes)
    if (hidden := find_missing(converted, attributes)).any():
        raise _unfit(
            f"the time {known[hidden][0]} {source.units} of {name} becomes {converted[hidden][0]} {target.units}, the number "
            "of missing values; convert the file to the units of the destination with another _FillValue"
        )
    return result


def find_missing(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Return which values are missing: NaN, NaT, and the numbers that the attributes specify."""
    numbers = {key: attributes[key] for key in MISSING_NUMBERS if key in attributes}
    missing = CFEncoding.from_attributes(numbers, values.dtype).is_missing(values)
    return missing | (values == _NAT) if values.dtype == np.int64 else missing


def _convert_missing(
    values: npt.NDArray[Any], dtype: np.dtype[Any], name: str, attributes: Mapping[str, Any]
) -> npt.NDArray[Any]:
    """Return the numbers of missing times in another data type."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = values.astype(dtype)
    if values.dtype == np.int64 and dtype.kind == "f":
        result[values == _NAT] = np.nan
    is_lost = ~find_missing(result, attributes)
    if values.dtype.kind == "f" and dtype.kind != "f":
        is_lost |= np.isnan(values)
    if is_lost.any():
        raise _unfit(
            f"{name} has a missing time, whose number {values[is_lost][0]} the data type {dtype} of the destination cannot "
            "represent; create the destination with the data type f8 in the encoding of the variable"
        )
    return result


def _check_unpacked(attributes: Mapping[str, Any], source: TimeUnits, target: TimeUnits, name: str) -> None:
    packed = [key for key, neutral in _PACKING.items() if attributes.get(key, neutral) != neutral]
    if packed:
        raise _unfit(
            f"the times of {name} are packed with {packed[0]} {attributes[packed[0]]!r}, and cannot be converted from "
            f"{source.units!r} to {target.units!r}; pass decode=True to unpack them, or convert the file first"
        )


def _encode(values: npt.NDArray[Any], source: TimeUnits, target: TimeUnits, name: str) -> npt.NDArray[Any]:
    """Return times in other units, in any data type."""
    try:
        return convert_numbers(values, source, target)
    except CodecError as error:
        raise _unfit(
            f"the times of {name} in {source.units!r} (calendar {source.calendar!r}) cannot be converted to "
            f"{target.units!r} (calendar {target.calendar!r}): {error}"
        ) from error


def _check_exact(
    converted: npt.NDArray[Any],
    encoded: npt.NDArray[Any],
    values: npt.NDArray[Any],
    source: TimeUnits,
    target: TimeUnits,
    name: str,
) -> None:
    """Check that a data type represents times.

    Args:
        converted: The times in the units and the data type of the destination.
        encoded: The times in these units.
        values: The times in the units and the data type of the file.
        source: The units of the file.
        target: The units of the destination.
        name: The name of the variable and the file, for messages.
    """
    dtype = converted.dtype
    if dtype.kind not in "iuf" or (dtype.kind == "f" and dtype.itemsize >= 8):
        return
    wrong = np.flatnonzero(converted != encoded)
    if dtype.kind == "f" and len(wrong):  # fractions are never exact, but must be as precise as in the file
        back = converted[wrong].astype("f8")
        if source != target:
            back = _encode(back, target, source, name)
        own = values[wrong]
        precision = np.spacing(np.abs(own)) if own.dtype.kind == "f" else 0
        wrong = wrong[np.abs(back - own.astype("f8")) > precision]
    if not len(wrong):
        return
    at = wrong[0]
    time = f"the time {values[at]} {source.units} of {name}"
    if dtype.kind != "f" and encoded[at] != np.floor(encoded[at]):
        finer = {"attributes": {"units": "seconds since …" if target.calendar else "seconds"}}
        raise _unfit(
            f"{time} is not a whole number of {target.units!r}, the units of the destination; create the destination with "
            f"finer units, with {finer} in the encoding of the variable, or with the data type f8"
        )
    raise _unfit(
        f"{time} is {encoded[at]} in {target.units!r}, the units of the destination, which its data type {dtype} cannot "
        "represent; create the destination with the data type f8 or i8 in the encoding of the variable"
    )


def common_units(
    parts: Sequence[tuple[npt.NDArray[Any], TimeUnits, Mapping[str, Any], str]], dtype: np.dtype[Any]
) -> TimeUnits:
    """Return units in which the times of all files are exact: the units of the first file, or finer ones.

    Args:
        parts: The encoded times of each file, their units, the attributes of the variable, and the name of both for messages.
        dtype: The data type to encode in.

    Raises:
        CodecError: If the calendars differ, or times are finer than nanoseconds.
    """
    first = parts[0][1]
    _, since, start = first.units.partition(" since ")
    candidates = [first, *(TimeUnits(f"{unit}{since}{start}", first.calendar) for unit in _FINER)]
    failure: CodecError | None = None
    for target in candidates:
        try:
            for values, units, attributes, name in parts:
                convert_times(values, units, target, dtype, name, attributes)
        except CodecError as error:
            failure = failure or error
        else:
            return target
    assert failure is not None
    raise failure
