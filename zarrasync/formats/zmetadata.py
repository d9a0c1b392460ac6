"""Consolidated metadata of zarr-python 2: ``.zmetadata`` documents with copies of other documents."""

from __future__ import annotations

from collections.abc import Mapping

from zarrasync._util.json import join_members, split_members
from zarrasync.codecs import Buffer
from zarrasync.errors import MetadataError, Problem
from zarrasync.model.paths import join

__all__ = ["parse_zmetadata", "render_zmetadata"]


def parse_zmetadata(data: Buffer, key: str, path: str) -> dict[str, bytes]:
    """Return the documents that a ``.zmetadata`` document contains, by store key.

    Args:
        data: The ``.zmetadata`` document.
        key: The store key of the document, for messages.
        path: The path of the group to which the keys in the document are relative.

    Raises:
        MetadataError: If the document is invalid.
    """
    members = split_members(bytes(data), key, "metadata")
    version, copies = members.get("zarr_consolidated_format"), members.get("metadata")
    problems = []
    if version != b"1":
        found = "nothing" if version is None else bytes(version).decode()
        problems.append(Problem(key, "$.zarr_consolidated_format", f"expected 1, found {found}"))
    if not isinstance(copies, dict) or not all(item.startswith(b"{") for item in copies.values()):
        problems.append(Problem(key, "$.metadata", "expected an object of documents"))
    if problems:
        raise MetadataError.from_problems(problems)
    assert isinstance(copies, dict)
    return {join(path, name): item for name, item in copies.items()}


def render_zmetadata(documents: Mapping[str, Buffer | None]) -> bytes:
    """Return the ``.zmetadata`` document for documents by key. Those that do not exist or are empty are left out."""
    copies = {key: data for key, data in sorted(documents.items()) if data}
    return join_members({"zarr_consolidated_format": b"1", "metadata": copies})
