"""Reports of written datasets."""

from __future__ import annotations

from html import escape

from zarrasync.display.progress import IngestReport
from zarrasync.display.text import counted, printable, size_text

__all__ = ["WriteReport"]

_TITLES = ("variable", "blocks", "size", "stored", "requests", "seconds")


class WriteReport(dict[str, IngestReport]):
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

    def __repr__(self) -> str:
        rows = [_TITLES, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([self._summary(), *lines])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._rows())
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<details open><summary>{escape(self._summary())}</summary>{table}</details>"

    def _summary(self) -> str:
        sizes = f"{size_text(self.nbytes)} as {size_text(self.stored)}"
        return f"{counted(len(self), 'variable')} written: {sizes} in {self.seconds:.1f} s"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                printable(name),
                f"{report.blocks:,}",
                size_text(report.nbytes),
                size_text(report.stored),
                f"{report.requests:,}",
                f"{report.seconds:.1f}",
            )
            for name, report in self.items()
        ]
