"""Advice in messages of errors, in terms of the function that was called.

An error names the parameters of the lowest public function that can raise it, such as ``overwrite=True`` of ``create_array``.
Functions with other parameters translate its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

OVERWRITE_BY_MODE = ("overwrite=True", "mode='w'")
"""For functions that replace nodes with the parameter ``mode``."""


@contextmanager
def in_terms_of(*replacements: tuple[str | re.Pattern[str], str]) -> Iterator[None]:
    """Replace parts of the messages of errors.

    Args:
        replacements: Pairs of a part of a message or a pattern, and the text that replaces it.
    """
    try:
        yield
    except Exception as error:
        if error.args and isinstance(message := error.args[0], str):
            for part, text in replacements:
                message = message.replace(part, text) if isinstance(part, str) else part.sub(text, message)
            error.args = (message, *error.args[1:])
        raise


def most_similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to an unknown one; empty if none is as similar as ``cutoff``, from 0 to 1."""
    return next(iter(get_close_matches(name, list(known), 1, cutoff)), "")


def suggest(name: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Return the end of a message: a question with the known name that is most similar, or another hint.

    Args:
        name: The unknown name.
        known: The known names.
        otherwise: The hint if none is similar.
        cutoff: How similar a name must be, from 0 to 1.
    """
    similar = most_similar(name, known, cutoff)
    return f"did you mean {similar!r}?" if similar else otherwise
