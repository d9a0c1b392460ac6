"""Helpers for codecs that transform or check single elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zarrasync.codecs.base import Codec
from zarrasync.codecs.spec import Array
from zarrasync.model.dtypes import DataType
from zarrasync.model.fill_values import is_float

__all__ = ["check_limits", "integer_limits", "is_real_number", "transform_elements"]


def is_real_number(data_type: DataType) -> bool:
    """Return whether elements are integers or real floating-point numbers."""
    return not data_type.is_complex and (data_type.numpy.kind in "iu" or is_float(data_type.numpy))


def integer_limits(data_type: DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer data type, which may have less than 8 bits."""
    if data_type.limits is not None:
        return data_type.limits
    info = np.iinfo(data_type.numpy)
    return int(info.min), int(info.max)


def check_limits(codec: Codec, array: Array, limits: tuple[int, int] | None) -> None:
    """Check that integers are representable in the bits of their data type.

    Raises:
        CodecError: If one is not.
    """
    if limits is not None and array.size and (int(array.min()) < limits[0] or int(array.max()) > limits[1]):
        low, high = limits
        raise codec.fail(f"values must be from {low} to {high}, found {array.min()} to {array.max()}", "encode")


def transform_elements(
    codec: Codec, direction: str, function: Callable[[Array], Array], array: Array, dtype: np.dtype[Any]
) -> Array:
    """Apply a function to the flat elements of an array, in native byte order, and restore its shape.

    Args:
        codec: The codec that messages name.
        direction: ``"decode"`` or ``"encode"``.
        function: The function. It may raise ``ValueError``.
        array: The array.
        dtype: The dtype of the function's argument.

    Raises:
        CodecError: If the function raises ``ValueError``.
    """
    try:
        return function(np.ascontiguousarray(array, dtype).reshape(-1)).reshape(array.shape)
    except ValueError as error:
        raise codec.fail(str(error), direction) from error
