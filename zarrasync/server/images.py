"""Pictures of values: PNG images with a palette, or of colours."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import cmap
import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions import RGBA
from zarrasync.server.compression import compressor
from zarrasync.server.label_colours import LabelColours
from zarrasync.server.limits import BadQuery

LABELS = "labels"
"""The colour map of label images: a colour for each integer, and none for 0."""
RGB = "rgb"
"""The colour map of images whose values are red, green and blue."""
CUSTOM = "custom"
"""The name of colour maps that requests contain."""
Scale: TypeAlias = Literal["linear", "log", "diverging"]
"""The scale of colours: ``"diverging"`` has 0 in the middle, and equal steps on both sides."""
_LOG_RANGE = 1000.0
"""Ratio of the ends of a logarithmic scale whose lower end is not positive."""
_TRANSPARENT = 0
"""The palette entry of missing values."""
_COLOURS = 255
"""Palette entries of values, after the transparent one."""


@dataclass(frozen=True)
class Style:
    """The mapping of values to colours.

    Attributes:
        cmap: The name of a colour map.
        low: The value of its first colour.
        high: The value of its last colour.
        scale: The scale of the colours in between.
        labels: The colours of labels, if the colour map is the one of label images.
        below: The colour of lower values; ``None`` for the first colour.
        above: The colour of higher values; ``None`` for the last colour.
        intervals: The values of ``colours``, each from the first end to before the second one, or one
            value if both are equal; others are transparent.
        colours: Own colours of intervals, or of a scale if none are given.
    """

    cmap: str
    low: float
    high: float
    scale: Scale = "linear"
    labels: LabelColours = field(default_factory=LabelColours)
    below: RGBA | None = None
    above: RGBA | None = None
    intervals: tuple[tuple[float, float], ...] = ()
    colours: tuple[RGBA, ...] = ()

    @property
    def ends(self) -> tuple[float, float]:
        """The values of the first and the last colour on its scale."""
        if self.scale != "diverging":
            return self.low, self.high
        most = max(abs(self.low), abs(self.high))
        return -most, most

    @property
    def positive(self) -> tuple[float, float]:
        """The ends of a logarithmic scale. If one is not positive, it is some decades below the other one."""
        greatest = max(self.low, self.high)
        least = greatest / _LOG_RANGE if greatest > 0 else 1.0
        return (self.low if self.low > 0 else least), (self.high if self.high > 0 else least)


def palette_of(name: str) -> bytes:
    """Return red, green and blue of the 256 palette entries of a colour map. The first entry is transparent.

    Raises:
        BadQuery: If no map has this name.
    """
    return bytes(3) + _colours_of(name, _COLOURS)


@lru_cache(maxsize=64)
def _colours_of(name: str, count: int) -> bytes:
    try:
        colormap = cmap.Colormap(name)
    except (ValueError, TypeError, KeyError) as error:
        raise BadQuery(f"unknown colour map {name[:40]!r}; try viridis, magma or gray") from error
    table = colormap(np.linspace(0, 1, count))
    return (np.asarray(table)[:, :3] * 255 + 0.5).astype(np.uint8).tobytes()


def palette(style: Style) -> tuple[bytes, bytes]:
    """Return red, green and blue, and the opacity, of palette entries: the first and the last one may have own colours."""
    below, above = ([] if colour is None else [colour] for colour in (style.below, style.above))
    count = len(style.colours) if style.intervals else _COLOURS - len(below) - len(above)
    if style.colours:
        shown = [style.colours[round(place)] for place in np.linspace(0, len(style.colours) - 1, count)]
    else:
        named = np.frombuffer(_colours_of(style.cmap, count), np.uint8).reshape(-1, 3)
        shown = [(red, green, blue, 255) for red, green, blue in named.tolist()]
    entries = np.array([(0, 0, 0, 0), *below, *shown, *above], np.uint8)  # the first one is the transparent one
    return entries[:, :3].tobytes(), entries[:, 3].tobytes()


def render(values: npt.NDArray[Any], style: Style, size: tuple[int, int] | None = None) -> bytes:
    """Return values as a PNG. Missing values, and pixels without values, are transparent.

    Args:
        values: Real numbers of shape (rows, columns), or (3 or 4, rows, columns) for colours. NaN and masked ones are
            missing.
        style: Their colours.
        size: The height and the width in pixels; by default one pixel per value.

    Raises:
        SelectionError: If the values are not real numbers.
    """
    if values.dtype.kind not in "biuf":
        raise SelectionError(f"a picture needs real numbers, found {values.dtype}", shape=values.shape)
    if values.ndim != 2 + (style.cmap == RGB):
        raise SelectionError(
            f"a picture with the colour map {style.cmap} cannot show values of shape {values.shape}", shape=values.shape
        )
    is_palette = style.cmap not in (LABELS, RGB)
    if is_palette:
        pixels = _palette_entries(values, style)[..., None]
    else:
        pixels = style.labels(values) if style.cmap == LABELS else _colours(values, style)
    return encode(pixels, size, palette(style) if is_palette else None)


def encode(
    pixels: npt.NDArray[np.uint8], size: tuple[int, int] | None = None, palette: tuple[bytes, bytes] | None = None
) -> bytes:
    """Return pixels as a PNG.

    Args:
        pixels: Palette entries of shape (rows, columns, 1), or red, green, blue and opacity of shape (rows, columns, 4).
        size: The height and the width in pixels, if they are larger. Pixels outside are transparent.
        palette: Red, green and blue of each entry, and their opacity; ``None`` for colours.
    """
    # As specified by the W3C, third edition. Image libraries take four times as long, because they compress harder than it is
    # worth for a tile.
    rows, columns, depth = pixels.shape
    height, width = size or (rows, columns)
    lines = np.zeros((height, 1 + depth * width), np.uint8)  # a line begins with the number of its filter: none
    lines[:rows, 1 : 1 + depth * columns] = pixels.reshape(rows, -1)
    deflate = compressor()
    data = deflate.compress(lines) + deflate.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 6 if palette is None else 3, 0, 0, 0)  # with 8 bits
    entries = () if palette is None else ((b"PLTE", palette[0]), (b"tRNS", palette[1].rstrip(b"\xff")))
    parts = ((b"IHDR", header), *entries, (b"IDAT", data), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(part, zlib.crc32(kind)))
        for kind, part in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _palette_entries(values: npt.NDArray[Any], style: Style) -> npt.NDArray[np.uint8]:
    """Return values as numbers of palette entries: 1 to 255, or 0 for missing ones."""
    if style.intervals:
        return _interval_entries(values, style)
    begin, end = style.ends
    numbers, low, high = _as_floats(np.ma.getdata(values), begin, end)
    with np.errstate(all="ignore"):
        if style.scale == "log":
            numbers = np.log(numbers + (begin - low))
            low, high = map(math.log, style.positive)
        first, last = 1.0 + (style.below is not None), _COLOURS - 1.0 * (style.above is not None)
        is_below = numbers < min(low, high) if style.below is not None else None
        is_above = numbers > max(low, high) if style.above is not None else None
        numbers -= low
        numbers *= (last - first) / ((high - low) or 1.0)
        numbers += first
        missing = np.isnan(numbers) | np.ma.getmask(values)
        np.clip(numbers, first, last, out=numbers)
        for is_outside, entry in ((is_below, 1), (is_above, _COLOURS)):
            if is_outside is not None:
                numbers[is_outside] = entry
        numbers[missing] = _TRANSPARENT
        return numbers.astype(np.uint8)


def _interval_entries(values: npt.NDArray[Any], style: Style) -> npt.NDArray[np.uint8]:
    """Return values as numbers of palette entries of intervals: the first one that contains a value."""
    numbers, entries = np.ma.getdata(values), np.full(values.shape, _TRANSPARENT, np.uint8)
    for entry, (low, high) in reversed([*enumerate(style.intervals, 1)]):
        value: float = int(low) if low.is_integer() else low  # integers are compared exactly
        entries[numbers == value if low == high else (numbers >= low) & (numbers < high)] = entry
    entries[np.ma.getmaskarray(values)] = _TRANSPARENT
    return entries


def _colours(values: npt.NDArray[Any], style: Style) -> npt.NDArray[np.uint8]:
    """Return red, green, blue and opacity of pixels. A missing sample makes the pixel transparent."""
    low, high = style.ends
    numbers = np.ma.filled(np.ma.asarray(values).astype(np.float64), np.nan)
    missing = np.isnan(numbers).any(axis=0)
    with np.errstate(invalid="ignore"):
        scaled = np.clip((numbers - low) / ((high - low) or 1.0), 0, 1)
    pixels = np.full((*missing.shape, 4), 255, np.uint8)
    pixels[..., : len(values)] = np.moveaxis(np.rint(np.nan_to_num(scaled) * 255), 0, -1)
    pixels[missing] = 0
    return pixels


def _as_floats(values: npt.NDArray[Any], low: float, high: float) -> tuple[npt.NDArray[np.floating[Any]], float, float]:
    """Return values and the ends of a scale as floats, shifted so that large integers keep their differences."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        is_single = values.dtype.itemsize < 4 or values.dtype == np.float32
        return values.astype(np.float32 if is_single else np.float64), low, high
    limits = np.iinfo(values.dtype)
    least = max(int(limits.min), min(int(limits.max), math.floor(min(low, high))))
    # The difference of any two 64-bit integers fits an unsigned one.
    shifted = np.maximum(values, least).astype(np.uint64) - np.uint64(least % (1 << 64))
    return shifted.astype(np.float64), low - least, high - least
