"""Commands that look: info, tree, ls, cat, head, stats, validate."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from zarrasync import sync
from zarrasync.bulk.statistics import Summary, summarize
from zarrasync.cli.arguments import Commands, count, open_node, options
from zarrasync.cli.console import Console, takes_all_letters
from zarrasync.display.text import axis_names, chunk_shapes, printable, size_text
from zarrasync.display.values import as_csv, as_json, as_json_text, npy_bytes
from zarrasync.errors import SelectionError, UnsupportedOperation
from zarrasync.indexing.parse_text import parse_selection

__all__ = ["add"]

_WHOLE = 1 << 30
"""Bytes that are read in one piece."""
_AT_ONCE = 4 << 20
"""Bytes of which lines of text are made at a time."""
_THRESHOLD = 2000
"""Values that are shown one and all."""


def add(command: Commands) -> None:
    """Make the commands."""
    info = command("info", "facts about an array or group", _info, examples=["info s3://bucket/era5.zarr -o anon=true"])
    info.add_argument("--stored", action="store_true", help="list the store to know stored sizes and compression")
    command("tree", "the hierarchy below a group", _tree, examples=["tree data.zarr"])
    ls = command("ls", "the members of a group", _ls, examples=["ls -l data.zarr", "ls -r data.zarr --path raw"])
    ls.add_argument("-l", "--long", action="store_true", help="shapes, types, chunks and stored sizes")
    ls.add_argument("-r", "--recursive", action="store_true", help="all nodes below")
    cat = command(
        "cat",
        "the values of a selection",
        _cat,
        examples=[
            "cat data.zarr --path t2m -s 0,10:20,::2",
            "cat data.zarr --path t2m -s time=0 --format npy > t2m.npy",
        ],
    )
    cat.add_argument("-s", "--select", default="...", metavar="SELECTION", help="0,10:20,::2 or time=0,lat=10:20")
    cat.add_argument("--format", choices=("text", "csv", "npy", "json"), default="text", help="(default: text)")
    cat.add_argument("--output", metavar="FILE", help="write there, not to the terminal")
    head = command("head", "the first values of each array", _head, examples=["head data.zarr -n 3"])
    head.add_argument("-n", type=count, default=5, metavar="N", help="values along each axis (default: 5)")
    stats = command(
        "stats", "what the values of arrays are like", _stats, examples=["stats data.zarr --path t2m --histogram"]
    )
    stats.add_argument("-s", "--select", default="...", metavar="SELECTION", help="of this part alone")
    stats.add_argument("--histogram", nargs="?", type=count, const=20, default=0, metavar="BINS", help="draw one, too")
    check = command(
        "validate",
        "look for what is wrong with an array or group and all below it",
        _validate,
        examples=["validate data.zarr --data"],
    )
    check.add_argument("--data", action="store_true", help="decode every chunk, too")


def _info(given: argparse.Namespace, console: Console) -> int:
    node = open_node(given)
    if given.stored and isinstance(node, sync.Group):
        raise ValueError(f"{node.name} is a group; `ls -l -r` tells the stored sizes of the arrays below")
    stored = given.stored
    items = (node.info_complete() if stored and isinstance(node, sync.Array) else node.info).items
    if not console.as_json:
        console.facts(items)
        return 0
    told: dict[str, Any] = _told(node) | {"store": repr(node.store), "attributes": dict(node.attrs)}
    if stored and isinstance(node, sync.Array):
        told["nbytes_stored"] = node.nbytes_stored()
    console.data(told)
    return 0


def _told(node: sync.Array | sync.Group) -> dict[str, Any]:
    """A node for programs."""
    if isinstance(node, sync.Group):
        return {"name": node.name, "kind": "group", "zarr_format": node.zarr_format}
    return {
        "name": node.name,
        "kind": "array",
        "zarr_format": node.zarr_format,
        "shape": node.shape,
        "dtype": str(node.dtype),
        **chunk_shapes(node.metadata),
        "dimension_names": node.dimension_names,
        "fill_value": str(node.fill_value),
        "codecs": [codec.label for codec in node.metadata.codecs.codecs],
        "nbytes": node.nbytes,
    }


def _tree(given: argparse.Namespace, console: Console) -> int:
    node = open_node(given)
    if console.as_json:
        console.data([_told(node), *(_told(member) for _, member in _below(node))])
    else:
        console.text(node.tree() if isinstance(node, sync.Group) else f"{node.name} {node.shape} {node.dtype}")
    return 0


def _below(node: sync.Array | sync.Group, depth: int | None = None) -> Iterator[tuple[str, Any]]:
    if isinstance(node, sync.Group):
        yield from node.members(depth)


def _ls(given: argparse.Namespace, console: Console) -> int:
    node = open_node(given)
    found = list(_below(node, None if given.recursive else 0)) or ([("", node)] if isinstance(node, sync.Array) else [])
    sizes = {name: _stored(member) for name, member in found} if given.long else {}
    if console.as_json:
        more = {name: {"nbytes_stored": size} for name, size in sizes.items()}
        console.data([{"path": name, **_told(member), **more.get(name, {})} for name, member in found])
    elif not given.long:
        for name, member in found:
            console.text(printable(f"{name}/" if isinstance(member, sync.Group) else name or member.name))
    else:
        rows = [
            (
                f"{name}/" if isinstance(member, sync.Group) else name or member.name,
                *(("", "", "", "") if isinstance(member, sync.Group) else _columns(member)),
                "" if sizes[name] is None else size_text(sizes[name] or 0),
            )
            for name, member in found
        ]
        console.table(("name", ">shape", "dtype", ">chunks", ">size", ">stored"), rows)
    return 0


def _columns(array: sync.Array) -> tuple[str, str, str, str]:
    told = chunk_shapes(array.metadata)
    chunks = "×".join(map(_size, told["chunks"])) + (
        f" in {'×'.join(map(_size, told['shards']))}" if array.shards else ""
    )
    return "×".join(map(str, array.shape)) or "scalar", str(array.dtype), chunks, size_text(array.nbytes)


def _size(size: int | list[int]) -> str:
    """The size of chunks along an axis, or how they begin where it changes."""
    return str(size) if isinstance(size, int) else f"[{', '.join(map(str, size[:4]))}{', …' * (len(size) > 4)}]"


def _stored(node: sync.Array | sync.Group) -> int | None:
    """Stored bytes of an array, where the store can list."""
    try:
        return node.nbytes_stored() if isinstance(node, sync.Array) else None
    except UnsupportedOperation:
        return None


def _arrays(given: argparse.Namespace) -> list[tuple[str, sync.Array]]:
    """The array that a command is about, or all arrays of the group."""
    node = open_node(given)
    if isinstance(node, sync.Array):
        return [(node.name, node)]
    return [(f"/{name}", member) for name, member in node.members(None) if isinstance(member, sync.Array)]


def _select(array: sync.Array, text: str) -> sync.Selection:
    view: sync.Selection = array.view[parse_selection(text, array.shape, axis_names(array.metadata))]
    return view


def _cat(given: argparse.Namespace, console: Console) -> int:
    node = open_node(given)
    if isinstance(node, sync.Group):
        names = ", ".join(name for name, member in node.members(None) if isinstance(member, sync.Array))
        raise SelectionError(f"{node.name} is a group; name an array with --path: {names or 'it holds none'}")
    view = _select(node, given.select)
    kind = "json" if console.as_json else given.format
    if kind == "npy" and not given.output and sys.stdout.isatty():
        raise ValueError("a .npy file is nothing for a terminal: give --output FILE, or pipe it somewhere")
    if kind in ("npy", "json") and view.nbytes > _WHOLE:
        raise ValueError(
            f"{size_text(view.nbytes)} would be read in one piece, {size_text(_WHOLE)} at the most: select less with -s, or take csv"
        )
    if kind == "text" and not given.output:
        console.text(_shown(view))
        return 0
    with _opened(given.output, binary=kind == "npy") as file:
        if kind == "npy":
            file.write(npy_bytes(view[...].read()))
        elif kind == "csv":
            _write_rows(view, file)
        else:
            plain = not given.output and not takes_all_letters()
            file.write((as_json_text(view[...].read(), ascii_only=plain) if kind == "json" else _shown(view)) + "\n")
    return 0


@contextmanager
def _opened(output: str | None, *, binary: bool) -> Iterator[Any]:
    """The file to write to, which is replaced in the end, or what the process prints to."""
    if output is None:
        yield sys.stdout.buffer if binary else sys.stdout
        return
    target = os.path.realpath(output) if _is_replaceable(output) else ""
    written = f"{target}.{os.getpid()}.part" if target else output
    try:
        with open(written, "wb") if binary else open(written, "w", encoding="utf-8") as file:
            yield file
        if target:
            if os.path.exists(target):
                shutil.copymode(target, written)
            os.replace(written, target)
    finally:
        if target:
            with suppress(FileNotFoundError):
                os.unlink(written)


def _is_replaceable(path: str) -> bool:
    """Whether another file may come in a file's place: not in that of a device, a pipe, or one with several names."""
    if os.path.exists(path) and not (os.path.isfile(path) and os.stat(path).st_nlink == 1):
        return False
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)


