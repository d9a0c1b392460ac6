"""Arrays whose stored numbers stand for other values, and what xarray makes of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from zarrasync import sync

__all__ = ["MEANINGS", "Meant", "as_items"]

NAT = np.iinfo("i8").min
NO_FILL = object()
"""The default fill value of format 2, in an array without dimension names, where it does not mean missing."""


@dataclass(frozen=True)
class Meant:
    """Stored numbers, and the attributes that specify their meaning."""

    stored: np.ndarray
    attributes: dict[str, Any] = field(default_factory=dict)
    fill: Any = None  # the fill value of format 2
    valid: tuple[float, float] = (-np.inf, np.inf)  # which xarray ignores

    def create(self, store: Any) -> sync.Array:
        """Write the array ``v``."""
        root = sync.create_group(store, zarr_format=3 if self.fill is None else 2)
        own: dict[str, Any] = {"dimension_names": ("y", "x")}
        if self.fill is not None:
            own = {"fill_value": 0 if self.fill is NO_FILL else self.fill}
        return root.create_array("v", data=self.stored, attributes=self.attributes, **own)

    @property
    def values(self) -> np.ndarray:
        """The values that xarray decodes."""
        attributes = self.attributes | ({} if self.fill in (None, NO_FILL) else {"_FillValue": self.fill})
        dataset = xr.Dataset({"v": (("y", "x"), self.stored, attributes)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xr.SerializationWarning)  # of several missing values
            values = xr.decode_cf(dataset, decode_timedelta=False)["v"].to_numpy()
        low, high = self.valid
        is_valid = (self.stored >= low) & (self.stored <= high) if self.valid != (-np.inf, np.inf) else True
        return np.where(is_valid, values, np.nan) if is_valid is not True else values

    @property
    def numbers(self) -> np.ndarray:
        """The values as floating-point numbers; times in their units."""
        attributes = {**self.attributes, "units": "1"}
        values = Meant(self.stored, attributes, self.fill, self.valid).values.astype("f8")
        is_missing = np.reshape([item is None for item in as_items(self.values)], values.shape)
        return np.where(is_missing, np.nan, values)


def as_items(values: np.ndarray) -> list[Any]:
    """Return values as the items of JSON: ``None`` for missing ones, and seconds of dates."""
    if values.dtype.kind == "M":
        return [None if np.isnat(value) else str(value.astype("M8[s]")) for value in values.flat]
    if values.dtype.kind == "O":
        return [None if value is None or value != value else value.isoformat() for value in values.flat]
    infinite = {np.inf: "Infinity", -np.inf: "-Infinity"}
    return [None if value != value else infinite.get(value, value) for value in values.ravel().tolist()]


def _numbers(dtype: str, *first: Any) -> np.ndarray:
    values = np.arange(12).astype(dtype)
    values[: len(first)] = np.array(first, dtype)
    return values.reshape(3, 4)


DAYS = "days since 2024-02-28"
PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "units": "K"}
MEANINGS = {
    "plain": Meant(_numbers("i4"), {"units": "m"}),
    "booleans": Meant(np.eye(3, 4) > 0),
    "NaN and infinity": Meant(_numbers("f4", np.nan, np.inf, -np.inf)),
    "packed": Meant(_numbers("i2", -32768, 2000), {**PACKED, "_FillValue": -32768}),
    "scale": Meant(_numbers("i4", -5), {"scale_factor": 0.1}),
    "big endian": Meant(_numbers(">i2", 7), {"add_offset": -10, "missing_value": 7}),
    "packed floats": Meant(_numbers("f4", np.nan, 7), {"scale_factor": 2.0, "missing_value": 7.0}),
    "missing value": Meant(_numbers("f4", -999, 1), {"missing_value": -999.0}),
    "both": Meant(_numbers("i2", -1, -2), {"missing_value": -1, "_FillValue": -2}),
    "several": Meant(_numbers("f8", -1, -2, np.nan), {"missing_value": [-1.0, -2.0]}),
    "unsigned": Meant(_numbers("i1", -1, -2, 5), {"_Unsigned": "true", "_FillValue": -1}),
    "unsigned and packed": Meant(_numbers("i2", -1, -2), {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5}),
    "signed": Meant(_numbers("u1", 255, 128), {"_Unsigned": "false", "_FillValue": -128}),
    "valid range": Meant(_numbers("i2", -5), {"valid_range": [0, 8]}, valid=(0, 8)),
    "valid minimum": Meant(_numbers("f4", -5), {"valid_min": 2.0}, valid=(2, np.inf)),
    "days": Meant(_numbers("i8", NAT, 1), {"units": DAYS}),
    "hours": Meant(_numbers("f8", np.nan, 1.5), {"units": "hours since 2024-01-01 06:00", "calendar": "standard"}),
    "packed times": Meant(_numbers("i2", -1), {"units": DAYS, "scale_factor": 2}),
    "noleap": Meant(_numbers("i4", -1), {"units": DAYS, "calendar": "noleap"}),
    "flags": Meant(_numbers("u1", 255), {"flag_values": [0, 1], "flag_meanings": "no yes", "_FillValue": 255}),
    "stored booleans": Meant(np.eye(3, 4, dtype="i1"), {"dtype": "bool"}),
    "fill value of format 2": Meant(_numbers("i2", -7), {"units": "m"}, fill=-7),
    "floats of format 2": Meant(_numbers("f4", -7), PACKED, fill=-7.0),
    "zeros of xarray in format 2": Meant(_numbers("i4"), {"_ARRAY_DIMENSIONS": ["y", "x"]}, fill=0),
    "zeros of format 2": Meant(_numbers("i4"), fill=NO_FILL),
}
