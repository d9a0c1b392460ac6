"""Finding nodes by their metadata documents.

One batch of requests fetches the documents of all formats that may exist at a path. Keys are listed only to find
implicit groups (of the v3 draft), which have no document.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from zarrasync import formats
from zarrasync._concurrency.offload import compute
from zarrasync._util.advice import most_similar
from zarrasync.config import Config
from zarrasync.errors import MetadataError, NodeNotFoundError, StoreError, UnsupportedOperation
from zarrasync.formats import CANDIDATES, EntryPointFound, Format, Kind
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.documents import Metadata, document_bytes, fetch_documents
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import ABSENT

_QUICK_NODES, _QUICK_BYTES = 100, 1 << 18
"""Nodes, and bytes of their documents, that are parsed within some milliseconds."""


class FoundNode(NamedTuple):
    """A node that exists.

    Attributes:
        format: The format.
        metadata: The metadata.
        consolidated: The consolidated metadata of a group, if it was requested and exists.
    """

    format: Format
    metadata: Metadata
    consolidated: Consolidated | None = None


async def load_node(handle: NodeHandle, *, consolidated: bool | None = False) -> FoundNode:
    """Return a node as it is stored, in the format of its handle.

    Args:
        handle: The node.
        consolidated: As for ``find``.

    Raises:
        NodeNotFoundError: If no node exists at the path.
        MetadataError: If the documents are invalid.
    """
    silent = replace(handle.config, dtype_fallback="allow")  # opening the node has already warned
    return await find(replace(handle, consolidated=None, config=silent), (handle.format,), consolidated=consolidated)


# ------------------------------------------------------------------ one node


async def find(
    handle: NodeHandle,
    candidates: Sequence[Format],
    *,
    consolidated: bool | None = False,
    kind: Kind | None = None,
    brief: bool = False,
) -> FoundNode:
    """Find the node at a path, in any of several formats.

    Args:
        handle: The location.
        candidates: The formats to look for. Formats with an entry point document are looked for last.
        consolidated: Whether to fetch consolidated metadata. ``None``: use it if it exists.
        kind: The expected kind. The other kind is looked for only if no node of the expected kind exists.
        brief: Stop after the first batch of requests, even if it cannot find every node. Only for formats without an
            entry point document.

    Raises:
        NodeNotFoundError: If no node exists at the path. Its field ``tried`` contains the keys that were looked up.
        MetadataError: If the documents are invalid.
        StoreError: If the store failed.
    """
    plain = [candidate for candidate in candidates if candidate.unread_entry_point is None]
    drafts = [candidate for candidate in candidates if candidate.unread_entry_point is not None]
    searched, unreadable, node = list(plain), None, None
    if plain:
        try:
            node = await _find_plain(handle, plain, consolidated=consolidated, kind=kind)
        except EntryPointFound:
            if not drafts:
                raise
    if node is None and not (brief and plain):
        usable = plain
        if drafts:
            draft, unreadable = await _stored_draft(handle, str(drafts[0].unread_entry_point), optional=bool(plain))
            searched.extend(drafts if draft is None else [draft])
            if draft is not None and any(map(draft.is_same, drafts)):
                (node,) = await find_all(handle, [handle.path], [draft], consolidated=consolidated, kind=kind)
                usable = [*plain, draft]
        if node is None and kind is not None:
            node = await _find_other_kind(handle, usable, kind)
        if node is None:
            node = await _find_implicit_group(handle, usable)
    if node is None:
        raise _not_found(handle, candidates, searched) from unreadable
    return node


async def _find_plain(
    handle: NodeHandle, candidates: Sequence[Format], *, consolidated: bool | None, kind: Kind | None
) -> FoundNode | None:
    """Find a node with one batch of requests, or with one per format if the store refuses some of the keys.

    Some servers answer 403 for keys that do not exist.
    """
    options: dict[str, Any] = {"consolidated": consolidated, "kind": kind}
    try:
        (node,) = await find_all(handle, [handle.path], candidates, **options)
    except StoreError:
        for candidate in candidates if len(candidates) > 1 else ():
            with suppress(StoreError):
                (node,) = await find_all(handle, [handle.path], [candidate], **options)
                if node is not None:
                    return node
        raise
    return node


async def _stored_draft(
    handle: NodeHandle, entry_key: str, *, optional: bool
) -> tuple[Format | None, StoreError | None]:
    """Return the format that the store's entry point document specifies, or ``None`` if the document does not exist.

    With ``optional``, a store error counts as a missing document and is returned, because credentials for a part of a
    bucket may not include its root.
    """
    try:
        (value,) = await fetch_documents(handle.store, [entry_key], handle.config)
    except StoreError as error:
        if not optional:
            raise
        return None, error
    data = document_bytes(value)
    return None if data is None else formats.parse_entry_point(data), None


async def _find_other_kind(handle: NodeHandle, candidates: Sequence[Format], kind: Kind) -> FoundNode | None:
    """Find a node of the other kind, in formats whose keys depend on the kind."""
    other: Kind = GroupMetadata if kind is ArrayMetadata else ArrayMetadata
    path = handle.path
    remaining = [one for one in candidates if set(one.document_keys(path, other)) != set(one.document_keys(path))]
    (node,) = await find_all(handle, [path], remaining, kind=other) if remaining else (None,)
    return node


async def _find_implicit_group(handle: NodeHandle, candidates: Sequence[Format]) -> FoundNode | None:
    """Find a group that has no document, but nodes below it."""
    for candidate in candidates:
        if not candidate.implicit_groups:
            continue
        with suppress(UnsupportedOperation):  # in a store that cannot list, only the root is an implicit group
            if not handle.path or await replace(handle, format=candidate).children():
                return FoundNode(candidate, GroupMetadata())
    return None


def _not_found(handle: NodeHandle, candidates: Sequence[Format], searched: Sequence[Format]) -> NodeNotFoundError:
    keys = [key for candidate in searched for key in candidate.document_keys(handle.path)]
    keys.extend(str(candidate.unread_entry_point) for candidate in searched if candidate.unread_entry_point is not None)
    of_format = f" of Zarr format {candidates[0].zarr_format}" if len(candidates) == 1 else ""
    return handle.not_found_error(
        f"cannot open {handle.place}: no array or group{of_format} exists there",
        tried=tuple(dict.fromkeys(keys)),
    )


# ------------------------------------------------------------------ several nodes


async def find_all(
    handle: NodeHandle,
    paths: Iterable[str],
    candidates: Sequence[Format],
    *,
    strict: bool = True,
    consolidated: bool | None = False,
    kind: Kind | None = None,
) -> list[FoundNode | None]:
    """Find the nodes at several paths of a store, with one batch of requests.

    Args:
        handle: Any location in the store. Documents in its consolidated metadata are not fetched.
        paths: The paths.
        candidates: The formats whose documents to fetch.
        strict: Raise an error for invalid documents. Otherwise a node with invalid documents counts as a group.
        consolidated: As for ``find``.
        kind: Fetch only documents of this kind of node.

    Returns:
        The node at each path, or ``None`` if no node exists there.
    """
    lookups = [_Lookup(path, _document_keys(path, candidates, kind, consolidated)) for path in paths]
    if handle.consolidated is not None:
        for lookup in lookups:
            if handle.consolidated.covers(lookup.path):
                lookup.documents = handle.consolidated.find(lookup.keys)
    await _fetch(handle, [lookup for lookup in lookups if lookup.documents is None])

    def detect() -> list[FoundNode | None]:
        return [_detect(lookup, candidates, handle.config, strict, consolidated) for lookup in lookups]

    try:
        return detect() if _are_quick(lookups) else await compute(detect)
    except MetadataError as error:
        if error.problems:
            error.locate(repr(handle.store))
        raise


def _are_quick(lookups: Sequence[_Lookup]) -> bool:
    """Return whether documents are small enough for an event loop to parse them itself."""
    if len(lookups) <= _QUICK_NODES:
        sizes = [len(data) for lookup in lookups for data in (lookup.documents or {}).values() if data is not None]
        return sum(sizes) <= _QUICK_BYTES
    return False


@dataclass(slots=True)
class _Lookup:
    """The documents that may describe the node at a path.

    Attributes:
        path: The path.
        keys: The keys of the documents.
        documents: The document of each key, or ``None`` for a missing one. ``None`` until they are fetched.
        versions: The versions by key, if the store supports conditional writes and the documents were fetched.
    """

    path: str
    keys: tuple[str, ...]
    documents: dict[str, bytes | None] | None = None
    versions: Mapping[str, object] | None = None


def _document_keys(
    path: str, candidates: Sequence[Format], kind: Kind | None, consolidated: bool | None
) -> tuple[str, ...]:
    if len(candidates) == 1 and consolidated is False:
        return candidates[0].document_keys(path, kind)
    keys = [key for candidate in candidates for key in candidate.document_keys(path, kind)]
    if consolidated is not False:
        copies = (candidate.consolidated_key(path) for candidate in candidates)
        keys.extend(key for key in copies if key is not None and key not in keys)
    return tuple(keys)


async def _fetch(handle: NodeHandle, lookups: Sequence[_Lookup]) -> None:
    """Fetch the documents of lookups and store them in the lookups."""
    keys = [key for lookup in lookups for key in lookup.keys]
    with_versions = handle.store.writeable and handle.store.conditional
    values = await fetch_documents(handle.store, keys, handle.config, versions=with_versions) if keys else []
    remaining = iter(values)
    for lookup in lookups:
        fetched = {key: next(remaining) for key in lookup.keys}
        lookup.documents = {key: document_bytes(value) for key, value in fetched.items()}
        if with_versions:
            lookup.versions = {key: ABSENT if value is None else value.version for key, value in fetched.items()}


def _detect(
    lookup: _Lookup, candidates: Sequence[Format], config: Config, strict: bool, consolidated: bool | None
) -> FoundNode | None:
    """Return the node that documents describe."""
    documents = lookup.documents or {}
    try:
        match = formats.detect(lookup.path, documents, candidates)
        if match is None:
            return None
        format_, metadata = match
        if metadata.source is not None and lookup.versions:
            metadata.source.versions.update(lookup.versions)
        if isinstance(metadata, ArrayMetadata):
            _check_array(lookup.path, metadata, config)
            return FoundNode(format_, metadata)
        return FoundNode(format_, metadata, _unpack(lookup.path, format_, documents, consolidated))
    except EntryPointFound:
        raise
    except MetadataError:
        if strict:
            raise
        return FoundNode(candidates[0], GroupMetadata())


def _check_array(path: str, metadata: ArrayMetadata, config: Config) -> None:
    """Check that the settings allow opening an array, and warn about data types that are replaced by a fallback."""
    if config.dtype_fallback != "allow":
        for note in metadata.notes:
            if config.dtype_fallback == "error":
                raise MetadataError(
                    f"/{path}: {note.replace(' is used', ' is not used')}: config.dtype_fallback is 'error'"
                )
            warnings.warn(f"/{path}: {note}", stacklevel=2)
    if getattr(metadata.inner_codecs.array_bytes, "runs_code", False) and not config.allow_pickle:
        raise MetadataError(
            f"/{path}: the chunks are pickles, and reading a pickle can run arbitrary code; if you trust the data, "
            "open it with config={'allow_pickle': True}"
        )


def _unpack(path: str, format_: Format, documents: formats.Documents, consolidated: bool | None) -> Consolidated | None:
    """Return the consolidated metadata of a group, if it was requested and exists."""
    if consolidated is False:
        return None
    try:
        copies = format_.parse_consolidated(path, documents)
    except MetadataError as error:
        if consolidated:
            raise
        warnings.warn(f"/{path}: the consolidated metadata is damaged and is ignored: {error}", stacklevel=2)
        return None
    return None if copies is None else Consolidated(format_, path, copies, complete=consolidated is True)


_MOST_SHOWN = 10


async def add_reason(error: NodeNotFoundError, handle: NodeHandle) -> None:
    """Add the existing nodes at or above a missing one to an error.

    Takes one batch of requests, and one listing unless the names are known from consolidated metadata. If nothing exists
    in the store, the store around it is examined in the same way, because URLs may end with the path of a node.
    """
    with suppress(OSError, MetadataError):
        reason = await _explain(handle)
        enclosing = handle.store.enclosing() if not reason else None
        if enclosing is not None:
            store, path = enclosing
            try:
                with suppress(OSError, MetadataError):
                    reason = await _explain(replace(handle, store=store, path=join(path, handle.path)))
            finally:
                await store.close()
        error.args = (f"{error}{reason or f'; {handle.store.describe(handle.path)}'}",)


async def add_members(error: NodeNotFoundError, group: NodeHandle, path: str) -> None:
    """Add the members of the group above a missing node to an error, if that takes no remote request.

    Args:
        error: The error.
        group: A group above the missing node.
        path: The path of the missing node in the store.
    """
    if not group.store.blocking and group.consolidated is None:
        return
    with suppress(OSError, MetadataError):
        parent = group
        while (name := _next_name(parent, path)) in await parent.children():  # a listing for each level that exists
            parent = parent.at(f"{parent.path}/{name}".lstrip("/"))
        error.args = (f"{error}{await _members(parent, path)}",)


async def _explain(handle: NodeHandle) -> str:
    """Return the existing nodes at or above a path as the end of a message; empty if none exists."""
    paths = [handle.path, *ancestors(handle.path)]
    plain = [candidate for candidate in CANDIDATES if candidate.unread_entry_point is None]
    node, *above = await find_all(handle, paths, plain, strict=False, consolidated=None)
    copies = next((found.consolidated for found in above if found is not None and found.consolidated is not None), None)
    if node is not None:
        return f"; a node of Zarr format {node.format.zarr_format} exists there: pass zarr_format={node.format.zarr_format!r}"
    for path, ancestor in zip(paths[1:], above, strict=True):
        if ancestor is None:
            continue
        if isinstance(ancestor.metadata, ArrayMetadata):
            return f"; /{path} is an array, which has no members"
        members = ""
        with suppress(OSError, MetadataError):
            group = replace(handle, path=path, format=ancestor.format, consolidated=copies)
            members = await _members(group, handle.path)
        return members or f"; /{path} is a group"
    return ""


async def _members(group: NodeHandle, missing: str) -> str:
    """Return the members of a group and the most similar name as sentences, or an empty string without members."""
    names = sorted(await group.children())
    if not names:
        return ""
    shown = ", ".join(names[:_MOST_SHOWN]) + (f", … ({len(names)} in total)" if len(names) > _MOST_SHOWN else "")
    similar = most_similar(_next_name(group, missing), names)
    return f". Members of {group.name}: {shown}." + (f" Did you mean {similar!r}?" if similar else "")


def _next_name(group: NodeHandle, path: str) -> str:
    """Return the first name of a path below a group."""
    return path[len(group.path) :].strip("/").partition("/")[0]
