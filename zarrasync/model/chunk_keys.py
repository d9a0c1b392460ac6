"""Chunk key encodings: the conversion between a chunk's grid coordinates and its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from zarrasync.errors import MetadataError

_HEADS = {
    **{("default", separator): f"c{separator}" for separator in "/."},
    **{("v2", separator): "" for separator in "/."},
    **{(name, separator): "c" for name in ("glued", "glued0") for separator in "/."},
}
"""The parts of keys before the first coordinate, by the name of the encoding and the separator."""


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """The encoding of a chunk's grid coordinates as its key, relative to the array.

    See section "Chunk key encoding" of the Zarr v3 core specification.

    Attributes:
        name: ``"default"`` (``c/0/1``, v3), ``"v2"`` (``0.1``), ``"glued"`` (``c0/1``, the v3 draft) or ``"glued0"``,
            which differs from ``"glued"`` only for arrays without axes, whose chunk has the key ``c0`` instead of ``c``.
        separator: ``"/"`` or ``"."``.
        is_implied: Whether a document of format 2 does not contain the separator. Some writers omitted ``"/"``.
    """

    name: str = "default"
    separator: str = "/"
    is_implied: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.name not in ("default", "v2", "glued", "glued0"):
            raise MetadataError(f"the chunk key encoding must be 'default' or 'v2', found {self.name!r}")
        if self.separator not in ("/", "."):
            raise MetadataError(f"the chunk key separator must be '/' or '.', found {self.separator!r}")

    def head(self, ndim: int) -> str:
        """Return the part of keys before the first coordinate; the whole key for an array without axes."""
        if ndim:
            return _HEADS[self.name, self.separator]
        return {"v2": "0", "glued0": "c0"}.get(self.name, "c")

    def encode(self, coords: tuple[int, ...]) -> str:
        """Return the key of a chunk."""
        head = _HEADS[self.name, self.separator] if coords else self.head(0)
        return head + self.separator.join(map(str, coords))

    def encode_run(self, coords: tuple[int, ...], axis: int, count: int) -> list[str]:
        """Return the keys of consecutive chunks along an axis.

        Args:
            coords: The coordinates of the first chunk.
            axis: The axis.
            count: The number of chunks.
        """
        if count == 1:
            return [self.encode(coords)]
        names, separator = list(map(str, coords)), self.separator
        before = self.head(len(coords)) + "".join([name + separator for name in names[:axis]])
        after = "".join([separator + name for name in names[axis + 1 :]])
        return [f"{before}{number}{after}" for number in range(coords[axis], coords[axis] + count)]

    def encode_box(self, columns: Sequence[Sequence[int]], begin: int, end: int) -> list[str]:
        """Return the keys of some of the chunks of a box, numbered in C order.

        Args:
            columns: The coordinates of the box's chunks along each axis.
            begin: The number of the first chunk.
            end: The number after the last one.
        """
        if not columns:
            return [self.head(0)] * (end - begin)
        *leading, last = columns
        head, separator, width, keys = self.head(len(columns)), self.separator, len(last), list[str]()
        for row in range(begin // width, -(-end // width)):
            remaining, before = row, ""
            for column in reversed(leading):
                remaining, place = divmod(remaining, len(column))
                before = f"{column[place]}{separator}{before}"
            before, first = head + before, row * width
            keys += [f"{before}{number}" for number in last[max(begin - first, 0) : end - first]]
        return keys

    def with_other_separator(self) -> ChunkKeyEncoding:
        """Return the encoding with ``"."`` instead of ``"/"``, or the reverse."""
        return replace(self, separator="." if self.separator == "/" else "/")

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the grid coordinates for a key, or ``None`` if it is not the key of a chunk."""
        head = self.head(ndim)
        if not ndim:
            return () if key == head else None
        parts = key[len(head) :].split(self.separator) if key.startswith(head) else []
        if len(parts) != ndim or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            return None
        coords = tuple(map(int, parts))
        return coords if self.encode(coords) == key else None  # leading zeros are not canonical
