"""Metadata documents as stored values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from zarrasync._concurrency.gather import gather
from zarrasync._util.memory import BudgetExceeded, OutputBudget
from zarrasync.config import Config
from zarrasync.errors import MetadataError, NodeTypeError, StoreError, UnsupportedOperation, ZarrError
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.stores import Request, Store, Value
from zarrasync.stores.remote import TransientError


async def fetch_documents(
    store: Store, keys: Sequence[str], config: Config, *, versions: bool = False
) -> list[Value | None]:
    """Fetch documents. The result is ``None`` for each document that does not exist.

    Raises:
        MetadataError: If a document is larger than ``config.max_document_bytes``.
    """
    limit = config.max_document_bytes
    budget = OutputBudget(limit, f"config.max_document_bytes is {limit:,}")
    try:
        values = await store.fetch([Request(key, limit=budget) for key in keys], versions=versions)
    except StoreError as error:
        if isinstance(error.__cause__, BudgetExceeded):
            raise MetadataError(f"cannot read {error.key}: {error.__cause__}") from error
        raise
    for key, value in zip(keys, values, strict=True):
        if value is not None and len(value.data) > limit:
            raise MetadataError(f"cannot read {key}: the document has {len(value.data):,} bytes; {budget.origin}")
    return values


def render_texts(format_: Format, path: str, metadata: Metadata) -> dict[str, str]:
    """Return the documents of a node as strings, for plans."""
    return {key: data.decode() for key, data in format_.render(path, metadata).items()}


def parse_texts(format_: Format, path: str, texts: Mapping[str, str]) -> Metadata:
    """Return the metadata of a node from its documents.

    Raises:
        MetadataError: If the strings are not the documents of a node.
    """
    documents = {key: texts[key].encode() if key in texts else None for key in format_.document_keys(path)}
    metadata = format_.parse(path, documents)
    if metadata is None:
        raise MetadataError(f"the plan is damaged: it has no document of /{path}")
    return metadata


def document_bytes(value: Value | None) -> bytes | None:
    """Return the content of a fetched document, or ``None`` if it does not exist."""
    return None if value is None else bytes(value.data)


def check_partial(error: ZarrError) -> None:
    """Raise an error that concerns the store as a whole."""
    if isinstance(error, UnsupportedOperation) or isinstance(error.__cause__, (TransientError, TimeoutError)):
        raise error


async def put_documents(
    store: Store, documents: Mapping[str, bytes], versions: Mapping[str, object]
) -> dict[str, object]:
    """Store documents.

    Args:
        store: The store.
        documents: The documents by key.
        versions: The expected version of each key (``ABSENT`` if the key must not exist). Keys without an expected
            version are overwritten.

    Returns:
        The new versions by key.

    Raises:
        WriteConflictError: If a different version is stored.
    """
    puts = [partial(store.put, key, data, if_version=versions.get(key)) for key, data in documents.items()]
    return dict(zip(documents, await gather(puts), strict=True))


Metadata: TypeAlias = ArrayMetadata | GroupMetadata
"""The metadata of a node of either kind."""
KindName: TypeAlias = Literal["array", "group"]


def kind_name(metadata: Metadata) -> KindName:
    """Return the name of a node's kind."""
    return "array" if isinstance(metadata, ArrayMetadata) else "group"


def wrong_kind(subject: str, path: str, metadata: Metadata, hint: str = "") -> NodeTypeError:
    """Return the error for an array where a group is expected, or the other way round.

    Args:
        subject: The node as the message names it.
        path: The path of the node.
        metadata: The metadata of the node.
        hint: The end of the message, after "/a is an array".
    """
    kind: KindName = kind_name(metadata)
    article, expected = ("an", "group") if kind == "array" else ("a", "array")
    return NodeTypeError(f"{subject} is {article} {kind}{hint}", path=path, found=kind, wanted=expected)
