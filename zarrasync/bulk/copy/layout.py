"""The layout of each copied array, from parameters that name arrays or dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zarrasync.errors import ShapeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import axis_names
from zarrasync.metadata.convert import LayoutChanges


def layout_of(changes: LayoutChanges, path: str, metadata: ArrayMetadata) -> LayoutChanges:
    """Return the changes of one array.

    Args:
        changes: The changes of all arrays. Shapes may be mappings: sizes by dimension, and shapes by array. Compressors may
            be a mapping of arrays.
        path: The path of the array relative to the copied node, or the name of the copied array.
        metadata: Its metadata.
    """
    compressors = changes.compressors
    if _is_by_array(compressors):
        compressors = compressors.get(path, "keep")
    chunks, shards = metadata.chunks, metadata.shards or metadata.chunks
    return LayoutChanges(
        _shape(changes.chunks, path, metadata, chunks), _shape(changes.shards, path, metadata, shards), compressors
    )


def check_names(changes: LayoutChanges, arrays: Mapping[str, ArrayMetadata]) -> None:
    """Check that mappings name arrays and dimensions that exist.

    Args:
        changes: The changes.
        arrays: The arrays by path.

    Raises:
        ShapeError: If a name does not exist.
    """
    dims = {name for metadata in arrays.values() for name in _names(metadata)}
    for parameter, shape in (("chunks", changes.chunks), ("shards", changes.shards)):
        if not isinstance(shape, Mapping):
            continue
        for name, value in shape.items():
            if isinstance(value, int):
                _check(parameter, "dimension", name, dims)
                continue
            _check(parameter, "array", name, arrays)
            if isinstance(value, Mapping):
                for dim in value:
                    _check(f"{parameter} of {name!r}", "dimension", dim, _names(arrays[name]))
    if _is_by_array(changes.compressors):
        for name in changes.compressors:
            _check("compressors", "array", name, arrays)


def _check(parameter: str, kind: str, name: Any, known: Iterable[str]) -> None:
    if name not in known:
        raise ShapeError(f"{parameter}: the source has no {kind} {name!r}; it has {', '.join(sorted(known)) or 'none'}")


def _is_by_array(compressors: Any) -> bool:
    """Return whether compressors are a mapping of arrays, and not the configuration of one codec."""
    return isinstance(compressors, Mapping) and not isinstance(compressors.get("name", compressors.get("id")), str)


def _shape(value: Any, path: str, metadata: ArrayMetadata, present: tuple[int, ...]) -> Any:
    if not isinstance(value, Mapping):
        return value
    own = value.get(path)
    if own is None and path in value:
        return None
    if own is None or isinstance(own, int):
        own = {dim: size for dim, size in value.items() if isinstance(size, int)}
    if not isinstance(own, Mapping):
        return own
    names = axis_names(metadata) or ()
    if not own.keys() & set(names):
        return "keep"
    return tuple(own.get(name, size) for name, size in zip(names, present, strict=True))


def _names(metadata: ArrayMetadata) -> list[str]:
    return [name for name in axis_names(metadata) or () if name is not None]
