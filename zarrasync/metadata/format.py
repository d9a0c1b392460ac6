"""The interface of Zarr formats: the keys and documents of nodes. No IO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zarrasync._util.json import copied_document
from zarrasync.codecs import ArraySpec, Buffer, CodecChain
from zarrasync.errors import UnsupportedByFormat
from zarrasync.metadata.document import non_finite_tokens
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import is_key

Documents = Mapping[str, Buffer | None]
"""Documents by store key, with ``None`` for absent documents."""
Kind = type[ArrayMetadata] | type[GroupMetadata]


def unsupported(
    zarr_format: int | str, description: str, feature: str, remedy: str = "; use zarr_format=3"
) -> UnsupportedByFormat:
    """Return the error for a feature that a format does not support."""
    message = f"Zarr format {zarr_format!r} does not support {description}{remedy}"
    return UnsupportedByFormat(message, zarr_format=zarr_format, feature=feature)


class Format(ABC):
    """A Zarr format: the keys of nodes and chunks, and the translation between metadata and documents.

    Attributes:
        zarr_format: The name of the format for users.
        entry_point: The key of a document at the root of a store that other formats must not replace, or ``None``.
        unread_entry_point: The key of a document at the root that selects the dialect, if the format has one and this
            object does not yet reflect it.
        has_shards: Whether arrays can have shards.
        has_dimension_names: Whether axes can have names.
        has_undefined_fill: Whether a fill value can be undefined.
        ome_version: The version of OME-Zarr for new images.
        implicit_groups: Whether groups exist without a document if nodes exist below them.
        separates_metadata: Whether documents and chunks have different prefixes, so that one listing finds all nodes
            of a hierarchy.
    """

    zarr_format: int | str
    entry_point: ClassVar[str | None] = None
    unread_entry_point: str | None = None
    has_shards: ClassVar[bool] = True
    has_dimension_names: ClassVar[bool] = False
    has_undefined_fill: bool = False
    ome_version: ClassVar[str] = "0.5"
    implicit_groups: ClassVar[bool] = False
    separates_metadata: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def is_same(self, other: Format) -> bool:
        """Return whether another object represents the same format, even if its documents have different keys."""
        return other.zarr_format == self.zarr_format

    # -------------------------------------------------------------- documents

    @abstractmethod
    def document_keys(self, path: str, kind: Kind | None = None) -> tuple[str, ...]:
        """Return the keys of all documents that a node may have.

        Args:
            path: The path of the node.
            kind: Return only the keys of an array or of a group. The node then exists if the first key exists.
        """

    @abstractmethod
    def parse(self, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
        """Return the metadata of the node that documents describe, or ``None`` if they do not describe a node.

        Raises:
            MetadataError: If a document is invalid. Its field ``problems`` lists all problems.
        """

    @abstractmethod
    def render(self, path: str, metadata: ArrayMetadata | GroupMetadata) -> dict[str, bytes]:
        """Return the documents of a node.

        Raises:
            UnsupportedByFormat: If the format does not support the metadata.
        """

    def deviations(self, metadata: ArrayMetadata | GroupMetadata) -> list[tuple[str, str]]:
        """Return the location (in JSON path notation) and a message for each tolerated deviation from the specification."""
        return [deviation for document in metadata.documents.values() for deviation in non_finite_tokens(document, "$")]

    def root_documents(self) -> dict[str, bytes]:
        """Return the documents that the root of a store needs in addition to the documents of its nodes."""
        return {}

    def for_unknown_store(self) -> Format:
        """Return the format for a store whose entry point has not been read yet."""
        return self

    def for_written_store(self) -> Format:
        """Return the format for a store that contains this format's ``root_documents``."""
        return self

    # -------------------------------------------------------------- names

    @abstractmethod
    def check_name(self, name: str) -> None:
        """Check the name of a node.

        Raises:
            InvalidKeyError: If the format does not allow the name.
        """

    def check_path(self, path: str) -> None:
        """Check the name of every node on a path.

        Raises:
            InvalidKeyError: If the format does not allow one of the names.
        """
        for name in path.split("/") if path else ():
            self.check_name(name)

    def chunk_prefix(self, path: str) -> str:
        """Return the prefix of the keys of an array's chunks."""
        return f"{path}/" if path else ""

    def chunk_aliases(self, path: str, metadata: ArrayMetadata) -> Mapping[str, tuple[str, ...]]:
        """Return other keys that some writers use for a chunk, by its regular key."""
        return {}

    # -------------------------------------------------------------- parameters of new arrays

    @abstractmethod
    def chain(self, requested: RequestedCodecs, spec: ArraySpec) -> CodecChain:
        """Return the codecs of a new array in the order of the format.

        Raises:
            MetadataError: If a codec is invalid.
            UnsupportedByFormat: If the format does not support the codecs.
        """

    @abstractmethod
    def key_encoding(self, requested: Any) -> ChunkKeyEncoding:
        """Return the chunk key encoding of a new array. ``None`` requests the default of the format.

        Raises:
            UnsupportedByFormat: If the format does not support the encoding.
        """

    def fill_value(self, data_type: DataType, value: Any) -> Any:
        """Return the fill value of a new array as readers will get it from its documents."""
        return value

    # -------------------------------------------------------------- consolidated metadata

    def consolidated_key(self, path: str) -> str | None:
        """Return the key of the document for copies of all documents below a group, or ``None`` if unsupported."""
        return None

    def parse_consolidated(self, path: str, documents: Documents) -> dict[str, bytes] | None:
        """Return the copies of documents below a group by store key, or ``None`` if the group does not contain copies.

        Raises:
            MetadataError: If the copies are invalid.
        """
        return None

    def own_documents(self, path: str, group_documents: Documents) -> Documents:
        """Return the documents of a group without the copies that they contain."""
        return group_documents

    def copied_document(self, key: str, data: bytes) -> bytes:
        """Return a document as it is copied to consolidated metadata: without copies in it, and strictly JSON."""
        return copied_document(data, key)

    def render_consolidated(
        self, path: str, group_documents: Documents, documents_below: Mapping[str, bytes]
    ) -> dict[str, bytes]:
        """Return the documents to store so that a group contains copies of all documents below it.

        Args:
            path: The path of the group.
            group_documents: The documents of the group by store key, as ``own_documents`` returns them.
            documents_below: The documents of all nodes below the group by store key, as ``copied_document`` returns them.

        Raises:
            UnsupportedByFormat: If the format does not support consolidated metadata.
        """
        raise unsupported(self.zarr_format, "consolidated metadata", "consolidated_metadata", "")

    # -------------------------------------------------------------- listing and erasing

    def listing_prefix(self, path: str) -> str:
        """Return the prefix to list for the children of a group."""
        return f"{path}/" if path else ""

    def children(self, path: str, keys: Iterable[str], prefixes: Iterable[str]) -> dict[str, bool]:
        """Return possible nodes below a group.

        Invalid keys (with empty segments or ``..``) are ignored.

        Args:
            path: The path of the group.
            keys: Keys under the group's listing prefix.
            prefixes: Prefixes under the group's listing prefix.

        Returns:
            For each path relative to the group, whether the node is a group even without a document.
        """
        start = len(self.listing_prefix(path))
        return dict.fromkeys(sorted(name for prefix in prefixes if is_key(name := prefix[start:-1])), False)

    def erase_keys(self, path: str) -> tuple[str, ...]:
        """Return the keys of a node that do not start with one of ``erase_prefixes``."""
        return ()

    def erase_prefixes(self, path: str) -> tuple[str, ...]:
        """Return the prefixes of the keys of a node and all nodes below it."""
        return (f"{path}/" if path else "",)


@dataclass(frozen=True, slots=True)
class RequestedCodecs:
    """The codecs of a new array, as the user requested them.

    Attributes:
        filters: The array -> array codecs (Zarr v2: filters).
        serializer: The array -> bytes codec, or ``None`` for the default.
        compressors: The bytes -> bytes codecs.
        order: The memory order of elements inside a chunk, ``"C"`` or ``"F"``.
        inner_shape: The shape of inner chunks, or ``None`` if the array is not sharded.
        index_location: The location of the index in shards: ``"end"`` or ``"start"``.
    """

    filters: Sequence[Any]
    serializer: Any
    compressors: Sequence[Any]
    order: str
    inner_shape: tuple[int, ...] | None
    index_location: str = "end"
