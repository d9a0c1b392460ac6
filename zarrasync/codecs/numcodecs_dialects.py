"""Configurations of numcodecs' codecs as other writers store them, in the form that numcodecs expects.

netCDF-C writes some numbers as strings, and an element size of 0 for the shuffle filter to mean the data type's size.
GDAL writes the distance of LZMA's delta filter as a separate member, and flags as "YES" and "NO".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync.errors import MetadataError

__all__ = ["normalize_config"]

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
