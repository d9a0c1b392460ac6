"""Variables and messages that libraries leave out without an error: each is named, or stored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.bulk.files.sources.headers import references
from zarrasync.cli import main
from zarrasync.errors import ShapeError

xr = pytest.importorskip("xarray", reason="xarray opens the files")
h5py = pytest.importorskip("h5py", reason="h5py writes the files")
nc = pytest.importorskip("netCDF4", reason="netCDF4 writes the files")
pytestmark = pytest.mark.filterwarnings("ignore")  # of netCDF4 about variables that it skips

STRING = h5py.string_dtype()
COMPOUND = np.dtype([("name", STRING), ("x", "f8")])


def _bits(group: Any, name: str) -> Any:
    kind, space = h5py.h5t.STD_B8LE.copy(), h5py.h5s.create_simple((3,))
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space))


UNREAD: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "compound with strings": (
        lambda g, n: g.create_dataset(n, data=np.array([("a", 1.0)] * 3, COMPOUND)),
        "name string",
    ),
    "compound of compounds": (lambda g, n: g.create_dataset(n, data=np.zeros(3, [("a", [("c", "i4")])])), "compound"),
    "opaque": (lambda g, n: g.create_dataset(n, data=np.zeros(3, "V5")), "opaque"),
    "dates": (lambda g, n: g.create_dataset(n, (3,), h5py.opaque_dtype("M8[s]")), "datetime64"),
    "references": (lambda g, n: g.create_dataset(n, data=np.array([g["t"].ref] * 3, h5py.ref_dtype)), "references"),
    "regions": (lambda g, n: g.create_dataset(n, (3,), h5py.regionref_dtype), "references"),
    "arrays": (lambda g, n: g.create_dataset(n, (3,), np.dtype(("f4", (2,)))), "f4"),
    "bits": (_bits, "bits"),
}


def write(path: Path, kind: str = "", *, start: int = 0, group: str = "/") -> str:
    """Write an HDF5 file with a variable ``v``, and one of a kind that netCDF's library skips."""
    with h5py.File(path, "w") as file:
        parent = file.require_group(group)
        time = parent.create_dataset("t", data=np.arange(3.0) + start)
        time.make_scale("t")
        parent.create_dataset("v", data=np.arange(3, dtype="f4") + start).dims[0].attach_scale(time)
        if kind:
            UNREAD[kind][0](parent, "s").dims[0].attach_scale(time)
    return str(path)


def ingest(*arguments: Any, **options: Any) -> Any:
    """Ingest files, and return the report."""
    return sync.ingest(*arguments, **options)


@pytest.mark.parametrize("group", ["", "a/b"])
@pytest.mark.parametrize("kind", UNREAD)
def test_variables_that_netcdf_skips_are_named(kind: str, group: str, tmp_path: Path):
    paths = [write(tmp_path / f"{k}.h5", kind, start=3 * k, group=group or "/") for k in range(2)]
    options: dict[str, Any] = {"concat": "t", "group": group, "verify": True}
    with pytest.raises(ShapeError, match=f"'s' of .*0.h5 cannot be read .*{UNREAD[kind][1]}.*choose .*v.*variables="):
        ingest(paths, {}, **options)
    with pytest.raises(ShapeError, match="'s' of"):
        ingest(paths, {}, variables=["s"], **options)
    report = ingest(paths, store := {}, variables=["v"], **options)
    assert sync.open_array(store, path="v")[...].tolist() == [0, 1, 2, 3, 4, 5]
    assert report.left_out == []


def test_a_variable_that_was_dropped_is_not_missed(tmp_path: Path):
    options = {"engine_options": {"drop_variables": ["s"]}}
    ingest(write(tmp_path / "a.h5", "opaque"), store := {}, concat="t", **options)
    assert sorted(sync.open_group(store)) == ["t", "v"]


def test_the_command_for_a_single_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "a.h5", "references")
    assert main(["ingest", path, str(tmp_path / "a.zarr")]) == 1
    assert "the library of netCDF does not support its data type, references" in capsys.readouterr().err
    assert main(["ingest", path, str(tmp_path / "b.zarr"), "--variable", "v"]) == 0


def test_dimensions_and_hidden_names_of_netcdf_are_no_unread_variables(tmp_path: Path):
    with nc.Dataset(path := tmp_path / "a.nc", "w") as file:
        for dim, n in (("t", None), ("x", 2), ("y", 3), ("é", 1)):
            file.createDimension(dim, n)
        file.createVariable("v", "f4", ("t", "x"))[:] = np.ones((2, 2))
        file.createVariable("y", "f4", ("t",))[:] = np.ones(2)  # has the name of a dimension, but is not its coordinate
        file.createVariable("names", str, ("t",))[:] = np.array(["a", "b"], object)
        kind = file.createEnumType("u1", "kinds", {"land": 0, "sea": 1})
        file.createVariable("kind", kind, ("t",))[:] = [0, 1]
        file.createVariable("ö", "f4", ("é",))[:] = 1
    ingest(path, store := {}, concat="t", verify=True)
    assert sorted(sync.open_group(store)) == ["kind", "names", "v", "y", "ö"]


