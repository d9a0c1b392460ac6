"""What arrays and groups have in common as objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from zarrasync.config import Config
from zarrasync.display.info import Info
from zarrasync.metadata.create import attributes_of
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Store

__all__ = ["AsyncNode"]

M = TypeVar("M", ArrayMetadata, GroupMetadata)


class AsyncNode(ABC, Generic[M]):
    """An array or a group: a place in a store, and the metadata that was found there."""

    _kind: ClassVar[Any]

    def __init__(self, node: NodeHandle, metadata: M) -> None:
        self._handle = node
        self._metadata: M = metadata  # the one mutable cell

    @property
    def store(self) -> Store:
        """The store it lies in."""
        return self._handle.store

    @property
    def path(self) -> str:
        """Its path in the store, without slashes at the ends."""
        return self._handle.path

    @property
    def name(self) -> str:
        """Its path with a leading slash."""
        return self._handle.name

    @property
    def basename(self) -> str:
        """The last part of its path."""
        return self._handle.basename

    @property
    def config(self) -> Config:
        """The settings that held when it was opened."""
        return self._handle.config

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes, to look at; change them with ``update_attributes``."""
        return self._metadata.attributes

    @property
    def read_only(self) -> bool:
        """Whether it was opened for reading, or its store can not be written to."""
        return not self.store.writeable

    @property
    def zarr_format(self) -> int | str:
        """The format it is stored in."""
        return self._handle.format.zarr_format

    @property
    @abstractmethod
    def info(self) -> Info:
        """What is known of it without reading, for people."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_handle": self._portable(), "_metadata": self._metadata}  # what else there is can be made again

    def _portable(self) -> NodeHandle:
        """The node as it is sent to other processes."""
        return self._handle

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other._handle, other._metadata) == (self._handle, self._metadata)

    __hash__ = None  # type: ignore[assignment]  # its metadata changes

    # -------------------------------------------------------------- changing

    async def _change(
        self, change: Callable[[M], Awaitable[M]], *, fresh: bool = False, stored: Callable[[], None] | None = None
    ) -> None:
        """Change the metadata; ``fresh``: of what is stored now, not of what is held here if nobody has changed that."""
        self._metadata = await self._handle.change(self._kind, change, None if fresh else self._metadata, stored)

    async def update_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes; others stay as they are.

        Raises:
            MetadataError: If a value can not be written as JSON.
            ReadOnlyError: If the node was opened for reading.
        """
        await self._set_attributes(attributes, keep=True)

    async def _set_attributes(self, attributes: Mapping[str, Any], *, keep: bool = False) -> None:
        given = attributes_of(attributes)

        async def change(present: M) -> M:
            return replace(present, attributes={**(present.attributes if keep else {}), **given})

        await run_on_store(partial(self._change, change), self.store)

    async def refresh(self) -> None:
        """Read the metadata again: another writer may have resized an array or changed the attributes.

        Raises:
            NodeNotFoundError: If the node is gone.
            NodeTypeError: If one of the other kind stands there now.
        """
        found: Any = await run_on_store(self._handle.load, self.store)
        if not isinstance(found, self._kind):
            raise self._handle.other_kind(found)
        self._metadata = found

    # -------------------------------------------------------------- closing

    async def close(self) -> None:
        """Let go of the store's connections."""
        await run_on_store(self.store.close, self.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
