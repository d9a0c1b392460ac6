"""The journal of ingested files, in a value next to one of the arrays."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy.typing as npt

from zarrasync.bulk.files.records.file_rows import Rows, WrittenRows
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.display.text import listed

_VERSION = 1
_MOST_PLANS = 16
"""The journal contains the digests of this many finished plans."""


@dataclass(frozen=True)
class Journal:
    """The files of a dataset.

    Attributes:
        dim: The dimension along which they were joined.
        parameters: A digest of the parameters with which they were ingested.
        files: The rows of each file.
        reserved: The rows that were laid out, and that no file has filled yet: the first one, and the one after the last.
        is_readable: Whether the value could be read. If not, it may lack files.
        finished: The digests of the last plans for independent tasks that were finished.
    """

    dim: str = ""
    parameters: str = ""
    files: Mapping[SourceFile, Rows] = field(default_factory=dict)
    reserved: Sequence[tuple[int, int]] = ()
    is_readable: bool = True
    finished: Sequence[str] = ()

    @classmethod
    def of(cls, value: Any) -> Journal:
        """Return the journal in a value of ``read_sources``. It is empty if it does not exist or cannot be read."""
        if value is None:
            return cls()
        try:
            if value["version"] != _VERSION:
                return cls(is_readable=False)
            files = {SourceFile(*item[:3]): Rows(*item[3:6]) for item in value["files"]}
            reserved = [(int(start), int(stop)) for start, stop in value.get("reserved", ())]
            return cls(
                value["dim"], value["parameters"], files, reserved, True, tuple(map(str, value.get("finished", ())))
            )
        except (AttributeError, KeyError, TypeError, IndexError, ValueError):
            return cls(is_readable=False)

    def rows(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file, or ``None`` if it was not ingested, or has changed since."""
        return self.files.get(file.recorded)

    def rows_of_any(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file, which may have changed since."""
        return self._rows_of_urls.get(file.recorded.url)

    @cached_property
    def _rows_of_urls(self) -> dict[str, Rows]:
        return {file.url: rows for file, rows in self.files.items()}

    def with_files(
        self,
        dim: str,
        parameters: str,
        files: Sequence[SourceFile],
        rows: Sequence[tuple[int, int, str] | None],
        added: tuple[int, int] = (0, 0),
    ) -> Journal:
        """Return a journal with more files.

        A file with the same URL is replaced. A file whose rows are all written again by others is left out. If only some of
        them are, it counts as changed.

        Args:
            dim: The dimension along which they were joined.
            parameters: A digest of the parameters with which they were ingested.
            files: The files.
            rows: For each file its first row, the row after its last one, and a digest of the labels between; ``None`` if the
                record of an earlier version remains.
            added: The first row that the job adds to the dataset, and the row after its last one.
        """
        new = {file.recorded: Rows(*own) for file, own in zip(files, rows, strict=True) if own is not None}
        urls = {file.url for file in new}
        written, merged = WrittenRows(new.values(), added), dict[SourceFile, Rows]()
        for file, own in self.files.items():
            if file.url in urls:
                continue
            if not written.overlap(own):
                merged[file] = own
            elif rest := written.rest(own):
                merged[SourceFile(file.url, None, "overwritten")] = rest  # which is equal to no file
        return replace(self, dim=dim, parameters=parameters, files=merged | new, is_readable=True)

    def with_rows(self, moved: Mapping[SourceFile, Sequence[Any]], reserved: Sequence[tuple[int, int]]) -> Journal:
        """Return a journal with files whose rows have moved, unless it contains newer versions, and with reserved rows."""
        newer = {file.url for file in self.files if file not in moved}
        others = {file: Rows(*rows) for file, rows in moved.items() if file.url not in newer}
        return replace(self, files={**self.files, **others}, reserved=reserved)

    def with_plan(self, digest: str, *, is_finished: bool) -> Journal:
        """Return a journal that contains a plan for independent tasks, or not, because it was made again."""
        others = [other for other in self.finished if other != digest]
        return replace(self, finished=[*others, digest][-_MOST_PLANS:] if is_finished else others)

    def to_json(self) -> dict[str, Any]:
        """Return the journal as JSON values."""
        files = [[*file.to_json(), *row] for file, row in self.files.items()]
        return {
            "version": _VERSION,
            "dim": self.dim,
            "parameters": self.parameters,
            "files": files,
            **({"reserved": [list(rows) for rows in self.reserved]} if self.reserved else {}),
            **({"finished": list(self.finished)} if self.finished else {}),
        }

    def contains(self, file: SourceFile, labels: npt.NDArray[Any] | None, length: int) -> bool:
        """Return whether a file was ingested, and its rows are still in the dataset.

        The labels are compared, because the journal is stored before its rows become visible, and may have been copied with
        the files of another dataset.

        Args:
            file: The file.
            labels: The labels of the dataset.
            length: The number of rows of the dataset.
        """
        rows = self.rows(file)
        if rows is None or rows.stop > length:
            return False
        return labels is None or not rows.digest or self.contains_rows(rows, labels)

    @staticmethod
    def contains_rows(rows: Rows, labels: npt.NDArray[Any]) -> bool:
        """Return whether a dataset has the labels of recorded rows."""
        return rows.stop <= len(labels) and digest_rows(labels, rows.start, rows.stop) == rows.digest

    def text(self) -> str:
        """Return the names of some files, for messages."""
        return listed([file.short_name for file in self.files])


def journal_places(names: Iterable[str], dim: str) -> list[str]:
    """Return the arrays that the journal may be next to: of the labels, else the first one. The rest may have been added.

    Args:
        names: The names of the arrays of the dataset.
        dim: The dimension along which files are joined.
    """
    return sorted(names, key=lambda name: (name != dim, name))


def digest_rows(labels: npt.NDArray[Any], start: int, stop: int) -> str:
    """Return a short digest of the labels of some rows; of the label before ``start`` if the rows are empty."""
    own = labels[start - (start == stop > 0) : stop]
    if own.dtype.kind in "OTU":
        data = repr(own.tolist()).encode()
    else:
        data = own.astype(own.dtype.newbyteorder("="), copy=False).tobytes()
    return f"{zlib.crc32(data):08x}"
