"""Summary statistics of all values of an array, or of a sample of its chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display.presentation import Presentation
from zarrasync.errors import NodeTypeError
from zarrasync.model.chunk_grids import GridAxis
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection

_MOST_CHUNKS = 400
"""The maximum number of chunks in a sample."""


@dataclass
class Summary:
    """Summary statistics of values.

    Attributes:
        count: The number of values, including missing ones and infinities.
        invalid: The number of missing values: NaN, and masked ones.
        infinite: The number of infinities.
        minimum: The smallest finite value, or ``None`` if all values are invalid or infinite.
        maximum: The largest finite value.
        mean: The mean of the finite values.
        std: The population standard deviation of the finite values.
        total: The number of values in the selection; greater than ``count`` for a sample.
        histogram: Counts of values in bins of equal width from ``low`` to ``high``.
        low: The left edge of the histogram: the 0.5th percentile of a sample, or the minimum.
        high: The right edge of the histogram: the 99.5th percentile of a sample, or the maximum.
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
        """Include more values, which may be masked."""
        numbers = _numbers(values)
        valid = _finite(numbers)
        infinite = int(np.isinf(numbers).sum()) if numbers.dtype.kind == "f" else 0
        own = Summary(values.size, values.size - valid.size - infinite, infinite, _valid=valid.size)
        if valid.size:
            own.minimum, own.maximum = valid.min().item(), valid.max().item()
            with np.errstate(over="ignore", invalid="ignore"):  # the sum may overflow
                own.mean = float(valid.mean(dtype=np.float64))
                own._squares = float(np.square(np.subtract(valid, own.mean, dtype=np.float64)).sum())
        self.merge(own)

    def merge(self, other: Summary) -> None:
        """Include the values of another summary, but not its histogram."""
        self.count += other.count
        self.infinite += other.infinite
        self.invalid += other.invalid
        if other.minimum is None or other.maximum is None or other.mean is None:
            return
        self.minimum = other.minimum if self.minimum is None else min(other.minimum, self.minimum)
        self.maximum = other.maximum if self.maximum is None else max(other.maximum, self.maximum)
        # Chan's method of combining moments, which is precise even if the mean is large.
        before, delta = self._valid, other.mean - (self.mean or 0.0)
        self._valid += other._valid
        with np.errstate(over="ignore", invalid="ignore"):
            share = other._valid / self._valid
            self.mean = (self.mean or 0.0) + delta * share
            self._squares += other._squares + delta * delta * before * share
            self.std = math.sqrt(self._squares / self._valid)

    def bin(self, values: npt.NDArray[Any], bins: int, *, trim: bool) -> None:
        """Compute the histogram, from the minimum to the maximum or (``trim``) between the outer percentiles."""
        finite = _finite(_numbers(values))
        if not finite.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            # As floats, because differences of small integers overflow.
            edges = np.percentile(finite.astype(np.float64), (0.5, 99.5)) if trim else (finite.min(), finite.max())
        low, high = (float(edge) for edge in edges)
        if not low < high:
            low, high = float(finite.min()), float(finite.max())
        self.histogram, self.low, self.high = _histogram(finite, low, high, bins).tolist(), low, high

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as a dict of JSON values."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def statistics_facts(summary: Summary, presentation: Presentation) -> dict[str, Any]:
    """Return statistics as a dict of JSON values, and their unit. Statistics of times are dates as well."""
    facts = summary.to_dict() | {"unit": presentation.unit, "decoded": presentation.decode}
    if presentation.has_dates:
        keys = ("minimum", "maximum", "mean")
        dates, note = presentation.dates([facts[key] for key in keys])
        facts |= {"decoded": False, "note": note} if note else {"dates": dict(zip(keys, dates, strict=True))}
    return facts


def number_text(value: float | None) -> str:
    """Return a statistic as a string, which is empty for none."""
    if value is None or isinstance(value, int):
        return "" if value is None else f"{value}"
    is_whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
    return f"{int(value)}" if is_whole else f"{value:.6g}"


