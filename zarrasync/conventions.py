"""What xarray says of arrays where a format has no word for it: names of axes, and which value means missing. Pure.

Where axes have no names in the format, they are in an attribute. Where a fill value can be left undefined, one that is
defined means missing; elsewhere an attribute tells of that, in which floating point numbers are the base64 of their bytes.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrasync.dtypes import DataType
from zarrasync.formats import Format
from zarrasync.info import DIMENSIONS

__all__ = ["MISSING", "Described", "reworded"]

MISSING = "_FillValue"
"""The attribute that tells which value means missing."""


class Described(NamedTuple):
    """What an array's metadata say beside shapes and codecs.

    Attributes:
        dtype: The data type.
        attributes: The attributes.
        names: The names of axes, where the format has a place for them.
        fill: The fill value; ``None`` where it is undefined.
        masks: Whether a defined fill value means missing.
    """

    dtype: DataType
    attributes: Mapping[str, Any]
    names: tuple[str | None, ...] | None
    fill: Any
    masks: bool


def reworded(source: Described, ndim: int, target: Format) -> Described:
    """The same in the words of another format; names of axes that it can not say are left out.

    An array whose axes have no names is nothing of xarray's, so that its fill value means no more than that. A zero that
    nobody has chosen becomes undefined where it would mean missing; absent elements read as zeros there, too.
    """
    attributes, names = dict(source.attributes), source.names
    listed = attributes.get(DIMENSIONS)
    fits = isinstance(listed, Sequence) and not isinstance(listed, str) and len(listed) == ndim
    if names is None and fits and all(isinstance(one, str) for one in listed or ()):
        names = tuple(listed or ())
    named = names is not None and all(isinstance(one, str) for one in names)
    if named and target.has_dimension_names:
        attributes.pop(DIMENSIONS, None)
    elif named:
        attributes[DIMENSIONS] = list(names or ())
    fill = source.fill
    if named and source.masks and not target.has_undefined_fill:
        word = None if fill is None else _encoded(fill, source.dtype)
        if word is not None:
            attributes.setdefault(MISSING, word)
    elif named and not source.masks:
        missing = _decoded(attributes.get(MISSING), source.dtype)
        if missing is not None and target.has_undefined_fill:
            fill = missing
            del attributes[MISSING]
        elif missing is not None:
            attributes[MISSING] = _encoded(missing, source.dtype)
        elif target.has_undefined_fill and MISSING not in attributes and _is_usual(fill, source.dtype):
            fill = None
    own = names if target.has_dimension_names else None
    return Described(source.dtype, attributes, own, fill, target.has_undefined_fill)


def _is_usual(value: Any, dtype: DataType) -> bool:
    """Whether a fill value is the one that arrays have if none is said."""
    return value is None or bool(np.all(np.asarray(value == dtype.default_fill())))


def _encoded(value: Any, dtype: DataType) -> Any:
    """A value of a data type in JSON; ``None`` for types that it has no words for."""
    kind = dtype.numpy.kind
    if kind == "f":
        return _packed(value)
    if kind == "c":
        return [_packed(value.real), _packed(value.imag)]
    if kind in "biu":
        return bool(value) if kind == "b" else int(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, str) else None


def _decoded(word: Any, dtype: DataType) -> Any:
    """The value of a word, be it as xarray's own engine writes it or a plain number; ``None`` if it is none."""
    kind = dtype.numpy.kind
    try:
        if kind == "f":
            return _unpacked(word)
        if kind == "c":
            return complex(*map(_unpacked, word))
        if kind in "biu":
            return bool(word) if kind == "b" and word is not None else int(word)
        if kind == "S" or dtype.name == "bytes":
            return base64.b64decode(word, validate=True)
        return word if kind in "UT" and isinstance(word, str) else None
    except (TypeError, ValueError, OverflowError, struct.error, binascii.Error):
        return None


def _packed(number: float) -> str:
    return base64.b64encode(struct.pack("<d", float(number))).decode()


def _unpacked(word: Any) -> float:
    if not isinstance(word, str):
        return float(word)
    try:
        return float(struct.unpack("<d", base64.b64decode(word, validate=True))[0])
    except (struct.error, binascii.Error):
        return float(word)
