"""Counters of changes that this process makes, by which caches of values and coordinates notice them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from zarrasync.stores.base import Store

__all__ = ["CHANGES", "count_change", "slot_of"]

_SLOTS = 4096
CHANGES: Final = [0] * _SLOTS
"""The number of changes by slot. Two nodes may share a slot; a change of one then only costs the other a lookup."""


def slot_of(store: Store, path: str) -> int:
    """Return the slot of a node. It is the same for a path in a store, and for the store of a directory on the way."""
    parts = [*_strings(store.identity), path]
    return hash("/".join(part for text in parts if (part := text.strip("/")))) % _SLOTS


def _strings(identity: Hashable) -> Iterator[str]:
    if not isinstance(identity, tuple):
        yield str(identity)
        return
    for part in identity:
        yield from _strings(part)


def count_change(store: Store, path: str) -> None:
    """Count a change of a node's metadata, which the group that contains it also sees."""
    for changed in {path, path.rpartition("/")[0]}:
        CHANGES[slot_of(store, changed)] += 1
