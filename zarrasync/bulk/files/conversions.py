"""Conversion of values of files to the data type of the dataset, without changing numbers silently. No IO."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync.errors import ChecksumError, CodecError

__all__ = ["convert_values"]

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
