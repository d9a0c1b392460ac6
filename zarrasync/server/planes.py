"""Planes of arrays and pyramids: statistics, axes and zooms, and tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display import values as value_text
from zarrasync.display.presentation import Presentation
from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions import Axis, Labels
from zarrasync.metadata.conventions.cf_labels import Query
from zarrasync.metadata.conventions.meaning import is_geographic
from zarrasync.nodes.access import array_of
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.nodes.statistics import Summary, sample, statistics_facts
from zarrasync.server.cache import Cache
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.coordinates import axes_of_array, axis_facts, is_south_first
from zarrasync.server.described import Described
from zarrasync.server.images import RGB, Style, render
from zarrasync.server.label_colours import flag_labels
from zarrasync.server.limits import BadQuery, TooMuch
from zarrasync.server.pyramid import TILE, Level, Pyramid, in_array, in_order
from zarrasync.server.query import Colours, plane_of
from zarrasync.server.selection import select

_SAMPLE_CELLS = 1 << 18
"""Number of values in a sample for statistics."""
_SAMPLE_BYTES = 32 << 20
"""Maximum number of bytes to decode for a sample."""
_LEAST_SAMPLE_BYTES = 1 << 22
"""Bytes to decode for a sample even if the chunk cache is small."""
_MOST_LEVELS = 32
_MOST_PIXELS = 720
"""The most pixels of a preview along each side."""
_MOST_LABELS = 10_000
"""Number of labels whose properties the viewer gets."""
_MOST_LEGEND = 64
"""Number of labels whose colours the viewer gets."""

TileNumber = tuple[int, int, int]
"""Zoom, column and row of a tile."""


class Planes:
    """Planes of a hierarchy, which consist of two axes: by default the last two.

    Args:
        described: The conventions of the served hierarchy.
        chunks: Reads its arrays.
        cache_bytes: Bytes of pictures to cache.

    Attributes:
        tiles: The cache of pictures.
    """

    def __init__(self, described: Described, chunks: ChunkReader, cache_bytes: int) -> None:
        self._hierarchy, self._chunks, self._described = described.hierarchy, chunks, described
        self.tiles: Cache[bytes] = Cache(cache_bytes, self._hierarchy.max_age, lambda tile: len(tile) + 500)

    # -------------------------------------------------------------- statistics

    async def statistics(self, path: str, index: str, bins: int, *, plane: str = "", decode: bool) -> dict[str, Any]:
        """Return statistics and a histogram of a plane, from a sample of its chunks."""
        pyramid = await self.pyramid(path, plane)
        summary, presentation = await self._summary(pyramid, await self.index(pyramid, index), bins, decode=decode)
        facts: dict[str, Any] = value_text.strict(statistics_facts(summary, presentation))
        return facts

    async def _summary(
        self, pyramid: Pyramid, index: tuple[int, ...], bins: int = 64, *, decode: bool
    ) -> tuple[Summary, Presentation]:
        """Return statistics of a plane, from the coarsest level with enough elements, and how the values are shown."""
        level = _sampled_level(pyramid)
        presentation = await self._described.presentation(level.array, decode=decode)
        total = math.prod(pyramid.shape)

        async def compute() -> Summary:
            view = self.sample(pyramid, index)
            return await self._chunks.read(view, partial(_summarize, presentation, total, bins))

        key = ("stats", self._hierarchy.version_key(level.array), level.order, total, index, bins, decode)
        return await self._hierarchy.cached(key, compute), presentation

    def sample(self, pyramid: Pyramid, index: tuple[int, ...]) -> AsyncSelection:
        """Return elements of a plane for statistics: all, or elements of some chunks of the coarsest level with enough elements."""
        level = _sampled_level(pyramid)
        cache_share = max(self._chunks.cache.max_bytes // 4, _LEAST_SAMPLE_BYTES)
        limit = min(self._hierarchy.limits.max_decoded_bytes, cache_share, _SAMPLE_BYTES)
        key = in_array([*level.index(index), None, None], level.order)
        return sample(level.array, key, limit, _SAMPLE_CELLS)

    async def _typical_summary(self, pyramid: Pyramid, *, decode: bool) -> Summary:
        """Return statistics of the first of three planes with finite values."""
        sizes = pyramid.levels[0].shape[:-2]
        for fraction in (0.0, 0.5, 1.0):
            index = tuple(int(fraction * (n - 1)) for n in sizes)
            summary, _ = await self._summary(pyramid, index, decode=decode)
            if summary.low is not None and summary.high is not None:
                break
        return summary

    # -------------------------------------------------------------- tiles

    async def view(self, path: str, *, plane: str = "", decode: bool) -> dict[str, Any]:
        """Return the axes, levels and zooms of an array or a pyramid.

        Raises:
            TooMuch: If even the smallest tile of the plane exceeds the limits.
        """
        pyramid = await self.pyramid(path, plane)
        finest, relative_path = pyramid.levels[0].array, self._hierarchy.relative_path
        order, is_default = pyramid.levels[0].order, not plane
        meaning = await self._described.meaning(path)
        presentation = await self._described.presentation(finest, decode=decode)
        located = await self.axes(pyramid)
        axes = [axis_facts(*item) for item in zip(order, located, pyramid.levels[0].shape, strict=True)]
        levels = [{"path": relative_path(level.array), "shape": list(level.array.shape)} for level in pyramid.levels]
        summary = await self._typical_summary(pyramid, decode=decode)
        return {
            "path": path.strip("/"),
            "array": relative_path(finest),
            "axes": axes,
            "order": order,
            "origin": _origin(located),
            "is_map": is_geographic(*located[-2:]),
            "dtype": finest.metadata.dtype.name,
            "tile": TILE,
            "max_zoom": pyramid.max_zoom,
            "min_zoom": self._min_zoom(pyramid),
            "levels": levels,
            "dataset": await self._described.dataset(relative_path(finest)),
            "labels": await self._described.label_images(path) if is_default else [],
            "is_labels": pyramid.labels is not None,
            "label_properties": _label_properties(pyramid.labels),
            "label_colours": _label_colours(pyramid),
            "samples": pyramid.samples,
            "channel": pyramid.channel,
            "has_colours": pyramid.has_colours,
            "encoded": presentation.encoding.changes_values,
            "decoded": decode,
            "unit": presentation.unit or (meaning.unit if decode else ""),
            "range": value_text.strict((0, 255) if pyramid.has_colours else _value_range(summary, finest.dtype)),
            "count": summary.count,
            "invalid": summary.invalid,
        }

    async def tile(
        self, path: str, number: TileNumber, *, index: str, colours: Colours, origin: str, decode: bool, plane: str = ""
    ) -> bytes:
        """Return a tile as a PNG of 256 x 256 pixels.

        Args:
            path: The path of an array or a pyramid.
            number: The zoom, the column and the row of the tile.
            index: The selected plane, as a selection of the axes outside of the plane.
            colours: The mapping of values to colours. By default, it has the range of the values.
            origin: The position of the first row: ``"upper"`` or ``"lower"``; empty for the north at the top.
            decode: Whether values are shown, instead of the stored numbers.
            plane: The numbers of the axes of rows and columns; by default the last two.
        """
        pyramid = await self.pyramid(path, plane)
        indices = await self.index(pyramid, index)
        origin = origin or _origin(await self.axes(pyramid))
        if origin not in ("upper", "lower"):
            raise BadQuery("origin must be upper or lower: the position of the first row")
        style = await self.style(pyramid, colours, decode=decode)
        versions = tuple(self._hierarchy.version_key(level.array) for level in pyramid.levels)
        key = (versions, pyramid.levels[0].order, indices, number, style, origin, decode)
        draw = partial(self._draw, pyramid, indices, number, style, is_flipped=origin == "lower", decode=decode)
        return await self.tiles.get(key, draw)

    async def preview(self, path: str, index: str) -> bytes:
        """Return a picture of a whole plane as a PNG of at most 720 pixels along each side, as the viewer first shows it."""
        pyramid = await self.pyramid(path)
        style = await self.style(pyramid, Colours(pyramid.colormap))
        is_flipped = _origin(await self.axes(pyramid)) == "lower"
        level, rows, columns = pyramid.overview(_MOST_PIXELS, is_flipped=is_flipped)
        view = pyramid.view(level, await self.index(pyramid, index), rows, columns, style.cmap)
        return await self._read(pyramid, view, style, None, decode=True)

    async def style(self, pyramid: Pyramid, colours: Colours, *, decode: bool = True) -> Style:
        """Return the mapping of the values of a pyramid to colours. By default, it has the range of the values.

        Raises:
            BadQuery: If the colour map is rgb, and the values have no channels of colours.
        """
        if colours.cmap == RGB and not pyramid.samples:
            raise BadQuery("the colour map rgb needs an axis of 3 or 4 channels that is not in the plane")
        value_range = (0.0, 255.0 if colours.cmap == RGB and pyramid.has_colours else 1.0)
        if value_range[1] == 1.0 and not colours.has_range:
            summary = await self._typical_summary(pyramid, decode=decode)
            value_range = _value_range(summary, pyramid.levels[0].array.dtype)
        return colours.style(*value_range, pyramid.colours)

    async def _draw(
        self,
        pyramid: Pyramid,
        index: tuple[int, ...],
        number: TileNumber,
        style: Style,
        *,
        is_flipped: bool,
        decode: bool,
    ) -> bytes:
        level, rows, columns = pyramid.tile(*number, is_flipped=is_flipped)
        view = pyramid.view(level, index, rows, columns, style.cmap)
        return await self._read(pyramid, view, style, (TILE, TILE), decode=decode)

    async def _read(
        self, pyramid: Pyramid, view: AsyncSelection, style: Style, size: tuple[int, int] | None, *, decode: bool
    ) -> bytes:
        presentation = await self._described.presentation(array_of(view), decode=decode)
        return await self._chunks.read(view, partial(_render, presentation, pyramid, style, size))

    async def axes(self, pyramid: Pyramid) -> list[Axis]:
        """Return the axes in the order of the levels, with their coordinates."""
        finest = pyramid.levels[0]
        return [*in_order(await axes_of_array(self._described, self._chunks, finest.array), finest.order)]

    def _min_zoom(self, pyramid: Pyramid) -> int:
        """Return the least zoom whose tiles are within the limits."""
        index = (0,) * (len(pyramid.axes) - 2)
        for zoom in range(pyramid.max_zoom + 1):
            level, rows, columns = pyramid.tile(zoom, 0, 0, is_flipped=False)
            try:
                self._chunks.check(pyramid.view(level, index, rows, columns))
            except TooMuch:
                if zoom == pyramid.max_zoom and pyramid.levels[0].order != tuple(range(len(pyramid.axes))):
                    raise
                continue
            return zoom
        return pyramid.max_zoom

    # -------------------------------------------------------------- pyramids

    async def pyramid(self, path: str, plane: str = "") -> Pyramid:
        """Return the pyramid of a node."""
        key = ("pyramid", path.strip("/"), plane)
        return await self._hierarchy.cached(key, partial(self._open_pyramid, path, plane))

    async def index(
        self, pyramid: Pyramid, text: str = "", labels: Mapping[str, Query] | None = None
    ) -> tuple[int, ...]:
        """Return the positions on the axes outside of a plane that select it; by default the first ones.

        Args:
            pyramid: The pyramid.
            text: A selection of these axes: ``0,3`` or ``time=0,level=3`` or ``time=2024-03-01``.
            labels: Labels of these axes, by name.

        Raises:
            SelectionError: If it selects several planes, or part of one.
        """
        array, order = pyramid.levels[0].array, pyramid.levels[0].order
        if not text and not labels:
            return (0,) * len(order[:-2])
        if text and "=" not in text and order != tuple(range(len(order))):
            items = text.split(",")
            if len(items) != len(order) - 2:
                raise SelectionError(
                    f"index must have one position for each of the {len(order) - 2} axes outside of the plane, such as 0,3; "
                    f"found {text[:40]!r}",
                    shape=array.shape,
                )
            text = ",".join(in_array([*items, ":", ":"], order))
        selection = await select(self._described, array, text or "...", labels)
        if not all(selection.is_whole(axis) for axis in order[-2:]):
            raise SelectionError(
                f"only the axes outside of the plane of {array.basename!r} can be selected: "
                f"{', '.join(selection.names[axis] for axis in order[:-2]) or 'it has none'}",
                shape=array.shape,
            )
        return tuple(selection.single(axis, 0) % array.shape[axis] for axis in order[:-2])

    async def _open_pyramid(self, path: str, plane: str) -> Pyramid:
        levels = await self._described.levels(path.strip("/"))
        arrays = [await self._hierarchy.array(level) for level in levels[:_MOST_LEVELS]]
        meaning = await self._described.meaning(levels[0])
        encoding = (await self._described.presentation(arrays[0])).encoding
        labels = meaning.labels or flag_labels(encoding.flags)
        return Pyramid.of(arrays, meaning.axes, labels, plane_of(plane, arrays[0].ndim))


def _sampled_level(pyramid: Pyramid) -> Level:
    """Return the coarsest level with enough elements for statistics."""
    large = [level for level in pyramid.levels if math.prod(level.shape[-2:]) >= _SAMPLE_CELLS // 4]
    return large[-1] if large else pyramid.levels[0]


def _origin(axes: Sequence[Axis]) -> str:
    """Return the position of the first row by default: maps show the north at the top."""
    return "lower" if is_south_first(axes[-2]) else "upper"


def _value_range(summary: Summary, dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the values of the first and the last colour."""
    if dtype.kind == "b" or summary.low is None or summary.high is None:
        return 0.0, 1.0
    return (summary.low, summary.high) if summary.low < summary.high else (summary.low, summary.low + 1)


