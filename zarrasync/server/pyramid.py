"""Planes at several resolutions, cut into tiles.

A plane consists of the last two axes. At zoom 0 one tile shows all of it. Each step doubles the resolution, up to the
last zoom, at which a pixel is an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zarrasync.errors import SelectionError
from zarrasync.metadata.conventions import Axis, Labels, axes_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.label_colours import LabelColours

__all__ = ["TILE", "Level", "Pyramid"]

TILE = 256
"""Pixels of a tile along each side."""
_TOLERANCE = 1.01
"""How much coarser a level may be than a zoom needs, because shapes of levels are rounded."""


@dataclass(frozen=True)
class Level:
    """One resolution of a pyramid.

    Attributes:
        array: The array.
        factors: For each axis, the number of elements of the finest level per element of this level.
    """

    array: AsyncArray
    factors: tuple[float, ...]

    def index(self, finest: tuple[int, ...]) -> tuple[int, ...]:
        """Return the indices on this level's leading axes that correspond to indices on the finest level."""
        items = zip(finest, self.factors, self.array.shape[:-2], strict=False)
        return tuple(min(int((index + 0.5) / factor), size - 1) for index, factor, size in items)


@dataclass(frozen=True)
class Pyramid:
    """The resolutions of one plane, from the finest one on.

    Attributes:
        levels: The levels. A single array has one.
        axes: The axes, with the coordinates of the finest level.
        labels: The colours and properties of labels, if it is a label image.
    """

    levels: tuple[Level, ...]
    axes: tuple[Axis, ...]
    labels: Labels | None = None

    @cached_property
    def colours(self) -> LabelColours:
        """The colours of labels."""
        return LabelColours(self.labels.colours if self.labels is not None else None)

    @classmethod
    def of(cls, arrays: Sequence[AsyncArray], axes: Sequence[Axis], labels: Labels | None = None) -> Pyramid:
        """Return the pyramid of arrays of the same plane.

        Args:
            arrays: The arrays.
            axes: The axes that conventions specify for the finest array.
            labels: What conventions specify about labels.

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
        finest = arrays[0].shape
        factors = [tuple(n / size for n, size in zip(finest, array.shape, strict=True)) for array in arrays]
        return cls(tuple(map(Level, arrays, factors)), axes_of(arrays[0].metadata, tuple(axes)), labels)

    @property
    def names(self) -> list[str | None]:
        """The names of the axes."""
        return [axis.name or None for axis in self.axes]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the finest level."""
        rows, columns = self.levels[0].array.shape[-2:]
        return rows, columns

    @property
    def max_zoom(self) -> int:
        """The zoom at which a pixel is an element."""
        return max(0, math.ceil(math.log2(max(self.shape) / TILE)))

    def step(self, zoom: int) -> int:
        """Return the number of elements of the finest level along the side of a pixel."""
        return 1 << max(self.max_zoom - zoom, 0)

    def level(self, zoom: int) -> Level:
        """Return the coarsest level that is fine enough for a zoom."""
        fine_enough = [level for level in self.levels if max(level.factors[-2:]) <= self.step(zoom) * _TOLERANCE]
        return fine_enough[-1] if fine_enough else self.levels[0]

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
        level = self.level(zoom)
        axes = zip(numbers, level.factors[-2:], level.array.shape[-2:], strict=True)
        rows, columns = (_tile_indices(*item, factor, size, step) for item, factor, size in axes)
        return level, level.array.shape[-2] - 1 - rows if is_flipped else rows, columns


def _tile_indices(number: int, extent: int, factor: float, size: int, step: int) -> npt.NDArray[np.int64]:
    """Return the indices that a tile shows along an axis of a level.

    Args:
        number: The tile's row or column.
        extent: Elements of the finest level along the axis.
        factor: Elements of the finest level per element of this one.
        size: Elements of this level along the axis.
        step: Elements of the finest level per pixel.
    """
    pixels = np.arange(number * TILE, min((number + 1) * TILE, -(-extent // step)))
    centres = np.minimum(pixels * step + step // 2, extent - 1)
    return np.minimum((centres / factor).astype(np.int64), size - 1)
