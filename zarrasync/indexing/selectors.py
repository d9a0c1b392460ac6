"""Selectors: indices along one axis, as a slice or an index array."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["IntArray", "Selector", "indices_of", "length", "reorder", "section"]

IntArray: TypeAlias = npt.NDArray[np.int64]

Selector: TypeAlias = slice | IntArray
"""A slice whose start and step are not ``None``, or an index array. Indices are never negative.

Slices in the source of a projection ascend. Slices in its target may descend; if they end at index 0, the stop is
``None``.
"""


def length(selector: Selector) -> int:
    """Return the number of indices."""
    if not isinstance(selector, slice):
        return len(selector)
    return len(range(selector.start, -1 if selector.stop is None else selector.stop, selector.step))


def indices_of(selector: Selector) -> IntArray:
    """Return the indices of a source selector as an array."""
    return np.arange(selector.start, selector.stop, selector.step) if isinstance(selector, slice) else selector


def section(selector: Selector, start: int, count: int) -> Selector:
    """Return the selector of ``count`` indices, starting with the index at position ``start``."""
    if not isinstance(selector, slice):
        return selector[start : start + count]
    first = selector.start + start * selector.step
    stop = first + count * selector.step
    return slice(first, stop if stop >= 0 else None, selector.step)


def reorder(selector: Selector, order: IntArray) -> Selector:
    """Return the indices at the positions ``order``."""
    if not isinstance(selector, slice):
        return selector[order]
    return order if selector.start == 0 and selector.step == 1 else selector.start + selector.step * order
