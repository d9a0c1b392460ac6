"""Encoding of variables: by their own encoding or like a stored variable, and without loss."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pandas import isnull
from xarray import Dataset, Variable
from xarray.backends.zarr import FillValueCoder, encode_zarr_variable
from xarray.coding.strings import check_vlen_dtype
from xarray.conventions import decode_cf_variable

from zarrasync._concurrency.fork import thread_lock
from zarrasync.errors import CodecError
from zarrasync.integrations.xarray.lazy_objects import with_stored_type
from zarrasync.integrations.xarray.read import FILL, FILTERS

__all__ = [
    "applicable_encoding",
    "are_lossless",
    "cast_lossless",
    "cast_times",
    "encode_variable",
    "inherit_encoding",
    "keep_units_quietly",
    "prepare_like",
    "stored_variables",
    "without_nan",
]

_VALUE_ENCODING = (
    "units",
    "calendar",
    "dtype",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
)
"""Encodings of a stored variable's values. Values added to the variable are encoded in the same way."""
_PER_AXIS = ("chunks", "preferred_chunks", "shards", "filters")
_LAYOUT = ("chunks", "preferred_chunks", "shards", "compressors", "compressor")
_PER_DTYPE = ("filters", FILTERS, "fill_value")
"""Further encodings, which apply to one data type only."""
_LOSSLESS = {
    *("transpose", "reshape", "base64", "zlib", "gzip", "bz2", "lzma", "lz4", "lzf", "zstd", "blosc", "pcodec"),
    *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
}
"""Filters and compressors that are lossless for all data types."""
_NUMERIC = "biufc"
_warning_filters = thread_lock()
"""Guards the process's warning filters, because restoring them in one thread undoes the changes of another."""


def without_nan(attributes: Mapping[Any, Any], dtype: np.dtype[Any]) -> dict[Any, Any]:
    """Return a variable's attributes without NaN as a missing value. NaN is always missing, and not valid in JSON."""
    if "missing_value" not in attributes or dtype.kind not in "fc":
        return dict(attributes)
    missing = np.asarray(attributes["missing_value"])
    if missing.dtype.kind not in "fc" or not np.isnan(missing).any():
        return dict(attributes)
    others = {name: value for name, value in attributes.items() if name != "missing_value"}
    finite = missing[~np.isnan(missing)]
    return {**others, "missing_value": finite} if finite.size else others


def stored_variables(dataset: Dataset) -> dict[str, Variable]:
    """Return the variables of a dataset that was not decoded, with attributes that Zarr can store.

    ``_FillValue`` is encoded as xarray's own engine encodes it.
    """
    variables = {}
    for name, variable in dataset.variables.items():
        attributes = without_nan(variable.attrs, variable.dtype)
        if FILL in attributes:
            attributes[FILL] = FillValueCoder.encode(attributes[FILL], variable.dtype)
        variables[str(name)] = variable.copy(deep=False)
        variables[str(name)].attrs = attributes
    return variables


def applicable_encoding(variable: Variable) -> dict[str, Any]:
    """Return a variable's encoding without entries for another number of axes or another data type.

    A variable keeps its encoding when it is indexed or cast.
    """
    encoding = dict(variable.encoding)
    if "fill_value" in encoding and not _can_hold(encoding.get("dtype", variable.dtype), encoding["fill_value"]):
        del encoding["fill_value"]
    if variable.dtype.kind in "OT":  # in format 2 they encode strings, which the data type does here
        encoding.pop("filters", None)
    shapes = [shape for name in ("chunks", "shards") if isinstance(shape := encoding.get(name), tuple | list)]
    if any(len(shape) != variable.ndim for shape in shapes):
        return {name: value for name, value in encoding.items() if name not in _PER_AXIS}
    if not all(_covers(sizes, n) for shape in shapes for sizes, n in zip(shape, variable.shape, strict=True)):
        return {name: value for name, value in encoding.items() if name not in ("chunks", "preferred_chunks", "shards")}
    return encoding


