"""Node handles: the location and the format of an array or a group, their stored chunks, and methods that integrations register."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from zarrasync import config, formats
from zarrasync._concurrency import bridge
from zarrasync._concurrency.offload import compute, run_in_new_thread, run_in_worker
from zarrasync._util import plugins
from zarrasync.codecs.spec import Array
from zarrasync.errors import InvalidKeyError, MetadataError, NodeExistsError, NodeNotFoundError
from zarrasync.formats import Format
from zarrasync.indexing.chunk_runs import split_chunks
from zarrasync.indexing.transform import Transform
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.fill_values import is_fill
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.documents import fetch_documents
from zarrasync.stores import PrefixStore, Store
from zarrasync.stores.values import KeyIndex, Request
from zarrasync.stores.wrappers import AliasStore, ListedStore
from zarrasync.transfer import Chunks

JOB_FOLDER = ".ingest"
"""The folder next to a node in which jobs keep their state while they run."""

T = TypeVar("T")


async def run_on_store(make: Callable[[], Coroutine[Any, Any, T]], *stores: Store) -> T:
    """Run a coroutine on a worker thread if all its stores are blocking, otherwise in the current task."""
    if all(store.blocking for store in stores):
        return await run_in_worker(make)
    return await make()


def run_blocking(store: Store, call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that uses a store, and wait for it: on this thread if the store is blocking, else on an event loop."""
    return bridge.run(call, blocking=store.blocking)


