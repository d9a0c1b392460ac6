"""Nodes: a place in a store, with the format that is spoken there. Loads and saves metadata."""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from zarrasync import config, formats
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._concurrency.retry import ConflictBackoff
from zarrasync._concurrency.shield import shielded
from zarrasync.errors import (
    ConditionsUnsupported,
    InvalidKeyError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    StoreError,
    UnsupportedOperation,
    WriteConflictError,
)
from zarrasync.formats import CANDIDATES, EntryPointFound, Format, Kind
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata, Source
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.erase import erase_below, left_over
from zarrasync.stores import ABSENT, AliasStore, PrefixStore, Request, Store, Value

__all__ = ["FoundNode", "Metadata", "NodeHandle", "document_bytes", "find", "find_all", "run_on_store"]

Metadata = ArrayMetadata | GroupMetadata
T = TypeVar("T")
M = TypeVar("M", ArrayMetadata, GroupMetadata)


async def run_on_store(make: Callable[[], Coroutine[Any, Any, T]], *stores: Store) -> T:
    """Run what a public call does where its stores' work belongs: on a worker thread, or right here."""
    if all(store.blocking for store in stores):
        return await run_in_worker(make)
    return await make()


@dataclass(frozen=True)
class NodeHandle:
    """A place in a store.

    Attributes:
        store: The store.
        path: The path inside it, without slashes at its ends.
        format: The format spoken there.
        config: The settings that held when it was opened.
        is_format_known: Whether the store is known to use that format. Otherwise it is an assumption.
        ancestor_group: Path of a group above the node that is known to exist, or ``None``.
        consolidated: Consolidated metadata of this group or one above it, or ``None``.
    """

    store: Store
    path: str
    format: Format
    config: config.Config
    is_format_known: bool = field(default=False, compare=False)
    ancestor_group: str | None = field(default=None, compare=False, repr=False)
    consolidated: Consolidated | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The path with a leading slash, as Zarr writes it."""
        return f"/{self.path}"

    @property
    def basename(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def at(self, path: str) -> NodeHandle:
        """The place at another path of the same store."""
        return replace(self, path=path)

    def child(self, name: str) -> NodeHandle:
        """The place below this one.

        Raises:
            InvalidKeyError: If the name is empty, which would be this place itself.
        """
        below = normalize_path(name)
        if not below:
            raise InvalidKeyError(f"{name!r} names no member of {self.name}", key=name)
        return replace(self, path=join(self.path, below), ancestor_group=self.path)

    def chunk_store(self, metadata: ArrayMetadata) -> Store:
        """The store of an array's chunks, with keys relative to the array."""
        aliases = self.format.chunk_aliases(self.path, metadata)
        store = AliasStore(self.store, aliases) if aliases else self.store
        prefix = self.format.chunk_prefix(self.path)
        store = PrefixStore(store, prefix) if prefix else store
        for transformer in reversed(metadata.transformers):
            store = transformer.wrap(store)
        return store

    # -------------------------------------------------------------- IO

    async def load(self) -> Metadata:
        """The metadata that is stored here.

        Raises:
            NodeNotFoundError: If there is none.
            MetadataError: If it is wrong.
        """
        settings = replace(self.config, dtype_fallback="allow")  # the user heard of it when the node was opened
        return (await find(replace(self, consolidated=None, config=settings), (self.format,))).metadata

    async def bind(self) -> NodeHandle:
        """This place with the format as the store's entry point document has it, where there is such a document.

        Raises:
            MetadataError: If the store speaks another format.
        """
        if self.format.unread_entry_point is None:
            return self
        (value,) = await self.store.fetch([Request(self.format.unread_entry_point)])
        found = self.format if value is None else formats.parse_entry_point(bytes(value.data))
        if found is None or not found.is_same(self.format):
            other = "a node of Zarr format 3" if found is None else f"the entry point of {found.zarr_format!r}"
            raise MetadataError(
                f"{self.format.unread_entry_point} is {other}, not the entry point of {self.format.zarr_format!r}"
            )
        return replace(self, format=found)

    def lock(self) -> AbstractAsyncContextManager[None, None]:
        """The lock on this node's metadata."""
        return self.store.lock(self.format.document_keys(self.path)[0])

    async def change(
        self,
        kind: type[M],
        change: Callable[[M], Awaitable[M]],
        held: M | None = None,
        stored: Callable[[], None] | None = None,
    ) -> M:
        """Change the metadata, and store what is then different.

        Where the store can compare, documents replace just those that the change was made of: if another process was
        faster, the change is made again of what is there then.

        Args:
            kind: What the node must be.
            change: Makes new metadata of the present one.
            held: The metadata as it was read before: if it is still what is stored, it need not be read again.
            stored: Called when it is stored, which is waited for if the caller is cancelled.

        Returns:
            The new metadata.

        Raises:
            NodeTypeError: If the node has become another kind.
            WriteConflictError: If others kept changing it.
        """
        patience = ConflictBackoff(self.config.total_timeout, f"{self.name} in {self.store!r}")
        unknown = held is None or held.source is None or not held.source.versions
        if self.store.exclusive or not self.store.conditional or unknown:
            held = None  # under a lock that holds for everybody what was just read is what there is
        async with self.lock():
            while True:
                present = held if held is not None else await self.load()
                if not isinstance(present, kind):
                    raise self.other_kind(present)
                target = await change(present)
                before = present.source or Source(self.format.zarr_format, {})
                rendered = self.format.render(self.path, target)
                parsed = {key: json.loads(data) for key, data in rendered.items()}
                changed = {key: data for key, data in rendered.items() if before.documents.get(key) != parsed[key]}
                if held is not None and not changed:
                    held = None  # somebody else may have changed it
                    continue
                try:
                    fresh = await shielded(partial(self._put, changed, before.versions), stored)
                    break
                except WriteConflictError as conflict:
                    held = None
                    await patience.after(conflict)
                except ConditionsUnsupported:
                    if self.store.conditional:
                        raise
                    held = None  # what is there is looked at, and nothing that was read before compared
        if self.consolidated is not None and changed:
            await self.consolidated.note(self.store, changed)
        versions = {**before.versions, **fresh} if before.versions else {}
        return replace(target, source=Source(self.format.zarr_format, parsed, versions))

    async def _put(self, documents: Mapping[str, bytes], versions: Mapping[str, object]) -> dict[str, object]:
        """Store documents, in the place of those of the versions that are known; their new versions."""
        puts = [partial(self.store.put, key, data, if_version=versions.get(key)) for key, data in documents.items()]
        return dict(zip(documents, await gather(puts), strict=True))

    def other_kind(self, found: Metadata) -> NodeTypeError:
        """The error for a node that is not what it was."""
        names = ("array", "group") if isinstance(found, ArrayMetadata) else ("group", "array")
        return NodeTypeError(
            f"{self.name} is {'an' if names[0] == 'array' else 'a'} {names[0]} now",
            path=self.path,
            found=names[0],
            wanted=names[1],
        )

    async def create(
        self, metadata: Metadata, *, overwrite: bool = False, parents: bool = True, clear: bool = False
    ) -> NodeHandle:
        """Store a new node here, and the groups above it that are missing.

        Args:
            metadata: What it is.
            overwrite: Replace what is there.
            parents: Make the groups above.
            clear: Erase chunks first that lie where a new array's will, as somebody was killed who erased one.

        Returns:
            This place, with the format of a store that has a node.

        Raises:
            NodeExistsError: If a node exists here and is not to be overwritten, or what is to be cleared may be
                somebody's.
            NodeTypeError: If an array stands where a group above is needed.
            UnsupportedByFormat: If the format can not say it; nothing is written then.
            UnsupportedOperation: If the store can not list what is to be cleared; likewise.
        """
        self.format.check_path(self.path)
        anew = overwrite and not self.path  # then nothing of what the store knows is left
        documents = self.format.root_documents() if anew or self.format.unread_entry_point is not None else {}
        documents.update(self.format.render(self.path, metadata))
        own = self.format.document_keys(self.path)
        above = self._above() if parents else []
        # Others are asked for in the same round trip.
        alone = self.is_format_known and (self.ancestor_group is not None or len(own) == 1)
        candidates = [self.format] if alone else self._candidates()
        # A node of one document is stored if there is none: then whether there is one need not be asked before.
        compare = self.store.conditional
        at_once = self.is_format_known and compare and len(own) == 1 and not overwrite
        try:
            there = replace(self, consolidated=None)  # copies may be old
            here = [] if at_once else [self.path]
            found = [None] * at_once + await find_all(there, [*here, *above], candidates, strict=False)
        except EntryPointFound:
            if self.path or not overwrite:
                raise
            found = [None]
        if found[0] is not None and not overwrite:
            raise self._taken(found[0])
        if isinstance(metadata, ArrayMetadata) and self.format.implicit_groups and not overwrite:
            with suppress(UnsupportedOperation):
                if found[0] is None and await self.children():
                    raise NodeExistsError(
                        f"{self.name} in {self.store!r} is a group: something lies below; pass overwrite=True to replace it",
                        path=self.path,
                        store=repr(self.store),
                    )
        if overwrite and found[0] is None:
            await self._refuse_foreign()
        for path, node in zip(above, found[1:], strict=True):
            if node is not None and not node.format.is_same(self.format):
                raise NodeTypeError(
                    f"{self.name} can not be created in Zarr format {self.format.zarr_format!r}: /{path} is of format "
                    f"{node.format.zarr_format!r}, whose readers would not find it; pass zarr_format={node.format.zarr_format!r}",
                    path=path,
                    found=str(node.format.zarr_format),
                    wanted=str(self.format.zarr_format),
                )
            if node is None and not self.format.implicit_groups:
                documents.update(self.format.render(path, GroupMetadata()))
            elif node is not None and isinstance(node.metadata, ArrayMetadata):
                raise NodeTypeError(
                    f"{self.name} can not be created: there is an array at /{path}",
                    path=path,
                    found="array",
                    wanted="group",
                )
        if overwrite:
            await self.erase()
        elif clear and isinstance(metadata, ArrayMetadata):
            await self._clear(metadata)
        try:
            await self._put_new(documents, type(metadata), only_new=compare and not overwrite)
        except ConditionsUnsupported:
            if self.store.conditional:
                raise
            return await self.create(metadata, overwrite=overwrite, parents=parents, clear=clear)  # with a look
        if self.consolidated is not None:
            await self.consolidated.note(self.store, documents)
        return replace(self, format=self.format.for_written_store(), is_format_known=True)

    async def _clear(self, metadata: ArrayMetadata) -> None:
        """Erase chunks of an array that is not there, in any format."""
        left = await left_over(self, metadata)
        if left:
            await self._refuse_taken(self._candidates())
            await self.chunk_store(metadata).erase_values(left)

    def _candidates(self) -> list[Format]:
        """This place's format, and the others that may be spoken in its store."""
        others = (other for other in CANDIDATES if other.unread_entry_point is None and not other.is_same(self.format))
        return [self.format, *(other for other in others if self.format.entry_point not in other.document_keys(""))]

    async def _put_new(self, documents: Mapping[str, bytes], kind: Kind, *, only_new: bool) -> None:
        """Store the documents of a new node, the one that tells of it after those that are told of by it."""
        telling = self.format.document_keys(self.path, kind)[0]
        others = {key: documents[key] for key in self.format.document_keys(self.path) if key in documents}
        last = {key: data for key, data in documents.items() if key == telling or key not in others}
        others.pop(telling)
        try:
            await self._put(others, dict.fromkeys(others, ABSENT) if only_new else {})
        except WriteConflictError:
            await self._refuse_taken()
            await self._put(others, {})  # left by somebody who was interrupted
        try:
            await self._put(last, {telling: ABSENT} if only_new else {})
        except WriteConflictError:
            await self._refuse_taken()
            raise

    async def _refuse_taken(self, candidates: Sequence[Format] | None = None) -> None:
        (present,) = await find_all(
            replace(self, consolidated=None), [self.path], candidates or [self.format], strict=False
        )
        if present is not None:
            raise self._taken(present) from None

    def _above(self) -> list[str]:
        """The paths above this one, but those of which it is known that there are groups."""
        path, above = self.path, list[str]()
        while path and path != self.ancestor_group:
            path = path.rpartition("/")[0]
            above.append(path)
        return above if self.ancestor_group is None else above[:-1]

    def _taken(self, found: FoundNode | None) -> NodeExistsError:
        kind = "an array" if found is not None and isinstance(found.metadata, ArrayMetadata) else "a group"
        if found is not None and not found.format.is_same(self.format):
            kind += f" of Zarr format {found.format.zarr_format!r}"
        return NodeExistsError(
            f"{kind} exists at {self.name} in {self.store!r}; pass overwrite=True or mode='w' to replace it",
            path=self.path,
            store=repr(self.store),
        )

    async def _refuse_foreign(self) -> None:
        """Complain about values that are no Zarr where there is no node: they would be erased with it."""
        try:
            listed = [await self.store.list_prefix(prefix) for prefix in self.format.erase_prefixes(self.path)]
        except UnsupportedOperation:
            return
        keys = [key for own in listed for key in own if not formats.may_be_zarr(key)]
        if keys:
            raise NodeExistsError(
                f"there is no node at {self.name} in {self.store!r} to overwrite, but {len(keys):,} "
                f"other values lie there, which would be erased: {', '.join(sorted(keys)[:3])}",
                path=self.path,
                store=repr(self.store),
            )

    async def erase(self) -> None:
        """Erase this node and everything below it."""
        keys, prefixes = self.format.erase_keys(self.path), self.format.erase_prefixes(self.path)
        if keys:
            await self.store.erase_values(keys)
        for prefix in prefixes:
            await erase_below(self.store, prefix)
        if self.consolidated is not None:
            await self.consolidated.note(self.store, keys, prefixes)

    async def children(self, max_depth: int | None = 0) -> dict[str, bool]:
        """What may be nodes below this one, from one listing.

        Args:
            max_depth: How many levels of groups to look into, where the format can tell of them at once.

        Returns:
            Paths relative to this one, each with whether it is a group even if it has no document.
        """
        prefix, copies = self.format.listing_prefix(self.path), self.format.consolidated_key(self.path)
        source = self.store if self.consolidated is None else self.consolidated
        if self.format.separates_metadata and max_depth != 0:
            listed = source.list_prefix(prefix)
            keys = await listed if isinstance(listed, Awaitable) else listed
            found = self.format.children(self.path, keys, ())
            return {
                name: implied for name, implied in found.items() if max_depth is None or name.count("/") <= max_depth
            }
        listing = (
            self.consolidated.list_dir(prefix) if self.consolidated is not None else await self.store.list_dir(prefix)
        )
        below = []
        for one in listing.prefixes:
            if copies is not None and copies.startswith(one) and self.consolidated is None:
                inside = await self.store.list_dir(one)
                if inside.keys == (copies,) and not inside.prefixes:
                    continue  # it holds consolidated metadata, and no node
            below.append(one)
        return self.format.children(self.path, listing.keys, below)


