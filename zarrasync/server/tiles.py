"""Planes of arrays as pictures: which elements a tile shows, from which level of a pyramid, and how they are coloured.

A plane is made of the last two axes. Zoom 0 shows all of it in one tile; each step doubles the resolution until the
last, where a pixel is an element.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.limits import BadQuery

__all__ = ["TILE", "Level", "Pyramid", "Style", "colours", "png", "pyramid_paths", "render"]

TILE = 256
"""Pixels of a tile along each side."""
_DECADES = 1000.0
"""What a logarithmic scale spans whose lower end is not above zero."""
_CLEAR = 0
"""The palette's entry for what has no value."""


@dataclass(frozen=True)
class Level:
    """One resolution of a pyramid.

    Attributes:
        array: The array.
        factor: Per axis, how many elements of the finest level one of this level stands for.
    """

    array: AsyncArray
    factor: tuple[float, ...]

    def index(self, finest: tuple[int, ...]) -> tuple[int, ...]:
        """Indices on the leading axes of the finest level as those of this one."""
        sizes = self.array.shape[:-2]
        places = zip(finest, self.factor, sizes, strict=False)
        return tuple(min(int((at + 0.5) / factor), size - 1) for at, factor, size in places)


@dataclass(frozen=True)
class Pyramid:
    """The resolutions of one plane, the finest first.

    Attributes:
        levels: The levels; an array alone has one.
    """

    levels: tuple[Level, ...]

    @classmethod
    def of(cls, arrays: Sequence[AsyncArray]) -> Pyramid:
        """The pyramid of arrays of falling resolution.

        Raises:
            SelectionError: If one has less than two axes.
        """
        for array in arrays:
            if array.ndim < 2 or not array.size:
                raise SelectionError(
                    f"{array.name} of shape {array.shape} has no plane: that takes two axes with elements",
                    shape=array.shape,
                )
            if array.ndim != arrays[0].ndim:
                raise SelectionError(
                    f"{array.name} has other axes than the finest level of the pyramid", shape=array.shape
                )
        finest = arrays[0].shape
        return cls(tuple(Level(a, tuple(n / own for n, own in zip(finest, a.shape, strict=True))) for a in arrays))

    @property
    def shape(self) -> tuple[int, int]:
        """Elements of the finest level down and across."""
        rows, columns = self.levels[0].array.shape[-2:]
        return rows, columns

    @property
    def max_zoom(self) -> int:
        """The zoom at which a pixel is an element."""
        return max(0, math.ceil(math.log2(max(self.shape) / TILE)))

    def step(self, zoom: int) -> int:
        """Elements of the finest level along the side of a pixel."""
        return 1 << max(self.max_zoom - zoom, 0)

    def level(self, zoom: int) -> Level:
        """The coarsest level that is fine enough for a zoom."""
        fit = [level for level in self.levels if max(level.factor[-2:]) <= self.step(zoom) * 1.01]
        return fit[-1] if fit else self.levels[0]

    def tile(
        self, zoom: int, x: int, y: int, *, lower: bool
    ) -> tuple[Level, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """What a tile shows.

        Args:
            zoom: The zoom.
            x: The tile's column.
            y: Its row, from above.
            lower: Whether the first row of elements lies below.

        Returns:
            The level, and its rows and columns, as many as the tile has pixels that lie inside.

        Raises:
            SelectionError: If there is no such tile.
        """
        step = self.step(zoom)
        if (
            not 0 <= zoom <= self.max_zoom
            or min(x, y) < 0
            or any(place * TILE * step >= extent for place, extent in zip((y, x), self.shape, strict=True))
        ):
            raise SelectionError(
                f"there is no tile {zoom}/{x}/{y}; the zooms are 0 to {self.max_zoom}", shape=self.shape
            )
        level = self.level(zoom)
        found = []
        for place, extent, factor, own in zip(
            (y, x), self.shape, level.factor[-2:], level.array.shape[-2:], strict=True
        ):
            pixels = np.arange(place * TILE, min((place + 1) * TILE, -(-extent // step)))
            # The element in the middle of what a pixel stands for.
            finest = np.minimum(pixels * step + step // 2, extent - 1)
            found.append(np.minimum((finest / factor).astype(np.int64), own - 1))
        rows, columns = found
        if lower:
            rows = level.array.shape[-2] - 1 - rows
        return level, rows, columns


def pyramid_paths(attributes: Mapping[str, Any]) -> list[str]:
    """The paths of a group's pyramid, the finest first, as OME-Zarr has them (0.4, and 0.5 below ``ome``)."""
    home = attributes.get("ome")
    listed = (home if isinstance(home, Mapping) else attributes).get("multiscales")
    first = listed[0] if isinstance(listed, list) and listed else None
    datasets = first.get("datasets") if isinstance(first, Mapping) else None
    if not isinstance(datasets, list):
        return []
    return [own["path"] for own in datasets if isinstance(own, Mapping) and isinstance(own.get("path"), str)]


# ------------------------------------------------------------------ colours


@dataclass(frozen=True)
class Style:
    """How values become colours.

    Attributes:
        cmap: The name of a colour map.
        low: The value of its first colour.
        high: The value of its last.
        scale: Whether what lies between is linear or logarithmic.
    """

    cmap: str
    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"

    @property
    def positive(self) -> tuple[float, float]:
        """Its ends where only what is above zero has a place: some decades below the other one if need be."""
        greatest = max(self.low, self.high)
        least = greatest / _DECADES if greatest > 0 else 1.0
        return (self.low if self.low > 0 else least), (self.high if self.high > 0 else least)


@lru_cache(maxsize=64)
def colours(name: str) -> bytes:
    """The palette of a colour map: red, green and blue of 256 entries, the first of which is for what has no value.

    Raises:
        BadQuery: If there is no such map.
    """
    import cmap

    try:
        found = cmap.Colormap(name)
    except (ValueError, TypeError, KeyError) as error:
        raise BadQuery(f"there is no colour map {name[:40]!r}; viridis, magma, gray and many others are") from error
    table = found(np.linspace(0, 1, 255))
    return bytes(3) + (np.asarray(table)[:, :3] * 255 + 0.5).astype(np.uint8).tobytes()


def render(values: npt.NDArray[Any], style: Style, size: tuple[int, int] | None = None) -> bytes:
    """Values as a PNG with a palette; NaN, and what lies outside the values, is transparent.

    Args:
        values: Real numbers of shape (rows, columns).
        style: Their colours.
        size: Pixels down and across, if more than there are values.

    Raises:
        SelectionError: If they are no real numbers.
    """
    rows, columns = values.shape
    down, across = size or values.shape
    lines = np.zeros((down, across + 1), np.uint8)  # each line begins with its filter: none
    lines[:rows, 1 : columns + 1] = _levels(values, style)
    return png(lines, colours(style.cmap), bytes([_CLEAR]))


def png(lines: npt.NDArray[np.uint8], palette: bytes, alpha: bytes) -> bytes:
    """A picture of palette entries as a PNG (W3C, third edition).

    Libraries take four times as long, nearly all of it for deflating harder than a tile is worth.

    Args:
        lines: Palette entries of shape (rows, 1 + columns), with a zero before each line.
        palette: Red, green and blue of each entry.
        alpha: The opacity of the first entries; the others are opaque.
    """
    rows, columns = lines.shape
    head = struct.pack(">IIBBBBB", columns - 1, rows, 8, 3, 0, 0, 0)  # 8 bits, a palette
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"tRNS", alpha), (b"IDAT", _deflate(lines)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def _deflate(data: npt.NDArray[np.uint8]) -> bytes:
    try:
        from isal import isal_zlib
    except ImportError:  # it is not built for every machine
        return zlib.compress(data, 1)
    packed: bytes = isal_zlib.compress(data, 1)
    return packed


def _levels(values: npt.NDArray[Any], style: Style) -> npt.NDArray[np.uint8]:
    """Values as numbers of palette entries, 1 to 255, or 0 for none."""
    if values.dtype.kind not in "biuf":
        raise SelectionError(f"{values.dtype} values have no colours: that takes real numbers", shape=values.shape)
    low, high = style.low, style.high
    exact: npt.NDArray[np.floating[Any]]
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:  # differences of large integers are small
        least = max(int(np.iinfo(values.dtype).min), min(int(np.iinfo(values.dtype).max), math.floor(min(low, high))))
        # All of them can be told in 64 bits, if these have no sign.
        exact = (np.maximum(values, least).astype(np.uint64) - np.uint64(least % (1 << 64))).astype(np.float64)
        low, high = low - least, high - least
    else:
        exact = values.astype(np.float32 if values.dtype.itemsize < 4 or values.dtype == np.float32 else np.float64)
    with np.errstate(all="ignore"):
        if style.scale == "log":
            exact = np.log(exact + (style.low - low))
            low, high = map(math.log, style.positive)
        exact -= low
        exact *= 254.0 / ((high - low) or 1.0)
        exact += 1.0
        none = np.isnan(exact)
        np.clip(exact, 1, 255, out=exact)
        exact[none] = _CLEAR
        return exact.astype(np.uint8)
