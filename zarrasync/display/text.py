"""Text for users: counts, sizes, tables and chunk shapes. Used by info, HTML, progress and the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from zarrasync.metadata import ArrayMetadata

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_EXCEPT_WHITESPACE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Table(NamedTuple):
    """A table for users.

    Attributes:
        columns: The names of the columns. Columns whose name begins with ``>`` contain numbers.
        rows: The cells of each row.
        title: A title, if there are several tables.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


def table_lines(table: Table) -> list[str]:
    """Return a table as lines, with numbers aligned to the right."""
    names = [name.removeprefix(">") for name in table.columns]
    lines = [names, *(list(map(printable, row)) for row in table.rows)]
    right = [name.startswith(">") for name in table.columns]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)).rstrip()
        for line in lines
    ]


def duration_text(seconds: float) -> str:
    """Return a duration: ``0.3 s``, ``42 s``, ``1:05 min``, ``2:05:09 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 array``, ``1,200 arrays``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], count: int = 0) -> str:
    """Return the first two names, and how many others there are: ``a, b and 1,200 more``.

    Args:
        names: The names.
        count: The number of all, if more than these.
    """
    more = max(count, len(names)) - 2
    return ", ".join(names[:2]) + (f" and {more:,} more" if more > 0 else "")


def size_text(nbytes: int) -> str:
    """Return a number of bytes with a binary unit: ``512 B``, ``1.5 KiB``, ``120 MiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if size < 1024 or unit == "EiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def printable(text: str, *, lines: bool = False) -> str:
    """Escape the control characters of a string from an untrusted source, because they could control the terminal.

    Args:
        text: The string.
        lines: Keep tabs and newlines.
    """
    pattern = _CONTROL_EXCEPT_WHITESPACE if lines else _CONTROL
    return pattern.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def chunk_shapes(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the shapes of chunks and shards for JSON: a size for each axis, or a list of sizes if they differ."""
    write_shape: list[Any] = list(metadata.write_chunks)
    for axis, sizes in enumerate(metadata.edges or ()):
        write_shape[axis] = write_shape[axis] if sizes is None else list(sizes)
    if metadata.shards is None:
        return {"chunks": write_shape, "shards": None}
    return {"chunks": list(metadata.chunks), "shards": write_shape}