def _label_properties(labels: Labels | None) -> dict[str, str]:
    """Return properties of labels as JSON."""
    texts = labels.properties if labels is not None else {}
    return {str(label): texts[label] for label in islice(texts, _MOST_LABELS)}


def _label_colours(pyramid: Pyramid) -> dict[str, str]:
    """Return the colours of labels with properties as JSON, in the notation of CSS."""
    labels = list(islice(pyramid.labels.properties if pyramid.labels is not None else {}, _MOST_LEGEND))
    colours = pyramid.colours(np.array(labels, np.int64)).tolist()
    return {str(label): "#" + bytes(colour).hex() for label, colour in zip(labels, colours, strict=True)}


def _render(
    presentation: Presentation, pyramid: Pyramid, style: Style, size: tuple[int, int] | None, stored: npt.NDArray[Any]
) -> bytes:
    values = pyramid.turned(presentation.numbers(stored))
    if size is None and max(values.shape[-2:]) < TILE:  # a small array is enlarged
        factor = TILE // max(values.shape[-2:])
        values = values.repeat(factor, axis=-2).repeat(factor, axis=-1)
    return render(values, style, size)


def _summarize(presentation: Presentation, total: int, bins: int, stored: npt.NDArray[Any]) -> Summary:
    values, summary = presentation.numbers(stored), Summary(total=total)
    summary.add(values)
    summary.bin(values, bins, trim=True)
    return summary
