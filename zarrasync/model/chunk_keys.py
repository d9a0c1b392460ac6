"""Names: store keys, node paths and chunk keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zarrasync.errors import InvalidKeyError, MetadataError

__all__ = ["ChunkKeyEncoding", "check_key", "check_prefix", "is_key", "join", "normalize_path"]

# What would leave the store, or mean something else to a file system: empty names, NUL, "." and ".."; what is no text.
_DANGEROUS = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|//|^/|/$|\0|^$|[\ud800-\udfff]")


def check_key(key: str) -> str:
    """The key, if a store can safely hold it.

    Raises:
        InvalidKeyError: If it is empty, starts or ends with ``/``, or has an empty, ``.`` or ``..``
            segment, a NUL character or half of a surrogate pair.
    """
    if not is_key(key):
        raise InvalidKeyError(
            f"{key!r} is not a valid store key: no empty, '.' or '..' segments, no leading or trailing '/', no NUL, no "
            "lone surrogates",
            key=key,
        )
    return key


def is_key(key: str) -> bool:
    """Whether a store can safely hold a key."""
    return not _DANGEROUS.search(key)


def check_prefix(prefix: str) -> str:
    """The prefix, if it is empty or a valid key followed by ``/``.

    Raises:
        InvalidKeyError: Otherwise.
    """
    if prefix and not prefix.endswith("/"):
        raise InvalidKeyError(f"{prefix!r} is not a valid prefix: it must be empty or end with '/'", key=prefix)
    if prefix:
        check_key(prefix[:-1])
    return prefix


def normalize_path(path: str) -> str:
    """A node path without leading, trailing and doubled slashes; the root is ``""``.

    Backslashes become slashes, as the v2 specification asks of logical paths.

    Raises:
        InvalidKeyError: If a segment is ``.`` or ``..``, or what is no text stands in it.
        TypeError: If it is no text.
    """
    if not isinstance(path, str):
        raise TypeError(f"a path is text, found {path!r}")
    if not path:
        return ""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    normal = "/".join(parts)
    return check_key(normal) if normal else ""


def join(*parts: str) -> str:
    """Join path segments, leaving out the empty ones."""
    return "/".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """How a chunk's grid coordinates become its key, relative to the array.

    Attributes:
        name: ``"default"`` (``c/0/1``, v3), ``"v2"`` (``0.1``) or ``"glued"`` (``c0/1``, the v3 draft;
            ``"glued0"`` is the same but for arrays without axes, whose one chunk is ``c0`` instead of ``c``).
        separator: ``"/"`` or ``"."``.
    """

    name: str = "default"
    separator: str = "/"

    def __post_init__(self) -> None:
        if self.name not in ("default", "v2", "glued", "glued0"):
            raise MetadataError(f"unknown chunk key encoding {self.name!r}; known are 'default' and 'v2'")
        if self.separator not in ("/", "."):
            raise MetadataError(f"a chunk key separator is '/' or '.', found {self.separator!r}")

    def _head(self, ndim: int) -> str:
        if self.name == "default":
            return f"c{self.separator}" if ndim else "c"
        if self.name == "v2":
            return "" if ndim else "0"
        return "c" if ndim or self.name == "glued" else "c0"

    def encode(self, coords: tuple[int, ...]) -> str:
        """The key of one chunk."""
        return self._head(len(coords)) + self.separator.join(map(str, coords))

    def encode_run(self, coords: tuple[int, ...], axis: int, count: int) -> list[str]:
        """The keys of chunks that follow each other along an axis, from the first one's coordinates."""
        if count == 1:
            return [self.encode(coords)]
        names, sep = list(map(str, coords)), self.separator
        before = self._head(len(coords)) + "".join([name + sep for name in names[:axis]])
        after = "".join([sep + name for name in names[axis + 1 :]])
        return [f"{before}{number}{after}" for number in range(coords[axis], coords[axis] + count)]

    def decode(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """The coordinates that a key is made of, or ``None`` if it is no chunk's key."""
        head = self._head(ndim)
        if not ndim:
            return () if key == head else None
        parts = key[len(head) :].split(self.separator) if key.startswith(head) else []
        if len(parts) != ndim or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            return None
        coords = tuple(map(int, parts))
        return coords if self.encode(coords) == key else None  # no leading zeros