class FoundNode(NamedTuple):
    """A node that was found.

    Attributes:
        format: Its format.
        metadata: Its metadata.
        consolidated: Consolidated metadata of the group, if it was requested and exists.
    """

    format: Format
    metadata: Metadata
    consolidated: Consolidated | None = None


async def find_all(
    node: NodeHandle,
    paths: Iterable[str],
    candidates: Sequence[Format],
    *,
    strict: bool = True,
    consolidated: bool | None = False,
    kind: Kind | None = None,
) -> list[FoundNode | None]:
    """The nodes at several paths of a store, with one batch of requests.

    Args:
        node: A place in the store; what it knows of is not asked for.
        paths: The paths.
        candidates: The formats whose documents to ask for.
        strict: Whether documents that do not parse are an error; otherwise they count as a group.
        consolidated: Whether to ask for consolidated metadata, too; ``None`` where there is some.
        kind: What is looked for, if nothing else will do.
    """
    paths = list(paths)
    keys = [[key for candidate in candidates for key in candidate.document_keys(path, kind)] for path in paths]
    if consolidated is not False:
        for path, own in zip(paths, keys, strict=True):
            copies = [candidate.consolidated_key(path) for candidate in candidates]
            own.extend(key for key in copies if key is not None and key not in own)
    known = node.consolidated
    documents: list[dict[str, bytes | None] | None] = [
        known.find(own) if known is not None and known.covers(path) else None
        for path, own in zip(paths, keys, strict=True)
    ]
    asked = [key for own, found in zip(keys, documents, strict=True) if found is None for key in own]
    compare = node.store.conditional and node.store.writeable
    values = await node.store.fetch([Request(key) for key in asked], versions=compare) if asked else []
    versions = {k: ABSENT if v is None else v.version for k, v in zip(asked, values, strict=True)} if compare else {}
    fetched = iter(values)
    nodes: list[FoundNode | None] = []
    for path, own, given in zip(paths, keys, documents, strict=True):
        held = given if given is not None else {key: document_bytes(node, key, next(fetched)) for key in own}
        try:
            found = formats.detect(path, held, candidates)
            if found is not None and given is None and compare and (source := found[1].source) is not None:
                source.versions.update({key: versions[key] for key in own})
            nodes.append(None if found is None else _found(node, path, found, held, consolidated))
        except EntryPointFound:
            raise
        except MetadataError:
            if strict:
                raise
            nodes.append(FoundNode(candidates[0], GroupMetadata()))
    return nodes


