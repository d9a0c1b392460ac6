"""Encoding of variables: by their own encoding or like a stored variable.

xarray chooses the attributes and the data type of new variables. ``cf_encode`` makes the stored numbers, and refuses values
that they cannot represent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt
from pandas import isnull
from xarray import Dataset, Variable
from xarray.backends.zarr import FillValueCoder, encode_zarr_variable
from xarray.coding.strings import check_vlen_dtype

from zarrasync.errors import CodecError, EncodingError
from zarrasync.integrations.xarray.lazy_objects import with_numbers, with_stored_type
from zarrasync.integrations.xarray.read import FILTERS
from zarrasync.metadata.conventions.cf_attributes import (
    FILL,
    MISSING_NUMBERS,
    MISSING_VALUE,
    OFFSET,
    SCALE,
    SCALING,
    UNSIGNED,
    VALUE_ATTRIBUTES,
    without_nan,
)
from zarrasync.metadata.conventions.cf_encode import Lossy, encode
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS, are_dates, has_same_origin, units_of

_VALUE_ENCODING = ("dtype", *VALUE_ATTRIBUTES)
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
_TOGETHER = 16 << 20
"""Bytes of values that are encoded together."""
_HINT_NEW = "choose another encoding, or pass lossy='allow' to store it anyway"
_HINT_LIKE = "mode='w' replaces the dataset with another encoding, and lossy='allow' stores it anyway"


def stored_variables(dataset: Dataset) -> dict[str, Variable]:
    """Return the variables of a dataset that was not decoded, with attributes that Zarr can store.

    ``_FillValue`` is encoded as xarray's own engine encodes it.
    """
    variables = {}
    for name, variable in dataset.variables.items():
        attributes = without_nan(variable.attrs)
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


def encode_new(name: str, variable: Variable, lossy: Lossy = "error") -> Variable:
    """Return a variable with the numbers and attributes that its own encoding specifies.

    Args:
        name: The name of the variable.
        variable: The variable. Lazy values are encoded when they are computed.
        lossy: What to do with values that the encoding cannot represent.

    Raises:
        EncodingError: If the encoding cannot represent a value.
    """
    variable = _without_objects(name, _fill_missing_strings(variable, variable.encoding, variable.dtype))
    variable = _with_fixed_strings(name, _without_native_fill(variable), lossy)
    variable, further = _with_one_missing_number(_with_float_scaling(variable))
    has_dates = variable.dtype.kind in "mMO" and _has_dates(variable)
    is_number = variable.dtype.kind in _NUMERIC and _is_numeric(variable.encoding.get("dtype", variable.dtype))
    # Attributes of numbers do not depend on values, but xarray infers the units of times from them.
    needs_values = not is_number and not _are_all_missing(variable)
    template = _encode_with_xarray(name, variable if needs_values else _without_values(variable))
    if not (is_number or (has_dates and template.dtype.kind in _NUMERIC)):
        return template
    template.attrs.update(further)
    names = [key for key in VALUE_ATTRIBUTES if key in further or variable.encoding.get(key) is not None]
    if UNSIGNED in names and template.dtype.kind in "iu":  # xarray omits it without a fill value
        template.attrs[UNSIGNED] = template.encoding.pop(UNSIGNED, variable.encoding[UNSIGNED])
    attributes = {key: template.attrs[key] for key in names if key in template.attrs}
    if has_dates:
        attributes |= {key: template.attrs[key] for key in (UNITS, CALENDAR, "dtype") if key in template.attrs}
    else:
        attributes = {key: value for key, value in attributes.items() if key not in (UNITS, CALENDAR)}
    encoding = CFEncoding.from_attributes(attributes, template.dtype)
    data = _encoded_data(name, variable, encoding, lossy, exact=False, hint=_HINT_NEW)
    return Variable(variable.dims, data, template.attrs, template.encoding)


def _with_float_scaling(variable: Variable) -> Variable:
    """Return a variable whose scale and offset are not integers. xarray cannot decode missing values with such a scale."""
    keys = (SCALE, OFFSET)
    integers = [key for key in keys if isinstance(variable.encoding.get(key), int | np.integer)]
    if not integers:
        return variable
    result = variable.copy(deep=False)
    result.encoding = variable.encoding | {key: float(variable.encoding[key]) for key in integers}
    return result


def _without_native_fill(variable: Variable) -> Variable:
    """Return a variable without the fill value of an array of NumPy's times, which are written as numbers."""
    holders = (variable.attrs, variable.encoding)
    keys = [key for key in MISSING_NUMBERS for held in holders if np.asarray(held.get(key)).dtype.kind in "mM"]
    if not keys:
        return variable
    attributes, encoding = ({key: value for key, value in held.items() if key not in keys} for held in holders)
    return Variable(variable.dims, variable.data, attributes, encoding)


