"""Suggestions of similar names, for messages about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["suggest"]


def suggest(name: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Return the end of a message: a question with the known name that is most similar, or another hint.

    Args:
        name: The unknown name.
        known: The known names.
        otherwise: The hint if none is similar.
        cutoff: How similar a name must be, from 0 to 1.
    """
    similar = get_close_matches(name, list(known), 1, cutoff)
    return f"did you mean {similar[0]!r}?" if similar else otherwise
