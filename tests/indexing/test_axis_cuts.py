"""Chunks that a selector touches, fully or in part, against a loop over every index."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zarrasync.indexing import parse
from zarrasync.indexing.axis_cuts import count_touched, cut_axis, partly_touched, touched
from zarrasync.indexing.chunk_runs import split_chunks
from zarrasync.indexing.key_items import expand_key
from zarrasync.indexing.projection import indices_of, length
from zarrasync.indexing.regions import Coverage, partial_chunks, touched_chunks
from zarrasync.model.chunk_grids import Grid, GridAxis, ListedAxis, RegularAxis

EXAMPLES = settings(max_examples=200, deadline=None)


@st.composite
def axes(draw: st.DrawFn) -> GridAxis:
    """Draw a regular axis, or one with listed chunk sizes of which some may lie beyond the end."""
    extent = draw(st.integers(1, 40))
    if draw(st.booleans()):
        return RegularAxis(extent, draw(st.integers(1, 12)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    return ListedAxis(min(extent, sum(sizes)), tuple(sizes))


@st.composite
def selectors(draw: st.DrawFn, extent: int) -> slice | np.ndarray:
    """Draw a normalized slice (it stops right after its last index), or indices."""
    if draw(st.booleans()):
        return np.array(draw(st.lists(st.integers(0, extent - 1), min_size=1, max_size=20)))
    start, step = draw(st.integers(0, extent - 1)), draw(st.integers(1, 12))
    count = draw(st.integers(0, (extent - 1 - start) // step + 1))
    return slice(start, start + (count - 1) * step + 1, step) if count else slice(0, 0, 1)


def size_inside(axis: GridAxis, chunk: int) -> int:
    return min(axis.start(chunk) + axis.size(chunk), axis.extent) - axis.start(chunk)


@EXAMPLES
@given(st.data())
def test_one_axis(data: st.DataObject):
    axis = data.draw(axes())
    selector = data.draw(selectors(axis.extent))
    counts = Counter(axis.find(i) for i in set(indices_of(selector).tolist()))
    assert list(touched(selector, axis)) == sorted(counts)
    assert count_touched(selector, axis) == (len(counts), sum(map(axis.size, counts)))
    assert set(partly_touched(selector, axis)) == {i for i, n in counts.items() if n < size_inside(axis, i)}


@EXAMPLES
@given(st.data())
def test_cuts_have_all_indices_with_their_targets(data: st.DataObject):
    axis = data.draw(axes())
    selector = data.draw(selectors(axis.extent))
    count = length(selector)
    descends = count and isinstance(selector, slice) and data.draw(st.booleans())
    target = slice(count - 1, None, -1) if descends else slice(0, count, 1)
    longest = data.draw(st.integers(1, 5))
    cuts = cut_axis(selector, target, axis, longest)
    assert max(cuts.counts, default=0) <= longest
    out = np.full(count, -1)
    for chunk, source, where, is_full, repeats in zip(
        cuts.chunks, cuts.sources, cuts.targets, cuts.is_full, cuts.counts, strict=True
    ):
        for i in range(repeats):
            inside = indices_of(source)
            shift = i * len(inside)
            spot = where
            if repeats > 1:
                assert isinstance(where, slice)
                spot = slice(where.start + shift, where.stop + shift)
            out[spot] = inside + axis.start(chunk + i)
            step = source.step if isinstance(source, slice) else None
            assert is_full == (step == 1 and inside.tolist() == list(range(size_inside(axis, chunk + i))))
    want = np.empty(count, int)
    want[target] = indices_of(selector)
    np.testing.assert_array_equal(out, want)


def test_neighbours_that_are_cut_alike_make_runs():
    cuts = cut_axis(slice(2, 19, 1), slice(0, 17, 1), RegularAxis(20, 4), 8)
    assert (cuts.chunks, cuts.counts) == ([0, 1, 4], [1, 3, 1])
    assert cuts.sources == [slice(2, 4, 1), slice(0, 4, 1), slice(0, 3, 1)]
    assert cuts.targets == [slice(0, 2, 1), slice(2, 6, 1), slice(14, 17, 1)]
    assert cut_axis(slice(0, 20, 1), slice(0, 20, 1), RegularAxis(20, 4), 2).counts == [2, 2, 1]
    assert cut_axis(slice(1, 20, 2), slice(0, 10, 1), RegularAxis(20, 4), 8).counts == [5]
    assert cut_axis(slice(5, 18, 2), slice(0, 7, 1), RegularAxis(20, 4), 8).counts == [3, 1]
    assert cut_axis(slice(0, 20, 3), slice(0, 7, 1), RegularAxis(20, 4), 8).counts == [1] * 5


def test_many_neighbours_are_not_cut_one_by_one():
    count = 10**9
    whole = slice(0, 4 * count - 1, 1)
    cuts = cut_axis(whole, whole, RegularAxis(4 * count, 4), count // 2)
    assert (cuts.chunks, cuts.counts) == ([0, count // 2, count - 1], [count // 2, count // 2 - 1, 1])
    assert cuts.targets == [slice(0, 4, 1), slice(2 * count, 2 * count + 4, 1), slice(4 * count - 4, 4 * count - 1, 1)]


@EXAMPLES
@given(st.data())
def test_boxes_and_selections(data: st.DataObject):
    """The chunks of a projection are the union of the chunks of its parts."""
    grid = Grid(tuple(data.draw(st.lists(axes(), min_size=1, max_size=3))))
    shape = tuple(axis.extent for axis in grid.axes)
    key = tuple(data.draw(selectors(n)) for n in shape)
    kind = data.draw(st.sampled_from([parse.orthogonal, parse.coordinate]))
    if kind is parse.coordinate:
        count = data.draw(st.integers(1, 6))
        points = (np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count))) for n in shape)
        key = tuple(own if data.draw(st.booleans()) else indices for own, indices in zip(key, points, strict=True))
        key = tuple(own if isinstance(own, slice) or len(own) == count else slice(None) for own in key)
    transform = kind(key, shape)
    if not transform.size:
        return
    touches = np.zeros(shape, bool)
    touches[
        np.ix_(*(np.arange(n)[own] for n, own in zip(shape, key, strict=True))) if kind is parse.orthogonal else key
    ] = True
    counts = {coords: int(touches[grid.box(coords)].sum()) for coords in np.ndindex(*grid.shape)}
    whole = {coords: math.prod(map(size_inside, grid.axes, coords)) for coords in counts}
    projection = transform.layout.projection()
    coverage = Coverage(projection, grid)
    chunks = {coords for coords, count in counts.items() if count}
    assert sorted(run.coords for run in split_chunks(projection, grid)) == sorted(coverage.chunks()) == sorted(chunks)
    assert sorted(coverage.partial_chunks()) == sorted(coords for coords in chunks if counts[coords] < whole[coords])


def test_regions_may_leave_out_the_step():
    grid = Grid((RegularAxis(10, 4), RegularAxis(6, 3)))
    region = (slice(1, 10), slice(0, 3))
    assert list(touched_chunks(region, grid)) == [(0, 0), (1, 0), (2, 0)]
    assert list(partial_chunks(region, grid)) == [(0, 0)]
    assert list(touched_chunks((slice(3, 3), slice(0, 3)), grid)) == []


def test_a_huge_selection_is_counted_at_once():
    grid = Grid((RegularAxis(10**15, 10), RegularAxis(10**15, 10)))
    projection = parse.numpy_style(np.s_[5 : 10**14, ::1000], (10**15, 10**15)).layout.projection()
    assert Coverage(projection, grid).count == 10**13 * 10**12


@pytest.mark.parametrize(
    "key",
    [
        *[
            np.s_[1:5],
            np.s_[-1],
            np.s_[np.int64(-1), np.uint8(2)],
            np.s_[...],
            np.s_[()],
            np.s_[..., 2],
            np.s_[2, ...],
            np.s_[1, 2, 0],
            np.s_[..., 1, 2, 0],
        ],
        *[
            np.s_[::-1, ..., None],
            np.s_[None, 3:1],
            np.s_[None, ..., None, 0, None],
            np.s_[::2, 1, -3:],
            np.s_[0, 1, 2, ...],
        ],
    ],
)
def test_simple_keys_take_the_short_way(key):
    """The shortcut for simple keys gives the same transform as the general code."""
    shape = (4, 5, 6)
    transform = parse.simple(key, shape)
    want = parse._each_axis(expand_key(key, shape), shape)
    assert transform is not None
    assert (transform.shape, transform.maps) == (want.shape, want.maps)
    assert transform.shape == np.zeros(shape)[key].shape


@pytest.mark.parametrize(
    "key",
    [
        4,
        -5,
        (0, 0, 0, 0),
        (..., ...),
        (..., 0, ...),
        (0, 0, 0, 0, ...),
        True,
        np.True_,
        np.float64(1),
        [1],
        "x",
        slice(0, 2, 0),
        slice("a"),
    ],
)
def test_other_keys_and_mistakes_do_not(key):
    assert parse.simple(key, (4, 5, 6)) is None
