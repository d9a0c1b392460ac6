"""The attributes of CF and xarray that specify the meaning of stored numbers: names, numbers, packing, and parents."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync.metadata.conventions.cf_times import CALENDAR, CALENDARS, UNITS, units_of
from zarrasync.metadata.conventions.meaning import CRS, Link, Meaning, Reader, is_number

FILL = "_FillValue"
MISSING_VALUE = "missing_value"
SCALE = "scale_factor"
OFFSET = "add_offset"
UNSIGNED = "_Unsigned"
SCALING = (SCALE, OFFSET, UNSIGNED)
"""Attributes that determine the meaning of stored numbers."""
MISSING_NUMBERS = (FILL, MISSING_VALUE)
"""Attributes with numbers that stand for missing values. Missing values are written as the first of them."""
VALID = ("valid_range", "valid_min", "valid_max")
"""Attributes with the limits of valid numbers. Others are missing."""
VALUE_ATTRIBUTES = (UNITS, CALENDAR, SCALE, OFFSET, FILL, MISSING_VALUE, UNSIGNED)
"""Attributes that determine which numbers are stored for values."""
BOUNDS = ("bounds", "climatology")
"""Attributes that name a variable with the ends of intervals. It inherits the units and the calendar."""
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""The numbers that JSON has no literals for, by their names in metadata documents."""


def numbers_in(value: Any, dtype: np.dtype[Any]) -> list[Any]:
    """Return the numbers of an attribute in a data type, without those that the data type cannot represent.

    Args:
        value: A number, several ones, or their names or base64 strings in metadata documents.
        dtype: The data type of the stored numbers.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if dtype.kind == "c" and isinstance(value, list | tuple) and len(value) == 2:
        parts = [_plain(item) for item in value]
        if all(isinstance(part, int | float) for part in parts):
            value = complex(*parts)
    items = value if isinstance(value, list | tuple) else [value]
    numbers = (_as_number(_plain(item), dtype) for item in items)
    return [number for number in numbers if number is not None]


def _plain(item: Any) -> Any:
    if isinstance(item, np.generic):
        return item.item()
    if not isinstance(item, str):
        return item
    if item in _NOT_FINITE:
        return _NOT_FINITE[item]
    try:
        return struct.unpack("<d", base64.b64decode(item, validate=True))[0]
    except (struct.error, binascii.Error, ValueError):
        pass
    try:
        return float(item)
    except ValueError:
        return None


def _as_number(item: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number in a data type. ``None`` if no stored number can be equal to it."""
    if not isinstance(item, int | float | complex):
        return None
    if dtype.kind in "iub":
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if isinstance(item, complex) or item != item or item in (float("inf"), float("-inf")):
            return None
        return dtype.type(int(item)) if item == int(item) and limits[0] <= item <= limits[1] else None
    if isinstance(item, complex) and dtype.kind != "c":
        return None
    with np.errstate(over="ignore"):
        try:
            number = dtype.type(item)
        except OverflowError:  # an integer that no float can represent
            return None
    return None if np.isinf(number) and not np.isinf(complex(item)) else number


def encode_float(number: float) -> str:
    """Return a floating-point number as xarray stores it in metadata documents."""
    return base64.b64encode(struct.pack("<d", float(number))).decode()


