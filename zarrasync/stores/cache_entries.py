"""Entries of a cache in memory: values and byte ranges, limited in size and age. The least recently used ones are removed first."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, TypeAlias

from zarrasync._concurrency import clock
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.values import Request, Value, clip

__all__ = ["CacheEntries", "Entry", "Part"]

Part: TypeAlias = tuple[str, int, int | None, bool]
"""Key, start, length and suffix of a request."""

_OVERHEAD = 256
"""Size of an entry without its value, in bytes."""
_REMEMBERED, _MOST_HASHES = 1 << 18, 1 << 14
"""Entries up to this size are recognized after they were removed, as documents are, and so many of them."""


class Entry(NamedTuple):
    """A cached result.

    Attributes:
        value: The value or byte range; ``None`` if the key was absent.
        time: When it was fetched, in seconds of the monotonic clock.
        versioned: Whether its version was requested.
    """

    value: Value | None
    time: float
    versioned: bool

    @property
    def nbytes(self) -> int:
        return _OVERHEAD + (0 if self.value is None else len(self.value.data))


class CacheEntries:
    """Cached results by request. Not thread-safe.

    Args:
        max_bytes: Maximum total size, in bytes.
        max_age: Maximum age in seconds; ``None`` for no limit.

    Attributes:
        nbytes: Current total size, in bytes.
    """

    def __init__(self, max_bytes: int, max_age: float | None) -> None:
        self._max_bytes, self._max_age = max_bytes, max_age
        self._entries: OrderedDict[Part, Entry] = OrderedDict()
        self._hashes: OrderedDict[Part, int] = OrderedDict()  # of the data of results that were removed for others
        self._versions: dict[str, tuple[object, set[Part]]] = {}  # for each key, the version of its entries and these
        self.nbytes = 0

    def find(self, request: Request, *, versions: bool) -> Entry | None:
        """Return the result of a request, from its own entry or from the entry for the whole value."""
        own_part: Part = request[:4]
        for part in dict.fromkeys((own_part, (request.key, 0, None, False))):
            entry = self._entries.get(part)
            if entry is None or (versions and not entry.versioned):
                continue
            if self._max_age is not None and clock.monotonic() - entry.time > self._max_age:
                continue  # kept for a comparison with the result that replaces it
            self._entries.move_to_end(part)
            if part == own_part or entry.value is None:
                return entry
            return entry._replace(value=entry.value._replace(data=clip(entry.value.data, request)))
        return None

    def add(self, request: Request, entry: Entry) -> bool:
        """Add a result; return whether another one was cached before.

        Then older results below its directory are removed: readers of a new metadata document would combine it with old
        chunks, which do not contain appended rows.
        """
        part: Part = request[:4]
        key, version = request.key, None if entry.value is None else entry.value.version
        if is_other := self._is_other(part, entry):
            for older in self.keys_below(key[: key.rfind("/") + 1]):
                self.remove_key(older)
        if key in self._versions and self._versions[key][0] != version:
            self.remove_key(key)
        self._remove(part)
        if entry.nbytes > self._max_bytes:
            return is_other
        self._entries[part] = entry
        self._versions.setdefault(key, (version, set()))[1].add(part)
        self.nbytes += entry.nbytes
        while self.nbytes > self._max_bytes:
            oldest, removed = next(iter(self._entries.items()))
            if removed.nbytes <= _REMEMBERED:
                self._hashes[oldest] = hash(_data(removed))
            if len(self._hashes) > _MOST_HASHES:
                self._hashes.popitem(last=False)
            self._remove(oldest)
        return is_other

    def _is_other(self, part: Part, entry: Entry) -> bool:
        """Return whether a result differs from the one that was cached before, if there was one."""
        former, former_hash = self._entries.get(part), self._hashes.pop(part, None)
        if former is not None:
            return _data(former) != _data(entry)
        return former_hash is not None and former_hash != hash(_data(entry))

    def remove_key(self, key: str) -> None:
        """Remove all entries of a key."""
        for part in tuple(self._versions[key][1]) if key in self._versions else ():
            self._remove(part)

    def keys_below(self, prefix: str) -> list[str]:
        """Return the keys with entries that begin with a prefix."""
        return [key for key in self._versions if key.startswith(prefix)]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._versions.clear()
        self.nbytes = 0

    def _remove(self, part: Part) -> None:
        entry = self._entries.pop(part, None)
        if entry is None:
            return
        self.nbytes -= entry.nbytes
        _, parts = self._versions[part[0]]
        parts.discard(part)
        if not parts:
            del self._versions[part[0]]


def _data(entry: Entry) -> Buffer | None:
    return None if entry.value is None else entry.value.data
