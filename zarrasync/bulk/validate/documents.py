"""Validation of metadata documents, and of consolidated metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarrasync._util import json as _json
from zarrasync.bulk.validate.hierarchy import Validation
from zarrasync.errors import MetadataError, ZarrError
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.documents import fetch_documents
from zarrasync.nodes.find import FoundNode, find_all


async def check_documents(validation: Validation) -> dict[str, bytes] | None:
    """Report repeated names in documents, and groups that an array hides.

    Returns:
        The documents in the consolidated metadata by key, or ``None`` without consolidated metadata.
    """
    root, nodes = validation.root, validation.nodes
    format_, consolidated_key = root.format, root.format.consolidated_key(root.path)
    paths = {key: path for path in nodes for key in format_.document_keys(path)}
    if consolidated_key:
        paths[consolidated_key] = root.path
    values = await fetch_documents(root.store, list(paths), root.config)
    documents = {key: bytes(value.data) for key, value in zip(paths, values, strict=True) if value is not None}
    for key, data in documents.items():
        for name in sorted(set(_json.duplicate_names(data))):
            validation.add("warning", key, f"an object contains {name!r} more than once; the last value is used")
        path = paths[key]
        is_array = isinstance(nodes[path].metadata, ArrayMetadata)
        if is_array and key not in (*format_.document_keys(path, ArrayMetadata), consolidated_key):
            validation.add("warning", key, f"this group is hidden by an array at the same path, /{path}")
    try:
        return format_.parse_consolidated(root.path, {key: documents.get(key) for key in paths})
    except MetadataError as error:
        validation.add_error(error, str(consolidated_key))
        return None


async def check_consolidated(validation: Validation, documents: Mapping[str, bytes]) -> None:
    """Report differences between consolidated metadata and the original documents."""
    key = str(validation.root.format.consolidated_key(validation.root.path))
    copies, nodes = await _consolidated_nodes(validation, documents, key), validation.nodes
    for path in sorted({*nodes, *copies} - {validation.root.path}):
        if path not in copies and nodes[path].metadata.source is None:
            continue  # a group without documents
        if path not in copies:
            message = f"the consolidated metadata is outdated: /{path} is missing"
        elif path not in nodes:
            message = f"the consolidated metadata is outdated: /{path} does not exist in the store"
        elif _own_documents(copies[path]) != _own_documents(nodes[path]):
            message = f"the consolidated metadata is outdated: its copy of /{path} differs from the stored documents"
        else:
            continue
        validation.add("warning", key, message)


async def _consolidated_nodes(validation: Validation, documents: Mapping[str, bytes], key: str) -> dict[str, FoundNode]:
    """Return the nodes in consolidated metadata by path. Invalid nodes are reported."""
    root = validation.root
    consolidated = Consolidated(root.format, root.path, documents, complete=True)
    nodes, level = dict[str, FoundNode](), [replace(root, consolidated=consolidated)]
    while level:
        children = [parent.at(join(parent.path, name)) for parent in level for name in await parent.children(None)]
        level = []
        for child in children:
            try:
                (node,) = await find_all(child, [child.path], (root.format,))
            except ZarrError as error:
                validation.add("error", key, f"the copy of /{child.path} is damaged: {error}")
                continue
            if node is not None:
                nodes[child.path] = node
                if not isinstance(node.metadata, ArrayMetadata) and not root.format.separates_metadata:
                    level.append(child)
    return nodes


def _own_documents(node: FoundNode) -> list[dict[str, Any]]:
    """Return the documents of a node without the consolidated metadata that they contain."""
    documents = node.metadata.source.documents.values() if node.metadata.source is not None else ()
    return [
        {name: value for name, value in document.items() if name != "consolidated_metadata"} for document in documents
    ]
