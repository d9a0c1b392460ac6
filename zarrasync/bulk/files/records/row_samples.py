"""Samples of the rows of a dataset, which show whether rows were removed since, and came back as fill values. No IO.

The shape of an array does not show that. Rows are only removed from the end, so a sample of the last rows stands for all
rows before it. Each job looks at it before it adds rows or writes rows again, so one sample of each array is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from zarrasync.bulk.files.records.spans import Span, common
from zarrasync.indexing.regions import Region

__all__ = ["RowSample", "Samples", "add_samples", "parse_samples"]


class RowSample(NamedTuple):
    """A region of an array that contained other values than the fill value.

    Attributes:
        length: The row after the last one that the sample stands for. Rows between were fill values.
        axis: The number of the axis of rows.
        bounds: The first index and the index after the last one, of each axis.
    """

    length: int
    axis: int
    bounds: tuple[Span, ...]

    @property
    def region(self) -> Region:
        """The region of the array."""
        return tuple(slice(*bounds) for bounds in self.bounds)

    @property
    def rows(self) -> Span:
        """The rows of the region."""
        return self.bounds[self.axis]


Samples: TypeAlias = Mapping[str, RowSample]
"""The samples by the names of their arrays."""


def parse_samples(value: Mapping[str, Any]) -> dict[str, RowSample]:
    """Return samples from JSON values."""
    return {
        name: RowSample(int(length), int(axis), tuple((int(a), int(b)) for a, b in bounds))
        for name, (length, axis, bounds) in value.items()
    }


def add_samples(known: Samples, new: Samples, written: Sequence[Span]) -> dict[str, RowSample]:
    """Return the samples after a job. Each array has one, of its last rows.

    Args:
        known: The samples before.
        new: Samples of the rows that the job has written.
        written: These rows. Earlier samples of them may have other values now.
    """
    result = {name: own for name, own in known.items() if not common([own.rows], written)}
    for name, own in new.items():
        length = max(own.length, known[name].length) if name in known else own.length
        if name not in result or result[name].rows < own.rows:
            result[name] = own._replace(length=length)
    return result
