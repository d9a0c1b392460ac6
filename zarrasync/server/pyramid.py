"""Planes at several resolutions, cut into tiles.

A plane consists of two axes, by default the last two. At zoom 0 one tile shows all of it. Each step doubles the resolution, up to the
last zoom, at which a pixel is an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions import Axis, Labels, axes_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.images import LABELS, RGB
from zarrasync.server.label_colours import LabelColours
from zarrasync.server.places import Indices, as_slice

TILE = 256
"""Pixels of a tile along each side."""
_TOLERANCE = 1.01
"""How much coarser a level may be than a zoom needs, because shapes of levels are rounded."""


@dataclass(frozen=True)
class Level:
    """One resolution of a pyramid.

    Attributes:
        array: The array.
        order: The axes of the array, with the axes of rows and columns of planes at the end.
        factors: For each axis in this order, the number of elements of the finest level per element of this level.
    """

    array: AsyncArray
    order: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes in the order."""
        return in_order(self.array.shape, self.order)

    def select(self, key: Sequence[Any]) -> AsyncSelection:
        """Return elements by an index for each axis in the order. Values that are read are turned by ``Pyramid.turned``."""
        return self.array.oindex[in_array(key, self.order)]

    def index(self, finest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the indices on this level's leading axes that correspond to indices on the finest level."""
        items = zip(finest, self.factors, self.shape[:-2], strict=False)
        return tuple(min(int((index + 0.5) / factor), size - 1) for index, factor, size in items)


@dataclass(frozen=True)
class Pyramid:
    """The resolutions of one plane, from the finest one on.

    Attributes:
        levels: The levels. A single array has one.
        axes: The axes in the order of the levels, with the coordinates of the finest level.
        labels: The colours and properties of labels, if it is a label image.
        samples: The number of samples of a colour: 3, or 4 with opacity; 0 for numbers.
        channel: The axis of the samples in the order.
    """

    levels: tuple[Level, ...]
    axes: tuple[Axis, ...]
    labels: Labels | None = None
    samples: int = 0
    channel: int = 0

    @cached_property
    def colours(self) -> LabelColours:
        """The colours of labels."""
        return LabelColours(self.labels.colours if self.labels is not None else None)

    @property
    def colormap(self) -> str:
        """The name of the colour map by default."""
        return RGB if self.has_colours else LABELS if self.labels is not None else "viridis"

    @classmethod
    def of(
        cls,
        arrays: Sequence[AsyncArray],
        axes: Sequence[Axis],
        labels: Labels | None = None,
        plane: tuple[int, int] | None = None,
    ) -> Pyramid:
        """Return the pyramid of arrays of the same plane.

        Args:
            arrays: The arrays.
            axes: The axes that conventions specify for the finest array.
            labels: What conventions specify about labels.
            plane: The axes of the rows and the columns; by default the last two that are not colours.

        Raises:
            SelectionError: If one has less than two axes, or another number of axes than the first one.
        """
        for array in arrays:
            if array.ndim < 2 or not array.size:
                raise SelectionError(
                    f"{array.name} of shape {array.shape} has no plane: it needs two axes with elements",
                    shape=array.shape,
                )
            if array.ndim != arrays[0].ndim:
                raise SelectionError(
                    f"{array.name} and the finest level of the pyramid differ in their axes", shape=array.shape
                )
        arrays = sorted(arrays, key=lambda array: -math.prod(array.shape[-2:]))
        finest, named = arrays[0], axes_of(arrays[0].metadata, tuple(axes))
        colours, samples = _colour_axis(named, finest)
        order = _order(finest.ndim, plane, colours)
        levels = [
            Level(array, order, in_order([n / size for n, size in zip(finest.shape, array.shape, strict=True)], order))
            for array in arrays
        ]
        samples = samples if colours in order[:-2] else 0
        return cls(tuple(levels), in_order(named, order), labels, samples, order.index(colours) if samples else 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the finest level."""
        rows, columns = self.levels[0].shape[-2:]
        return rows, columns

    def view(
        self, level: Level, index: tuple[int, ...], rows: Indices, columns: Indices, cmap: str = ""
    ) -> AsyncSelection:
        """Return elements of a plane, or of as many planes as colours have samples.

        Args:
            level: The level.
            index: The positions on the leading axes of the finest level.
            rows: The rows of the level.
            columns: The columns of the level.
            cmap: The colour map.
        """
        leading: list[Any] = [*level.index(index)]
        if cmap == RGB:
            leading[self.channel] = slice(0, self.samples)
        return level.select((*leading, as_slice(rows), as_slice(columns)))

    def turned(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of one or several planes, whose axes are in the order of the array, with rows and columns at the end."""
        order = self.levels[0].order
        axes = (*((order[self.channel],) if values.ndim > 2 else ()), *order[-2:])
        return values.transpose([sorted(axes).index(axis) for axis in axes])

    @property
    def has_colours(self) -> bool:
        """Whether the values are colours: bytes of red, green and blue, which are the last axis or named so."""
        finest = self.levels[0]
        is_named = self.samples > 0 and self.axes[self.channel].name.lower() in _COLOURS
        return is_named and finest.array.dtype == np.uint8

    @property
    def max_zoom(self) -> int:
        """The zoom at which a pixel is an element."""
        return max(0, math.ceil(math.log2(max(self.shape) / TILE)))

    def step(self, zoom: int) -> int:
        """Return the number of elements of the finest level along the side of a pixel."""
        return 1 << max(self.max_zoom - zoom, 0)

    def level(self, zoom: int) -> Level:
        """Return the coarsest level that is fine enough for a zoom."""
        return self.coarsest((self.step(zoom),) * 2)

    def coarsest(self, steps: Sequence[float]) -> Level:
        """Return the coarsest level whose elements are at most as large as pixels, or the finest one.

        Args:
            steps: The number of elements of the finest level along the height and the width of a pixel.
        """
        fine_enough = [
            level
            for level in self.levels
            if all(factor <= step * _TOLERANCE for factor, step in zip(level.factors[-2:], steps, strict=True))
        ]
        return fine_enough[-1] if fine_enough else self.levels[0]

    def overview(self, most: int, *, is_flipped: bool) -> tuple[Level, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the elements of a picture of all with a maximum number of pixels: the level, and its rows and columns."""
        zoom = max((z for z in range(self.max_zoom + 1) if max(self.shape) <= most * self.step(z)), default=0)
        return self._elements(zoom, (0, 0), max(self.shape), is_flipped=is_flipped)

    def tile(
        self, zoom: int, x: int, y: int, *, is_flipped: bool
    ) -> tuple[Level, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the elements that a tile shows.

        Args:
            zoom: The zoom.
            x: The tile's column.
            y: The tile's row, from the top.
            is_flipped: Whether the first row of elements is at the bottom.

        Returns:
            The level, and its rows and columns: one per pixel of the tile inside the plane.

        Raises:
            SelectionError: If the tile does not exist.
        """
        step = self.step(zoom)
        numbers = list(zip((y, x), self.shape, strict=True))
        if (
            not 0 <= zoom <= self.max_zoom
            or min(x, y) < 0
            or any(number * TILE * step >= extent for number, extent in numbers)
        ):
            raise SelectionError(
                f"the tile {zoom}/{x}/{y} does not exist; the zooms are 0 to {self.max_zoom}", shape=self.shape
            )
        return self._elements(zoom, (y * TILE, x * TILE), TILE, is_flipped=is_flipped)

    def _elements(
        self, zoom: int, first: tuple[int, int], pixels: int, *, is_flipped: bool
    ) -> tuple[Level, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        level, step = self.level(zoom), self.step(zoom)
        axes = zip(first, self.shape, level.factors[-2:], level.shape[-2:], strict=True)
        rows, columns = (
            _indices(begin, begin + pixels, extent, factor, size, step) for begin, extent, factor, size in axes
        )
        return level, level.shape[-2] - 1 - rows if is_flipped else rows, columns


_COLOURS = ("rgb", "rgba", "color", "colour", "")
"""Names of axes of colours. They are without a name in images of other programs."""
_CHANNELS = (*_COLOURS, "c", "channel", "band", "sample")
"""Names of axes whose first elements may be shown as red, green and blue."""

T = TypeVar("T")


def in_order(items: Sequence[T], order: Sequence[int]) -> tuple[T, ...]:
    """Return items of the axes of an array in another order."""
    return tuple(items[axis] for axis in order)


def in_array(items: Sequence[T], order: Sequence[int]) -> tuple[T, ...]:
    """Return items of axes in an order, in the order of the array."""
    return tuple(items[order.index(axis)] for axis in range(len(order)))


def _colour_axis(axes: Sequence[Axis], array: AsyncArray) -> tuple[int, int]:
    """Return the axis of colours, and the number of samples of a colour; -1 and 0 without one."""
    for number, (axis, size) in enumerate(zip(axes, array.shape, strict=True)):
        name = axis.name.lower().removesuffix("s")
        is_last = number == array.ndim - 1 and array.dtype == np.uint8
        if size in (3, 4) and array.ndim > 2 and name in _CHANNELS and (name or is_last):
            # The fourth of other channels is another channel, such as the near infrared.
            return number, size if name in ("rgba", "") else 3
    return -1, 0


def _order(ndim: int, plane: tuple[int, int] | None, colours: int) -> tuple[int, ...]:
    rows, columns = plane or [axis for axis in range(ndim) if axis != colours or colours != ndim - 1][-2:]
    return (*(axis for axis in range(ndim) if axis not in (rows, columns)), rows, columns)


def _indices(first: int, stop: int, extent: int, factor: float, size: int, step: int) -> npt.NDArray[np.int64]:
    """Return the indices that pixels show along an axis of a level.

    Args:
        first: The first pixel.
        stop: The pixel after the last one. Pixels outside of the plane show nothing.
        extent: Elements of the finest level along the axis.
        factor: Elements of the finest level per element of this one.
        size: Elements of this level along the axis.
        step: Elements of the finest level per pixel.
    """
    pixels = np.arange(first, min(stop, -(-extent // step)))
    centres = np.minimum(pixels * step + step // 2, extent - 1)
    return np.minimum((centres / factor).astype(np.int64), size - 1)
