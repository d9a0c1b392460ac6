"""Pictures of arrays as SVG: their chunks and shards, and the chunks that a selection reads.

The last two axes are drawn as a plane, and each axis before them as a separate bar, so that arrays with any number of
axes can be drawn. Lines have the colour of the surrounding text, which suits light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Literal, TypeAlias

import numpy as np

from zarrasync.indexing.axis_cuts import Touched
from zarrasync.indexing.regions import Coverage
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import axis_names
from zarrasync.model.chunk_grids import Grid, GridAxis

_WIDTH, _HEIGHT = 250.0, 190.0
"""The maximum size of a plane, in pixels like all lengths in this module."""
_MIN_SIDE = 28.0
"""The minimum length of a side of a plane."""
_BAR_HEIGHT = 11.0
_CHARACTER_WIDTH, _MAX_LABEL = 6.6, 24
"""The width of a character, and the maximum number of characters of a label."""
_MAX_LINES = 64
"""The maximum number of lines between chunks along an axis. More lines would be too close, so none are drawn."""
_MIN_SPACING = 6.0
"""The distance of lines below which they are faint, so that they do not look like a filled area."""
_MAX_BOXES = 600
"""The number of boxes of scattered chunks above which a coarser raster is drawn."""

_LineClass: TypeAlias = Literal["za-chunk", "za-shard"]


def draw(metadata: ArrayMetadata, coverage: Coverage | None = None) -> str:
    """Return the picture of an array as an SVG element.

    Args:
        metadata: The array's metadata.
        coverage: The chunks to colour (inner chunks if the array is sharded), or ``None``.
    """
    ndim = metadata.ndim
    parts: list[str] = []
    y = 4.0
    labels = [_label(metadata, axis) for axis in range(ndim)]
    left = 10 + _CHARACTER_WIDTH * max(map(len, labels[: max(ndim - 1, 1)]), default=0)
    for axis in range(ndim - 2 if ndim >= 2 else ndim):
        parts.extend(_bar(metadata, coverage, axis, labels[axis], left, y))
        y += _BAR_HEIGHT + 9
    if ndim >= 2:
        plane, height = _plane(metadata, coverage, labels[-2:], left, y + 2)
        parts.extend(plane)
        y += height + 24
    elif ndim == 0:
        css = "za-box za-hit" if coverage else "za-box"
        parts.append(f'<rect x="{left}" y="{y}" width="22" height="22" class="{css}"/>')
        y += 30
    width = left + _WIDTH + 8
    title = f"Array of shape {metadata.shape} with chunks of shape {metadata.chunks}"
    return (
        f'<svg class="za-picture" role="img" width="{width:.0f}" height="{y:.0f}" viewBox="0 0 {width:.0f} {y:.0f}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _label(metadata: ArrayMetadata, axis: int) -> str:
    """Return the label of an axis: its name and its length."""
    names = axis_names(metadata)
    name = (names[axis] if names is not None else None) or f"axis {axis}"
    length = f" {metadata.shape[axis]:,}"
    room = _MAX_LABEL - len(length)
    return (name if len(name) <= room else f"{name[: room - 1]}…") + length


def _bar(
    metadata: ArrayMetadata, coverage: Coverage | None, axis: int, label: str, left: float, y: float
) -> Iterator[str]:
    """Draw one axis as a bar with its chunks, and a label on its left."""
    scale = _WIDTH / max(metadata.shape[axis], 1)
    yield f'<text x="{left - 8:.1f}" y="{y + _BAR_HEIGHT - 2}" text-anchor="end">{escape(label)}</text>'
    yield f'<rect x="{left:.1f}" y="{y}" width="{_WIDTH}" height="{_BAR_HEIGHT}" class="za-box"/>'
    for grid, css in _grids(metadata):
        for offset in _lines(grid.axes[axis], scale, css):
            yield f'<path d="M{left + offset:.1f} {y}v{_BAR_HEIGHT}" class="{_weight(grid.axes[axis], scale, css)}"/>'
    if coverage is not None:  # above the lines, which may be close together
        for start, stop in _spans(coverage.axes[axis], coverage.grid.axes[axis], scale):
            yield _rect(left + start, y, max(stop - start, 2.5), _BAR_HEIGHT)


def _plane(
    metadata: ArrayMetadata, coverage: Coverage | None, labels: Sequence[str], left: float, top: float
) -> tuple[list[str], float]:
    """Draw the last two axes as a rectangle. Also return its height."""
    row_axis, column_axis = metadata.ndim - 2, metadata.ndim - 1
    rows, columns = metadata.shape[row_axis], metadata.shape[column_axis]
    scale = min(_WIDTH / max(columns, 1), _HEIGHT / max(rows, 1))
    width, height = max(columns * scale, _MIN_SIDE), max(rows * scale, _MIN_SIDE)
    x_scale, y_scale = width / max(columns, 1), height / max(rows, 1)
    parts = [f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}" class="za-box"/>']
    if coverage is not None:
        parts.extend(_plane_boxes(coverage, row_axis, column_axis, x_scale, y_scale, left, top))
    for grid, css in _grids(metadata):
        parts.extend(
            f'<path d="M{left + x:.1f} {top}v{height:.1f}" class="{_weight(grid.axes[column_axis], x_scale, css)}"/>'
            for x in _lines(grid.axes[column_axis], x_scale, css)
        )
        parts.extend(
            f'<path d="M{left} {top + y:.1f}h{width:.1f}" class="{_weight(grid.axes[row_axis], y_scale, css)}"/>'
            for y in _lines(grid.axes[row_axis], y_scale, css)
        )
    row_label, column_label = map(escape, labels)
    parts.append(f'<text x="{left - 8:.1f}" y="{top + height / 2 + 3:.1f}" text-anchor="end">{row_label}</text>')
    parts.append(f'<text x="{left:.1f}" y="{top + height + 14:.1f}">{column_label}</text>')
    return parts, height


def _plane_boxes(
    coverage: Coverage, row_axis: int, column_axis: int, x_scale: float, y_scale: float, left: float, top: float
) -> Iterator[str]:
    """Colour the chunks that are read."""
    boxes = coverage.plane(row_axis, column_axis)
    if len(boxes) > _MAX_BOXES:
        boxes = _merge_boxes(boxes)
    for row_chunks, column_chunks in boxes:
        for y, y_end in _spans(row_chunks, coverage.grid.axes[row_axis], y_scale):
            for x, x_end in _spans(column_chunks, coverage.grid.axes[column_axis], x_scale):
                yield _rect(left + x, top + y, x_end - x, y_end - y)


def _grids(metadata: ArrayMetadata) -> list[tuple[Grid, _LineClass]]:
    """Return the grids to draw, each with the CSS class of its lines."""
    if metadata.shards is None:
        return [(metadata.grid, "za-chunk")]
    return [(metadata.read_grid, "za-chunk"), (metadata.grid, "za-shard")]


def _lines(axis: GridAxis, scale: float, css: _LineClass) -> list[float]:
    """Return the pixel offsets of the boundaries between chunks."""
    if axis.nchunks > (_MAX_LINES if css == "za-chunk" else 2 * _MAX_LINES):
        return []
    return [axis.start(chunk) * scale for chunk in range(1, axis.nchunks)]


def _weight(axis: GridAxis, scale: float, css: _LineClass) -> str:
    """Return the class of lines between chunks, which are faint if they are close together."""
    is_dense = axis.extent * scale < _MIN_SPACING * axis.nchunks
    return "za-fine" if is_dense and css == "za-chunk" else css


def _spans(chunks: Touched, axis: GridAxis, scale: float) -> list[tuple[float, float]]:
    """Return the pixel ranges of chunks along an axis. Ranges less than half a pixel apart are joined.

    Args:
        chunks: The chunk numbers in ascending order.
        axis: The axis.
        scale: The number of pixels per element.
    """
    if not len(chunks):
        return []
    if isinstance(chunks, range):
        runs = [(chunks[0], chunks[-1])]
    else:
        breaks = np.flatnonzero(np.diff(chunks) > 1)
        firsts, lasts = chunks[[0, *(breaks + 1)]], chunks[[*breaks, -1]]
        runs = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
    spans: list[tuple[float, float]] = []
    for first, last in runs:
        start = axis.start(first) * scale
        stop = max(min(axis.start(last) + axis.size(last), axis.extent) * scale, start + 1)
        if spans and start - spans[-1][1] < 0.5:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans


def _merge_boxes(boxes: Sequence[tuple[Touched, Touched]]) -> list[tuple[Touched, Touched]]:
    """Return fewer and larger boxes that contain all given chunks."""
    coords = np.array([(row_chunks[0], column_chunks[0]) for row_chunks, column_chunks in boxes])
    step = np.maximum(np.ptp(coords, axis=0) // 24 + 1, 1)
    cells = np.unique(coords // step, axis=0) * step
    last = coords.max(axis=0)
    return [
        (range(row, min(row + step[0], last[0] + 1)), range(column, min(column + step[1], last[1] + 1)))
        for row, column in cells.tolist()
    ]


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="za-hit"/>'
