"""Selectors: indices along one axis, as a slice or as an index array."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["IntArray", "Selector", "indices_of", "length", "reorder", "section"]

IntArray: TypeAlias = npt.NDArray[np.int64]

Selector: TypeAlias = slice | IntArray
"""A slice with a start and a step that are not ``None``, or index values; never negative.

In the source of a projection slices ascend. In its target they may descend to index 0, where the stop is ``None``.
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
    """Return the selector of ``count`` of the indices, from the one at position ``start``."""
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
