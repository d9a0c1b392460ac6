"""Random files of every kind for ``ingest``, whose rows and values are known."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cftime
import h5netcdf
import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr

__all__ = ["CLASSIC", "DTYPES", "EPOCHS", "UNITS", "Field", "File", "Labels", "meaning", "write"]

CLASSIC = ("i1", "i2", "i4", "f4", "f8")
WIDE = (*CLASSIC, "u1", "u2", "u4", "i8", "u8")
DTYPES: dict[str, tuple[str, ...]] = {
    "NETCDF3_CLASSIC": CLASSIC,
    "NETCDF3_64BIT_DATA": WIDE,
    "NETCDF4_CLASSIC": CLASSIC,
    "NETCDF4": WIDE,
    "h5": WIDE,
    "zarr2": (*WIDE, "f2", "c8", "c16"),
    "zarr3": (*WIDE, "f2", "c8", "c16"),
    "npz": WIDE,
}
"""The data types of numbers in each kind of file."""
UNITS: dict[str, int | Fraction] = {
    "days": 86400,
    "hours": 3600,
    "minutes": 60,
    "seconds": 1,
    "milliseconds": Fraction(1, 1000),
}
EPOCHS = ("2000-01-01", "1999-12-31 12:00:00", "2000-02-28 00:00:00")
"""Reference dates of times, which units count from."""
START = (2000, 2, 27)
"""The date from which the seconds of times are counted."""
STRLEN = "_length"
"""The end of the name of the axis of the characters of strings."""


@dataclass(frozen=True)
class Labels:
    """The labels of all rows that files can have.

    Attributes:
        kind: ``"none"``, ``"number"``, ``"string"`` or ``"time"``.
        dtype: The data type.
        values: The labels in order: numbers, strings, or seconds.
    """

    kind: str
    dtype: str = "i4"
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Field:
    """A variable of all files.

    Attributes:
        name: The name.
        kind: ``"number"``, ``"string"``, ``"char"``, ``"bool"``, ``"time"``, ``"bounds"`` or ``"duration"``.
        dims: The dimensions.
        dtype: The data type.
        attributes: The attributes in all files.
    """

    name: str
    kind: str
    dims: tuple[str, ...]
    dtype: str = "f4"
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file.

    Attributes:
        number: The number.
        format: A key of ``DTYPES``.
        rows: The numbers of its labels, in the order of its rows.
        seed: The seed of the values.
        units: The units of its times.
        calendar: The calendar of its times.
        duration: The units of its durations.
        orders: The dimensions of variables in another order than in their ``Field``.
        byte_order: ``"<"`` or ``">"``.
        storage: Parameters of the storage: ``chunks``, ``zlib``, ``shuffle``, ``fletcher32``, ``unlimited``, ``contiguous``.
        changes: Attributes by variable that differ from those of the ``Field``, data types, and values.
        is_row: Whether the file is one row without the dimension.
        attributes: Attributes of the dataset.
        length: The longest strings with a fixed length.
        label_dtype: The data type of its labels if it differs from that of the other files.
    """

    number: int
    format: Any  # netCDF4 and NumPy have types for some strings
    rows: tuple[int, ...]
    seed: int = 0
    units: str = "hours since 2000-01-01"
    calendar: str = "standard"
    duration: str = "hours"
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    byte_order: Any = "<"
    storage: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_row: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    length: int = 4
    label_dtype: str = ""

    @property
    def suffix(self) -> str:
        return {"npz": ".npz", "h5": ".h5", "zarr2": ".zarr", "zarr3": ".zarr"}.get(self.format, ".nc")


# ------------------------------------------------------------------ values


