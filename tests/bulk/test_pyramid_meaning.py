"""Levels of numbers with a meaning: xarray decodes the finest level and the next one, and NumPy reduces the values."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.errors import UnsupportedOperation
from zarrasync.metadata.conventions.cf_attributes import encode_float
from zarrasync.metadata.conventions.pyramids import METHODS

xarray = pytest.importorskip("xarray")

SMALL = np.arange(-20, 20)
"""Valid numbers of most arrays. Means of some of them are equal to missing numbers such as 0."""
KINDS: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "none": ("i4", SMALL, None, {}),
    "NaN": (">f4", SMALL / 4, np.nan, {}),
    "_FillValue": ("i2", SMALL[SMALL != 0], 0, {"_FillValue": 0}),
    "of floats": ("f8", SMALL / 4, 1e20, {"_FillValue": 1e20}),
    "missing_value": ("i2", SMALL[:-2], 19, {"missing_value": [19, 18]}),
    "both": (">i2", SMALL, -999, {"_FillValue": -999, "missing_value": -998}),
    "valid_range": ("i2", SMALL[5:-5], 99, {"_FillValue": -999, "valid_range": [-15, 14]}),
    "packed": ("i2", SMALL, -999, {"_FillValue": -999, "scale_factor": 0.01, "add_offset": 273.15}),
    "descending": ("i4", SMALL, -999, {"_FillValue": -999, "scale_factor": -0.5}),
    "unsigned": ("i2", SMALL + 32768, 65535, {"_FillValue": -1, "_Unsigned": "true", "scale_factor": 0.1}),
    "unsigned byte": ("i1", SMALL + 128, 255, {"_FillValue": -1, "_Unsigned": "true", "valid_range": [0, -2]}),
    "signed": ("u1", SMALL, -128, {"_FillValue": -128, "_Unsigned": "false"}),
    "days": ("i8", SMALL, -999, {"_FillValue": -999, "units": "days since 2000-02-29", "calendar": "standard"}),
    "flags": ("u1", np.array([1, 2, 4]), 255, {"_FillValue": 255, "flag_masks": [1, 2, 4], "flag_meanings": "a b c"}),
    "flags without meanings": ("u1", np.array([1, 2, 4]), 255, {"_FillValue": 255, "flag_values": [1, 2, 4]}),
}
"""The data type, valid numbers, the number of missing elements, and the attributes."""


def draw(dtype: str, valid: Any, missing: Any) -> np.ndarray:
    """Return stored numbers: random ones, single missing ones, and cells without others."""
    rng = np.random.default_rng(0)
    numbers = rng.choice(valid, (40, 60)).astype("f8" if np.asarray(valid).dtype.kind == "f" else "i8")
    if missing is not None:
        numbers[(rng.random(numbers.shape) < 0.3) | (np.arange(60) < 6)] = missing
    return numbers.astype(dtype)


def write(store: Any, kind: str, zarr_format: int) -> np.ndarray:
    """Write an array as xarray does: format 2 has the missing number as its fill value."""
    dtype, valid, missing, attributes = KINDS[kind]
    options: dict[str, Any]
    values, attributes = draw(dtype, valid, missing), dict(attributes)
    if zarr_format == 2:
        fill = attributes.pop("_FillValue", None)
        options = {"fill_value": None if fill is None else np.asarray(fill).astype(dtype)}
        attributes["_ARRAY_DIMENSIONS"] = ["y", "x"]
    else:
        options = {"dimension_names": ("y", "x")}
        if np.dtype(dtype).kind == "f" and "_FillValue" in attributes:
            attributes["_FillValue"] = encode_float(attributes["_FillValue"])
    group = sync.create_group(store, zarr_format=zarr_format)
    group.create_array("v", data=values, chunks=(16, 16), attributes=attributes, **options)
    return values


def decoded(store: Path, name: str, others: list[str]) -> np.ndarray:
    """Return the values that xarray reads, as numbers in which NaN is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several missing numbers
        variable = xarray.open_dataset(store, engine="zarr", consolidated=False, drop_variables=others)[name]
    values = variable.values
    if values.dtype.kind == "M":
        values = (values - np.datetime64("2000-02-29")) / np.timedelta64(1, "D")
    limits = variable.attrs.get("valid_range")
    if limits is not None and "_Unsigned" not in variable.encoding:  # xarray leaves these to others
        values = np.where((values < limits[0]) | (values > limits[1]), np.nan, values)
    return values.astype("f8")