# ------------------------------------------------------------------ floats that end the process


@pytest.mark.parametrize("group", ["", "a/b"])
@pytest.mark.parametrize("suffix", [".h5", ".nc", ""])
async def test_16_bit_floats(api: Api, suffix: str, group: str, tmp_path: Path):
    values, paths = np.array([[0.5, -1, np.inf], [2, 3, 4]], "f2"), []
    for k in range(2):
        path = write(tmp_path / f"{k}{suffix}", group=group or "/", start=3 * k)
        with h5py.File(path, "a") as file:
            parent = file[group or "/"]
            parent.create_dataset("half", data=values[k]).dims[0].attach_scale(parent["t"])
        paths.append(path)
    await api(api.ingest(paths, store := {}, concat="t", group=group, verify=True, engine=None))
    half = await api(api.open_array(store, path="half"))
    assert half.dtype == "f2"
    np.testing.assert_array_equal(await api(half[...]), values.ravel())
    with pytest.raises(ValueError, match=r"/half .float16.* ends the process; pass engine='h5netcdf'"):
        await api(api.ingest(paths, {}, concat="t", group=group, engine="netcdf4"))


def test_16_bit_floats_in_another_group_and_another_file(tmp_path: Path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["half"] = np.arange(3, dtype="f2")
    with h5py.File(path := write(tmp_path / "a.h5"), "a") as file:
        file["g/inner"] = h5py.ExternalLink("other.h5", "/half")
        file["g/again"] = file["g"]  # a cycle
    assert main(["ingest", str(path), str(tmp_path / "a.zarr"), "--concat", "t"]) == 3  # groups are left out


def test_floats_that_zarr_does_not_support(tmp_path: Path):
    with h5py.File(path := write(tmp_path / "a.h5"), "a") as file:
        file.create_dataset("long", data=np.arange(3, dtype="longdouble")).dims[0].attach_scale(file["t"])
    if np.dtype("longdouble").itemsize == 8:
        pytest.skip("long floats have 64 bits here")
    with pytest.raises(ShapeError, match="'long' of"):
        ingest(path, {}, concat="t")
    ingest(path, {}, concat="t", variables="v")


# ------------------------------------------------------------------ references of CF


def test_references():
    attributes = {
        "coordinates": "lat lon",
        "grid_mapping": "crs: x y other: lat",
        "formula_terms": "a: A b: B ps: PS",
        "bounds": "x_bnds",
        "cell_measures": "area: areacella",
        "climatology": 3,
    }
    assert references(attributes) == {"lat", "lon", "crs", "x", "y", "other", "A", "B", "PS", "x_bnds"}
    assert references(attributes, ["cell_measures"]) == {"areacella"}


def climate(path: Path, group: str = "") -> str:
    """Write a file whose variables refer to others, in the root or in groups above."""
    with nc.Dataset(path, "w") as file:
        for dim, n in (("time", None), ("lev", 2), ("b", 2)):
            file.createDimension(dim, n)
        for name, dims, attributes in (
            ("time", ("time",), {"units": "days since 2000-01-01", "bounds": "time_bnds"}),
            ("time_bnds", ("time", "b"), {}),
            ("lev", ("lev",), {"formula_terms": "a: A ps: PS", "bounds": "lev_bnds"}),
            ("lev_bnds", ("lev", "b"), {}),
            ("A", ("lev",), {}),
            ("PS", ("time",), {}),
            ("height", (), {}),
            ("crs", (), {"grid_mapping_name": "latitude_longitude"}),
            ("quality", ("time", "lev"), {}),
            ("other", ("time", "lev"), {"bounds": "missing", "coordinates": "missing lev", "grid_mapping": "none"}),
        ):
            variable = file.createVariable(name, "f8", dims)
            variable.setncatts(attributes)
            shape = [3 if dim == "time" else 2 for dim in dims]
            variable[:] = np.arange(3) if name == "time" else np.ones(shape)
        parent = file.createGroup(group) if group else file
        t = parent.createVariable("t", "f4", ("time", "lev"))
        t.setncatts({"coordinates": "height", "grid_mapping": "crs", "ancillary_variables": "quality"})
        t[:] = np.ones((3, 2))
    return str(path)


NEEDED = ["A", "PS", "crs", "height", "lev", "lev_bnds", "t", "time", "time_bnds"]


def test_variables_take_along_what_they_need(tmp_path: Path):
    report = ingest(climate(tmp_path / "a.nc"), store := {}, concat="time", variables=["t"], verify=True)
    assert sorted(sync.open_group(store)) == NEEDED
    assert report.notes == ["t refers to quality, which variables does not contain"]
    assert report.left_out == []


def test_references_that_lead_nowhere_stay(tmp_path: Path):
    ingest(climate(tmp_path / "a.nc"), store := {}, concat="time", variables="other", verify=True)
    assert sync.open_array(store, path="other").attrs["bounds"] == "missing"
    assert {"lev", "lev_bnds", "other", "time_bnds"} <= set(sync.open_group(store))


@pytest.mark.parametrize("group", ["g", "g/h"])
def test_groups_inherit_what_they_need(group: str, tmp_path: Path):
    ingest(climate(tmp_path / "a.nc", group), store := {}, concat="time", group=group, verify=True)
    assert sorted(sync.open_group(store)) == NEEDED


# ------------------------------------------------------------------ GRIB

_GRIB = """
import os, sys, warnings
import eccodes, numpy as np
from zarrasync import sync
warnings.simplefilter("ignore")
GRID = {"Ni": 4, "Nj": 3, "latitudeOfFirstGridPointInDegrees": 2, "latitudeOfLastGridPointInDegrees": 0,
        "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 3,
        "iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1, "dataDate": 20240101}
RAIN = {"stepType": "accum", "shortName": "tp"}
EAST = {"longitudeOfFirstGridPointInDegrees": 10, "longitudeOfLastGridPointInDegrees": 13}
LAYER = {"shortName": "t", "typeOfLevel": "heightAboveGroundLayer", "topLevel": 10}
SHARE = {"shortName": "2t", "productDefinitionTemplateNumber": 6}

def message(value, keys):
    found = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    for key, setting in {**GRID, "shortName": "2t", **keys}.items():
        eccodes.codes_set(found, key, setting)
    eccodes.codes_set_values(found, np.full(12, float(value)))
    return found

def write(*keys, parts=False, values=None):
    messages = [message(n + 1 if values is None else values[n], own) for n, own in enumerate(keys)]
    with open("a.grib2", "wb") as file:
        if parts:
            many = eccodes.codes_grib_multi_new()
            for one in messages:
                eccodes.codes_grib_multi_append(one, 4, many)
            eccodes.codes_grib_multi_write(many, file)
        for one in [] if parts else messages:
            eccodes.codes_write(one, file)

def stored(**options):
    report = sync.ingest("a.grib2", store := {}, concat="time", verify=True, **options)
    arrays = {name: array for name, array in sync.open_group(store).items() if array.ndim > 1}
    return sorted({float(v) for array in arrays.values() for v in np.unique(array[...])}), report

def refusal(**options):
    try:
        stored(**options)
    except ValueError as error:
        return str(error)
    raise AssertionError("no error")

write({**RAIN, "stepRange": "5-6"}, {**RAIN, "stepRange": "0-6"}, {**RAIN, "stepRange": "0-3"})
text = refusal()
assert "'tp' of" in text and "1 of its 3 messages" in text and "stepRange (5-6, 0-6)" in text, text
assert stored(engine_options={"filter_by_keys": {"stepRange": "0-6"}})[0] == [2]
write({**SHARE, "percentileValue": 10}, {**SHARE, "percentileValue": 90})
assert "percentileValue (10, 90)" in (text := refusal()) and "{'percentileValue': 10}" in text, text
assert stored(engine_options={"filter_by_keys": {"percentileValue": 90}})[0] == [2]
write({**LAYER, "bottomLevel": 0}, {**LAYER, "bottomLevel": 2})
assert "bottomLevel (0, 2)" in refusal()
write({"step": 24}, {"dataDate": 20240102, "step": 0})  # valid at the same time
assert "1 of its 2 messages" in refusal(engine_options={"time_dims": ["valid_time"]})
for parts in (False, True):
    write({}, {}, parts=parts)
    assert "same keys as others" in refusal()
    write({"step": 1}, {"step": 2}, parts=parts)
    assert stored()[0] == [1, 2]
write({}, {}, values=(1, 1))  # the same bytes
assert stored()[0] == [1]
write({}, {**EAST, "dataDate": 20240102})
assert "2 grids" in (text := refusal()) and "md5GridSection" in text, text
write({"shortName": "sp", "typeOfLevel": "surface", "step": 6}, {**RAIN, "stepRange": "5-6"}, {**RAIN, "stepRange": "0-6"})
assert stored(variables=["sp"])[0] == [1]  # the messages of others do not count
write({"iScansNegatively": 1, "longitudeOfFirstGridPointInDegrees": 3, "longitudeOfLastGridPointInDegrees": 0})
assert "from east to west" in refusal()
write({"jPointsAreConsecutive": 1})
assert "a column after each other" in refusal()
write({}, {"shortName": "10u"})
values, report = stored(engine_options={"errors": "ignore"})
assert values == [1] and len(report.left_out) == 1 and report.left_out[0].startswith("10u of "), report.left_out
print("done", flush=True)
os._exit(0)  # some wheels of ecCodes crash while Python ends
"""


@pytest.mark.processes
def test_messages_of_grib(tmp_path: Path):
    pytest.importorskip("cfgrib")
    words = [sys.executable, "-c", _GRIB]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
