"""What HDF5 files contain beyond what the libraries show: groups, and variables with data types that they cannot read."""

from __future__ import annotations

import importlib.util
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from zarrasync.bulk.files.sources.hdf5_chunks import HIDDEN, is_hdf5
from zarrasync.bulk.files.sources.headers import VariableHeader
from zarrasync.bulk.hdf5 import names_of

_FLOATS = (4, 8)
"""The sizes of the floats that netCDF supports, in bytes."""
_PURE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
"""The beginning of the name of a scale that is not a variable."""


@contextmanager
def _opened(path: str, group: str = "") -> Iterator[Mapping[str, Any]]:
    """Open a group of an HDF5 file. It is empty in other files, if it does not exist, and without h5py."""
    if not is_hdf5(path) or importlib.util.find_spec("h5py") is None:
        yield {}
        return
    import h5py

    with h5py.File(path, "r") as file:
        found = file.get(group or "/")
        yield found if isinstance(found, h5py.Group) else {}


def _is_dataset(item: Any) -> bool:
    return hasattr(item, "shape")


def groups_of_hdf5(path: str, group: str) -> dict[str, bool]:
    """Return the paths of the groups in a group of an HDF5 file, parents first, and whether each one has variables.

    Args:
        path: The path of the file. Other files, and all without h5py, have no groups.
        group: The path of the group.
    """
    found: dict[str, bool] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, Mapping):
            found[name] = any(_is_dataset(member) and not _is_pure_dimension(member) for member in item.values())

    with _opened(path, group) as parent:
        if (visit_all := getattr(parent, "visititems", None)) is not None:
            visit("", parent)
            visit_all(visit)
    return found


def find_unsafe(path: str) -> str:
    """Return a variable with which the library of netCDF would end the process; an empty string if all can be read.

    These are floats of other sizes than 32 and 64 bits. All groups are searched, because the library opens them together.

    Args:
        path: The path of the file. Other files than HDF5, and all files if h5py is not installed, are not searched.
    """
    with _opened(path) as file:
        for dataset in _all_datasets(file, set()) if file else ():
            dtype = _dtype_of(dataset)
            if dtype is not None and dtype.kind == "f" and dtype.itemsize not in _FLOATS:
                return f"{dataset.name} ({dtype})"
    return ""


def unread_variables(path: str, group: str, names: set[str]) -> dict[str, VariableHeader]:
    """Return the variables of a group that a library has left out, as headers with the reason.

    Args:
        path: The path of an HDF5 file. Without h5py, none is found.
        group: The path of the group.
        names: The names of the variables that the library has returned.
    """
    known = {unicodedata.normalize("NFC", name) for name in names}
    with _opened(path, group) as parent:
        members = ((str(name).removeprefix(HIDDEN), parent.get(name)) for name in parent)
        return {
            name: _header_of(item)
            for name, item in members
            if _is_dataset(item) and unicodedata.normalize("NFC", name) not in known and not _is_pure_dimension(item)
        }


def empty_variables(path: str, group: str) -> list[str]:
    """Return the names of the variables without values in a group of an HDF5 file, which h5netcdf cannot read."""
    with _opened(path, group) as parent:
        return [str(name) for name, item in parent.items() if _is_dataset(item) and item.shape is None]


def _header_of(dataset: Any) -> VariableHeader:
    names = names_of(dataset) or (None,) * len(dataset.shape or ())
    dims = tuple(name or f"dim_{number}" for number, name in enumerate(names))
    problem = f"the library of netCDF does not support its data type, {_type_text(dataset)}"
    if dataset.shape is None:
        problem = "it has no values"
    return VariableHeader(dims, dataset.shape or (), "V", {}, problem=problem)


def _all_datasets(group: Any, visited: set[Any]) -> Iterator[Any]:
    """Yield the datasets below a group. Groups with several names are searched once."""
    import h5py

    identity = h5py.h5o.get_info(group.id)  # pyright: ignore[reportAttributeAccessIssue]  # a compiled module
    if (place := (identity.fileno, identity.addr)) in visited:
        return
    visited.add(place)
    for name in group:
        member = group.get(name)  # None for a link that leads nowhere
        if isinstance(member, h5py.Dataset):
            yield member
        elif isinstance(member, h5py.Group):
            yield from _all_datasets(member, visited)


def _is_pure_dimension(dataset: Any) -> bool:
    return dataset.attrs.get("CLASS") == b"DIMENSION_SCALE" and bytes(dataset.attrs.get("NAME", b"")).startswith(
        _PURE_DIMENSION
    )


def _dtype_of(dataset: Any) -> Any:
    """Return the data type of a dataset, or ``None`` if NumPy has no such type."""
    try:
        return dataset.dtype
    except TypeError:
        return None


def _type_text(dataset: Any) -> str:
    """Describe the data type of a dataset."""
    import h5py

    dtype = _dtype_of(dataset)
    if dtype is None:
        return f"class {dataset.id.get_type().get_class()} of HDF5"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references to parts of the file"
    if (base := h5py.check_vlen_dtype(dtype)) is not None:
        return f"lists of {base}"
    if isinstance(dataset.id.get_type(), h5py.h5t.TypeBitfieldID):
        return "bits"
    if dtype.names is not None:
        members = ", ".join(f"{name} {'string' if (t := dtype[name]).kind == 'O' else t}" for name in dtype.names)
        return f"a compound of {members}"
    return f"opaque bytes ({dtype})" if dtype.kind in "VmM" else str(dtype)
