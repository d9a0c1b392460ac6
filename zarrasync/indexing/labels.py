"""Labels along an axis: the positions of labels, of the nearest ones, and of intervals. No IO."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from zarrasync.errors import LabelError

Position: TypeAlias = "int | slice | npt.NDArray[np.intp]"
"""Selected positions along an axis: one, a range, or several."""
Interval: TypeAlias = tuple[Any, Any]
"""The smallest and the largest value that a label stands for; equal except for partial dates."""
LabelMethod: TypeAlias = Literal["nearest", "pad", "ffill", "backfill", "bfill"]
"""How labels are found that do not exist, as in pandas."""
_SYNONYMS = {"ffill": "pad", "bfill": "backfill"}
_SEAM_TOLERANCE = 1e-3
"""The share of a step by which the gap between the last and the first label of a circle may exceed the largest step."""


def checked_method(method: str | None) -> str | None:
    """Return a method without synonyms.

    Raises:
        ValueError: If it is unknown.
    """
    if method is not None and method not in get_args(LabelMethod):
        raise ValueError(f"method must be None, {', '.join(map(repr, get_args(LabelMethod)))}; found {method!r}")
    return None if method is None else _SYNONYMS.get(method, method)


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of the positions along an axis, as values that NumPy can sort.

    Attributes:
        values: One-dimensional numbers or strings.
        name: The name of the coordinate, for messages.
        missing: Which labels are missing; ``None`` for NaN.
        show: Returns a value as users write it, for messages.
    """

    values: npt.NDArray[Any]
    name: str = ""
    missing: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    show: Callable[[Any], str] = field(default=str, repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def absent(self) -> npt.NDArray[np.bool_]:
        """Which labels are missing."""
        if self.missing is not None:
            return self.missing
        is_float = self.values.dtype.kind == "f"
        return np.asarray(np.isnan(self.values)) if is_float else np.zeros(len(self), np.bool_)

    @cached_property
    def direction(self) -> int:
        """1 for increasing labels, -1 for decreasing ones, 0 for others. Labels may be repeated, but not missing."""
        before, after = self.values[:-1], self.values[1:]
        if self.absent.any():
            return 0
        return 1 if (before <= after).all() else -1 if (before >= after).all() else 0

    @cached_property
    def _order(self) -> npt.NDArray[np.intp] | None:
        """The positions of the labels in increasing order; ``None`` if they increase."""
        if self.direction:
            return None if self.direction == 1 else np.arange(len(self))[::-1]
        order = np.argsort(self.values, kind="stable")
        return order[~self.absent[order]]

    @cached_property
    def _sorted(self) -> npt.NDArray[Any]:
        return self.values if self._order is None else self.values[self._order]

    @cached_property
    def is_unique(self) -> bool:
        """Whether no label is repeated."""
        return bool((self._sorted[:-1] != self._sorted[1:]).all()) and self.absent.sum() < 2

    def _positions(self, first: int, stop: int) -> npt.NDArray[np.intp]:
        """Return the positions of a range of the labels in increasing order."""
        return np.arange(first, stop) if self._order is None else self._order[first:stop]

    # -------------------------------------------------------------- labels

    def exact(self, value: Any) -> Position:
        """Return the position of a label, or all its positions if it is repeated. NaN finds missing labels.

        Raises:
            LabelError: If the label does not exist.
        """
        if value != value:  # NaN
            positions = np.flatnonzero(self.absent)
        else:
            positions = np.sort(self._positions(self._search(value, "left"), self._search(value, "right")))
        if not len(positions):
            raise self._not_found(value)
        if len(positions) == 1:
            return int(positions[0])
        first, last = int(positions[0]), int(positions[-1])
        return slice(first, last + 1) if last - first + 1 == len(positions) else positions

    def _search(self, value: Any, side: Literal["left", "right"]) -> int:
        return int(np.searchsorted(self._sorted, value, side))

    def find(self, values: npt.NDArray[Any], method: str | None, tolerance: Any = None) -> npt.NDArray[np.intp]:
        """Return the position of each label.

        Args:
            values: Labels, in any order.
            method: ``None``: they must exist. ``"nearest"``, ``"pad"`` (the one before) or ``"backfill"`` (the one after, in
                the order of the axis). Of two labels that are equally near, the larger one is chosen, as in pandas.
            tolerance: The largest distance of a label; ``None`` for no limit.

        Raises:
            LabelError: If a label does not exist, or none is near enough; or if labels are repeated; or, with a method, if
                they are not sorted.
        """
        if not self.is_unique:
            raise LabelError(
                f"{self._title} has repeated labels, so that only single labels and slices can be selected",
                name=self.name,
            )
        if method is None:
            positions, wrong = self._exact_positions(values)
        else:
            positions, wrong = self._near_positions(values, method, tolerance)
        if wrong.any():
            raise self._not_found(values[wrong][0], method, tolerance)
        return positions

    def _exact_positions(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        count = len(self._sorted)
        places = np.searchsorted(self._sorted, values)
        inside = np.minimum(places, max(count - 1, 0))
        wrong = (places == count) | (self._sorted[inside] != values) if count else np.ones(len(values), np.bool_)
        positions = inside if self._order is None or not count else self._order[inside]
        is_missing = values != values  # NaN
        if is_missing.any() and self.absent.any():
            positions = np.where(is_missing, np.flatnonzero(self.absent)[0], positions)
            wrong = wrong & ~is_missing
        return positions.astype(np.intp), wrong

    def _near_positions(
        self, values: npt.NDArray[Any], method: str, tolerance: Any
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        if not self.direction:
            raise LabelError(
                f"{self._title} is not sorted, which method={method!r} needs; select labels that exist", name=self.name
            )
        count, ordered = len(self), self._sorted
        lower = np.searchsorted(ordered, values, "right") - 1
        upper = np.searchsorted(ordered, values, "left")
        is_finite = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
        wrong = ~is_finite if method == "nearest" else values != values  # NaN
        if method == "nearest":
            below, above = np.maximum(lower, 0), np.minimum(upper, count - 1)
            if count:
                nearer_below = _distance(ordered[below], values) < _distance(ordered[above], values)
                chosen = np.where((lower >= 0) & (nearer_below | (upper == count)), below, above)
            else:
                chosen, wrong = np.zeros(len(values), np.intp), np.ones(len(values), np.bool_)
        else:
            chosen = lower if (method == "pad") == (self.direction == 1) else upper
            wrong = wrong | (chosen < 0) | (chosen >= count)
            chosen = np.clip(chosen, 0, max(count - 1, 0))
        if tolerance is not None and count:
            wrong = wrong | ~(_distance(ordered[chosen], values) <= tolerance)
        positions = chosen if self._order is None or not count else self._order[chosen]
        return positions.astype(np.intp), wrong

    # -------------------------------------------------------------- intervals

    def within(self, interval: Interval) -> Position:
        """Return the positions of the labels in a closed interval.

        Raises:
            LabelError: If the labels are sorted, and the interval lies before or after all of them.
        """
        low, high = interval
        first, stop = self._search(low, "left"), self._search(high, "right")
        if self.direction and len(self) and (stop == 0 or first == len(self)):
            raise self._not_found(low)
        positions = np.sort(self._positions(first, max(stop, first)))
        if not self.direction:
            return positions
        start = int(positions[0]) if len(positions) else min(first, len(self))
        return slice(start, start + len(positions))

    def between(self, start: Interval | None, stop: Interval | None) -> Position:
        """Return the positions between two labels, both included.

        The labels need not exist if the axis is sorted. On a decreasing axis, they may be in either order.

        Args:
            start: The first label; ``None`` for the first position.
            stop: The last label; ``None`` for the last position.

        Raises:
            LabelError: If the axis is not sorted, and a label does not exist or is repeated.
        """
        if not self.direction:
            first = 0 if start is None else self._bound(start).start
            last = len(self) if stop is None else self._bound(stop).stop
            return slice(first, max(first, last))
        if self.direction == -1 and start is not None and stop is not None and start[0] < stop[0]:
            start, stop = stop, start
        low, high = (start, stop) if self.direction == 1 else (stop, start)
        first = 0 if low is None else self._search(low[0], "left")
        last = len(self) if high is None else self._search(high[1], "right")
        last = max(first, last)
        return slice(first, last) if self.direction == 1 else slice(len(self) - last, len(self) - first)

    def _bound(self, interval: Interval) -> slice:
        low, high = interval
        position: Position = np.empty(0, np.intp)
        if low == high or low != low:  # NaN
            with suppress(LabelError):
                position = self.exact(low)
        if isinstance(position, np.ndarray):
            raise LabelError(
                f"{self._title} is not sorted, so that a slice must begin and end with labels that exist once; found "
                f"{self.show(interval[0])}",
                name=self.name,
            )
        return position if isinstance(position, slice) else slice(position, position + 1)

    # -------------------------------------------------------------- messages

    @property
    def _title(self) -> str:
        return f"the coordinate {self.name!r}" if self.name else "the axis"

    def _not_found(self, value: Any, method: str | None = None, tolerance: Any = None) -> LabelError:
        count = len(self._sorted)
        text = f"{self._title} has no label {self.show(value)}"
        if method is not None:
            text = f"{self._title} has no label {'near' if method == 'nearest' else 'to use for'} {self.show(value)}"
            text += "" if tolerance is None else " within the tolerance"
        if count:
            text += (
                f"; its {len(self):,} labels lie between {self.show(self._sorted[0])} and {self.show(self._sorted[-1])}"
            )
        hint = "; pass method='nearest' for the nearest label" if method is None and self.direction and count else ""
        return LabelError(text + hint * (self.values.dtype.kind in "iuf"), name=self.name)


def _distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return how far numbers are apart. All distances of integers are exact in 64 bits without a sign."""
    if one.dtype.kind not in "iu" or other.dtype.kind not in "iu":
        return np.asarray(np.abs(one - other))
    difference = one.astype("u8") - other.astype("u8")
    return np.asarray(np.where(one < other, np.negative(difference), difference))


# ------------------------------------------------------------------ circles


def is_global(labels: Labels, period: float) -> bool:
    """Return whether sorted labels go round a whole circle, so that the gap at the seam is at most a step."""
    if not labels.direction or not labels.is_unique or len(labels) < 2 or labels.values.dtype.kind not in "iuf":
        return False
    ordered = np.sort(labels.values.astype("f8"))
    gap, steps = period - (ordered[-1] - ordered[0]), np.diff(ordered)
    return bool(-steps.max() <= gap <= steps.max() * (1 + _SEAM_TOLERANCE))


@dataclass(frozen=True, eq=False)
class CyclicLabels(Labels):
    """Sorted labels on a circle, such as longitudes around the globe.

    Labels outside the range of the axis stand for the same place on the circle, and an interval may cross the seam.

    Attributes:
        period: The circumference.
    """

    period: float = 360.0

    def _wrapped(self, values: Any) -> Any:
        """Return labels between the smallest one of the axis and the same place one round later."""
        low = float(self._sorted[0])
        outside = (values < low) | (values > float(self._sorted[-1]))
        wrapped = np.where(outside, values - self.period * np.floor((values - low) / self.period), values)
        return wrapped.astype(self.values.dtype) if self.values.dtype.kind == "f" else wrapped

    def exact(self, value: Any) -> Position:
        return super().exact(self._wrapped(value)[()])

    def find(self, values: npt.NDArray[Any], method: str | None, tolerance: Any = None) -> npt.NDArray[np.intp]:
        wrapped = self._wrapped(values)
        if method is None or float(self._sorted[-1]) - float(self._sorted[0]) >= self.period:
            return super().find(wrapped, method, tolerance)
        return (self._extended.find(wrapped, method, tolerance) - 1) % len(self)

    @cached_property
    def _extended(self) -> Labels:
        """The labels with the last one before them and the first one after them, one round away."""
        ends = self._sorted[[-1]] - self.period, self._sorted[[0]] + self.period
        if self.direction == -1:
            ends = ends[1], ends[0]
        return Labels(np.concatenate([ends[0], self.values, ends[1]]), self.name, show=self.show)

    def between(self, start: Interval | None, stop: Interval | None) -> Position:
        low, high = float(self._sorted[0]), float(self._sorted[-1])
        if start is None or stop is None:
            return super().between(start, stop)
        first, last = float(start[0]), float(stop[1])
        crosses = first > last if self.direction == 1 else False
        if not crosses and low <= min(first, last) and max(first, last) <= high:
            return super().between(start, stop)
        if self.direction == -1 and first > last:
            first, last = last, first
        length = last - first if last >= first else (last - first) % self.period
        begin = first - self.period * np.floor((first - low) / self.period)
        ordered = self._sorted.astype("f8")
        offsets, count = np.concatenate([ordered, ordered + self.period]), len(ordered)
        if high - low >= self.period:  # the last label is the first one again
            offsets[count], count = -np.inf, count - 1
        places = np.flatnonzero((offsets >= begin) & (offsets <= begin + length))[:count] % len(ordered)
        positions = self._positions(0, len(self))[places]
        return _as_range(positions if self.direction == 1 else positions[::-1])


def _as_range(positions: npt.NDArray[np.intp]) -> Position:
    """Return consecutive positions as a slice."""
    if len(positions) and (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
