"""What stored numbers mean by CF, compared with xarray, netCDF4 and NumPy."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync.errors import EncodingError
from zarrasync.metadata.conventions.cf_attributes import inherited_attributes, parents_of_bounds, without_nan
from zarrasync.metadata.conventions.cf_encode import encode
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_flags import Flags

PACKED = {"scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -32767}


def encoding(attributes: dict[str, Any], dtype: Any, **options: Any) -> CFEncoding:
    return CFEncoding.from_attributes(attributes, dtype, **options)


MEANINGS = [
    ({}, np.array([1, 2], "i2")),
    ({"_FillValue": -1}, np.array([1, -1], "i2")),
    ({"_FillValue": -1}, np.array([1, -1], "i4")),
    ({"missing_value": -1}, np.array([1, -1], "i8")),
    ({"_FillValue": -1, "missing_value": -2}, np.array([1, -1, -2, 3], "i2")),
    ({"missing_value": np.array([-9, -99], "i2")}, np.array([-9, -99, 5], "i2")),
    ({"_FillValue": np.float32(1e20)}, np.array([1e20, 5], "f4")),
    ({"_FillValue": np.nan}, np.array([np.nan, np.inf, 5], "f8")),
    ({"scale_factor": 0.1}, np.array([1, 2], "i2")),
    ({"scale_factor": np.float32(0.1)}, np.array([1, 2], "i2")),
    ({"add_offset": np.float32(5)}, np.array([1, 2], "i2")),
    ({"scale_factor": np.float32(0.1), "add_offset": np.float32(5)}, np.array([1, 2], "i2")),
    ({"scale_factor": np.float32(0.1), "add_offset": np.float32(5)}, np.array([1, 2], "i4")),
    ({"scale_factor": 2}, np.array([1, 2], "i2")),
    ({"scale_factor": 0.1, "add_offset": 273.15, "_FillValue": -1}, np.array([1, -1], "i2")),
    ({"scale_factor": 0.5}, np.array([1, 2], "f4")),
    ({"_Unsigned": "true"}, np.array([1, -1], "i1")),
    ({"_Unsigned": "true", "_FillValue": np.int8(-1)}, np.array([1, -1, -2], "i1")),
    ({"_Unsigned": "false"}, np.array([1, 255], "u1")),
    ({"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": np.int16(-1)}, np.array([1, -1, -2], "i2")),
    ({"dtype": "bool"}, np.array([0, 1], "i1")),
]


@pytest.mark.parametrize(("attributes", "stored"), MEANINGS)
@pytest.mark.filterwarnings("ignore")
def test_numbers_mean_what_they_mean_to_xarray(attributes: dict[str, Any], stored: Any):
    xr = pytest.importorskip("xarray")
    expected = xr.conventions.decode_cf_variable("v", xr.Variable("x", stored, attributes)).to_numpy()
    cf = encoding(attributes, stored.dtype)
    found = cf.decode(stored)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == cf.value_dtype
    has_integer_scale = isinstance(attributes.get("scale_factor"), int)  # xarray then keeps integers
    assert found.dtype == expected.dtype or has_integer_scale
    np.testing.assert_array_equal(cf.is_missing(stored), np.isnan(expected.astype("f8")))
    if len(cf.missing) < 2:
        np.testing.assert_array_equal(encode(found, cf), stored)


@pytest.mark.parametrize(
    ("attributes", "stored"),
    [
        ({"valid_range": np.array([0, 10], "i2")}, np.array([-1, 0, 10, 11], "i2")),
        ({"valid_min": np.int16(0)}, np.array([-1, 0, 10, 11], "i2")),
        ({"valid_max": np.int16(10), "scale_factor": 0.5}, np.array([-1, 0, 10, 11], "i2")),
        ({"valid_range": np.array([0.5, 10.5])}, np.array([-1, 0, 10, 11], "i2")),
        ({"valid_max": np.float32(10.0)}, np.array([-1, 0, 10, 11], "f4")),
        ({"missing_value": np.array([3, 4], "i2"), "_FillValue": np.int16(5)}, np.array([2, 3, 4, 5], "i2")),
        ({"_Unsigned": "true", "valid_range": np.array([0, -1], "i1")}, np.array([1, -1, -2], "i1")),
        ({"_Unsigned": "true", "missing_value": np.array([-1, -2], "i1")}, np.array([1, -1, -2], "i1")),
    ],
)
@pytest.mark.filterwarnings("ignore:WARNING. valid_range not used")
def test_numbers_mean_what_they_mean_to_netcdf4(attributes: dict[str, Any], stored: Any, tmp_path: Path):
    netcdf4 = pytest.importorskip("netCDF4")
    fill = attributes.get("_FillValue", False)
    with netcdf4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", len(stored))
        variable = file.createVariable("v", stored.dtype, ("x",), fill_value=fill)
        variable.setncatts({key: value for key, value in attributes.items() if key != "_FillValue"})
        variable.set_auto_maskandscale(False)
        variable[:] = stored
    with netcdf4.Dataset(tmp_path / "a.nc") as file:
        expected = np.ma.asarray(file["v"][:])
    cf = encoding(attributes, stored.dtype)
    np.testing.assert_array_equal(cf.is_missing(stored), np.ma.getmaskarray(expected))
    np.testing.assert_array_equal(cf.unpack(stored)[~cf.is_missing(stored)], expected.compressed())


@pytest.mark.parametrize(
    ("attributes", "dtype", "value", "reason"),
    [
        (PACKED, "i2", 500.0, r"the number 50000.* int16 represents numbers from -32,768"),
        (PACKED, "i2", -500.0, "int16 represents"),
        (PACKED, "i2", -327.67, "its number stands for missing values"),
        (PACKED, "i2", np.inf, "int16 represents"),
        ({}, "i2", np.nan, "does not specify _FillValue"),
        ({}, "u1", -1, "uint8 represents"),
        ({}, "i8", np.uint64(2**63), "int64 represents"),
        ({}, "i8", 2.0**63, "int64 represents"),
        ({}, "u8", 2.0**64, "uint64 represents"),
        ({}, "f4", 1e300, "largest number of float32"),
        ({}, "f2", 70000, "largest number of float16"),
        ({}, "f8", 1 + 1j, "it is complex"),
        ({}, "?", 2, "bool represents"),
        ({"_Unsigned": "true"}, "i1", 256, "uint8 represents"),
        ({"_Unsigned": "true", "_FillValue": -1}, "i1", 255, "stands for missing"),
        ({"missing_value": [-9, -99]}, "f4", -99.0, "stands for missing"),
        ({}, "M8[s]", np.datetime64("2000-01-01T00:00:00.5"), "not exact"),
        ({}, "U3", np.str_("long"), "at most 3 characters"),
    ],
)
def test_values_that_an_encoding_cannot_represent(attributes: Any, dtype: str, value: Any, reason: str):
    values = np.array([value, value])
    good = {"U": np.str_("a"), "M": np.datetime64("2000-01-01")}.get(values.dtype.kind, np.float64(1.0))
    values[0] = good
    cf = encoding(attributes, dtype)
    with pytest.raises(EncodingError, match=reason) as caught:
        encode(values[None], cf, variable="v", origin=(5, 7))
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        assert (error.variable, error.index, error.direction) == ("v", (5, 8), "encode")
        assert error.value == value or np.isnan(value)
    with pytest.warns(UserWarning, match=reason):
        warned = encode(values, cf, lossy="warn")
    allowed = encode(values, cf, lossy="allow")
    assert warned.dtype == allowed.dtype == np.dtype(dtype)
    assert allowed[0] == encode(values[:1], cf)[0]


WIDE = 2**53 + 1
"""An integer that double precision does not represent."""


@pytest.mark.parametrize("dtype", ["i8", "u8", ">i8"])
@pytest.mark.parametrize(
    "attributes",
    [{"_FillValue": 7}, {"valid_max": 2**61}, {"scale_factor": 1}, {"scale_factor": 1.0, "add_offset": 2.0}],
)
def test_integers_are_not_rounded_to_floats(attributes: dict[str, Any], dtype: str):
    cf, offset = encoding(attributes, dtype), int(attributes.get("add_offset", 0))
    exact = np.array([[2**52, 7], [WIDE - 1 - offset, 5]], dtype)
    np.testing.assert_array_equal(cf.decode(exact).ravel()[[0, 2, 3]] - offset, exact.ravel()[[0, 2, 3]].astype("f8"))
    stored = np.array([[2**52, 7], [WIDE - offset, 5]], dtype)
    with pytest.raises(EncodingError, match=rf"the integer {WIDE} cannot be decoded to float64.* 1 of 4") as caught:
        cf.decode(stored)
    assert caught.value.direction == "decode"
    if not cf.is_packed:
        assert cf.decode_masked(stored).tolist() == [[2**52, None if 7 in cf.missing else 7], [WIDE, 5]]
    missing = np.array([cf.missing[0] if cf.missing else 0, 3], dtype)
    assert cf.decode(missing)[1] == 3 + offset


def test_wide_numbers_that_are_missing_or_scaled_are_decoded():
    most = 2**63 - 1
    assert np.isnan(encoding({"_FillValue": most}, "i8").decode(np.array([most]))[0])
    assert np.isnan(encoding({"valid_max": 5, "scale_factor": 1.0}, "i8").decode(np.array([WIDE]))[0])
    assert encoding({"scale_factor": 0.5}, "i8").decode(np.array([WIDE]))[0] == 2.0**52
    cf = encoding({"units": "nanoseconds since 1970-01-01", "scale_factor": 1.0}, "i8")
    with pytest.raises(EncodingError, match="cannot be decoded to float64"):
        cf.decode(np.array([WIDE]))


@pytest.mark.parametrize(
    ("attributes", "value"),
    [
        ({"scale_factor": 1.0}, WIDE),
        ({"add_offset": -1.0}, WIDE - 1),
        ({"scale_factor": 0.5, "_FillValue": -1}, WIDE),
        ({"scale_factor": 0.1}, 10**17 + 8),
        ({"scale_factor": 1.0, "units": "nanoseconds since 1970-01-01"}, np.datetime64(WIDE, "ns")),
    ],
)
def test_packing_loses_no_step_of_wide_integers(attributes: dict[str, Any], value: Any):
    cf = encoding(attributes, "i8")
    for values in (np.array([value, value]), np.array(value)):
        with pytest.raises(EncodingError, match="double precision"):
            encode(values, cf)
    assert encode(np.array([value]), cf, lossy="allow").dtype == "i8"


def test_packing_rounds_wide_integers_within_half_a_step():
    for scale, value in ((1.0, 2**60), (10, 10**17 + 1), (0.1, 10**17), (2.0, WIDE - 3)):
        cf = encoding({"scale_factor": scale}, "i8")
        assert abs(int(cf.decode(encode(np.array([value]), cf))[0]) - value) <= scale / 2


@pytest.mark.parametrize("value", [[0.1, 0.2], "one", [], True])
@pytest.mark.parametrize("key", ["scale_factor", "add_offset"])
def test_a_scale_that_is_not_a_number(key: str, value: Any):
    for more in ({}, {"_FillValue": 7}, {"units": "days since 2000-01-01"}):
        cf = encoding({key: value, **more}, "i2")
        for call in (cf.decode, cf.decode_masked, partial(encode, encoding=cf)):
            with pytest.raises(EncodingError, match=f"the attribute {key} is not a number: "):
                call(np.array([1, 2], "i2"))
    assert encoding({key: None}, "i2").decode(np.array([1, 2], "i2")).tolist() == [1, 2]


@pytest.mark.parametrize(("dtype", "number"), [("f4", 2**24 + 1), ("f8", 2**53 + 1), ("f2", 2**11 + 1), ("c16", WIDE)])
def test_integers_that_floats_would_round(dtype: str, number: int):
    for source in ("i8", "u8"):
        values = np.array([number - 1, number], source)
        with pytest.raises(
            EncodingError, match=f"the value {number} at index 1 .* does not represent it exactly; 1 of 2"
        ):
            encode(values, encoding({"_FillValue": np.nan}, dtype))
        assert encode(values, encoding({}, dtype), lossy="allow")[0] == number - 1
    assert encode([number + 0.25], encoding({}, dtype)).dtype == dtype  # floating-point numbers are rounded


def test_masked_values_are_missing():
    cf = encoding({"_FillValue": -1}, "i8")
    assert encode(np.ma.masked_array([WIDE, 3], [False, True]), cf).tolist() == [WIDE, -1]
    times = np.ma.masked_array(np.array(["2000-01-02", "2000-01-03"], "M8[D]"), [False, True])
    assert encode(times, encoding({"units": "days since 2000-01-01", "_FillValue": -1}, "i4")).tolist() == [1, -1]
    assert np.isnat(encode(times, encoding({}, "M8[D]"))).tolist() == [False, True]
    for dtype in ("U4", "O"):
        with pytest.raises(EncodingError, match="without a mask"):
            encode(np.ma.masked_array(["ab", "cd"], [False, True]), encoding({}, dtype))


def test_rounding_within_half_a_step_is_no_loss():
    values = np.random.default_rng(1).uniform(-300, 300, 1000)
    cf = encoding(PACKED, "i2")
    assert np.abs(cf.decode(encode(values, cf)) - values).max() <= 0.005 * (1 + 1e-12)
    single = values.astype("f4")  # in single precision the quotient would have the wrong last digits
    wide = encoding({"scale_factor": 1e-6, "add_offset": 100.0}, "i4")
    assert np.abs(wide.decode(encode(single, wide)) - single).max() <= 0.5e-6 * (1 + 1e-6)
    assert encode([1.4, -2.6], encoding({}, "i4")).tolist() == [1, -3]
    with pytest.raises(EncodingError, match="whole numbers"):
        encode([1.4], encoding({}, "i4"), exact=True)


@pytest.mark.parametrize("value", [2.5, np.nan, np.datetime64("2000-01-02")])
def test_scalars(value: Any):
    attributes = {"_FillValue": -1, "units": "days since 2000-01-01" if isinstance(value, np.datetime64) else "m"}
    cf = encoding(attributes, "f4")
    stored = encode(np.asarray(value), cf)
    assert stored.shape == ()
    np.testing.assert_array_equal(cf.decode(stored), value)


def test_byte_order_is_kept():
    for dtype in (">i2", ">f4", "<u4"):
        assert encode([1, 2], encoding({"_FillValue": 7}, dtype)).dtype == np.dtype(dtype)
    signed = encoding({"_Unsigned": "true"}, ">i2")
    stored = np.array([-1, 2], ">i2")
    assert signed.decode(stored).tolist() == [65535, 2]
    assert encode([65535, 2], signed).tobytes() == stored.tobytes()


def test_missing_numbers_in_metadata_documents():
    """Documents contain strings for numbers that JSON has no literals for."""
    for text in ("NaN", "AAAAAAAA+H8=", "nan"):
        assert encoding({"_FillValue": text}, "f4").missing == ()
    assert encoding({"missing_value": ["Infinity", -9]}, "f4").missing == (np.inf, -9)
    assert encoding({"missing_value": [1e300, 1.5, "x", None]}, "i2").missing == ()
    assert encoding({"missing_value": 1e300}, "f4").missing == ()  # infinity is a value
    assert encoding({"missing_value": 1e20}, "f4").decode(np.array([1e20, 1], "f4")).tolist() == [
        pytest.approx(np.nan, nan_ok=True),
        1,
    ]
    assert encoding({}, "i2", fill_value=0).missing == (0,)
    assert encoding({"_FillValue": 1}, "i2", fill_value=0).missing == (1, 0)
    assert without_nan({"missing_value": np.nan, "a": 1}) == {"a": 1}
    assert without_nan({"missing_value": np.array([np.nan, 5.0])})["missing_value"].tolist() == [5.0]


def test_bounds_inherit_units_and_calendar():
    variables = {
        "time": {"units": "days since 2000-01-01", "calendar": "noleap", "bounds": "time_bnds"},
        "month": {"units": "days since 1999-01-01", "climatology": "month_bnds"},
        "time_bnds": {},
        "month_bnds": {"units": "hours since 1999-01-01"},
        "lat": {"bounds": "absent"},
    }
    parents = parents_of_bounds(variables)
    assert parents == {"time_bnds": "time", "month_bnds": "month"}
    cf = encoding(variables["time_bnds"], "f8", parent=variables[parents["time_bnds"]])
    assert cf.times == ("days since 2000-01-01", "noleap")
    assert inherited_attributes({"units": "hours since 1999-01-01"}, variables["time"])["calendar"] == "noleap"
    assert encoding(variables["month_bnds"], "f8", parent=variables["month"]).times == (
        "hours since 1999-01-01",
        "standard",
    )


def test_flags():
    cf = encoding({"flag_values": [0, 1, 2], "flag_meanings": "sea land ice", "flag_colors": "#00f #0f0 #fff"}, "i1")
    assert cf.flags is not None
    assert cf.flags.names_of(1) == ("land",)
    assert (cf.flags.colour_of(2), cf.flags.colour_of(7)) == ("#fff", None)
    bits = encoding({"flag_masks": [1, 2, 4], "flag_meanings": "wet hot far"}, "u1").flags
    assert bits is not None
    assert bits.names_of(5) == ("wet", "far")
    both = encoding({"flag_masks": [1, 12, 12], "flag_values": [1, 4, 8], "flag_meanings": "day low high"}, "u1").flags
    assert both is not None
    assert both.names_of(9) == ("day", "high")
    assert encoding({"flag_values": [0, 1], "flag_meanings": "one"}, "i1").flags == Flags(())


def test_kinds_of_values_that_do_not_match():
    times = encoding({"units": "days since 2000-01-01"}, "i8")
    with pytest.raises(EncodingError, match="contains values of the data type int64, but times in"):
        encode([1, 2], times, variable="t")
    with pytest.raises(EncodingError, match="contains dates, but numbers"):
        encode(np.array(["2000-01-01"], "M8[s]"), encoding({"units": "K"}, "f8"))
    with pytest.raises(EncodingError, match="<U1"):
        encode(["a"], encoding({}, "f8"))