def _covers(sizes: Any, length: int) -> bool:
    """Return whether sizes of chunks along an axis suit its length. A single size suits any length."""
    return not isinstance(sizes, tuple | list) or sum(sizes[:-1]) < length <= sum(sizes)


def encode_variable(name: str, variable: Variable) -> Variable:
    """Return a variable with the values and attributes that its encoding specifies."""
    variable = with_stored_type(name, _fill_missing_strings(variable, variable.encoding, variable.dtype))
    # In format 2 xarray would convert strings of variable length to fixed-length ones.
    encode: Any = encode_zarr_variable  # untyped
    encoded: Variable = encode(variable, name=name, zarr_format=3)
    return encoded


def _fill_missing_strings(variable: Variable, encoding: Mapping[str, Any], default: npt.DTypeLike) -> Variable:
    """Return a variable with the fill value, or "", for missing strings: xarray would write some as 'nan' or 'None'."""
    target = encoding.get("dtype", default)
    target_kind, dtype = np.dtype(target).kind, variable.dtype
    may_be_missing = dtype.kind == "T" and hasattr(dtype, "na_object")
    if dtype.kind == "O":  # xarray handles characters, and objects that other libraries mark as strings
        vlen_dtype: Any = check_vlen_dtype  # untyped
        may_be_missing = target != "S1" and target is not str and vlen_dtype(dtype) is None
    fills = [encoding[name] for name in ("_FillValue", "missing_value") if encoding.get(name) is not None]
    if not may_be_missing or target_kind not in ("OSTU" if fills else "STU"):
        return variable
    if not all(isinstance(fill, str | bytes) for fill in fills):
        return variable
    result = np.dtype("T") if dtype.kind == "T" else dtype
    fill = fills[0] if fills else b"" if target_kind == "S" else ""
    replace = partial(_replace_missing, fill=fill, dtype=result)
    data: Any = variable.data
    return variable.copy(data=data.map_blocks(replace, dtype=result) if hasattr(data, "map_blocks") else replace(data))


