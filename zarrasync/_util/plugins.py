"""Extensions that other packages bring: found by entry points when a name is met that is not known."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["CODECS", "DATA_TYPES", "TRANSFORMERS", "find", "generation", "registered"]

CODECS = "zarrasync.codecs"
DATA_TYPES = "zarrasync.data_types"
TRANSFORMERS = "zarrasync.storage_transformers"


_generation = 0


def registered() -> None:
    """Note that a name means something new."""
    global _generation
    _generation += 1


def generation() -> int:
    """How often that happened: what was understood before may be understood in another way now."""
    return _generation


@cache
def _all(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # whose import takes 20 ms

    return {entry.name: entry for entry in entry_points(group=group)}


def find(group: str, name: str) -> Any:
    """What an installed package offers under a name, or ``None``.

    Raises:
        ImportError, AttributeError: If it is offered and can not be loaded.
    """
    entry = _all(group).get(name)
    return None if entry is None else entry.load()
