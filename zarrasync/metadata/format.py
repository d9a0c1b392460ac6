"""What a format is: documents and key names, and nothing that does IO."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from zarrasync._util import json as _json
from zarrasync.codecs import ArraySpec, Buffer, Codec, CodecChain
from zarrasync.errors import MetadataError, Problem, UnsupportedByFormat
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import is_key

__all__ = ["Documents", "Format", "Inspector", "Kind"]

Documents = Mapping[str, Buffer | None]
"""Documents by store key; ``None`` where there is none."""
Kind = type[ArrayMetadata] | type[GroupMetadata]


_ATTRIBUTES = ("attributes", "consolidated_metadata", "metadata")
"""Members that hold attributes, or copies of documents that do: some writers put NaN tokens there."""


class Format(ABC):
    """A Zarr format: how nodes are named, and how metadata becomes documents and back.

    Attributes:
        zarr_format: What users call it.
        entry: The key of a document at the root that other formats must leave alone, where there is such a document.
        entry_key: The key of a document at the root that settles how the store speaks the format, where there
            is such a document and it was not looked at yet.
        has_shards: Whether arrays can have shards.
        has_dimension_names: Whether axes can have names.
        has_undefined_fill: Whether a fill value can be left undefined.
        implicit_groups: Whether groups exist without a document when something lies below them.
        apart: Whether all metadata lies apart from the chunks, so that one listing tells of a whole hierarchy.
    """

    zarr_format: int | str
    entry: ClassVar[str | None] = None
    entry_key: str | None = None
    has_shards: ClassVar[bool] = True
    has_dimension_names: ClassVar[bool] = False
    has_undefined_fill: bool = False
    implicit_groups: ClassVar[bool] = False
    apart: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def is_same(self, other: Format) -> bool:
        """Whether another value means this format, wherever its documents lie."""
        return other.zarr_format == self.zarr_format

    @abstractmethod
    def document_keys(self, path: str) -> tuple[str, ...]:
        """The keys of all documents that a node at ``path`` may have."""

    def keys_of(self, path: str, kind: Kind | None) -> tuple[str, ...]:
        """The keys of the documents that a node of a kind may have, the one that tells of it first."""
        return self.document_keys(path)

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

    def fill_value(self, data_type: DataType, value: Any) -> Any:
        """The fill value that a creating call asked for, as readers of the format will find it."""
        return value

    def chunk_prefix(self, path: str) -> str:
        """The prefix under which an array's chunks have their keys."""
        return f"{path}/" if path else ""

    def chunk_aliases(self, path: str, metadata: ArrayMetadata) -> Mapping[str, tuple[str, ...]]:
        """Keys of chunks, each with other keys under which writers have stored the same."""
        return {}

    def leniencies(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        """What a node's documents have that was read though the format asks for something else.

        Returns:
            Places, in JSON path notation, and messages.
        """
        documents = metadata.source.documents.values() if metadata.source is not None else ()
        return [found for document in documents for found in _tokens(document, "$")]

    # -------------------------------------------------------------- consolidated metadata

    def consolidated_key(self, path: str) -> str | None:
        """The key of the document that holds copies of all documents below a group, where the format has such."""
        return None

    def unpack(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        """The documents below a group that its documents hold copies of, by store key; ``None`` without copies."""
        return None

    def pack(self, path: str, own: Documents, below: Mapping[str, Any]) -> dict[str, bytes]:
        """What to store so that a group holds copies of all documents below it.

        Args:
            path: The group.
            own: Its own documents.
            below: The parsed documents of what lies below, by store key.

        Raises:
            UnsupportedByFormat: If the format has no such thing.
        """
        raise UnsupportedByFormat(
            f"Zarr format {self.zarr_format!r} has no consolidated metadata",
            zarr_format=self.zarr_format,
            feature="consolidated_metadata",
        )

    # -------------------------------------------------------------- listing and erasing

    def listing_prefix(self, path: str) -> str:
        """The prefix to list for the names of a group's children."""
        return f"{path}/" if path else ""

    def children(self, path: str, keys: Iterable[str], prefixes: Iterable[str]) -> dict[str, bool]:
        """What may be nodes below a group, from keys and prefixes under its listing prefix.

        Keys that no store should hold (with empty segments or ``..``) belong to no node.

        Returns:
            Paths relative to the group, each with whether it is a group even if it has no document.
        """
        start = len(self.listing_prefix(path))
        return dict.fromkeys(sorted(name for prefix in prefixes if is_key(name := prefix[start:-1])), False)

    def erase_keys(self, path: str) -> tuple[str, ...]:
        """The keys of a node that do not lie under the prefixes of ``erase_prefixes``."""
        return ()

    def erase_prefixes(self, path: str) -> tuple[str, ...]:
        """The prefixes under which a node and all below it lie."""
        return (f"{path}/" if path else "",)

    def entry_documents(self) -> dict[str, bytes]:
        """The documents at the root that a store needs beside its nodes."""
        return {}

    def fresh(self) -> Format:
        """The format for a store of which nothing is known."""
        return self

    def bound(self) -> Format:
        """The format of a store whose root has these documents now."""
        return self

    def check_path(self, path: str) -> None:
        """Complain about a path with a name that the format does not allow."""
        for name in path.split("/") if path else ():
            self.check_name(name)


def _tokens(value: Any, location: str) -> Iterator[tuple[str, str]]:
    """Where NaN and Infinity stand as tokens, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        yield location, "NaN and Infinity are no JSON; other readers may refuse the document"
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _tokens(item, f"{location}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tokens(item, f"{location}[{number}]")


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
            if name not in _ATTRIBUTES:
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

    def chunk_sizes(self, member: str, value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of chunks; 0 along an axis without elements, as some writers have it, counts as 1."""
        if isinstance(value, list) and len(value) == len(shape):
            value = [c if n or type(c) is not int else c or 1 for c, n in zip(value, shape, strict=True)]
        return self.sizes(member, value, 1)

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


def resized(
    document: Mapping[str, Any], shape: tuple[int, ...], chunks: tuple[int, ...], *place: str
) -> dict[str, Any]:
    """A document with the shape that an array has now.

    Args:
        document: As it was.
        shape: The shape.
        chunks: The sizes of chunks.
        place: Where these stand in the document, which may have 0 as long as there are no elements.
    """
    found = {**document, "shape": list(shape)}
    *above, last = place
    holder = found
    for name in above:
        holder[name] = dict(holder[name])
        holder = holder[name]
    if 0 in holder.get(last, ()):
        holder[last] = list(chunks)
    return found


def document_key(path: str, name: str) -> str:
    """The key of a document that lies at the node's path."""
    return f"{path}/{name}" if path else name


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