def random_values(own: Field, file: File, sizes: Mapping[str, int], seed: Sequence[int]) -> xr.Variable:
    """Return stored values of a variable, with the attributes of the file."""
    rng = np.random.default_rng([*seed, *own.name.encode()])
    shape = tuple(sizes[dim] for dim in own.dims)
    attributes = dict(own.attributes)
    if own.kind == "string":
        values: Any = np.empty(shape, object)
        values[...] = np.array(["", "é", "a longer string", "b", "日本"], object)[rng.integers(0, 5, shape)]
    elif own.kind == "char":
        choice = np.array([b"", b"a", b"bc", b"d" * file.length], f"S{file.length}")
        values = np.asarray(choice[rng.integers(0, 4, shape)])
    elif own.kind == "bool":
        values = np.asarray(rng.integers(0, 2, shape).astype(bool))
    elif own.kind == "time":
        seconds = rng.integers(0, 4 * 24, shape) * 1800
        values = encode_times(seconds, file, own.dtype)
        attributes |= {"units": file.units, "calendar": file.calendar}
    elif own.kind == "bounds":
        values = encode_times(rng.integers(0, 9999, shape), file, own.dtype)
    elif own.kind == "duration":
        values = encode(rng.integers(0, 48, shape) * 1800, UNITS[file.duration], 0, own.dtype)
        attributes["units"] = file.duration
    else:
        values = _numbers(rng, shape, np.dtype(own.dtype))
    if own.kind in ("time", "duration", "number"):
        missing = attributes.get("_FillValue", np.nan if np.dtype(own.dtype).kind == "f" else None)
        if missing is not None and (own.kind != "number" or rng.integers(0, 2)):
            values = np.where(rng.integers(0, 4, shape) == 0, np.asarray(missing, values.dtype), values)
    return xr.Variable(own.dims, np.asarray(values, dtype=values.dtype), attributes)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "c":
        return (rng.integers(-99, 99, shape) + 1j * rng.integers(-99, 99, shape)).astype(dtype)
    if dtype.kind == "f" and dtype.itemsize == 2:
        return (rng.integers(-99, 99, shape) / 4).astype(dtype)
    if dtype.kind == "f":
        special = np.array([0.0, -0.0, np.inf, -np.inf, 1e-30, 3e38], dtype)
        usual = rng.integers(-99, 99, shape) / np.array(4, dtype)
        return np.where(rng.integers(0, 8, shape) == 0, special[rng.integers(0, 6, shape)], usual.astype(dtype))
    limits = np.iinfo(dtype)
    special = np.array([limits.min, limits.max, 0, 1], dtype)
    return np.where(
        rng.integers(0, 6, shape) == 0, special[rng.integers(0, 4, shape)], rng.integers(0, 100, shape).astype(dtype)
    )


def encode(seconds: Any, unit: Any, offset: Any, dtype: str) -> Any:
    """Return seconds in units. Whole numbers must be exact.

    Raises:
        ValueError: If they are not.
    """
    exact = [Fraction(Fraction(value) + offset) / unit for value in np.asarray(seconds).reshape(-1).tolist()]
    if np.dtype(dtype).kind != "f" and any(value.denominator > 1 for value in exact):
        raise ValueError("not exact")
    return np.array([float(value) if value.denominator > 1 else value.numerator for value in exact], dtype).reshape(
        np.shape(seconds)
    )


def encode_times(seconds: Any, file: File, dtype: str) -> Any:
    """Return seconds since the start in the units of a file."""
    unit, _, epoch = file.units.partition(" since ")
    begin = cftime.datetime(*START, calendar=file.calendar)
    offset = begin - cftime.num2date(0, f"seconds since {epoch}", file.calendar)
    return encode(seconds, UNITS[unit], Fraction(offset.days * 86400 + offset.seconds), dtype)


def meaning(kind: str, values: Any, attributes: Mapping[str, Any]) -> Any:
    """Return comparable values: seconds for times and durations, and NaN if they are missing."""
    if kind == "char":
        return np.array(
            [item if isinstance(item, bytes) else str(item).encode() for item in values.reshape(-1)]
        ).reshape(values.shape)
    if kind not in ("time", "duration", "bounds"):
        return values
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    for key in ("_FillValue", "missing_value"):
        if attributes.get(key) is not None and attributes[key] == attributes[key]:
            missing |= values == attributes[key]
    if kind == "duration":
        seconds = values.astype("f8") * float(UNITS[attributes["units"]])
    else:
        calendar = attributes.get("calendar", "standard")
        begin = cftime.datetime(*START, calendar=calendar)
        dates = cftime.num2date(np.where(missing, 0, values), attributes["units"], calendar)
        seconds = np.array([(date - begin).total_seconds() for date in np.asarray(dates).reshape(-1)]).reshape(
            values.shape
        )
    return np.where(missing, np.nan, seconds)


# ------------------------------------------------------------------ content


def label_values(labels: Labels, file: File) -> Any:
    """Return the stored labels of a file."""
    chosen = [labels.values[row] for row in file.rows]
    if labels.kind == "time":
        return encode_times(np.array(chosen, dtype=object), file, labels.dtype)
    if file.format == "npz" and labels.kind == "string":
        return np.array(chosen or ["longest string"], "U")[: len(chosen)]
    if labels.kind == "string":
        return np.array(chosen, object)
    return np.array(chosen, file.label_dtype or labels.dtype)


