"""Checks of the ``configuration`` member of codecs in documents."""

from __future__ import annotations

import re
from collections.abc import Iterable

from zarrasync._util.suggestions import suggest

__all__ = ["check_integer", "check_members", "rejection_of"]


def check_members(configuration: Iterable[str], *members: str) -> None:
    """Raise ``ValueError`` if a configuration has other members than these."""
    if unknown := set(configuration) - set(members):
        name = min(unknown)
        others = f"the members are {', '.join(members)}" if members else "the codec has no members"
        raise ValueError(f"unknown member {name!r}; {suggest(name, members, others)}")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ``ValueError`` if a parameter is not an integer from ``low`` to ``high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, found {value!r}")


def rejection_of(error: Exception) -> str:
    """Return why a configuration was rejected, without the name of a constructor."""
    return f"missing member {error}" if isinstance(error, KeyError) else re.sub(r"^[\w.]*__init__\(\) ", "", str(error))
