"""Comparison of headers: whether files fit together, and into an existing dataset. No IO."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.checksum import value_checksum, value_kind
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.bulk.files.sources.times import convert_times
from zarrasync.errors import ShapeError
from zarrasync.metadata.conventions.cf_attributes import MISSING_NUMBERS, OFFSET, SCALE, SCALING
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS, duration_units, units_of

_CODES = ("flag_values", "flag_masks", "flag_meanings", "positive", "grid_mapping", "standard_name", "cell_methods")
"""Attributes that determine the meaning of values if both variables have them."""
PACKING = (*SCALING, *MISSING_NUMBERS)
"""Attributes that determine the meaning of stored numbers."""
_CHECKED = {*SCALING, *MISSING_NUMBERS, *_CODES, UNITS, CALENDAR, "coordinates"}
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


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values or arrays are equal, also if they are NaN."""
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "fc" or b.dtype.kind in "fc":
        try:
            return bool(np.array_equal(a, b, equal_nan=True))
        except TypeError:
            return False
    return bool(np.array_equal(a, b))


def check_fit(
    name: str,
    header: VariableHeader,
    url: str,
    like: VariableHeader,
    like_url: str,
    axis: int | None,
    *,
    any_dtype: bool = False,
    is_stored: bool = False,
    ignored: Collection[str] = (),
) -> None:
    """Check that a variable of a file continues the same variable of another file or of the destination.

    Args:
        name: The name of the variable.
        header: The variable in the file.
        url: The file.
        like: The variable that it must fit.
        like_url: The other file, or the destination.
        axis: The axis along which sizes may differ.
        any_dtype: Whether the values are converted to another data type anyway.
        is_stored: Whether the other variable is an array of the destination, which keeps its metadata.
        ignored: The names of attributes that may differ.

    Raises:
        ShapeError: If it does not fit.
    """
    sizes = [size for number, size in enumerate(header.shape) if number != axis]
    like_sizes = [size for number, size in enumerate(like.shape) if number != axis]
    if header.dims != like.dims or sizes != like_sizes:
        raise ShapeError(
            f"{name!r} has the dimensions {_sizes(header)} in {url}, but {_sizes(like)} in {like_url}",
            found=header.shape,
            wanted=like.shape,
        )
    are_times = units_of(header.attributes) is not None and units_of(like.attributes) is not None  # checked one by one
    if header.dtype != like.dtype and not any_dtype and not are_times and not _is_safe(header.dtype, like.dtype):
        raise ShapeError(
            f"{name!r} has the data type {_type_name(header)} in {url}, but {_type_name(like)} in {like_url}; "
            + _hint_for_types(name, header, like, is_stored=is_stored)
        )
    differing: list[tuple[str, ...]] = [
        (key,) for key in SCALING if not is_same_attribute(header.attributes, like.attributes, key)
    ]
    if not differing and _missing_numbers(header.attributes) != _missing_numbers(like.attributes):
        differing = [MISSING_NUMBERS]
    for keys in differing:
        raise ShapeError(
            f"{name!r} has {_text_of(header, keys)} in {url}, but {_text_of(like, keys)} in {like_url}, so its stored numbers "
            f"have another meaning; {_hint_for_packing(keys[0], like, is_stored=is_stored)}"
        )
    hint = "make the files agree first, or pass source=FileOptions(ignore_attributes=[{}]) to keep the first"
    for key in (key for key in _CODES if key not in ignored):
        both = key in header.attributes and key in like.attributes
        if both and not is_same_attribute(header.attributes, like.attributes, key):
            raise ShapeError(
                f"{name!r} has {_text_of(header, [key])} in {url}, but {_text_of(like, [key])} in {like_url}, so its values "
                f"have another meaning; {hint.format(repr(key))}, or {way_without(in_new_dataset=is_stored and axis is not None)}"
            )
    units, like_units = header.attributes.get("units"), like.attributes.get("units")
    are_convertible = are_times or None not in (duration_units(header.attributes), duration_units(like.attributes))
    if not are_convertible and units != like_units and not {None, "units"} & {units, like_units, *ignored}:
        raise ShapeError(
            f"{name!r} has the units {units!r} in {url}, but {like_units!r} in {like_url}; convert the file first, for example "
            "with preprocess=…, or pass source=FileOptions(ignore_attributes=['units']) if both mean the same"
        )


def _type_name(header: VariableHeader) -> str:
    return "string" if header.dtype == "str" else np.dtype(header.dtype).name


def _hint_for_types(name: str, header: VariableHeader, like: VariableHeader, *, is_stored: bool) -> str:
    if is_stored:
        return "an existing array keeps its data type, so convert the file first, for example with xarray's astype()"
    if "str" in (header.dtype, like.dtype):
        return "convert one of the files first"
    try:
        common = np.result_type(np.dtype(header.dtype), np.dtype(like.dtype)).name
    except TypeError:  # such as of times and numbers
        return "no data type has the values of both; convert one of the files first"
    return f"pass encoding={{{name!r}: {{'dtype': {common!r}}}}} to convert both"


def _hint_for_packing(key: str, like: VariableHeader, *, is_stored: bool) -> str:
    if not is_stored:
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


def differing_attributes(header: VariableHeader, like: VariableHeader) -> set[str]:
    """Return the names of other attributes that describe two variables differently, and of units that only one has.

    Args:
        header: The variable in a file, which fits.
        like: The variable in another file or in the destination.
    """
    if header.attributes == like.attributes:
        return set()
    both = (header.attributes.keys() & like.attributes.keys()) - _CHECKED
    found = {key for key in both if not is_same_attribute(header.attributes, like.attributes, key)}
    return found | ({"units"} & (header.attributes.keys() ^ like.attributes.keys()))


