"""Attributes and data types of variables, as headers contain them. No IO."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync.metadata.conventions.cf_attributes import MISSING_VALUE


def code_attributes(dtype: Any) -> dict[str, Any]:
    """Return the attributes of CF that specify the meaning of an enumeration of netCDF-4; none for other data types."""
    members = (getattr(dtype, "metadata", None) or {}).get("enum")
    if not isinstance(members, Mapping):
        return {}
    names = [re.sub(r"\s+", "_", str(name)) for name in members]
    return {"flag_values": [int(value) for value in members.values()], "flag_meanings": " ".join(names)}


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a data type as headers contain it: ``"str"`` for strings."""
    return "str" if dtype.kind in "OT" else dtype.newbyteorder("=").str


def plain_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON values, without NaN as a missing value: NaN is always missing."""
    values = {str(name): _plain(value) for name, value in attributes.items()}
    if isinstance(missing := values.get(MISSING_VALUE), float) and math.isnan(missing):
        del values[MISSING_VALUE]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
        return _plain(value[0]) if isinstance(value, list) and len(value) == 1 else _plain(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value
