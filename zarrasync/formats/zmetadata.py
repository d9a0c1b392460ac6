"""Consolidated metadata of zarr-python 2: ``.zmetadata`` documents with copies of other documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zarrasync._util import json as _json
from zarrasync.codecs import Buffer
from zarrasync.metadata.document import DocumentChecker
from zarrasync.metadata.format import Documents
from zarrasync.model.paths import join

__all__ = ["parse_documents", "parse_zmetadata", "render_zmetadata"]


def parse_zmetadata(data: Buffer, key: str, path: str) -> dict[str, bytes]:
    """Return the documents that a ``.zmetadata`` document contains, by store key.

    Args:
        data: The ``.zmetadata`` document.
        key: The store key of the document, for messages.
        path: The path of the group to which the keys in the document are relative.

    Raises:
        MetadataError: If the document is invalid.
    """
    checker = DocumentChecker(data, key)
    version, copies = checker.document.get("zarr_consolidated_format"), checker.document.get("metadata")
    if version != 1:
        checker.add("zarr_consolidated_format", f"expected 1, found {version!r}")
    if not isinstance(copies, Mapping) or not all(isinstance(item, Mapping) for item in copies.values()):
        checker.add("metadata", "expected an object of documents")
    checker.raise_problems()
    assert isinstance(copies, Mapping)
    return {join(path, name): json.dumps(item).encode() for name, item in copies.items()}


def render_zmetadata(documents: Mapping[str, Any]) -> bytes:
    """Return the ``.zmetadata`` document for parsed documents by key."""
    return _json.dump({"zarr_consolidated_format": 1, "metadata": dict(sorted(documents.items()))})


def parse_documents(documents: Documents, keys: tuple[str, ...]) -> dict[str, Any]:
    """Parse the existing documents of some keys without checking their content."""
    return {key: json.loads(bytes(data)) for key in keys if (data := documents.get(key))}
