"""Reports of copies and validations."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from zarrasync.display.text import counted, size_text

__all__ = ["CopyReport", "Finding", "Report", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass
class CopyReport:
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
    """

    groups: int = 0
    arrays: int = 0
    copied: int = 0
    skipped: int = 0
    nbytes: int = 0
    files: int = 0
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = counted(self.copied, "part") + " copied" + (f", {self.skipped:,} skipped" if self.skipped else "")
        nodes = f"{counted(self.arrays, 'array')} and {counted(self.groups, 'group')}"
        files = f", {counted(self.files, 'other file')}" if self.files else ""
        lines = [f"{nodes}: {done}, {size_text(self.nbytes)}{files}", *self.notes]
        if self.left_out:
            names = ", ".join(self.left_out[:3]) + ", …" * (len(self.left_out) > 3)
            lines.append(
                f"not copied: {counted(len(self.left_out), 'other file')} ({names}); pass all_files=True to copy them"
            )
        return "\n".join(lines)


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
class Report:
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

    def __str__(self) -> str:
        totals = Counter(finding.severity for finding in self.findings)
        counts = ", ".join(counted(totals[kind], kind) for kind in ("error", "warning", "note") if totals[kind])
        nodes = ", ".join((counted(self.arrays, "array"), counted(self.groups, "group")))
        chunks = f", {counted(self.chunks, 'stored value')}" if self.chunks else ""
        head = f"{nodes}{chunks}: {counts or 'no problems found'}"
        return "\n".join([head, *map(str, self.findings)])
