"""``write_dataset`` refuses values that their encoding cannot represent, in new arrays as in existing ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.covering import covering
from zarrasync import stores, sync
from zarrasync.errors import EncodingError, NodeNotFoundError

xr: Any = pytest.importorskip("xarray")

from zarrasync.integrations.xarray import write_dataset  # after the skip

PACKED = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32767}


def dataset(values: Any, encoding: dict[str, Any] | None = None, *, lazy: bool = False) -> Any:
    result = xr.Dataset({"u": ("x", np.asarray(values)), "w": ("x", np.arange(len(values)))})
    if lazy:
        pytest.importorskip("dask")
        result = result.chunk(x=1)
    result.u.encoding = dict(encoding or {})
    return result


def read(store: Any) -> Any:
    return xr.open_dataset(store, engine="zarrasync")


REFUSED = [
    ([1.0, 500.0], PACKED),
    ([1.0, -327.67], PACKED),
    ([1.0, np.inf], PACKED),
    ([1.0, np.nan], {"dtype": "int16"}),
    ([1.0, 1e300], {"dtype": "float32"}),
    ([1, 300], {"dtype": "uint8"}),
    ([1, -1], {"dtype": "uint8"}),
    ([1, -1], {"_FillValue": -1}),
    ([1.0, 256.0], {"dtype": "int8", "_Unsigned": "true", "_FillValue": 0}),
    (np.array(["2000-01-01", "NaT"], "M8[ns]"), {"units": "days since 2000-01-01", "dtype": "int32"}),
    (np.array(["2000-01-01", "2300-01-01"], "M8[s]"), {"units": "days since 2000-01-01", "dtype": "int16"}),
]


@pytest.mark.parametrize(("case", "lazy"), covering(REFUSED, [False, True], strength=1))
@pytest.mark.filterwarnings("ignore:saving variable")
def test_new_arrays_are_checked(case: tuple[Any, dict[str, Any]], lazy: bool):
    values, encoding = case
    store: dict[str, bytes] = {}
    with pytest.raises(EncodingError) as caught:
        write_dataset(dataset(values, encoding, lazy=lazy), store)
    assert (caught.value.variable, caught.value.index) == ("u", (1,))
    assert not store
    write_dataset(dataset(values[:1], encoding, lazy=lazy), store, verify=True)
    np.testing.assert_array_equal(read(store).u, values[:1])


@pytest.mark.parametrize(("case", "lazy"), covering(REFUSED, [False, True], strength=1))
@pytest.mark.filterwarnings("ignore:saving variable")
def test_existing_arrays_are_checked_in_the_same_way(case: tuple[Any, dict[str, Any]], lazy: bool):
    values, encoding = case
    store = stores.MemoryStore()
    write_dataset(dataset(values[:1], encoding), store)
    for place in ({"append_dim": "x"}, {"region": {"x": slice(0, 1)}}):
        with pytest.raises(EncodingError):
            write_dataset(dataset(values[1:], lazy=lazy), store, **place)
    assert read(store).sizes == {"x": 1}
    write_dataset(dataset(values[:1], lazy=lazy), store, append_dim="x")
    np.testing.assert_array_equal(read(store).u, [*values[:1], *values[:1]])


def test_late_refusals_leave_the_state_before(tmp_path: Any):
    """dask computes values after arrays were created or extended."""
    lazy = dataset([1.0, 2.0, 500.0], PACKED, lazy=True)
    with pytest.raises(EncodingError):
        write_dataset(lazy, tmp_path, group="new")
    with pytest.raises(NodeNotFoundError):
        sync.open_group(tmp_path, path="new")
    write_dataset(dataset([1.0, 2.0], PACKED), tmp_path, group="old")
    with pytest.raises(EncodingError):
        write_dataset(lazy, tmp_path, group="old", append_dim="x")
    group = sync.open_group(tmp_path, path="old")
    assert (group["u"].shape, group["w"].shape) == ((2,), (2,))
    added = xr.Dataset({"v": ("y", lazy.u.data)})
    with pytest.raises(EncodingError):
        write_dataset(added, tmp_path, group="old", mode="a", encoding={"v": PACKED})
    assert sorted(sync.open_group(tmp_path, path="old")) == ["u", "w"]
    assert read(tmp_path / "old").u.values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("lazy", [False, True])
def test_losses_that_the_caller_allows(lazy: bool):
    values = dataset([1.0, 500.0], PACKED, lazy=lazy)
    for lossy in ("warn", "allow"):
        store = stores.MemoryStore()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            write_dataset(values, store, lossy=lossy)
        texts = [str(item.message) for item in caught if "cannot be stored" in str(item.message)]
        assert bool(texts) == (lossy == "warn")
        assert all("500.0, the number 50000, at index 1 of 'u'" in text for text in texts)
        assert sync.open_array(store, path="u")[...].tolist() == [100, 50000 - 65536]
    with pytest.raises(ValueError, match="lossy must be one of error, warn, allow"):
        write_dataset(values, {}, lossy="never")


def test_unsigned_numbers_keep_their_sign():
    """xarray's own engine forgets the attribute without a fill value."""
    store = stores.MemoryStore()
    write_dataset(dataset(np.array([1, 200], "u1"), {"dtype": "i1", "_Unsigned": "true"}), store)
    assert sync.open_array(store, path="u").attrs["_Unsigned"] == "true"
    assert read(store).u.values.tolist() == [1, 200]


