"""Samples of the rows of a dataset, which show whether rows were removed since, and came back as fill values. No IO.

The shape of an array does not show that. Rows are only removed from the end, so a sample of the last rows stands for all
rows before it, up to the sample before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zarrasync.bulk.files.spans import Span
from zarrasync.indexing.regions import Region

__all__ = ["RowSample", "Samples", "add_samples", "parse_samples", "without_values"]

_MOST_SAMPLES = 4
"""Samples of each array. The oldest rows belong to the first of them."""


class RowSample(NamedTuple):
    """A region of an array that contained other values than the fill value.

    Attributes:
        length: The row after the last one that the sample stands for. Later rows of its job were fill values.
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


Samples = Mapping[str, Sequence[RowSample]]
"""The samples of each array, in the order of their rows."""


def parse_samples(value: Mapping[str, Any]) -> dict[str, tuple[RowSample, ...]]:
    """Return samples from JSON values."""
    return {
        name: tuple(
            RowSample(int(length), int(axis), tuple((int(a), int(b)) for a, b in bounds))
            for length, axis, bounds in items
        )
        for name, items in value.items()
    }


def add_samples(known: Samples, new: Mapping[str, RowSample], written: Sequence[Span]) -> dict[str, list[RowSample]]:
    """Return the samples after a job.

    Args:
        known: The samples before.
        new: Samples of the rows that the job has written.
        written: These rows. Earlier samples of them may have other values now.
    """
    result: dict[str, list[RowSample]] = {}
    for name in {**known, **new}:
        outdated, kept = list[RowSample](), list[RowSample]()
        for sample in known.get(name, ()):
            is_written = any(start < sample.rows[1] and sample.rows[0] < stop for start, stop in written)
            (outdated if is_written else kept).append(sample)
        if name in new:
            length = max(sample.length for sample in (new[name], *outdated))
            kept.append(new[name]._replace(length=length))
        if kept:
            result[name] = sorted(kept, key=lambda sample: sample.rows)[-_MOST_SAMPLES:]
    return result


def without_values(samples: Sequence[RowSample], are_empty: Sequence[bool]) -> list[tuple[RowSample, int]]:
    """Return the samples of rows that were removed, with the first row that may have been removed.

    Args:
        samples: The samples of an array.
        are_empty: Whether each of them contains fill values only.
    """
    lost, start = list[tuple[RowSample, int]](), 0
    for sample, is_empty in zip(samples, are_empty, strict=True):
        if is_empty:
            lost.append((sample, start))
        else:
            start = sample.rows[1]
    return lost
