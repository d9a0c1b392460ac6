"""Drawings of arrays: their chunks and shards, and which of them a selection touches. Pure; the result is SVG.

The last two axes are drawn as a plane, each axis before them as a bar of its own, so that arrays of any number of axes
have a picture. Lines have the colour of the text around them, which suits light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from zarrasync.display.info import axis_names
from zarrasync.indexing.coverage import Coverage, Touched
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.chunk_grids import Axis, Grid

__all__ = ["draw"]

_WIDTH, _HEIGHT = 250.0, 190.0
"""The most that a plane takes."""
_LEAST = 28.0
_BAR = 11.0
_LETTER, _LONGEST = 6.6, 24
"""The width of a letter, and the letters of the longest label."""
_LINES = 64
"""More lines than these along an axis are left out: chunks would be less than a few pixels wide."""
_BOXES = 600
"""More boxes of scattered points than these are drawn along a coarser raster."""


def draw(metadata: ArrayMetadata, coverage: Coverage | None = None) -> str:
    """An array's picture.

    Args:
        metadata: The array.
        coverage: Which chunks (of those that can be read alone) to colour; none in particular if not given.
    """
    ndim = metadata.ndim
    parts: list[str] = []
    y = 4.0
    labels = [_label(metadata, axis) for axis in range(ndim)]
    left = 10 + _LETTER * max(map(len, labels[: max(ndim - 1, 1)]), default=0)
    for axis in range(max(ndim - 2, 0)):
        parts.extend(_bar(metadata, coverage, axis, labels[axis], left, y))
        y += _BAR + 9
    if ndim >= 2:
        drawn, height = _plane(metadata, coverage, labels[-2:], left, y + 2)
        parts.extend(drawn)
        y += height + 24
    elif ndim == 1:
        parts.extend(_bar(metadata, coverage, 0, labels[0], left, y))
        y += _BAR + 9
    else:
        parts.append(f'<rect x="{left}" y="{y}" width="22" height="22" class="za-box{" za-hit" if coverage else ""}"/>')
        y += 30
    width = left + _WIDTH + 8
    title = f"An array of shape {metadata.shape} in chunks of {metadata.chunks}"
    return (
        f'<svg class="za-picture" role="img" width="{width:.0f}" height="{y:.0f}" viewBox="0 0 {width:.0f} {y:.0f}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _label(metadata: ArrayMetadata, axis: int) -> str:
    """The name of an axis and how long it is."""
    names = axis_names(metadata)
    name = (names[axis] if names is not None else None) or f"axis {axis}"
    extent = f" {metadata.shape[axis]:,}"
    room = _LONGEST - len(extent)
    return (name if len(name) <= room else f"{name[: room - 1]}…") + extent


def _bar(
    metadata: ArrayMetadata, coverage: Coverage | None, axis: int, label: str, left: float, y: float
) -> Iterator[str]:
    """One axis as a bar, named on its left, with its chunks."""
    scale = _WIDTH / max(metadata.shape[axis], 1)
    yield f'<text x="{left - 8:.1f}" y="{y + _BAR - 2}" text-anchor="end">{escape(label)}</text>'
    yield f'<rect x="{left:.1f}" y="{y}" width="{_WIDTH}" height="{_BAR}" class="za-box"/>'
    for grid, kind in _grids(metadata):
        for at in _lines(grid.axes[axis], scale, kind):
            yield f'<path d="M{left + at:.1f} {y}v{_BAR}" class="{kind}"/>'
    if coverage is not None:  # over the lines, which may lie close together
        for start, stop in _spans(coverage.axes[axis], coverage.grid.axes[axis], scale):
            yield _rect(left + start, y, max(stop - start, 2.5), _BAR)


def _plane(
    metadata: ArrayMetadata, coverage: Coverage | None, labels: Sequence[str], left: float, y: float
) -> tuple[list[str], float]:
    """The last two axes as a rectangle, and how high it is."""
    down, across = metadata.ndim - 2, metadata.ndim - 1
    rows, columns = metadata.shape[down], metadata.shape[across]
    scale = min(_WIDTH / max(columns, 1), _HEIGHT / max(rows, 1))
    width, height = max(columns * scale, _LEAST), max(rows * scale, _LEAST)
    over, under = width / max(columns, 1), height / max(rows, 1)
    x = left
    parts = [f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height:.1f}" class="za-box"/>']
    if coverage is not None:
        boxes = coverage.plane(down, across)
        if len(boxes) > _BOXES:
            boxes = _coarser(boxes)
        for high, wide in boxes:
            for top, bottom in _spans(high, coverage.grid.axes[down], under):
                for begin, end in _spans(wide, coverage.grid.axes[across], over):
                    parts.append(_rect(x + begin, y + top, end - begin, bottom - top))
    for grid, kind in _grids(metadata):
        parts.extend(
            f'<path d="M{x + at:.1f} {y}v{height:.1f}" class="{kind}"/>' for at in _lines(grid.axes[across], over, kind)
        )
        parts.extend(
            f'<path d="M{x} {y + at:.1f}h{width:.1f}" class="{kind}"/>' for at in _lines(grid.axes[down], under, kind)
        )
    parts.append(f'<text x="{x - 8:.1f}" y="{y + height / 2 + 3:.1f}" text-anchor="end">{escape(labels[0])}</text>')
    parts.append(f'<text x="{x:.1f}" y="{y + height + 14:.1f}">{escape(labels[1])}</text>')
    return parts, height


def _grids(metadata: ArrayMetadata) -> list[tuple[Grid, str]]:
    """The grids to draw, each with how its lines look."""
    if metadata.shards is None:
        return [(metadata.grid, "za-chunk")]
    return [(metadata.read_grid, "za-chunk"), (metadata.grid, "za-shard")]


def _lines(axis: Axis, scale: float, kind: str) -> list[float]:
    """Where chunks meet, in pixels."""
    if axis.nchunks > (_LINES if kind == "za-chunk" else 2 * _LINES):
        return []
    return [axis.start(chunk) * scale for chunk in range(1, axis.nchunks)]


def _spans(touched: Touched, axis: Axis, scale: float) -> list[tuple[float, float]]:
    """The pixels of chunks along an axis; neighbours, also such as less than half a pixel lies between, in one."""
    if not len(touched):
        return []
    if isinstance(touched, range):
        pairs = [(touched[0], touched[-1])]
    else:
        breaks = np.flatnonzero(np.diff(touched) > 1)
        firsts, lasts = touched[[0, *(breaks + 1)]], touched[[*breaks, -1]]
        pairs = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
    spans: list[tuple[float, float]] = []
    for first, last in pairs:
        start = axis.start(first) * scale
        stop = max(min(axis.start(last) + axis.size(last), axis.extent) * scale, start + 1)
        if spans and start - spans[-1][1] < 0.5:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans


def _coarser(boxes: Sequence[tuple[Touched, Touched]]) -> list[tuple[Touched, Touched]]:
    """Single chunks as fewer, larger boxes that hold them."""
    pairs = np.array([(high[0], wide[0]) for high, wide in boxes])
    step = np.maximum(np.ptp(pairs, axis=0) // 24 + 1, 1)
    cells = np.unique(pairs // step, axis=0) * step
    most = pairs.max(axis=0)
    return [
        (range(row, min(row + step[0], most[0] + 1)), range(column, min(column + step[1], most[1] + 1)))
        for row, column in cells.tolist()
    ]


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="za-hit"/>'
