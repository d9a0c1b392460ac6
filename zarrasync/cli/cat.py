"""Commands that print values: cat, head."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from zarrasync import sync
from zarrasync.cli.arguments import Commands, add_raw, count, open_node, presentation_of, presented_arrays, select
from zarrasync.cli.console import Console, prints_unicode
from zarrasync.display.presentation import Presentation, Shown, with_short_dates
from zarrasync.display.text import size_text
from zarrasync.display.values import as_csv, as_json, npy_bytes
from zarrasync.errors import SelectionError

_MOST_BYTES = 1 << 30
"""Maximum bytes of a selection in a format that cannot be written in pieces."""
_PIECE_BYTES = 4 << 20
"""Bytes that are converted to CSV at a time."""
_MOST_PRINTED = 2000
"""Values that are printed in full."""


def add(command: Commands) -> None:
    """Add the commands."""
    cat = command(
        "cat",
        "print the values of a selection",
        _cat,
        examples=[
            "cat data.zarr --path t2m -s 0,10:20,::2",
            "cat data.zarr --path t2m -s time=0 --format npy > t2m.npy",
        ],
    )
    cat.add_argument("-s", "--select", default="...", metavar="SELECTION", help="0,10:20,::2 or time=0,lat=10:20")
    cat.add_argument("--format", choices=("text", "csv", "npy", "json"), default="text", help="(default: text)")
    add_raw(cat)
    cat.add_argument("--output", metavar="FILE", help="write to a file instead of the terminal")
    head = command("head", "print the first values of each array", _head, examples=["head data.zarr -n 3"])
    head.add_argument("-n", type=count, default=5, metavar="N", help="values along each axis (default: 5)")
    add_raw(head)


def _cat(args: argparse.Namespace, console: Console) -> int:
    node = open_node(args)
    if isinstance(node, sync.Group):
        names = ", ".join(name for name, member in node.members(None) if isinstance(member, sync.Array))
        raise SelectionError(f"{node.name} is a group; select an array with --path: {names or 'it contains none'}")
    view, presentation = select(node, args.select), presentation_of(args, node)
    reader = _Reader(node.name, presentation)
    kind = "json" if console.as_json else args.format
    if kind == "npy" and not args.output and sys.stdout.isatty():
        raise ValueError("a .npy file cannot be printed on a terminal: use --output FILE or a pipe")
    nbytes = view.size * presentation.value_bytes
    if kind in ("npy", "json") and nbytes > _MOST_BYTES:
        raise ValueError(
            f"the selection has {size_text(nbytes)}, more than the limit of {size_text(_MOST_BYTES)}; "
            "select less with -s, or use --format csv"
        )
    if kind == "text" and not args.output:
        console.text(_text_of(view, reader))
        return 0
    with _open_output(args.output, binary=kind == "npy") as file:
        if kind == "npy":
            file.write(npy_bytes(presentation.array(view[...].read())))
        elif kind == "csv":
            _write_csv(view, file, reader)
        elif kind == "json":
            ascii_only, values = not args.output and not prints_unicode(), as_json(reader.read(view).values)
            file.write(json.dumps(values, ensure_ascii=ascii_only, allow_nan=False) + "\n")
        else:
            file.write(_text_of(view, reader) + "\n")
    return 0


def _head(args: argparse.Namespace, console: Console) -> int:
    values: dict[str, Any] = {}
    for name, array, presentation in presented_arrays(args):
        view = array.view[tuple(slice(0, max(args.n, 0)) for _ in array.shape)]
        reader = _Reader(name, presentation)
        if console.as_json:
            values[name] = reader.read(view).values
        else:
            console.text(f"{name} {array.shape} {array.dtype}")
            console.text(_text_of(view, reader))
    if console.as_json:
        console.data({name: as_json(block) for name, block in values.items()})
    return 0


# ------------------------------------------------------------------ output


@contextmanager
def _open_output(output: str | None, *, binary: bool) -> Iterator[Any]:
    """Open a file for writing, which replaces an existing file at the end; the standard output if ``None``."""
    if output is None:
        yield sys.stdout.buffer if binary else sys.stdout
        return
    target = os.path.realpath(output) if _is_replaceable(output) else ""
    path = f"{target}.{os.getpid()}.part" if target else output
    try:
        with open(path, "wb") if binary else open(path, "w", encoding="utf-8") as file:
            yield file
        if target:
            if os.path.exists(target):
                shutil.copymode(target, path)
            os.replace(path, target)
    finally:
        if target:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _is_replaceable(path: str) -> bool:
    """Return whether a file may be replaced. A device, a pipe and a file with several links may not."""
    if os.path.exists(path) and not (os.path.isfile(path) and os.stat(path).st_nlink == 1):
        return False
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)


class _Reader:
    """Reads values to show. Prints a note, once, if times stay numbers.

    Args:
        name: The name of the array.
        presentation: How its stored numbers are shown.
    """

    def __init__(self, name: str, presentation: Presentation) -> None:
        self._name, self.presentation = name, presentation
        self._is_noted = False

    def read(self, view: sync.Selection) -> Shown:
        """Return the values of a selection."""
        shown = self.presentation.show(np.asarray(view[...].read()))
        if shown.note and not self._is_noted:
            print(f"zarrasync: {self._name}: the times are shown as numbers: {shown.note}", file=sys.stderr)
            self._is_noted = True
        return shown


def _write_csv(view: sync.Selection, file: Any, reader: _Reader, *, is_row: bool = False) -> None:
    """Write values as CSV, some rows at a time."""
    if is_row and view.ndim == 1:
        file.write(as_csv(reader.read(view).values[np.newaxis]))
        return
    if view.nbytes <= _PIECE_BYTES or not view.ndim:
        file.write(as_csv(reader.read(view).values))
        return
    row_bytes = max(view.nbytes // len(view), 1)
    if row_bytes > _PIECE_BYTES:
        for number in range(len(view)):
            _write_csv(view[number], file, reader, is_row=True)
        return
    step = max(_PIECE_BYTES // row_bytes, 1)
    for start in range(0, len(view), step):
        file.write(as_csv(reader.read(view[start : start + step]).values))


def _text_of(view: sync.Selection, reader: _Reader) -> str:
    """Return values with their unit as NumPy prints them. Of many values, only the edges are read and printed."""
    options: dict[str, Any] = {"threshold": _MOST_PRINTED}
    if view.size > _MOST_PRINTED and view.dtype.kind in "biufcmMSU":
        # One more value than is printed, so that NumPy prints an ellipsis.
        edges = tuple(np.r_[0:4, n - 3 : n] if n > 6 else np.arange(n) for n in view.shape)
        view, options = view.oindex[edges], {"threshold": 0, "edgeitems": 3}
    shown = reader.read(view)
    is_plain = shown.values.dtype.kind == "O" and not reader.presentation.has_dates
    values = shown.values if is_plain else with_short_dates(shown.values)
    with np.printoptions(linewidth=120, **options), _missing_as_nan():
        unit = "" if shown.unit == "1" else shown.unit  # after numbers it would look like one of them
        return f"{values if values.ndim else values[()]} {unit}".rstrip()


@contextmanager
def _missing_as_nan() -> Iterator[None]:
    """Print masked integers like missing floating-point numbers."""
    before = np.ma.masked_print_option.display()
    np.ma.masked_print_option.set_display("nan")
    try:
        yield
    finally:
        np.ma.masked_print_option.set_display(before)
