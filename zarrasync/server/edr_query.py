"""Parameters of OGC API EDR: boxes, times, heights, and parameters in the bodies of requests. No IO."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from zarrasync.indexing.parse import parse_number
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.server.geometries import Region, as_wkt
from zarrasync.server.limits import BadQuery, TooMuch

_MOST_HEIGHTS = 10_000
_MOST_SHOWN = 60
_COUNT = re.compile(r"[0-9]{1,9}")


def parse_box(text: str) -> tuple[Region, Query | None]:
    """Parse ``west,south,east,north``, or the same with the smallest and the largest height, each after the y.

    Returns:
        The box, and the heights if there are any.

    Raises:
        BadQuery: If it is not a box.
    """
    try:
        numbers = [parse_number(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (4, 6) or not np.isfinite(numbers).all():
        raise BadQuery(f"bbox must be west,south,east,north, such as 5,45,10,48; found {text[:_MOST_SHOWN]!r}")
    half = len(numbers) // 2
    (west, south), (east, north) = numbers[:2], numbers[half : half + 2]
    if south > north:
        raise BadQuery(f"the south of bbox, {south:g}, must not exceed its north, {north:g}")
    heights = Query(slice(numbers[2], numbers[5])) if half == 3 else None
    return Region(west, south, east, north), heights


# ------------------------------------------------------------------ times and heights


def parse_datetime(text: str) -> Query | None:
    """Parse an instant or an interval of ISO 8601, whose ends may be open: ``2024-03-01/..``. ``None`` for all times."""
    first, slash, last = (part.strip() for part in text.partition("/"))
    if not slash:
        return Query(first) if first not in ("", "..") else None
    start, stop = (None if part in ("", "..") else part for part in (first, last))
    return None if start is stop is None else Query(slice(start, stop))


def parse_heights(text: str) -> Query | None:
    """Parse heights: one, several with commas, an interval ``100/500``, or ``R5/100/50`` for five ones from 100 on.

    Raises:
        BadQuery: If they are not numbers.
        TooMuch: If there are too many.
    """
    if text in ("", ".."):
        return None
    parts = text.split("/")
    try:
        if len(parts) == 3 and parts[0][:1] == "R":
            if not _COUNT.fullmatch(parts[0][1:]):
                raise ValueError("not a count")
            count = int(parts[0][1:])
            if count > _MOST_HEIGHTS:
                raise TooMuch(f"z has {count:,} heights, more than the limit of {_MOST_HEIGHTS:,}")
            return Query(parse_number(parts[1]) + parse_number(parts[2]) * np.arange(count))
        if len(parts) == 2:
            low, high = (None if part in ("", "..") else parse_number(part) for part in parts)
            is_reversed = low is not None and high is not None and low > high
            return Query(slice(high, low) if is_reversed else slice(low, high))
        heights = np.array([parse_number(item) for item in text.split(",")])
    except ValueError:
        raise BadQuery(f"z must be heights such as 850, 1000,850 or 100/500, found {text[:_MOST_SHOWN]!r}") from None
    return Query(heights if len(heights) > 1 else float(heights[0]))


# ------------------------------------------------------------------ bodies


def parse_body(body: bytes, content_type: str) -> tuple[tuple[str, str], ...]:
    """Parse the parameters in the body of a request.

    The body is a form, or a JSON object whose ``coords`` may be a geometry of GeoJSON.

    Raises:
        BadQuery: If it is neither.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/x-www-form-urlencoded":
            return tuple(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict"))
        values = json.loads(body, object_pairs_hook=_without_repetition) if kind == "application/json" else None
    except (ValueError, RecursionError) as error:  # also of the encoding
        raise BadQuery(f"the body is not valid: {error}") from None
    if not isinstance(values, dict):
        raise BadQuery("a body is a form (application/x-www-form-urlencoded), or a JSON object of parameters")
    return tuple((name, _as_text(name, value)) for name, value in values.items())


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, of whose repeated members a decoder would keep the last one.

    Raises:
        ValueError: If a name occurs more than once.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:_MOST_SHOWN]!r} occurs more than once")
    return members


def _as_text(name: str, value: Any) -> str:
    if name == "coords" and isinstance(value, Mapping):
        return as_wkt(value)
    if isinstance(value, list) and name != "coords":
        return ",".join(_as_text(name, item) for item in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadQuery(f"{name[:_MOST_SHOWN]} must be a string, a number or a list of them")
    return str(value)
