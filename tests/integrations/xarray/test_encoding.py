"""Fill values, compressors and filters of stored variables are kept."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from zarrasync import sync
from zarrasync.errors import MetadataError

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


def netcdf(path: Path, *, dims: str, fill: Any = -9999.0) -> Path:
    """Create a group as the netCDF library writes it."""
    group = sync.create_group(path, zarr_format=2)
    for name in "tu":
        array = group.create_array(
            name, data=np.arange(12, dtype="f4").reshape(3, 4), fill_value=5.0, attributes={"_FillValue": fill, "x": 1}
        )
        array.attrs["_NCZARR_ATTR" if dims != "new" else "_nczarr_attr"] = {"types": {"x": "<i4"}}
        document = json.loads((path / name / ".zarray").read_text())
        told = {"/lat": 3, "/lon": 4}
        if dims == "old":
            document["_NCZARR_ARRAY"] = {"dimrefs": [*told], "storage": "chunked"}
            (path / name / ".zarray").write_text(json.dumps(document))
        else:
            array.attrs["_nczarr_array"] = {"dimension_references": [*told], "storage": "chunked"}
    group.attrs.update({"_NCProperties": "version=2", "_nczarr_group": {"dimensions": told}, "title": "x"})
    return path


@pytest.mark.parametrize("dims", ["old", "new"])
def test_dimensions_and_fill_values_of_netcdf(dims: str, tmp_path: Path):
    path = netcdf(tmp_path, dims=dims)
    found = xr.open_dataset(path, engine="zarrasync")
    assert found.sizes == {"lat": 3, "lon": 4}
    assert found.attrs == {"title": "x"}
    assert found.t.attrs == {"x": 1}
    assert np.isnan(found.t.values[1, 1])
    if dims == "old":
        assert found.identical(xr.open_dataset(path, engine="zarr", consolidated=False))


def test_scalars_of_netcdf_have_an_axis(tmp_path: Path):
    group = sync.create_group(tmp_path, zarr_format=2)
    group.create_array("s", data=[5], attributes={"_nczarr_array": {"dimension_references": [], "scalar": 1}})
    assert xr.open_dataset(tmp_path, engine="zarrasync").s.dims == ("s_dim_0",)


def test_fill_values_that_stand_as_numbers(tmp_path: Path):
    """In format 3, where xarray uses an encoding of its own."""
    for number, (fill, wanted) in enumerate([(-9999.0, -9999.0), (3, 3.0), ("NaN", np.nan), ("1e20", 1e20)]):
        options: dict[str, Any] = {
            "data": np.array([1, 3, -9999.0]),
            "dimension_names": ("x",),
            "attributes": {"_FillValue": fill},
        }
        sync.create_group(tmp_path / str(number)).create_array("a", **options)
        found = xr.open_dataset(tmp_path / str(number), engine="zarrasync").a
        np.testing.assert_equal(found.encoding["_FillValue"], wanted)
    bad = sync.create_group(tmp_path / "bad")
    bad.create_array("a", data=[1, 2], dimension_names=("x",), attributes={"_FillValue": "none"})
    with pytest.raises(MetadataError, match="/a: the attribute _FillValue='none' is invalid for int64"):
        xr.open_dataset(tmp_path / "bad", engine="zarrasync")


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 7}, {"id": "bz2", "level": 2}])
def test_compressors_of_format_2_are_kept_in_it(compressor: Any, tmp_path: Path):
    options = {"data": np.arange(5.0), "attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "compressors": compressor}
    sync.create_group(tmp_path / "a", zarr_format=2).create_array("v", **options)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    for zarr_format in (2, 3):
        write_dataset(found, tmp_path / f"b{zarr_format}", zarr_format=zarr_format)
        found.to_zarr(tmp_path / f"c{zarr_format}", zarr_format=zarr_format)
        for letter in "bc":
            assert xr.open_dataset(tmp_path / f"{letter}{zarr_format}", engine="zarrasync").identical(found)
    told = json.loads((tmp_path / "b2" / "v" / ".zarray").read_text())
    assert told["compressor"] == compressor


def test_filters_of_format_2_are_kept_in_it(tmp_path: Path):
    """Lossless filters are kept, also of strings, except for the filter that encodes strings."""
    delta = {"id": "delta", "dtype": "<i4", "astype": "<i4"}
    shuffle, summed = {"id": "shuffle", "elementsize": 4}, {"id": "adler32"}
    labels = {"id": "categorize", "labels": ["a", "b"], "dtype": "|O", "astype": "<i4"}
    scaled = {"id": "fixedscaleoffset", "scale": 10, "offset": 0, "dtype": "<f8", "astype": "<i2"}
    numbers, texts = np.arange(5, dtype="i4"), np.array(["a", "bc", "", "d", "é"], "T")
    there = sync.create_group(tmp_path / "a", zarr_format=2)
    for name, values, filters in (
        ("whole", numbers, [delta, shuffle]),
        ("text", texts, [summed]),
        ("packed", numbers, [{**delta, "astype": "|i1"}]),
        ("odd", numbers, [{"id": "shuffle", "elementsize": 0}]),
        ("scaled", numbers / 10, [scaled]),
        ("kinds", np.array(list("abbab"), object), [labels, delta]),
    ):
        options: dict[str, Any] = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "fill_value": None, "filters": filters}
        there.create_array(name, data=values, dtype=object if name == "kinds" else None, **options)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync")
    given = {name: variable.encoding for name, variable in found.variables.items()}
    for zarr_format in (2, 3):
        write_dataset(found, tmp_path / f"b{zarr_format}", zarr_format=zarr_format)
        write_dataset(found, tmp_path / f"c{zarr_format}", zarr_format=zarr_format, encoding=given)
        found.drop_vars("kinds").to_zarr(tmp_path / f"d{zarr_format}", zarr_format=zarr_format)
        for letter in "bcd":
            again = xr.open_dataset(tmp_path / f"{letter}{zarr_format}", engine="zarrasync")
            assert again.drop_vars("kinds", errors="ignore").identical(found.drop_vars("kinds"))

    def told(name: str, where: str) -> Any:
        return json.loads((tmp_path / where / name / ".zarray").read_text())["filters"]

    for where in ("b2", "c2"):
        assert told("whole", where) == [delta, shuffle]
        assert told("text", where) == [{"id": "vlen-utf8"}, summed]
        assert told("packed", where) is None
        assert told("scaled", where) is None
    write_dataset(
        found[["whole"]], tmp_path / "e", zarr_format=2, encoding={"whole": {**given["whole"], "filters": None}}
    )
    assert told("whole", "e") is None
    found.whole.encoding["dtype"] = "f8"
    write_dataset(found[["whole"]], tmp_path / "f", zarr_format=2)
    assert told("whole", "f") is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_replacements_are_not_rounded(zarr_format: Any, tmp_path: Path):
    """Filters of the replaced variable are kept only if they are lossless for the new values."""
    scaled = {"scale": 10, "offset": 0, "dtype": "<f8", "astype": "<i2"}
    delta = {"dtype": "<i8", "astype": "<i8"}
    filters: dict[str, tuple[str, dict[str, Any]]] = {"s": ("fixedscaleoffset", scaled), "n": ("delta", delta)}
    there = sync.create_group(tmp_path, zarr_format=zarr_format)
    for name, (kind, options) in filters.items():
        own = {"id": kind, **options} if zarr_format == 2 else {"name": f"numcodecs.{kind}", "configuration": options}
        named: dict[str, Any] = (
            {"dimension_names": ("x",)} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
        )
        there.create_array(name, data=np.arange(5) / (10 if name == "s" else 1), dtype=options["dtype"], filters=[own],
                           fill_value=None if zarr_format == 2 else 0, **named)  # fmt: skip
    other = xr.Dataset({"s": ("x", [3.14159, 1e6, 2, 3, 4.0]), "n": ("x", [1, -(2**63), 2**63 - 1, 0, 5])})
    write_dataset(other, tmp_path, mode="a")
    assert xr.open_dataset(tmp_path, engine="zarrasync").identical(other)
    codecs = {name: [codec.label for codec in (*array.filters, *array.compressors)] for name, array in there.arrays()}
    assert not any("scaleoffset" in label for label in codecs["s"])
    assert any("delta" in label for label in codecs["n"])


def test_compressors_that_round_are_asked_for(tmp_path: Path):
    pytest.importorskip("zfpy")
    rounding = {"id": "zfpy", "mode": 4, "tolerance": 0.5, "rate": -1, "precision": -1}
    options: dict[str, Any] = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}, "fill_value": None, "compressors": rounding}
    sync.create_group(tmp_path / "a", zarr_format=2).create_array("v", data=np.arange(4.0), **options)
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync").load()
    write_dataset(found, tmp_path / "b", zarr_format=2, encoding={"v": {"compressor": found.v.encoding["compressor"]}})
    assert json.loads((tmp_path / "b" / "v" / ".zarray").read_text())["compressor"]["id"] == "zfpy"
    for values in ([1e9, 0.123, 5.0, 2.7], [3, 1, 4, 1], list("abcd")):
        other = xr.Dataset({"v": ("x", values)})
        write_dataset(other, tmp_path / "a", mode="a")
        np.testing.assert_array_equal(xr.open_dataset(tmp_path / "a", engine="zarrasync").v.values, values)


@pytest.mark.parametrize("compressor", [None, numcodecs.Zlib(9), numcodecs.Blosc("zstd", 3), numcodecs.LZ4()], ids=str)
def test_xarray_keeps_the_compressor_of_format_2(tmp_path: Path, compressor: Any):
    import zarr

    sync.create_array(
        tmp_path / "a", path="v", data=np.arange(9), zarr_format=2, compressors=compressor and [compressor],
        attributes={"_ARRAY_DIMENSIONS": ["x"]},
    )  # fmt: skip
    found = xr.open_dataset(tmp_path / "a", engine="zarrasync", consolidated=False)
    for copied in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found.load()))):
        copied.to_zarr(tmp_path / "b", zarr_format=2, consolidated=False, mode="w")
        metadata: Any = zarr.open_array(tmp_path / "b" / "v").metadata
        assert metadata.compressor == compressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr-python warns of codecs of numcodecs in format 3
        found.to_zarr(tmp_path / "c", zarr_format=3, consolidated=False)
    np.testing.assert_array_equal(sync.open_array(tmp_path / "c", path="v")[:], np.arange(9))


@pytest.mark.parametrize("fill", ["1970-01-01", "NaT"])
def test_fill_values_of_dates_in_format_2_are_those_of_engine_zarr(tmp_path: Path, fill: str):
    attributes = {"_ARRAY_DIMENSIONS": ["x"]}
    values = np.array(["2001-01-01", "1970-01-01"], "M8[ns]")
    options: Any = {"fill_value": np.datetime64(fill, "ns"), "zarr_format": 2, "attributes": attributes}
    sync.create_array(tmp_path / "a", path="v", data=values, **options)
    ours, theirs = (xr.open_dataset(tmp_path / "a", engine=name, consolidated=False) for name in ("zarrasync", "zarr"))
    assert repr(ours["v"].attrs) == repr(theirs["v"].attrs)
    assert ours.identical(theirs)
