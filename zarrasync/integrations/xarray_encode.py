"""What is stored of a variable beside what is there: in the same units, as the same type, with nothing lost on the way."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pandas import isnull
from xarray import Variable
from xarray.backends.zarr import encode_zarr_variable
from xarray.coding.strings import check_vlen_dtype
from xarray.conventions import decode_cf_variable

from zarrasync.errors import CodecError
from zarrasync.integrations.xarray_stored import FILTERS

__all__ = ["alike", "are_lossless", "as_stored", "fitting", "inherited", "lossless", "without_nan"]

_KEPT = ("units", "calendar", "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""What the values of an array that is there were encoded with, so that others are encoded alike."""
_BY_AXES = ("chunks", "preferred_chunks", "shards", "filters")
_LAYOUT = ("chunks", "preferred_chunks", "shards", "compressors", "compressor")
_OF_TYPE = ("filters", FILTERS, "fill_value")
"""What is said of an array beside that, and goes with its data type."""
_LOSSLESS = {
    *("transpose", "reshape", "base64", "zlib", "gzip", "bz2", "lzma", "lz4", "lzf", "zstd", "blosc", "pcodec"),
    *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
}
"""Filters and compressors that never lose anything."""
_NUMBERS = "biufc"


def without_nan(attributes: Mapping[Any, Any], dtype: np.dtype[Any]) -> dict[Any, Any]:
    """A variable's attributes where NaN is not said to mean missing: it does anyway, and JSON has no word for it."""
    if "missing_value" not in attributes or dtype.kind not in "fc":
        return dict(attributes)
    missing = np.asarray(attributes["missing_value"])
    if missing.dtype.kind not in "fc" or not np.isnan(missing).any():
        return dict(attributes)
    left = {name: value for name, value in attributes.items() if name != "missing_value"}
    finite = missing[~np.isnan(missing)]
    return {**left, "missing_value": finite} if finite.size else left


def fitting(variable: Variable) -> dict[str, Any]:
    """A variable's encoding, without what was said of an array with another number of axes, which it was picked from."""
    encoding = dict(variable.encoding)
    if "fill_value" in encoding and not _holds(encoding.get("dtype", variable.dtype), encoding["fill_value"]):
        del encoding["fill_value"]  # that of another type, which the values had before
    if variable.dtype.kind in "OT":  # of text in format 2 they make bytes, which is said by the data type here
        encoding.pop("filters", None)
    sizes = (encoding.get(name) for name in ("chunks", "shards"))
    if any(isinstance(own, tuple | list) and len(own) != variable.ndim for own in sizes):
        return {name: value for name, value in encoding.items() if name not in _BY_AXES}
    return encoding


def as_stored(name: str, variable: Variable) -> Variable:
    """A variable as its encoding says."""
    variable = _without_gaps(variable, variable.encoding, variable.dtype)
    # Text of any length stays so in format 2, where xarray makes some of the longest length of it.
    encode: Any = encode_zarr_variable  # it has no types
    stored: Variable = encode(variable, name=name, zarr_format=3)
    return stored


def _without_gaps(variable: Variable, encoding: Mapping[str, Any], default: npt.DTypeLike) -> Variable:
    """A variable whose missing texts are what means missing, or empty: xarray would make 'nan' or 'None' of some."""
    told = encoding.get("dtype", default)
    kind, text = np.dtype(told).kind, variable.dtype
    gaps = text.kind == "T" and hasattr(text, "na_object")
    if text.kind == "O":  # to characters, and what other libraries call strings, xarray looks itself
        of_others: Any = check_vlen_dtype  # it has no types
        gaps = told != "S1" and told is not str and of_others(text) is None
    named = [encoding[name] for name in ("_FillValue", "missing_value") if encoding.get(name) is not None]
    if not gaps or kind not in ("OSTU" if named else "STU") or not all(isinstance(one, str | bytes) for one in named):
        return variable
    made = np.dtype("T") if text.kind == "T" else text
    fill = partial(_filled, instead=named[0] if named else b"" if kind == "S" else "", dtype=made)
    data: Any = variable.data
    return variable.copy(data=data.map_blocks(fill, dtype=made) if hasattr(data, "map_blocks") else fill(data))


