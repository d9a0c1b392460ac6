"""zarr-python's codec pipeline, which reads and writes batches of chunks with the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import StorePath

from zarrasync import config
from zarrasync.codecs.spec import Array
from zarrasync.errors import StoreError
from zarrasync.integrations.zarr.byte_getters import direct_store, getters_store
from zarrasync.integrations.zarr.chains import ChunkKind, kind_of
from zarrasync.integrations.zarr.engine import ListedChunks, read_listed, write_listed
from zarrasync.integrations.zarr.selections import Translation, translate
from zarrasync.integrations.zarr.store import ZarrStore
from zarrasync.stores import Store
from zarrasync.transfer.chunks import ShardIndexCache

BatchItem: TypeAlias = tuple[Any, ArraySpec, Any, Any, bool]
"""A byte getter or setter, the chunk's spec, the selections in the chunk and in the output, and whether the former has
all elements."""

_MOST_KINDS = 256
"""Kinds of chunks that are kept. Only arrays with chunks of many shapes have more than a few."""


class _Memory:
    """What a pipeline keeps from call to call. Copies in other processes begin without it.

    Attributes:
        kinds: The kinds of chunks by their specs; ``None`` for those that are left to zarr-python.
    """

    def __init__(self) -> None:
        self.kinds: dict[Any, ChunkKind | None] = {}
        self._last: tuple[object, object, Store, ShardIndexCache] | None = None

    def __reduce__(self) -> tuple[type[_Memory], tuple[()]]:
        return _Memory, ()

    def direct_store(self, owner: Any) -> tuple[Store | None, ShardIndexCache]:
        """Return the store of this library over a store of zarr-python, if there is one, and indexes of its shards."""
        last = self._last  # read once, because other threads may replace it
        root = getattr(owner, "root", None)  # which LocalStore.move replaces
        if last is None or last[0] is not owner or last[1] != root:
            store = direct_store(owner)
            if store is None:
                return None, ShardIndexCache()
            last = self._last = (owner, root, store, ShardIndexCache())
        return last[2:]


class _Group(NamedTuple):
    """Chunks of one shape that are read or written together.

    Attributes:
        numbers: Their positions in the batch.
        chunks: The chunks.
        translation: Their selections.
        array: The output, or the values to write.
    """

    numbers: list[int]
    chunks: ListedChunks
    translation: Translation
    array: Array


@dataclass(frozen=True)
class CodecPipeline(BatchedCodecPipeline):
    """A codec pipeline for zarr-python that reads and writes with zarrasync's engine and codecs.

    Chunks are decoded into the output by several threads. Parts of shards are read as byte ranges, and inner chunks
    that are not touched keep their bytes when a part of a shard is written. What this library does not do in exactly
    the same way is left to zarr-python's default pipeline: codecs of other packages, buffers on a GPU.

    Example:
        >>> zarr.config.set({"codec_pipeline.path": "zarrasync.integrations.zarr.CodecPipeline"})
    """

    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    # -------------------------------------------------------------- batches of chunks in a store

    async def read(  # before zarr-python 3.2, it returns None
        self, batch_info: Iterable[BatchItem], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        batch = list(batch_info)
        groups = self._groups(batch, out, drop_axes, writes=False)
        if groups is None:
            return await super().read(batch, out, drop_axes)  # type: ignore[func-returns-value,unused-ignore]  # before 3.2
        missing = set[int]()
        for group in groups:
            with _errors_of(batch):
                absent = await read_listed(group.chunks, group.translation.runs, group.translation.expand(group.array))
            missing.update(group.numbers[position] for position in absent)
        return tuple({"status": "missing" if number in missing else "present"} for number in range(len(batch)))

    async def write(self, batch_info: Iterable[BatchItem], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        batch = list(batch_info)
        is_refused = bool(batch) and getattr(batch[0][0], "read_only", False)
        groups = None if is_refused else self._groups(batch, value, drop_axes, writes=True)
        if groups is None:
            await super().write(batch, value, drop_axes)
            return
        for group in groups:
            array, runs, translation = group.array, group.translation.runs, group.translation
            values = translation.expand(array) if array.ndim else np.broadcast_to(array, translation.shape)
            if group.chunks.are_shards:
                shape = group.chunks.chain.spec.shape
                # Of a shard at the array's edge, only inner chunks that are touched are stored.
                runs = [run._replace(is_full=run.projection.covers(shape)) for run in runs]
            with _errors_of(batch):
                await write_listed(group.chunks, runs, values)

    def _groups(
        self, batch: list[BatchItem], buffer: NDBuffer, dropped: tuple[int, ...], *, writes: bool
    ) -> list[_Group] | None:
        """Group the items of a batch by the shape of their chunks; ``None`` if the engine does not support them."""
        array: Any = buffer.as_ndarray_like()
        if type(array) is not np.ndarray:
            return None
        numbers: dict[tuple[int, ...], list[int]] = {}
        for number, item in enumerate(batch):
            numbers.setdefault(item[1].shape, []).append(number)
        groups: list[_Group] = []
        for shape, members in numbers.items():
            spec = batch[members[0]][1]
            kind = self._kind(spec)
            view = None if kind is None else kind.view(array, writes=writes)
            items = ((shape, *batch[number][2:]) for number in members)
            translation = None if view is None else translate(items, dropped)
            if kind is None or view is None or translation is None or not translation.suits(view):
                return None
            getters = [batch[number][0] for number in members]
            chunks = self._chunks(getters, kind, spec, view if writes else None)
            groups.append(_Group(members, chunks, translation, view))
        return groups

    def _kind(self, spec: ArraySpec) -> ChunkKind | None:
        kinds = self._memory.kinds
        try:
            return kinds[spec]
        except KeyError:
            if len(kinds) >= _MOST_KINDS:
                kinds.clear()
            kind = kinds[spec] = kind_of(self, spec)
            return kind
        except TypeError:  # a fill value that has no hash, before zarr-python 3.1
            return kind_of(self, spec)

    def _chunks(self, getters: list[Any], kind: ChunkKind, spec: ArraySpec, values: Array | None) -> ListedChunks:
        """Return the engine's view of the chunks behind byte getters."""
        settings, store, indexes = config.get(), None, ShardIndexCache()
        if isinstance(getters[0], StorePath):
            keys = [getter.path for getter in getters]
            store, indexes = self._memory.direct_store(getters[0].store)
        else:
            keys = list(map(str, range(len(getters))))
        if store is None:
            store = getters_store(dict(zip(keys, getters, strict=True)), spec.prototype, values)
            gap = getattr(spec.config, "sharding_coalesce_max_gap_bytes", None)  # settings since zarr-python 3.3
            size = getattr(spec.config, "sharding_coalesce_max_bytes", None)
            settings = _with_ranges(settings, gap, size)
        return ListedChunks(
            store=store,
            metadata=kind.metadata,
            config=_keeping_no_fill(settings),
            indexes=indexes,
            listed=keys,
            bound=kind.chain,
        )


@contextmanager
def _errors_of(batch: list[BatchItem]) -> Iterator[None]:
    """Raise the errors that the store of a batch raises in other pipelines: the system's for zarr-python's stores."""
    try:
        yield
    except StoreError as error:
        if isinstance(getattr(batch[0][0], "store", None), ZarrStore) or error.__cause__ is None:
            raise
        raise error.__cause__ from None


def _keeping_no_fill(settings: config.Config) -> config.Config:
    """Return settings without ``write_empty_chunks``, as zarr-python's setting of this name decides."""
    return replace(settings, write_empty_chunks=False) if settings.write_empty_chunks else settings


@lru_cache(maxsize=16)
def _with_ranges(settings: config.Config, gap: int | None, size: int | None) -> config.Config:
    """Return settings with zarr-python's limits for byte ranges that are fetched together."""
    if gap is None or size is None:
        return settings
    return replace(settings, coalesce_gap=gap, coalesce_size=max(size, 1))
