"""Extensions of other packages, found by their entry points, and a counter of registrations."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CODECS = "zarrasync.codecs"
CONVENTIONS = "zarrasync.conventions"
DATA_TYPES = "zarrasync.data_types"
METHODS = "zarrasync.methods"
TRANSFORMERS = "zarrasync.storage_transformers"
URL_ADAPTERS = "zarrasync.url_adapters"
"""Groups of entry points."""

_generation = 0
_lock = threading.Lock()


def count_registration() -> None:
    """Count the registration of an extension. Documents parsed earlier may be parsed differently from now on."""
    global _generation
    with _lock:
        _generation += 1


def generation() -> int:
    """Return the number of registrations so far. Caches of parsed documents use it as part of their keys."""
    return _generation


@cache
def entry_points_in(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name."""
    from importlib.metadata import entry_points  # takes 20 ms to import

    return {entry.name: entry for entry in entry_points(group=group)}


def find(group: str, name: str) -> Any:
    """Return the object that an installed package provides under a name, or ``None``.

    Raises:
        ImportError, AttributeError: If the entry point cannot be loaded.
    """
    entry = entry_points_in(group).get(name)
    return None if entry is None else entry.load()
