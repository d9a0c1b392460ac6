"""Whatever is stored is read back equal within the step of its packing, or the write is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from zarrasync.errors import EncodingError

xr: Any = pytest.importorskip("xarray")
pytest.importorskip("zarr")

from zarrasync.integrations.xarray import write_dataset  # after the skip

DTYPES = ["i1", "u1", "i2", "u2", "i4", "i8", "f4", "f8"]
NUMBERS = st.one_of(
    st.integers(-300, 300).map(float),
    st.floats(width=64),
    st.sampled_from([-128.0, 127.0, 255.0, 32767.0, -32768.0, 65535.0, -1.0, 0.0, 2.0**31, np.nan, np.inf]),
)


@st.composite
def encodings(draw: st.DrawFn) -> dict[str, Any]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    encoding: dict[str, Any] = {"dtype": dtype}
    if draw(st.booleans()):
        encoding["scale_factor"] = draw(st.sampled_from([0.01, 0.5, 1.0, 2.0, 1000.0]))
    if draw(st.booleans()):
        encoding["add_offset"] = draw(st.sampled_from([0.0, 273.15, -100.0]))
    if draw(st.booleans()):
        encoding["_FillValue"] = dtype.type(draw(st.sampled_from([0, 1, 127, -1 if dtype.kind != "u" else 5])))
        if dtype.kind == "i" and draw(st.booleans()):
            encoding["_Unsigned"] = "true"
    return encoding


@given(values=arrays.arrays(np.float64, st.integers(1, 4), elements=NUMBERS), encoding=encodings(), lazy=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_numbers_are_read_back_or_refused(values: Any, encoding: dict[str, Any], lazy: bool):
    dataset = xr.Dataset({"v": ("x", values)})
    store: dict[str, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            write_dataset(dataset.chunk(x=2) if lazy else dataset, store, encoding={"v": encoding})
        except EncodingError:
            assert not store
            return
        found = xr.open_dataset(store, engine="zarrasync").v.to_numpy().astype("f8")
    dtype, scale = encoding["dtype"], encoding.get("scale_factor", 1.0)
    step = scale / 2 if dtype.kind in "iu" else 0.0
    size = np.abs(values) + abs(encoding.get("add_offset", 0.0))
    precision = size * (1e-6 if dtype == "f4" else 1e-12) + (1e-40 if dtype == "f4" else 0) * scale
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found[~finite], values[~finite])
    assert (np.abs(found[finite] - values[finite]) <= step * (1 + 1e-9) + precision[finite]).all()
