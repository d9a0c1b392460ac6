"""Files of GRIB, which ecCodes writes and reads in another Python: beside wheels of rasterio, it crashes while Python ends.

``ZARRASYNC_GRIB`` is that Python; ``make .venv-grib/stamp`` installs it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("ZARRASYNC_GRIB")
pytestmark = [
    pytest.mark.foreign,
    pytest.mark.skipif(not PYTHON, reason="ZARRASYNC_GRIB does not name a Python with cfgrib and ecCodes"),
]
ROOT = Path(__file__).parents[3]

WRITE = """
import asyncio, inspect, os
import eccodes, numpy as np, pytest
import zarrasync as za
from zarrasync import sync

def write(path, *messages, damaged=()):
    with open(path, "wb") as file:
        for number, keys in enumerate(messages):
            surface = keys.get("shortName") != "t"
            message = eccodes.codes_grib_new_from_samples(f"regular_ll_{'sfc' if surface else 'pl'}_grib2")
            values = keys.pop("values", None)
            for key, value in keys.items():
                eccodes.codes_set(message, key, value)
            if values is not None:
                size = eccodes.codes_get(message, "numberOfValues")
                eccodes.codes_set_values(message, np.resize(np.asarray(values, "f8"), size))
            data = eccodes.codes_get_message(message)
            file.write(data[:-4] + b"xxxx" if number in damaged else data)
            eccodes.codes_release(message)

def values_of(path):
    with open(path, "rb") as file:
        while (message := eccodes.codes_grib_new_from_file(file)) is not None:
            values = eccodes.codes_get_values(message)
            if eccodes.codes_get(message, "bitmapPresent"):
                values[values == eccodes.codes_get(message, "missingValue")] = np.nan
            yield values
            eccodes.codes_release(message)

def ingest(*arguments, **options):
    return asyncio.run(za.ingest(*arguments, **options)) if is_async else sync.ingest(*arguments, **options)
"""

DAYS = """
for day in range(2):
    write(f"{day}.grib2", *({"shortName": name, "dataDate": 20240101 + day, "dataTime": 100 * hour, "values": day + hour / 24}
                            for name in ("2t", "t") for hour in (0, 12)))
options = {"engine_options": {"filter_by_keys": {"shortName": "2t"}}}
ingest("*.grib2", store := {}, concat="time", verify=True, **options)
assert sync.open_array(store, path="t2m")[:, 0, 0].tolist() == [0, 0.5, 1, 1.5]
assert sorted(os.listdir()) == ["0.grib2", "1.grib2"]
with open("1.grib2", "rb") as file, open("short", "wb") as short:  # ends within the last message
    short.write(file.read()[:-100])
os.rename("short", "short.grib2")
with pytest.raises(ValueError, match="short.grib2: PrematureEndOfFileError"):
    ingest("short.grib2", {}, concat="time", **options)
"""

PACKED = """
# A bitmap and several ways of packing, with negative and large numbers.
values = np.random.default_rng(0).normal(-20, 300, 496)
values[::7] = 9999  # the number that stands for missing values
for number, packing in enumerate(("grid_simple", "grid_complex", "grid_complex_spatial_differencing", "grid_ieee")):
    write("a.grib2", *({"shortName": "2t", "dataTime": 100 * hour, "packingType": packing, "bitsPerValue": 12,
                        "bitmapPresent": 1, "missingValue": 9999, "values": values + hour * (values != 9999)}
                       for hour in (0, 6)))
    ingest("a.grib2", store := {}, concat="time", verify=True)
    found, expected = sync.open_array(store, path="t2m"), np.array(list(values_of("a.grib2")))
    assert found.shape[0] == 2 and np.isnan(expected).sum() == 2 * len(values[::7]), packing
    np.testing.assert_array_equal(found[...].reshape(2, -1), expected.astype(found.dtype), packing)
    os.unlink("a.grib2")
"""

HEIGHTS = """
# Two variables at different heights, which are no dataset.
write("levels.grib2", *({"shortName": name, "typeOfLevel": "heightAboveGround", "level": height} for name, height in (("2t", 2), ("10u", 10))))
for name, options in (("levels.grib2", {}), ("levels", {"engine": "cfgrib"})):
    if name == "levels":
        os.rename("levels.grib2", "levels")
    with pytest.raises(ValueError, match="filter_by_keys"):
        ingest(name, {}, concat="time", **options)
ingest("levels", store := {}, concat="time", engine="cfgrib", engine_options={"filter_by_keys": {"shortName": "2t"}})
assert os.listdir() == ["levels"] and sync.open_array(store, path="t2m").shape[0] == 1
"""

GAPS = """
# Temperatures at three steps and two levels, of which one does not exist, or is damaged in the file.
messages = [{"shortName": "t", "step": step, "level": level} for step in (0, 6, 12) for level in (500, 850)]
for is_damaged in (False, True):
    kept = messages if is_damaged else messages[:3] + messages[4:]
    write("a.grib2", *map(dict, kept), damaged=(3,) if is_damaged else ())
    options = {"engine_options": {"errors": "ignore"}} if is_damaged else {}
    if is_damaged:
        with pytest.raises(ValueError, match="WrongLength"):
            ingest("a.grib2", {}, concat="step")
    report = ingest("a.grib2", store := {}, concat="step", **options)
    texts = " | ".join(report.left_out)
    assert "t of " in texts and "isobaricInhPa 850" in texts
    assert "no messages for 1 of 6 combinations of step, isobaricInhPa" in texts
    assert ("message 3 of " in texts) == is_damaged
    assert np.isnan(sync.open_array(store, path="t")[1]).any(axis=(1, 2)).sum() == 1
"""


@pytest.mark.parametrize("code", [DAYS, PACKED, HEIGHTS, GAPS], ids=["days", "packed", "heights", "gaps"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_grib(tmp_path: Path, code: str, is_async: bool):
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", "-c", f"is_async = {is_async}\n{WRITE}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
