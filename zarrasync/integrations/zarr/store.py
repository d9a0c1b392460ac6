"""Stores of zarrasync for zarr-python and libraries that use it: ``dataset.to_zarr(zarr_store("s3://…"))``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.errors import ConditionsUnsupported, WriteConflictError
from zarrasync.stores import ABSENT, ReadOnlyStore, Request, StoreLike, Value, resolve
from zarrasync.stores import Store as Inner
from zarrasync.stores.changes import count_change, count_stored

T = TypeVar("T")


def zarr_store(
    store: StoreLike, *, read_only: bool = False, storage_options: Mapping[str, Any] | None = None
) -> ZarrStore:
    """Return a store for zarr-python.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        read_only: Whether to reject writes.
        storage_options: Options for the filesystem of a URL.
    """
    return ZarrStore(resolve(store, storage_options), read_only=read_only)


class ZarrStore(Store):
    """A store of zarrasync with the interface of zarr-python.

    The inner store provides retries, limits and caches.

    Args:
        inner: The store.
        read_only: Whether writes are refused.
    """

    supports_partial_writes = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]  # as in zarr
    supports_deletes = True  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]  # as in zarr

    def __init__(self, inner: Inner, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only or not inner.writeable)
        self.inner = ReadOnlyStore(inner) if read_only else inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrStore) and other.inner == self.inner and other.read_only == self.read_only

    def __hash__(self) -> int:
        return hash(self.inner)

    def __repr__(self) -> str:
        return f"ZarrStore({self.inner!r})"

    def with_read_only(self, read_only: bool = False) -> ZarrStore:
        """Return the same store with another access."""
        return ZarrStore(self.inner.inner if isinstance(self.inner, ReadOnlyStore) else self.inner, read_only=read_only)

    @property
    def supports_writes(self) -> bool:
        return self.inner.writeable

    @property
    def supports_listing(self) -> bool:
        return self.inner.listable

    @property
    def supports_consolidated_metadata(self) -> bool:
        return self.inner.supports_consolidated_metadata

    async def _change(self, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._run(make)
        finally:
            count_stored(self.inner, key)

    async def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (run_in_worker(make) if self.inner.blocking else make())

    # -------------------------------------------------------------- reading

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        (value,) = await self.get_partial_values(_prototype(prototype), [(key, byte_range)])
        return value

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        requests = [_request(key, byte_range) for key, byte_range in key_ranges]
        if not requests:
            return []
        values: builtins.list[Value | None] = await self._run(partial(self.inner.fetch, requests))
        return [None if value is None else prototype.buffer.from_bytes(value.data) for value in values]  # type: ignore[arg-type]  # it accepts any buffer

    async def exists(self, key: str) -> bool:
        return await self._run(partial(self.inner.exists, key))

    # -------------------------------------------------------------- writing

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await self._change(key, partial(self.inner.put, key, value.as_numpy_array().tobytes()))

    async def set_partial_values(self, key_start_values: Iterable[Any]) -> None:
        raise NotImplementedError("values are stored as a whole")  # zarr-python before 3.1.2 declares this method

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        if self.inner.conditional:
            try:
                put = partial(self.inner.put, key, value.as_numpy_array().tobytes(), if_version=ABSENT)
                await self._change(key, put)
                return
            except WriteConflictError:
                return  # another writer was faster
            except ConditionsUnsupported:
                if self.inner.conditional:
                    raise
        await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        self._check_writable()
        await self._change(key, partial(self.inner.erase, key))

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        try:
            await self._run(partial(self.inner.erase_prefix, _directory(prefix)))
        finally:
            count_change(self.inner, prefix.strip("/"), below=True)

    async def clear(self) -> None:
        await self.delete_dir("")

    # -------------------------------------------------------------- synchronous access, for the fused codec pipeline

    @property
    def _supports_sync_io(self) -> bool:
        """Whether zarr-python may call the synchronous methods: values are near, and no event loop is necessary."""
        return self.inner.blocking and self.inner.is_local

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        (value,) = drive(self.inner.fetch([_request(key, byte_range)]))
        return None if value is None else _prototype(prototype).buffer.from_bytes(value.data)  # type: ignore[arg-type]  # it accepts any buffer

    def set_sync(self, key: str, value: Buffer) -> None:
        self._check_writable()
        drive(self.inner.put(key, value.as_numpy_array().tobytes()))
        count_stored(self.inner, key)

    def delete_sync(self, key: str) -> None:
        self._check_writable()
        drive(self.inner.erase(key))
        count_stored(self.inner, key)

    # -------------------------------------------------------------- listing

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        # In zarr-python a prefix may end within a name, and "/" is the root.
        prefix = prefix.lstrip("/")
        for key in await self._run(partial(self.inner.list_prefix, prefix[: prefix.rfind("/") + 1])):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        directory = _directory(prefix)
        listing = await self._run(partial(self.inner.list_dir, directory))
        for name in (*listing.keys, *listing.prefixes):
            yield name[len(directory) :].rstrip("/")


def _directory(prefix: str) -> str:
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def _prototype(prototype: BufferPrototype | None) -> BufferPrototype:
    if prototype is not None:
        return prototype
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype()


def _request(key: str, byte_range: ByteRequest | None) -> Request:
    """Return a request for a byte range of zarr-python."""
    if byte_range is None:
        return Request(key)
    if isinstance(byte_range, RangeByteRequest):
        return Request(key, byte_range.start, byte_range.end - byte_range.start)
    if isinstance(byte_range, OffsetByteRequest):
        return Request(key, byte_range.offset)
    if isinstance(byte_range, SuffixByteRequest):
        return Request(key, 0, byte_range.suffix, True)
    raise TypeError(f"{byte_range!r} is not a byte range")
