"""Looking for what is wrong with a store: documents, names, leftovers, chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Literal, TypeAlias

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency.gather import for_each
from zarrasync._util import json as _json
from zarrasync.display.text import axis_names, counted
from zarrasync.errors import (
    InvalidKeyError,
    MetadataError,
    NodeNotFoundError,
    UnsupportedOperation,
    ZarrError,
)
from zarrasync.formats import CANDIDATES, Format
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import chunks_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.find import FoundNode, find, find_all
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import ReadOnlyStore, Request, StoreLike, resolve

__all__ = ["Finding", "Report", "validate"]

Severity: TypeAlias = Literal["error", "warning", "note"]
_SHOWN = 20
_LEVELS = frozenset({"multiscales", "ome"})
"""Attributes of a group whose arrays are one picture at several scales."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        severity: ``"error"``: cannot be read, or must not be; ``"warning"``: readable here, but not as the
            specification asks, or stale; ``"note"``: worth knowing.
        key: The store key of the document or chunk.
        location: The place inside a document, in JSON path notation; empty for chunks.
        message: What was found, and what should be there.
    """

    severity: Severity
    key: str
    location: str
    message: str

    def __str__(self) -> str:
        where = f"{self.key}: {self.location}" if self.location else self.key
        return f"{self.severity}: {where}: {self.message}"


@dataclass
class Report:
    """What was found in a store.

    Attributes:
        findings: What is not as it should be, in the order of keys.
        groups: Groups that were looked at.
        arrays: Arrays that were looked at.
        chunks: Stored values that were looked at.
    """

    findings: list[Finding] = field(default_factory=list)
    groups: int = 0
    arrays: int = 0
    chunks: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        kinds = Counter(finding.severity for finding in self.findings)
        counts = ", ".join(counted(kinds[kind], kind) for kind in ("error", "warning", "note") if kinds[kind])
        nodes = ", ".join((counted(self.arrays, "array"), counted(self.groups, "group")))
        chunks = f", {counted(self.chunks, 'stored value')}" if self.chunks else ""
        head = f"{nodes}{chunks}: {counts or 'nothing wrong'}"
        return "\n".join([head, *map(str, self.findings)])


async def validate(
    store: StoreLike,
    *,
    path: str = "",
    data: bool = False,
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> Report:
    """Look for what is wrong with an array, or a group and all below it. Nothing is changed.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: Where to begin.
        data: Whether to decode every stored value as well, and to tell of absent ones.
        zarr_format: The format, if known; found out otherwise.
        storage_options: Options for the filesystem of a URL.
        config: Settings.

    Returns:
        Every problem, with its place.

    Raises:
        NodeNotFoundError: If there is nothing at the path.
        StoreError: If the store failed.
    """
    values = replace(settings.resolve(config), dtype_fallback="allow", allow_pickle=True)
    chosen = formats.by_name(values.zarr_format if zarr_format is None else zarr_format)
    candidates = CANDIDATES if zarr_format is None else (chosen,)
    node = NodeHandle(ReadOnlyStore(resolve(store, storage_options, values)), normalize_path(path), chosen, values)
    report = Report()
    trusting = settings.resolve(config).allow_pickle
    await run_on_store(partial(_look, node, candidates, report, data, trusting), node.store)
    report.findings.sort(key=lambda finding: (finding.key, finding.location))
    return report


class _Look:
    """One validation."""

    def __init__(self, report: Report, trusting: bool) -> None:
        self.report, self.trusting = report, trusting
        self.broken: list[str] = []

    def add(self, severity: Severity, key: str, message: str, location: str = "") -> None:
        self.report.findings.append(Finding(severity, key, location, message))

    def error(self, error: ZarrError, key: str) -> None:
        """Note an error, each of its problems by itself."""
        problems = getattr(error, "problems", ())
        for problem in problems:
            self.add("error", problem.key or key, problem.message, problem.location)
        if not problems:
            self.add("error", key, str(error))


async def _look(node: NodeHandle, candidates: Sequence[Format], report: Report, data: bool, trusting: bool) -> None:
    look = _Look(report, trusting)
    try:
        top = await find(node, candidates)
    except NodeNotFoundError:
        raise
    except MetadataError as error:
        look.error(error, node.path)
        return
    root = replace(node, format=top.format)
    nodes: dict[str, FoundNode] = {node.path: top}
    keys = await _keys(node, top.format)
    if keys is None:
        look.add("note", node.path or "/", "the store can not list: nothing below the node was looked at")
    level = [root] if not isinstance(top.metadata, ArrayMetadata) else []
    while level and keys is not None:
        below: list[NodeHandle] = []
        for place in level:
            for name, implied in (await place.children(None)).items():
                child = place.at(join(place.path, name))
                found = await _one(child, look, implied)
                if found is not None:
                    nodes[child.path] = found
                    if not isinstance(found.metadata, ArrayMetadata) and not top.format.separates_metadata:
                        below.append(child)
        level = below
    for path, found in nodes.items():
        parent = path.rpartition("/")[0]
        if path != node.path and parent in nodes and isinstance(nodes[parent].metadata, ArrayMetadata):
            look.add("error", root.format.document_keys(path)[0], f"lies below /{parent}, which is an array")
        await _check_node(root.at(path), found, look, data)
    copies = await _check_documents(root, nodes, look)
    if keys is not None:
        _leftovers(root, nodes, keys, look)
        for prefix in root.format.erase_prefixes(root.path):
            for name in await root.store.unfinished(prefix):
                look.add("note", name, "is what a writer that was killed left; nobody reads it, and it may be deleted")
    _check_lengths(root, nodes, look)
    if copies is not None:
        await _stale(root, copies, nodes, look)


async def _keys(node: NodeHandle, format_: Format) -> list[str] | None:
    """All keys that may belong to a node and what lies below it; ``None`` if the store can not list."""
    try:
        listed = [await node.store.list_prefix(prefix) for prefix in format_.erase_prefixes(node.path)]
        return sorted(key for keys in listed for key in keys)
    except UnsupportedOperation:
        return None


async def _one(child: NodeHandle, look: _Look, implied: bool) -> FoundNode | None:
    """The node at a place where there may be one."""
    try:
        child.format.check_path(child.path)
    except InvalidKeyError as error:
        look.add("error", child.path, str(error))
    try:
        (found,) = await find_all(child, [child.path], (child.format,))
    except (MetadataError, InvalidKeyError) as error:
        look.error(error, child.path)
        look.broken.append(child.path)
        return None
    if found is None and implied:
        return FoundNode(child.format, GroupMetadata())
    return found


async def _check_node(node: NodeHandle, found: FoundNode, look: _Look, data: bool) -> None:
    keys = node.format.document_keys(node.path)
    for location, message in node.format.deviations(found.metadata):
        look.add("warning", keys[0], message, location)
    others = [one for one in CANDIDATES if one.unread_entry_point is None and not one.is_same(node.format)]
    try:
        double = [one for one in await find_all(node, [node.path], others, strict=False) if one is not None]
    except MetadataError:
        double = []
    for one in double if not node.format.separates_metadata else ():
        look.add("warning", keys[0], f"there are documents of format {one.format.zarr_format}, too")
    if not isinstance(found.metadata, ArrayMetadata):
        look.report.groups += 1
        return
    look.report.arrays += 1
    for note in found.metadata.notes:
        look.add("warning", keys[0], note)
    if data:
        await _check_chunks(AsyncArray(node, found.metadata), look)


async def _check_documents(root: NodeHandle, nodes: Mapping[str, FoundNode], look: _Look) -> dict[str, bytes] | None:
    """Look at documents as they are stored; returns the copies of the consolidated metadata, if there are any."""
    own, copies = root.format, root.format.consolidated_key(root.path)
    wanted = {key: path for path in nodes for key in own.document_keys(path)} | ({copies: root.path} if copies else {})
    values = await root.store.fetch([Request(key) for key in wanted])
    documents = {key: bytes(value.data) for key, value in zip(wanted, values, strict=True) if value is not None}
    for key, data in documents.items():
        for name in sorted(set(_json.repeated(data))):
            look.add("warning", key, f"{name!r} is there more than once in an object; the last one counts")
        found, path = nodes[wanted[key]], wanted[key]
        if isinstance(found.metadata, ArrayMetadata) and key not in (*own.document_keys(path, ArrayMetadata), copies):
            look.add("warning", key, f"there is an array at /{path}, too, which hides this group")
    try:
        return own.parse_consolidated(root.path, {key: documents.get(key) for key in wanted})
    except MetadataError as error:
        look.error(error, str(copies))
        return None


def _check_lengths(root: NodeHandle, nodes: Mapping[str, FoundNode], look: _Look) -> None:
    """Tell of axes of one name that are not equally long in the arrays of a group, as a killed append leaves them."""
    lengths: dict[tuple[str, str], dict[int, list[str]]] = {}
    for path, found in nodes.items():
        group, _, name = path.rpartition("/")
        if not isinstance(found.metadata, ArrayMetadata) or not path or group not in nodes:
            continue
        if not _LEVELS.isdisjoint(nodes[group].metadata.attributes):
            continue
        for dim, length in zip(axis_names(found.metadata) or (), found.metadata.shape, strict=False):
            if dim is not None:
                lengths.setdefault((group, dim), {}).setdefault(length, []).append(name)
    for (group, dim), found_lengths in lengths.items():
        if len(found_lengths) > 1:
            each = "; ".join(
                f"{length:,} in {', '.join(sorted(names)[:3])}" for length, names in sorted(found_lengths.items())
            )
            message = f"arrays have different sizes along {dim!r} ({each}), so that xarray does not open the group; "
            message += "where an append was killed, resize() those that are too long"
            look.add("note", root.format.document_keys(group, GroupMetadata)[0], message)


async def _check_chunks(array: AsyncArray, look: _Look) -> None:
    """Decode everything that is stored of an array."""
    chunks, metadata = chunks_of(array), array.metadata
    grid = metadata.grid
    if getattr(metadata.inner_codecs.array_bytes, "runs_code", False) and not look.trusting:
        message = "its chunks are pickles and were not looked at: reading one runs code (config.allow_pickle)"
        look.add("note", chunks.prefix or array.name, message)
        return
    stored = 0

    async def check(key: str) -> None:
        nonlocal stored
        coords = metadata.keys.decode(key, metadata.ndim)
        if coords is None:
            return
        if coords not in grid:
            look.add("warning", chunks.full_key(key), f"a chunk outside of the grid of {grid.shape}")
            return
        try:
            (value,) = await chunks.store.fetch([Request(key)])
            if value is not None:
                stored += 1
                metadata.chain_of(grid.chunk_shape(coords)).decode(value.data)
        except Exception as error:  # whatever it is, the value can not be read, and others can be looked at
            text = str(error) if isinstance(error, ZarrError) else f"{type(error).__name__}: {error}"
            look.add("error", chunks.full_key(key), text)

    try:
        keys = sorted(await chunks.store.list_prefix(""))
    except UnsupportedOperation:
        keys = [chunks.key(coords) for coords in product(*map(range, grid.shape))]
    await for_each(check, keys, 1 if chunks.store.blocking else chunks.concurrency)
    look.report.chunks += stored
    if stored < grid.size:
        message = f"{grid.size - stored:,} of {grid.size:,} stored values are absent and read as the fill value"
        look.add("note", chunks.prefix or array.name, message)


def _leftovers(root: NodeHandle, nodes: Mapping[str, FoundNode], keys: Sequence[str], look: _Look) -> None:
    """Tell of keys that belong to no node."""
    arrays = {
        root.format.chunk_prefix(p): f.metadata for p, f in nodes.items() if isinstance(f.metadata, ArrayMetadata)
    }
    documents = {key for path in (*nodes, *look.broken) for key in root.format.document_keys(path)}
    documents |= {str(root.format.consolidated_key(path)) for path in nodes} | {root.format.entry_point or ""}
    # Nothing can be said of what belongs to nodes that could not be read.
    broken = tuple(root.format.chunk_prefix(path) for path in look.broken)
    strange = []
    for key in keys:
        if key in documents or key.startswith(broken):
            continue
        prefix = next((prefix for prefix in _prefixes(key) if prefix in arrays), None)
        metadata = None if prefix is None else arrays[prefix]
        if metadata is None or prefix is None or metadata.keys.decode(key[len(prefix) :], metadata.ndim) is None:
            strange.append(key)
    for key in strange[:_SHOWN]:
        look.add("note", key, "belongs to no array or group")
    if len(strange) > _SHOWN:
        look.add("note", root.path or "/", f"{len(strange) - _SHOWN:,} more keys belong to no array or group")


def _prefixes(key: str) -> list[str]:
    """Prefixes of a key, the longest first, and the empty one."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[:n]) + "/" for n in range(len(parts), 0, -1)] + [""]