def reduced(values: np.ndarray, method: str) -> np.ndarray:
    """Return the reduced values of cells of 2 x 2; of modes all candidates."""
    cells = values.reshape(20, 2, 30, 2).swapaxes(1, 2).reshape(20, 30, 4)
    if method == "nearest":
        return cells[..., 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # means of nothing
        if method != "mode":
            return getattr(np, f"nan{method}")(cells, axis=-1)
    counts = (cells[..., None] == cells[..., None, :]).sum(-1)
    return np.where(counts == np.maximum(counts.max(-1, keepdims=True), 1), cells, np.nan)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_levels_are_of_the_values_that_xarray_reads(api: Api, tmp_path: Path, kind: str, zarr_format: int):
    write(tmp_path / "a", kind, zarr_format)
    source, has_codes = decoded(tmp_path / "a", "v", []), kind.startswith("flags")
    for method in METHODS:
        dest = tmp_path / method
        sync.create_group(dest, zarr_format=zarr_format)
        if has_codes and method == "mean":
            with pytest.raises(UnsupportedOperation, match="another code; use 'mode' or 'nearest'"):
                await api(api.pyramid(tmp_path / "a", path="v", dest=dest, levels=2, method=method))
            continue
        report = await api(api.pyramid(tmp_path / "a", path="v", dest=dest, levels=2, method=method))
        assert report.left_out == []
        compare(kind, method, reduced(source, method), decoded(dest, "1", ["0"]))
    assert sync.validate(dest).findings == []


def compare(kind: str, method: str, expected: np.ndarray, found: np.ndarray) -> None:
    dtype, _, missing, attributes = KINDS[kind]
    if method == "mode":
        is_one = (found[..., None] == expected).any(-1) | (np.isnan(found) & np.isnan(expected).all(-1))
        assert is_one.all()
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), err_msg=method)
    step = 0.0 if method != "mean" or dtype.endswith(("f4", "f8")) else abs(attributes.get("scale_factor", 1))
    differences = np.abs(found - expected)
    if method == "mean" and missing == 0:  # a mean that rounds to 0 would be read as missing
        differences -= np.where(np.abs(expected) <= 0.5, 0.5, 0)
    assert np.nanmax(differences) <= 0.5 * step + 1e-6 * np.nanmax(np.abs(expected)), method


async def test_a_cell_without_values_is_the_missing_number(api: Api):
    for kind in ("both", "valid_range", "unsigned"):
        store: dict[str, bytes] = {}
        write(store, kind, 3)
        await api(api.pyramid(store, path="v", levels=2))
        fill = KINDS[kind][3]["_FillValue"]
        assert (sync.open_array(store, path="v_1")[:, :3] == fill).all()
    store = {}
    sync.create_array(store, path="0", data=np.full((2, 2), 7), dimension_names=("y", "x"))
    with pytest.raises(ValueError, match=r"no element of the data type int64 is equal to 0\.5"):
        await api(api.pyramid(store, levels=2, missing=0.5))
    await api(api.pyramid(store, levels=2, missing=[8, 7]))
    assert sync.open_array(store, path="1")[...].tolist() == [[8]]


@pytest.mark.parametrize(
    "name",
    [
        "wind_from_direction",
        "sea_surface_wave_from_direction_at_variance_spectral_density_maximum",
        "direction_of_sea_ice_velocity",
        "solar_azimuth_angle",
        "longitude",
    ],
)
async def test_directions_have_no_mean(api: Api, name: str):
    values = np.tile(np.array([[1.0, 359], [359, 1]]), (8, 8))
    attributes = {"units": "degree", "standard_name": name}
    sync.create_array(store := {}, path="a", data=values, dimension_names=("y", "x"), attributes=attributes)
    report = await api(api.pyramid(store, path="a", dest=(dest := {}), levels=2))
    assert report.method == "nearest"
    assert {*np.unique(sync.open_array(dest, path="1")[...])} <= {1.0, 359.0}
    with pytest.raises(UnsupportedOperation, match="directions: that of 359 and 1 degrees would be 180"):
        await api(api.pyramid(store, path="a", dest={}, levels=2, method="mean"))


def test_flags_get_their_most_frequent_value():
    for kind in ("flags", "flags without meanings"):
        write(store := {}, kind, 3)
        assert sync.pyramid(store, path="v", levels=2).method == "mode"


def test_means_of_dates():
    days = np.array([["2000-01-01", "NaT"], ["2000-01-05", "2000-01-03"], ["NaT", "NaT"]], "M8[D]")
    sync.create_array(store := {}, path="0", data=days, dimension_names=("y", "x"))
    sync.pyramid(store, levels=2)
    level = sync.open_array(store, path="1")[...]
    np.testing.assert_array_equal(level, np.array([["2000-01-03"], ["NaT"]], "M8[D]"))
