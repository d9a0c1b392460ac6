"""Summaries of arrays and groups: ``info``, ``tree``, and what conventions specify about a node. No IO."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from zarrasync import formats
from zarrasync.display import html
from zarrasync.display.presentation import with_short_dates
from zarrasync.display.text import printable, size_text
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import Meaning, axis_names, meaning_of
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_flags import Flags
from zarrasync.metadata.conventions.registry import encoding_of
from zarrasync.model.fill_values import format_fill_value
from zarrasync.stores import Store


@dataclass(frozen=True)
class Info:
    """A summary of a node: an ordered mapping of facts.

    Attributes:
        items: The text of each fact by its name.
    """

    items: Mapping[str, str]

    def __repr__(self) -> str:
        width = max(map(len, self.items), default=0)
        return "\n".join(f"{name:<{width}} : {text}" for name, text in self.items.items())

    def __getitem__(self, name: str) -> str:
        return self.items[name]

    def _repr_html_(self) -> str:
        return html.info(self.items)


class Tree(str):  # noqa: SLOT000  # a subclass of str cannot have non-empty slots
    """A hierarchy as a string. Its repr is the string itself; notebooks show a tree that unfolds.

    Attributes:
        name: The name of the root group.
        members: The relative paths and the metadata of the nodes below the root group.
        failures: The reason why a node cannot be read, by relative path.
    """

    name: str
    members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]]
    failures: Mapping[str, str]

    def __new__(
        cls,
        text: str,
        name: str,
        members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]],
        failures: Mapping[str, str],
    ) -> Self:
        tree = super().__new__(cls, text)
        tree.name, tree.members, tree.failures = name, members, failures
        return tree

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.name, self.members, self.failures

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html.tree(str(self), self.name, self.members, self.failures)


def array_info(metadata: ArrayMetadata, name: str, store: Store, zarr_format: int | str) -> Info:
    """Return the facts about an array that its metadata contains."""
    codecs = ", ".join(codec.label for codec in metadata.codecs.codecs)
    if metadata.shards is not None:
        codecs += f" of {', '.join(codec.label for codec in metadata.inner_codecs.codecs)}"
    names = axis_names(metadata)
    items = {
        "Name": name,
        "Type": "Array",
        "Zarr format": str(zarr_format),
        "Data type": metadata.dtype.name,
        "Shape": str(metadata.shape),
        "Chunk shape": _write_shape(metadata) if metadata.shards is None else str(metadata.chunks),
        "Shard shape": _write_shape(metadata) if metadata.shards is not None else "None",
        "Dimension names": str(None if names is None else tuple(names)),
        **meaning_facts(meaning_of(metadata)),
        **encoding_facts(encoding_of(metadata, formats.by_name(zarr_format))),
        "Fill value": format_fill_value(_shown_fill(metadata.fill_value)),
        "Codecs": codecs,
        "Chunk keys": f"{metadata.keys.name}, separator {metadata.keys.separator!r}",
        "Shards" if metadata.shards else "Chunks": f"{metadata.grid.size:,}",
        "Size": size_text(metadata.size * metadata.dtype.numpy.itemsize),
        "Store": repr(store),
    }
    return Info({key: text for key, text in items.items() if text != "None"})


def _shown_fill(value: Any) -> Any:
    is_short = isinstance(value, np.datetime64 | np.void)
    return with_short_dates(np.asarray(value))[()] if is_short else value


def decoded_info(info: Info, dtype: np.dtype[Any], unit: str) -> Info:
    """Return the facts about an array with the data type and the unit of its decoded values.

    Args:
        info: The facts from ``array_info``.
        dtype: The data type of values.
        unit: Their unit; empty without one.
    """
    items = dict(info.items)
    text = f"{dtype}, in {printable(unit)}" if unit else str(dtype)
    head = {name: items.pop(name) for name in ("Name", "Type")}
    return Info({**head, "Type": "Decoded array", "Values": text, **items})


def complete_array_info(info: Info, metadata: ArrayMetadata, sizes: Collection[int]) -> Info:
    """Return the facts about an array, with the number of stored values and their compression ratio.

    Args:
        info: The facts from ``array_info``.
        metadata: The metadata of the array.
        sizes: The encoded sizes of all stored values, in bytes.
    """
    nbytes = sum(sizes)
    decoded_nbytes = metadata.chain.nbytes * len(sizes)
    items = dict(info.items)
    store = items.pop("Store")
    items["Shards" if metadata.shards else "Chunks"] = f"{len(sizes):,} of {metadata.grid.size:,} are stored"
    items["Stored size"] = size_text(nbytes)
    items["Compression"] = f"{decoded_nbytes / nbytes:.1f} : 1" if nbytes else "nothing is stored"
    return Info({**items, "Store": store})


def _write_shape(metadata: ArrayMetadata) -> str:
    """Return the shape of stored values for display, with the first sizes along axes of a rectilinear grid."""
    if metadata.edges is None:
        return str(metadata.write_chunks)
    axes = []
    for sizes, size in zip(metadata.edges, metadata.write_chunks, strict=True):
        first = ", ".join(map(str, (sizes or ())[:6])) + (", …" if len(sizes or ()) > 6 else "")
        axes.append(f"[{first}]" if sizes else str(size))
    return f"({', '.join(axes)})"


def group_info(metadata: GroupMetadata, name: str, store: Store, zarr_format: int | str) -> Info:
    """Return the facts about a group that its metadata contains."""
    facts = {"Name": name, "Type": "Group", "Zarr format": str(zarr_format), **meaning_facts(meaning_of(metadata))}
    return Info({**facts, "Attributes": ", ".join(metadata.attributes) or "none", "Store": repr(store)})


def render_tree(
    name: str, members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]], failures: Mapping[str, str]
) -> Tree:
    """Return a hierarchy as a string with one line per node, members below their group.

    Args:
        name: The name of the root group.
        members: The relative paths and the metadata of the nodes below the root group.
        failures: The reason why a node cannot be read or the members of a group cannot be listed, by relative path.
    """
    nodes = dict(members)
    members_of: dict[str, list[str]] = {}
    for path in sorted(nodes.keys() | failures.keys()):
        members_of.setdefault(path.rpartition("/")[0], []).append(path)
    lines = [name]
    pending = [(path, "") for path in reversed(members_of.get("", ()))]  # not recursive: hierarchies can be deep
    while pending:
        path, indent = pending.pop()
        parent, _, basename = path.rpartition("/")
        is_last, node = path == members_of[parent][-1], nodes.get(path)
        text = printable(basename)
        if isinstance(node, ArrayMetadata):
            text += f" {node.shape} {node.dtype.name}"
        if path in failures:
            text += f" (unreadable: {printable(failures[path])})"
        lines.append(f"{indent}{'└── ' if is_last else '├── '}{text}")
        inner_indent = indent + ("    " if is_last else "│   ")
        pending.extend((member, inner_indent) for member in reversed(members_of.get(path, ())))
    return Tree("\n".join(lines), name, members, failures)


# ------------------------------------------------------------------ meaning


_MOST = 12
"""Number of axes or levels that are listed."""


def meaning_facts(meaning: Meaning) -> dict[str, str]:
    """Return the facts that conventions specify about a node, by their label."""
    facts = {
        "Conventions": _listed(meaning.titles),
        "Axes": _listed(axis.label for axis in meaning.axes),
        "Levels": _listed(level.label for level in meaning.levels),
        "CRS": meaning.crs.label if meaning.crs is not None else "",
        "Unit": "" if "Quantity" in meaning.facts else meaning.unit,
        **meaning.facts,
    }
    return {printable(label): printable(text) for label, text in facts.items() if text}


def encoding_facts(encoding: CFEncoding) -> dict[str, str]:
    """Return the facts about what the stored numbers of an array stand for, by their label."""
    low, high = encoding.valid
    facts = {
        "Times": "" if encoding.times is None else _times_text(encoding.times.units, encoding.times.calendar),
        "Sign": ""
        if encoding.number_dtype == encoding.dtype
        else f"stored numbers are read as {encoding.number_dtype.name}",
        "Packing": _packing_text(encoding),
        "Missing values": _listed(f"{number}" for number in encoding.missing),
        "Valid values": f"stored numbers{f' from {low}' if low is not None else ''}{f' to {high}' if high is not None else ''}"
        * (encoding.valid != (None, None)),
        "Flags": "" if encoding.flags is None else _listed(_flag_texts(encoding.flags)),
    }
    return {label: printable(text) for label, text in facts.items() if text}


def _times_text(units: str, calendar: str) -> str:
    return f"{units}, {calendar} calendar" if calendar else f"durations in {units}"


def _packing_text(encoding: CFEncoding) -> str:
    """Return how values follow from stored ones: ``stored value × 0.01 + 273.15``."""
    scale, offset = encoding.scale, encoding.offset
    if not encoding.is_packed:
        return ""
    factor = f" × {scale:g}" if scale not in (None, 1) else ""
    return f"stored value{factor}" + (f" {'-' if offset < 0 else '+'} {abs(offset):g}" if offset else "")


def _flag_texts(flags: Flags) -> Iterable[str]:
    """Return the numbers of flags with their meanings: ``1 cloud``, ``bits 4 cloud``, ``bits 6 = 2 cloud``."""
    for place, meaning in enumerate(flags.meanings):
        value = str(flags.values[place]) if flags.values else ""
        mask = f"bits {flags.masks[place]}" if flags.masks else ""
        yield f"{' = '.join(filter(None, (mask, value)))} {meaning}"


def _listed(texts: Iterable[str]) -> str:
    items = list(texts)
    return ", ".join(items[:_MOST]) + (f", … {len(items) - _MOST:,} more" if len(items) > _MOST else "")