def _filled(block: npt.NDArray[Any], instead: str | bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Objects, or texts that know missing ones, with something for these."""
    values = block.astype(object)
    values[isnull(values)] = instead
    return values.astype(dtype)


def are_lossless(filters: Any, dtype: np.dtype[Any]) -> bool:
    """Whether filters, or a compressor, of format 2 or 3 bring back all elements of a data type, as far as is known of them."""
    listed = filters if isinstance(filters, list | tuple) else [filters]
    return all(isinstance(one, Mapping) and _is_lossless(one, dtype) for one in listed)


def _is_lossless(told: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    name = str(told.get("id", told.get("name"))).removeprefix("numcodecs.")
    options = told if "id" in told else told.get("configuration", {})
    if name == "delta":
        kinds = (np.dtype(options.get(of, options.get("dtype"))) for of in ("dtype", "astype"))
        return dtype.kind in "iu" and all(kind == dtype for kind in kinds)
    if name == "shuffle":
        size = options.get("elementsize", 4)
        return dtype.kind not in "OT" and isinstance(size, int) and (size < 2 or dtype.itemsize % size == 0)
    return name in _LOSSLESS


def _holds(dtype: npt.DTypeLike, value: Any) -> bool:
    """Whether a value is one of a data type."""
    given, wanted = np.asarray(value), np.dtype(dtype)
    if wanted.kind not in _NUMBERS or given.dtype.kind not in _NUMBERS:
        return bool(given.dtype.kind == wanted.kind)
    return _holds_all(wanted, given)


def _holds_all(dtype: np.dtype[Any], values: npt.NDArray[Any]) -> bool:
    """Whether numbers are the same in a data type."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.array_equal(values.astype(dtype), values, equal_nan=values.dtype.kind in "fc"))


def alike(variable: Variable, present: Variable) -> Variable:
    """A variable that is encoded like what is there.

    xarray would cast numbers and texts to the stored type whether they fit or not, so that they are cast here, later.
    """
    stored, encoding = _stored(present), present.encoding
    wraps = "units" not in encoding or (stored.kind in "iu" and stored != np.int64)  # int64 xarray looks at itself
    later = stored.kind in f"SU{_NUMBERS}" and wraps and "_Unsigned" not in encoding
    variable = _without_gaps(variable, encoding, stored)  # now: without its type, nothing would tell that it is text
    if stored.kind in "fc" and variable.dtype.kind in "biu":  # for the fill value may be none of theirs
        variable = variable.astype("f8")
    variable.encoding = {name: encoding[name] for name in _KEPT if name in encoding and (name != "dtype" or not later)}
    return variable


def inherited(name: str, variable: Variable, present: Variable) -> dict[str, Any]:
    """The encoding of a variable that takes the place of one: what is not said of it is as it was.

    Chunks, shards and compressors are so where the axes are. The type, packing and units are so if that loses nothing, and
    nothing is said of any of them; values that are not in memory are not looked at for that.
    """
    own = fitting(variable)
    if variable.dims != present.dims:
        return own
    layout = {key: present.encoding[key] for key in _LAYOUT if key in present.encoding}
    if {"chunks", "shards"} & own.keys():
        layout = {key: value for key, value in layout.items() if key not in _BY_AXES}
    if set(_KEPT) & own.keys() or not variable._in_memory or not _is_kept(name, variable, present):
        return {**layout, **own}
    kept = {key: present.encoding[key] for key in _KEPT + _OF_TYPE if key in present.encoding}
    if not are_lossless(kept.get("filters", ()), _stored(present)):  # what is rounded need not hold others
        del kept["filters"]
    return {**layout, **kept, **own}


def _is_kept(name: str, variable: Variable, present: Variable) -> bool:
    """Whether values come back when they are encoded like those that are there; packing may round them."""
    if variable.dtype.kind != present.dtype.kind:
        return False
    stored, packed = _stored(present), {"scale_factor", "add_offset"} & present.encoding.keys()
    if not packed and variable.dtype.kind == stored.kind == "f" and not _holds_all(stored, variable.to_numpy()):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of units that would be changed
            encoded = as_stored(name, alike(variable.copy(deep=False), present))
        lossless(name, encoded, present, timed=variable.dtype.kind in "mM")
    except (CodecError, ValueError, UserWarning):
        return False
    return True


def lossless(name: str, encoded: Variable, present: Variable, *, timed: bool) -> Variable:
    """A variable as the type of what is there; ``timed`` says whether it holds times or spans of time.

    Raises:
        CodecError: If it was encoded in other units. For values that do not fit: at once if they are in memory, and
            when they are computed otherwise.
    """
    told = [present.encoding, encoded.attrs] if "units" in present.encoding or timed else []
    if told and _moments(told[0]) != _moments(told[1]):
        there, here = (found.get("units") for found in told)
        raise CodecError(
            f"the values of {name} can not be stored in the units {there!r} of those that are there, but in {here!r}",
            direction="encode",
        )
    stored = _stored(present)
    if encoded.dtype == stored or stored.kind in "OT":
        return encoded
    rounded = bool({"scale_factor", "add_offset"} & present.encoding.keys())
    cast = partial(_cast, name=name, dtype=stored, units=present.encoding.get("units"), rounded=rounded)
    data: Any = encoded.data
    made = data.map_blocks(cast, dtype=stored) if hasattr(data, "map_blocks") else cast(np.asarray(data))
    return Variable(encoded.dims, made, encoded.attrs)


def _moments(told: Mapping[Any, Any]) -> Any:
    """What the numbers 0 and 1 mean in some units, which have many spellings."""
    units = {what: told[what] for what in ("units", "calendar") if what in told}
    try:
        return (
            decode_cf_variable("t", Variable(("t",), np.array([0, 1]), units), decode_timedelta=True)
            .to_numpy()
            .tolist()
        )
    except (ValueError, OverflowError):
        return units


def _stored(present: Variable) -> np.dtype[Any]:
    stored: np.dtype[Any] = np.dtype(present.encoding.get("dtype", present.dtype))
    return stored


def _cast(
    block: npt.NDArray[Any], name: str, dtype: np.dtype[Any], units: str | None, *, rounded: bool
) -> npt.NDArray[Any]:
    """Values as another type, if that holds them."""
    if dtype.kind == "U" and block.dtype.kind in "OT" and all(isinstance(value, str) for value in block.flat):
        block = block.astype(object).astype(str) if block.size else np.empty(block.shape, dtype)
    texts = block.dtype.kind == dtype.kind and dtype.kind in "SU"
    if not texts and not (block.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS):
        raise CodecError(
            f"the values of {name} have type {block.dtype}, those that are there {dtype}", direction="encode"
        )
    if block.dtype.kind == "c" != dtype.kind and np.imag(block).any():
        raise CodecError(f"the values of {name} are complex, those that are there {dtype}", direction="encode")
    given = np.rint(block) if rounded and block.dtype.kind == "f" and dtype.kind in "iu" else block
    with np.errstate(all="ignore"):
        found = given.astype(dtype)
        # Numbers of fewer digits are as near as their type has them.
        exact = texts or dtype.kind in "biu"
        bad = found != given if exact else np.isfinite(given) & ~np.isfinite(found)
    if bad.any():
        worst, of = given[bad].flat[0].item(), f" ({units})" if units else ""
        raise CodecError(
            f"the value {worst!r}{of} of {name} does not fit {dtype}, the type of those that are there",
            direction="encode",
        )
    return found
