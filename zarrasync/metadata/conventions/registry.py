"""The conventions that are known, and the meaning of a node by all of them.

Packages can add a convention with an entry point of the group ``zarrasync.conventions``. Its name is the attribute by which
the convention is recognised, and its object is the function that interprets attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from zarrasync._util import plugins
from zarrasync.metadata.conventions import cf_attributes, ome, zarr_conventions
from zarrasync.metadata.conventions.meaning import Axis, Meaning, Violation, merge
from zarrasync.metadata.conventions.xarray_properties import DIMENSIONS
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
    functions += [_plugin(name) for name in sorted(plugins.entry_points_in(plugins.CONVENTIONS).keys() & names)]
    meanings = [meaning for interpret in functions if (meaning := interpret(attributes)) is not None]
    return merge(meanings) if meanings else Meaning()


def _plugin(name: str) -> Interpret:
    """Return the function of another package. If it fails, the node has a violation and can still be shown."""

    def interpret(attributes: Mapping[str, Any]) -> Meaning | None:
        try:
            meaning = plugins.find(plugins.CONVENTIONS, name)(attributes)
        except Exception as error:
            message = f"the convention {name!r} of another package failed: {type(error).__name__}: {error}"
            return Meaning(violations=(Violation("error", name, message),))
        return meaning if isinstance(meaning, Meaning) else None

    return interpret


# ------------------------------------------------------------------ axes of arrays


def axis_names(metadata: ArrayMetadata) -> list[str | None] | None:
    """Return the names of an array's axes, or ``None`` if the axes have no names.

    In formats without dimension names, xarray's attribute ``_ARRAY_DIMENSIONS`` contains them.
    """
    if metadata.dimension_names is not None:
        return list(metadata.dimension_names)
    names = metadata.attributes.get(DIMENSIONS)
    is_valid = (
        isinstance(names, list | tuple) and len(names) == metadata.ndim and all(isinstance(n, str) for n in names)
    )
    return [str(name) for name in names or ()] if is_valid else None


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
