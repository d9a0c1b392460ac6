"""What conventions specify about a node, as facts for users. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from zarrasync.display.text import printable
from zarrasync.metadata.conventions import Meaning

__all__ = ["meaning_facts"]

_MOST = 12
"""Number of axes or levels that are listed."""


def meaning_facts(meaning: Meaning) -> dict[str, str]:
    """Return the facts that conventions specify about a node, by their label."""
    facts = {
        "Conventions": _listed(meaning.titles),
        "Axes": _listed(axis.label for axis in meaning.axes),
        "Levels": _listed(level.label for level in meaning.levels),
        "CRS": meaning.crs.label if meaning.crs is not None else "",
        "Unit": "" if "Quantity" in meaning.facts else meaning.unit,
        **meaning.facts,
    }
    return {printable(label): printable(text) for label, text in facts.items() if text}


def _listed(texts: Iterable[str]) -> str:
    items = list(texts)
    return ", ".join(items[:_MOST]) + (f", … {len(items) - _MOST:,} more" if len(items) > _MOST else "")