def test_numbers_that_were_not_decoded_are_not_judged():
    store: Any = stores.MemoryStore()
    write_dataset(dataset([1.0, np.nan, 3.0], PACKED), store)
    raw = xr.open_dataset(store, engine="zarrasync", mask_and_scale=False).load()
    assert raw.u.values.tolist() == [100, -32767, 300]
    again = stores.MemoryStore()
    write_dataset(raw, again)
    write_dataset(raw, again, append_dim="x")
    np.testing.assert_array_equal(read(again).u, [1.0, np.nan, 3.0] * 2)
    raw.u.attrs["scale_factor"] = 0.5
    with pytest.raises(EncodingError, match="mask_and_scale"):
        write_dataset(raw, again, append_dim="x")


@pytest.mark.parametrize(
    "encoding", [{"dtype": "int16"}, PACKED, {"dtype": "float32"}, {"dtype": "int32", "missing_value": -999}]
)
@pytest.mark.filterwarnings("ignore:saving variable")
def test_numbers_are_those_of_xarrays_engine(encoding: dict[str, Any], tmp_path: Any):
    values = np.linspace(-300, 300, 1201)
    given = dataset(values, encoding)
    given.to_zarr(tmp_path / "theirs", consolidated=False)
    write_dataset(given, tmp_path / "ours")
    theirs, ours = (sync.open_group(tmp_path / name) for name in ("theirs", "ours"))
    np.testing.assert_array_equal(ours["u"][...], theirs["u"][...])
    assert dict(ours["u"].attrs) == dict(theirs["u"].attrs)


def test_large_values_in_memory_are_named_by_their_index():
    values = np.zeros((3, 1 << 20))
    values[2, 5] = 500
    with pytest.raises(EncodingError) as caught:
        write_dataset(xr.Dataset({"u": (("y", "x"), values)}), {}, encoding={"u": PACKED})
    assert caught.value.index == (2, 5)


OBJECTS: list[Callable[[], Any]] = [lambda: np.array([1.0, 500.0], object), lambda: np.array([1, 500], object)]


@pytest.mark.parametrize("make", OBJECTS)
def test_objects_that_are_numbers_are_checked(make: Callable[[], Any]):
    with pytest.raises(EncodingError, match="500"):
        write_dataset(xr.Dataset({"u": ("x", make())}), {}, encoding={"u": PACKED})


@pytest.mark.parametrize("name", ["u", "both"])
def test_stored_arrays_outlive_lazy_values_that_are_refused(name: str):
    """They are refused before the arrays that they would replace are erased."""
    store = stores.MemoryStore()
    write_dataset(dataset([1.0, 2.0, 3.0], PACKED), store)
    before = read(store).load()
    other = dataset([4.0, 5.0, 500.0], PACKED, lazy=True)
    with pytest.raises(EncodingError, match="500"):
        write_dataset(other[["u"]] if name == "u" else other.assign(u=other.u, z=other.w), store, mode="a")
    xr.testing.assert_identical(read(store).load(), before)
    write_dataset(other.isel(x=[0, 1, 0]), store, mode="a")
    assert read(store).u.values.tolist() == [4, 5, 4]


NAT = np.array(["2000-01-02", "NaT"], "M8[ns]")
ALLOWED = [
    ([300.0, -300.0, 1e19, -(2.0**63)], {"dtype": "u1", "_FillValue": 9}, [44, 212, 0, 0]),
    ([40000.0, -40000.0], {"dtype": "i2"}, [-25536, 25536]),
    ([np.nan, np.inf, -np.inf], {"dtype": "i4"}, [0, 0, 0]),
    ([2.0**63, 2.0**64 + 4096], {"dtype": "i8"}, [-(2**63), 4096]),
    ([1e300, -1e300], {"dtype": "f4"}, [np.inf, -np.inf]),
    (NAT, {"units": "days since 2000-01-01", "dtype": "i4"}, [1, 0]),
    ([9.0, 1.0], {"dtype": "i2", "_FillValue": 9}, [9, 1]),
    (np.array([300, -1]), {"dtype": "u1"}, [44, 255]),
]


@pytest.mark.parametrize(("case", "lazy"), covering(ALLOWED, [False, True], strength=1))
@pytest.mark.filterwarnings("ignore:saving variable")
def test_the_numbers_of_allowed_losses(case: tuple[Any, dict[str, Any], list[float]], lazy: bool):
    """They do not depend on the processor."""
    values, encoding, expected = case
    store = stores.MemoryStore()
    write_dataset(dataset(values, encoding, lazy=lazy), store, lossy="allow")
    assert sync.open_array(store, path="u")[...].tolist() == expected


def test_values_outside_the_valid_range_are_stored():
    """As xarray reads them; netCDF4 and decoded views show them as missing."""
    values = dataset([1.0, 7.0], {"dtype": "f4"})
    values.u.attrs["valid_range"] = np.array([0, 5], "f4")
    store = stores.MemoryStore()
    write_dataset(values, store)
    assert read(store).u.values.tolist() == [1, 7]


def test_dates_that_cannot_be_encoded_are_typed_errors():
    """cftime raises another error for them."""
    cftime = pytest.importorskip("cftime")
    days = np.array([cftime.datetime(1582, 2, 29, calendar="all_leap")], object)
    store = stores.MemoryStore()
    with pytest.raises(EncodingError) as caught:
        write_dataset(dataset(days, {"units": "days since 1970-01-01", "dtype": "i8", "calendar": "standard"}), store)
    assert caught.value.variable == "u"
    assert not store.values