async def _stale(root: NodeHandle, documents: Mapping[str, bytes], nodes: Mapping[str, FoundNode], look: _Look) -> None:
    """Compare consolidated metadata with the documents it is a copy of."""
    key = str(root.format.consolidated_key(root.path))
    known = Consolidated(root.format, root.path, documents, complete=True)
    copies, level = dict[str, FoundNode](), [replace(root, consolidated=known)]
    while level:
        places = [place.at(join(place.path, name)) for place in level for name in await place.children(None)]
        level = []
        for place in places:
            try:
                (copied,) = await find_all(place, [place.path], (root.format,))
            except ZarrError as error:
                look.add("error", key, f"the copy of /{place.path} is damaged: {error}")
                continue
            if copied is not None:
                copies[place.path] = copied
                if not isinstance(copied.metadata, ArrayMetadata) and not root.format.separates_metadata:
                    level.append(place)
    for path in sorted({*nodes, *copies} - {root.path}):
        if path not in copies and nodes[path].metadata.source is None:
            continue  # a group without documents
        if path not in copies:
            message = f"/{path} is missing from the consolidated metadata, which is stale"
        elif path not in nodes:
            message = f"/{path} is in the consolidated metadata, but not in the store"
        elif _documents(copies[path]) != _documents(nodes[path]):
            message = f"the consolidated metadata is stale: its copy of /{path} differs from the documents there"
        else:
            continue
        look.add("warning", key, message)


def _documents(found: FoundNode) -> list[dict[str, Any]]:
    documents = found.metadata.source.documents.values() if found.metadata.source is not None else ()
    return [{name: value for name, value in one.items() if name != "consolidated_metadata"} for one in documents]
