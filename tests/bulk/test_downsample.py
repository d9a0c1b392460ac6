"""Reduction of cells of elements: compared with the plain computation of each cell."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from zarrasync.bulk.pyramid.downsample import check_method, coarser_shape, downsample
from zarrasync.errors import UnsupportedOperation
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.pyramids import METHODS

DTYPES = ["?", "u1", "i1", "u2", ">i2", "u4", "i4", "u8", "i8", "f2", "f4", ">f8", "c8"]


def encoding_of(dtype: str, missing: Any = None, **attributes: Any) -> CFEncoding:
    fill = {} if missing is None else {"_FillValue": missing}
    return CFEncoding.from_attributes({**fill, **attributes}, np.dtype(dtype))


def expected_of(cell: list[Any], method: str, missing: Any, dtype: np.dtype[Any]) -> Any:
    """Return the reduced value of the elements of a cell, in row-major order."""
    present = [value for value in cell if value == value and (missing is None or value != missing)]  # NaN
    if not present:
        return math.nan if missing is None or method == "nearest" else missing
    if method == "mode":
        counts = Counter(present)
        return max(value for value in counts if counts[value] == max(counts.values()))
    if method in ("max", "min"):
        return max(present) if method == "max" else min(present)
    if dtype.kind in "fc":
        return sum(present) / len(present)
    mean = Fraction(sum(map(int, present)), len(present))
    rounded = math.floor(mean + Fraction(1, 2))
    if rounded == missing and dtype.kind != "b":
        return rounded + 1 if mean >= rounded else rounded - 1
    return rounded


def reference(values: np.ndarray, factors: tuple[int, ...], method: str, missing: Any) -> np.ndarray:
    result = np.empty(coarser_shape(values.shape, factors), values.dtype)
    for place in np.ndindex(result.shape):
        slices = tuple(slice(i * f, (i + 1) * f) for i, f in zip(place, factors, strict=True))
        result[place] = expected_of(values[slices].reshape(-1).tolist(), method, missing, values.dtype)
    return result


def random(dtype: str, shape: tuple[int, ...], seed: int, few: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if few or kind in "bfc":
        values = rng.integers(0, 2 if kind == "b" else 4, shape).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, shape, dtype=np.dtype(dtype).newbyteorder("="), endpoint=True)
        values = values.astype(dtype)
    if kind in "fc":
        values[rng.random(shape) < 0.3] = np.nan
    return values


@pytest.mark.parametrize("method", [name for name in METHODS if name != "nearest"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cells_are_reduced(method, dtype):
    if method != "mean" and dtype == "c8":
        with pytest.raises(UnsupportedOperation, match="use 'nearest'"):
            check_method(method, encoding_of(dtype))
        return
    cases = product(
        [((97,), (2,)), ((9, 10), (2, 2)), ((2, 5, 7), (1, 2, 3)), ((3, 4, 5), (2, 2, 2))], [None, 0, 1], [True, False]
    )
    for number, ((shape, factors), missing, few) in enumerate(cases):
        values = random(dtype, shape, number, few)
        found = downsample(values, factors, method, encoding_of(dtype, missing))
        assert found.dtype == values.dtype
        expected = reference(values, factors, method, missing)
        if values.dtype.kind in "fc":
            np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == "f2" else 1e-6)
        else:
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_means_of_the_largest_integers_do_not_overflow(dtype):
    limits = np.iinfo(dtype)
    values = np.array(
        [limits.max, limits.max, limits.max - 1, limits.max, limits.min, limits.min, limits.min, limits.min + 3], dtype
    )
    assert downsample(values, (4,), "mean").tolist() == [limits.max, limits.min + 1]
    encoding = encoding_of(dtype, limits.max)
    assert downsample(values, (4,), "mean", encoding).tolist() == [limits.max - 1, limits.min + 1]


def test_means_of_the_largest_floats_do_not_overflow():
    values = np.array([3e38, 3e38, -np.inf, 1, np.nan, np.nan], "f4")
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(downsample(values, (2,), "mean"), np.array([3e38, -np.inf, np.nan], "f4"))


@pytest.mark.parametrize(
    ("n", "factor", "expected"),
    [(7, 2, [0, 2, 4, 6]), (7, 3, [1, 4, 6]), (8, 4, [1, 5]), (9, 4, [1, 5, 8]), (1, 5, [0])],
)
def test_nearest_elements(n, factor, expected):
    assert downsample(np.arange(n), (factor,), "nearest").tolist() == expected
    texts = np.array([str(i) for i in range(n)], np.dtypes.StringDType())
    assert downsample(texts, (factor,), "nearest").tolist() == [str(i) for i in expected]


def test_other_types():
    days = np.array(["2000-01-01", "NaT", "2000-01-03", "2000-01-02"], "M8[D]")
    assert downsample(days, (2,), "max").tolist() == days[[0, 2]].tolist()
    small = np.array([1, 2, 3, 5], ml_dtypes.bfloat16)
    assert downsample(small, (2,), "mean").astype("f4").tolist() == [1.5, 4]
    texts = np.array(["b", "a", "b", "a", "c", "c"], "U1")
    assert downsample(texts, (3,), "mode").tolist() == ["b", "c"]
    with pytest.raises(UnsupportedOperation, match="'mean' cannot reduce"):
        check_method("mean", encoding_of("U1"))
    with pytest.raises(ValueError, match="method must be one of mean, mode"):
        check_method("median", encoding_of("f4"))
