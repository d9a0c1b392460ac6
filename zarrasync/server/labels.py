"""Labels of coordinates in selections: ``time=2024-03-01/2024-04-01,lat=45.5~nearest``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from zarrasync.errors import SelectionError
from zarrasync.indexing.labels import LabelMethod
from zarrasync.indexing.parse import is_position
from zarrasync.metadata.conventions.cf_labels import Query

__all__ = ["split_labels"]

_METHODS = (*get_args(LabelMethod), "exact")
_OPEN = ("..", "")
"""Ends of intervals without a limit, as in ISO 8601-2 and OGC API."""


def split_labels(text: str, names: Sequence[str]) -> tuple[str, dict[str, Query]]:
    """Split a selection into positions and labels.

    Integers and slices with colons are positions. Other values are labels: one, as ``45.5`` or ``2024-03-01T06:00``, or
    both ends of an interval, as ``2024-03/2024-04`` or ``../10``. A method after ``~`` finds labels that do not exist:
    ``nearest``, ``pad``, ``backfill``. With ``~exact``, an integer is a label.

    Args:
        text: The selection.
        names: The names of the array's axes.

    Returns:
        The selection without labels, and the labels by the names of coordinates.

    Raises:
        SelectionError: If a coordinate is named twice, or a method is unknown.
    """
    positions: list[str] = []
    labels: dict[str, Query] = {}
    for item in text.strip().removeprefix("[").removesuffix("]").split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or (name in names and is_position(value)):
            positions.append(item)
        elif name in labels:
            raise SelectionError(f"{text!r} names {name!r} twice", shape=())
        else:
            labels[name] = _query(value, text)
    return ",".join(positions) or "...", labels


def _query(value: str, text: str) -> Query:
    label, tilde, method = value.partition("~")
    if tilde and method not in _METHODS:
        raise SelectionError(f"{method!r} in {text!r} is not one of {', '.join(_METHODS)}", shape=())
    first, slash, last = label.partition("/")
    parsed = slice(_limit(first), _limit(last)) if slash else _label(label)
    return Query(parsed, None if method in ("", "exact") else method)


def _limit(text: str) -> Any:
    return None if text in _OPEN else _label(text)


def _label(text: str) -> Any:
    """Return a label as a number if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
