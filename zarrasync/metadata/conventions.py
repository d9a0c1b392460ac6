"""What xarray says of arrays where a format has no word for it: names of axes, and which number means missing. Pure.

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

from zarrasync.errors import MetadataError
from zarrasync.metadata.format import Format
from zarrasync.model import fill_values
from zarrasync.model.dtypes import DataType

__all__ = ["DIMENSIONS", "MISSING", "Described", "reworded"]

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute that holds xarray's dimension names in formats without a member for them."""

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

    def axes(self, ndim: int) -> tuple[str | None, ...] | None:
        """The names of axes, wherever they stand."""
        listed = self.attributes.get(DIMENSIONS)
        fits = isinstance(listed, Sequence) and not isinstance(listed, str) and len(listed) == ndim
        if self.names is None and fits and all(isinstance(one, str) for one in listed or ()):
            return tuple(listed or ())
        return self.names

    @property
    def missing(self) -> Any:
        """The number that means missing, if there is one that the data type has."""
        if self.masks and self.fill is not None:
            return self.fill if self.dtype.numpy.kind in "biufc" else None
        word, bits = self.attributes.get(MISSING), 8 * self.dtype.numpy.itemsize if self.dtype.numpy.kind == "i" else 0
        if bits and str(self.attributes.get("_Unsigned")).lower() == "true" and isinstance(word, int) and word > 0:
            word = (word + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)  # as netCDF stores what it has no type for
        return _decoded(word, self.dtype)


def reworded(source: Described, ndim: int, target: Format) -> Described:
    """The same in the words of another format; names of axes that it can not say are left out.

    An array whose axes have no names is nothing of xarray's, so that its fill value means no more than that. A zero that
    nobody has chosen becomes undefined where it would mean missing; who copies the array has to store what is absent then.
    """
    attributes, names, fill = dict(source.attributes), source.axes(ndim), source.fill
    named = names is not None and all(isinstance(one, str) for one in names)
    if named and target.has_dimension_names:
        attributes.pop(DIMENSIONS, None)
    elif named:
        attributes[DIMENSIONS] = list(names or ())
    if named and not target.has_undefined_fill and source.missing is not None:
        attributes[MISSING] = _encoded(source.missing, source.dtype)
    elif named and not target.has_undefined_fill and source.dtype.numpy.kind not in "biufc":
        attributes.pop(MISSING, None)  # xarray reads nothing of a dataset in which something says so of text
    elif named and target.has_undefined_fill and not source.masks:
        if source.missing is not None:
            fill = fill_values.as_fill(source.dtype, source.missing)
            del attributes[MISSING]
        elif MISSING not in attributes and _is_usual(fill, source.dtype):
            fill = None
    own = names if target.has_dimension_names else None
    return Described(source.dtype, attributes, own, fill, target.has_undefined_fill)


def _is_usual(value: Any, dtype: DataType) -> bool:
    """Whether a fill value is the one that arrays have if none is said, bit for bit."""
    usual = dtype.default_fill()
    if value is None or dtype.numpy.kind in "TO":
        return value is None or bool(value == usual)
    return np.asarray(value, dtype.numpy).tobytes() == np.asarray(usual, dtype.numpy).tobytes()


def _encoded(value: Any, dtype: DataType) -> Any:
    """A number of a data type in JSON."""
    kind = dtype.numpy.kind
    if kind == "f":
        return _packed(value)
    if kind == "c":
        return [_packed(value.real), _packed(value.imag)]
    return bool(value) if kind == "b" else int(value)


def _decoded(word: Any, dtype: DataType) -> Any:
    """The number of a word, be it as xarray's own engine writes it or a plain one; ``None`` if the type has no such."""
    kind = dtype.numpy.kind
    if word is None or kind not in "biufc":
        return None
    try:
        if kind == "c":
            word = complex(*map(_unpacked, word)) if isinstance(word, list | tuple) else word
        return fill_values.as_fill(dtype, _unpacked(word) if kind == "f" else word)
    except (MetadataError, TypeError, ValueError, OverflowError, struct.error, binascii.Error):
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
