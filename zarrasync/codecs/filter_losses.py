"""Checks that filters of numcodecs store values as precisely as they promise.

numcodecs casts without checks: values beyond the range of ``astype`` wrap around, and NaN becomes an integer. Such
values would be lost without notice, so encoding them is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync.codecs.spec import Array

__all__ = ["find_loss", "may_lose_values"]


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
