"""Random jobs: which files there are, and how they are ingested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.bulk.files.random_files import CLASSIC, DTYPES, EPOCHS, UNITS, Field, File, Labels, encode_times
from zarrasync.bulk.files.sources.headers import SMALL_BYTES

__all__ = ["Job", "jobs"]

_DIMS = [("row",), ("row", "y"), ("y", "row"), ("row", "y", "x"), ("y", "row", "x"), ("y",), ("x", "y"), ()]
_GROUPS = [
    tuple(DTYPES),
    ("NETCDF4", "h5", "zarr2", "zarr3"),
    ("NETCDF4", "h5"),
    ("NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA"),
    ("zarr2", "zarr3"),
]
"""Kinds of files that occur together."""
_NAMES = ("c", "a b", "é", "v.1")
"""Names of variables that need care."""
_FAULTS = ("dtype", "packing", "constant", "absent", "units", "calendar", "label", "axes")


@dataclass(frozen=True)
class Job:
    """What to ingest, and how.

    Attributes:
        fields: The variables.
        labels: The labels of the rows.
        sizes: The sizes of the dimensions but the joined one.
        files: The files in the order of the first call.
        first: The number of files of the first call. The second call adds all of them.
        options: Arguments of both calls.
        appended: The same of the second call alone.
        is_planned: Whether the first call is a plan, whose tasks run one by one.
        updates: The number of the file that changes at the end; ``None`` for none.
        small: The largest size of values that are read with the headers.
        fault: Why files may be refused; empty if they must not.
        is_async: Whether to call the asynchronous API.
        chosen: The names of the variables to ingest; empty for all.
    """

    fields: tuple[Field, ...]
    labels: Labels
    sizes: Mapping[str, int]
    files: tuple[File, ...]
    first: int
    options: Mapping[str, Any] = field(default_factory=dict)
    appended: Mapping[str, Any] = field(default_factory=dict)
    is_planned: bool = False
    updates: int | None = None
    small: int = SMALL_BYTES
    fault: str = ""
    is_async: bool = False
    chosen: tuple[str, ...] = ()


@st.composite
def jobs(draw: Any) -> Job:
    group = draw(st.sampled_from([*_GROUPS, ("npz",)]))
    formats = tuple(name for name in group if name != "npz") or group
    is_row = group != ("npz",) and draw(st.integers(0, 5)) == 5
    count = draw(st.integers(2, 5))
    kinds = [draw(st.sampled_from(formats)) for _ in range(count)]
    can_be_empty = not any(kind.startswith("NETCDF3") or DTYPES[kind] is CLASSIC for kind in kinds)
    smallest = 0 if can_be_empty and draw(st.integers(0, 9)) == 9 else 1
    sizes = {"y": draw(st.integers(smallest, 4)), "x": draw(st.integers(1, 3)), "nv": 2}
    labels = draw(_labels(kinds))
    fields = draw(_fields(kinds, labels))
    sizes = {dim: n for dim, n in sizes.items() if any(dim in own.dims for own in fields)}
    are_row_first = all("row" not in own.dims or own.dims[0] == "row" for own in fields)
    files = tuple(
        draw(_files(number, kind, labels, fields, is_row=is_row, are_row_first=are_row_first))
        for number, kind in enumerate(kinds)
    )
    fault = draw(st.sampled_from(_FAULTS)) if draw(st.integers(0, 4)) == 4 and not is_row else ""
    if fault:
        files, fault = draw(_faulty(files, fields, labels, fault))
    chosen: tuple[str, ...] = ()
    if not fault and draw(st.integers(0, 3)) == 3:
        rest = draw(st.sets(st.sampled_from([own.name for own in fields])))
        chosen = tuple(own.name for own in fields if own is fields[0] or own.name in rest)
    options = draw(_options(fields, labels, sizes, is_row=is_row))
    if chosen:
        options["variables"] = chosen
        if not {*options.get("encoding", {})} <= {*chosen, "row"}:
            del options["encoding"]
    if group == ("npz",):
        options["dims"] = fields[0].dims
    return Job(
        fields,
        labels,
        sizes,
        tuple(draw(st.permutations(files))),
        draw(st.integers(1, count)),
        options,
        {"on_duplicate": draw(st.sampled_from(["error", "skip", "replace"])), "on_late": "error"},
        draw(st.integers(0, 3)) == 3,
        draw(st.sampled_from([None, None, *range(count)])),
        draw(st.sampled_from([SMALL_BYTES, 16])),
        fault,
        draw(st.booleans()),
        chosen,
    )


# ------------------------------------------------------------------ labels and variables


def _common(kinds: Sequence[str]) -> list[str]:
    """Return the data types that all kinds of files have."""
    return [dtype for dtype in DTYPES["zarr3"] if all(dtype in DTYPES[kind] for kind in kinds)]


def _have_strings(kinds: Sequence[str]) -> bool:
    return all(DTYPES[kind] is not CLASSIC and kind not in ("NETCDF3_64BIT_DATA", "npz") for kind in kinds)


@st.composite
def _labels(draw: Any, kinds: Sequence[str]) -> Labels:
    allowed = ["none", "number", "string"] if "npz" in kinds else ["none", "number", "number", "time", "time"]
    if _have_strings(kinds):
        allowed.append("string")
    kind = draw(st.sampled_from(allowed))
    count = draw(st.integers(1, 12))
    if kind == "none":
        return Labels(kind, values=tuple(range(count)))
    if kind == "string":
        return Labels(kind, values=tuple(f"station {number:02}" for number in range(count)))
    is_falling = draw(st.integers(0, 3)) == 3
    steps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    numbers = np.cumsum(steps).tolist()[:: -1 if is_falling else 1]
    if kind == "number":
        dtype = draw(st.sampled_from([name for name in _common(kinds) if np.dtype(name).kind != "c"]))
        largest = 2**62 if np.dtype(dtype).kind != "f" and np.dtype(dtype).itemsize == 8 else 50
        begin = draw(st.sampled_from([0, largest, -5] if np.dtype(dtype).kind != "u" else [0, largest]))
        scale = 0.5 if np.dtype(dtype).kind == "f" else 1
        return Labels(kind, dtype, tuple((begin + number) * scale for number in numbers))
    resolution = draw(st.sampled_from([3600, 86400, 1800, 60]))
    dtype = draw(st.sampled_from([name for name in _common(kinds) if name in ("i4", "i8", "f8")]))
    return Labels(kind, dtype, tuple(number * resolution for number in numbers))


@st.composite
def _fields(draw: Any, kinds: Sequence[str], labels: Labels) -> tuple[Field, ...]:
    if kinds[0] == "npz":
        dims = draw(st.sampled_from([dims for dims in _DIMS if "row" in dims])) if labels.kind == "none" else ("row",)
        dtypes = draw(st.lists(st.sampled_from([*_common(kinds), "char"]), min_size=1, max_size=3))
        return tuple(
            Field(f"v{n}", "char" if dtype == "char" else "number", dims, "S4" if dtype == "char" else dtype)
            for n, dtype in enumerate(dtypes)
        )
    allowed = ["number", "number", "number", "char", "bool", "time", "duration"]
    allowed += ["string"] if _have_strings(kinds) else []
    fields = []
    for number in range(draw(st.integers(1, 4))):
        dims = draw(st.sampled_from([own for own in _DIMS if number or "row" in own]))
        kind, name = draw(st.sampled_from(allowed)), draw(st.sampled_from([f"v{number}", _NAMES[number]]))
        if kind in ("time", "duration"):
            dtype = draw(st.sampled_from([name for name in _common(kinds) if name in ("i4", "i8", "f8")]))
            fill = draw(st.sampled_from([None, -9999]))
            fields.append(
                Field(name, kind, dims, dtype, {} if fill is None else {"_FillValue": np.dtype(dtype).type(fill)})
            )
        elif kind == "number":
            dtype = draw(st.sampled_from(_common(kinds)))
            fields.append(Field(name, kind, dims, dtype, draw(_attributes(dtype))))
        else:
            fields.append(Field(name, kind, dims, attributes=draw(st.sampled_from([{}, {"long_name": "a name"}]))))
    first, last = fields[0], fields[-1]
    can_refer = first.kind == "number" and len(fields) > 1 and {*last.dims} <= {*first.dims} and " " not in last.name
    if can_refer and draw(st.integers(0, 3)) == 3:
        fields[0] = replace(first, attributes={**first.attributes, "coordinates": last.name})
    if labels.kind == "time" and draw(st.integers(0, 3)) == 3:
        fields.append(Field("row_bnds", "bounds", ("row", "nv"), "f8"))
    return tuple(fields)


@st.composite
def _attributes(draw: Any, dtype: str) -> dict[str, Any]:
    """Return attributes of numbers, which may be packed."""
    kind = np.dtype(dtype)
    result: dict[str, Any] = {}
    if kind.kind == "c":
        return result
    fills: dict[str, list[Any]] = {
        "f": [None, -999.0, np.nan],
        "i": [None, -1, 0, np.iinfo(kind).min if kind.kind != "f" else 0],
        "u": [None, 0, 99],
        "c": [None],
    }
    fill = draw(st.sampled_from(fills[kind.kind]))
    if fill is not None:
        result["_FillValue"] = kind.type(fill)
        if draw(st.booleans()):
            result["missing_value"] = kind.type(fill)
    elif draw(st.integers(0, 3)) == 3:
        result["missing_value"] = draw(st.sampled_from([kind.type(7), np.array([7, 9], kind)]))
    if draw(st.integers(0, 2)) == 2 and kind.itemsize < 8:
        number = draw(st.sampled_from([np.float64, np.float32]))
        result["scale_factor"] = number(0.25)
        if draw(st.booleans()):
            result["add_offset"] = number(273.5)
    if kind.kind == "i" and kind.itemsize < 8 and draw(st.integers(0, 4)) == 4:
        result["_Unsigned"] = "true"
    if draw(st.integers(0, 3)) == 3:
        result["valid_range"] = np.array([0, 100], kind)
    if draw(st.booleans()):
        result["units"] = "K"
    if draw(st.integers(0, 4)) == 4:
        result["flag_values"] = np.array([0, 1, 2], kind)
        result["flag_meanings"] = "a b c"
    return result


# ------------------------------------------------------------------ files


@st.composite
def _files(
    draw: Any,
    number: int,
    kind: str,
    labels: Labels,
    fields: Sequence[Field],
    *,
    is_row: bool,
    are_row_first: bool,
) -> File:
    is_zarr, is_npz = kind.startswith("zarr"), kind == "npz"
    fixed = not are_row_first and (DTYPES[kind] is CLASSIC or kind.startswith("NETCDF3"))
    smallest = 1 if is_row or fixed else 0
    every = range(len(labels.values))
    if is_row:
        rows = (draw(st.sampled_from([*every])),)
    else:
        rows = tuple(sorted(draw(st.sets(st.sampled_from([*every]), min_size=smallest, max_size=5))))
    storage: dict[str, Any] = {}
    if not is_npz:
        storage = {name: draw(st.booleans()) for name in ("zlib", "shuffle", "fletcher32", "unlimited", "contiguous")}
        storage["chunks"] = draw(st.sampled_from([None, 1, 2, 3]))
        if fixed or is_row:
            storage["unlimited"] = False
        elif not rows and not is_zarr:
            storage["unlimited"] = True
    units = [
        f"{unit} since {epoch}"
        for unit in UNITS
        for epoch in EPOCHS
        if unit != "milliseconds" or labels.dtype not in ("i4", "f4")
    ]
    probe = File(number, kind, rows)
    exact = [text for text in units if _is_exact(labels, probe, text)] or units
    time_fields = [own for own in fields if own.kind == "time" and own.dtype != "f8"]
    if time_fields:
        exact = [text for text in exact if text.startswith(("minutes", "seconds"))] or ["seconds since 2000-01-01"]
    has_durations = any(own.kind == "duration" and own.dtype != "f8" for own in fields)
    attributes: dict[str, Any] = draw(
        st.sampled_from([{}, {"title": "a title", "version": np.int32(number)}, {"numbers": np.array([1.5, number])}])
    )
    if is_npz:
        attributes = {}
    if is_zarr and draw(st.booleans()):
        attributes = {**attributes, "flag": True, "nothing": None}
    orders = {}
    for own in fields:
        movable = not is_npz and len(own.dims) > 1 and not (kind.startswith("NETCDF3") or DTYPES[kind] is CLASSIC)
        if movable and not is_row and draw(st.integers(0, 3)) == 3:
            orders[own.name] = tuple(draw(st.permutations(own.dims)))
    can_be_short = kind == "NETCDF4" and storage["unlimited"] and labels.kind != "none" and not is_row
    if can_be_short and draw(st.booleans()):
        storage["short"] = tuple(
            own.name for own in fields if own.kind == "number" and "row" in own.dims and "_FillValue" in own.attributes
        )
    label_dtype = ""
    if labels.kind == "number" and max(map(abs, labels.values)) < 100 and draw(st.integers(0, 3)) == 3:
        label_dtype = draw(st.sampled_from([name for name in ("i1", "i2", "i4", "f8") if name in DTYPES[kind]]))
        if np.dtype(labels.dtype).kind == "u" or any(value != int(value) for value in labels.values):
            label_dtype = ""
    return File(
        number,
        kind,
        rows,
        draw(st.integers(0, 99)),
        draw(st.sampled_from(exact)),
        draw(st.sampled_from(["standard", "gregorian", "proleptic_gregorian"])),
        draw(st.sampled_from(["minutes", "seconds"] if has_durations else ["hours", "minutes", "seconds", "days"])),
        orders,
        draw(st.sampled_from("<>")),
        storage,
        {},
        is_row,
        attributes,
        draw(st.integers(1, 4)),
        label_dtype,
    )


def _is_exact(labels: Labels, file: File, units: str) -> bool:
    if labels.kind != "time":
        return True
    try:
        encode_times(np.array(labels.values, dtype=object), replace(file, units=units), labels.dtype)
    except ValueError:
        return False
    return True


@st.composite
def _faulty(
    draw: Any, files: tuple[File, ...], fields: Sequence[Field], labels: Labels, fault: str
) -> tuple[tuple[File, ...], str]:
    """Return files of which one does not fit the others, and the fault; empty if there is no such fault."""
    number = draw(st.integers(0, len(files) - 1))
    numbers = [own for own in fields if own.kind == "number"]
    constants = [own for own in numbers if "row" not in own.dims]
    changed: dict[str, Any] = {}
    calendar = files[number].calendar
    if fault == "dtype" and numbers:
        own = draw(st.sampled_from(numbers))
        changed[own.name] = {"dtype": draw(st.sampled_from(DTYPES[files[number].format]))}
        if np.dtype(changed[own.name]["dtype"]).kind != np.dtype(own.dtype).kind or own.attributes:
            changed[own.name] = {"dtype": own.dtype}
    elif fault == "packing" and numbers:
        changed[draw(st.sampled_from(numbers)).name] = {"attributes": {"scale_factor": 0.125}}
    elif fault == "constant" and constants:
        changed[draw(st.sampled_from(constants)).name] = {"seed": 1}
    elif fault == "absent" and len(fields) > 1 and "npz" not in files[0].format:
        changed[draw(st.sampled_from(fields)).name] = {"absent": True}
    elif fault == "units" and numbers and "npz" not in files[0].format:
        changed[draw(st.sampled_from(numbers)).name] = {"attributes": {"units": "degC"}}
    elif fault == "calendar" and labels.kind == "time":
        calendar = "noleap"
    elif fault == "label" and labels.kind != "none" and len(files[number].rows) > 1:
        changed["label"] = {"how": draw(st.sampled_from(["reverse", "repeat"]))}
    elif fault == "axes" and any({"x", "y"} & {*own.dims} for own in fields) and "npz" not in files[0].format:
        changed["axes"] = {draw(st.sampled_from("xy")): True}
    else:
        return files, ""
    other = replace(files[number], changes=changed, calendar=calendar)
    return (*files[:number], other, *files[number + 1 :]), fault


# ------------------------------------------------------------------ parameters


@st.composite
def _options(
    draw: Any, fields: Sequence[Field], labels: Labels, sizes: Mapping[str, int], *, is_row: bool
) -> dict[str, Any]:
    options: dict[str, Any] = {"zarr_format": draw(st.sampled_from([2, 3]))}
    options["on_duplicate"] = draw(st.sampled_from(["error", "skip", "skip", "replace", "replace"]))
    if draw(st.booleans()):
        options["chunks"] = {"row": draw(st.integers(1, 4))}
        if "y" in sizes and draw(st.booleans()):
            options["chunks"]["y"] = draw(st.integers(1, 3))
        if options["zarr_format"] == 3 and draw(st.booleans()):
            options["shards"] = {
                dim: size * draw(st.integers(1, 3))
                for dim, size in options["chunks"].items()
                if dim == "row" or size > 1
            }
    if draw(st.integers(0, 3)) == 3:
        options["compressors"] = None
    if draw(st.integers(0, 3)) == 3:
        options["decode"] = True
    if draw(st.booleans()):
        options["verify"] = True
    wide = [own for own in fields if own.kind == "number" and np.dtype(own.dtype).itemsize < 8]
    if wide and draw(st.integers(0, 3)) == 3:
        own = draw(st.sampled_from(wide))
        if not {"scale_factor", "add_offset", "_Unsigned"} & own.attributes.keys():
            narrow = ["i1", "i2"] if np.dtype(own.dtype).kind == "i" and not own.attributes else []
            options["encoding"] = {own.name: {"dtype": draw(st.sampled_from(["f8", *narrow]))}}
    if labels.kind == "time" and draw(st.integers(0, 3)) == 3:
        units = draw(st.sampled_from(["seconds since 1990-01-01", "minutes since 2001-01-01"]))
        options.setdefault("encoding", {})["row"] = {"attributes": {"units": units}}
    return options
