"""Conversion of values of files to the data type of the dataset, without changing numbers silently. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync.errors import ChecksumError, CodecError, ShapeError
from zarrasync.metadata.conventions.cf_attributes import signed_dtype

_NUMBERS = "biufc"


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
        converted = transfer.cast(values, dtype)
        if values.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS:
            transfer.check_cast(values, converted)
    except (ChecksumError, CodecError) as error:
        raise CodecError(
            f"the values of {name} do not fit the data type {dtype} of the destination: {error}; choose a data type that "
            "represents them in the encoding of the variable, such as f8, or convert the file first",
            direction="encode",
        ) from error
    return converted


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
