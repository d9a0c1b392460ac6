"""Selections as people write them in a URL or on a command line: ``0,10:20,::-1`` or ``time=0,lat=10:20``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import EllipsisType
from typing import TypeAlias

from zarrasync.errors import SelectionError

__all__ = ["Basic", "parse_selection", "selection_text"]

Basic: TypeAlias = tuple[int | slice | EllipsisType, ...]
"""A basic selection."""
_ITEM = re.compile(
    r"(?P<index>[+-]?\d{1,18})|(?P<slice>([+-]?\d{1,18})?:([+-]?\d{1,18})?(:([+-]?\d{1,18})?)?)|(?P<rest>\.\.\.)"
)


def parse_selection(text: str, shape: Sequence[int], names: Sequence[str | None] | None = None) -> Basic:
    """A text as a basic selection.

    Args:
        text: Integers, slices and at most one ``...``, separated by commas, also in brackets; or ``name=`` and one
            of these for axes that have names. What is not named is taken whole.
        shape: The shape of what is selected from.
        names: The names of its axes.

    Raises:
        SelectionError: If it is none of that, or has too many items.
    """
    inner = text.strip().removeprefix("[").removesuffix("]")
    items = [item.strip() for item in inner.split(",")] if inner.strip() else []
    if not any("=" in item for item in items):
        found = tuple(_item(item, text, shape) for item in items)
        whole = sum(item is not Ellipsis for item in found)
        if whole > len(shape) or len(found) - whole > 1:
            raise SelectionError(f"{text!r} has more items than the shape {tuple(shape)} has axes", shape=tuple(shape))
        return found
    seen: set[str] = set()
    picked: list[int | slice | EllipsisType] = [slice(None)] * len(shape)
    for item in items:
        name, equals, value = item.partition("=")
        if name.strip() in seen:
            raise SelectionError(f"{text!r} names {name.strip()!r} twice", shape=tuple(shape))
        seen.add(name.strip())
        axes = [axis for axis, one in enumerate(names or ()) if one == name.strip()]
        if not equals or not axes:
            known = ", ".join(str(one) for one in names or () if one) or "no names"
            raise SelectionError(f"{item!r} in {text!r} names no axis; the axes have {known}", shape=tuple(shape))
        picked[axes[0]] = _item(value.strip(), text, shape)
    return tuple(picked)


def _item(item: str, text: str, shape: Sequence[int]) -> int | slice | EllipsisType:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise SelectionError(
            f"{item!r} in {text!r} is no integer, no slice (start:stop:step) and no '...'", shape=tuple(shape)
        )
    if match["index"]:
        return int(item)
    if match["rest"]:
        return ...
    numbers = [int(part) if part else None for part in item.split(":")]
    if numbers[2:] == [0]:
        raise SelectionError(f"{item!r} in {text!r} has a step of 0", shape=tuple(shape))
    return slice(*numbers)


def selection_text(selection: Basic) -> str:
    """The way back: a selection as it is written between brackets."""

    def one(item: int | slice | EllipsisType) -> str:
        if item is Ellipsis:
            return "..."
        if not isinstance(item, slice):
            return str(item)
        ends = [item.start, item.stop] + ([item.step] if item.step is not None else [])
        return ":".join("" if end is None else str(end) for end in ends)

    return ", ".join(map(one, selection))
