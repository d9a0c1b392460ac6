"""``bitround`` (zarr-extensions): numbers rounded to fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType
from zarrasync.model.fill_values import is_float

__all__ = ["BitroundCodec"]


@dataclass(frozen=True)
class BitroundCodec(ArrayArrayCodec):
    """``bitround``: rounds numbers to some bits, half to even, so that they compress well. Decoding changes nothing.

    See "bitround" in zarr-extensions.

    Attributes:
        keepbits: The number of mantissa bits to keep, at least 1; for integers, of bits from the highest set one.
    """

    name = "bitround"
    keepbits: int

    def __post_init__(self) -> None:
        if type(self.keepbits) is not int or self.keepbits < 1:
            raise ValueError(f"keepbits must be an integer of at least 1, found {self.keepbits!r}")

    def configuration(self) -> dict[str, Any]:
        return {"keepbits": self.keepbits}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        dtype = _component_dtype(spec.dtype)
        if dtype is None or not (dtype.kind in "iumM" or is_float(dtype)) or spec.dtype.bits < 8:
            raise MetadataError(f"codec 'bitround' rounds numbers, not data type {spec.dtype.name!r}")
        return spec

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        dtype = _component_dtype(spec.dtype)
        assert dtype is not None
        native = np.ascontiguousarray(array, spec.dtype.numpy)
        words = np.frombuffer(native.tobytes(), f"u{dtype.itemsize}").copy()
        self._round(words, dtype)
        return words.view(spec.dtype.numpy).reshape(array.shape)

    def _round(self, words: Array, dtype: np.dtype[Any]) -> None:
        """Round numbers of a dtype, given as unsigned integers of its width, in place."""
        kind = words.dtype.type
        if is_float(dtype):
            mantissa = _mantissa_bits(dtype)
            if self.keepbits >= mantissa:
                return
            drop = np.full(words.shape, mantissa - self.keepbits, words.dtype)
            with np.errstate(invalid="ignore"):
                rounds = ~np.isnan(words.view(dtype))  # rounding could turn NaN into a number
        else:
            # The highest set bit. frexp is exact unless the conversion to float rounds up to the next power of two.
            high = np.frexp(words.astype(np.float64))[1].astype(np.int64)
            high -= (high > 0) & (words >> np.maximum(high - 1, 0).astype(words.dtype) == 0)
            rounds = high > self.keepbits
            drop = np.where(rounds, high - self.keepbits, 1).astype(words.dtype)
        one = kind(1)
        increment = ((words >> drop) & one) + ((one << (drop - one)) - one)
        rounded = words + increment
        rounded[rounded < words] = kind(np.iinfo(kind).max)  # instead of wrapping around to zero
        words[rounds] = (rounded & ~((one << drop) - one))[rounds]

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return array


def _component_dtype(data_type: DataType) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a number, or of the parts of a complex one; ``None`` if it is not a number."""
    dtype = data_type.numpy
    if data_type.is_complex:
        return dtype.fields["real"][0] if dtype.fields is not None else np.dtype(f"f{dtype.itemsize // 2}")
    return None if data_type.is_variable or dtype.fields is not None else dtype


def _mantissa_bits(dtype: np.dtype[Any]) -> int:
    if dtype.type.__module__ == "ml_dtypes":
        import ml_dtypes

        return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
    return int(np.finfo(dtype).nmant)
