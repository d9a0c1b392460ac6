"""Places that read or write stored numbers. Each returns the values that a user finds there."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from PIL import Image

from tests.conversions.cases import VARIABLE, Case, spread, write_file, write_store
from tests.support.server_client import serving
from zarrasync import cli, sync
from zarrasync.integrations.xarray import write_dataset

__all__ = ["PLACES", "as_stored", "difference", "expected_values"]

Values = npt.NDArray[Any]
LOW, HIGH = 0.0, 254.0


def open_source(case: Case, folder: Path) -> xr.Dataset:
    """Open the file of a case by xarray."""
    path = write_file(case, folder / "source.nc")
    if case.kind == "zarr":
        return xr.open_dataset(path, engine="zarr", consolidated=False)
    return xr.open_dataset(path, engine="netcdf4")


def as_stored(case: Case, folder: Path) -> Values:
    """Return the values of a case as xarray reads them from the file."""
    with open_source(case, folder) as source:
        return np.asarray(source[VARIABLE].values)


def difference(found: Values, expected: Values) -> str:
    """Return how values differ; an empty string if they are equal."""
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if {found.dtype.kind, expected.dtype.kind} & set("OSUTMmb?") and found.dtype.kind != expected.dtype.kind:
        found, expected = found.astype(object).astype(str), expected.astype(object).astype(str)
    if expected.dtype.kind in "fciu":
        is_same = np.isclose(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    else:
        is_same = (found == expected) | ((found != found) & (expected != expected))  # NaT
    return "" if is_same.all() else f"{found[~is_same][0]!r}, expected {expected[~is_same][0]!r}"


# ------------------------------------------------------------------ datasets


def _encoded(dataset: xr.Dataset, case: Case) -> xr.Dataset:
    dataset = dataset.load()
    dataset[VARIABLE].encoding.update(case.encoding)
    return dataset


def _values(store: Any, engine: Any = "zarr", **options: Any) -> Values:
    with xr.open_dataset(store, engine=engine, **options) as dataset:
        return np.asarray(dataset[VARIABLE].values)


def _ingest(case: Case, folder: Path, **options: Any) -> Values:
    source = write_file(case, folder / "source.nc")
    encoding = {VARIABLE: dict(case.encoding)} if case.encoding else None
    sync.ingest([source], out := folder / "out.zarr", concat="time", encoding=encoding, **options)
    return _values(out)


def _ingest_decoded(case: Case, folder: Path) -> Values:
    return _ingest(case, folder, decode=True)


def _write(case: Case, folder: Path) -> Values:
    with open_source(case, folder) as source:
        write_dataset(_encoded(source, case), out := folder / "out.zarr")
    return _values(out)


def _append(case: Case, folder: Path) -> Values:
    with open_source(case, folder) as source:
        dataset = _encoded(source, case)
    write_dataset(dataset.isel(time=slice(1)), out := folder / "out.zarr")
    write_dataset(dataset.isel(time=slice(1, 2)), out, append_dim="time")
    return _values(out)


def _region(case: Case, folder: Path) -> Values:
    with open_source(case, folder) as source:
        dataset = _encoded(source, case)
    first = dataset.isel(time=[0, 0]).assign_coords(time=dataset.time)
    first[VARIABLE].encoding = dataset[VARIABLE].encoding
    write_dataset(first, out := folder / "out.zarr")
    write_dataset(dataset.isel(time=slice(1, 2)), out, region={"time": slice(1, 2)})
    return _values(out)


def _dask(case: Case, folder: Path) -> Values:
    with open_source(case, folder) as source:
        write_dataset(_encoded(source, case).chunk(time=1), out := folder / "out.zarr")
    return _values(out)


def _read(case: Case, folder: Path) -> Values:
    return _values(write_store(case, folder / "in.zarr"), "zarrasync")


def _to_netcdf(case: Case, folder: Path) -> Values:
    with xr.open_dataset(write_store(case, folder / "in.zarr"), engine="zarrasync") as dataset:
        dataset.load().to_netcdf(folder / "back.nc", auto_complex=case.stored.dtype.kind == "c" or None)
    return _values(folder / "back.nc", "netcdf4", auto_complex=case.stored.dtype.kind == "c" or None)


# ------------------------------------------------------------------ views


def _pyramid(case: Case, folder: Path) -> Values:
    """Return the values of the coarser level, repeated as in the finer one."""
    store = write_store(case, folder / "in.zarr")
    sync.pyramid(store, path=VARIABLE, levels=2, dest=(out := folder / "out.zarr"))
    with xr.open_dataset(out, engine="zarrasync", level=1) as dataset:
        coarse = np.asarray(next(iter(dataset.data_vars.values())).values)
    return coarse.repeat(2, 1).repeat(2, 2)


def _ask(store: Path, *paths: str) -> list[bytes]:
    async def ask() -> list[bytes]:
        async with serving(store) as client:
            answers = [await client.get(path) for path in paths]
        for status, body, _ in answers:
            if status != 200:
                raise ValueError(json.loads(body)["error"])
        return [body for _, body, _ in answers]

    return asyncio.run(ask())


def _stats(case: Case, folder: Path) -> Values:
    """Return count, number of missing values, minimum, maximum and mean of both planes."""
    store = write_store(case, folder / "in.zarr")
    answers = _ask(store, *(f"/api/stats?path={VARIABLE}&index={plane}" for plane in range(2)))
    keys = ("count", "invalid", "infinite", "minimum", "maximum", "mean")
    return np.array([[json.loads(answer)[key] for key in keys] for answer in answers], float)


def _tiles(case: Case, folder: Path) -> Values:
    """Return grey levels, with NaN for transparent pixels."""
    store = write_store(case, folder / "in.zarr")
    query = f"path={VARIABLE}&cmap=gray&low={LOW}&high={HIGH}"
    answers = _ask(store, *(f"/api/tiles/0/0/0.png?{query}&index={plane}" for plane in range(2)))
    pixels = [np.asarray(Image.open(io.BytesIO(answer)).convert("RGBA"), float)[:4, :4] for answer in answers]
    return np.stack([np.where(plane[..., 3] == 0, np.nan, plane[..., 0]) for plane in pixels])


def _cat(case: Case, folder: Path) -> Values:
    store = write_store(case, folder / "in.zarr")
    with redirect_stdout(io.StringIO()) as output:
        code = cli.main(["cat", str(store), "--path", VARIABLE, "--format", "json"])
    if code:
        raise ValueError(output.getvalue())
    return np.array(json.loads(output.getvalue()), object)


# ------------------------------------------------------------------ what views must show


def _numbers(case: Case) -> Values:
    """Return values as numbers with NaN. Statistics and pictures of times are about the numbers in their units."""
    values = spread(case.values)
    if values.dtype.kind not in "MO":
        return values.astype(float)
    missing = values != values  # NaT
    return np.where(missing, np.nan, spread(case.stored).astype(float))


def _expected_statistics(case: Case) -> Values:
    rows = []
    for plane in _numbers(case):
        finite = plane[np.isfinite(plane)]
        counts = [plane.size, np.isnan(plane).sum(), np.isinf(plane).sum()]
        rows.append([*counts, finite.min(), finite.max(), finite.mean()])
    return np.array(rows)


def _expected_tiles(case: Case) -> Values:
    """Return the grey levels of 255 palette entries from the lowest to the highest value."""
    numbers = _numbers(case)
    entries = np.floor(np.clip((numbers - LOW) * 254 / (HIGH - LOW), 0, 254))
    return np.where(np.isnan(numbers), np.nan, np.floor(entries * 255 / 254 + 0.5))


def _expected_text(case: Case) -> Values:
    """Return values in the form that JSON represents them in."""

    def text(value: Any) -> Any:
        if value is None or value != value:  # NaN, NaT
            return None
        if isinstance(value, float | np.floating) and np.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, complex):
            return [value.real, value.imag]
        return value.isoformat() if hasattr(value, "isoformat") else value

    values = case.values.astype("M8[s]") if case.values.dtype.kind == "M" else case.values
    items = [text(value) for value in values.tolist()]
    if case.values.dtype.kind == "c":
        return np.array(items, object)[spread(np.arange(8))]
    return spread(np.array([*items, None], object)[:-1])


def expected_values(case: Case, place: str, folder: Path) -> Values:
    """Return what a user must find at a place: the values as xarray reads them from the file, or their meaning in views."""
    views = {"statistics": _expected_statistics, "tiles": _expected_tiles, "`cat`": _expected_text}
    if place in views:
        return views[place](case)
    return spread(case.values) if place == "pyramid" else as_stored(case, folder)


Place = Callable[[Case, Path], Values]
PLACES: dict[str, Place] = {
    "ingest": _ingest,
    "ingest, decoded": _ingest_decoded,
    "`write_dataset`": _write,
    "append": _append,
    "region": _region,
    "dask": _dask,
    "read by xarray": _read,
    "pyramid": _pyramid,
    "statistics": _stats,
    "tiles": _tiles,
    "`cat`": _cat,
    "to netCDF": _to_netcdf,
}
