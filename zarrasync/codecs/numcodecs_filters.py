"""Filters of numcodecs: configurations of other writers in the form that numcodecs expects, and checks for lost values.

netCDF-C writes some numbers as strings, and an element size of 0 for the shuffle filter to mean the data type's size.
GDAL writes the distance of LZMA's delta filter as a separate member, and flags as "YES" and "NO".

numcodecs casts without checks: values beyond the range of ``astype`` wrap around, and NaN becomes an integer. Such
values would be lost without notice, so encoding them is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync.codecs.spec import Array
from zarrasync.errors import MetadataError

_CODECS = frozenset(("blosc", "bz2", "gzip", "lz4", "lzma", "shuffle", "zlib", "zstd"))
_NUMBERS = frozenset(
    ("level", "clevel", "preset", "acceleration", "blocksize", "shuffle", "typesize", "elementsize", "delta")
)
"""Members of these codecs that are integers."""
_FLAGS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
"""Strings that stand for the flag ``checksum``, in any case."""
_LZMA_DELTA, _LZMA2 = 0x03, 0x21
"""IDs of liblzma's filters."""


def normalize_config(config: Mapping[str, Any], dtype: np.dtype[Any] | None) -> dict[str, Any]:
    """Return a configuration in the form of numcodecs.

    Args:
        config: The configuration with its ``id``.
        dtype: The dtype of stored elements, if it is known.

    Raises:
        MetadataError: If a string stands for an integer and does not spell one.
    """
    if config["id"] not in _CODECS:
        return dict(config)
    normal = {name: _as_number(value) if name in _NUMBERS else value for name, value in config.items()}
    for name in _NUMBERS & normal.keys():
        if isinstance(normal[name], str):
            raise MetadataError(f"codec {config['id']!r}: {name} must be an integer, found {normal[name]!r}")
    if isinstance(flag := normal.get("checksum"), str):
        normal["checksum"] = _FLAGS.get(flag.lower(), flag)
    if normal["id"] == "shuffle" and normal.get("elementsize") == 0 and dtype is not None:
        normal["elementsize"] = dtype.itemsize
    if normal["id"] == "lzma" and "delta" in normal:
        distance, preset = normal.pop("delta"), normal.pop("preset", None)
        delta = [{"id": _LZMA_DELTA, "dist": distance}] if distance else []
        normal["filters"] = [*delta, {"id": _LZMA2, **({} if preset is None else {"preset": preset})}]
    return normal


def _as_number(value: Any) -> Any:
    """Return the integer that a string spells, or the value unchanged."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,10}", value) else value


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
