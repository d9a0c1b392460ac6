"""What arrays and groups say of themselves to people. Nothing here does IO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from zarrasync.metadata.conventions import DIMENSIONS
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.fill_values import format_fill_value
from zarrasync.stores import Store

__all__ = [
    "Info",
    "Tree",
    "array_info",
    "axis_names",
    "chunks_told",
    "counted",
    "group_info",
    "printable",
    "render_tree",
    "size_text",
]


@dataclass(frozen=True)
class Info:
    """Facts about a node, in order.

    Attributes:
        items: Names and texts.
    """

    items: Mapping[str, str]

    def __repr__(self) -> str:
        width = max(map(len, self.items), default=0)
        return "\n".join(f"{name:<{width}} : {text}" for name, text in self.items.items())

    def __getitem__(self, name: str) -> str:
        return self.items[name]

    def _repr_html_(self) -> str:
        from zarrasync.display import html

        return html.info(self)


class Tree(str):  # noqa: SLOT000  # one cannot have slots beside a text
    """A hierarchy as text. Its repr is the text itself, for the prompt of a shell; notebooks show it unfolding.

    Attributes:
        name: The name of the group at the top.
        members: Paths below it and what lies there.
    """

    name: str
    members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]]

    def __new__(cls, text: str, name: str, members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]]) -> Self:
        made = super().__new__(cls, text)
        made.name, made.members = name, members
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.name, self.members

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from zarrasync.display import html

        return html.tree(self.name, self.members)


def counted(count: int, noun: str) -> str:
    """A number of things, for people: ``1 array``, ``1,200 arrays``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(count: int) -> str:
    """A number of bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if size < 1024 or unit == "EiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def chunks_told(metadata: ArrayMetadata) -> dict[str, Any]:
    """The shapes of chunks and shards for programs: per axis a size, or the list of sizes where they differ."""
    stored: list[Any] = list(metadata.write_chunks)
    for axis, own in enumerate(metadata.edges or ()):
        stored[axis] = stored[axis] if own is None else list(own)
    inner, sharded = list(metadata.chunks), metadata.shards is not None
    return {"chunks": inner if sharded else stored, "shards": stored if sharded else None}


def _edges(metadata: ArrayMetadata) -> str:
    """The sizes of stored values, where they differ."""
    assert metadata.edges is not None
    shown = []
    for own, size in zip(metadata.edges, metadata.write_chunks, strict=True):
        numbers = ", ".join(map(str, (own or ())[:6])) + (", …" if len(own or ()) > 6 else "")
        shown.append(f"[{numbers}]" if own else str(size))
    return f"({', '.join(shown)})"


def _inside(metadata: ArrayMetadata) -> str:
    """The codecs of a shard's chunks, where there are shards."""
    return f" of {', '.join(codec.label for codec in metadata.inner_codecs.codecs)}" if metadata.shards else ""


def axis_names(metadata: ArrayMetadata) -> list[str | None] | None:
    """The names of an array's axes, also where xarray keeps them in formats that have no place for them."""
    if metadata.dimension_names is not None:
        return list(metadata.dimension_names)
    listed = metadata.attributes.get(DIMENSIONS)
    fits = isinstance(listed, list | tuple) and len(listed) == metadata.ndim and all(isinstance(n, str) for n in listed)
    return [str(name) for name in listed or ()] if fits else None


def array_info(metadata: ArrayMetadata, name: str, store: Store, zarr_format: int | str) -> Info:
    """The facts about an array that are known without reading."""
    codecs = metadata.codecs.codecs
    items = {
        "Name": name,
        "Type": "Array",
        "Zarr format": str(zarr_format),
        "Data type": metadata.dtype.name,
        "Shape": str(metadata.shape),
        "Chunk shape": str(metadata.chunks) if metadata.edges is None or metadata.shards else _edges(metadata),
        "Shard shape": str(metadata.shards) if metadata.edges is None or not metadata.shards else _edges(metadata),
        "Dimension names": str(metadata.dimension_names),
        "Fill value": format_fill_value(metadata.fill_value),
        "Codecs": ", ".join(codec.label for codec in codecs) + _inside(metadata),
        "Chunk keys": f"{metadata.keys.name}, separator {metadata.keys.separator!r}",
        "Shards" if metadata.shards else "Chunks": f"{metadata.grid.size:,}",
        "Size": size_text(metadata.size * metadata.dtype.numpy.itemsize),
        "Store": repr(store),
    }
    return Info({key: text for key, text in items.items() if text != "None"})


def group_info(metadata: GroupMetadata, name: str, store: Store, zarr_format: int | str) -> Info:
    """The facts about a group that are known without reading."""
    names = ", ".join(metadata.attributes) or "none"
    return Info(
        {"Name": name, "Type": "Group", "Zarr format": str(zarr_format), "Attributes": names, "Store": repr(store)}
    )


def printable(text: str, *, lines: bool = False) -> str:
    """Text of others' making with its control characters spelt out, by which it could take over a terminal.

    Args:
        text: The text.
        lines: Whether it may have several lines.
    """
    pattern = _CONTROL_IN_LINES if lines else _CONTROL
    return pattern.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


_CONTROL, _CONTROL_IN_LINES = re.compile(r"[\x00-\x1f\x7f-\x9f]"), re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render_tree(name: str, members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]]) -> Tree:
    """A hierarchy as text: one node a line, children below their group."""
    known = dict(members)
    own: dict[str, list[str]] = {}
    for path in sorted(known):
        own.setdefault(path.rpartition("/")[0], []).append(path)
    lines = [name]
    waiting = [(path, "") for path in reversed(own.get("", ()))]  # no recursion: hierarchies may be deep
    while waiting:
        path, indent = waiting.pop()
        above, _, basename = path.rpartition("/")
        text = printable(basename)
        last, node = path == own[above][-1], known[path]
        if isinstance(node, ArrayMetadata):
            text += f" {node.shape} {node.dtype.name}"
        lines.append(f"{indent}{'└── ' if last else '├── '}{text}")
        inner = indent + ("    " if last else "│   ")
        waiting.extend((below, inner) for below in reversed(own.get(path, ())))
    return Tree("\n".join(lines), name, members)
