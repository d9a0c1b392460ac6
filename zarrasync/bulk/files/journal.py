"""The journal of ingested files, in an attribute of the group."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.headers import SourceFile

__all__ = ["ATTRIBUTE", "Journal", "digest_labels"]

ATTRIBUTE = "zarrasync_ingest"
"""The attribute. It is written together with the metadata that makes new rows visible."""
_VERSION = 1
_MOST_FILES = 4096
"""The journal names this many files whose rows have labels. Older ones are recognised by their labels."""


@dataclass(frozen=True)
class Journal:
    """The files of a dataset.

    Attributes:
        dim: The dimension along which they were joined.
        parameters: A digest of the parameters with which they were ingested.
        files: For each file its identity, its first row, the row after its last one, and a digest of its labels, which is
            empty if they have none.
        omitted: The number of files that the journal does not name any more.
    """

    dim: str = ""
    parameters: str = ""
    files: Mapping[SourceFile, tuple[int, int, str]] = field(default_factory=dict)
    omitted: int = 0

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Journal:
        """Return the journal in a group's attributes. It is empty if they contain none, or one of another version."""
        value = attributes.get(ATTRIBUTE)
        try:
            if not isinstance(value, Mapping) or value["version"] != _VERSION:
                return cls()
            files = {SourceFile(*item[:3]): (item[3], item[4], item[5]) for item in value["files"]}
            return cls(value["dim"], value["parameters"], files, value["omitted"])
        except (KeyError, TypeError, IndexError):
            return cls()

    def with_files(
        self, dim: str, parameters: str, files: Sequence[SourceFile], rows: Sequence[tuple[int, int, str]]
    ) -> Journal:
        """Return a journal with more files. A file with the same URL is replaced.

        Files whose rows have no labels are never left out, because nothing else shows that they were ingested.
        """
        recorded = [file.recorded for file in files]
        urls = {file.url for file in recorded}
        merged = {file: row for file, row in self.files.items() if file.url not in urls}
        merged.update(zip(recorded, rows, strict=True))
        labelled = [file for file, (_, _, digest) in merged.items() if digest]
        left_out = labelled[: max(len(labelled) - _MOST_FILES, 0)]
        for file in left_out:
            del merged[file]
        return Journal(dim, parameters, merged, self.omitted + len(left_out))

    def to_json(self) -> dict[str, Any]:
        """Return the journal as the value of the attribute."""
        files = [[*file.to_json(), *row] for file, row in self.files.items()]
        return {
            "version": _VERSION,
            "dim": self.dim,
            "parameters": self.parameters,
            "files": files,
            "omitted": self.omitted,
        }

    def contains(self, file: SourceFile, labels: npt.NDArray[Any] | None, length: int) -> bool:
        """Return whether a file was ingested, and its rows are still in the dataset.

        The labels are compared, because a journal may have been copied with the attributes of another dataset.

        Args:
            file: The file.
            labels: The labels of the dataset.
            length: The number of rows of the dataset.
        """
        start, stop, digest = self.files.get(file.recorded, (0, 0, ""))
        if file.recorded not in self.files or stop > length:
            return False
        return labels is None or digest_labels(labels[start:stop]) == digest

    def text(self) -> str:
        """Return the names of some files, for messages."""
        urls = [file.url.rpartition("/")[2] for file in self.files]
        more = len(urls) + self.omitted - 2
        return ", ".join(urls[:2]) + (f" and {more:,} more" if more > 0 else "")


def digest_labels(labels: npt.NDArray[Any]) -> str:
    """Return a short digest of labels."""
    data = repr(labels.tolist()).encode() if labels.dtype.kind in "OTU" else np.ascontiguousarray(labels).tobytes()
    return f"{zlib.crc32(data):08x}"
