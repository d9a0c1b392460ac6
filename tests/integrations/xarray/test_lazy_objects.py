"""Lazy arrays of Python objects and strings, which are written block by block."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.covering import covering
from zarrasync.errors import CodecError, EncodingError

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
da = pytest.importorskip("dask.array")
from zarrasync.integrations.xarray import WriteOptions, write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore", "error::xarray.SerializationWarning")

BLOCKS, ROWS = 6, 3


class Blocks:
    """A source of blocks of values, which counts those that are computed.

    Args:
        value: Returns the value of an element from its number.
        dtype: The data type of the array.
    """

    def __init__(self, value: Callable[[int], Any], dtype: Any = object) -> None:
        self.value, self.dtype, self.count = value, np.dtype(dtype), 0

    def __call__(self, block_id: Any = None) -> Any:
        self.count += 1
        return np.array(self.values[block_id[0] * ROWS : (block_id[0] + 1) * ROWS])

    @property
    def values(self) -> Any:
        values = np.empty(BLOCKS * ROWS, self.dtype)
        values[:] = [self.value(n) for n in range(BLOCKS * ROWS)]
        return values

    @property
    def lazy(self) -> Any:
        chunks = ((ROWS,) * BLOCKS,)
        return da.map_blocks(self, chunks=chunks, dtype=self.dtype, meta=np.empty((0,), self.dtype))


def write(blocks: Blocks, path: Path, *, compute: bool, **options: Any) -> int:
    """Write a dataset with a single thread. Return the number of blocks that were computed to plan it."""
    import dask

    with dask.config.set(scheduler="synchronous"):
        later = write_dataset(
            xr.Dataset({"v": ("x", blocks.lazy)}), path, options=WriteOptions(compute=compute), **options
        )
        planned = blocks.count
        if not compute:
            later.compute()
    return planned


STRING = np.dtypes.StringDType()
CASES: dict[str, tuple[Callable[[int], Any], Any, dict[str, Any], int]] = {
    "strings": (lambda n: f"s{n}" * (n + 1), object, {}, 2),
    "missing strings": (lambda n: None if n % 2 else f"s{n}", object, {}, 2),
    "strings after missing ones": (lambda n: f"s{n}" if n > 5 else None, object, {}, 6),
    "requested strings": (lambda n: f"s{n}", object, {"dtype": str}, 1),
    "requested strings of a length": (lambda n: f"s{n}", object, {"dtype": "U4"}, 1),
    "numpy's strings": (lambda n: f"s{n}", STRING, {}, 0),
    "strings of a length": (lambda n: f"s{n}", "U4", {}, 0),
}


@pytest.mark.parametrize(("kind", "zarr_format", "compute"), covering(list(CASES), [2, 3], [True, False]))
def test_strings_are_computed_once(kind: str, zarr_format: Any, compute: bool, tmp_path: Path):
    value, dtype, encoding, samples = CASES[kind]
    blocks = Blocks(value, dtype)
    planned = write(blocks, tmp_path, compute=compute, zarr_format=zarr_format, encoding={"v": encoding})
    assert blocks.count <= BLOCKS + samples
    assert compute or planned <= samples
    found = xr.open_dataset(tmp_path, engine="zarrasync").v.values
    assert found.tolist() == [item or "" for item in blocks.values]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (lambda n: n, "i8", None),
        (lambda n: None if n == 4 else n, "f8", np.nan),
        (np.float32, "f4", None),
        (lambda n: None if n == 4 else np.float32(n), "f4", np.nan),
        (lambda n: None, "f8", np.nan),
        (lambda n: bool(n % 2), "?", None),
        (lambda n: b"a" * (n + 1), "S18", None),
        (lambda n: None if n == 4 else b"ab", "S2", b""),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_data_type_that_suits_all_blocks(value: Any, dtype: str, expected: Any, zarr_format: Any, tmp_path: Path):
    blocks = Blocks(value)
    write(blocks, tmp_path, compute=False, zarr_format=zarr_format)
    found = xr.open_dataset(tmp_path, engine="zarrasync").v
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array([expected if v is None else v for v in blocks.values], dtype))


def test_dates_of_other_calendars_are_computed_once(tmp_path: Path):
    cftime = pytest.importorskip("cftime")
    blocks = Blocks(lambda n: cftime.DatetimeNoLeap(2000, 2, 28) if n else cftime.DatetimeNoLeap(2000, 3, 1))
    assert write(blocks, tmp_path, compute=False) <= 3
    assert blocks.count <= BLOCKS + 3
    assert xr.open_dataset(tmp_path, engine="zarrasync").v.values.tolist() == blocks.values.tolist()


def test_dates_that_xarray_has_chunked(tmp_path: Path):
    """A single element of such an array is an array, too."""
    pytest.importorskip("cftime")
    dataset = xr.Dataset({"v": ("x", xr.date_range("2000-01-01", periods=3, calendar="noleap", use_cftime=True))})
    write_dataset(dataset.chunk(x=1), tmp_path)
    assert xr.open_dataset(tmp_path, engine="zarrasync").v.values.tolist() == dataset.v.values.tolist()


def test_a_fill_value_replaces_missing_strings(tmp_path: Path):
    blocks = Blocks(lambda n: None if n % 2 else "a")
    write(blocks, tmp_path, compute=False, encoding={"v": {"_FillValue": "none"}})
    found = xr.open_dataset(tmp_path, engine="zarrasync", mask_and_scale=False).v
    assert found.values.tolist() == ["a", "none"] * (BLOCKS * ROWS // 2)
    assert found.attrs["_FillValue"] == "none"


@pytest.mark.parametrize("compute", [True, False])
def test_another_type_in_a_later_block(compute: bool, tmp_path: Path):
    with pytest.raises(CodecError, match="the first value of v is a string, but 9 is int"):
        write(Blocks(lambda n: n if n == 9 else "a"), tmp_path, compute=compute)


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, 2**64], f"the value {2**64} of 'v' cannot be stored: it has more than 64 bits; convert"),
        ([-(2**63) - 1, 1], "more than 64 bits"),
        ([2**70, None], "more than 64 bits"),
        ([-1, 2**63], f"{2**63}.* no type represents both it and -1"),
        ([2**53 + 1, None], f"{2**53 + 1}.* with missing values it becomes float64, which rounds it"),
    ],
)
def test_integers_that_no_data_type_represents(values: list[Any], reason: str, is_lazy: bool):
    dataset = xr.Dataset({"v": ("x", np.array(values, object))})
    dataset = dataset.chunk(x=2) if is_lazy else dataset
    with pytest.raises(EncodingError, match=reason) as caught:
        write_dataset(dataset, {})
    assert caught.value.variable == "v"


@pytest.mark.parametrize("value", [Decimal, lambda n: b"a" if n > 5 else n])
def test_values_without_a_data_type(value: Any, tmp_path: Path):
    with pytest.raises(ValueError, match=r"data type|infer dtype"):
        write(Blocks(value), tmp_path, compute=False)


def test_strings_are_appended(tmp_path: Path):
    blocks = Blocks(lambda n: f"s{n}" if n % 4 else None)
    write(blocks, tmp_path, compute=True)
    write(blocks, tmp_path, compute=True, append_dim="x")
    expected = [item or "" for item in blocks.values]
    assert xr.open_dataset(tmp_path, engine="zarrasync").v.values.tolist() == 2 * expected
