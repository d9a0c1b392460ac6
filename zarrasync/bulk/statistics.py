"""Numbers that describe the values of an array: in one pass over all of them, or from a sample of its chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import NodeTypeError
from zarrasync.model.chunk_grids import Axis

if TYPE_CHECKING:
    from zarrasync.nodes.array import AsyncArray
    from zarrasync.nodes.selection import AsyncSelection

__all__ = ["Summary", "sample", "summarize"]

_CHUNKS = 400
"""Chunks that a sample is taken from."""


@dataclass
class Summary:
    """What values are like.

    Attributes:
        count: Values that were looked at.
        invalid: Of these, NaN.
        infinite: Of these, infinities, which the other numbers leave out.
        minimum: The least, ``None`` if there is none.
        maximum: The greatest.
        mean: The mean.
        std: The standard deviation (of the population).
        total: Values there are; more than ``count`` if a sample was taken.
        histogram: How many values lie in each of as many ranges of one width from ``low`` to ``high``.
        low: Where the first of these ranges begins: the 0.5th percentile of a sample, or the minimum.
        high: Where the last ends.
    """

    count: int = 0
    invalid: int = 0
    infinite: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    total: int = 0
    histogram: list[int] = field(default_factory=list)
    low: float | None = None
    high: float | None = None
    _valid: int = field(default=0, repr=False)
    _squares: float = field(default=0.0, repr=False)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Take more values into account."""
        own = _numbers(values)
        valid = _finite(own)
        self.count += values.size
        self.infinite += int(np.isinf(own).sum()) if own.dtype.kind == "f" else 0
        self.invalid += int(np.isnan(own).sum()) if own.dtype.kind == "f" else 0
        if not valid.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # what has no finite sum has no finite mean
            low, high = valid.min().item(), valid.max().item()
            self.minimum = low if self.minimum is None else min(low, self.minimum)
            self.maximum = high if self.maximum is None else max(high, self.maximum)
            # Chan's way to join the moments of two sets, which keeps the digits where the mean is large.
            known, mean = self._valid, float(valid.mean(dtype=np.float64))
            squares = float(np.square(np.subtract(valid, mean, dtype=np.float64)).sum())
            self._valid += valid.size
            apart = mean - (self.mean or 0.0)
            self.mean = (self.mean or 0.0) + apart * valid.size / self._valid
            self._squares += squares + apart * apart * known * valid.size / self._valid
            self.std = math.sqrt(self._squares / self._valid)

    def bin(self, values: npt.NDArray[Any], bins: int, *, trim: bool) -> None:
        """Make the histogram of values, between their extremes or (``trim``) between outer percentiles."""
        own = _finite(_numbers(values))
        if not own.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = (float(n) for n in (np.percentile(own, (0.5, 99.5)) if trim else (own.min(), own.max())))
        if not low < high:
            low, high = float(own.min()), float(own.max())
        self.histogram, self.low, self.high = _histogram(own, low, high, bins).tolist(), low, high

    def to_dict(self) -> dict[str, Any]:
        """The numbers for JSON."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def _numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.dtype.kind == "f" or values.dtype.kind in "iu":
        return values.astype(np.float32) if values.dtype.itemsize < 4 and values.dtype.kind == "f" else values
    raise NodeTypeError(f"there are no statistics of {values.dtype} values", found=str(values.dtype), wanted="numbers")


def _finite(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _histogram(values: npt.NDArray[Any], low: float, high: float, bins: int) -> npt.NDArray[np.int64]:
    """How many values lie in each of some ranges of one width; all in the first where there is no width to speak of.

    NumPy's refuses ranges that are narrow beside their values, such as those of a plane of one value.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.multiply(values, 0.5, dtype=np.float64) - low / 2  # so that the span of all floats is a number
        width = (high / 2 - low / 2) / bins
        inside = half[(half >= 0) & (half <= high / 2 - low / 2)]
        places = inside / width if width > 0 else np.zeros(len(inside))
    return np.bincount(np.minimum(places.astype(np.int64), bins - 1), minlength=bins)


async def summarize(view: AsyncSelection, bins: int = 0) -> Summary:
    """Describe all values of a selection, block by block.

    Args:
        view: The selection.
        bins: Parts of a histogram; it takes a second pass.

    Raises:
        NodeTypeError: If the values are no real numbers.
    """
    summary = Summary(total=view.size)
    _numbers(np.empty(0, view.dtype))
    async for _, block in view.chunks():
        summary.add(block)
    if bins and summary.minimum is not None and summary.maximum is not None:
        low, high = summary.minimum, summary.maximum
        counts = np.zeros(bins, np.int64)
        async for _, block in view.chunks():
            counts += _histogram(_finite(_numbers(block)), low, high, bins)
        summary.histogram, summary.low, summary.high = counts.tolist(), low, high
    return summary


def sample(array: AsyncArray, index: Sequence[int | None], limit: int, cells: int = 1 << 20) -> AsyncSelection:
    """A selection of whole chunks here and there, thinned out, that stands for more.

    Args:
        array: The array.
        index: Per axis the index that is held, or ``None`` for all of the axis.
        limit: Bytes to decode at the most (or one chunk).
        cells: Values to take at the most.
    """
    metadata = array.metadata
    grid = metadata.read_grid
    each = metadata.chain.nbytes / math.prod(metadata.write_chunks) * math.prod(metadata.chunks)
    free = [axis for axis, held in enumerate(index) if held is None]
    steps = dict.fromkeys(free, 1)

    def taken(axis: int) -> int:
        return -(-grid.shape[axis] // steps[axis])

    def chosen_chunks() -> int:
        return math.prod(map(taken, free))

    while (chosen_chunks() * each > limit or chosen_chunks() > _CHUNKS) and any(taken(axis) > 1 for axis in free):
        steps[max(free, key=taken)] *= 2
    chosen = {axis: _members(grid.axes[axis], steps[axis]) for axis in free}
    while math.prod(len(own) for own in chosen.values()) > cells:
        longest = max(chosen, key=lambda axis: len(chosen[axis]))
        chosen[longest] = chosen[longest][::2]
    return array.oindex[tuple(chosen[axis] if held is None else held for axis, held in enumerate(index))]


def _members(axis: Axis, step: int) -> npt.NDArray[np.int64]:
    """The indices in every so many-th chunk of an axis."""
    if step == 1:
        return np.arange(axis.extent)
    first = min(step // 2, axis.nchunks - 1)
    spans = [
        np.arange(axis.start(chunk), min(axis.start(chunk) + axis.size(chunk), axis.extent))
        for chunk in range(first, axis.nchunks, step)
    ]
    return np.concatenate(spans)
