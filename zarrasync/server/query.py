"""Parameters in the query strings of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from zarrasync.server.images import LABELS, RGB, Scale, Style, palette_of
from zarrasync.server.label_colours import LabelColours, parsed_colour
from zarrasync.server.limits import BadQuery

Query = Mapping[str, str]


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
    """

    cmap: str = "viridis"
    low: float | None = None
    high: float | None = None
    scale: Scale = "linear"
    below: str = ""
    above: str = ""

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise BadQuery(f"scale must be one of {', '.join(get_args(Scale))}, found {self.scale[:20]!r}")
        if self.cmap not in (LABELS, RGB):
            palette_of(self.cmap)  # raises if it is unknown
        for name, text in (("below", self.below), ("above", self.above)):
            if text and parsed_colour(text) is None:
                raise BadQuery(f"{name} must be a colour, such as transparent, red or #ff0000; found {text[:40]!r}")

    @property
    def has_range(self) -> bool:
        """Whether both ends are specified."""
        return self.low is not None and self.high is not None

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
        return Style(self.cmap, low, high, self.scale, below=ends[0], above=ends[1])


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


def colours_of(query: Query) -> Colours:
    """Return the mapping of values to colours of the parameters ``cmap``, ``low``, ``high``, ``scale``, ``below`` and ``above``.

    Raises:
        BadQuery: If a parameter is invalid.
    """
    cmap, scale = query.get("cmap", "viridis")[:64], query.get("scale", "linear")
    ends = query.get("below", ""), query.get("above", "")
    low, high = (number_of(query[name], name) if name in query else None for name in ("low", "high"))
    return Colours(cmap, low, high, scale, *ends)  # type: ignore[arg-type]


def decodes(query: Query) -> bool:
    """Return whether to show the values that stored numbers stand for, by the parameter ``decode``.

    Raises:
        BadQuery: If it is neither 0 nor 1.
    """
    text = query.get("decode", "1")
    if text not in ("0", "1"):
        raise BadQuery(f"decode must be 0 for stored numbers or 1 for their values, found {text[:20]!r}")
    return text == "1"


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
        value = float(text)
    except ValueError:
        raise BadQuery(f"{name} must be a number, found {text[:30]!r}") from None
    if is_finite and not math.isfinite(value):
        raise BadQuery(f"{name} must be a finite number, found {text[:30]!r}")
    return value
