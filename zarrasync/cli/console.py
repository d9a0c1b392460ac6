"""Output of commands: tables and colours on a terminal, plain text for pipes, and JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from zarrasync.display.report import JobReport
from zarrasync.display.text import Table, printable, table_lines
from zarrasync.display.values import strict

INCOMPLETE = 3
"""The exit code of a command whose result lacks parts of the source that no option excludes."""


class Console:
    """The output of a command.

    Args:
        as_json: Whether to print JSON.
        translate: Translates reports, which name parameters of functions, for the command line.
    """

    def __init__(self, *, as_json: bool = False, translate: Callable[[str], str] = str) -> None:
        self.as_json, self._translate = as_json, translate
        self._rich = None if as_json else _terminal()

    def text(self, text: object) -> None:
        """Print one or more lines."""
        print(printable(str(text), lines=True))

    def data(self, value: Any) -> None:
        """Print a value as a JSON document."""
        print(json.dumps(strict(value), indent=2, ensure_ascii=not prints_unicode(), allow_nan=False))

    def report(self, report: JobReport) -> int:
        """Print a report, and return the exit code: ``INCOMPLETE`` if the result lacks parts of the source."""
        self.data(report.to_dict()) if self.as_json else self.text(self._translate(str(report)))
        return INCOMPLETE if report.losses() else 0

    def facts(self, items: Mapping[str, str]) -> None:
        """Print names and values."""
        items = {name: printable(text) for name, text in items.items()}
        if self._rich is None:
            width = max(map(len, items), default=0)
            self.text("\n".join(f"{name:<{width}} : {text}" for name, text in items.items()))
            return
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in items.items():
            table.add_row(name, Text(text))
        self._rich.print(table)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table. Columns whose name begins with ``>`` contain numbers."""
        table = Table(columns, [list(map(printable, row)) for row in rows])
        lines = table_lines(table)
        if self._rich is None or max(map(len, lines)) + 2 > self._rich.width:  # rich would wrap numbers
            self.text("\n".join(lines))
            return
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            justify: Any = "right" if name.startswith(">") else "left"
            grid.add_column(name.removeprefix(">"), justify=justify, overflow="fold")
        for line in table.rows:
            grid.add_row(*(Text(cell) for cell in line))
        self._rich.print(grid)

    def bars(self, labels: Sequence[str], counts: Sequence[int]) -> None:
        """Print a histogram with horizontal bars."""
        most, width = max(counts, default=0) or 1, max(map(len, labels), default=0)
        style = ("\x1b[36m", "\x1b[0m") if self._rich is not None else ("", "")
        for label, count in zip(labels, counts, strict=True):
            eighths = round(count / most * 40 * 8)
            bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
            print(f"{label:>{width}}  {style[0]}{bar}{style[1]} {count:,}")


def prints_unicode() -> bool:
    """Return whether any character can be printed."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") in ("utf8", "utf8sig")


def _terminal() -> Any:
    """Return the console of rich on a terminal with colours, if rich is installed."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console as Rich
    except ImportError:
        return None
    return Rich(highlight=False)


@contextmanager
def show_log(name: str) -> Iterator[None]:
    """Print messages of a logger to the standard error stream for the length of a block."""
    log, handler = logging.getLogger(name), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("zarrasync: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
