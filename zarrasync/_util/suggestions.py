"""Suggestions of similar names, for messages about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["suggest"]


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the end of a message: a question with the known name that is most similar, or another hint."""
    similar = get_close_matches(name, list(known), 1)
    return f"did you mean {similar[0]!r}?" if similar else otherwise
