"""What a dataset contains after jobs: the rows, chosen without zarrasync, and their values, decoded by xarray."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from tests.bulk.files.random_files import File, Labels, content, write
from tests.bulk.files.random_jobs import Job

__all__ = ["Model", "Refused", "Row", "Source"]


class Refused(Exception):
    """The files must not be ingested in this way."""


class Row(NamedTuple):
    """A row of the dataset.

    Attributes:
        label: The number of its label; for rows without labels, a number of its own.
        file: The number of the file.
        place: The number of the row in the file.
    """

    label: int
    file: int
    place: int


class Source:
    """A file on disk.

    Attributes:
        file: The file.
        path: Its path.
        stored: Its variables as they were written.
        decoded: Its variables as xarray decodes them, without times.
    """

    def __init__(self, job: Job, file: File, folder: Path) -> None:
        self.file, self.path = file, folder / f"file{file.number}{file.suffix}"
        self.stored = content(job.fields, job.labels, file, job.sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of attributes that xarray does not like
            write(self.stored, file, self.path)
            self.decoded = self._decode()

    def _decode(self) -> Mapping[str, xr.Variable]:
        if self.file.format == "npz":
            return self.stored
        options: dict[str, Any] = {"decode_times": False, "decode_timedelta": False}
        if self.file.format.startswith("zarr"):
            options |= {"engine": "zarr", "consolidated": False}
        with xr.open_dataset(self.path, **options) as dataset:
            return {str(name): item.copy() for name, item in dataset.load().variables.items()}

    @property
    def labels(self) -> list[int]:
        """The numbers of the labels of its rows."""
        how = self.file.changes.get("label", {}).get("how")
        rows = list(self.file.rows)
        return rows if how is None or len(rows) < 2 else rows[::-1] if how == "reverse" else rows[:1] * len(rows)


class Model:
    """The rows of a dataset, in order.

    Attributes:
        rows: The rows.
        known: The numbers of the files that were ingested.
    """

    def __init__(self, labels: Labels) -> None:
        self.rows: list[Row] = []
        self.known: set[int] = set()
        self._labels = labels

    def add(self, sources: Sequence[Source], on_duplicate: str) -> None:
        """Add the rows of files.

        Raises:
            Refused: If a label is repeated, or rows would come before existing ones.
        """
        new = [source for source in sources if source.file.number not in self.known]
        if self._labels.kind == "none":
            for source in new:
                number = source.file.number
                self.rows += [Row(1000 * number + index, number, index) for index in range(len(source.file.rows))]
        else:
            self.rows = self._merged(new, on_duplicate)
        self.known |= {source.file.number for source in sources}

    def replace(self, source: Source) -> None:
        """Let the rows of a file replace the rows with their labels, or the rows of its earlier version."""
        number = source.file.number
        if self._labels.kind == "none":
            return
        own = {label: Row(label, number, index) for index, label in enumerate(source.labels)}
        self.rows = [own.get(row.label, row) for row in self.rows]

    def _merged(self, sources: Sequence[Source], on_duplicate: str) -> list[Row]:
        keys = self._keys([[row.label for row in self.rows], *(source.labels for source in sources)])
        stored = {row.label: row for row in self.rows}
        new: dict[int, Row] = {}
        last = max((keys[label] for label in stored), default=None)
        for source in sources:
            for index, label in enumerate(source.labels):
                if on_duplicate == "error" and (label in stored or label in new):
                    raise Refused("repeated label")
                row = Row(label, source.file.number, index)
                if label in stored:
                    if on_duplicate == "replace":
                        stored[label] = row
                elif label not in new or on_duplicate == "replace":
                    new[label] = row
        if last is not None and any(keys[label] < last for label in new):
            raise Refused("early label")
        return [*stored.values(), *sorted(new.values(), key=lambda row: keys[row.label])]

    def _keys(self, parts: Sequence[Sequence[int]]) -> dict[int, Any]:
        """Return numbers that increase along the axis, by label."""
        keys: dict[int, Any] = {}
        if self._labels.kind == "string":  # the order in which they occur
            for label in (label for part in parts for label in part):
                keys.setdefault(label, len(keys))
            return keys
        keys = {label: self._labels.values[label] for part in parts for label in part}
        signs = [np.sign(keys[b] - keys[a]) for part in parts for a, b in pairwise(part)]
        if len(set(signs)) > 1 or 0 in signs:
            raise Refused("labels out of order")
        direction = int(signs[0]) if signs else 1
        return {label: key * direction for label, key in keys.items()}
