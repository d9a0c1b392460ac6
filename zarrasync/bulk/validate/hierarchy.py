"""Validation of the nodes of a hierarchy, and of keys that do not belong to any node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from zarrasync._concurrency.offload import compute
from zarrasync.bulk.reports import Finding, Report, Severity
from zarrasync.errors import InvalidKeyError, MetadataError, StoreError, UnsupportedOperation, ZarrError
from zarrasync.formats import CANDIDATES, SOURCES
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.documents import check_partial
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
    root = validation.root
    level = [] if _is_array(validation.nodes[root.path]) else [root]
    while level:
        next_level: list[NodeHandle] = []
        for parent in level:
            for name, is_implicit in (await parent.children(None)).items():
                child = parent.at(join(parent.path, name))
                node = await _find_child(validation, child, is_implicit=is_implicit)
                if node is not None:
                    validation.nodes[child.path] = node
                    if not _is_array(node) and not root.format.separates_metadata:
                        next_level.append(child)
        level = next_level


async def _find_child(validation: Validation, child: NodeHandle, *, is_implicit: bool) -> FoundNode | None:
    """Return the node at a path, if it exists. ``is_implicit``: a group exists there even without documents."""
    try:
        child.format.check_path(child.path)
    except InvalidKeyError as error:
        validation.add("error", child.path, str(error))
    try:
        (node,) = await find_all(child, [child.path], (child.format,))
    except (MetadataError, InvalidKeyError, StoreError) as error:
        if isinstance(error, StoreError):
            check_partial(error)
        validation.add_error(error, child.path)
        validation.unreadable.append(child.path)
        return None
    if node is None and is_implicit:
        return FoundNode(child.format, GroupMetadata())
    return node


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
    formats = [
        format_ for format_ in CANDIDATES if format_.unread_entry_point is None and not format_.is_same(handle.format)
    ]
    try:
        return [node for node in await find_all(handle, [handle.path], formats, strict=False) if node is not None]
    except MetadataError:
        return []


# ------------------------------------------------------------------ keys


async def list_keys(validation: Validation) -> list[str] | None:
    """Return all keys that may belong to the hierarchy; ``None`` if the store cannot list."""
    root = validation.root
    try:
        listed = [await root.store.list_prefix(prefix) for prefix in root.format.erase_prefixes(root.path)]
    except UnsupportedOperation:
        return None
    return sorted(key for keys in listed for key in keys)


async def check_keys(validation: Validation, keys: Sequence[str]) -> None:
    """Report keys that do not belong to any node, and temporary keys of interrupted writers."""
    root = validation.root
    unused = _unused_keys(validation, keys)
    _check_separators(validation, keys)
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


def _check_separators(validation: Validation, keys: Sequence[str]) -> None:
    """Report arrays with chunks whose keys have another separator than the metadata: these are never read."""
    format_ = validation.root.format
    arrays = {
        format_.chunk_prefix(path): (path, node.metadata)
        for path, node in validation.nodes.items()
        if isinstance(node.metadata, ArrayMetadata) and node.metadata.ndim > 1
    }
    ignored: dict[str, int] = {}
    used: set[str] = set()
    for key in keys:
        prefix = next((prefix for prefix in _prefixes(key) if prefix in arrays), None)
        if prefix is None:
            continue
        path, metadata = arrays[prefix]
        name = key[len(prefix) :]
        if metadata.keys.decode(name, metadata.ndim) is not None:
            used.add(path)
        elif metadata.keys.with_other_separator().decode(name, metadata.ndim) is not None:
            ignored[path] = ignored.get(path, 0) + 1
    for path, count in ignored.items():
        document = format_.document_keys(path, ArrayMetadata)[0]
        separator = arrays[format_.chunk_prefix(path)][1].keys.separator
        message = (
            f"the separators disagree: the metadata implies chunk keys with {separator!r}, but {count:,} stored chunks "
            "have the other separator and are ignored; correct the separator in the metadata"
        )
        validation.add("warning" if path in used else "error", document, message)


def _unused_keys(validation: Validation, keys: Sequence[str]) -> list[str]:
    format_, nodes = validation.root.format, validation.nodes
    arrays = {
        format_.chunk_prefix(path): node.metadata
        for path, node in nodes.items()
        if isinstance(node.metadata, ArrayMetadata)
    }
    documents = {key for path in (*nodes, *validation.unreadable) for key in format_.document_keys(path)}
    documents |= {str(format_.consolidated_key(path)) for path in nodes} | {format_.entry_point or ""}
    # Without readable metadata, the keys of a node are unknown.
    unreadable = {format_.chunk_prefix(path) for path in validation.unreadable}

    def may_be_chunk(key: str) -> bool:
        prefixes = _prefixes(key)
        prefix = next((prefix for prefix in prefixes if prefix in arrays), None)
        if prefix is None or not unreadable.isdisjoint(prefixes):
            return not unreadable.isdisjoint(prefixes)
        metadata = arrays[prefix]
        return metadata.keys.decode(key[len(prefix) :], metadata.ndim) is not None

    def records_sources(key: str) -> bool:
        path, mark, _ = f"/{key}".rpartition(f"/{SOURCES}")
        return bool(mark) and path.strip("/") in nodes

    return [key for key in keys if key not in documents and not may_be_chunk(key) and not records_sources(key)]


def _prefixes(key: str) -> list[str]:
    """Return the prefixes of a key, from the longest to the empty one."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[:n]) + "/" for n in range(len(parts), 0, -1)] + [""]