def _with_fixed_strings(name: str, variable: Variable, lossy: Lossy) -> Variable:
    """Return strings with the length that the encoding requests. xarray would cut longer ones."""
    target = variable.encoding.get("dtype", str)
    dtype = np.dtype(target)
    if variable.dtype.kind not in "SUOT" or dtype.kind not in "SU" or not dtype.itemsize or target == "S1":
        return variable
    encoding = CFEncoding.from_attributes({}, dtype)
    return variable.copy(data=_encoded_data(name, variable, encoding, lossy, exact=False, hint=_HINT_NEW))


def _with_one_missing_number(variable: Variable) -> tuple[Variable, dict[str, Any]]:
    """Return a variable with one number for missing values at most, and the attribute with others.

    xarray reads several numbers, and raises an error if it has to write them.
    """
    numbers = np.ravel(variable.encoding.get(MISSING_VALUE, ()))
    fill = variable.encoding.get(FILL)
    is_one = numbers.size == 1 and (fill is None or np.array_equal(numbers, np.ravel(fill), equal_nan=True))
    if not numbers.size or is_one or numbers.dtype.kind not in _NUMERIC:
        return variable, {}
    result = variable.copy(deep=False)
    result.encoding = {key: value for key, value in variable.encoding.items() if key != MISSING_VALUE}
    return result, {MISSING_VALUE: numbers.tolist() if numbers.size > 1 else numbers.item()}


def _encode_with_xarray(name: str, variable: Variable) -> Variable:
    # In format 2 xarray would convert strings of variable length to fixed-length ones.
    with_xarray: Any = encode_zarr_variable  # untyped
    try:
        encoded: Variable = with_xarray(variable, name=name, zarr_format=3)
    except (ValueError, OverflowError) as error:  # dates that the calendar lacks, or nanoseconds 292 years apart
        raise EncodingError(f"{name!r} cannot be encoded: {error}", variable=name) from error
    return encoded


def _are_all_missing(variable: Variable) -> bool:
    """Return whether times with units are all missing, which xarray cannot encode in the standard calendar."""
    is_loaded = variable.dtype.kind == "M" and UNITS in variable.encoding and variable.chunks is None
    return is_loaded and bool(np.isnat(variable.to_numpy()).all())


def _is_numeric(dtype: Any) -> bool:
    return dtype is not str and np.dtype(dtype).kind in _NUMERIC


def _has_dates(variable: Variable) -> bool:
    if variable.dtype.kind != "O":
        return True
    requested = variable.encoding.get("dtype", object)
    vlen_dtype: Any = check_vlen_dtype  # untyped
    if vlen_dtype(variable.dtype) is not None or requested is str or np.dtype(requested).kind in "SUT":
        return False  # they are strings
    data: Any = variable.data
    first = data[(slice(0, 1),) * variable.ndim]  # computes one element of dask arrays, as xarray does
    return are_dates(np.asarray(first)) or (not hasattr(data, "dask") and are_dates(np.asarray(data)))


def _without_objects(name: str, variable: Variable) -> Variable:
    """Return objects that are numbers as an array of numbers. Lazy ones get the data type that their first values suggest."""
    if variable.chunks is not None:
        return with_stored_type(name, variable)
    if variable.dtype.kind != "O":
        return variable
    first = next((value for value in variable.to_numpy().flat if value is not None), None)
    if not isinstance(first, Number):
        return variable
    numbers = with_numbers(name, variable)
    return numbers if numbers.dtype.kind in _NUMERIC else variable


