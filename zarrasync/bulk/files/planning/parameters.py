"""``Parameters``: what a job does with its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zarrasync.bulk.files.planning.axis import OnDuplicate
from zarrasync.bulk.files.sources.headers import ReaderOptions

__all__ = ["Parameters"]


@dataclass(frozen=True)
class Parameters:
    """The parameters of a job.

    Attributes:
        dim: The dimension along which files are joined.
        append: Whether to add rows to an existing dataset.
        region: The rows of an existing dataset to write: a slice, or ``"auto"`` for those with the files' labels.
        on_duplicate: What happens if a label exists already.
        on_gap: What happens if the labels have a gap.
        on_late: What happens if rows come before existing ones.
        on_bad_file: What happens if a file cannot be read, or does not fit the others.
        reserve: The labels of rows to lay out beforehand; see ``reserved_labels``.
        inserts: Whether this job can insert rows.
        variables: The variables to store; all if empty.
        ignore_attributes: The attributes that may differ between files although they give a variable its meaning.
        optional: The variables that files may lack.
        layout: ``chunks``, ``shards`` and other parameters of ``create_array`` for new arrays. Shapes may be mappings of
            dimensions to sizes.
        encoding: The same for single variables.
        reader: How to open the files.
        tasks: The number of tasks; 0 for a default.
        is_one_group: Whether other groups of a file are left out, rather than ingested by other jobs.
    """

    dim: str
    append: bool = False
    region: slice | Literal["auto"] | None = None
    on_duplicate: OnDuplicate = "error"
    on_gap: Literal["report", "error", "ignore"] = "report"
    on_late: Literal["report", "insert", "error"] = "report"
    on_bad_file: Literal["error", "skip"] = "error"
    reserve: str = ""
    inserts: bool = True
    variables: tuple[str, ...] = ()
    ignore_attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reader: ReaderOptions = field(default_factory=ReaderOptions)
    tasks: int = 0
    is_one_group: bool = True

    @property
    def digest(self) -> str:
        """A digest of the parameters that determine the stored values of a new dataset."""
        reader = [
            self.reader.group,
            self.reader.decode,
            self.reader.dims,
            *([self.reader.engine_options] * bool(self.reader.engine_options)),
            *([self.reader.labels] * (self.reader.labels != "")),
        ]
        values = [self.dim, sorted(self.variables), self.layout, self.encoding, reader]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=repr).encode()).hexdigest()[:16]
        return digest + (f"-{self.reader.preprocess}" if self.reader.preprocess else "")
