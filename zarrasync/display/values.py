"""Values as text: nested lists for JSON, lines of columns. Pure."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.axis_order import in_c_order

__all__ = ["as_csv", "as_json", "as_json_text", "npy_bytes", "strict"]


def as_json(values: npt.NDArray[Any]) -> Any:
    """Values as nested lists: NaN and NaT are null, infinities and times texts, complex numbers pairs, bytes base64."""
    kind = values.dtype.kind
    if values.dtype.names:
        return _zipped([as_json(values[name]) for name in values.dtype.names], values.ndim)
    if kind == "c":
        return as_json(np.stack([np.real(values), np.imag(values)], axis=-1))
    if kind == "f":
        wide = values.astype(np.float64) if values.dtype.itemsize > 4 else values
        plain = _shortest(wide)
        return plain if np.isfinite(values).all() else strict(plain)
    if kind in "mM":
        texts = np.asarray(np.datetime_as_string(values) if kind == "M" else values.astype(str)).astype(object)
        texts[np.isnat(values)] = None
        return texts.tolist()
    if kind in "SVO":
        return strict(values.tolist())
    return values.tolist()


def _zipped(fields: list[Any], depth: int) -> Any:
    """Nested lists of fields as nested lists of elements, each a list of its fields."""
    return fields if not depth else [_zipped(list(item), depth - 1) for item in zip(*fields, strict=True)]


def _shortest(values: npt.NDArray[Any]) -> Any:
    """Floats as Python's, with no more digits than the type has."""
    if values.dtype == np.float64 or not values.size:
        return values.tolist()
    return values.astype(str).astype(np.float64).tolist()


def strict(value: Any) -> Any:
    """What Python has, as strict JSON can say it."""
    if isinstance(value, Mapping):
        return {str(name): strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, np.ndarray):
        return as_json(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def as_csv(values: npt.NDArray[Any]) -> str:
    """Values as lines of columns: the last axis across, all others down. One value a line where there is one axis."""
    columns = values.shape[-1] if values.ndim > 1 else 1
    rows = values.reshape(values.size // columns if columns else math.prod(values.shape[:-1]), columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(["" if item is None else item for item in row] for row in as_json(rows))
    return text.getvalue()


def as_json_text(values: npt.NDArray[Any], *, ascii_only: bool = False) -> str:
    """Values as one JSON document."""
    return json.dumps(as_json(values), ensure_ascii=ascii_only, allow_nan=False)


def npy_bytes(values: npt.NDArray[Any]) -> bytes:
    """Values as an ``.npy`` file; texts of any length as ones of the longest one's."""
    if values.dtype.kind in "OT":
        values = np.array(values.astype(object).tolist(), dtype="U").reshape(values.shape)
    if values.dtype.type.__module__ == "ml_dtypes":  # such files have no word for small numbers
        values = values.astype(np.int8 if "int" in values.dtype.name else np.float32)
    buffer = io.BytesIO()
    np.save(buffer, in_c_order(values), allow_pickle=False)  # which every reader of such files understands
    return buffer.getvalue()