def _write_rows(view: sync.Selection, file: Any, *, is_row: bool = False) -> None:
    """Lines of columns, a few rows at a time."""
    if is_row and view.ndim == 1:
        file.write(as_csv(view.read()[np.newaxis]))
        return
    if view.nbytes <= _AT_ONCE or not view.ndim:
        file.write(as_csv(view[...].read()))
        return
    each = max(view.nbytes // len(view), 1)
    step = max(_AT_ONCE // each, 1)
    if each > _AT_ONCE:  # one along the first axis is too much: line by line below it
        for number in range(len(view)):
            _write_rows(view[number], file, is_row=True)
        return
    for start in range(0, len(view), step):
        file.write(as_csv(np.asarray(view[start : start + step].read())))


def _shown(view: sync.Selection) -> str:
    """Values as NumPy shows them; of many it shows the edges (four and three, with dots between): no more is read."""
    if view.size > _THRESHOLD and view.dtype.kind in "biufcmMSU":
        edges = tuple(np.r_[0:4, n - 3 : n] if n > 6 else np.arange(n) for n in view.shape)
        values = np.asarray(view.oindex[edges].read())
        return np.array2string(values, threshold=0, edgeitems=3, max_line_width=120)
    values = view[...].read()
    with np.printoptions(threshold=_THRESHOLD, linewidth=120):
        return f"{values if values.ndim else values[()]}"


def _head(given: argparse.Namespace, console: Console) -> int:
    found: dict[str, Any] = {}
    for name, array in _arrays(given):
        view = array.view[tuple(slice(0, max(given.n, 0)) for _ in array.shape)]
        if console.as_json:
            found[name] = view[...].read()
        else:
            console.text(f"{name} {array.shape} {array.dtype}")
            console.text(_shown(view))
    if console.as_json:
        console.data({name: as_json(values) for name, values in found.items()})
    return 0


def _stats(given: argparse.Namespace, console: Console) -> int:
    found: dict[str, Summary] = {}
    skipped = []
    for name, array in _arrays(given):
        if array.dtype.kind not in "biuf":
            skipped.append(f"{name} ({array.dtype})")
            continue
        view = _select(array, given.select).async_
        found[name] = array._run(summarize(view, given.histogram))  # noqa: SLF001  # no blocking form is public
    if skipped:
        print(f"zarrasync: no numbers: {', '.join(skipped)}", file=sys.stderr)
    if skipped and not found:
        return 1
    if console.as_json:
        console.data({name: summary.to_dict() for name, summary in found.items()})
        return 0

    def number(value: float | None) -> str:
        if value is None or isinstance(value, int):
            return "" if value is None else f"{value}"
        whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
        return f"{int(value)}" if whole else f"{value:.6g}"

    numbers = ("minimum", "maximum", "mean", "std")
    rows = [
        (
            name,
            f"{own.count:,}",
            f"{own.invalid:,}",
            f"{own.infinite:,}",
            *(number(getattr(own, one)) for one in numbers),
        )
        for name, own in found.items()
    ]
    console.table(("array", ">values", ">NaN", ">inf", ">min", ">max", ">mean", ">std"), rows)
    for name, own in found.items():
        if own.histogram and own.low is not None and own.high is not None:
            console.text(f"\n{name}")
            width = (own.high - own.low) / len(own.histogram)
            console.bars([f"{own.low + i * width:.4g}" for i in range(len(own.histogram))], own.histogram)
    return 0


def _validate(given: argparse.Namespace, console: Console) -> int:
    report = sync.validate(given.url, path=given.path, data=given.data, storage_options=options(given.option))
    if console.as_json:
        console.data(report.to_dict())
    else:
        console.text(report)
    return 0 if report.ok else 1
