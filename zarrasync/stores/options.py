"""Checks of options that several stores share."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable

__all__ = ["environment_variable", "missing_statuses"]


def missing_statuses(statuses: Iterable[int]) -> frozenset[int]:
    """Check the HTTP statuses that the user has chosen to mean absence.

    Args:
        statuses: The option ``missing``.

    Raises:
        ValueError: If one is not an integer from 400 to 499.
    """
    try:
        checked = frozenset(map(operator.index, statuses if isinstance(statuses, Iterable) else [statuses]))
    except TypeError:
        checked = frozenset({0})
    if not all(400 <= status < 500 for status in checked):
        raise ValueError(f"missing must contain HTTP statuses from 400 to 499, such as [403], found {statuses!r}")
    return checked


def environment_variable(names: Iterable[str]) -> str:
    """Return the value of the first of some environment variables that is not empty; otherwise an empty string."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
