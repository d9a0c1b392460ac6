"""Blocks of whole chunks: each chunk belongs to one block, and the cheapest shape is chosen."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from zarrasync.indexing.block_shapes import Blocks, BlockShapes, intermediate_chunks, join_chunks
from zarrasync.indexing.regions import touched_chunks
from zarrasync.model.chunk_grids import Grid, grid_of, regular_grid

SHAPE, ROWS, COLUMNS = (2000, 180, 360), (10, 180, 360), (2000, 20, 20)


def random_grid(chance: np.random.Generator, shape: tuple[int, ...], most: int) -> Grid:
    """Return a grid, with listed sizes along some axes."""
    edges: list[Any] = []
    for n in shape:
        sizes = [int(size) for size in chance.integers(1, most, n)]
        edges.append(tuple(sizes[: 1 + int(np.argmax(np.cumsum(sizes) >= n))]) if chance.random() < 0.3 else None)
    chunks = tuple(int(size) for size in chance.integers(1, most, len(shape)))
    return grid_of(shape, chunks, tuple(edges) if any(edges) else None)


def test_regions_of_a_few_chunks():
    """The regions contain each chosen element once, and no others."""
    chance = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(int(n) for n in chance.integers(1, 30, int(chance.integers(0, 4))))
        grid = random_grid(chance, shape, 9)
        start = tuple(int(chance.integers(0, n)) for n in shape)
        stop = tuple(int(chance.integers(a + 1, n + 1)) for a, n in zip(start, shape, strict=True))
        counts = tuple(int(n) for n in chance.integers(1, 6, len(shape)))
        blocks, inside = Blocks(grid, counts, start, stop), tuple(map(slice, start, stop))
        chosen = [coords for coords in touched_chunks(inside, grid) if chance.random() < 0.7]
        found, expected, every = np.zeros(shape, int), np.zeros(shape, int), np.zeros(shape, int)
        for region in blocks.of_chunks(chosen):
            found[region] += 1
        for coords in chosen:
            expected[grid.box(coords)] = 1
        outside = np.ones(shape, bool)
        outside[inside] = False
        expected[outside] = 0
        np.testing.assert_array_equal(found, expected)
        for region in blocks:
            every[region] += 1
        np.testing.assert_array_equal(every, ~outside)


def test_chunks_are_joined_into_few_boxes():
    assert join_chunks([]) == []
    assert join_chunks([()]) == [((), ())]
    assert join_chunks(list(np.ndindex(3, 4, 5))) == [((0, 0, 0), (2, 3, 4))]
    after = [coords for coords in np.ndindex(3, 4, 5) if coords > (1, 2, 2)]  # what an interrupted block lacks
    assert join_chunks(after) == [((1, 2, 3), (1, 2, 4)), ((1, 3, 0), (1, 3, 4)), ((2, 0, 0), (2, 3, 4))]


def touched_by_blocks(grid: Grid, counts: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, int]:
    """Return how many chunks all blocks decode, and the number of elements of the largest block, by counting."""
    source = regular_grid(tuple(axis.extent for axis in grid.axes), chunks)
    regions = list(Blocks(grid, counts))
    sizes = [math.prod(part.stop - part.start for part in region) for region in regions]
    return sum(len(list(touched_chunks(region, source))) for region in regions), max(sizes)


def test_the_cost_is_what_the_blocks_read():
    chance = np.random.default_rng(1)
    for _ in range(100):
        shape = tuple(int(n) for n in chance.integers(1, 40, int(chance.integers(1, 4))))
        grid = random_grid(chance, shape, 9)
        chunks, shards = (tuple(int(n) for n in chance.integers(1, 25, len(shape))) for _ in range(2))
        shapes = BlockShapes(grid, chunks, shards)
        for most in (1, 50, 400, 10**6):
            best = shapes.within(most)
            assert (best.cost.decoded, best.elements) == touched_by_blocks(grid, best.counts, chunks)
            assert best.cost.requested == touched_by_blocks(grid, best.counts, shards)[0]
            assert best.cost.blocks == len(list(Blocks(grid, best.counts)))


def test_no_other_shape_costs_less():
    chance = np.random.default_rng(2)
    for _ in range(30):
        shape = tuple(int(n) for n in chance.integers(1, 40, 2))
        chunks, grid = tuple(int(n) for n in chance.integers(1, 25, 2)), regular_grid(shape, (5, 7))
        costs = {
            counts: touched_by_blocks(grid, counts, chunks)
            for counts in product(*(range(1, n + 1) for n in grid.shape))
        }
        smallest = min(size for _, size in costs.values())
        for most in (1, 50, 200, 600, 10**6):
            best = BlockShapes(grid, chunks).within(most)
            assert best.elements <= max(most, smallest)
            assert best.cost.decoded == min(cost for cost, size in costs.values() if size <= max(most, smallest))


@pytest.mark.parametrize(
    ("mebibytes", "passes"), [(6, 162), (7, 81), (36, 18), (72, 9), (144, 4), (248, 2), (323, 2), (495, 1)]
)
def test_passes_over_rows_that_become_columns(mebibytes: int, passes: int):
    most = (mebibytes << 20) // 4
    assert BlockShapes(regular_grid(SHAPE, COLUMNS), ROWS).passes(most) == passes
    assert BlockShapes(regular_grid(SHAPE, ROWS), COLUMNS).within(most).elements <= most


def test_sizes_are_found_without_visiting_chunks():
    """The time does not depend on the number of chunks."""
    shapes = BlockShapes(regular_grid((10**15,) * 4, (90, 128, 77, 3)), (100, 100, 100, 100))
    best = shapes.within(1 << 30)
    assert best.elements <= 1 << 30
    assert shapes.passes(1 << 30) < 5


def test_blocks_of_a_source_without_chunks():
    shapes = BlockShapes(regular_grid((100, 100), (10, 10)), None)
    assert shapes.within(1000).cost.blocks == 10
    assert shapes.passes(1) == shapes.passes(10**6) == 1


@pytest.mark.parametrize(("source", "target"), [(ROWS, COLUMNS), (COLUMNS, ROWS)])
@pytest.mark.parametrize("mebibytes", [36, 72, 144, 160])
def test_two_stages_decode_each_chunk_once(source: tuple[int, ...], target: tuple[int, ...], mebibytes: int):
    most, grid = (mebibytes << 20) // 4, regular_grid(SHAPE, target)
    chunks = intermediate_chunks(SHAPE, source, target, most)
    assert chunks is not None
    assert BlockShapes(regular_grid(SHAPE, chunks), source).passes(most) == 1
    assert BlockShapes(grid, chunks).passes(most) == 1
    assert most // 500 < math.prod(chunks) <= most // 32


def test_a_long_array_needs_no_more_passes():
    """Blocks of the copy have room for one chunk only."""
    shape, target, most = (80_000, 180, 360), (80_000, 20, 20), (144 << 20) // 4
    grid = regular_grid(shape, target)
    chunks = intermediate_chunks(shape, ROWS, target, most)
    assert chunks is not None
    assert BlockShapes(regular_grid(shape, chunks), ROWS).passes(most) == BlockShapes(grid, chunks).passes(most) == 1
    assert math.prod(chunks) > most // 500


@pytest.mark.parametrize(
    ("source", "target", "mebibytes"),
    [(ROWS, COLUMNS, 248), (ROWS, ROWS, 1), (ROWS, (20, 90, 90), 12), ((10, 20, 20), COLUMNS, 5), (ROWS, (1, 1, 1), 3)],
)
def test_one_stage_suffices(source: tuple[int, ...], target: tuple[int, ...], mebibytes: int):
    assert intermediate_chunks(SHAPE, source, target, (mebibytes << 20) // 4) is None


def test_an_intermediate_array_always_saves_decoding():
    chance, count = np.random.default_rng(3), 0
    for _ in range(300):
        shape = tuple(int(n) for n in chance.integers(1, 2000, 3))
        source, target = (tuple(int(chance.integers(1, n + 1)) for n in shape) for _ in range(2))
        grid, most = regular_grid(shape, target), int(10 ** chance.uniform(2, 8))
        chunks, direct = intermediate_chunks(shape, source, target, most), BlockShapes(grid, source).passes(most)
        if chunks is None:
            continue
        count += 1
        passes = [BlockShapes(regular_grid(shape, chunks), source), BlockShapes(grid, chunks)]
        assert sum(shapes.passes(most) for shapes in passes) < direct
        assert direct > 2
    assert count > 30


def test_listed_sizes_are_not_cut():
    grid = grid_of((30, 8), (5, 8), ((5, 10, 5, 10), None))
    (best, *_) = [BlockShapes(grid, (30, 1)).within(most) for most in (80, 120)]
    ends = {part.stop for part, _ in Blocks(grid, best.counts)}
    assert ends <= {5, 15, 20, 30}
    assert all(a < b for a, b in pairwise(sorted(ends)))