def _replace_missing(block: npt.NDArray[Any], fill: str | bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    values = block.astype(object)
    values[isnull(values)] = fill
    return values.astype(dtype)


def are_lossless(filters: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether filters, or a compressor, are known to restore all values of a data type exactly.

    Args:
        filters: JSON entries of format 2 or 3.
        dtype: The data type.
    """
    entries = filters if isinstance(filters, list | tuple) else [filters]
    return all(isinstance(entry, Mapping) and _is_lossless(entry, dtype) for entry in entries)


def _is_lossless(entry: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    name = str(entry.get("id", entry.get("name"))).removeprefix("numcodecs.")
    options = entry if "id" in entry else entry.get("configuration", {})
    if name == "delta":
        dtypes = (np.dtype(options.get(key, options.get("dtype"))) for key in ("dtype", "astype"))
        return dtype.kind in "iu" and all(other == dtype for other in dtypes)
    if name == "shuffle":
        size = options.get("elementsize", 4)
        return dtype.kind not in "OT" and isinstance(size, int) and (size < 2 or dtype.itemsize % size == 0)
    return name in _LOSSLESS


def _can_hold(dtype: npt.DTypeLike, value: Any) -> bool:
    """Return whether a data type can represent a value exactly."""
    values, target = np.asarray(value), np.dtype(dtype)
    if target.kind not in _NUMERIC or values.dtype.kind not in _NUMERIC:
        return bool(values.dtype.kind == target.kind)
    return _can_hold_all(target, values)


def _can_hold_all(dtype: np.dtype[Any], values: npt.NDArray[Any]) -> bool:
    """Return whether a data type can represent all of the numbers exactly."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.array_equal(values.astype(dtype), values, equal_nan=values.dtype.kind in "fc"))


# ------------------------------------------------------------------ like stored variables


@contextmanager
def keep_units_quietly() -> Iterator[None]:
    """Suppress xarray's warning that it changes units: ``cast_lossless`` raises an error then."""
    with _warning_filters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Times can't be serialized", UserWarning)
        yield


def prepare_like(variable: Variable, stored: Variable) -> Variable:
    """Return a variable with the encoding of a stored one. ``cast_lossless`` makes the remaining cast.

    xarray would cast numbers and strings to the stored data type without checking that they fit.
    """
    dtype, encoding = _stored_dtype(stored), stored.encoding
    casts_unchecked = "units" not in encoding or (dtype.kind in "iu" and dtype != np.int64)  # xarray checks int64
    cast_later = dtype.kind in f"SU{_NUMERIC}" and casts_unchecked and "_Unsigned" not in encoding
    # Filled now, as the encoding without its dtype does not imply strings.
    variable = _fill_missing_strings(variable.copy(deep=False), encoding, dtype)
    if dtype.kind in "fc" and variable.dtype.kind in "biu":  # integers may not be able to hold the fill value
        variable = variable.astype("f8")
    names = (name for name in _VALUE_ENCODING if name in encoding)
    variable.encoding = {name: encoding[name] for name in names if name != "dtype" or not cast_later}
    return variable


def inherit_encoding(name: str, variable: Variable, stored: Variable) -> dict[str, Any]:
    """Return the encoding of a variable that replaces a stored one, completed with the stored variable's encoding.

    Chunks, shards and compressors are inherited if the dimensions are the same. The encoding of values is inherited if
    the values are in memory and it is lossless, unless the variable has its own encoding of values.
    """
    encoding = applicable_encoding(variable)
    if variable.dims != stored.dims:
        return encoding
    layout = {key: stored.encoding[key] for key in _LAYOUT if key in stored.encoding}
    if {"chunks", "shards"} & encoding.keys():
        layout = {key: value for key, value in layout.items() if key not in _PER_AXIS}
    is_loaded = variable._in_memory  # noqa: SLF001  # xarray has no public property for this
    if set(_VALUE_ENCODING) & encoding.keys() or not is_loaded or not _is_restorable(name, variable, stored):
        return {**layout, **encoding}
    inherited = {key: stored.encoding[key] for key in _VALUE_ENCODING + _PER_DTYPE if key in stored.encoding}
    if not are_lossless(inherited.get("filters", ()), _stored_dtype(stored)):  # filters that round may not suit others
        del inherited["filters"]
    return {**layout, **inherited, **encoding}


def _is_restorable(name: str, variable: Variable, stored: Variable) -> bool:
    """Return whether values stay equal if they are encoded like a stored variable. Packing may round."""
    if variable.dtype.kind != stored.dtype.kind:
        return False
    dtype, is_packed = _stored_dtype(stored), _is_packed(stored)
    if not is_packed and variable.dtype.kind == dtype.kind == "f" and not _can_hold_all(dtype, variable.to_numpy()):
        return False
    try:
        with _warning_filters, warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # xarray warns when it changes units
            encoded = encode_variable(name, prepare_like(variable, stored))
        cast_lossless(name, encoded, stored, is_time=variable.dtype.kind in "mM")
    except (CodecError, ValueError, UserWarning):
        return False
    return True


# ------------------------------------------------------------------ casts


def cast_lossless(name: str, encoded: Variable, stored: Variable, *, is_time: bool) -> Variable:
    """Return encoded values in the data type of a stored variable. Lazy values are checked when they are computed.

    Args:
        name: The name of the variable.
        encoded: The values, encoded by ``encode_variable`` after ``prepare_like``.
        stored: The stored variable.
        is_time: Whether the values are times or durations.

    Raises:
        CodecError: If xarray encoded the values in other units, or the data type cannot hold a value.
    """
    stored_units, units = stored.encoding.get("units"), encoded.attrs.get("units")
    has_units = "units" in stored.encoding or is_time
    if has_units and _reference_times(stored.encoding) != _reference_times(encoded.attrs):
        raise CodecError(
            f"the values of {name} have units {units!r} and cannot be stored in the units {stored_units!r} of the "
            "existing values",
            direction="encode",
        )
    dtype = _stored_dtype(stored)
    if encoded.dtype == dtype or dtype.kind in "OT":
        return encoded
    cast = partial(_cast, name=name, dtype=dtype, units=stored_units, is_packed=_is_packed(stored))
    data: Any = encoded.data
    result = data.map_blocks(cast, dtype=dtype) if hasattr(data, "map_blocks") else cast(np.asarray(data))
    return Variable(encoded.dims, result, encoded.attrs)


def cast_times(name: str, variable: Variable, dtype: np.dtype[Any]) -> Variable:
    """Return times or durations in the unit of stored ones that are not encoded as numbers.

    Args:
        name: The name of the variable.
        variable: Its values. Lazy values are checked when they are computed.
        dtype: The data type of the stored values.

    Raises:
        CodecError: If a value is not a time or a duration, or not exact in the unit.
    """
    if variable.dtype.kind != dtype.kind:
        raise CodecError(
            f"the values of {name} have type {variable.dtype}, the existing values {dtype}", direction="encode"
        )
    cast = partial(_cast_times, name=name, dtype=dtype)
    data: Any = variable.data
    result = data.map_blocks(cast, dtype=dtype) if hasattr(data, "map_blocks") else cast(np.asarray(data))
    return Variable(variable.dims, result, variable.attrs)


def _cast_times(block: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    result = block.astype(dtype)
    lost = (result.astype(block.dtype) != block) & ~np.isnat(block)
    if lost.any():
        raise CodecError(
            f"the value {block[lost].flat[0]} of {name} is not exact in {dtype}, the type of the existing values",
            direction="encode",
        )
    return result


def _is_packed(stored: Variable) -> bool:
    return bool({"scale_factor", "add_offset"} & stored.encoding.keys())


def _reference_times(attributes: Mapping[Any, Any]) -> Any:
    """Return the times that 0 and 1 encode. They are equal for units that differ only in spelling."""
    units = {name: attributes[name] for name in ("units", "calendar") if name in attributes}
    try:
        encoded = Variable(("t",), np.array([0, 1]), units)
        return decode_cf_variable("t", encoded, decode_timedelta=True).to_numpy().tolist()
    except (ValueError, OverflowError):
        return units


def _stored_dtype(stored: Variable) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(stored.encoding.get("dtype", stored.dtype))
    return dtype


def _cast(
    block: npt.NDArray[Any], name: str, dtype: np.dtype[Any], units: str | None, *, is_packed: bool
) -> npt.NDArray[Any]:
    """Return values in another data type.

    Raises:
        CodecError: If it cannot hold one of them.
    """
    if dtype.kind == "U" and block.dtype.kind in "OT" and all(isinstance(value, str) for value in block.flat):
        block = block.astype(object).astype(str) if block.size else np.empty(block.shape, dtype)
    are_strings = block.dtype.kind == dtype.kind and dtype.kind in "SU"
    if not are_strings and not (block.dtype.kind in _NUMERIC and dtype.kind in _NUMERIC):
        raise CodecError(
            f"the values of {name} have type {block.dtype}, the existing values {dtype}", direction="encode"
        )
    if block.dtype.kind == "c" != dtype.kind and np.imag(block).any():
        raise CodecError(f"the values of {name} are complex, the existing values {dtype}", direction="encode")
    values = np.rint(block) if is_packed and block.dtype.kind == "f" and dtype.kind in "iu" else block
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
        # Floats are rounded to the precision of the data type.
        is_exact = are_strings or dtype.kind in "biu"
        lost = result != values if is_exact else np.isfinite(values) & ~np.isfinite(result)
    if lost.any():
        example, unit_text = values[lost].flat[0].item(), f" ({units})" if units else ""
        raise CodecError(
            f"the value {example!r}{unit_text} of {name} does not fit {dtype}, the type of the existing values",
            direction="encode",
        )
    return result
