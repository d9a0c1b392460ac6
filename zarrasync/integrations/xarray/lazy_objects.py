"""Arrays of Python objects as arrays of a data type that can be stored. xarray would compute all values of lazy ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pandas import isnull
from xarray import Variable
from xarray.backends.common import _infer_dtype as infer_dtype
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import check_vlen_dtype, create_vlen_dtype

from zarrasync.errors import CodecError, EncodingError
from zarrasync.integrations.dask_targets import is_dask_array
from zarrasync.metadata.conventions.cf_attributes import FILL, MISSING_VALUE
from zarrasync.metadata.conventions.cf_times import CALENDAR

_vlen_dtype: Any = create_vlen_dtype  # untyped
_STRINGS: np.dtype[Any] = _vlen_dtype(str)
"""The data type by which xarray knows objects as strings."""


def with_numbers(name: str, variable: Variable) -> Variable:
    """Return a variable in memory whose objects are numbers as an array of numbers, with NaN for missing ones.

    Raises:
        EncodingError: If no data type represents all of them.
    """
    infer: Any = ensure_dtype_not_object  # untyped
    values = variable.to_numpy()
    try:
        numbers: Variable = infer(variable.copy(deep=False), name=name)
    except (OverflowError, ValueError) as error:
        _check_width(name, values)
        raise EncodingError(f"{name!r} cannot be encoded: {error}", variable=name) from error
    _check_integers(name, values, numbers.to_numpy())
    return numbers


def _check_width(name: str, values: npt.NDArray[Any]) -> None:
    """Check that an integer type of at most 64 bits represents all integers among objects."""
    integers = [int(value) for value in values.flat if isinstance(value, int | np.integer)]
    least = min(integers, default=0)
    most = 1 << (63 if least < 0 else 64)
    wide = next((value for value in integers if not -1 << 63 <= value < most), None)
    if wide is not None:
        reason = f"no type represents both it and {least}" if 0 < wide < 1 << 64 else "it has more than 64 bits"
        raise _integer_error(name, wide, f"{reason}; convert the values to strings, or to floats with astype(float)")


def _check_integers(name: str, values: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> None:
    """Check that integers among objects were not rounded to floating-point numbers."""
    pairs = zip(values.flat, numbers.ravel().tolist(), strict=True) if numbers.dtype.kind == "f" else ()
    for value, number in pairs:
        if isinstance(value, int | np.integer) and int(value) != number:
            reason = f"with missing values it becomes {numbers.dtype}, which rounds it"
            raise _integer_error(name, value, f"{reason}; fill missing values with an integer, the _FillValue")


def _integer_error(name: str, value: Any, reason: str) -> EncodingError:
    return EncodingError(f"the value {value} of {name!r} cannot be stored: {reason}", variable=name, value=value)


def with_stored_type(name: str, variable: Variable) -> Variable:
    """Return a variable whose lazy Python objects have a data type. Others, and times, are returned as they are.

    The first value that is not missing shows whether the values are strings. Each block is checked when it is computed.
    Numbers and bytes are computed once, block by block, to find a data type that suits all of them.

    Args:
        name: The name of the variable.
        variable: The variable.

    Raises:
        ValueError: If no data type suits the values.
        CodecError: If a value is not a string although the first one is. It is raised when its block is computed.
    """
    data: Any = variable.data
    vlen_dtype: Any = check_vlen_dtype  # untyped
    requested = variable.encoding.get("dtype")
    are_strings = requested is str or (requested is not None and np.dtype(requested).kind in "OT")
    if not (is_dask_array(data) and data.dtype.kind == "O" and vlen_dtype(data.dtype) is None):
        return variable
    if requested is not None and not are_strings:
        return variable
    sample: Any = "" if are_strings else next(_samples(data), None)
    variable = variable.copy(deep=False)
    if type(sample).__module__.partition(".")[0] == "cftime":
        variable.encoding = {CALENDAR: sample.calendar, **variable.encoding}  # xarray would search all dates for it
        return variable
    if isinstance(sample, str):
        # xarray would fill missing values with it, which have been replaced, and forget the data type.
        fills = {key: variable.encoding[key] for key in (FILL, MISSING_VALUE) if variable.encoding.get(key) is not None}
        variable.encoding = {key: value for key, value in variable.encoding.items() if key not in fills}
        variable.attrs = {**variable.attrs, **fills}
        blocks = data.map_blocks(
            partial(_as_strings, name=name), dtype=_STRINGS, meta=np.empty((0,) * data.ndim, _STRINGS)
        )
    else:
        dtype = _common_dtype(name, data)
        blocks = data.map_blocks(partial(_as_dtype, dtype=dtype, name=name), dtype=dtype)
    return variable.copy(data=blocks)


def _samples(data: Any) -> Iterator[Any]:
    """Yield values that are not missing, computing one block after the other."""
    if data.size:
        first = np.asarray(data[(slice(0, 1),) * data.ndim].compute(), object).flat[0]
        if not isnull(first):
            yield first
    for place in np.ndindex(data.numblocks):
        block = np.asarray(data.blocks[place].compute(), object)
        yield from block[~isnull(block)]


def _as_strings(block: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return a block of strings, with an empty string for each missing value."""
    values = np.array(block, object)
    values[isnull(values)] = ""
    for value in values.flat:
        if not isinstance(value, str):
            raise CodecError(
                f"the first value of {name} is a string, but {value!r} is {type(value).__name__}; convert the values to one "
                "type",
                direction="encode",
            )
    return values.astype(_STRINGS)


def _common_dtype(name: str, data: Any) -> np.dtype[Any]:
    """Return the data type of the values of all blocks: a float if some are missing, and the longest length of bytes."""
    summaries = data.map_blocks(
        partial(_summarize, name=name), dtype=object, chunks=tuple((1,) * n for n in data.numblocks)
    )
    found = [item for item in np.asarray(summaries.compute(), object).flat if item is not None]
    dtypes = {dtype for dtype, _ in found if dtype is not None}
    kinds = {dtype.kind for dtype in dtypes}
    if len(kinds) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"the values of {name} have several data types: {names}; convert them to one type")
    common: np.dtype[Any] = np.result_type(*dtypes) if dtypes else np.dtype(float)
    has_missing = any(is_missing for _, is_missing in found)
    return np.dtype(float) if has_missing and common.kind not in "Sfc" else common


def _summarize(block: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return the data type of a block, and whether values are missing, as one object."""
    result = np.empty((1,) * block.ndim, object)
    missing = isnull(block)
    values = block[~missing]
    infer: Any = infer_dtype  # untyped
    _check_width(name, values)
    dtype = infer(values, name) if values.size else None
    if dtype is not None and values.size and isinstance(values.flat[0], bytes):
        dtype = np.array(values.tolist()).dtype
    result[(0,) * block.ndim] = (dtype, bool(missing.any()))
    return result


def _as_dtype(block: npt.NDArray[Any], dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    values = np.array(block, object)
    values[isnull(values)] = b"" if dtype.kind == "S" else np.nan
    result = values.astype(dtype)
    _check_integers(name, values, result)
    return result
