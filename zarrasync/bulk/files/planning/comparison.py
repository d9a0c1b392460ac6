"""Comparison of headers: whether files fit together, and into an existing dataset. No IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.bulk.checksum import value_checksum, value_kind
from zarrasync.bulk.files.sources.conversions import convert_times
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.errors import ShapeError
from zarrasync.metadata.conventions.cf_attributes import (
    MISSING_NUMBERS,
    OFFSET,
    SCALE,
    SCALING,
    UNSIGNED,
    VALID,
    sign_depends_on_type,
    signed_dtype,
    valid_range,
)
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS, duration_units, units_of

_CODES = ("flag_values", "flag_masks", "flag_meanings", "positive", "grid_mapping", "standard_name", "cell_methods")
"""Attributes that determine the meaning of values if both variables have them."""
PACKING = (*SCALING, *MISSING_NUMBERS)
"""Attributes that determine the meaning of stored numbers."""
_CHECKED = {*SCALING, *MISSING_NUMBERS, *VALID, *_CODES, UNITS, CALENDAR, "coordinates"}
_PROJECTION = ("grid_mapping_name", "crs_wkt", "spatial_ref")
"""Attributes of variables that describe a coordinate reference system."""
_DESCRIPTIVE = ("GeoTransform", "long_name", "comment", "units")
"""Attributes of such variables that the coordinates of the axes contain, or that are not part of the system."""
_LONGEST_VALUE = 80
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""The numbers that JSON has no literals for, by their names in metadata documents."""


def find_single_rows(headers: Sequence[FileHeader], dim: str) -> list[bool]:
    """Return for each file whether it has no axis of rows, so that it is one row.

    Raises:
        ShapeError: If only some files have the axis, and a file without it does not contain the label of its row.
    """
    are_single = [header.row_count(dim) is None for header in headers]
    if all(are_single):
        return are_single
    for header, is_single in zip(headers, are_single, strict=True):
        label = header.variables.get(dim)
        if is_single and (label is None or label.dims):
            other = headers[are_single.index(False)]
            own = ", ".join(sorted({name for item in header.variables.values() for name in item.dims}))
            raise ShapeError(
                f"{other.file.name} has the dimension {dim!r}, but {header.file.name} does not, and it has no single {dim!r} as a "
                f"coordinate without dimensions; its dimensions are {own}. Add this coordinate, or ingest files that are one row each "
                "in another call, with append=True"
            )
    return are_single


