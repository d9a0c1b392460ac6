"""Random selections of every kind, each with the positions of its elements in the array."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

KINDS = ("basic", "orthogonal", "coordinate", "mask", "block", "advanced")


class Selected(NamedTuple):
    """A selection.

    Attributes:
        kind: The kind of indexing, one of ``KINDS``.
        key: What stands between the brackets.
        at: The positions of the selected elements in the flat array, in the shape of the result.
    """

    kind: str
    key: Any
    at: np.ndarray

    @property
    def repeats(self) -> bool:
        """Whether an element is selected twice, so that writing would depend on an order."""
        return len(np.unique(self.at)) != np.size(self.at)


@st.composite
def slices(draw: st.DrawFn, size: int) -> slice:
    ends = st.none() | st.integers(-size - 2, size + 2)
    return slice(draw(ends), draw(ends), draw(st.sampled_from([None, None, 1, 2, 3, -1, -2, -5])))


def indices(size: int) -> st.SearchStrategy[int]:
    return st.integers(-size, size - 1) if size else st.nothing()


def index_arrays(size: int, least: int, most: int) -> st.SearchStrategy[np.ndarray]:
    """Draw one-dimensional arrays of indices, which have no elements if the axis has none."""
    least, most = (least, most) if size else (0, 0)
    return st.lists(indices(size), min_size=least, max_size=most).map(lambda numbers: np.array(numbers, int))


@st.composite
def basic(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Draw integers, slices, ``...`` and ``newaxis``."""
    key: list[Any] = [draw(slices(n) | indices(n)) for n in shape]
    if draw(st.booleans()):
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(key))] * 2)))
        key[first:last] = [...]
    elif draw(st.booleans()):
        key = key[: draw(st.integers(0, len(key)))]
    if draw(st.integers(0, 3)) == 0:
        key.insert(draw(st.integers(0, len(key))), None)
    return key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


@st.composite
def _outer_axis(draw: st.DrawFn, size: int) -> Any:
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, bool))
    return draw(slices(size) | indices(size) | mask | index_arrays(size, 0, 4))


def _outer(positions: np.ndarray, key: Sequence[Any]) -> np.ndarray:
    """Select along each axis independently. Integers drop their axis."""
    for axis in reversed(range(positions.ndim)):
        positions = positions[(slice(None),) * axis + (key[axis],)]
    return positions


@st.composite
def _points(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draw an index array per axis, which broadcast against each other."""
    common = draw(st.sampled_from([(3,), (1,), (0,), (2, 2)])) if all(shape) else (0,)

    def index_array(size: int) -> Any:
        own = draw(st.sampled_from([common, common[-1:], (1,) * len(common)])) if 0 not in common else common
        count = int(np.prod(own))
        return draw(index_arrays(size, count, count)).reshape(own)

    arrays = [index_array(n) for n in shape]
    arrays[0] = np.broadcast_to(arrays[0], common)  # so that the result has this shape
    return tuple(arrays)


@st.composite
def _blocks(draw: st.DrawFn, sizes: Sequence[Sequence[int]]) -> tuple[list[Any], list[slice]]:
    """Draw grid coordinates, and the slices of the elements that they mean."""
    key: list[Any] = []
    box = []
    for cut in sizes:
        edges = [0, *itertools.accumulate(cut)]
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(cut))] * 2)))
        if first < last and draw(st.booleans()):
            last = first + 1
            key.append(first - len(cut) * draw(st.booleans()))
        else:
            key.append(slice(first, last))
        box.append(slice(edges[first], edges[last]))
    return key, box


@st.composite
def _advanced(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Draw NumPy's mixture of slices, integers, ``newaxis`` and index arrays that are walked together."""
    key: list[Any] = [draw(slices(n) | indices(n)) for n in shape]
    count = draw(st.integers(0, 3))
    for axis in draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)):
        if shape[axis]:
            key[axis] = draw(index_arrays(shape[axis], count, count))
    if draw(st.integers(0, 3)) == 0:
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...], sizes: Sequence[Sequence[int]]) -> Selected:
    """Draw a selection of an array.

    Args:
        draw: Hypothesis's function.
        shape: The shape of the array.
        sizes: The sizes of its write units along each axis, cut at the end of the array.
    """
    positions = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    kind = draw(st.sampled_from(KINDS if shape else ("basic", "mask")))
    if kind == "orthogonal":
        key = tuple(draw(_outer_axis(n)) for n in shape)
        return Selected(kind, key, _outer(positions, key))
    if kind == "coordinate":
        key = draw(_points(shape))
        return Selected(kind, key, positions[key])
    if kind == "mask":
        bits = draw(st.lists(st.booleans(), min_size=positions.size, max_size=positions.size))
        mask = np.array(bits, bool).reshape(shape)
        return Selected(kind, mask, positions[mask])
    if kind == "block":
        coords, box = draw(_blocks(sizes))
        return Selected(kind, tuple(coords), positions[tuple(box)])
    key = draw(basic(shape) if kind == "basic" else _advanced(shape))
    return Selected(kind, key, positions[key])
