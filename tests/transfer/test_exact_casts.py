"""Casts that change values are found for all pairs of data types, compared with exact numbers of Python."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from zarrasync.errors import EncodingError
from zarrasync.transfer import as_exact_array, cast, may_change
from zarrasync.transfer.exact_casts import check_cast

DTYPES = [*(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16", "?"]
POWERS = [2**power + step for power in (7, 8, 11, 15, 16, 24, 31, 32, 53, 60, 63, 64) for step in (-1, 0, 1)]
NUMBERS = [0, 1, 2, *POWERS, *(-number for number in POWERS), 0.5, -1.5, 1e-30, 1e30, 1e300, np.inf, -np.inf, np.nan]


def exact(number: Any) -> Any:
    """Return a number of Python that compares exactly; a string for infinity and NaN."""
    number = number.real if isinstance(number, complex) else number
    return Fraction(number) if np.isfinite(number) else str(number)


def is_kept(before: Any, after: Any, is_rounded: bool) -> bool:
    """Return whether a number stays equal, or is rounded to a finite one."""
    before, after = exact(before), exact(after)
    if is_rounded and not isinstance(before, str):
        return not isinstance(after, str)
    return bool(before == after)


@pytest.mark.filterwarnings("ignore")  # of NumPy's casts
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_numbers(source: str, target: str):
    inexact = np.dtype(source).kind in "fc" and np.dtype(target).kind in "fc"
    for number in NUMBERS:
        try:
            values = np.array([number], source)
        except (OverflowError, ValueError):
            continue
        result = cast(values, np.dtype(target))
        kept = is_kept(values[0].item(), result[0].item(), inexact)
        if not kept:
            assert may_change(values.dtype, result.dtype)
            with pytest.raises(EncodingError, match="cannot be stored as"):
                check_cast(values, result)
        else:
            check_cast(values, result)


@pytest.mark.filterwarnings("ignore")  # of NumPy's casts
@pytest.mark.parametrize(
    ("values", "dtype", "changed"),
    [
        (np.array([2**60 + 1, 2.5], object), "f4", 0),
        (np.array([2.5, None], object), "f4", None),
        (np.array([2, 2.5], object), "i4", 1),
        (np.array([True, 2], object), "?", 1),
        (np.array(["ab", "abc"], object), "U2", 1),
        (np.array([b"ab", b"abc"], object), "S2", 1),
        (np.array([7, 123], object), "S2", 1),
        (np.array(["ab", "abc"], "T"), "U2", 1),
        (np.array(["ab", "abc"]), "S2", 1),
        (np.array([12, 123]), "U2", 1),
        (np.array([True, False]), "U4", 1),
        (np.array(["12", "1.5"]), "f4", None),
        (np.array(["2020-01-01", "2020-01-01T12"]), "M8[D]", 1),
        (np.array([np.datetime64("2020-01-01"), np.datetime64("2020-01-01T12")], object), "M8[D]", 1),
        (np.array(["2020-01-01", "NaT"], "M8[D]"), "i8", 1),
        (np.array([1.0, np.nan]), "M8[s]", None),
        (np.array([1.0, 1.5]), "m8[s]", 1),
        (np.array([(1, 2.0), (300, 2.0)], "i4,f8"), "u1,f4", 1),
        (np.array([(1, 2.0), (200, 2.0)], "i4,f8"), "u1,f4", None),
        (np.array([(1, [2, 2]), (1, [2, 300])], "i4,(2,)i4"), "i4,(2,)u1", 1),
        (np.array([0.1 + 2j, 1e300j, np.nan]), "c8", 1),
        (np.array([0.1 + 0.2j, np.nan, complex(0, np.inf)]), "c8", None),
        (np.array([1 + 0j, 2 + 1j]), "i4", 1),
        (np.array(300), "u1", ()),
    ],
)
def test_other_values(values: np.ndarray, dtype: str, changed: Any):
    result = cast(values, np.dtype(dtype))
    if changed is None:
        check_cast(values, result)
        return
    with pytest.raises(EncodingError) as caught:
        check_cast(values, result, (5,) * values.ndim)
    assert caught.value.index == (() if changed == () else (changed + 5,))


def test_numbers_of_machine_learning():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, number in ((ml_dtypes.float8_e4m3fn, 1e9), (ml_dtypes.bfloat16, 257), (ml_dtypes.float8_e5m2, 1e9)):
        with pytest.raises(EncodingError, match="at index 1"):
            as_exact_array([1, number], np.dtype(dtype), 0)
    check_cast(np.array([0.1]), np.array([0.1]).astype(ml_dtypes.bfloat16))


def test_large_arrays_are_compared_in_parts():
    values = np.zeros((3, 2**20), "i4")
    values[1, 7] = values[2, 5] = 300
    with pytest.raises(EncodingError, match=r"the value 300 at index 1, 7 .* 2 of 3,145,728 values"):
        check_cast(values, values.astype("u1"))
