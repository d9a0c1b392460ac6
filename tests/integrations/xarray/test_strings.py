"""Strings and characters, and what stands for a missing one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import sync
from zarrasync.errors import EncodingError, MetadataError

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("kind", "missing"), [("T", ""), ("T", "?"), ("O", "?"), ("U2", "?"), ("S2", b"?")])
def test_strings_have_a_fill_value(kind: str, missing: Any, zarr_format: Any, tmp_path: Path):
    """xarray itself can neither write nor read all of these fill values."""
    first = "a" if isinstance(missing, str) else b"a"
    dataset = xr.Dataset({"v": ("x", np.array([first, missing], kind), {}, {"_FillValue": missing})})
    write_dataset(dataset, tmp_path / "a", zarr_format=zarr_format)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    assert found.v.values.tolist() == [first, pytest.approx(np.nan, nan_ok=True)]
    for target in (2, 3):  # datasets that were read round-trip as well
        write_dataset(found, tmp_path / f"b{target}", zarr_format=target)
        assert xr.open_dataset(tmp_path / f"b{target}", engine="zarrasync").identical(found)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_strings_keep_their_kind_and_missing_ones_are_empty(zarr_format: Any, lazy: bool, tmp_path: Path):
    """xarray itself would store the string 'nan' for missing ones."""
    texts = {
        "t": ("x", np.array(["a", "bcd"], "T")),
        "u": ("x", np.array(["e", "fgh"])),
        "s": ("x", np.array([b"i", b"jk"])),
    }
    write_dataset(xr.Dataset({**texts, "x": [0, 1]}), tmp_path, zarr_format=zarr_format)
    found = xr.open_dataset(tmp_path, engine="zarrasync", chunks={} if lazy else None)
    found["t"] = found.t.copy(data=found.t.data.astype(object))
    longer = found.reindex(x=[0, 1, 2])
    assert longer.t.encoding["dtype"].kind == "T"
    assert longer.u.encoding["dtype"].kind == "U"
    write_dataset(longer, tmp_path / "longer", zarr_format=zarr_format)
    write_dataset(longer.isel(x=[2]), tmp_path, append_dim="x")
    for path in (tmp_path, tmp_path / "longer"):
        again = xr.open_dataset(path, engine="zarrasync")
        assert (again.t.values.tolist(), again.u.values.tolist()) == (["a", "bcd", ""], ["e", "fgh", ""])
        assert again.s.values.tolist() == [b"i", b"jk", b""]
        assert again.s.dtype == "S2"
        assert again.t.encoding["dtype"].kind == "T"
        assert again.u.encoding["dtype"] == "<U3"


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_strings_of_all_kinds(missing: Any, tmp_path: Path):
    da = pytest.importorskip("dask.array")
    objects, knowing = (
        np.array(["a", missing], object),
        np.array(["a", missing], np.dtypes.StringDType(na_object=missing)),
    )
    texts = {
        "of no type": xr.Variable("x", objects),
        "to text": xr.Variable("x", objects, {}, {"dtype": np.dtypes.StringDType()}),
        "to text of a length": xr.Variable("x", da.from_array(objects, chunks=1), {}, {"dtype": "U5"}),
        "lazy": xr.Variable("x", da.from_array(objects, chunks=1), {}, {"dtype": np.dtypes.StringDType()}),
        "knowing": xr.Variable("x", knowing),
        "lazy and knowing": xr.Variable("x", da.from_array(knowing, chunks=1)),
    }
    write_dataset(xr.Dataset(texts), tmp_path)
    found = xr.open_dataset(tmp_path, engine="zarrasync")
    assert {name: found[name].values.tolist() for name in texts} == {name: ["a", ""] for name in texts}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("said", [{}, {"dtype": np.dtypes.StringDType()}, {"dtype": "U4"}])
@pytest.mark.parametrize("by", ["_FillValue", "missing_value"])
def test_missing_strings_are_stored_as_the_encoding_specifies(
    by: str, said: dict[str, Any], lazy: bool, tmp_path: Path
):
    da = pytest.importorskip("dask.array")
    values = np.array(["a", None], object)
    given = da.from_array(values, chunks=1) if lazy else values
    write_dataset(xr.Dataset({"v": ("x", given, {}, {by: "NA", **said})}), tmp_path)
    write_dataset(xr.Dataset({"v": ("x", given)}), tmp_path, append_dim="x")
    assert sync.open_array(tmp_path / "v")[:].tolist() == ["a", "NA", "a", "NA"]


def test_strings_as_missing_values(tmp_path: Path):
    write_dataset(xr.Dataset({"v": ("x", np.array(["a", "zz"]), {}, {"missing_value": "zz"})}), tmp_path)
    write_dataset(xr.Dataset({"v": ("x", np.array(["b", np.nan], object))}), tmp_path, append_dim="x")
    assert sync.open_array(tmp_path / "v")[:].tolist() == ["a", "zz", "b", "zz"]
    with pytest.raises(ValueError, match="fill_value"):  # a value that is not a string
        write_dataset(xr.Dataset({"v": ("x", np.array(["a", "b"], object), {"_FillValue": np.nan})}), tmp_path / "n")
    bad = sync.create_group(tmp_path / "bad")
    bad.create_array("a", data=np.array([b"a"]), dimension_names=("x",), attributes={"_FillValue": "?"})
    with pytest.raises(MetadataError, match=r"/a: the attribute _FillValue='\?' is invalid"):
        xr.open_dataset(tmp_path / "bad", engine="zarrasync")


def test_characters_of_netcdf_become_longer(tmp_path: Path):
    pytest.importorskip("scipy")
    texts = xr.Dataset({"v": ("x", np.array(["a", "bcd"])), "x": [0, 1]})
    texts.to_netcdf(tmp_path / "a.nc", engine="scipy")
    longer = xr.open_dataset(tmp_path / "a.nc", engine="scipy").reindex(x=[0, 1, 2])
    assert longer.v.encoding["dtype"] == "S1"
    assert longer.v.dtype == object
    write_dataset(longer, tmp_path / "b")
    assert xr.open_dataset(tmp_path / "b", engine="zarrasync").v.values.tolist() == ["a", "bcd", ""]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("values", "dtype"), [("U", "<U2"), ("S", "S2"), ("O", "<U2"), ("U", "S2"), ("S", "<U2")])
def test_requested_lengths_cut_no_strings(tmp_path: Path, lazy: bool, values: str, dtype: str):
    texts = np.array(["a", "bc"]).astype(values)
    dataset, encoding = xr.Dataset({"v": ("x", texts)}), {"v": {"dtype": dtype}}
    long = xr.Dataset({"v": ("x", np.array(["a", "bcd"]).astype(values))})
    if lazy:
        pytest.importorskip("dask")
        dataset, long = dataset.chunk(x=1), long.chunk(x=1)
    write_dataset(dataset, tmp_path / "short", encoding=encoding)
    assert sync.open_array(tmp_path / "short", path="v")[...].tolist() == np.array(["a", "bc"], dtype).tolist()
    with pytest.raises(EncodingError, match=r"bcd'.* at index 1 of 'v' .* at most 2 characters"):
        write_dataset(long, tmp_path / "long", encoding=encoding)
    write_dataset(long, tmp_path / "cut", encoding=encoding, lossy="allow")
    assert sync.open_array(tmp_path / "cut", path="v")[...].tolist() == np.array(["a", "bc"], dtype).tolist()
