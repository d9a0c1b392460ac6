"""Documents and values of random arrays (formats, data types, codecs, grids) survive a round trip."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.strategies import FORMATS, SEEDS, array_options, filled, same, values_of
from zarrasync import formats, sync
from zarrasync.errors import UnsupportedByFormat
from zarrasync.metadata import ArrayMetadata
from zarrasync.model import dtypes

pytestmark = pytest.mark.random

pytest.importorskip("ml_dtypes")

EXAMPLES = int(os.environ.get("ZARRASYNC_EXAMPLES", "200"))
ARRAYS = st.tuples(array_options(), SEEDS)


@pytest.mark.smoke
@given(ARRAYS, st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arrays_come_back(given_: tuple[dict[str, Any], int], data: Any):
    options, seed = given_
    data_type = dtypes.from_numpy(options["dtype"])
    count = int(np.prod(options["shape"], dtype=int))
    fill = values_of(data_type, 1, seed + 1)[0]
    store: dict[str, bytes] = {}
    try:
        made = sync.create_array(store, fill_value=fill, attributes={"a": [1, "é"]}, **options)
    except UnsupportedByFormat:
        assert store == {}
        return
    if options["zarr_format"] in (2, "3-draft-2022") and not same(made.fill_value, fill):
        assert np.isnan(fill)  # these formats have a single NaN, which the array uses at once
        fill = made.fill_value
    expected = filled(options["shape"], fill, data_type)
    values = values_of(data_type, count, seed).reshape(options["shape"])
    box = tuple(slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in options["shape"])
    made[box] = expected[box] = values[box]
    array = sync.open_array(store, mode="r+")
    assert same(array[...], expected)
    assert same(array[box], values[box])
    array[...] = values
    assert same(sync.open_array(store)[...], values)
    documents_come_back(array, options["zarr_format"])


def documents_come_back(array: sync.Array, zarr_format: Any) -> None:
    """Assert that metadata survives rendering and parsing, twice."""
    format_ = formats.by_name(zarr_format)
    metadata = replace(array.metadata, source=None)
    documents = format_.render("p", metadata)
    again = format_.parse("p", documents)
    assert isinstance(again, ArrayMetadata)
    assert format_.render("p", replace(again, source=None)) == documents
    assert format_.render("p", again) == documents
    one, other = replace(metadata, fill_value=None), replace(again, source=None, fill_value=None)
    assert one == other
    assert same(
        np.asarray(metadata.fill_value, metadata.dtype.numpy), np.asarray(again.fill_value, metadata.dtype.numpy)
    )


@given(ARRAYS, st.sampled_from(FORMATS))
@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_copies_are_equal(given_: tuple[dict[str, Any], int], target: Any):
    options, seed = given_
    data_type = dtypes.from_numpy(options["dtype"])
    store: dict[str, bytes] = {}
    try:
        made = sync.create_array(store, **options)
        count = int(np.prod(options["shape"], dtype=int))
        made[...] = values_of(data_type, count, seed).reshape(options["shape"])
        other: dict[str, bytes] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sync.copy(store, other, zarr_format=target, verify=True)
    except UnsupportedByFormat:
        return
    assert sync.validate(other, data=True).ok


@pytest.mark.parametrize("dtype", ["S0", "U0"])
@pytest.mark.parametrize("options", [{}, {"compressors": None}, {"zarr_format": 2}, {"shards": 4}], ids=str)
def test_strings_of_length_zero_round_trip(dtype: str, options: dict[str, Any]):
    """NumPy widens such strings to one character, but the stored values have no bytes."""
    a = sync.create_array({}, shape=4, dtype=dtype, chunks=2, config={"write_empty_chunks": True}, **options)
    a[...] = np.zeros(4, dtype)
    a[1:3] = np.zeros(2, dtype)
    assert a.dtype.itemsize == 0
    assert a[...].tolist() == np.zeros(4, dtype).tolist()
