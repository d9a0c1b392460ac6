"""Changes by this process, which outdate the chunks that caches have decoded.

Places are compared by their locations, so that different stores and paths of the same data notice each other's changes.
Counters are kept in a table of hashes. Two places may share one; a change of one then only costs the other a lookup.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from zarrasync._concurrency.fork import thread_lock
from zarrasync.stores.base import Store

_SLOTS = 4096
_COUNTS: Final = [0] * _SLOTS
_lock = thread_lock()


class Changes:
    """The changes of a node: of itself, and of all nodes below a node above it, as when that one is moved.

    Args:
        store: The store.
        path: The path of the node.
    """

    __slots__ = ("_slots",)

    def __init__(self, store: Store, path: str) -> None:
        place = _place(store, path)
        above = (place[:count] for count in range(len(place) + 1))
        self._slots = _slot(place), *(_slot((*parent, "*")) for parent in above)

    @property
    def count(self) -> int:
        """The number of changes so far. It never takes an earlier value again."""
        return sum([_COUNTS[slot] for slot in self._slots])

    def add(self) -> None:
        """Count a change of values in the node. To be called after the change."""
        with _lock:
            _COUNTS[self._slots[0]] += 1


def count_change(store: Store, path: str, *, below: bool = False) -> None:
    """Count a change of a node, which the group that contains it also sees. To be called after the change.

    Args:
        store: The store.
        path: The path of the node.
        below: Whether nodes below it have also changed.
    """
    place = _place(store, path)
    _add(_slot(place), _slot(place[:-1]))
    if below:
        _add(_slot((*place, "*")))


def count_stored(store: Store, key: str) -> None:
    """Count a change of a value that was stored without a node. Any path in its key may be the array that contains it."""
    place = _place(store, key)
    _add(*(_slot(place[:count]) for count in range(len(place) + 1)))


def _add(*slots: int) -> None:
    with _lock:
        for slot in slots:
            _COUNTS[slot] += 1


def _slot(place: tuple[str, ...]) -> int:
    return hash(place) % _SLOTS


def _place(store: Store, path: str) -> tuple[str, ...]:
    parts = "/".join(_strings(store.location(path))).split("/")
    return tuple([part for part in parts if part])


def _strings(location: Hashable) -> Iterator[str]:
    if not isinstance(location, tuple):
        yield str(location)
        return
    for part in location:
        yield from _strings(part)
