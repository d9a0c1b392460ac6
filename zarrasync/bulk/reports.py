"""Reports of copies, validations, ingested files, written datasets and pyramids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import RetryCounts
from zarrasync.display.progress import IngestReport, ProgressLike, ignore_progress, report_progress
from zarrasync.display.report import JobReport
from zarrasync.display.text import Table, counted, duration_text, printable, size_text
from zarrasync.transfer.threads import Progress

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(repr=False)
class CopyReport(JobReport):
    """The result of a copy.

    Attributes:
        groups: The number of groups that were created.
        arrays: The number of arrays that were copied.
        copied: The number of copied parts: stored values, or blocks of several stored values.
        skipped: The number of parts that an earlier run had copied.
        nbytes: The decoded size of the copied elements, in bytes.
        files: The number of copied files that are not part of a Zarr node.
        left_out: The keys of such files that were not copied.
        notes: Conversions of metadata that the new format cannot express.
        retries: The number of requests that were repeated after a failure, without the retries of obstore.
        seconds: The duration in seconds.
        members: The report of each array by its path.
    """

    groups: int = 0
    arrays: int = 0
    copied: int = 0
    skipped: int = 0
    nbytes: int = 0
    files: int = 0
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    retries: int = 0
    seconds: float = 0.0
    members: dict[str, IngestReport] = field(default_factory=dict)

    def add(self, name: str, part: IngestReport) -> None:
        """Add the report of an array."""
        self.members[name] = part
        self.copied, self.skipped = self.copied + part.blocks, self.skipped + part.skipped
        self.nbytes += part.nbytes

    def summary(self) -> str:
        done = counted(self.copied, "part") + " copied" + (f", {self.skipped:,} skipped" if self.skipped else "")
        nodes = f"{counted(self.arrays, 'array')} and {counted(self.groups, 'group')}"
        files = f", {counted(self.files, 'other file')}" if self.files else ""
        return f"{nodes}: {done}, {size_text(self.nbytes)}{files}"

    def remarks(self) -> Sequence[str]:
        if not self.left_out:
            return self.notes
        names = ", ".join(self.left_out[:3]) + ", …" * (len(self.left_out) > 3)
        left_out = (
            f"not copied: {counted(len(self.left_out), 'other file')} ({names}); pass all_files=True with resume=True to "
            "copy them"
        )
        return [*self.notes, left_out]

    def losses(self) -> Sequence[str]:
        return ()  # other files are not parts of the hierarchy

    def tables(self) -> Sequence[Table]:
        columns = {"parts": "blocks", "skipped": "skipped", "size": "nbytes", "time": "seconds"}
        return _tables("array", self.members, columns)

    def to_dict(self) -> dict[str, Any]:
        names, members = ("blocks", "skipped", "nbytes", "seconds"), self.members.items()
        return {**vars(self), "members": {path: {n: getattr(own, n) for n in names} for path, own in members}}

    def __repr__(self) -> str:
        return self.to_text()


@dataclass(frozen=True)
class Finding:
    """One problem of a stored hierarchy.

    Attributes:
        severity: ``"error"``: data or metadata that is invalid or cannot be read; ``"warning"``: metadata that zarrasync
            tolerates although the specification does not allow it, or that is outdated; ``"note"``: other information.
        key: The store key of the document or chunk.
        location: The position inside a document, in JSON path notation; empty for chunks.
        message: The problem, and the expected value.
    """

    severity: Severity
    key: str
    location: str
    message: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.severity, self.key, self.location, self.message)))


@dataclass
class Report(JobReport):
    """The result of a validation.

    Attributes:
        findings: The problems, sorted by key.
        groups: The number of groups that were checked.
        arrays: The number of arrays that were checked.
        chunks: The number of stored values that were decoded.
    """

    findings: list[Finding] = field(default_factory=list)
    groups: int = 0
    arrays: int = 0
    chunks: int = 0

    @property
    def ok(self) -> bool:
        """Whether the report contains no errors. Warnings and notes are allowed."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "ok": self.ok}

    def summary(self) -> str:
        totals = Counter(finding.severity for finding in self.findings)
        counts = ", ".join(counted(totals[kind], kind) for kind in ("error", "warning", "note") if totals[kind])
        nodes = ", ".join((counted(self.arrays, "array"), counted(self.groups, "group")))
        chunks = f", {counted(self.chunks, 'stored value')}" if self.chunks else ""
        return f"{nodes}{chunks}: {counts or 'no problems found'}"

    def tables(self) -> Sequence[Table]:
        rows = [(f.severity, printable(f.key), printable(f.location), printable(f.message)) for f in self.findings]
        return [Table(("kind", "key", "position", "problem"), rows)] if rows else []

    def to_text(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join([self.summary(), *map(str, self.findings)])


@dataclass
class FilesReport(IngestReport):
    """The result of ingesting files.

    Attributes:
        files: The number of files that this job ingested.
        known: The number of files that were ingested by an earlier job, and were not read again.
        rows: The number of rows that this job added or replaced.
        tasks: The number of tasks that this job ran.
        skipped: The number of tasks that an earlier run of the job had completed.
        notes: Repeated rows, gaps and other observations.
        left_out: Files and parts of files that are not stored although no argument excludes them, with the reason.
        bad_files: The reason for each file that could not be read, or does not fit the others, by name.
    """

    files: int = 0
    known: int = 0
    rows: int = 0
    tasks: int = 0
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bad_files: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        if self.known and not self.files and not self.left_out:
            return f"{counted(self.known, 'file')} ingested before: nothing to do, {self.seconds:.1f} s"
        files = self.contents() or ("no file ingested" if self.left_out and not self.tasks else "")
        known = f"{self.known:,} ingested before" if self.known else ""
        tasks = f"{counted(self.tasks, 'task')} run" if self.tasks and not self.files else ""
        head = ", ".join(filter(None, (files, known, tasks)))
        return f"{head}{': ' * bool(head)}{', '.join(filter(None, self._facts()))}"

    def contents(self) -> str:
        """Return the numbers of files and rows that the job ingested; an empty string for none."""
        rows = f" with {counted(self.rows, 'row')}" if self.rows else ""
        return f"{counted(self.files, 'file')}{rows}" if self.files else ""

    def _facts(self) -> Sequence[str]:
        sizes = f"{size_text(self.nbytes)} as {size_text(self.stored)} in {counted(self.requests, 'request')}"
        rate = f", {size_text(int(self.rate))}/s"
        return (
            sizes if self.nbytes else "published" if self.files and not self.skipped else "",
            f"{counted(self.skipped, 'task')} completed before" if self.skipped else "",
            f"{self.seconds:.1f} s{rate if self.nbytes else ''}",
            f"{self.retries:,} retried" if self.retries else "",
            counted(self.conflicts, "conflict") if self.conflicts else "",
            "all values verified" if self.verified and self.verified == self.blocks else "",
        )


@dataclass
class CheckReport(FilesReport):
    """The problems of files, none of which were ingested. ``left_out`` contains all of them."""

    def summary(self) -> str:
        problems = counted(len(self.left_out), "problem") if self.left_out else "no problems"
        return f"{counted(self.files, 'file')} checked: {problems} found, {self.seconds:.1f} s"


class WriteReport(dict[str, IngestReport], JobReport):
    """The reports of the variables of a written dataset by name, or of a tree by path.

    Its representation is a table, in terminals and in notebooks.
    """

    @property
    def nbytes(self) -> int:
        """The decoded size of all written elements, in bytes."""
        return sum(report.nbytes for report in self.values())

    @property
    def stored(self) -> int:
        """The number of bytes of chunks sent to the store."""
        return sum(report.stored for report in self.values())

    @property
    def requests(self) -> int:
        """The number of requests for chunks."""
        return sum(report.requests for report in self.values())

    @property
    def seconds(self) -> float:
        """The duration in seconds from the first value to the last one: variables are written concurrently."""
        return max((report.seconds for report in self.values()), default=0.0)

    def summary(self) -> str:
        sizes = f"{size_text(self.nbytes)} as {size_text(self.stored)}"
        return f"{counted(len(self), 'variable')} written: {sizes} in {self.seconds:.1f} s"

    def tables(self) -> Sequence[Table]:
        columns = {"blocks": "blocks", "size": "nbytes", "stored": "stored", "requests": "requests", "time": "seconds"}
        optional = [name for name in ("skipped", "retries", "verified") if any(getattr(r, name) for r in self.values())]
        return _tables("variable", self, {**columns, **dict(zip(optional, optional, strict=True))})

    def to_dict(self) -> dict[str, Any]:
        return {name: report.to_dict() for name, report in self.items()}

    def __repr__(self) -> str:
        return self.to_text()

    __str__ = __repr__


_SIZES = {"nbytes": size_text, "stored": size_text, "seconds": duration_text}
"""How attributes are shown that are not counts."""


def _tables(kind: str, reports: Mapping[str, Any], columns: Mapping[str, str]) -> list[Table]:
    """Return a table with a row per report, if there are any.

    Args:
        kind: The name of the first column, which contains the names of the reports.
        reports: The reports by name.
        columns: The attributes of reports that other columns contain, by the names of the columns.
    """

    def cell(report: Any, name: str) -> str:
        value = getattr(report, name)
        return value if isinstance(value, str) else _SIZES.get(name, "{:,}".format)(value)

    heads = [name if attribute == "extent" else f">{name}" for name, attribute in columns.items()]
    cells = {name: [cell(report, attribute) for attribute in columns.values()] for name, report in reports.items()}
    rows = [(printable(name), *own) for name, own in cells.items()]
    return [Table((kind, *heads), rows)] if rows else []


@contextmanager
def measured(
    report: IngestReport | CopyReport | PyramidReport,
    progress: ProgressLike,
    total: int,
    label: str,
    rows: int = 0,
    begin: float = 0.0,
) -> Iterator[Progress]:
    """Provide the progress callback of a job inside a ``with`` block, and add its retries and duration to its report.

    Args:
        report: The report, which monitors can read when the job ends.
        progress: As for ``report_progress``.
        total: As for ``report_progress``.
        label: As for ``report_progress``.
        rows: As for ``report_progress``.
        begin: When the job has begun. Default: now.
    """
    begin, counts = begin or clock.monotonic(), RetryCounts()
    try:
        with counts, report_progress(progress, total, label, rows, report) as advance:
            yield advance or ignore_progress
    finally:
        report.retries, report.seconds = max(report.retries, counts.retries), clock.monotonic() - begin
        if isinstance(report, IngestReport):
            report.conflicts = max(report.conflicts, counts.conflicts)


def add_reports(total: IngestReport, report: IngestReport) -> None:
    """Add the counts of a report to another one, except the duration."""
    for name in ("blocks", "skipped", "nbytes", "stored", "requests", "retries", "conflicts", "verified"):
        setattr(total, name, getattr(total, name) + getattr(report, name))


@dataclass
class LevelReport:
    """The result of computing one level.

    Attributes:
        path: The path of its array, relative to the group of the pyramid.
        shape: Its shape.
        blocks: The number of blocks that were written.
        skipped: The number of stored values that an earlier run had written.
        nbytes: The decoded size of the written elements, in bytes.
        seconds: The duration in seconds.
    """

    path: str
    shape: tuple[int, ...]
    blocks: int = 0
    skipped: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def extent(self) -> str:
        """The shape as a string."""
        return " x ".join(f"{n:,}" for n in self.shape)

    def __str__(self) -> str:
        skipped = f", {self.skipped:,} existed" if self.skipped else ""
        done = f"{counted(self.blocks, 'block')} written{skipped}, {size_text(self.nbytes)}"
        return f"{self.path}: {self.extent}: {done}, {self.seconds:.1f} s"


@dataclass
class PyramidReport(JobReport):
    """The result of computing a pyramid.

    Attributes:
        path: The path of its group.
        convention: ``"ome"`` or ``"zarr-conventions"``.
        method: The method.
        levels: The levels that were computed or copied.
        notes: Conversions of metadata that the format cannot express.
        left_out: Coordinates that the levels lack, with the reason.
        retries: The number of requests that were repeated after a failure, without the retries of obstore.
        seconds: The duration in seconds.
    """

    path: str
    convention: str
    method: str
    levels: list[LevelReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    retries: int = 0
    seconds: float = 0.0

    def add(self, path: str, shape: tuple[int, ...], part: IngestReport) -> None:
        """Add the report of a level."""
        self.levels.append(LevelReport(path, shape, part.blocks, part.skipped, part.nbytes, part.seconds))

    def summary(self) -> str:
        return f"{counted(len(self.levels), 'level')}, {self.seconds:.1f} s"

    def tables(self) -> Sequence[Table]:
        columns = {"shape": "extent", "blocks": "blocks", "skipped": "skipped", "size": "nbytes", "time": "seconds"}
        return _tables("level", {level.path: level for level in self.levels}, columns)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.levels), *self.remarks(), self.summary()])
