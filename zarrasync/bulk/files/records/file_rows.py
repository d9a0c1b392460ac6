"""The rows of files in a dataset, and which of them remain when others are written over them. No IO."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

_START = itemgetter(0)


class Rows(NamedTuple):
    """The rows of a file.

    Attributes:
        start: The first row.
        stop: The row after the last one.
        digest: A digest of their labels, which is empty if they have none.
    """

    start: int
    stop: int
    digest: str


class WrittenRows:
    """The rows that a job writes.

    Without labels, they replace the rows of other files. With labels, only the rows that the job adds do: earlier rows at their
    place were removed.

    Args:
        rows: The rows of each file of the job.
        added: The first row that the job adds to the dataset, and the row after its last one.
    """

    def __init__(self, rows: Iterable[Rows], added: tuple[int, int] = (0, 0)) -> None:
        self._added = added
        self._spans: list[tuple[int, int]] = []  # disjoint, in order
        for own in sorted(own for own in rows if not own.digest and own.start < own.stop):
            if self._spans and self._spans[-1][1] >= own.start:
                start, stop = self._spans.pop()
                self._spans.append((start, max(stop, own.stop)))
            else:
                self._spans.append((own.start, own.stop))

    def overlap(self, rows: Rows) -> bool:
        """Return whether the job writes over rows of another file."""
        if rows.digest:
            return rows.start < self._added[1] and rows.stop > self._added[0]
        at = bisect_left(self._spans, rows.stop, key=_START) - 1
        return at >= 0 and self._spans[at][1] > rows.start

    def rest(self, rows: Rows) -> Rows | None:
        """Return the rows of another file from the first one that remains to the last one; ``None`` if none does.

        Files with labels are left out: their other rows are known by their labels.
        """
        start, stop, digest = rows
        if digest:
            return None
        before = bisect_right(self._spans, start, key=_START) - 1
        if before >= 0:
            start = max(start, self._spans[before][1])
        last = bisect_left(self._spans, stop, key=_START) - 1
        if last >= 0 and self._spans[last][1] >= stop:
            stop = self._spans[last][0]
        return Rows(start, stop, digest) if start < stop else None
