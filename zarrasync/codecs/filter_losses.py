"""Checks that filters of numcodecs store values as precisely as they promise.

numcodecs casts without checks: values beyond the range of ``astype`` wrap around, and NaN becomes an integer. Such
values would be lost without notice, so encoding them is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync.codecs.spec import Array

__all__ = ["find_loss", "is_within_range", "may_lose_values"]


def may_lose_values(config: Mapping[str, Any]) -> bool:
    """Return whether a filter can change values by more than its precision.

    Args:
        config: The numcodecs configuration.
    """
    kind = config["id"]
    if kind == "astype":
        return not np.can_cast(config["decode_dtype"], config["encode_dtype"], "safe")
    if kind in ("fixedscaleoffset", "quantize"):
        return True
    # Differences of integers wrap around, and back when they are summed, unless they are stored in fewer bits.
    source, target = np.dtype(config.get("dtype", "u1")), np.dtype(config.get("astype") or config.get("dtype", "u1"))
    return kind == "delta" and source.kind in "iu" and target.itemsize < source.itemsize


def is_within_range(config: Mapping[str, Any], values: Array) -> bool:
    """Return whether a filter certainly keeps values, judged by the smallest and the largest one.

    That takes a fraction of the time of decoding and comparing them. If the result is false, the values may be lost.

    Args:
        config: The numcodecs configuration.
        values: The values, of shape ``(count,)``.
    """
    if not values.size:
        return True
    low, high = values.min().item(), values.max().item()  # NaN makes all comparisons false
    kind, dtype = config["id"], np.dtype(config.get("encode_dtype") or config.get("astype") or config["dtype"])
    if kind in ("fixedscaleoffset", "quantize"):
        return values.dtype.kind == "f" and values.itemsize > 2 and _fits_scaled(config, values, dtype, low, high)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        is_small = kind != "delta" or (dtype.kind == "i" and high - low <= limits.max)
        return bool(is_small and int(limits.min) <= low and high <= int(limits.max))
    are_floats = kind == "astype" and dtype.kind == values.dtype.kind == "f"
    return are_floats and _fits_float(values, low, high, np.finfo(dtype))


def _fits_scaled(config: Mapping[str, Any], values: Array, dtype: np.dtype[Any], low: float, high: float) -> bool:
    """Return whether floats stay within the range of a type when they are multiplied by a filter's scale."""
    scale, offset = 2.0 * 10.0 ** int(config.get("digits", 0)), float(config.get("offset", 0))
    scale = abs(float(config.get("scale", scale)))
    largest = max(abs(low - offset), abs(high - offset), 1.0) * max(scale, 1.0)
    if not 4 * largest < float(np.finfo(values.dtype).max):
        return False
    if config["id"] == "quantize":
        return 4 * largest < float(np.finfo(dtype).max)
    eps = float(np.finfo(values.dtype).eps)
    if dtype.kind not in "iu" or 8 * eps * abs(offset) * scale > 1:  # then a difference to it has too few digits
        return False
    low, high = sorted(((low - offset) * float(config["scale"]), (high - offset) * float(config["scale"])))
    margin = 1 + 8 * eps * largest  # for rounding
    return int(np.iinfo(dtype).min) <= low - margin and high + margin <= int(np.iinfo(dtype).max)


def _fits_float(values: Array, low: float, high: float, limits: Any) -> bool:
    """Return whether floats are finite and not subnormal as floats of another size."""
    if not max(-low, high) <= float(limits.max):
        return False
    tiny = limits.smallest_normal
    return bool(low > tiny or high < -tiny or ((np.abs(values) >= tiny) | (values == 0)).all())


def find_loss(config: Mapping[str, Any], values: Array, decoded: Array) -> str:
    """Return a description of the first value that a filter does not store, or an empty string.

    Args:
        config: The numcodecs configuration.
        values: The values that were encoded, of shape ``(count,)``.
        decoded: The values after decoding, of the same shape.
    """
    with np.errstate(all="ignore"):
        difference = np.abs(decoded.astype(np.float64) - values.astype(np.float64))
        lost = ~((decoded == values) | (difference <= _tolerance(config, values)))
    lost &= (values == values) | (decoded == decoded)  # NaN may stay NaN  # noqa: PLR0124
    if not lost.any():
        return ""
    first = int(np.argmax(lost))
    return f"{values[first]!s} would be read back as {decoded[first]!s} ({int(lost.sum()):,} of {lost.size:,} values)"


def _tolerance(config: Mapping[str, Any], values: Array) -> Any:
    """Return the greatest difference that the precision of a filter explains."""
    if config["id"] == "delta":
        return 0
    if config["id"] == "fixedscaleoffset":
        step = 1 / abs(float(config["scale"]))
    elif config["id"] == "quantize":
        step = 10.0 ** -int(config["digits"])
    else:
        step = 1.0 if np.dtype(config["encode_dtype"]).kind in "iu" else 0.0
    types = [values.dtype, *(np.dtype(config[name]) for name in ("encode_dtype", "astype") if config.get(name))]
    precision = max((float(np.finfo(dtype).eps) for dtype in types if dtype.kind == "f"), default=0.0)
    return step + 4 * precision * np.abs(values.astype(np.float64))
