"""The base of the reports of jobs: tables for terminals, notebooks and files, and JSON."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zarrasync.display import html
from zarrasync.display.text import Table, table_lines
from zarrasync.display.values import strict

REPORT_FILES = (".html", ".json", ".txt")
"""The suffixes of files that a report can be saved as."""


class JobReport(ABC):
    """The result of a job, such as a copy. Notebooks show it as a table."""

    @abstractmethod
    def summary(self) -> str:
        """Return the result as one line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # the classes of reports are dataclasses

    def tables(self) -> Sequence[Table]:
        """Return the details, such as a table with a row per variable."""
        return ()

    def remarks(self) -> Sequence[str]:
        """Return remarks that users should read: ``notes``, such as properties that were not kept, and losses."""
        return [*getattr(self, "notes", ()), *self.losses()]

    def losses(self) -> Sequence[str]:
        """Return the parts of the source that the result lacks although no argument excludes them. Remarks contain them."""
        left_out: Sequence[str] = getattr(self, "left_out", ())
        return left_out

    def to_json(self) -> str:
        """Return the report as a JSON document. Numbers are sizes in bytes, durations in seconds, and counts."""
        return json.dumps(strict(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False)

    def to_text(self) -> str:
        """Return the report as plain text: the summary, remarks and tables."""
        tables = [[*([table.title] if table.title else []), *table_lines(table)] for table in self.tables()]
        return "\n".join([self.summary(), *self.remarks(), *("\n".join(lines) for lines in tables)])

    def to_html(self) -> str:
        """Return the report as an HTML page, which needs no other files."""
        return html.page(self.summary(), self._repr_html_())

    def save(self, file: str | Path) -> None:
        """Write the report to a file: a page, JSON or plain text, according to its suffix.

        Args:
            file: The path of the file, which is replaced. It ends in ``.html``, ``.json`` or ``.txt``.

        Raises:
            ValueError: If the suffix is unknown.
        """
        formats = {".html": self.to_html, ".json": self.to_json, ".txt": self.to_text}
        suffix = Path(file).suffix.lower()
        if suffix not in formats:
            raise ValueError(f"a report is saved as {', '.join(formats)}; found {str(file)!r}")
        Path(file).write_text(f"{formats[suffix]()}\n", encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join([self.summary(), *self.remarks()])

    def _repr_html_(self) -> str:
        return html.report(self.summary(), self.remarks(), self.tables())


@dataclass
class FailedJob(JobReport):
    """The report of a job that failed.

    Attributes:
        error: The message of the error.
        done: The report of the completed work; ``None`` if the job had not begun.
    """

    error: str
    done: JobReport | None = None

    def summary(self) -> str:
        return f"failed: {self.error}"

    def remarks(self) -> Sequence[str]:
        return [] if self.done is None else [f"done before: {self.done.summary()}", *self.done.remarks()]

    def tables(self) -> Sequence[Table]:
        return () if self.done is None else self.done.tables()

    def to_dict(self) -> dict[str, Any]:
        return {"error": self.error, "done": None if self.done is None else self.done.to_dict()}
