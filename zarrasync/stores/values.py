"""Requests for values and their results, listings of keys, and an index of sorted keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from zarrasync._util.memory import check_budget
from zarrasync.codecs.spec import Buffer


class Request(NamedTuple):
    """A value to fetch, or a byte range of it.

    Attributes:
        key: The key.
        start: Offset of the first byte.
        length: Number of bytes; ``None`` for all bytes from ``start`` to the end.
        suffix: Whether to fetch the last ``length`` bytes instead.
        out: Memory that the store may read into if the bytes fit. Stores may ignore it.
        limit: The most bytes that the whole value may have. A store that would have to receive or decompress more raises
            ``StoreError``. ``None`` for any number.
    """

    key: str
    start: int = 0
    length: int | None = None
    suffix: bool = False
    out: Buffer | None = None
    limit: int | None = None

    def bounds(self, size: int) -> tuple[int, int]:
        """Return the start and the length of the range in a value of some size."""
        start = max(0, size - (self.length or 0)) if self.suffix else min(self.start, size)
        return start, size - start if self.length is None else min(self.length, size - start)

    def check_size(self, nbytes: int) -> None:
        """Check the size of a value before memory is allocated for it.

        Args:
            nbytes: The number of bytes.
            at_least: Whether more may follow.

        Raises:
            BudgetExceeded: If it is over the limit.
        """
        if self.limit is not None:
            check_budget(self.limit, nbytes, what="value")


class Value(NamedTuple):
    """A fetched value, or a byte range of it.

    Attributes:
        data: The bytes.
        version: Identifies the stored value for conditional writes. ``None`` if the store has no versions or the
            request did not ask for them.
        size: Size of the whole value in bytes, if known.
    """

    data: Buffer
    version: object = None
    size: int | None = None


class Listing(NamedTuple):
    """Keys and prefixes directly under a prefix.

    Attributes:
        keys: Full keys.
        prefixes: Full prefixes, each ending with ``/``.
    """

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""The version of a value that does not exist: ``put(..., if_version=ABSENT)`` only creates."""


def clip(data: Any, request: Request) -> Any:
    """Return the requested byte range of a whole value."""
    start, length = request.bounds(len(data))
    return data if length == len(data) else data[start : start + length]


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
