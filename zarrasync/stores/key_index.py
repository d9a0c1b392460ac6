"""Keys in order, so that those below a prefix are found without looking at the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from zarrasync.stores.values import Listing

__all__ = ["KeyIndex"]

_AFTER_SLASH = chr(ord("/") + 1)


class KeyIndex:
    """A snapshot of keys that answers listings in time proportional to their length.

    Args:
        keys: The keys, in any order.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = sorted(keys)

    def __contains__(self, key: object) -> bool:
        position = bisect_left(self._keys, str(key))
        return position < len(self._keys) and self._keys[position] == key

    def list_prefix(self, prefix: str) -> list[str]:
        """Return the keys that start with a prefix, which is empty or ends with ``/``, in order."""
        start, stop = self._range(prefix)
        return self._keys[start:stop]

    def list_dir(self, prefix: str) -> Listing:
        """Return the keys and prefixes directly below a prefix, as ``Store.list_dir`` does."""
        position, stop = self._range(prefix)
        keys, prefixes = [], []
        while position < stop:
            key = self._keys[position]
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                prefixes.append(f"{prefix}{name}/")
                position = bisect_left(self._keys, f"{prefix}{name}{_AFTER_SLASH}", position, stop)
            else:
                keys.append(key)
                position += 1
        return Listing(tuple(keys), tuple(prefixes))

    def _range(self, prefix: str) -> tuple[int, int]:
        """Return the positions of the first key below a prefix and of the first key after it."""
        if not prefix:
            return 0, len(self._keys)
        start = bisect_left(self._keys, prefix)
        return start, bisect_left(self._keys, prefix[:-1] + _AFTER_SLASH, start)
