"""Legends of pictures: which values have which colours, as a picture and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from zarrasync.metadata.conventions import Labels
from zarrasync.server.images import LABELS, Style, encode, palette

_MOST_LABELS = 256


def legend_picture(style: Style, labels: Labels | None, size: tuple[int, int]) -> bytes:
    """Return the colours of a style as a PNG: from the left to the right, or from the bottom to the top if it is higher.

    Args:
        style: The colours.
        labels: The labels, if they have colours. Each has an equal share.
        size: The height and the width in pixels.
    """
    height, width = size
    colours = np.array(_colours(style, labels), np.uint8)
    line = colours[np.arange(max(size)) * len(colours) // max(size)]
    pixels = np.broadcast_to(line if width >= height else line[::-1, None], (height, width, 4))
    return encode(pixels)


def legend_facts(style: Style, labels: Labels | None, unit: str) -> dict[str, Any]:
    """Return which values have which colours, as JSON."""
    colours = [_css(colour) for colour in _colours(style, labels)]
    if style.cmap == LABELS:
        names = islice(labels.properties.items() if labels is not None else (), _MOST_LABELS)
        found = [
            {"value": value, "name": name, "colour": colour}
            for (value, name), colour in zip(names, colours, strict=False)
        ]
        return {"colormap": style.cmap, "labels": found}
    if style.intervals:
        steps = [
            {"low": low, "high": high, "colour": colour}
            for (low, high), colour in zip(style.intervals, colours, strict=True)
        ]
        return {"colormap": style.cmap, "unit": unit, "intervals": steps}
    low, high = style.positive if style.scale == "log" else style.ends
    ends = {
        name: None if colour is None else _css(colour)
        for name, colour in (("below", style.below), ("above", style.above))
    }
    return {
        "colormap": style.cmap,
        "scale": style.scale,
        "low": low,
        "high": high,
        "unit": unit,
        "colours": colours,
        **ends,
    }


def _colours(style: Style, labels: Labels | None) -> list[Sequence[int]]:
    """Return the colours from the lowest value to the highest value, or the colours of labels with names."""
    if style.cmap == LABELS:
        numbers = [*islice(labels.properties if labels is not None else {}, _MOST_LABELS)]
        found: list[Sequence[int]] = style.labels(np.array(numbers, np.int64)).tolist()
        return found or [(0, 0, 0, 0)]
    entries, opacity = (np.frombuffer(part, np.uint8) for part in palette(style))
    own = slice(2 if style.below is not None else 1, -1 if style.above is not None else None)
    shown: list[Sequence[int]] = np.column_stack([entries.reshape(-1, 3), opacity])[own].tolist()
    return shown


def _css(colour: Sequence[int]) -> str:
    return "#" + bytes(colour[:3] if colour[3] == 255 else colour).hex()
