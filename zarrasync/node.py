"""Nodes: a place in a store, with the format that is spoken there. Loads and saves metadata."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from zarrasync import config, formats
from zarrasync._runtime import KeyLock, in_worker
from zarrasync.errors import InvalidKeyError, MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.formats import CANDIDATES, Format
from zarrasync.keys import join, normalize_path
from zarrasync.metadata import ArrayMetadata, GroupMetadata, Source
from zarrasync.stores import PrefixStore, Store
from zarrasync.stores.base import Request

__all__ = ["Metadata", "Node", "find", "find_all", "gather", "on_store", "why_absent"]

Metadata = ArrayMetadata | GroupMetadata
T = TypeVar("T")
M = TypeVar("M", ArrayMetadata, GroupMetadata)


async def on_store(make: Callable[[], Coroutine[Any, Any, T]], *stores: Store) -> T:
    """Run what a public call does where its stores' work belongs: on a worker thread, or right here."""
    if all(store.blocking for store in stores):
        return await in_worker(make)
    return await make()


@dataclass(frozen=True)
class Node:
    """A place in a store.

    Attributes:
        store: The store.
        path: The path inside it, without slashes at its ends.
        format: The format spoken there.
        config: The settings that held when it was opened.
    """

    store: Store
    path: str
    format: Format
    config: config.Config

    @property
    def name(self) -> str:
        """The path with a leading slash, as Zarr writes it."""
        return f"/{self.path}"

    @property
    def basename(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def at(self, path: str) -> Node:
        """The place at another path of the same store."""
        return replace(self, path=path)

    def child(self, name: str) -> Node:
        """The place below this one.

        Raises:
            InvalidKeyError: If the name is empty, which would be this place itself.
        """
        below = normalize_path(name)
        if not below:
            raise InvalidKeyError(f"{name!r} names no member of {self.name}", key=name)
        return self.at(join(self.path, below))

    def chunk_store(self) -> Store:
        """The store of this array's chunks, with keys relative to the array."""
        prefix = self.format.chunk_prefix(self.path)
        return PrefixStore(self.store, prefix) if prefix else self.store

    # -------------------------------------------------------------- IO

    async def load(self) -> Metadata:
        """The metadata that is stored here.

        Raises:
            NodeNotFoundError: If there is none.
            MetadataError: If it is wrong.
        """
        _, metadata = await find(self.store, self.path, (self.format,), self.config)
        return metadata

    def lock(self) -> KeyLock:
        """The process-wide lock on this node's metadata."""
        return self.store.lock(self.format.document_keys(self.path)[0])

    async def change(self, kind: type[M], change: Callable[[M], Awaitable[M]]) -> M:
        """Read the metadata, change it, and store what is then different, under the node's lock.

        Args:
            kind: What the node must be.
            change: Makes new metadata of the present one.

        Returns:
            The new metadata.

        Raises:
            NodeTypeError: If the node has become another kind.
        """
        async with self.lock():
            present = await self.load()
            if not isinstance(present, kind):
                raise self.other_kind(present)
            target = await change(present)
            documents = self.format.render(self.path, target)
            known: Mapping[str, Any] = present.source.documents if present.source is not None else {}
            parsed = {key: json.loads(data) for key, data in documents.items()}
            changed = [key for key in documents if known.get(key) != parsed[key]]
            await gather([_put(self.store, key, documents[key]) for key in changed], self.store)
            return replace(target, source=Source(self.format.zarr_format, parsed))

    def other_kind(self, found: Metadata) -> NodeTypeError:
        """The error for a node that is not what it was."""
        names = ("array", "group") if isinstance(found, ArrayMetadata) else ("group", "array")
        return NodeTypeError(
            f"{self.name} is {'an' if names[0] == 'array' else 'a'} {names[0]} now",
            path=self.path,
            found=names[0],
            wanted=names[1],
        )

    async def create(self, metadata: Metadata, *, overwrite: bool = False, parents: bool = True) -> None:
        """Store a new node here, and the groups above it that are missing.

        Raises:
            NodeExistsError: If a node exists here and is not to be overwritten.
            NodeTypeError: If an array stands where a group above is needed.
            UnsupportedByFormat: If the format can not say it; nothing is written then.
        """
        self.format.check_path(self.path)
        documents = self.format.render(self.path, metadata)
        above = [self.path.rpartition("/")[0]] if parents and self.path else []
        while above and above[-1]:
            above.append(above[-1].rpartition("/")[0])
        found = await find_all(self.store, [self.path, *above], CANDIDATES, self.config, strict=False)
        if found[0] is not None and not overwrite:
            kind = "an array" if isinstance(found[0][1], ArrayMetadata) else "a group"
            raise NodeExistsError(
                f"{kind} exists at {self.name} in {self.store!r}; pass overwrite=True to replace it",
                path=self.path,
                store=repr(self.store),
            )
        for path, node in zip(above, found[1:], strict=True):
            if node is None:
                documents.update(self.format.render(path, GroupMetadata()))
            elif isinstance(node[1], ArrayMetadata):
                raise NodeTypeError(
                    f"{self.name} can not be created: there is an array at /{path}",
                    path=path,
                    found="array",
                    wanted="group",
                )
        if overwrite:
            await self.erase()
        await gather([_put(self.store, key, data) for key, data in documents.items()], self.store)

    async def erase(self) -> None:
        """Erase this node and everything below it."""
        for prefix in self.format.erase_prefixes(self.path):
            await self.store.erase_prefix(prefix)

    async def children(self) -> tuple[str, ...]:
        """The names of what may be child nodes, from one listing."""
        listing = await self.store.list_dir(self.format.listing_prefix(self.path))
        return self.format.children(self.path, listing.keys, listing.prefixes)


async def _put(store: Store, key: str, data: bytes) -> None:
    await store.put(key, data)


async def gather(work: Sequence[Coroutine[Any, Any, T]], store: Store) -> list[T]:
    """Await coroutines side by side where the store allows it, one after the other where it blocks."""
    if store.blocking or len(work) < 2:
        pending = iter(work)
        try:
            return [await one for one in pending]
        finally:
            for one in pending:  # after a failure
                one.close()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    return [task.result() for task in tasks]


async def find_all(
    store: Store, paths: Iterable[str], candidates: Sequence[Format], settings: config.Config, *, strict: bool = True
) -> list[tuple[Format, Metadata] | None]:
    """The nodes at several paths, with one batch of requests.

    Args:
        store: The store.
        paths: The paths.
        candidates: The formats whose documents to ask for.
        settings: For the cap on the size of documents.
        strict: Whether documents that do not parse are an error; otherwise they count as a group.
    """
    paths = list(paths)
    keys = [[key for candidate in candidates for key in candidate.document_keys(path)] for path in paths]
    values = iter(await store.fetch([Request(key) for own in keys for key in own]))
    found: list[tuple[Format, Metadata] | None] = []
    for path, own in zip(paths, keys, strict=True):
        documents = {}
        for key in own:
            value = next(values)
            if value is not None and len(value.data) > settings.max_document_bytes:
                raise MetadataError(
                    f"{key}: the document has {len(value.data):,} bytes, "
                    f"config.max_document_bytes is {settings.max_document_bytes:,}"
                )
            documents[key] = None if value is None else bytes(value.data)
        try:
            if len(candidates) == 1:
                node = candidates[0].parse(path, documents)
                found.append(None if node is None else (candidates[0], node))
            else:
                found.append(formats.detect(path, documents))
        except MetadataError:
            if strict:
                raise
            found.append((candidates[0], GroupMetadata()))
    return found


async def why_absent(node: Node) -> str:
    """What can be said of a place where no node was found, for the message; nothing, if looking around fails."""
    try:
        return await _look_around(node)
    except (OSError, MetadataError):
        return ""


async def _look_around(node: Node) -> str:
    above = node.path
    paths = [node.path]
    while above:
        above = above.rpartition("/")[0]
        paths.append(above)
    found = await find_all(node.store, paths, CANDIDATES, node.config, strict=False)
    if found[0] is not None:
        return f"there is a node of Zarr format {found[0][0].zarr_format}"
    for path, one in zip(paths[1:], found[1:], strict=True):
        if one is not None:
            kind = "an array, which has no members" if isinstance(one[1], ArrayMetadata) else "a group"
            return f"/{path} is {kind}"
    return node.store.describe(node.path)


async def find(
    store: Store, path: str, candidates: Sequence[Format], settings: config.Config
) -> tuple[Format, Metadata]:
    """The node at a path.

    Raises:
        NodeNotFoundError: If there is none; says which keys were looked up.
        MetadataError: If its documents are wrong.
    """
    (found,) = await find_all(store, [path], candidates, settings)
    if found is None:
        tried = [key for candidate in candidates for key in candidate.document_keys(path)]
        what = " or ".join(str(candidate.zarr_format) for candidate in candidates)
        raise NodeNotFoundError(
            f"no array or group of Zarr format {what} at {'/' + path} in {store!r}; looked for {', '.join(tried)}",
            path=path,
            store=repr(store),
            tried=tried,
        )
    return found
