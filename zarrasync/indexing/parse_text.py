"""Selections as strings in a URL or on a command line: ``0,10:20,::-1`` or ``time=0,lat=10:20``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import EllipsisType
from typing import TypeAlias

from zarrasync.errors import SelectionError

__all__ = ["Basic", "is_position", "parse_selection", "selection_text"]

Basic: TypeAlias = tuple[int | slice | EllipsisType, ...]
"""A basic selection."""
_ITEM = re.compile(
    r"(?P<index>[+-]?\d{1,18})|(?P<slice>([+-]?\d{1,18})?:([+-]?\d{1,18})?(:([+-]?\d{1,18})?)?)|(?P<rest>\.\.\.)"
)


def parse_selection(text: str, shape: Sequence[int], names: Sequence[str | None] | None = None) -> Basic:
    """Parse a string as a basic selection.

    Args:
        text: Integers, slices and at most one ``...``, separated by commas, with or without brackets. Alternatively,
            items ``name=value`` for named axes; other axes are selected completely.
        shape: The shape of the array.
        names: The names of the axes.

    Raises:
        SelectionError: If the string is malformed or has too many items.
    """
    inner = text.strip().removeprefix("[").removesuffix("]")
    items = [item.strip() for item in inner.split(",")] if inner.strip() else []
    if any("=" in item for item in items):
        return _parse_named(text, items, shape, names or ())
    selection = tuple(_item(item, text, shape) for item in items)
    axis_count = sum(item is not Ellipsis for item in selection)
    if axis_count > len(shape) or len(selection) - axis_count > 1:
        raise SelectionError(f"{text!r} has too many items for an array of shape {tuple(shape)}", shape=tuple(shape))
    return selection


def is_position(text: str) -> bool:
    """Return whether a string is an integer, a slice or ``...``."""
    return _ITEM.fullmatch(text) is not None


def _parse_named(text: str, items: Sequence[str], shape: Sequence[int], names: Sequence[str | None]) -> Basic:
    """Parse items with the names of axes."""
    seen_names: set[str] = set()
    selection: list[int | slice | EllipsisType] = [slice(None)] * len(shape)
    for item in items:
        left, equals, value = item.partition("=")
        name = left.strip()
        if name in seen_names:
            raise SelectionError(f"{text!r} names {name!r} twice", shape=tuple(shape))
        seen_names.add(name)
        if not equals or name not in names:
            available = ", ".join(str(other) for other in names if other) or "none"
            raise SelectionError(
                f"{item!r} in {text!r} does not name an axis; the names of the axes are: {available}",
                shape=tuple(shape),
            )
        selection[names.index(name)] = _item(value.strip(), text, shape)
    return tuple(selection)


def _item(item: str, text: str, shape: Sequence[int]) -> int | slice | EllipsisType:
    """Parse an integer, a slice or ``...``."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise SelectionError(
            f"{item!r} in {text!r} must be an integer, a slice (start:stop:step) or '...'", shape=tuple(shape)
        )
    if match["index"]:
        return int(item)
    if match["rest"]:
        return ...
    limits = [int(part) if part else None for part in item.split(":")]
    if limits[2:] == [0]:
        raise SelectionError(f"{item!r} in {text!r} has a step of 0", shape=tuple(shape))
    return slice(*limits)


def selection_text(selection: Basic) -> str:
    """Return a selection as a string, the inverse of ``parse_selection``."""
    return ", ".join(map(_item_text, selection))


def _item_text(item: int | slice | EllipsisType) -> str:
    if item is Ellipsis:
        return "..."
    if not isinstance(item, slice):
        return str(item)
    limits = [item.start, item.stop] + ([item.step] if item.step is not None else [])
    return ":".join("" if limit is None else str(limit) for limit in limits)