def document_bytes(node: NodeHandle, key: str, value: Value | None) -> bytes | None:
    """A document as it was fetched, unless it is larger than the settings allow."""
    if value is not None and len(value.data) > node.config.max_document_bytes:
        raise MetadataError(
            f"{key}: the document has {len(value.data):,} bytes, "
            f"config.max_document_bytes is {node.config.max_document_bytes:,}"
        )
    return None if value is None else bytes(value.data)


def _found(
    node: NodeHandle, path: str, found: tuple[Format, Metadata], documents: formats.Documents, consolidated: bool | None
) -> FoundNode:
    """What was found, if the settings admit it, with the consolidated metadata that it has."""
    format_, metadata = found
    if isinstance(metadata, ArrayMetadata):
        for note in metadata.notes if node.config.dtype_fallback != "allow" else ():
            if node.config.dtype_fallback == "error":
                raise MetadataError(
                    f"/{path}: {note.replace(' is used', ' is not used')}: config.dtype_fallback is 'error'"
                )
            warnings.warn(f"/{path}: {note}", stacklevel=2)
        if getattr(metadata.inner_codecs.array_bytes, "runs_code", False) and not node.config.allow_pickle:
            raise MetadataError(
                f"/{path}: its chunks are pickles, and reading one runs whatever code it names; "
                "config.allow_pickle=True opens it, for data of your own"
            )
        return FoundNode(format_, metadata)
    copies = None
    if consolidated is not False:
        try:
            copies = format_.parse_consolidated(path, documents)
        except MetadataError as error:
            if consolidated:
                raise
            warnings.warn(f"/{path}: its consolidated metadata is damaged, and not used: {error}", stacklevel=2)
    if copies is None:
        return FoundNode(format_, metadata)
    return FoundNode(format_, metadata, Consolidated(format_, path, copies, complete=consolidated is True))


