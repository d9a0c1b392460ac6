"""Parameters in the query strings of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from zarrasync.errors import SelectionError
from zarrasync.indexing.parse_text import Basic, parse_selection
from zarrasync.server.images import LABELS, Style, palette_of
from zarrasync.server.label_colours import LabelColours
from zarrasync.server.limits import BadQuery
from zarrasync.server.pyramid import Pyramid

__all__ = ["decodes", "index_of", "integer_of", "style_of"]

Query = Mapping[str, str]


def index_of(query: Query, pyramid: Pyramid) -> tuple[int, ...]:
    """Return the indices on the leading axes that select a plane; by default the first ones.

    Raises:
        SelectionError: If they are not one integer per axis, or out of range.
    """
    array = pyramid.levels[0].array
    sizes, text = array.shape[:-2], query.get("index", "")
    selection: Basic = parse_selection(text, sizes, pyramid.names[:-2])
    if not text:
        return (0,) * len(sizes)
    indices = [item for item in selection if isinstance(item, int)]
    if len(indices) != len(sizes) or len(selection) != len(sizes):
        raise SelectionError(
            f"index needs an integer for each of the {len(sizes)} leading axes, found {text!r}", shape=sizes
        )
    for axis, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        if not -size <= index < size:
            raise SelectionError(f"index {index} is out of range for axis {axis} of size {size}", shape=sizes)
    return tuple(index % size for index, size in zip(indices, sizes, strict=True))


def style_of(query: Query, low: float, high: float, labels: LabelColours | None = None) -> Style:
    """Return the mapping of values to colours.

    Args:
        query: The parameters ``cmap``, ``low``, ``high`` and ``scale``.
        low: The default for ``low``.
        high: The default for ``high``.
        labels: The colours of labels.

    Raises:
        BadQuery: If a parameter is invalid.
    """
    scale = query.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise BadQuery(f"scale must be linear or log, found {scale[:20]!r}")
    cmap = query.get("cmap", "viridis")[:64]
    if cmap == LABELS:
        return Style(cmap, 0.0, 1.0, labels=labels or LabelColours())
    palette_of(cmap)  # raises if it is unknown
    return Style(cmap, _number(query, "low", low), _number(query, "high", high), cast("Any", scale))


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


def _number(query: Query, name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadQuery(f"{name} must be a number, found {text[:30]!r}")
    return value
