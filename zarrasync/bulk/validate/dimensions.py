"""Validation of arrays that share dimensions: equal sizes, and complete coordinates."""

from __future__ import annotations

from collections.abc import Collection

from zarrasync.bulk.validate.hierarchy import Validation
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import axis_names, meaning_of
from zarrasync.model.chunk_keys import ChunkKeyEncoding

_LOOKUPS = 1000
"""Chunks that are looked up one by one, from the last one."""


def check_lengths(validation: Validation) -> None:
    """Report dimensions whose size differs between arrays of a group, as after an interrupted append."""
    lengths: dict[tuple[str, str], dict[int, list[str]]] = {}
    levels = {
        path: {level.path for level in meaning_of(node.metadata).levels} for path, node in validation.nodes.items()
    }
    for path, node in validation.nodes.items():
        group, _, name = path.rpartition("/")
        if not isinstance(node.metadata, ArrayMetadata) or not path or group not in validation.nodes:
            continue
        if name in levels[group]:
            continue
        for dim, length in zip(axis_names(node.metadata) or (), node.metadata.shape, strict=False):
            if dim is not None:
                lengths.setdefault((group, dim), {}).setdefault(length, []).append(name)
    for (group, dim), arrays in lengths.items():
        if len(arrays) > 1:
            parts = (f"{length:,} in {', '.join(sorted(names)[:3])}" for length, names in sorted(arrays.items()))
            message = f"arrays have different sizes along {dim!r} ({'; '.join(parts)}); xarray cannot open the group. "
            message += "If an append was interrupted, shrink the longer arrays with resize()"
            validation.add("note", validation.root.format.document_keys(group, GroupMetadata)[0], message)


def check_coordinates(validation: Validation, keys: Collection[str]) -> None:
    """Report coordinates whose last chunks are not stored, as after an interrupted append to a dataset.

    Other arrays may be sparse. But the values of a coordinate differ, so that only one of its chunks can contain nothing
    but the fill value.
    """
    format_, stored = validation.root.format, set(keys)
    for path, node in validation.nodes.items():
        metadata, (_, _, name) = node.metadata, path.rpartition("/")
        if (
            not isinstance(metadata, ArrayMetadata)
            or tuple(axis_names(metadata) or ()) != (name,)
            or metadata.edges is not None
        ):
            continue
        prefix, count = format_.chunk_prefix(path), metadata.grid.shape[0]
        present = _stored_chunks(stored, prefix, metadata.keys, count)
        missing = metadata.shape[0] - present * metadata.write_chunks[0]
        if present and missing > 1:
            message = (
                f"the last {missing:,} values of the coordinate are not stored. If an append was interrupted, write "
            )
            message += f"its rows, or remove them: shrink the arrays along {name!r} with resize()"
            validation.add("note", format_.document_keys(path, ArrayMetadata)[0], message)


def _stored_chunks(stored: Collection[str], prefix: str, encoding: ChunkKeyEncoding, count: int) -> int:
    """Return the number of the last stored chunk along one axis, counted from 1; 0 if none is stored."""
    for present in range(count, max(count - _LOOKUPS, 0), -1):
        if prefix + encoding.encode((present - 1,)) in stored:
            return present
    # The size of an array that is not trusted may be any number.
    found = [encoding.decode(key[len(prefix) :], 1) for key in stored if key.startswith(prefix)]
    return max((coords[0] + 1 for coords in found if coords is not None and coords[0] < count), default=0)
