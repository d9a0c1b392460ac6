"""Validation of the nodes of a hierarchy, their documents and consolidated metadata, and keys that belong to no node."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zarrasync._concurrency.offload import compute
from zarrasync._util import json as _json
from zarrasync.bulk.reports import Finding, Report, Severity
from zarrasync.errors import InvalidKeyError, MetadataError, StoreError, ZarrError
from zarrasync.formats import CANDIDATES, SOURCES
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.documents import check_partial, fetch_documents
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.node import NodeHandle

_MOST_UNUSED = 20
"""The number of unused keys that are reported one by one."""


@dataclass
class Validation:
    """The state of one validation.

    Attributes:
        root: The node to validate.
        report: The report that problems are added to.
        nodes: The readable nodes by path.
        unreadable: The paths of nodes whose documents are invalid.
        is_complete: Whether all nodes below the root were looked for.
    """

    root: NodeHandle
    report: Report
    nodes: dict[str, FoundNode] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    is_complete: bool = False

    def add(self, severity: Severity, key: str, message: str, location: str = "") -> None:
        """Add a problem."""
        self.report.findings.append(Finding(severity, key, location, message))

    def add_error(self, error: ZarrError, key: str) -> None:
        """Add each problem of an error."""
        problems = getattr(error, "problems", ())
        for problem in problems:
            self.add("error", problem.key or key, problem.message, problem.location)
        if not problems:
            self.add("error", key, str(error))


def _is_array(node: FoundNode) -> bool:
    return isinstance(node.metadata, ArrayMetadata)


# ------------------------------------------------------------------ nodes


async def find_nodes(validation: Validation) -> None:
    """Find all nodes below the root and add them to the validation. Invalid nodes are reported."""

    def on_error(error: ZarrError, path: str) -> None:
        validation.add_error(error, path)
        validation.unreadable.append(path)

    root = validation.root
    if not _is_array(validation.nodes[root.path]):
        validation.nodes |= await _nodes_below(root, on_error)
    for path in {*validation.nodes, *validation.unreadable} - {root.path}:
        try:
            root.format.check_path(path)
        except InvalidKeyError as error:
            validation.add("error", path, str(error))


async def _nodes_below(root: NodeHandle, on_error: Callable[[ZarrError, str], None]) -> dict[str, FoundNode]:
    """Return the nodes below a group by path, with groups without documents. Errors are reported with the path."""
    nodes, parents = dict[str, FoundNode](), deque([root])
    while parents:
        parent = parents.popleft()
        for name, is_implicit in (await parent.children(None)).items():
            child = parent.at(join(parent.path, name))
            try:
                (node,) = await find_all(child, [child.path], (child.format,))
            except (MetadataError, InvalidKeyError, StoreError) as error:
                if isinstance(error, StoreError):
                    check_partial(error)
                on_error(error, child.path)
                continue
            if node is None and is_implicit:
                node = FoundNode(child.format, GroupMetadata())
            if node is not None:
                nodes[child.path] = node
                if not _is_array(node) and not root.format.separates_metadata:
                    parents.append(child)
    return nodes


def check_parent(validation: Validation, path: str) -> None:
    """Report a node below an array."""
    parent = path.rpartition("/")[0]
    if path != validation.root.path and parent in validation.nodes and _is_array(validation.nodes[parent]):
        key = validation.root.format.document_keys(path)[0]
        validation.add("error", key, f"the node is below the array /{parent}, but arrays have no members")


async def check_node(validation: Validation, path: str) -> None:
    """Count a node, and report tolerated deviations of its documents and documents of other formats."""
    node, handle = validation.nodes[path], validation.root.at(path)
    key = handle.format.document_keys(path)[0]
    for location, message in handle.format.deviations(node.metadata):
        validation.add("warning", key, message, location)
    for other in await _find_other_formats(handle):
        validation.add("warning", key, f"documents of Zarr format {other.format.zarr_format} exist at the same path")
    if not isinstance(node.metadata, ArrayMetadata):
        validation.report.groups += 1
        return
    validation.report.arrays += 1
    for note in node.metadata.notes:
        validation.add("warning", key, note)


async def _find_other_formats(handle: NodeHandle) -> list[FoundNode]:
    """Return the nodes of other formats at the same path."""
    if handle.format.separates_metadata:
        return []
    others = (format_ for format_ in CANDIDATES if not format_.is_same(handle.format))
    formats = [format_ for format_ in others if format_.unread_entry_point is None]
    try:
        return [node for node in await find_all(handle, [handle.path], formats, strict=False) if node is not None]
    except MetadataError:
        return []


# ------------------------------------------------------------------ keys


async def check_keys(validation: Validation, keys: Sequence[str]) -> None:
    """Report keys that do not belong to any node, and temporary keys of interrupted writers."""
    root = validation.root
    unused = _unused_keys(validation, keys)
    for key in unused[:_MOST_UNUSED]:
        validation.add("note", key, "the key does not belong to an array or group")
    if len(unused) > _MOST_UNUSED:
        more = f"{len(unused) - _MOST_UNUSED:,} more keys do not belong to an array or group"
        validation.add("note", root.path or "/", more)
    if (directories := root.store.directories) is None:
        return
    for prefix in root.format.erase_prefixes(root.path):
        for key in await compute(partial(directories.unfinished, prefix)):
            message = (
                "a temporary file that is never read; if its writer was interrupted, `validate --repair` removes it"
            )
            validation.add("note", key, message)


def _unused_keys(validation: Validation, keys: Sequence[str]) -> list[str]:
    """Return the keys that do not belong to a node.

    Arrays with chunks whose keys have another separator than the metadata are reported: these are never read.
    """
    format_, nodes = validation.root.format, validation.nodes
    arrays = {
        format_.chunk_prefix(path): (path, node.metadata)
        for path, node in nodes.items()
        if isinstance(node.metadata, ArrayMetadata)
    }
    documents = {key for path in (*nodes, *validation.unreadable) for key in format_.document_keys(path)}
    documents |= {str(format_.consolidated_key(path)) for path in nodes} | {format_.entry_point or ""}
    # Without readable metadata, the keys of a node are unknown.
    unreadable = {format_.chunk_prefix(path) for path in validation.unreadable}
    unused, ignored, used = list[str](), Counter[str](), set[str]()
    for key in keys:
        prefixes, is_chunk = _prefixes(key), False
        if (prefix := next((prefix for prefix in prefixes if prefix in arrays), None)) is not None:
            path, metadata = arrays[prefix]
            name, ndim = key[len(prefix) :], metadata.ndim
            is_chunk = metadata.keys.decode(name, ndim) is not None
            if is_chunk:
                used.add(path)
            elif ndim > 1 and metadata.keys.with_other_separator().decode(name, ndim) is not None:
                ignored[path] += 1
        group, mark, _ = f"/{key}".rpartition(f"/{SOURCES}")
        records_sources = bool(mark) and group.strip("/") in nodes
        if not (is_chunk or key in documents or records_sources) and unreadable.isdisjoint(prefixes):
            unused.append(key)
    for path, count in ignored.items():
        document = format_.document_keys(path, ArrayMetadata)[0]
        separator = arrays[format_.chunk_prefix(path)][1].keys.separator
        message = (
            f"the separators disagree: the metadata implies chunk keys with {separator!r}, but {count:,} stored chunks "
            "have the other separator and are ignored; correct the separator in the metadata"
        )
        validation.add("warning" if path in used else "error", document, message)
    return unused


def _prefixes(key: str) -> list[str]:
    """Return the prefixes of a key, from the longest to the empty one."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[:n]) + "/" for n in range(len(parts), 0, -1)] + [""]


# ------------------------------------------------------------------ documents


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
    root, nodes = validation.root, validation.nodes
    key = str(root.format.consolidated_key(root.path))

    def on_error(error: ZarrError, path: str) -> None:
        validation.add("error", key, f"the copy of /{path} is damaged: {error}")

    consolidated = Consolidated(root.format, root.path, documents, complete=True)
    copies = await _nodes_below(replace(root, consolidated=consolidated), on_error)
    for path in sorted({*nodes, *copies} - {root.path}):
        if all(found[path].metadata.source is None for found in (nodes, copies) if path in found):
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


def _own_documents(node: FoundNode) -> list[dict[str, Any]]:
    """Return the documents of a node without the consolidated metadata that they contain."""
    source, copies = node.metadata.source, "consolidated_metadata"
    documents = source.documents.values() if source is not None else ()
    return [{name: value for name, value in document.items() if name != copies} for document in documents]