@dataclass(frozen=True)
class NodeHandle:
    """The location, format and settings of a node, which need not exist.

    Attributes:
        store: The store.
        path: The path of the node in the store, without leading and trailing slashes.
        format: The Zarr format.
        config: The settings that applied when the node was opened.
        is_format_known: Whether the store is known to use the format. Otherwise the format is an assumption.
        ancestor_group: The path of a group above the node that is known to exist, or ``None``.
        consolidated: The consolidated metadata of this group or a group above it, or ``None``.
        keeps_copies: Whether changes update the copies in groups above. Otherwise the caller does it.
    """

    store: Store
    path: str
    format: Format
    config: config.Config
    is_format_known: bool = field(default=False, compare=False)
    ancestor_group: str | None = field(default=None, compare=False, repr=False)
    consolidated: Consolidated | None = field(default=None, compare=False, repr=False)
    keeps_copies: bool = field(default=True, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The path with a leading slash, as in the Zarr specifications."""
        return f"/{self.path}"

    @property
    def place(self) -> str:
        """The name and the store, for messages."""
        return f"{self.name} in {self.store!r}"

    @property
    def basename(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def document_key(self) -> str:
        """The key of the node's first metadata document, which identifies the node in locks."""
        return self.format.document_keys(self.path)[0]

    def at(self, path: str) -> NodeHandle:
        """Return the handle of another path in the same store."""
        return self._at(path, self.ancestor_group)

    def _at(self, path: str, ancestor_group: str | None) -> NodeHandle:
        # replace() takes several times as long, which matters where groups have many members.
        known, copies = self.is_format_known, self.consolidated
        return NodeHandle(self.store, path, self.format, self.config, known, ancestor_group, copies, self.keeps_copies)

    def child(self, name: str) -> NodeHandle:
        """Return the handle of a member of this group, or of a node further below.

        Args:
            name: The member's name or relative path.

        Raises:
            InvalidKeyError: If the name is empty.
        """
        relative_path = normalize_path(name)
        if not relative_path:
            raise InvalidKeyError(f"{name!r} is not the name of a member of {self.name}", key=name)
        return self.below(relative_path)

    def below(self, relative_path: str) -> NodeHandle:
        """Return the handle of a node below this group for a normalized path, as in listings."""
        return self._at(join(self.path, relative_path), self.path)

    def without_consolidated(self) -> NodeHandle:
        """Return a handle that reads and writes the original documents. The caller updates the copies of changed ones."""
        return replace(self, consolidated=None, keeps_copies=False) if self.keeps_copies else self

    def exists_error(self, message: str) -> NodeExistsError:
        """Return the error for a node that exists at this place, or would be in the way of a node at this place."""
        return NodeExistsError(message, path=self.path, store=repr(self.store))

    def not_found_error(self, message: str, tried: Sequence[str] = ()) -> NodeNotFoundError:
        """Return the error for a node that does not exist at this place."""
        return NodeNotFoundError(message, path=self.path, store=repr(self.store), tried=tried)

    def chunk_store(self, metadata: ArrayMetadata) -> Store:
        """Return the store of an array's chunks, with keys relative to the array."""
        aliases = self.format.chunk_aliases(self.path, metadata)
        store = AliasStore(self.store, aliases) if aliases else self.store
        prefix = self.format.chunk_prefix(self.path)
        store = PrefixStore(store, prefix) if prefix else store
        for transformer in reversed(metadata.transformers):
            store = transformer.wrap(store)
        return store

    def lock(self) -> AbstractAsyncContextManager[object, None]:
        """Return the lock on the node's metadata."""
        return self.store.lock(self.document_key)

    # -------------------------------------------------------------- IO

    async def bind(self) -> NodeHandle:
        """Return a handle with the format that the store's entry point document specifies, if the format has one.

        Raises:
            MetadataError: If the store uses another format.
        """
        if self.format.unread_entry_point is None:
            return self
        (value,) = await fetch_documents(self.store, [self.format.unread_entry_point], self.config)
        stored_format = self.format if value is None else formats.parse_entry_point(bytes(value.data))
        if stored_format is None or not stored_format.is_same(self.format):
            other = stored_format and f"the entry point of {stored_format.zarr_format!r}"
            raise MetadataError(
                f"{self.format.unread_entry_point} is {other or 'a node of Zarr format 3'}, not the entry point of {self.format.zarr_format!r}"
            )
        return replace(self, format=stored_format)

    async def with_listing(self) -> NodeHandle:
        """Return a handle for this node and all nodes below it that lists a store without directories only once.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        if self.consolidated is not None or not self.store.flat_namespace:
            return self
        return replace(self, store=ListedStore(self.store, KeyIndex(await self.list_keys())))

    async def list_keys(self) -> list[str]:
        """Return all keys at and below the prefixes of this node.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        listed = [await self.store.list_prefix(prefix) for prefix in self.format.erase_prefixes(self.path)]
        return [key for keys in listed for key in keys]

    async def children(self, max_depth: int | None = 0) -> dict[str, bool]:
        """Return the paths of possible nodes below this group, from one listing.

        Args:
            max_depth: The number of levels of groups to descend into, in formats whose listing shows all levels at once.

        Returns:
            For each path relative to this group, whether the node is a group even without a document.

        Raises:
            UnsupportedOperation: If the store cannot list.
        """
        prefix = self.format.listing_prefix(self.path)
        # A directory is a group without a document only if nodes exist below it. Files leave empty directories.
        if self.format.separates_metadata and (max_depth != 0 or self.store.blocking):
            return await self._descendants(prefix, max_depth)
        if self.consolidated is not None:
            listing = self.consolidated.keys.list_dir(prefix)
            return self.format.children(self.path, listing.keys, listing.prefixes)
        listing = await self.store.list_dir(prefix)
        found = [inner for inner in listing.prefixes if inner != f"{prefix}{JOB_FOLDER}/"]
        prefixes = [inner for inner in found if not await self._holds_only_copies(inner)]
        return self.format.children(self.path, listing.keys, prefixes)

    async def _descendants(self, prefix: str, max_depth: int | None) -> dict[str, bool]:
        copies = self.consolidated
        keys = await self.store.list_prefix(prefix) if copies is None else copies.keys.list_prefix(prefix)
        nodes = self.format.children(self.path, keys, ())
        return {path: implicit for path, implicit in nodes.items() if max_depth is None or path.count("/") <= max_depth}

    async def _holds_only_copies(self, prefix: str) -> bool:
        """Return whether a prefix contains only the group's consolidated metadata, which is not a node."""
        copies = self.format.consolidated_key(self.path)
        if copies is None or not copies.startswith(prefix):
            return False
        listing = await self.store.list_dir(prefix)
        return listing.keys == (copies,) and not listing.prefixes


# ------------------------------------------------------------------ methods of integrations


async def call_method(target: Any, kind: str, name: str, extra: str, options: Mapping[str, Any]) -> Any:
    """Call a function that an integration has registered as a method, on a thread because it blocks.

    Args:
        target: The node or the selection.
        kind: Its kind, with which the name of the entry point begins.
        name: The name of the method.
        extra: The extra that installs its requirements.
        options: Its arguments.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        function = await compute(partial(plugins.find, plugins.METHODS, f"{kind}_{name}"))
    except ImportError as error:
        raise ImportError(f"{name}() cannot be imported: {error}; pip install 'zarrasync[{extra}]'") from error
    if function is None:
        raise ImportError(
            f"no installed package provides {name}(); install it again with pip install 'zarrasync[{extra}]'"
        )
    call = partial(function, target, **options)
    return await run_in_new_thread(call)


# ------------------------------------------------------------------ stored chunks


async def stored_coords(chunks: Chunks) -> set[tuple[int, ...]]:
    """Return the grid coordinates of all stored values, including those outside the array's shape.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    store, metadata = chunks.store, chunks.metadata
    keys = await run_on_store(partial(store.list_prefix, ""), store)
    return {coords for key in keys if (coords := metadata.keys.decode(key, metadata.ndim)) is not None}


async def stored_sizes(chunks: Chunks) -> dict[tuple[int, ...], int]:
    """Return the encoded sizes in bytes of the stored values inside the array's shape, by their grid coordinates.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    store, metadata = chunks.store, chunks.metadata
    listed = await run_on_store(partial(store.list_sizes, ""), store)
    decoded = ((metadata.keys.decode(key, metadata.ndim), size) for key, size in listed.items())
    return {coords: size for coords, size in decoded if coords is not None and coords in metadata.grid}


async def check_separator(chunks: Chunks, transform: Transform, result: Array) -> None:
    """Warn if the first read of an array gave only fill values because its keys have the other separator.

    Another value proves the separator. Otherwise, the key of the first chunk with the other separator is requested.

    Args:
        chunks: The array's chunks.
        transform: The selection that was read.
        result: The values.
    """
    chunks.unproven.clear()
    metadata = chunks.metadata
    spec = metadata.chain.spec
    if not result.size or not is_fill(result, spec.fill_value if result.dtype.kind in "TO" else spec.scalar):
        return
    first = split_chunks(transform.layout.projection(), metadata.grid)[0]
    key = metadata.keys.with_other_separator().encode(first.coords)
    (value,) = await run_on_store(partial(chunks.store.fetch, [Request(key, 0, 1)]), chunks.store)
    if value is not None:
        warnings.warn(
            f"{chunks.name} reads as fill values: its metadata does not contain the separator of chunk keys, which implies "
            f"{metadata.keys.separator!r}, but the key {chunks.full_key(key)!r} exists; add the separator '/' to the "
            "array's metadata document",
            stacklevel=2,
        )
