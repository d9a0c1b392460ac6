"""Remarks about appends that write much more than they add. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from zarrasync.bulk.files.records.plan import ArrayPlan
from zarrasync.display.text import listed, size_text
from zarrasync.metadata import ArrayMetadata

_LARGE_BYTES = 1 << 20
_MANY_TIMES = 8


def rewriting_notes(arrays: Iterable[tuple[ArrayPlan, ArrayMetadata]]) -> list[str]:
    """Return a remark if new rows are few compared with the stored value that they are added to, which is written again.

    Args:
        arrays: The arrays of a job, with their metadata after it.
    """
    total, added, unit = 0, 0, "chunks"
    names: list[str] = []
    for array, metadata in arrays:
        if array.shape is None or array.axis is None:
            continue
        axis, length = metadata.grid.axes[array.axis], array.shape[array.axis]
        if length >= axis.extent:
            continue
        number = axis.find(length)
        start, end = axis.start(number), min(axis.start(number) + axis.size(number), axis.extent)
        old, new = (length - start) * array.row_bytes, (end - length) * array.row_bytes
        if old >= _LARGE_BYTES and old >= _MANY_TIMES * new:
            total, added, names = total + old, added + new, [*names, repr(array.name)]
            unit = "shards" if metadata.shards is not None else unit
    if not names:
        return []
    sizes = f"{size_text(total)} of {listed(names)} are written again to add {size_text(added)} to the same {unit}"
    return [f"{sizes}; add more rows at a time, or create the dataset with {unit} of fewer rows"]
