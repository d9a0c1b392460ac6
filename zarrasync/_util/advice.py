"""Advice in messages of errors, in terms of the function that was called.

An error names the parameters of the lowest public function that can raise it, such as ``overwrite=True`` of ``create_array``.
Functions with other parameters translate its message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OVERWRITE_BY_MODE", "in_terms_of"]

OVERWRITE_BY_MODE = ("overwrite=True", "mode='w'")
"""For functions that replace nodes with the parameter ``mode``."""


@contextmanager
def in_terms_of(*replacements: tuple[str, str]) -> Iterator[None]:
    """Replace parts of the messages of errors.

    Args:
        replacements: Pairs of a part of a message, and the text that replaces it.
    """
    try:
        yield
    except Exception as error:
        if error.args and isinstance(message := error.args[0], str):
            for part, text in replacements:
                message = message.replace(part, text)
            error.args = (message, *error.args[1:])
        raise
