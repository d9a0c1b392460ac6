"""The conventions that are known, and the meaning of a node by all of them.

Packages can add a convention with an entry point of the group ``zarrasync.conventions``. Its name is the attribute by which
the convention is recognised, and its object is the function that interprets attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from zarrasync._util import plugins
from zarrasync.metadata.conventions import cf_attributes, ome, zarr_conventions
from zarrasync.metadata.conventions.cf_attributes import parents_of_bounds
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_times import CALENDAR, UNITS
from zarrasync.metadata.conventions.meaning import Axis, Meaning, Violation, merge
from zarrasync.metadata.conventions.xarray_properties import names_of_axes
from zarrasync.metadata.format import Format
from zarrasync.metadata.node_metadata import ArrayMetadata, NodeMetadata

Interpret: TypeAlias = Callable[[Mapping[str, Any]], Meaning | None]
"""A function that returns the meaning of attributes, or ``None`` if they do not follow the convention."""

_CONVENTIONS: list[tuple[tuple[str, ...], Interpret]] = [
    (ome.ATTRIBUTES, ome.interpret_ome),
    (zarr_conventions.ATTRIBUTES, zarr_conventions.interpret_zarr_conventions),
    (cf_attributes.ATTRIBUTES, cf_attributes.interpret_cf),
]


def register_convention(attributes: Iterable[str], interpret: Interpret) -> None:
    """Register a convention, so that representations, the server, xarray and ``validate`` use it.

    Args:
        attributes: The attributes by which it is recognised. One that ends with a colon is the beginning of names.
        interpret: A function that returns the meaning of a node's attributes.
    """
    _CONVENTIONS.append((tuple(attributes), interpret))


def meaning_of(metadata: NodeMetadata) -> Meaning:
    """Return what conventions specify about a node."""
    attributes = metadata.attributes
    if not attributes:
        return Meaning()
    names = {*attributes, *(name[: name.index(":") + 1] for name in attributes if ":" in name)}
    functions = [interpret for marks, interpret in _CONVENTIONS if not names.isdisjoint(marks)]
    functions += [
        partial(_interpret_with_plugin, name)
        for name in sorted(plugins.entry_points_in(plugins.CONVENTIONS).keys() & names)
    ]
    meanings = [meaning for interpret in functions if (meaning := interpret(attributes)) is not None]
    return merge(meanings) if meanings else Meaning()


def _interpret_with_plugin(name: str, attributes: Mapping[str, Any]) -> Meaning | None:
    """Call the function of another package. If it fails, the node has a violation and can still be shown."""
    try:
        meaning = plugins.find(plugins.CONVENTIONS, name)(attributes)
    except Exception as error:
        message = f"the convention {name!r} of another package failed: {type(error).__name__}: {error}"
        return Meaning(violations=(Violation("error", name, message),))
    return meaning if isinstance(meaning, Meaning) else None


# ------------------------------------------------------------------ axes of arrays


def axis_names(metadata: ArrayMetadata) -> list[str | None] | None:
    """Return the names of an array's axes, or ``None`` if the axes have no names.

    In formats without dimension names, xarray's attribute ``_ARRAY_DIMENSIONS`` contains them.
    """
    names = names_of_axes(metadata.dimension_names, metadata.attributes, metadata.ndim)
    return None if names is None else list(names)


def axes_of(metadata: ArrayMetadata, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return one axis for each axis of an array.

    Args:
        metadata: The metadata of the array.
        axes: The axes that conventions specify. They correspond by name. If one of both sides has no names,
            they correspond by position, unless their number differs.
    """
    names = [name or "" for name in axis_names(metadata) or [None] * metadata.ndim]
    if len(axes) == metadata.ndim and not (any(names) and any(axis.name for axis in axes)):
        pairs = zip(axes, names, strict=True)
        return tuple(replace(axis, name=axis.name or name) for axis, name in pairs)
    by_name = {axis.name: axis for axis in axes if axis.name}
    return tuple(by_name.get(name, Axis(name)) for name in names)


# ------------------------------------------------------------------ stored numbers


_MOST_VERTICES = 64
"""The most vertices of a cell, the size of the last axis of bounds."""


def encoding_of(metadata: ArrayMetadata, format_: Format, parent: Mapping[str, Any] | None = None) -> CFEncoding:
    """Return the meaning of the stored numbers of an array.

    In formats in which a fill value can be undefined, a defined one marks missing values, as in xarray. The default fill
    value of an array without dimension names does not, because such arrays do not follow xarray's conventions. Booleans
    have no number for missing values.

    Args:
        metadata: The metadata of the array.
        format_: Its format.
        parent: The attributes of the coordinate, if the array contains its bounds.
    """
    dtype, fill = metadata.dtype.numpy, metadata.fill_value
    is_default = fill is not None and axis_names(metadata) is None and bool(fill == metadata.dtype.default_fill())
    if not format_.has_undefined_fill or dtype.kind not in "iufc" or is_default:
        fill = None
    return CFEncoding.from_attributes(metadata.attributes, dtype, fill_value=fill, parent=parent)


def may_be_bounds(metadata: ArrayMetadata) -> bool:
    """Return whether an array may inherit its units or its calendar, so that it is worth looking for the coordinate."""
    units, shape = metadata.attributes.get(UNITS), metadata.shape
    is_open = units is None or (CALENDAR not in metadata.attributes and " since " in str(units))
    return is_open and metadata.dtype.numpy.kind in "iuf" and bool(shape) and 2 <= shape[-1] <= _MOST_VERTICES


def parent_of(name: str, arrays: Mapping[str, ArrayMetadata]) -> Mapping[str, Any] | None:
    """Return the attributes of the coordinate whose bounds an array contains; ``None`` if it contains no bounds.

    Args:
        name: The name of the array.
        arrays: The arrays of its group, by name.
    """
    parents = parents_of_bounds({other: metadata.attributes for other, metadata in arrays.items()})
    return arrays[parents[name]].attributes if name in parents else None
