"""What a format is: documents and key names, and nothing that does IO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from zarrasync import _json
from zarrasync.codecs import ArraySpec, Buffer, Codec, CodecChain
from zarrasync.errors import MetadataError, Problem
from zarrasync.keys import ChunkKeyEncoding, join
from zarrasync.metadata import ArrayMetadata, GroupMetadata

__all__ = ["Documents", "Format", "Inspector"]

Documents = Mapping[str, Buffer | None]
"""Documents by store key; ``None`` where there is none."""


class Format(ABC):
    """A Zarr format: how nodes are named, and how metadata becomes documents and back.

    Attributes:
        zarr_format: What users call it.
    """

    zarr_format: ClassVar[int | str]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def document_keys(self, path: str) -> tuple[str, ...]:
        """The keys of all documents that a node at ``path`` may have."""

    @abstractmethod
    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        """The node that the documents tell of, or ``None`` if they tell of none.

        Raises:
            MetadataError: If they are not what the format asks for; lists every problem.
        """

    @abstractmethod
    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        """The documents of a node.

        Raises:
            UnsupportedByFormat: If the format can not say it.
        """

    @abstractmethod
    def check_name(self, name: str) -> None:
        """Complain about a node name that the format does not allow.

        Raises:
            InvalidKeyError: If it does not.
        """

    @abstractmethod
    def chain(self, wanted: Wanted, spec: ArraySpec) -> CodecChain:
        """The codecs that a creating call asked for, as the format orders them."""

    @abstractmethod
    def key_encoding(self, wanted: Any, ndim: int) -> ChunkKeyEncoding:
        """The chunk key encoding that a creating call asked for, or the format's default.

        Raises:
            UnsupportedByFormat: If the format has no such encoding.
        """

    def chunk_prefix(self, path: str) -> str:
        """The prefix under which an array's chunks have their keys."""
        return f"{path}/" if path else ""

    def listing_prefix(self, path: str) -> str:
        """The prefix to list for the names of a group's children."""
        return f"{path}/" if path else ""

    def children(self, path: str, keys: Iterable[str], prefixes: Iterable[str]) -> tuple[str, ...]:
        """The names that may be children, from what lies directly under the listing prefix."""
        start = len(self.listing_prefix(path))
        return tuple(sorted(prefix[start:].rstrip("/") for prefix in prefixes))

    def erase_prefixes(self, path: str) -> tuple[str, ...]:
        """The prefixes under which a node and all below it lie."""
        return (f"{path}/" if path else "",)

    def check_path(self, path: str) -> None:
        """Complain about a path with a name that the format does not allow."""
        for name in path.split("/") if path else ():
            self.check_name(name)


class Wanted:
    """The codecs that a creating call asked for.

    Attributes:
        filters: Array -> array codecs (or v2 filters).
        serializer: The array -> bytes codec, ``None`` for the usual one.
        compressors: Bytes -> bytes codecs.
        order: ``"C"`` or ``"F"``: the order of elements inside a chunk.
        inner: The shape of inner chunks, if shards are wanted.
    """

    def __init__(
        self,
        filters: Sequence[Any],
        serializer: Any,
        compressors: Sequence[Any],
        order: str,
        inner: tuple[int, ...] | None,
    ) -> None:
        self.filters, self.serializer, self.compressors = filters, serializer, compressors
        self.order, self.inner = order, inner


class Inspector:
    """Collects every problem of a document, each with its place."""

    def __init__(self, data: Buffer, key: str) -> None:
        self.key = key
        data = bytes(data)
        self.document = _json.load(data, key)
        self.problems: list[Problem] = []
        if b"NaN" not in data and b"Infinity" not in data:
            return
        for name, value in self.document.items():
            if name != "attributes":
                _json.refuse_tokens(value, key, f"$.{name}")

    def problem(self, member: str, message: str) -> None:
        """Note a problem with a member."""
        self.problems.append(Problem(self.key, f"$.{member}" if member else "$", message))

    def absorb(self, member: str, error: Exception) -> None:
        """Note a problem that a parser raised."""
        found = getattr(error, "problems", ())
        if found:
            self.problems.extend(found)
        else:
            self.problem(member, str(error))

    def need(self, *members: str) -> None:
        """Note members that are missing."""
        for member in members:
            if member not in self.document:
                self.problem(member, "this member is missing")

    def sizes(self, member: str, value: Any, least: int) -> tuple[int, ...]:
        """A list of integers, each at least ``least``."""
        if isinstance(value, list) and all(type(n) is int and least <= n < 1 << 63 for n in value):
            return tuple(value)
        self.problem(member, f"expected a list of integers of at least {least}, found {value!r}")
        return ()

    def attributes(self, value: Any, member: str = "attributes") -> dict[str, Any]:
        """An object of attributes."""
        if isinstance(value, dict):
            return value
        self.problem(member, f"expected an object, found {value!r}")
        return {}

    def finish(self) -> None:
        """Raise if there were problems.

        Raises:
            MetadataError: With all of them.
        """
        if self.problems:
            raise MetadataError.from_problems(self.problems)


def codec_names(codecs: Iterable[Codec]) -> str:
    """Codecs for a message."""
    return ", ".join(codec.label for codec in codecs)


def document_key(path: str, name: str) -> str:
    """The key of a document that lies at the node's path."""
    return join(path, name)


def extension(value: Any) -> tuple[str | None, Mapping[str, Any]]:
    """An extension point's value (an object with a name, or a bare name) as name and configuration.

    The separator of a chunk key encoding is also taken where zarr-python's parameters have it, beside the name.
    """
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None, {}
    configuration = value.get("configuration")
    if configuration is None:
        return value["name"], {k: v for k, v in value.items() if k == "separator"}
    return (value["name"], configuration) if isinstance(configuration, Mapping) else (None, {})