def _without_values(variable: Variable) -> Variable:
    """Return a variable with the same properties and no elements. xarray does not scale integers without casting them."""
    is_scaled = variable.dtype.kind in "biu" and {SCALE, OFFSET} & variable.encoding.keys()
    data = np.zeros((0,) * variable.ndim, np.float64 if is_scaled else variable.dtype)
    return Variable(variable.dims, data, variable.attrs, variable.encoding)


def _encoded_data(name: str, variable: Variable, encoding: CFEncoding, lossy: Lossy, *, exact: bool, hint: str) -> Any:
    """Return the stored numbers of a variable. Lazy values are encoded block by block."""
    is_plain = encoding.dtype == variable.dtype and not encoding.changes_values
    if is_plain or encoding.dtype.kind in "OT":
        return variable.data
    data: Any = variable.data
    options: Any = {"variable": name, "lossy": lossy, "exact": exact, "hint": hint}
    if not hasattr(data, "map_blocks"):
        return _encode_in_memory(np.asarray(data), encoding, options)
    encode_block = partial(_encode_block, encoding=encoding, options=options)
    meta = np.zeros((0,) * variable.ndim, encoding.dtype)
    return data.map_blocks(encode_block, dtype=encoding.dtype, meta=meta)


def _encode_in_memory(values: npt.NDArray[Any], encoding: CFEncoding, options: dict[str, Any]) -> npt.NDArray[Any]:
    """Encode values by rows, because computing in double precision takes several times the memory of the result."""
    if values.nbytes <= _TOGETHER or values.ndim == 0:
        return encode(values, encoding, **options)
    result = np.empty(values.shape, encoding.dtype)
    rows = max(1, len(values) * _TOGETHER // values.nbytes)
    for start in range(0, len(values), rows):
        origin = (start, *(0,) * (values.ndim - 1))
        result[start : start + rows] = encode(values[start : start + rows], encoding, origin=origin, **options)
    return result


def _encode_block(
    block: npt.NDArray[Any], encoding: CFEncoding, options: dict[str, Any], block_info: Any = None
) -> npt.NDArray[Any]:
    corners = block_info[0]["array-location"] if block_info else ()
    return encode(block, encoding, origin=[start for start, _ in corners], **options)


def _fill_missing_strings(variable: Variable, encoding: Mapping[str, Any], default: npt.DTypeLike) -> Variable:
    """Return a variable with the fill value, or "", for missing strings: xarray would write some as 'nan' or 'None'."""
    target = encoding.get("dtype", default)
    target_kind, dtype = np.dtype(target).kind, variable.dtype
    may_be_missing = dtype.kind == "T" and hasattr(dtype, "na_object")
    if dtype.kind == "O":  # xarray handles characters, and objects that other libraries mark as strings
        vlen_dtype: Any = check_vlen_dtype  # untyped
        may_be_missing = target != "S1" and target is not str and vlen_dtype(dtype) is None
    fills = [encoding[name] for name in MISSING_NUMBERS if encoding.get(name) is not None]
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
    return _are_restorable(CFEncoding.from_attributes({}, target), values)


def _are_restorable(encoding: CFEncoding, values: npt.NDArray[Any]) -> bool:
    """Return whether values are equal to what their encoding stands for. Packing may round them."""
    try:
        decoded = encoding.decode(encode(values, encoding, exact=True))
    except CodecError:
        return False
    if encoding.is_packed or values.dtype.kind == "O":
        return True
    return bool(np.array_equal(decoded, values, equal_nan=values.dtype.kind in "fcmM"))


# ------------------------------------------------------------------ like stored variables


def encode_like(name: str, variable: Variable, stored: Variable, lossy: Lossy = "error") -> Variable:
    """Return a variable with the numbers that stand for its values in a stored variable.

    Args:
        name: The name of the variable.
        variable: The variable. Lazy values are encoded when they are computed.
        stored: The stored variable, decoded.
        lossy: What to do with values that the stored variable cannot represent.

    Raises:
        EncodingError: If it cannot represent a value, or the values have other units.
    """
    dtype = _stored_dtype(stored)
    variable = _without_objects(name, _fill_missing_strings(variable.copy(deep=False), stored.encoding, dtype))
    if variable.dtype.kind not in f"mM{_NUMERIC}" and not (variable.dtype.kind == "O" and _has_dates(variable)):
        # xarray's encoding of strings; the encoding without its dtype does not imply another one
        names = [key for key in _VALUE_ENCODING if key in stored.encoding and (key != "dtype" or dtype.kind in "OT")]
        variable.encoding = {key: stored.encoding[key] for key in names}
        variable = _encode_with_xarray(name, variable)
    encoding = _encoding_like(name, variable, stored)
    data = _encoded_data(name, variable, encoding, lossy, exact=True, hint=_HINT_LIKE)
    return Variable(variable.dims, data, variable.attrs)


def decoded_like(name: str, variable: Variable, stored: Variable) -> npt.NDArray[Any]:
    """Return the values of a variable as they would be read again after they are stored like another one.

    Raises:
        EncodingError: If the stored variable cannot represent a value.
    """
    encoded = encode_like(name, variable, stored)
    encoding = _encoding_like(name, variable, stored)
    return encoding.decode(np.asarray(encoded.data)) if encoding.dtype.kind in _NUMERIC else encoded.to_numpy()


def encoding_of(stored: Variable) -> CFEncoding:
    """Return the meaning of the numbers of a stored variable, which is decoded."""
    return CFEncoding.from_attributes(_attributes_of(stored), _stored_dtype(stored))


def _attributes_of(stored: Variable) -> dict[str, Any]:
    attributes = {key: stored.encoding[key] for key in VALUE_ATTRIBUTES if key in stored.encoding}
    if stored.dtype.kind == "m" and UNITS in attributes:
        attributes["dtype"] = "timedelta64"
    return attributes


def _encoding_like(name: str, variable: Variable, stored: Variable) -> CFEncoding:
    """Return the encoding of a stored variable, for values that may be stored numbers already.

    Values that were opened with ``mask_and_scale=False`` or ``decode_times=False`` are. They have the attributes of the encoding.

    Raises:
        EncodingError: If their attributes differ from the encoding.
    """
    attributes = _attributes_of(stored)
    encoding = encoding_of(stored)
    raw = {key: variable.attrs[key] for key in (*SCALING, *MISSING_NUMBERS) if key in variable.attrs}
    if raw:
        own = CFEncoding.from_attributes(raw, encoding.dtype)
        if replace(encoding, times=None, unit="") != own:
            raise EncodingError(
                f"the values of {name} have the attributes {raw}, and cannot be stored with the encoding "
                f"{ {key: attributes[key] for key in (*SCALING, *MISSING_NUMBERS) if key in attributes} } of the existing "
                "values; open them without mask_and_scale=False",
                variable=name,
            )
        encoding = replace(own, missing=(), valid=(None, None), scale=None, offset=None, number_dtype=own.dtype)
        encoding = replace(encoding, times=CFEncoding.from_attributes(attributes, own.dtype).times)
    has_dates = variable.dtype.kind in "mM" or (variable.dtype.kind == "O" and _has_dates(variable))
    if encoding.times is None or has_dates or variable.dtype.kind in "SUT":
        return encoding
    if not has_same_origin(units_of(variable.attrs), units_of(attributes)):
        raise EncodingError(
            f"the values of {name} have units {variable.attrs.get(UNITS)!r} and cannot be stored in the units "
            f"{attributes.get(UNITS)!r} of the existing values",
            variable=name,
        )
    return replace(encoding, times=None)


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
    try:
        if variable.dtype.kind in f"mM{_NUMERIC}":
            return _are_restorable(_encoding_like(name, variable, stored), variable.to_numpy())
        encode_like(name, variable, stored)
    except (CodecError, ValueError):
        return False
    return True


def _stored_dtype(stored: Variable) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(stored.encoding.get("dtype", stored.dtype))
    return dtype