def _missing_numbers(attributes: Mapping[str, Any]) -> set[Any]:
    """Return the values that stand for missing ones, from any of the attributes.

    NaN is always missing, so it is not one. Empty strings are what absent chunks of strings contain.
    """
    found = [_plain(attributes[key]) for key in MISSING_NUMBERS if attributes.get(key) is not None]
    items = [item for value in found for item in (value if isinstance(value, list) else [value])]
    return {item for item in items if item != "" and item == item}  # noqa: PLR0124  # NaN, which is unequal to itself


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


def is_comparable(header: VariableHeader, like: VariableHeader, *, is_stored: bool = False) -> bool:
    """Return whether the values of a variable are known in two headers, or digests of them that can be compared.

    Args:
        header: The variable in a file.
        like: The variable in another file or in the destination.
        is_stored: Whether the other variable is an array of the destination, whose values may have been converted.
    """
    if header.values is not None and like.values is not None:
        return True
    if header.dtype != like.dtype:
        if "str" in (header.dtype, like.dtype) or (is_stored and not _is_safe(header.dtype, like.dtype)):
            return False
        if value_kind(np.dtype(header.dtype)) != value_kind(np.dtype(like.dtype)):
            return False
    return None not in (digest_of(header), digest_of(like))


def digest_of(header: VariableHeader) -> int | None:
    """Return the digest of the values of a variable; ``None`` if it is not known."""
    if header.values is None:
        return header.digest
    axes = sorted(range(header.values.ndim), key=header.dims.__getitem__)
    return value_checksum(header.values.transpose(axes) if axes else np.atleast_1d(header.values))


def check_equal(
    name: str,
    header: VariableHeader,
    url: str,
    like: VariableHeader,
    like_url: str,
    *,
    is_needed: bool = False,
    is_stored: bool = False,
    tolerance: float = 0.0,
) -> None:
    """Check that a variable without rows has the same values in two files.

    Args:
        name: The name of the variable.
        header: The variable in the file.
        url: The file.
        like: The variable in another file or in the destination.
        like_url: The other file, or the destination.
        is_needed: Whether the variable labels an axis of others, so that it cannot be left out.
        is_stored: Whether the other variable is an array of the destination.
        tolerance: The largest difference between equal values.

    Raises:
        ShapeError: If it does not, or its values cannot be compared.
        CodecError: If the values are times whose units cannot be converted.
    """
    if not is_comparable(header, like, is_stored=is_stored):
        reason = f"it has the data type {_type_name(header)} in {url}, and {_type_name(like)} in {like_url}"
        hint = "convert the files to one data type first, or "
        if header.dtype == like.dtype:
            reason, hint = f"it is large, and {url} has one row without an axis", ""
        raise ShapeError(
            f"{name!r} must be the same in all files, but its values cannot be compared: {reason}; {hint}{way_without()}"
        )
    values, like_values = header.values, like.values
    own, units = units_of(header.attributes), units_of(like.attributes)
    if own is None and units is None:
        own, units = duration_units(header.attributes), duration_units(like.attributes)
    if values is None or like_values is None:
        is_different = own != units or digest_of(header) != digest_of(like)
    else:
        if own is not None and units is not None and own != units:
            text = f"{name!r} of {url}"
            values = convert_times(values, own, units, np.dtype("f8"), text, header.attributes)
        is_different = not (is_equal(values, like_values) or _is_close(values, like_values, tolerance))
    if not is_different:
        return
    hint = (
        "make the files agree first, for example by interpolation to one grid, write them to separate datasets, or pass "
        "source=FileOptions(coordinate_tolerance=…) if the differences are rounding errors"
    )
    if not is_needed:
        hint = way_without()
    raise ShapeError(
        f"{name!r} must be the same in all files, but {_difference(values, url, like_values, like_url)}; {hint}"
    )


def _is_close(values: npt.NDArray[Any], others: npt.NDArray[Any], tolerance: float) -> bool:
    is_comparable = (
        tolerance > 0 and values.shape == others.shape and {values.dtype.kind, others.dtype.kind} <= {*"iuf"}
    )
    return is_comparable and bool(np.allclose(values, others, rtol=0, atol=tolerance, equal_nan=True))


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


def check_projection(name: str, header: VariableHeader, url: str, like: VariableHeader, like_url: str) -> None:
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
            f"{name!r} describes another coordinate reference system in {url} than in {like_url}: "
            f"{_text_of(header, [key])} and {_text_of(like, [key])}; reproject the files first, or write them to separate datasets"
        )


def _difference(values: npt.NDArray[Any] | None, url: str, like: npt.NDArray[Any] | None, like_url: str) -> str:
    """Return the first difference between two arrays. Values of large arrays are not known."""
    if values is None or like is None:
        return f"differs between {url} and {like_url}"
    if values.shape != like.shape:
        return f"has the shape {values.shape} in {url} and {like.shape} in {like_url}"
    is_different = np.atleast_1d(values != like)
    if values.dtype.kind in "fc" and like.dtype.kind in "fc":
        is_different &= np.atleast_1d(~(np.isnan(values) & np.isnan(like)))
    place = tuple(int(index) for index in np.argwhere(is_different)[0]) if values.ndim else ()
    one, other = values[place], like[place]
    at = f" at position {', '.join(map(str, place))}" if place else ""
    return f"is {one}{at} in {url} and {other} in {like_url}"
