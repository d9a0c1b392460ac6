"""Array values as JSON, CSV, ``.npy``, Arrow and Parquet, also as tables of one row per element with coordinates. No IO."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.projection import in_c_order

_PIECE_ELEMENTS = 1 << 13
"""Elements that are formatted at a time. Some formatters hold the interpreter's lock until they return."""
_INTEGER = re.compile(rb"-?\d+")


def as_json(values: npt.NDArray[Any]) -> Any:
    """Return values as nested lists that strict JSON can represent.

    NaN and NaT become null, infinities and times become strings, complex numbers become pairs, structured elements become
    lists of their fields, and bytes become base64 strings.
    """
    kind = values.dtype.kind
    if values.dtype.names:
        return _zipped([as_json(values[name]) for name in values.dtype.names], values.ndim)
    if kind == "c":
        return as_json(np.stack([np.real(values), np.imag(values)], axis=-1))
    if kind == "f":
        wide = values.astype(np.float64) if values.dtype.itemsize > 4 else values
        numbers = _shortest(wide)
        return numbers if np.isfinite(values).all() else strict(numbers)
    if kind in "mM":
        strings = np.asarray(np.datetime_as_string(values) if kind == "M" else values.astype(str)).astype(object)
        strings[np.isnat(values)] = None
        return strings.tolist()
    if kind in "SVO":
        return strict(values.tolist())
    return values.tolist()


def _zipped(fields: list[Any], depth: int) -> Any:
    """Convert nested lists, one per field, to one nested list of elements. Each element is a list of its fields."""
    return fields if not depth else [_zipped(list(item), depth - 1) for item in zip(*fields, strict=True)]


def _shortest(values: npt.NDArray[Any]) -> Any:
    """Return floats as Python floats with the fewest digits that identify the value in their data type."""
    if values.dtype == np.float64 or not values.size:
        return values.tolist()
    return values.astype(str).astype(np.float64).tolist()


def strict(value: Any) -> Any:
    """Return a Python value in a form that strict JSON can represent, without NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(name): strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, np.ndarray):
        return as_json(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def dumps(value: Any) -> bytes:
    """Return a value of JSON as a compact document in UTF-8. Install orjson to do it in a fraction of the time.

    Raises:
        ValueError: If it contains NaN or infinities, and orjson is not installed, which writes null for them.
    """
    fast = _orjson()
    try:
        if fast is not None:
            encoded: bytes = fast.dumps(value)
            return encoded
    except TypeError:
        pass  # lone surrogates, and integers of more than 64 bits
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


@cache
def _orjson() -> Any:
    """Return the module orjson; ``None`` if it is not installed."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson


def json_pieces(values: npt.NDArray[Any], *, quote_int64: bool = False) -> Iterator[bytes]:
    """Yield the pieces of the JSON document of ``as_json``.

    Args:
        values: The values.
        quote_int64: Write 64-bit integers as strings, because JavaScript reads numbers as floating-point numbers.
    """
    if not values.ndim or values.size <= _PIECE_ELEMENTS:
        yield _json_piece(values, quote_int64=quote_int64)
        return
    step = max(_PIECE_ELEMENTS * len(values) // values.size, 1)
    for start in range(0, len(values), step):
        yield b"," if start else b"["
        if step == 1:
            yield from json_pieces(values[start], quote_int64=quote_int64)
        else:
            yield _json_piece(values[start : start + step], quote_int64=quote_int64)[1:-1]
    yield b"]"


def _json_piece(values: npt.NDArray[Any], *, quote_int64: bool) -> bytes:
    fast, dtype = _orjson(), values.dtype
    is_plain = dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize in (4, 8) and not np.isinf(values).any())
    if fast is not None and is_plain and not isinstance(values, np.ma.MaskedArray):
        native = np.ascontiguousarray(values, dtype.newbyteorder("="))
        piece: bytes = fast.dumps(native if values.ndim else native[0], option=fast.OPT_SERIALIZE_NUMPY)
    else:
        piece = dumps(as_json(values))
    is_quoted = quote_int64 and dtype.kind in "iu" and dtype.itemsize == 8
    return _INTEGER.sub(rb'"\g<0>"', piece) if is_quoted else piece


def as_csv(values: npt.NDArray[Any]) -> str:
    """Return values as CSV. Each line contains the elements along the last axis, or one value of a 1-D array."""
    columns = values.shape[-1] if values.ndim > 1 else 1
    rows = values.reshape(values.size // columns if columns else math.prod(values.shape[:-1]), columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(["" if item is None else item for item in row] for row in as_json(rows))
    return text.getvalue()


def npy_bytes(values: npt.NDArray[Any]) -> bytes:
    """Return values as an ``.npy`` file. Variable-length strings are padded to the length of the longest one."""
    if values.dtype.kind in "OT":
        values = np.array(values.astype(object).tolist(), dtype="U").reshape(values.shape)
    if values.dtype.type.__module__ == "ml_dtypes":  # the file format has no names for these types
        values = values.astype(np.int8 if "int" in values.dtype.name else np.float32)
    buffer = io.BytesIO()
    np.save(buffer, in_c_order(values), allow_pickle=False)
    return buffer.getvalue()


# ------------------------------------------------------------------ tables


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
class ElementTable:
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

    def add(self, table: ElementTable) -> bytes:
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
    if any(mark in text for mark in ',"\r\n'):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode(errors="backslashreplace")
