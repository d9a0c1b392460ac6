"""What an archive of files contains after each delivery, and which files a job leaves out. NumPy only: nothing of zarrasync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["ROWS", "UNIT", "Archive", "File", "is_between", "labels_of", "values_of"]

ROWS = 3
"""The rows of a file."""
UNIT = 4
"""The rows of a chunk of the archive."""


@dataclass(frozen=True)
class File:
    """A file as it was delivered.

    Attributes:
        number: Its place in the order of time.
        version: Which of its contents it has.
        is_broken: Whether it is truncated.
    """

    number: int
    version: int = 0
    is_broken: bool = False


def labels_of(number: int) -> npt.NDArray[np.int64]:
    """Return the labels of the rows of a file."""
    return np.arange(ROWS * number, ROWS * number + ROWS)


def values_of(file: File) -> npt.NDArray[np.float64]:
    """Return the values of the rows of a file."""
    return np.random.default_rng([file.number, file.version]).normal(size=ROWS)


@dataclass
class Archive:
    """The rows of an archive.

    Attributes:
        rows: The values by label; NaN for reserved rows without a file.
        files: The versions of the files whose rows were accepted, by number.
    """

    rows: dict[int, float] = field(default_factory=dict)
    files: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Archive:
        return Archive(dict(self.rows), dict(self.files))

    def reserve(self, count: int) -> None:
        """Lay out the rows of the first files."""
        for label in range(ROWS * count):
            self.rows.setdefault(label, np.nan)

    def deliver(
        self, files: Sequence[File], *, replaces: bool, inserts: bool, is_plan: bool = False
    ) -> tuple[set[int], set[int]]:
        """Add the rows of files. Return the numbers of broken files, and of late files that are left out."""
        new = [file for file in files if self.files.get(file.number) != file.version]
        broken = {file.number for file in files if file.is_broken and file in new}
        present, late = sorted(self.rows), set[int]()
        for file in new:
            if file.is_broken:
                continue
            known, labels = file.number in self.files, labels_of(file.number)
            if known and not replaces:
                continue
            after = len(present) - int(np.searchsorted(present, labels[0]))
            is_late = labels[0] not in self.rows and after > 0
            if is_late and (is_plan or (after > UNIT and not inserts)):
                late.add(file.number)
                continue
            self.rows.update(zip(labels.tolist(), values_of(file).tolist(), strict=True))
            self.files[file.number] = file.version
        return broken, late

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the labels and the values in order."""
        labels = sorted(self.rows)
        return np.array(labels, "i8"), np.array([self.rows[label] for label in labels])


def is_between(found: Mapping[int, float], before: Archive, after: Archive) -> bool:
    """Return whether each row that a reader has seen is one of before a job or of after it."""
    allowed = [(state.rows.get(label, np.nan), value) for label, value in found.items() for state in (before, after)]
    pairs = np.array(allowed).reshape(-1, 2, 2)
    are_equal = (pairs[..., 0] == pairs[..., 1]) | np.isnan(pairs).all(-1)
    is_known = all(label in before.rows or label in after.rows for label in found)
    return is_known and bool(are_equal.any(1).all())
