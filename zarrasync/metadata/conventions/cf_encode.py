"""Encoding by the conventions of CF: the stored numbers that stand for values, and refusals of values that have none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError, EncodingError
from zarrasync.metadata.conventions.cf_attributes import OFFSET, SCALE
from zarrasync.metadata.conventions.cf_encoding import EXACT, CFEncoding
from zarrasync.metadata.conventions.cf_times import are_dates, dates_to_numbers
from zarrasync.model.exact_numbers import changed_numbers

Lossy: TypeAlias = Literal["error", "warn", "allow"]
"""What to do with values that an encoding cannot represent."""
_NUMBERS = "biufc"


def encode(
    values: npt.ArrayLike,
    encoding: CFEncoding,
    *,
    variable: str = "",
    origin: Sequence[int] = (),
    lossy: Lossy = "error",
    exact: bool = False,
    hint: str = "choose another encoding",
) -> npt.NDArray[Any]:
    """Return the numbers that stand for values. Only rounding within half a step, or of floats, changes values.

    Arrays of times and of strings of fixed length are checked as well. Other values are returned as they are.

    Args:
        values: Numbers, times, durations, dates of cftime, or strings. NaN, NaT, ``None`` and masked ones are missing.
        encoding: What the numbers mean.
        variable: The name of the variable, for messages.
        origin: The indices of the first value, for messages; by default zeros.
        lossy: What to do with other values: ``"error"``, ``"warn"``, or ``"allow"`` to store other numbers for them. Whole
            numbers out of range lose their highest bits, as in casts of integers. Infinity in integers, and missing
            values without a number for them, become 0. Too large numbers become infinity in floating-point types.
            Numbers that stand for missing values are stored, and read as missing. Strings are cut, imaginary parts
            are left out, and times that are not exact are rounded to the units.
        exact: Whether numbers without a scale must be whole to be stored as integers.
        hint: What to do about an error, for its message.

    Raises:
        EncodingError: If the encoding cannot represent a value, or it would be read as a missing one.
    """
    encoding.check_meaning("encode")
    source, masked = np.asarray(values), np.ma.getmask(values)
    if source.dtype.kind in "mM" and masked is not np.ma.nomask:
        source = np.where(masked, np.array("NaT", source.dtype), source)
    report = _Report(encoding, variable, source, tuple(origin), lossy, hint)
    if encoding.dtype.kind not in _NUMBERS + "mM" and np.any(masked):
        raise report.type_error("values without a mask")
    if encoding.dtype.kind in "mM":
        return _encode_native_times(source, encoding, report)
    if encoding.dtype.kind in "SU":
        return _encode_strings(source, encoding, report)
    if encoding.dtype.kind not in _NUMBERS:
        return source
    missing = _missing_values(source) | masked
    numbers = _numbers_of(source, encoding, missing, report)
    packed = _packed(numbers, encoding)
    result = _cast(packed, numbers, encoding, missing, report, exact=exact)
    if encoding.is_packed and numbers.dtype.kind in "iu" and lossy != "allow":
        is_rounded = _is_rounded(numbers, packed, result, encoding)
        report.refuse(is_rounded & ~missing, "double precision, in which it is packed, does not represent it")
    marker = encoding.missing_number
    if marker is not None:
        result[missing] = marker
    else:
        report.refuse(
            missing, "it is missing, and the encoding does not specify _FillValue, the number for missing values"
        )
    report.refuse(encoding.is_marked(result) & ~missing, "its number stands for missing values")
    return result.view(encoding.dtype.newbyteorder("=")).astype(encoding.dtype, copy=False)


def _encode_native_times(values: npt.NDArray[Any], encoding: CFEncoding, report: _Report) -> npt.NDArray[Any]:
    if values.dtype.kind != encoding.dtype.kind:
        raise report.type_error(f"values of the data type {encoding.dtype}")
    result = values.astype(encoding.dtype)
    report.refuse((result.astype(values.dtype) != values) & ~np.isnat(values), f"it is not exact in {encoding.dtype}")
    return result


def _encode_strings(values: npt.NDArray[Any], encoding: CFEncoding, report: _Report) -> npt.NDArray[Any]:
    kind = encoding.dtype.kind
    if values.dtype.kind in "OT" and all(isinstance(value, str | bytes) for value in values.flat):
        values = values.astype(object)
    elif values.dtype.kind not in "SU":
        raise report.type_error("strings of a fixed length")
    if values.dtype.kind != kind:
        try:
            values = values.astype(kind) if values.size else np.empty(values.shape, encoding.dtype)
        except UnicodeError as error:
            raise EncodingError(f"{report.name}: {error}", variable=report.variable) from error
    result, most = values.astype(encoding.dtype), encoding.dtype.itemsize // (4 if kind == "U" else 1)
    report.refuse(np.asarray(result != values), f"strings have at most {most} character{'' if most == 1 else 's'}")
    return result


def _numbers_of(
    values: npt.NDArray[Any], encoding: CFEncoding, missing: npt.NDArray[np.bool_], report: _Report
) -> npt.NDArray[Any]:
    """Return times as numbers in the units of the encoding, and numbers as they are."""
    if not are_dates(values) and not (encoding.times is not None and missing.all()):
        if values.dtype.kind not in _NUMBERS or encoding.times is not None:
            raise report.type_error("numbers" if encoding.times is None else f"times in {encoding.times.units!r}")
        return values
    if encoding.times is None:
        raise report.type_error("numbers without units of times")
    try:
        present = dates_to_numbers(values[~missing], encoding.times) if not missing.all() else np.zeros(0, np.int64)
    except CodecError as error:
        raise EncodingError(f"{report.name}: {error}", variable=report.variable) from error
    numbers = np.zeros(values.shape, present.dtype)
    numbers[~missing] = present
    if encoding.number_dtype.kind in "iu" and not encoding.is_packed:
        report.refuse(numbers != np.rint(numbers), f"it is not a whole number of {encoding.times.units!r}")
    return numbers


def _packed(numbers: npt.NDArray[Any], encoding: CFEncoding) -> npt.NDArray[Any]:
    """Return numbers without offset and scale, in double precision."""
    if not encoding.is_packed:
        return numbers
    packed = numbers.astype("c16" if numbers.dtype.kind == "c" else "f8")
    with np.errstate(all="ignore"):
        if encoding.offset is not None:
            packed -= encoding.offset
        if encoding.scale is not None:
            packed /= encoding.scale
    return packed


def _is_rounded(
    integers: npt.NDArray[Any], packed: npt.NDArray[Any], numbers: npt.NDArray[Any], encoding: CFEncoding
) -> npt.NDArray[np.bool_]:
    """Return which integers are packed to numbers whose values differ by more than half a step."""
    near, result = integers.astype("f8"), np.zeros(integers.shape, np.bool_)
    where = (np.abs(near) >= EXACT) | (np.abs(packed) >= EXACT)
    step = 1.0 if encoding.scale is None else encoding.scale
    with np.errstate(all="ignore"):
        values = numbers[where].astype("f8") * step + (encoding.offset or 0)
    pairs = zip(integers[where].tolist(), near[where].tolist(), strict=True)
    rest = np.array([exact - int(rounded) for exact, rounded in pairs], "f8")
    result[where] = np.abs(values - near[where] - rest) > abs(step) / 2
    return result


def _cast(
    packed: npt.NDArray[Any],
    numbers: npt.NDArray[Any],
    encoding: CFEncoding,
    missing: npt.NDArray[np.bool_],
    report: _Report,
    *,
    exact: bool,
) -> npt.NDArray[Any]:
    """Return numbers in the data type of the encoding, still without those for missing values."""
    dtype = encoding.number_dtype.newbyteorder("=")
    if packed.dtype.kind == "b":  # which NumPy does not compare with the limits of 64-bit integers
        packed = packed.astype(np.uint8)
    if packed.dtype.kind == "c" != dtype.kind:
        report.refuse((np.imag(packed) != 0) & ~missing, f"it is complex, and the stored numbers are {dtype}")
        packed = np.real(packed)
    if dtype.kind in "fc":
        with np.errstate(all="ignore"):
            result = packed.astype(dtype)
        lost = np.isfinite(numbers) & ~np.isfinite(result)
        report.refuse(lost & ~missing, f"the largest number of {dtype} is {np.finfo(dtype).max}")
        if numbers.dtype.kind in "iu" and not encoding.is_packed and encoding.times is None:
            report.refuse(changed_numbers(numbers, result) & ~missing & ~lost, f"{dtype} does not represent it exactly")
        return result
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    rounded = np.rint(packed) if packed.dtype.kind == "f" else packed
    if packed.dtype.kind == "f":  # floats cannot represent the largest 64-bit integers, but the number after them
        fits = (rounded >= float(low)) & (rounded < float(high + 1))
    else:
        fits = (rounded >= low) & (rounded <= high)
    if dtype.kind == "b" or (exact and not encoding.is_packed):
        fits &= rounded == packed
    report.refuse(~fits & ~missing, f"{dtype} {_limits(encoding, low, high, exact=exact)}", packed)
    # What a cast of floats out of range returns depends on the processor.
    safe = np.where(missing, np.zeros((), rounded.dtype), rounded)
    lost = ~fits & ~missing
    if dtype.kind in "iu" and safe.dtype.kind == "f" and lost.any():
        result = np.where(lost, 0, safe).astype(dtype)
        result[lost] = _wrapped(safe[lost], dtype)
        return np.asarray(result)
    return np.asarray(safe.astype(dtype))


def _limits(encoding: CFEncoding, low: int, high: int, *, exact: bool) -> str:
    text = f"represents {'whole numbers' if exact and not encoding.is_packed else 'numbers'} from {low:,} to {high:,}"
    scaling = [
        f"{key} {value}" for key, value in ((SCALE, encoding.scale), (OFFSET, encoding.offset)) if value is not None
    ]
    return f"{text}, with {' and '.join(scaling)}" if scaling else text


@dataclass(frozen=True)
class _Report:
    """Reports values that an encoding cannot represent."""

    encoding: CFEncoding
    variable: str
    values: npt.NDArray[Any]
    origin: tuple[int, ...]
    lossy: Lossy
    hint: str

    @property
    def name(self) -> str:
        """The name of the variable, for messages."""
        return repr(self.variable) if self.variable else "the variable"

    def type_error(self, expected: str) -> EncodingError:
        """Return the error for values of another kind."""
        kind = "dates" if are_dates(self.values) else f"values of the data type {self.values.dtype}"
        return EncodingError(f"{self.name} contains {kind}, but {expected} are stored", variable=self.variable)

    def refuse(self, wrong: npt.NDArray[np.bool_], reason: str, packed: npt.NDArray[Any] | None = None) -> None:
        """Raise an error or warn if some values are wrong."""
        if self.lossy == "allow" or not wrong.any():
            return
        place = tuple(int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        index = tuple(at + start for at, start in zip(place, self.origin or (0,) * len(place), strict=True))
        value = self.values[place]
        is_date = are_dates(self.values)
        value = value if is_date or not isinstance(value, np.generic) else value.item()
        is_scaled = packed is not None and self.encoding.is_packed
        number = f", the number {packed[place]:g}," if packed is not None and is_scaled else ""
        at = f" at index {', '.join(map(str, index))}" if index else ""
        shown = str(value) if is_date else repr(value)
        text = (
            f"the value {shown}{number}{at} of {self.name} cannot be stored: {reason}; "
            f"{int(wrong.sum()):,} of {wrong.size:,} values are affected; {self.hint}"
        )
        if self.lossy == "error":
            raise EncodingError(text, variable=self.variable, index=index, value=value)
        warnings.warn(text, UserWarning, stacklevel=2)


def _wrapped(numbers: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return whole numbers out of the range of a data type as the casts of integers do: without their highest bits."""
    most = 2.0**64
    numbers = np.fmod(np.where(np.isfinite(numbers), numbers, 0.0).astype("f8"), most)
    numbers = np.where(numbers >= most / 2, numbers - most, np.where(numbers < -most / 2, numbers + most, numbers))
    return numbers.astype("i8").astype(dtype)


def _missing_values(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    kind = values.dtype.kind
    if kind in "mM":
        return np.asarray(np.isnat(values))
    if kind in "fc":
        return np.asarray(np.isnan(values))
    if kind == "O":
        return np.array([value is None or value != value for value in values.flat], np.bool_).reshape(values.shape)
    return np.zeros(values.shape, np.bool_)