def _numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return real numbers, without masked ones."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.compressed()
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.dtype.kind == "f" or values.dtype.kind in "iu":
        return values.astype(np.float32) if values.dtype.itemsize < 4 and values.dtype.kind == "f" else values
    raise NodeTypeError(
        f"statistics need real numbers, found values of data type {values.dtype}",
        found=str(values.dtype),
        wanted="numbers",
    )


def _finite(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _histogram(values: npt.NDArray[Any], low: float, high: float, bins: int) -> npt.NDArray[np.int64]:
    """Return counts of values in bins of equal width. If the width is zero, the first bin contains all values.

    Used instead of ``numpy.histogram``, which raises an error if the range is too narrow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.multiply(values, 0.5, dtype=np.float64) - low / 2  # halved, because high - low may overflow
        width = (high / 2 - low / 2) / bins
        inside = half[(half >= 0) & (half <= high / 2 - low / 2)]
        numbers = inside / width if width > 0 else np.zeros(len(inside))
    return np.bincount(np.minimum(numbers.astype(np.int64), bins - 1), minlength=bins)


async def summarize(view: AsyncSelection, presentation: Presentation, bins: int = 0) -> Summary:
    """Return statistics of all values of a selection, read block by block.

    Args:
        view: The selection.
        presentation: Whether to use the values that stored numbers stand for, or the numbers. Times are numbers in both.
        bins: The number of bins of the histogram, which takes a second pass over the values; 0 for no histogram.

    Raises:
        NodeTypeError: If the values are not real numbers.
    """
    summary = Summary(total=view.size)
    _numbers(np.empty(0, view.dtype))
    async for _, block in view.chunks():
        summary.add(presentation.numbers(block))
    if bins and summary.minimum is not None and summary.maximum is not None:
        low, high = summary.minimum, summary.maximum
        counts = np.zeros(bins, np.int64)
        async for _, block in view.chunks():
            counts += _histogram(_finite(_numbers(presentation.numbers(block))), low, high, bins)
        summary.histogram, summary.low, summary.high = counts.tolist(), low, high
    return summary


def sample(array: AsyncArray, index: Sequence[int | None], limit: int, cells: int = 1 << 20) -> AsyncSelection:
    """Return a sample of an array: a selection of evenly spaced chunks, or of some of their elements.

    Args:
        array: The array.
        index: A fixed index for each axis, or ``None`` for the whole axis.
        limit: The maximum number of bytes to decode. At least one chunk is decoded.
        cells: The maximum number of values to select.
    """
    metadata = array.metadata
    grid = metadata.read_grid
    chunk_bytes = metadata.chain.nbytes / math.prod(metadata.write_chunks) * math.prod(metadata.chunks)
    free_axes = [axis for axis, fixed in enumerate(index) if fixed is None]
    steps = dict.fromkeys(free_axes, 1)

    def chunks_along(axis: int) -> int:
        return -(-grid.shape[axis] // steps[axis])

    def is_too_large() -> bool:
        chunks = math.prod(map(chunks_along, free_axes))
        return chunks * chunk_bytes > limit or chunks > _MOST_CHUNKS

    while is_too_large() and any(chunks_along(axis) > 1 for axis in free_axes):
        steps[max(free_axes, key=chunks_along)] *= 2
    indices = {axis: _indices(grid.axes[axis], steps[axis]) for axis in free_axes}
    while math.prod(map(len, indices.values())) > cells:
        longest = max(indices, key=lambda axis: len(indices[axis]))
        indices[longest] = indices[longest][::2]
    return array.oindex[tuple(indices[axis] if fixed is None else fixed for axis, fixed in enumerate(index))]


def _indices(axis: GridAxis, step: int) -> npt.NDArray[np.int64]:
    """Return the indices in every ``step``-th chunk of an axis."""
    if step == 1:
        return np.arange(axis.extent)
    first = min(step // 2, axis.nchunks - 1)
    spans = [
        np.arange(axis.start(chunk), min(axis.start(chunk) + axis.size(chunk), axis.extent))
        for chunk in range(first, axis.nchunks, step)
    ]
    return np.concatenate(spans)
