"""Parameters in the query strings of requests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from zarrasync.indexing.parse import parse_number
from zarrasync.metadata.conventions import RGBA
from zarrasync.server.images import CUSTOM, LABELS, RGB, Scale, Style, palette_of
from zarrasync.server.label_colours import LabelColours, parsed_colour
from zarrasync.server.limits import BadQuery

Query = Mapping[str, str]
_RAMP = 256
"""The colours of a map that replaces a named one."""


@dataclass(frozen=True)
class Colours:
    """A requested mapping of values to colours.

    Attributes:
        cmap: The name of a colour map.
        low: The value of its first colour; ``None`` for the default.
        high: The value of its last colour; ``None`` for the default.
        scale: The scale of the colours in between.
        below: The colour of lower values, in the notation of CSS; empty for the first colour.
        above: The colour of higher values; empty for the last colour.
        table: Own colours as JSON, instead of a colour map: colours of values ``{"1": "#ff0000"}``, colours of intervals
            ``[[[0, 5], "#ff0000"]]``, or the 256 colours of a map ``{"0": …, "255": …}``.
    """

    cmap: str = "viridis"
    low: float | None = None
    high: float | None = None
    scale: Scale = "linear"
    below: str = ""
    above: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise BadQuery(f"scale must be one of {', '.join(get_args(Scale))}, found {self.scale[:20]!r}")
        if self.table:
            intervals, _ = self._own
            if intervals and any((self.low is not None, self.high is not None, self.below, self.above)):
                raise BadQuery("colours of values and intervals have no range; leave out rescale, below and above")
        elif self.cmap not in (LABELS, RGB):
            palette_of(self.cmap)  # raises if it is unknown
        for name, text in (("below", self.below), ("above", self.above)):
            if text and parsed_colour(text) is None:
                raise BadQuery(f"{name} must be a colour, such as transparent, red or #ff0000; found {text[:40]!r}")

    @cached_property
    def _own(self) -> tuple[tuple[tuple[float, float], ...], tuple[RGBA, ...]]:
        """The intervals of own colours, and the colours."""
        return _parsed_table(self.table) if self.table else ((), ())

    @property
    def has_range(self) -> bool:
        """Whether both ends are specified, or not needed."""
        return (self.low is not None and self.high is not None) or bool(self._own[0])

    def style(self, low: float, high: float, labels: LabelColours) -> Style:
        """Return the mapping of values to colours.

        Args:
            low: The default for the lower end.
            high: The default for the upper end.
            labels: The colours of labels.
        """
        if self.cmap == LABELS:
            return Style(self.cmap, 0.0, 1.0, labels=labels)
        low = low if self.low is None else self.low
        high = high if self.high is None else self.high
        ends = parsed_colour(self.below), parsed_colour(self.above)
        intervals, own = self._own
        name = CUSTOM if own else self.cmap
        return Style(name, low, high, self.scale, below=ends[0], above=ends[1], intervals=intervals, colours=own)


def _parsed_table(text: str) -> tuple[tuple[tuple[float, float], ...], tuple[RGBA, ...]]:
    """Return the intervals of values and their colours; no intervals if the colours come from a colour map.

    Raises:
        BadQuery: If they are not a table of colours.
    """
    try:
        table = json.loads(text)
        if isinstance(table, dict):
            colours = {parse_number(value): _colour(colour) for value, colour in table.items()}
            if colours.keys() == set(range(_RAMP)):
                return (), tuple(colours[value] for value in range(_RAMP))
            items = [((value, value), colour) for value, colour in colours.items()]
        else:
            items = [((float(low), float(high)), _colour(colour)) for (low, high), colour in table]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise BadQuery(
            'colormap must be JSON with colours of values, such as {"1": "#ff0000"}, or of intervals, such as '
            f"[[[0, 5], [255, 0, 0, 255]]]; found {text[:40]!r}"
        ) from None
    if not 0 < len(items) < _RAMP or not all(math.isfinite(end) for ends, _ in items for end in ends):
        raise BadQuery(f"colormap must have at least one and fewer than {_RAMP} colours of finite values")
    return tuple(ends for ends, _ in items), tuple(colour for _, colour in items)


def _colour(value: Any) -> RGBA:
    """Return a colour of CSS, or of red, green, blue and perhaps opacity from 0 to 255."""
    found = parsed_colour(value) if isinstance(value, str) else tuple(value)
    if (
        found is None
        or len(found) not in (3, 4)
        or not all(isinstance(part, int) and 0 <= part < _RAMP for part in found)
    ):
        raise ValueError("not a colour")
    return found[0], found[1], found[2], found[3] if len(found) == 4 else _RAMP - 1


def plane_of(text: str, ndim: int) -> tuple[int, int] | None:
    """Return the axes of rows and columns that a parameter selects; ``None`` for the default.

    Raises:
        BadQuery: If they are not two different axes.
    """
    if not text:
        return None
    numbers = [int(part) for part in text.split(",") if part.isascii() and part.isdigit() and len(part) < 4]
    if len(numbers) != 2 or len(set(numbers)) != 2 or max(numbers) >= ndim or text.count(",") != 1:
        raise BadQuery(f"plane must be the numbers of two of {ndim} axes, such as 0,1; found {text[:40]!r}")
    return numbers[0], numbers[1]


def colours_of(query: Query) -> dict[str, Any]:
    """Return the arguments of ``Colours`` among the parameters: ``cmap``, ``low``, ``high``, ``scale``, ``below`` and ``above``.

    Raises:
        BadQuery: If an end is not a number.
    """
    texts = {name: query[name] for name in ("cmap", "scale", "below", "above") if name in query}
    return texts | {name: number_of(query[name], name) for name in ("low", "high") if name in query}


def decodes(query: Query) -> bool:
    """Return whether to show the values that stored numbers stand for, by the parameter ``decode``, whose choices are checked."""
    return query.get("decode") != "0"


def integer_of(query: Query, name: str, default: int, least: int, most: int) -> int:
    """Return an integer parameter.

    Raises:
        BadQuery: If it is not an integer in the range.
    """
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
        raise BadQuery(f"{name} must be an integer from {least} to {most}, found {text[:30]!r}")
    return int(text)


def number_of(text: str, name: str, *, is_finite: bool = True) -> float:
    """Return the number that the text of a parameter spells.

    Args:
        text: The text.
        name: The name of the parameter.
        is_finite: Whether infinity and NaN are errors.

    Raises:
        BadQuery: If it is not such a number.
    """
    try:
        value = parse_number(text)
    except ValueError:
        raise BadQuery(f"{name} must be a number, found {text[:30]!r}") from None
    if is_finite and not math.isfinite(value):
        raise BadQuery(f"{name} must be a finite number, found {text[:30]!r}")
    return value