def content(fields: Sequence[Field], labels: Labels, file: File, sizes: Mapping[str, int]) -> dict[str, xr.Variable]:
    """Return the stored values of all variables of a file, with their attributes."""
    result: dict[str, xr.Variable] = {}
    own_sizes = {**sizes, "row": len(file.rows)}
    for own in fields:
        changes = file.changes.get(own.name, {})
        if "absent" in changes:
            continue
        changed = replace(own, dtype=changes.get("dtype", own.dtype))
        seed = [file.seed, file.number] if "row" in own.dims or "seed" in changes else [0]
        is_constant = "row" not in own.dims
        like = (
            replace(file, length=4, units="minutes since 2000-01-01", calendar="standard", duration="minutes")
            if is_constant
            else file
        )
        variable = random_values(changed, like, own_sizes, seed)
        variable.attrs |= changes.get("attributes", {})
        if own.name in file.storage.get("short", ()) and variable.sizes["row"] > 1:  # the library adds the last row
            axis = variable.dims.index("row")
            variable.values[(slice(None),) * axis + (-1,)] = variable.attrs["_FillValue"]
        if own.name in file.orders:
            variable = variable.transpose(*file.orders[own.name])
        result[own.name] = variable
    for dim in ("y", "x"):
        if dim in sizes and file.format != "npz":
            step = 2 if dim in file.changes.get("axes", {}) else 1
            result[dim] = xr.Variable(dim, np.arange(sizes[dim], dtype="f8") * step, {"axis": dim.upper()})
    if labels.kind != "none":
        attributes = {"units": file.units, "calendar": file.calendar} if labels.kind == "time" else {}
        if any(own.kind == "bounds" for own in fields):
            attributes["bounds"] = "row_bnds"
        values = label_values(labels, file)
        if "label" in file.changes and len(values) > 1:
            values = values[::-1].copy() if file.changes["label"]["how"] == "reverse" else values[[0] * len(values)]
        result["row"] = xr.Variable("row", values, attributes)
    if file.is_row:
        result = {name: item.isel(row=0) if "row" in item.dims else item for name, item in result.items()}
    return result


# ------------------------------------------------------------------ writing


def write(variables: Mapping[str, xr.Variable], file: File, path: Path) -> None:
    """Write a file."""
    if file.format == "npz":
        values: Any = {name: np.asarray(item.values) for name, item in variables.items()}
        np.savez(path, **values)
    elif file.format.startswith("zarr"):
        _write_zarr(variables, file, path)
    elif file.format == "h5":
        _write_h5(variables, file, path)
    else:
        _write_netcdf(variables, file, path)


def _stored(file: File, variable: xr.Variable) -> xr.Variable:
    """Return a variable as netCDF stores it: strings of a fixed length as characters, and booleans as bytes."""
    values = variable.values
    if values.dtype.kind == "S":
        size = values.dtype.itemsize
        characters = np.frombuffer(values.tobytes(), "S1").reshape(*values.shape, size)
        return xr.Variable((*variable.dims, f"{STRLEN}{size}"), characters, variable.attrs)
    if values.dtype.kind == "b":
        return xr.Variable(variable.dims, values.astype("i1"), {**variable.attrs, "dtype": "bool"})
    if values.dtype.kind in "iuf":
        return variable.copy(data=values.astype(values.dtype.newbyteorder(file.byte_order)))
    return variable


def _chunks(file: File, variable: xr.Variable) -> tuple[int, ...] | None:
    sizes = file.storage.get("chunks")
    return tuple(max(1, min(sizes, n or sizes)) for n in variable.shape) if sizes and variable.ndim else None


