"""The report of a pyramid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from zarrasync.display.report import JobReport
from zarrasync.display.text import Table, counted, duration_text, printable, size_text


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

    def __str__(self) -> str:
        skipped = f", {self.skipped:,} were there" if self.skipped else ""
        size = " x ".join(f"{n:,}" for n in self.shape)
        done = f"{counted(self.blocks, 'block')} written{skipped}, {size_text(self.nbytes)}"
        return f"{self.path}: {size}: {done}, {self.seconds:.1f} s"


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
        seconds: The duration in seconds.
    """

    path: str
    convention: str
    method: str
    levels: list[LevelReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def summary(self) -> str:
        return f"{counted(len(self.levels), 'level')}, {self.seconds:.1f} s"

    def remarks(self) -> Sequence[str]:
        return [*self.notes, *self.left_out]

    def losses(self) -> Sequence[str]:
        return self.left_out

    def tables(self) -> Sequence[Table]:
        columns = ("level", "shape", ">blocks", ">skipped", ">size", ">time")
        rows = [
            (
                printable(level.path),
                " x ".join(f"{n:,}" for n in level.shape),
                f"{level.blocks:,}",
                f"{level.skipped:,}",
                size_text(level.nbytes),
                duration_text(level.seconds),
            )
            for level in self.levels
        ]
        return [Table(columns, rows)] if rows else []

    def __str__(self) -> str:
        return "\n".join([*map(str, self.levels), *self.remarks(), self.summary()])
