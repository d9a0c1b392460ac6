"""What is stored of a variable beside what is there: in the same units, as the same type, with nothing lost on the way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable

from zarrasync.errors import CodecError

__all__ = ["fitting", "kept", "lossless"]

_KEPT = ("units", "calendar", "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""What the values of an array that is there were encoded with, so that others are encoded alike."""
_BY_AXES = ("chunks", "preferred_chunks", "shards", "filters")
_NUMBERS = "biufc"


def fitting(variable: Variable) -> dict[str, Any]:
    """A variable's encoding, without what was said of an array with another number of axes, which it was picked from."""
    encoding = dict(variable.encoding)
    sizes = (encoding.get(name) for name in ("chunks", "shards"))
    if any(isinstance(own, tuple | list) and len(own) != variable.ndim for own in sizes):
        return {name: value for name, value in encoding.items() if name not in _BY_AXES}
    return encoding


def kept(present: Variable) -> tuple[str, ...]:
    """What of an array's encoding others are encoded with.

    xarray would cast numbers and texts to its type whether they fit or not, so that they are cast here.
    """
    stored = _stored(present)
    cast_here = stored.kind in f"SU{_NUMBERS}" and not {"units", "_Unsigned"} & present.encoding.keys()
    return tuple(name for name in _KEPT if name != "dtype" or not cast_here)


def lossless(name: str, encoded: Variable, present: Variable) -> Variable:
    """A variable as the type of what is there.

    Raises:
        CodecError: If it was encoded in other units. For values that do not fit: at once if they are in memory, and
            when they are computed otherwise.
    """
    for what in ("units", "calendar"):
        there, here = present.encoding.get(what), encoded.attrs.get(what)
        if there is not None and _plain(here) != _plain(there):
            raise CodecError(
                f"the values of {name} can not be stored in the {what} {there!r} of those that are there, but in {here!r}",
                direction="encode",
            )
    stored = _stored(present)
    if encoded.dtype == stored or stored.kind in "OT":
        return encoded
    rounded = bool({"scale_factor", "add_offset"} & present.encoding.keys())
    cast = partial(_cast, name=name, dtype=stored, rounded=rounded)
    data = encoded.data
    made = data.map_blocks(cast, dtype=stored) if hasattr(data, "map_blocks") else cast(np.asarray(data))
    return Variable(encoded.dims, made, encoded.attrs)


def _plain(units: Any) -> tuple[str, ...]:
    """Units in one spelling: xarray writes the moment that times are counted from in another one than it found."""
    unit, _, moment = str(units).partition(" since ")
    try:
        moment = str(np.datetime64(moment, "ns")) if moment else ""
    except ValueError:  # of another calendar
        pass
    return unit.strip().lower().removesuffix("s"), moment.strip()


def _stored(present: Variable) -> np.dtype[Any]:
    stored: np.dtype[Any] = np.dtype(present.encoding.get("dtype", present.dtype))
    return stored


def _cast(block: npt.NDArray[Any], name: str, dtype: np.dtype[Any], *, rounded: bool) -> npt.NDArray[Any]:
    """Values as another type, if that holds them."""
    texts = block.dtype.kind == dtype.kind and dtype.kind in "SU"
    if not texts and not (block.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS):
        raise CodecError(
            f"the values of {name} have type {block.dtype}, those that are there {dtype}", direction="encode"
        )
    given = np.rint(block) if rounded and block.dtype.kind == "f" and dtype.kind in "iu" else block
    with np.errstate(all="ignore"):
        found = given.astype(dtype)
        # Numbers of fewer digits are as near as their type has them.
        exact = texts or dtype.kind in "biu"
        bad = found != given if exact else np.isfinite(given) & ~np.isfinite(found)
    if bad.any():
        worst = given[bad].flat[0].item()
        raise CodecError(
            f"the value {worst!r} of {name} does not fit {dtype}, the type of those that are there", direction="encode"
        )
    return found