def _write_netcdf(variables: Mapping[str, xr.Variable], file: File, path: Path) -> None:
    stored: dict[str, Any] = {name: _stored(file, item) for name, item in variables.items()}
    with netCDF4.Dataset(path, "w", format=file.format) as out:
        for item in stored.values():
            for dim, size in item.sizes.items():
                if dim not in out.dimensions:
                    out.createDimension(dim, None if dim == "row" and file.storage.get("unlimited") else size)
        for key, value in file.attributes.items():
            out.setncattr(key, value)
        is_hdf = file.format.startswith("NETCDF4")
        for name, item in stored.items():
            options: dict[str, Any] = {}
            chunks = _chunks(file, item)
            if is_hdf and item.ndim and item.dtype.kind != "O":
                if file.storage.get("contiguous") and not file.storage.get("unlimited"):
                    options["contiguous"] = True
                else:
                    zlib = bool(file.storage.get("zlib"))
                    options = {"chunksizes": chunks, "compression": "zlib" if zlib else None}
                    options |= {key: bool(file.storage.get(key)) for key in ("shuffle", "fletcher32")}
            attributes = dict(item.attrs)
            kind: Any = str if item.dtype.kind == "O" else item.dtype
            if is_hdf and item.dtype.kind in "iuf":
                options["endian"] = "big" if file.byte_order == ">" else "little"
            if "_FillValue" in attributes:
                options["fill_value"] = np.asarray(attributes.pop("_FillValue"), item.dtype.newbyteorder("="))
            made = out.createVariable(name, kind if kind is str else kind.newbyteorder("="), item.dims, **options)
            made.set_auto_maskandscale(False)
            made.set_auto_chartostring(False)
            made.setncatts(attributes)
            values = item.values if item.dtype.kind == "O" else item.values.astype(item.dtype.newbyteorder("="))
            if name in file.storage.get("short", ()) and item.sizes["row"] > 1:
                rows = (slice(None),) * item.dims.index("row") + (slice(0, item.sizes["row"] - 1),)
                made[rows] = values[rows]
            elif item.size:
                made[...] = values


def _write_h5(variables: Mapping[str, xr.Variable], file: File, path: Path) -> None:
    stored: dict[str, Any] = {name: _stored(file, item) for name, item in variables.items()}
    with h5netcdf.File(path, "w") as out:
        for item in stored.values():
            for dim, size in item.sizes.items():
                if dim not in out.dimensions:
                    out.dimensions[dim] = None if dim == "row" and file.storage.get("unlimited") else size
        if file.storage.get("unlimited") and any("row" in item.dims for item in stored.values()):
            out.resize_dimension("row", max(item.sizes.get("row", 0) for item in stored.values()))
        for key, value in file.attributes.items():
            out.attrs[key] = value
        for name, item in stored.items():
            options: dict[str, Any] = {}
            is_contiguous = file.storage.get("contiguous") and not file.storage.get("unlimited")
            if item.ndim and item.dtype.kind != "O" and item.size and not is_contiguous:
                options = {"chunks": _chunks(file, item), "compression": "gzip" if file.storage.get("zlib") else None}
                options |= {key: True for key in ("shuffle", "fletcher32") if file.storage.get(key)}
            attributes = dict(item.attrs)
            kind = h5py.string_dtype() if item.dtype.kind == "O" else item.dtype
            if "_FillValue" in attributes:
                options["fillvalue"] = np.asarray(attributes.pop("_FillValue"), item.dtype)[()]
            made = out.create_variable(name, item.dims, kind, **options)
            for key, value in attributes.items():
                made.attrs[key] = value
            if item.size:
                made[...] = item.values


def _write_zarr(variables: Mapping[str, xr.Variable], file: File, path: Path) -> None:
    encoding: dict[str, dict[str, Any]] = {}
    stored: dict[str, xr.Variable] = {}
    strings = {name: item for name, item in variables.items() if item.dtype.kind == "O"}
    for name, item in variables.items():
        values = item.values
        if name in strings:
            continue
        if values.dtype.kind in "iuf":
            values = values.astype(values.dtype.newbyteorder(file.byte_order))
        own = encoding[name] = {}
        if values.dtype.kind == "f" and "_FillValue" not in item.attrs:
            own["_FillValue"] = None
        if (chunks := _chunks(file, item)) is not None:
            own["chunks"] = chunks
        stored[name] = xr.Variable(item.dims, values, item.attrs)
    zarr_format: Any = int(file.format[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data types without a specification
        xr.Dataset(stored, attrs=dict(file.attributes)).to_zarr(
            path, mode="w", zarr_format=zarr_format, encoding=encoding, consolidated=False
        )
        group = zarr.open_group(path, mode="r+", zarr_format=zarr_format)
        for name, item in strings.items():  # xarray gives them a fixed length if there is no value
            dims: dict[str, Any] = {"dimension_names": item.dims} if zarr_format == 3 else {}
            attributes = {**item.attrs, **({} if dims else {"_ARRAY_DIMENSIONS": list(item.dims)})}
            array = group.create_array(name, shape=item.shape, dtype=str, attributes=attributes, **dims)
            if item.size:
                array[...] = item.values
