"""Indexes of shards that were read before, each with the version of the shard it belongs to.

A cached index is used only together with bytes fetched from the shard afterwards. If their version differs from the
index's, the shard was replaced. Detecting this takes no extra request.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from zarrasync._concurrency.fork import thread_lock

__all__ = ["CachedIndex", "ShardIndexCache"]


class CachedIndex(NamedTuple):
    """A shard's encoded index.

    Attributes:
        data: The index as it is stored.
        version: The version of the shard.
        size: The size of the shard in bytes, if known.
    """

    data: bytes
    version: object
    size: int | None


class ShardIndexCache:
    """Indexes by key. The least recently used ones are removed first.

    Args:
        capacity: Bytes of indexes to keep.
    """

    def __init__(self, capacity: int = 8 << 20) -> None:
        self._indexes: OrderedDict[str, CachedIndex] = OrderedDict()
        self._room = capacity
        self._lock = thread_lock()

    def get(self, key: str) -> CachedIndex | None:
        """Return the index of a shard, if it is cached."""
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                self._indexes.move_to_end(key)
            return index

    def put(self, key: str, index: CachedIndex) -> None:
        """Cache the index of a shard."""
        with self._lock:
            self._remove(key)
            self._indexes[key] = index
            self._room -= len(index.data)
            while self._room < 0:
                _, evicted = self._indexes.popitem(last=False)
                self._room += len(evicted.data)

    def drop(self, key: str) -> None:
        """Forget the index of a shard."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: str) -> None:
        index = self._indexes.pop(key, None)
        self._room += len(index.data) if index is not None else 0