def is_equal(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Return whether two values or arrays are equal, also if they are NaN; numbers also with differences up to a tolerance."""
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape:
        return False
    if tolerance > 0 and {a.dtype.kind, b.dtype.kind} <= {*"iuf"}:
        return bool(np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True))
    if a.dtype.kind in "fc" or b.dtype.kind in "fc":
        try:
            return bool(np.array_equal(a, b, equal_nan=True))
        except TypeError:
            return False
    return bool(np.array_equal(a, b))


@dataclass(frozen=True)
class Comparison:
    """Checks whether a variable of a file continues the same variable of another file or of the destination.

    Attributes:
        name: The name of the variable.
        axis: The axis along which sizes may differ.
        any_dtype: Whether the values are converted to another data type anyway.
        is_needed: Whether the variable labels an axis of others, so that it cannot be left out.
        ignored: The names of attributes that may differ.
        tolerance: The largest difference between equal values.
    """

    name: str
    axis: int | None = None
    any_dtype: bool = False
    is_needed: bool = False
    ignored: Collection[str] = ()
    tolerance: float = 0.0

    def check(self, header: VariableHeader, like: VariableHeader) -> set[str]:
        """Check that a variable fits.

        Args:
            header: The variable in a file.
            like: The variable in another file, or in the destination, which keeps its metadata.

        Returns:
            The names of other attributes that describe the variables differently, and of units that only one has.

        Raises:
            ShapeError: If it does not fit.
        """
        self._check_layout(header, like)
        self._check_numbers(header, like)
        self._check_meaning(header, like)
        if header.attributes == like.attributes:
            return set()
        both = (header.attributes.keys() & like.attributes.keys()) - _CHECKED
        found = {key for key in both if not is_same_attribute(header.attributes, like.attributes, key)}
        return found | ({"units"} & (header.attributes.keys() ^ like.attributes.keys()))

    def _check_layout(self, header: VariableHeader, like: VariableHeader) -> None:
        sizes, like_sizes = ([n for at, n in enumerate(own.shape) if at != self.axis] for own in (header, like))
        if header.dims != like.dims or sizes != like_sizes:
            raise ShapeError(
                f"{self.name!r} has the dimensions {_sizes(header)} in {header.place}, but {_sizes(like)} in {like.place}",
                found=header.shape,
                wanted=like.shape,
            )
        is_any = self.any_dtype or _are_times(header, like)  # times are checked one by one
        if header.dtype != like.dtype and not is_any and not _is_safe(header.dtype, like.dtype):
            raise ShapeError(
                f"{self.name!r} has the data type {_type_name(header)} in {header.place}, but {_type_name(like)} in {like.place}; "
                f"{self._hint_for_types(header, like)}"
            )

    def _check_numbers(self, header: VariableHeader, like: VariableHeader) -> None:
        """Check that stored numbers have the same meaning."""
        keys = [key for key in SCALING if not is_same_attribute(header.attributes, like.attributes, key)][:1]
        if not keys and _missing_numbers(header.attributes) != _missing_numbers(like.attributes):
            keys = [*MISSING_NUMBERS]
        if keys:
            raise ShapeError(
                f"{self._texts(header, like, keys)}, so its stored numbers have another meaning; "
                f"{_hint_for_packing(keys[0], like)}"
            )

    def _check_meaning(self, header: VariableHeader, like: VariableHeader) -> None:
        hint = "make the files agree first, or pass source=FileOptions(ignore_attributes=[{}]) to keep the first"
        own, others = header.attributes, like.attributes
        differing = [[key] for key in _CODES if key in own and key in others]
        if _valid_numbers(header) != _valid_numbers(like):
            differing.append([*VALID])
        for names in differing:
            keys = [key for key in names if key not in self.ignored and not is_same_attribute(own, others, key)]
            if keys:
                way = way_without(in_new_dataset=like.is_stored and self.axis is not None)
                text = hint.format(", ".join(map(repr, keys)))
                raise ShapeError(
                    f"{self._texts(header, like, keys)}, so its values have another meaning; {text}, or {way}"
                )
        unit, other = own.get("units"), others.get("units")
        are_convertible = _are_times(header, like) or None not in map(duration_units, (own, others))
        if not are_convertible and unit != other and not {None, "units"} & {unit, other, *self.ignored}:
            raise ShapeError(
                f"{self.name!r} has the units {unit!r} in {header.place}, but {other!r} in {like.place}; convert the file first, "
                "for example with preprocess=…, or pass source=FileOptions(ignore_attributes=['units']) if both mean the same"
            )

    def _texts(self, header: VariableHeader, like: VariableHeader, keys: Sequence[str]) -> str:
        return (
            f"{self.name!r} has {_text_of(header, keys)} in {header.place}, but {_text_of(like, keys)} in {like.place}"
        )

    def _hint_for_types(self, header: VariableHeader, like: VariableHeader) -> str:
        if like.is_stored:
            return (
                "an existing array keeps its data type, so convert the file first, for example with xarray's astype()"
            )
        if "str" in (header.dtype, like.dtype):
            return "convert one of the files first"
        try:
            common = np.result_type(np.dtype(header.dtype), np.dtype(like.dtype)).name
        except TypeError:  # such as of times and numbers
            return "no data type has the values of both; convert one of the files first"
        return f"pass encoding={{{self.name!r}: {{'dtype': {common!r}}}}} to convert both"

    def check_system(self, header: VariableHeader, like: VariableHeader) -> None:
        """Check that two variables describe the same coordinate reference system, if they describe one.

        Raises:
            ShapeError: If the systems differ.
        """
        own, others = header.attributes, like.attributes
        has, like_has = is_projection(header), is_projection(like)
        if not (has or like_has):
            return
        keys = {key for key in own.keys() & others.keys() if key not in _DESCRIPTIVE}
        if "grid_mapping_name" in keys:  # the same system can be written as different strings
            keys -= {"crs_wkt", "spatial_ref"}
        different = sorted(key for key in keys if not is_same_attribute(own, others, key))
        if different or has != like_has:
            key = next((key for key in _PROJECTION if key in different), different[0] if different else _PROJECTION[0])
            raise ShapeError(
                f"{self.name!r} describes another coordinate reference system in {header.place} than in {like.place}: "
                f"{_text_of(header, [key])} and {_text_of(like, [key])}; reproject the files first, or write them to separate "
                "datasets"
            )

    def check_values(self, header: VariableHeader, like: VariableHeader) -> None:
        """Check that a variable without rows has the same values.

        Raises:
            ShapeError: If it does not, or its values cannot be compared.
            CodecError: If the values are times whose units cannot be converted.
        """
        if not is_comparable(header, like):
            reason = (
                f"it has the data type {_type_name(header)} in {header.place}, and {_type_name(like)} in {like.place}"
            )
            hint = "convert the files to one data type first, or "
            if header.dtype == like.dtype:
                reason, hint = f"it is large, and {header.place} has one row without an axis", ""
            raise ShapeError(
                f"{self.name!r} must be the same in all files, but its values cannot be compared: {reason}; {hint}{way_without()}"
            )
        if difference := self._difference(header, like):
            hint = (
                "make the files agree first, for example by interpolation to one grid, write them to separate datasets, or pass "
                "source=FileOptions(coordinate_tolerance=…) if the differences are rounding errors"
            )
            hint = hint if self.is_needed else way_without()
            raise ShapeError(f"{self.name!r} must be the same in all files, but {difference}; {hint}")

    def _difference(self, header: VariableHeader, like: VariableHeader) -> str:
        """Return the first difference between the values of a variable, also if times have other units; empty without one."""
        values, others = header.values, like.values
        own, units = units_of(header.attributes), units_of(like.attributes)
        if own is None and units is None:
            own, units = duration_units(header.attributes), duration_units(like.attributes)
        if values is None or others is None:  # values of large arrays are not known
            is_same = own == units and digest_of_values(header) == digest_of_values(like)
            return "" if is_same else f"differs between {header.place} and {like.place}"
        if own is not None and units is not None and own != units:
            name = f"{self.name!r} of {header.place}"
            values = convert_times(values, own, units, np.dtype("f8"), name, header.attributes)
        if is_equal(values, others, self.tolerance):
            return ""
        if values.shape != others.shape:
            return f"has the shape {values.shape} in {header.place} and {others.shape} in {like.place}"
        is_different = np.atleast_1d(values != others)
        if values.dtype.kind in "fc" and others.dtype.kind in "fc":
            is_different &= np.atleast_1d(~(np.isnan(values) & np.isnan(others)))
        place = tuple(int(index) for index in np.argwhere(is_different)[0]) if values.ndim else ()
        at = f" at position {', '.join(map(str, place))}" if place else ""
        return f"is {values[place]}{at} in {header.place} and {others[place]} in {like.place}"


def check_sign(name: str, header: VariableHeader, dtype: np.dtype[Any]) -> None:
    """Check that integers keep their data type if an attribute changes their sign, as it applies to stored numbers.

    Args:
        name: The name of the variable.
        header: The variable in a file.
        dtype: The data type of the array.

    Raises:
        ShapeError: If they do not.
    """
    own = np.dtype(object if header.dtype == "str" else header.dtype)
    if sign_depends_on_type(header.attributes, own, dtype):
        raise ShapeError(
            f"{name!r} has {_text_of(header, [UNSIGNED])} in {header.place}, by which its {own} numbers are "
            f"{signed_dtype(header.attributes, own)}, so they cannot be stored as {dtype}; pass decode=True if the destination has no {UNSIGNED}, or write the file again as {dtype}"
        )


def _are_times(header: VariableHeader, like: VariableHeader) -> bool:
    return units_of(header.attributes) is not None and units_of(like.attributes) is not None


def _type_name(header: VariableHeader) -> str:
    if header.dtype == "str":
        return "string"
    dtype = np.dtype(header.dtype)
    number = signed_dtype(header.attributes, dtype)
    return dtype.name if number == dtype else f"{dtype.name} ({number.name} by {UNSIGNED})"


def _hint_for_packing(key: str, like: VariableHeader) -> str:
    if not like.is_stored:
        return "pass decode=True to store unpacked values"
    if key not in SCALING or any(name in like.attributes for name in SCALING):
        return "an existing array keeps its attributes, so write the file again with the attributes of the array"
    if np.dtype(like.dtype) == np.float64:
        return "pass decode=True to unpack the values of the file"
    return f"unpack the file first, for example with xarray, and store it as {_type_name(like)}"


def _text_of(header: VariableHeader, keys: Sequence[str]) -> str:
    shown = [f"{key} {_shortened(repr(_plain(header.attributes[key])))}" for key in keys if key in header.attributes]
    return " and ".join(shown) or f"no {keys[0]}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _is_safe(dtype: str, target: str) -> bool:
    """Return whether a data type holds all values of another one. The lengths of strings are checked for each of them."""
    if "str" in (dtype, target):
        return all(item == "str" or np.dtype(item).kind == "U" for item in (dtype, target))
    if np.dtype(dtype).kind == np.dtype(target).kind and np.dtype(dtype).kind in "SU":
        return True
    return np.can_cast(np.dtype(dtype), np.dtype(target), "safe")


def is_same_attribute(attributes: Mapping[str, Any], others: Mapping[str, Any], key: str) -> bool:
    """Return whether an attribute has the same meaning in two variables. A missing one has its default."""
    value, other = attributes.get(key), others.get(key)
    if value is None or other is None:
        default = {SCALE: 1, OFFSET: 0}.get(key)
        return value is other or (default is not None and default in (value, other))
    return is_equal(_plain(value), _plain(other))


def _missing_numbers(attributes: Mapping[str, Any]) -> set[Any]:
    """Return the values that stand for missing ones, from any of the attributes.

    NaN is always missing, so it is not one. Empty strings are what absent chunks of strings contain.
    """
    found = [_plain(attributes[key]) for key in MISSING_NUMBERS if attributes.get(key) is not None]
    items = [item for value in found for item in (value if isinstance(value, list) else [value])]
    return {item for item in items if item != "" and item == item}  # NaN, which is unequal to itself


def _valid_numbers(header: VariableHeader) -> tuple[Any, Any]:
    """Return the smallest and the largest valid number; others are missing. ``None`` for no limit."""
    if header.dtype == "str":
        return None, None
    dtype = np.dtype(header.dtype)
    return valid_range(header.attributes, dtype, signed_dtype(header.attributes, dtype))


def _plain(value: Any) -> Any:
    """Return a number of NumPy as a number, and several as a list. Stored attributes contain some numbers as strings."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return items[0] if len(items) == 1 else items
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _sizes(header: VariableHeader) -> str:
    return "(" + ", ".join(f"{dim}: {n}" for dim, n in zip(header.dims, header.shape, strict=True)) + ")"


def is_comparable(header: VariableHeader, like: VariableHeader) -> bool:
    """Return whether the values of a variable are known in two headers, or digests of them that can be compared.

    Args:
        header: The variable in a file.
        like: The variable in another file, or in the destination, whose values may have been converted.
    """
    if header.values is not None and like.values is not None:
        return True
    if header.dtype != like.dtype:
        if "str" in (header.dtype, like.dtype) or (like.is_stored and not _is_safe(header.dtype, like.dtype)):
            return False
        if value_kind(np.dtype(header.dtype)) != value_kind(np.dtype(like.dtype)):
            return False
    return None not in (digest_of_values(header), digest_of_values(like))


def digest_of_values(header: VariableHeader) -> int | None:
    """Return the digest of the values of a variable; ``None`` if it is not known."""
    if header.values is None:
        return header.digest
    axes = sorted(range(header.values.ndim), key=header.dims.__getitem__)
    return value_checksum(header.values.transpose(axes) if axes else np.atleast_1d(header.values))


def way_without(*, in_new_dataset: bool = False) -> str:
    """Return how to ingest files without one of their variables.

    Args:
        in_new_dataset: Whether the destination has rows of the variable, so that new files must have it.
    """
    way = "choose the variables to store with variables=[…], and leave this one out"
    return f"ingest all files into a new dataset: {way}" if in_new_dataset else way


def is_projection(header: VariableHeader) -> bool:
    """Return whether a variable describes a coordinate reference system."""
    return any(key in header.attributes for key in _PROJECTION)
