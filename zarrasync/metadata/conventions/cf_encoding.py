"""What stored numbers mean by the conventions of CF: missing values, sign, scale, flags and times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError, EncodingError
from zarrasync.metadata.conventions.cf_attributes import (
    MISSING_NUMBERS,
    OFFSET,
    SCALE,
    SCALING,
    VALID,
    inherited_attributes,
    numbers_with_sign,
    scalar_in,
    signed_dtype,
    unit_of,
    valid_range,
)
from zarrasync.metadata.conventions.cf_flags import Flags, flags_of
from zarrasync.metadata.conventions.cf_times import (
    TimeUnits,
    duration_units,
    numbers_to_dates,
    units_of,
)
from zarrasync.metadata.conventions.meaning import short

_NUMBERS = "biufc"
_DIRECTION = re.compile(r"(?<![a-z])direction(?![a-z])|(azimuth_angle|longitude)\b")
"""Standard names of angles that begin again after a full turn (CF standard name table)."""
_NAT = np.iinfo(np.int64).min
"""The 64-bit integer that stands for a missing time in NumPy and xarray."""
EXACT = 2**53
"""Smaller integers are exact in double precision."""


@dataclass(frozen=True)
class CFEncoding:
    """The meaning of the numbers of an array.

    Attributes:
        dtype: The data type of the stored numbers.
        number_dtype: The data type with their sign.
        missing: The numbers that stand for missing values, in ``number_dtype``. Missing values are written as the first.
        valid: The smallest and the largest valid number; ``None`` for no limit. Others are missing.
        scale: The factor from numbers to values; ``None`` without one.
        offset: The value of the number 0; ``None`` without one.
        unit: The unit of values; empty for times.
        times: The units of times or durations; ``None`` for other values.
        flags: The meanings of numbers or of bits; ``None`` without any.
        is_boolean: Whether integers stand for booleans.
        problem: Why the meaning is not known, so that numbers are neither decoded nor encoded; empty if it is.
        is_direction: Whether values are directions, such as wind directions: 359 and 1 degrees are neighbours.
    """

    dtype: np.dtype[Any]
    number_dtype: np.dtype[Any]
    missing: tuple[Any, ...] = ()
    valid: tuple[Any, Any] = (None, None)
    scale: Any = None
    offset: Any = None
    unit: str = ""
    times: TimeUnits | None = None
    flags: Flags | None = None
    is_boolean: bool = False
    is_direction: bool = False
    problem: str = ""

    @classmethod
    def from_attributes(
        cls,
        attributes: Mapping[str, Any],
        dtype: npt.DTypeLike,
        *,
        fill_value: Any = None,
        parent: Mapping[str, Any] | None = None,
    ) -> CFEncoding:
        """Return the meaning of numbers with attributes.

        Args:
            attributes: The attributes of the variable, as a file or a metadata document contains them.
            dtype: The data type of the stored numbers.
            fill_value: The fill value, in formats in which it means missing.
            parent: The attributes of the coordinate, if the variable contains its bounds.
        """
        stored = np.dtype(dtype)
        attributes = inherited_attributes(attributes, parent)
        number_dtype = signed_dtype(attributes, stored)
        if stored.kind not in _NUMBERS:
            return cls(stored, stored, unit=unit_of(attributes))
        given = [attributes.get(key) for key in MISSING_NUMBERS]
        given.append(fill_value)
        numbers = [
            number for value in given if value is not None for number in numbers_with_sign(value, stored, number_dtype)
        ]
        unique = {number.item(): number for number in reversed(numbers) if number == number}  # NaN
        times = units_of(attributes)
        if times is None and str(attributes.get("dtype")).startswith("timedelta64"):
            times = duration_units(attributes)
        scaling = [key for key in (SCALE, OFFSET) if attributes.get(key) is not None]
        wrong = [key for key in scaling if scalar_in(attributes[key]) is None]
        return cls(
            stored,
            number_dtype,
            missing=tuple(reversed(unique.values())),
            valid=valid_range(attributes, stored, number_dtype),
            scale=scalar_in(attributes.get(SCALE)),
            offset=scalar_in(attributes.get(OFFSET)),
            unit="" if times is not None else unit_of(attributes),
            times=times,
            flags=flags_of(attributes, number_dtype),
            is_boolean=stored.kind in "iu" and attributes.get("dtype") == "bool",
            is_direction=_DIRECTION.search(str(attributes.get("standard_name"))) is not None,
            problem=f"the attribute {wrong[0]} is not a number: {short(attributes[wrong[0]])}" if wrong else "",
        )

    @property
    def has_means(self) -> bool:
        """Whether a mean of values is a value of the same kind, unlike one of codes or of directions."""
        return self.flags is None and not self.is_direction

    @property
    def is_packed(self) -> bool:
        """Whether values follow from numbers by a scale or an offset."""
        return self.scale is not None or self.offset is not None

    @property
    def may_be_missing(self) -> bool:
        """Whether some numbers stand for missing values, besides NaN and NaT."""
        return bool(self.missing) or self.valid != (None, None)

    @property
    def missing_number(self) -> Any:
        """The number that is written for missing values; ``None`` if the encoding does not specify one."""
        if self.missing:
            return self.missing[0]
        if self.number_dtype.kind in "fc":
            return np.nan
        is_native = self.times is not None and self.times.is_native  # cftime has no NaT
        return _NAT if is_native and self.number_dtype == np.int64 else None

    @property
    def changes_values(self) -> bool:
        """Whether any value differs from the stored number."""
        is_signed = self.number_dtype != self.dtype
        is_replaced = self.is_boolean or self.times is not None or bool(self.problem)
        return self.is_packed or self.may_be_missing or is_signed or is_replaced

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The data type of values; without a unit for times, because it depends on them, and objects for cftime's."""
        if self.times is not None:
            kind = "M8" if self.times.calendar else "m8"
            return np.dtype(kind if self.times.is_native else np.object_)
        if self.is_boolean:
            return np.dtype(np.bool_)
        return self._float_dtype() if self.is_packed or self.may_be_missing else self._plain_dtype

    @property
    def masked_dtype(self) -> np.dtype[Any]:
        """The data type of ``decode_masked``."""
        if self.times is not None or self.is_boolean:
            return self.value_dtype
        return self._float_dtype() if self.is_packed else self._plain_dtype

    @property
    def _plain_dtype(self) -> np.dtype[Any]:
        """The data type of values that are numbers with their sign; strings and others are as they are stored."""
        dtype = self.number_dtype
        return dtype.newbyteorder("=") if dtype.kind in _NUMBERS else dtype

    def _float_dtype(self) -> np.dtype[Any]:
        """Return the floating-point type of values, by the rules of CF, as xarray applies them."""
        dtype = self.number_dtype
        if dtype.kind == "c":
            return dtype.newbyteorder("=")
        if not self.is_packed:
            if dtype.kind == "f":
                return dtype.newbyteorder("=")
            return np.dtype("f4" if dtype.itemsize <= 2 else "f8")
        kinds = {np.dtype(type(number)) for number in (self.scale, self.offset) if number is not None}
        is_wide = dtype.kind in "iu" and dtype.itemsize >= 4  # of single precision only 24 bits are exact
        return np.dtype("f4" if kinds == {np.dtype("f4")} and self.scale is not None and not is_wide else "f8")

    def numbers(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return stored numbers with their sign."""
        return (
            stored
            if self.number_dtype == self.dtype
            else stored.view(self.number_dtype.newbyteorder(stored.dtype.byteorder))
        )

    def is_missing(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which stored numbers are missing: NaN, NaT, the numbers of the attributes, and invalid ones."""
        if stored.dtype.kind in "mM":
            return np.asarray(np.isnat(stored))
        numbers = self.numbers(stored)
        missing = self.is_marked(numbers)
        if numbers.dtype.kind in "iuf":
            low, high = self.valid
            if low is not None:
                missing |= numbers < low
            if high is not None:
                missing |= numbers > high
        return missing

    def is_marked(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        is_float = numbers.dtype.kind in "fc"
        missing = np.asarray(np.isnan(numbers)) if is_float else np.zeros(numbers.shape, np.bool_)
        if self.times is not None and numbers.dtype == np.int64:
            missing |= numbers == _NAT
        for number in self.missing:
            missing |= numbers == number
        return missing

    def unpack(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return stored numbers with sign, scale and offset. Missing numbers are not replaced.

        Raises:
            EncodingError: If an integer becomes a floating-point number, which cannot represent it, or the meaning is unknown.
        """
        self.check_meaning("decode")
        numbers = self.numbers(stored)
        if not self.is_packed:
            return numbers
        values = numbers.astype(self._float_dtype())
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        self._check_exact(stored, values)
        return values

    def check_meaning(self, direction: str) -> None:
        if self.problem:
            raise EncodingError(f"{self.problem}; correct it, or use the stored numbers", direction=direction)

    def with_nan(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return stored numbers with sign, scale and offset as floating-point numbers. Missing ones become NaN.

        Raises:
            EncodingError: As ``unpack``.
        """
        values = self.unpack(stored).astype(self._float_dtype(), copy=not self.is_packed)
        if not self.is_packed:
            self._check_exact(stored, values)
        values[self.is_missing(stored)] = np.nan
        return values

    def _check_exact(self, stored: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Check that floating-point values are equal to the integers that they stand for.

        Scales other than 1 make values approximate, so that they may be rounded.

        Raises:
            EncodingError: If one was rounded.
        """
        numbers, offset = self.numbers(stored), float(self.offset or 0)
        if numbers.dtype.kind not in "iu" or not numbers.size or self.scale not in (None, 1) or offset % 1:
            return
        if numbers.dtype.itemsize <= 4 and abs(offset) < EXACT // 2:
            return
        if max(-int(numbers.min()), int(numbers.max())) + abs(offset) < EXACT:
            return
        is_wide = np.abs(numbers.astype("f8")) + abs(offset) >= EXACT
        where = np.flatnonzero(is_wide & ~self.is_missing(stored))
        exact = numbers.ravel()[where].astype(object) + int(offset)
        rounded = exact[values.ravel()[where].astype(object) != exact]
        if rounded.size:
            masked = "" if self.is_packed else "masked values (decoded.with_options(masked=True), JSON or CSV) or "
            raise EncodingError(
                f"the integer {rounded[0]} cannot be decoded to {values.dtype} without rounding; {rounded.size:,} of "
                f"{values.size:,} values are affected; read {masked}the stored numbers",
                value=rounded[0],
                direction="decode",
            )

    def decode_masked(self, stored: npt.NDArray[Any]) -> np.ma.MaskedArray[Any, Any]:
        """Return the values that stored numbers stand for, with a mask of those that are missing.

        Integers without a scale remain integers. NaN is masked.

        Raises:
            CodecError: As ``decode``.
        """
        stored = np.asarray(stored)
        is_number = stored.dtype.kind in "mM" or stored.dtype.kind in _NUMBERS
        missing = self.is_missing(stored) if is_number else np.zeros(stored.shape, np.bool_)
        plain = self.times is not None or self.is_boolean or not is_number
        values = self.decode(stored) if plain else self.unpack(stored)
        return np.ma.MaskedArray(values, missing, dtype=self.masked_dtype if is_number and not plain else None)

    def flag_names(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the meanings of flags as strings; see ``Flags.strings``. Missing flags are empty strings.

        Raises:
            CodecError: If the encoding has no flags with meanings.
        """
        if self.flags is None or not self.flags.meanings:
            raise CodecError(
                "the attributes specify no meanings of flags: flag_meanings with flag_values or flag_masks of integers"
            )
        stored = np.asarray(stored)
        names = self.flags.strings(self.numbers(stored))
        names[self.is_missing(stored)] = ""
        return names

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values that stored numbers stand for. Missing ones become NaN or NaT.

        Args:
            stored: Numbers of the data type ``dtype``. Strings and other values are returned as they are.

        Raises:
            CodecError: If times have invalid units, or a calendar that needs cftime, and it is not installed.
            EncodingError: If an integer becomes a floating-point number, which cannot represent it.
        """
        stored = np.asarray(stored)
        if stored.dtype.kind not in _NUMBERS:
            return stored
        if self.times is not None:
            return self._decode_times(stored, self.times)
        if self.is_boolean:
            return stored.astype(np.bool_)
        return self.with_nan(stored) if self.may_be_missing else self.unpack(stored)

    def _decode_times(self, stored: npt.NDArray[Any], times: TimeUnits) -> npt.NDArray[Any]:
        is_present = ~self.is_missing(stored)
        dates = numbers_to_dates(self.unpack(stored)[is_present], times)
        if dates.dtype.kind == "O":
            result: npt.NDArray[Any] = np.full(stored.shape, None, object)
        else:
            result = np.full(stored.shape, "NaT", dates.dtype)
        result[is_present] = dates
        return result


def unpacked_limits(
    attributes: Mapping[str, Any], encoding: Mapping[str, Any], dtype: np.dtype[Any]
) -> Mapping[str, Any]:
    """Return the attributes of unpacked values, with limits that have the sign, the scale and the offset of these values.

    Args:
        attributes: The other attributes of the variable.
        encoding: The attributes of the packing, and the data type of the packed numbers as ``"dtype"``.
        dtype: The data type of the unpacked values.
    """
    stored = np.dtype(encoding.get("dtype", dtype))
    packing = {key: encoding[key] for key in SCALING if key in encoding}
    if not packing or stored.kind not in "iuf" or not attributes.keys() & {*VALID}:
        return attributes
    cf = CFEncoding.from_attributes({**attributes, **packing}, stored)
    numbers = [None if limit is None else np.array([limit], cf.number_dtype).view(stored) for limit in cf.valid]
    limits = [None if number is None else cf.unpack(number).astype(dtype)[0].item() for number in numbers]
    low, high = reversed(limits) if cf.scale is not None and cf.scale < 0 else limits
    result = {key: value for key, value in attributes.items() if key not in VALID}
    return result | {key: value for key, value in zip(VALID[1:], (low, high), strict=True) if value is not None}
