"""Values with their coordinates as tables of one row per element: CSV, Arrow and Parquet. No IO."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display.values import as_json, dumps, json_pieces

_PIECE_ROWS = 1 << 14
"""Rows that are formatted at a time."""


@dataclass(frozen=True)
class Column:
    """A column with a name.

    Attributes:
        name: The name.
        values: The values. Missing ones are NaN, NaT, ``None`` or masked.
    """

    name: str
    values: npt.NDArray[Any]


@dataclass(frozen=True)
class Table:
    """A table with a row for each element of an array, in C order.

    Attributes:
        axes: The coordinates along each axis.
        variables: Arrays of the same number of elements, one for each combination of coordinates.
    """

    axes: Sequence[Column]
    variables: Sequence[Column]

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def names(self) -> list[str]:
        """The names of the columns. The array of a coordinate is one column."""
        return [column.name for column in (*self._coordinates, *self.variables)]

    @property
    def _coordinates(self) -> list[Column]:
        names = {column.name for column in self.variables}
        return [axis for axis in self.axes if axis.name not in names]

    def csv_pieces(self, *, header: bool = True) -> Iterator[bytes]:
        """Yield the pieces of the table as CSV (RFC 4180). Missing values are empty, and times ISO 8601.

        Args:
            header: Whether the first line contains the names of the columns.
        """
        if header:
            yield b",".join(_quoted(name) for name in self.names) + b"\n"
        coordinates = [np.array(_fields(axis.values), object) for axis in self._coordinates]
        for start in range(0, self.row_count, _PIECE_ROWS):
            places = self._places(start, min(start + _PIECE_ROWS, self.row_count))
            columns = [texts[place].tolist() for texts, place in zip(coordinates, places, strict=True)]
            columns += [_fields(one.values.reshape(-1)[start : start + _PIECE_ROWS]) for one in self.variables]
            yield b"\n".join(map(b",".join, zip(*columns, strict=True))) + b"\n"

    def _places(self, start: int, stop: int) -> list[npt.NDArray[np.int64]]:
        """Return the index of each row along the axes of the coordinates' columns."""
        rows, places, remaining = np.arange(start, stop), {}, self.row_count
        for axis in self.axes:
            size = max(len(axis.values), 1)
            remaining //= size
            places[axis.name] = rows // max(remaining, 1) % size
        return [places[axis.name] for axis in self._coordinates]

    # -------------------------------------------------------------- Arrow

    def arrow(self) -> bytes:
        """Return the table as a stream of Arrow IPC.

        Raises:
            ImportError: If pyarrow is not installed.
        """
        table, sink = self.to_arrow(), io.BytesIO()
        with _pyarrow().ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def parquet(self) -> bytes:
        """Return the table as a Parquet file.

        Raises:
            ImportError: If pyarrow is not installed.
        """
        writer = ParquetPieces()
        return writer.add(self) + writer.finish()

    def to_arrow(self) -> Any:
        """Return the table as a ``pyarrow.Table``.

        Raises:
            ImportError: If pyarrow is not installed.
        """
        pyarrow = _pyarrow()
        places = self._places(0, self.row_count)
        coordinates = [axis.values[place] for axis, place in zip(self._coordinates, places, strict=True)]
        columns = [*coordinates, *(one.values.reshape(-1) for one in self.variables)]
        return pyarrow.table([_as_arrow(pyarrow, values) for values in columns], self.names)


class ParquetPieces:
    """A Parquet file that is written and passed on in pieces, with one row group for each table."""

    def __init__(self) -> None:
        self.closed, self._position, self._pieces = False, 0, list[bytes]()
        self._writer: Any = None

    def add(self, table: Table) -> bytes:
        """Return the bytes of the rows of a table.

        Raises:
            ImportError: If pyarrow is not installed.
        """
        rows = table.to_arrow()
        if self._writer is None:
            from pyarrow import parquet

            self._writer = parquet.ParquetWriter(self, rows.schema, compression="zstd")
        self._writer.write_table(rows)
        return self._taken()

    def finish(self) -> bytes:
        """Return the end of the file."""
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken

    # The interface of a file, which pyarrow writes to.

    def write(self, data: Any) -> int:
        """Take some bytes."""
        self._pieces.append(bytes(data))
        self._position += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self._position

    def flush(self) -> None:
        """Do nothing: all bytes are taken at once."""


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("Arrow and Parquet need pyarrow: pip install pyarrow") from error
    return pa


def _as_arrow(pyarrow: Any, values: npt.NDArray[Any]) -> Any:
    """Return values as an Arrow array. Missing ones are null."""
    data, mask = np.ma.getdata(values), np.ma.getmask(values)
    if data.dtype.kind in "biufM" and data.dtype.type.__module__ == "numpy":
        unit = np.datetime_data(data.dtype)[0] if data.dtype.kind == "M" else "s"
        data = data if unit in ("s", "ms", "us", "ns") else data.astype("M8[s]")
        return pyarrow.array(
            data.astype(data.dtype.newbyteorder("=")), mask=mask if mask is not np.ma.nomask else None, from_pandas=True
        )
    return pyarrow.array([_text(item) for item in as_json(values)], pyarrow.string())


def _fields(values: npt.NDArray[Any]) -> list[bytes]:
    """Return the fields of a 1-D array in CSV."""
    if values.dtype.kind in "biuf" and len(values):
        pieces = b"".join(json_pieces(values))[1:-1]
        return pieces.replace(b"null", b"").replace(b'"', b"").split(b",")
    return [_quoted(_text(item) or "") for item in as_json(values)]


def _text(item: Any) -> str | None:
    """Return a value of ``as_json`` as a string: itself, or JSON of numbers and lists."""
    return item if item is None or isinstance(item, str) else dumps(item).decode()


def _quoted(text: str) -> bytes:
    """Return a field of CSV, in quotes if it needs them."""
    if not any(mark in text for mark in ',"\r\n'):
        return text.encode(errors="backslashreplace")
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow([text])
    return line.getvalue().encode(errors="backslashreplace")
