"""The selections of a batch of zarr-python, translated into runs of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import IntArray, Projection, Selector

_new = tuple.__new__
_ONE = slice(0, 1, 1)


Item: TypeAlias = tuple[tuple[int, ...], Any, Any, bool]
"""The shape of a chunk of a batch, the selections in the chunk and in the output, and whether the former has all elements."""


class Translation(NamedTuple):
    """Runs of single chunks, numbered in the order of the batch.

    Attributes:
        runs: The runs.
        dropped: The axes that the output does not have, and which must be inserted with size 1.
    """

    runs: list[ChunkRun]
    dropped: tuple[int, ...]

    def expand(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a view of an output with the dropped axes."""
        return np.expand_dims(array, self.dropped) if self.dropped else array

    def suits(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether an array has a dimension for each target, or is a single value."""
        return not array.ndim or array.ndim + len(self.dropped) == len(self.runs[0].projection.target)

    @property
    def shape(self) -> tuple[int, ...]:
        """The least shape of an output that has all targets."""
        ends = [[_end(selector) for selector in run.projection.target] for run in self.runs]
        return tuple(map(max, zip(*ends, strict=True)))


def translate(items: Iterable[Item], dropped: tuple[int, ...]) -> Translation | None:
    """Translate the items of a batch, or return ``None`` if a selection is of an unknown form.

    Selections are basic (slices and integers), orthogonal (index arrays along some axes, which zarr-python may have
    broadcast against each other), or points (one array per axis).

    Args:
        items: The items.
        dropped: The axes with a single selected element that the output does not have, in addition to integers.
    """
    runs: list[ChunkRun] = []
    first: tuple[int, ...] | None = None
    for number, (shape, inside, outside, is_complete) in enumerate(items):
        source = inside if isinstance(inside, tuple) else (inside,)
        target = outside if isinstance(outside, tuple) else (outside,)
        if len(source) != len(shape):
            return None
        missing = tuple([axis for axis, selector in enumerate(source) if _is_index(selector)]) or dropped
        if first is None:
            first = missing
        projection = _projection(source, target, shape, missing) if missing == first else None
        if projection is None:
            return None
        runs.append(_new(ChunkRun, ((number,), projection, bool(is_complete), 0, 1)))
    return Translation(runs, first or ())


def _projection(
    source: Sequence[Any], target: Sequence[Any], shape: tuple[int, ...], dropped: tuple[int, ...]
) -> Projection | None:
    arrays = [selector for selector in source if isinstance(selector, np.ndarray)]
    if not arrays and not any(isinstance(selector, np.ndarray) for selector in target):
        return _basic(source, target, shape, dropped)
    if len(arrays) > 1 and all(array.ndim == 1 for array in arrays):  # one point per element
        if len(arrays) != len(shape) or len(target) != 1:
            return None
        points = tuple(map(_indices, arrays))
        return Projection(tuple(range(len(shape))), points, (_selector(target[0], None),))
    sources = tuple(map(_selector, source, shape))
    targets = list(target)
    for axis in dropped:
        targets.insert(axis, _ONE)
    if len(targets) != len(sources):
        return None
    return Projection((), sources, tuple(_selector(item, None) for item in targets))


def _basic(
    source: Sequence[Any], target: Sequence[Any], shape: tuple[int, ...], dropped: tuple[int, ...]
) -> Projection | None:
    """Translate slices and integers. This runs for every chunk of most reads."""
    if len(target) + len(dropped) != len(shape):
        return None
    sources, targets, remaining = [], [], iter(target)
    for selector, size in zip(source, shape, strict=True):
        if type(selector) is slice:
            sources.append(slice(*selector.indices(size)))
            into = next(remaining)
            targets.append(into if into.step == 1 else slice(into.start, into.stop, 1))
        else:
            sources.append(slice(int(selector), int(selector) + 1, 1))
            targets.append(_ONE)
    return _new(Projection, ((), tuple(sources), tuple(targets), True))


def _is_index(selector: Any) -> bool:
    return type(selector) is not slice and not isinstance(selector, np.ndarray)


def _selector(selector: Any, size: int | None) -> Selector:
    """Return a slice or an index array for a selector of zarr-python."""
    if isinstance(selector, slice):
        return slice(*selector.indices(selector.stop if size is None else size))
    if isinstance(selector, np.ndarray):
        return _indices(selector)
    return slice(int(selector), int(selector) + 1, 1)


def _indices(array: np.ndarray[Any, Any]) -> IntArray:
    """Return the indices of an array that may be a mask, or broadcast against others."""
    if array.dtype.kind == "b":
        return np.flatnonzero(array)
    return np.ascontiguousarray(array.reshape(-1), np.intp)


def _end(selector: Selector) -> int:
    return int(selector.stop if isinstance(selector, slice) else selector.max() + 1)