async def find(
    node: NodeHandle,
    candidates: Sequence[Format],
    *,
    consolidated: bool | None = False,
    kind: Kind | None = None,
    brief: bool = False,
) -> FoundNode:
    """The node at a place.

    Args:
        node: The place.
        candidates: The formats to look for. Those whose entry point document is not known yet come last.
        consolidated: Whether to look for consolidated metadata, too; ``None`` where there is some.
        kind: What is expected: others are looked for only if there is no such node.
        brief: Whether one batch of requests will do: then there may be a node, though none is found. For formats
            without an entry point document.

    Raises:
        NodeNotFoundError: If there is none; says which keys were looked up.
        MetadataError: If its documents are wrong.
    """
    plain = [candidate for candidate in candidates if candidate.unread_entry_point is None]
    drafts = [candidate for candidate in candidates if candidate.unread_entry_point is not None]
    found, tried, unreadable = None, [], None
    if plain:
        try:
            (found,) = await find_all(node, [node.path], plain, consolidated=consolidated, kind=kind)
        except EntryPointFound:
            if not drafts:
                raise
        tried.extend(plain)
    more = found is None and not (brief and plain)
    if more and drafts:
        key = str(drafts[0].unread_entry_point)
        try:
            (entry,) = await node.store.fetch([Request(key)])
        except StoreError as error:
            if not plain:
                raise
            entry, unreadable = None, error  # one who may see but a part of a store has no draft there
        data = document_bytes(node, key, entry)
        format_ = None if data is None else formats.parse_entry_point(data)
        if format_ is not None and any(map(format_.is_same, drafts)):
            (found,) = await find_all(node, [node.path], [format_], consolidated=consolidated, kind=kind)
            plain = [*plain, format_]
        tried.extend([format_] if format_ is not None else drafts)
    if more and found is None and kind is not None:
        kind = GroupMetadata if kind is ArrayMetadata else ArrayMetadata
        others = [one for one in plain if set(one.document_keys(node.path, kind)) != set(one.document_keys(node.path))]
        (found,) = await find_all(node, [node.path], others, kind=kind) if others else (None,)
    if more and found is None:
        found = await _implicit(node, plain)
    if found is None:
        keys = [key for candidate in tried for key in candidate.document_keys(node.path)]
        keys.extend(
            {str(candidate.unread_entry_point): 0 for candidate in tried if candidate.unread_entry_point is not None}
        )
        what = " or ".join(str(candidate.zarr_format) for candidate in candidates)
        raise NodeNotFoundError(
            f"no array or group of Zarr format {what} at {node.name} in {node.store!r}; looked for {', '.join(keys)}",
            path=node.path,
            store=repr(node.store),
            tried=keys,
        ) from unreadable
    return found


async def _implicit(node: NodeHandle, candidates: Sequence[Format]) -> FoundNode | None:
    """The group that exists because something lies below it; the last step of looking for a node."""
    for format_ in candidates:
        if not format_.implicit_groups:
            continue
        with suppress(UnsupportedOperation):  # a store that can not list has no implicit groups but the root
            if not node.path or await replace(node, format=format_).children():
                return FoundNode(format_, GroupMetadata())
    return None