def signed_dtype(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type that gives stored integers their sign. Formats without unsigned integers use an attribute."""
    pair = dtype.kind, str(attributes.get(UNSIGNED)).lower()
    kind = {("i", "true"): "u", ("u", "false"): "i"}.get(pair, dtype.kind)
    return dtype if kind == dtype.kind else np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")


def sign_depends_on_type(attributes: Mapping[str, Any], *dtypes: np.dtype[Any]) -> bool:
    """Return whether equal numbers of several data types stand for different values, by the attribute for the sign."""
    kinds = {(dtype.kind, dtype.itemsize) for dtype in dtypes}
    return len(kinds) > 1 and any(signed_dtype(attributes, dtype) != dtype for dtype in dtypes)


def is_missing_nan(value: Any) -> bool:
    """Return whether an attribute contains NaN, which is always missing, and not valid in JSON."""
    numbers = np.asarray(value)
    return numbers.dtype.kind in "fc" and bool(np.isnan(numbers).any())


def without_nan(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return attributes without NaN as a missing value."""
    result = dict(attributes)
    if MISSING_VALUE in result and is_missing_nan(result[MISSING_VALUE]):
        numbers = np.asarray(result.pop(MISSING_VALUE))
        finite = numbers[~np.isnan(numbers)]
        if finite.size:
            result[MISSING_VALUE] = finite
    return result


def unit_of(attributes: Mapping[str, Any]) -> str:
    """Return the unit of a variable; empty without one."""
    unit = attributes.get(UNITS)
    return unit if isinstance(unit, str) else ""


def numbers_with_sign(value: Any, dtype: np.dtype[Any], number_dtype: np.dtype[Any]) -> list[Any]:
    """Return the numbers of an attribute with the sign of the values; the attribute may contain stored or signed numbers."""
    items = value if isinstance(value, list | tuple | np.ndarray) and dtype.kind != "c" else [value]
    if dtype == number_dtype:
        return numbers_in(value, dtype)
    numbers: list[Any] = []
    for item in items:
        stored = numbers_in(item, dtype)
        numbers += [number.view(number_dtype.newbyteorder("=")) for number in stored] or numbers_in(item, number_dtype)
    return numbers


def valid_range(attributes: Mapping[str, Any], dtype: np.dtype[Any], number_dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the limits of valid numbers. Limits that the data type cannot represent do not count, as in netCDF4."""
    if dtype.kind not in "iuf":
        return None, None
    both = attributes.get(VALID[0])
    pair = np.ravel(both).tolist() if both is not None and np.size(both) == 2 else (None, None)
    limits = []
    for key, value in zip(VALID[1:], pair, strict=True):
        found = value if value is not None else attributes.get(key)
        numbers = [] if found is None else numbers_with_sign(found, dtype, number_dtype)
        limits.append(numbers[0] if len(numbers) == 1 and numbers[0] == numbers[0] else None)
    return limits[0], limits[1]


def scalar_in(number: Any) -> Any:
    """Return a scale or an offset as a number; ``None`` for anything else."""
    if isinstance(number, np.ndarray | list | tuple) and np.size(number) == 1:
        number = np.ravel(number)[0]
    if isinstance(number, str):
        found = numbers_in(number, np.dtype("f8"))
        number = float(found[0]) if found else None
    return number if isinstance(number, int | float | np.number) and not isinstance(number, bool) else None


# ------------------------------------------------------------------ bounds


def parents_of_bounds(variables: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of the coordinate of each variable with bounds.

    Args:
        variables: The attributes of all variables of a group, by name.
    """
    found = {str(attributes.get(key)): name for name, attributes in variables.items() for key in reversed(BOUNDS)}
    return {name: parent for name, parent in found.items() if name in variables and name != parent}


def inherited_attributes(attributes: Mapping[str, Any], parent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the attributes of bounds, completed with the units and the calendar of their coordinate.

    Args:
        attributes: The attributes of the variable.
        parent: The attributes of its coordinate; ``None`` if it does not contain bounds.
    """
    if parent is None:
        return dict(attributes)
    result = {key: parent[key] for key in (UNITS, CALENDAR) if key in parent} | dict(attributes)
    if attributes.get(UNITS, parent.get(UNITS)) is None:
        result.pop(UNITS, None)
    return result


# ------------------------------------------------------------------ meaning


ATTRIBUTES = (
    *("Conventions", "standard_name", "long_name", UNITS, CALENDAR, SCALE, OFFSET, FILL),
    *("grid_mapping", "grid_mapping_name", "coordinates", "crs_wkt", "spatial_ref"),
)
"""Attributes of which an array or group with a meaning to CF has at least one."""


def interpret_cf(attributes: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning of the attributes of an array or a group."""
    reader = Reader()
    conventions = attributes.get("Conventions")
    quantity = _quantity(attributes, reader)
    _check_calendar(attributes, reader)
    _check_packing(attributes, reader)
    wkt = next((attributes[name] for name in ("crs_wkt", "spatial_ref") if isinstance(attributes.get(name), str)), "")
    return Meaning(
        titles=(conventions,) if isinstance(conventions, str) and conventions else (),
        crs=CRS(wkt=wkt) if wkt else None,
        unit=_unit(attributes),
        links=_links(attributes),
        facts={"Quantity": quantity} if quantity else {},
        violations=tuple(reader.violations),
    )


def _quantity(attributes: Mapping[str, Any], reader: Reader) -> str:
    """Return the quantity and its unit: ``air_temperature [K]``; an empty string if the quantity has no name."""
    texts = {name: attributes[name] for name in ("standard_name", "long_name", "units") if name in attributes}
    for name, text in texts.items():
        if not isinstance(text, str):
            reader.warn(name, f"expected a string, found {text!r}")
    name, unit = texts.get("standard_name") or texts.get("long_name") or "", _unit(attributes)
    return f"{name} [{unit}]" if name and unit else str(name)


def _unit(attributes: Mapping[str, Any]) -> str:
    """Return the unit of values; empty for times, whose units contain a date."""
    return "" if units_of(attributes) is not None else unit_of(attributes)


def _check_calendar(attributes: Mapping[str, Any], reader: Reader) -> None:
    calendar = attributes.get(CALENDAR, "standard")
    if calendar not in CALENDARS:
        reader.warn(CALENDAR, f"{calendar!r} is not a calendar of CF: {', '.join(CALENDARS)}")


def _check_packing(attributes: Mapping[str, Any], reader: Reader) -> None:
    for name in (SCALE, OFFSET):
        if name in attributes and not is_number(attributes[name]):
            reader.error(name, f"expected a number, found {attributes[name]!r}")


def _links(attributes: Mapping[str, Any]) -> tuple[Link, ...]:
    """Return the references to coordinates and grid mappings in the group of an array."""
    links = []
    for name, kind in (("coordinates", "coordinate"), ("grid_mapping", "grid mapping")):
        text = attributes.get(name)
        names = text.replace(":", " ").split() if isinstance(text, str) else ()
        links += [Link(item, kind, name, is_required=False) for item in names]
    return tuple(links)
