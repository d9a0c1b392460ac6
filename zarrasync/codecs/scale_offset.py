"""``scale_offset`` (zarr-extensions): numbers stored after a linear transformation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, Codec
from zarrasync.codecs.configuration import check_members
from zarrasync.codecs.elements import integer_limits, is_real_number, transform_elements
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType
from zarrasync.model.fill_values import fill_from_json, is_float

__all__ = ["ScaleOffsetCodec"]


@dataclass(frozen=True)
class ScaleOffsetCodec(ArrayArrayCodec):
    """``scale_offset``: stores ``(value - offset) * scale``, computed in the array's own data type.

    See "scale_offset" in zarr-extensions.

    Attributes:
        offset: The offset, in the form of a fill value in documents.
        scale: The scale, in the same form.
    """

    name = "scale_offset"
    offset: Any = field(default=0, hash=False)
    scale: Any = field(default=1, hash=False)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "offset", "scale")
        return cls(**configuration)

    def configuration(self) -> dict[str, Any]:
        return {"offset": self.offset, "scale": self.scale}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "configuration": self.configuration()}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if not is_real_number(spec.dtype):
            raise MetadataError(f"codec 'scale_offset' takes real numbers, not data type {spec.dtype.name!r}")
        _, scale = self._parameters(spec.dtype)
        if not scale or not np.isfinite(scale):
            raise MetadataError(f"codec 'scale_offset': a scale of {scale} would lose all values")
        try:
            fill = self._encode_flat(np.array([spec.fill_value], spec.dtype.numpy), spec.dtype)[0]
        except ValueError as error:
            raise MetadataError(
                f"codec 'scale_offset' cannot store the fill value {spec.fill_value!r}: {error}"
            ) from error
        return spec.replace(fill_value=fill)

    def _parameters(self, data_type: DataType) -> tuple[Any, Any]:
        """Return offset and scale as values of a data type."""
        return fill_from_json(data_type, self.offset), fill_from_json(data_type, self.scale)

    def _encode_flat(self, flat: Array, data_type: DataType) -> Array:
        offset, scale = self._parameters(data_type)
        if is_float(data_type.numpy):
            with np.errstate(all="ignore"):
                encoded: Array = (flat - offset) * scale
                return encoded
        low, high = integer_limits(data_type)
        offset, scale = int(offset), int(scale)
        _check_range(flat, low + offset, high + offset, low, high)
        flat = flat - data_type.numpy.type(offset)
        bounds = sorted((_divide_toward_zero(low, scale), _divide_toward_zero(high, scale)))
        _check_range(flat, bounds[0], bounds[1], low, high)
        product: Array = flat * data_type.numpy.type(scale)
        return product

    def _decode_flat(self, flat: Array, data_type: DataType) -> Array:
        offset, scale = self._parameters(data_type)
        if is_float(data_type.numpy):
            with np.errstate(all="ignore"):
                decoded: Array = flat / scale + offset
                return decoded
        low, high = integer_limits(data_type)
        offset, scale = int(offset), int(scale)
        divisor = data_type.numpy.type(scale)
        remainder = flat % divisor
        if scale < 0:  # the lowest integer has no positive counterpart
            _check_range(flat, min(low * scale, high * scale), max(low * scale, high * scale), low, high)
        if remainder.any():
            raise ValueError(f"{flat[remainder != 0][0]} is not a multiple of the scale {scale}")
        flat = flat // divisor
        _check_range(flat, low - offset, high - offset, low, high)
        total: Array = flat + data_type.numpy.type(offset)
        return total

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        function = partial(self._encode_flat, data_type=spec.dtype)
        return transform_elements(self, "encode", function, array, spec.dtype.numpy)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        function = partial(self._decode_flat, data_type=spec.dtype)
        return transform_elements(self, "decode", function, array, spec.dtype.numpy)


def _divide_toward_zero(limit: int, scale: int) -> int:
    return int(math.copysign(1, limit) * math.copysign(1, scale)) * (abs(limit) // abs(scale))


def _check_range(flat: Array, least: int, most: int, low: int, high: int) -> None:
    """Raise ``ValueError`` if a value is not from ``least`` to ``most``, so that a result leaves ``low`` to ``high``."""
    is_outside = (flat < least) | (flat > most)
    if is_outside.any():
        raise ValueError(f"{flat[is_outside][0]} leaves the range from {low} to {high} during the conversion")
