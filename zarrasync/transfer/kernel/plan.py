"""Work for the compiled kernel: the parts of a selection, as the structs that ``kernel.h`` describes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrasync._kernel.structs import AXIS, ArrayStruct, PointsStruct, worker
from zarrasync.codecs.spec import Array
from zarrasync.indexing.axis_cuts import touched
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import IntArray, Projection, length
from zarrasync.model.chunk_grids import GridAxis, RegularAxis
from zarrasync.transfer.chunks import Chunks


class SortedPoints(NamedTuple):
    """Points in groups, each of which is in one (inner) chunk.

    Attributes:
        struct: The description for the kernel.
        order: The numbers of the points, group by group.
        edges: The position of the first point of each group, and the number of points.
    """

    struct: PointsStruct
    order: IntArray
    edges: IntArray


class KernelPart(NamedTuple):
    """A selection, or a part of one, whose chunks are the product of the chunks along each axis, and of groups of points.

    Attributes:
        projection: The elements and their places in the output.
        axes: A ``za_axis`` for each axis.
        total: The number of touched chunks; with points, one for each group of them that is in the same (inner) chunk.
        out: The address of the first element's place in the output.
        memory: What must live as long as the part.
        points: The points.
        run: The only chunk of the part, if it was listed by its key. Then the axes belong to the chunk.
    """

    projection: Projection
    axes: bytes
    total: int
    out: int
    memory: Sequence[Any]
    points: SortedPoints | None = None
    run: ChunkRun | None = None


def kernel_part(
    chunks: Chunks, projection: Projection, out: Array, axes: Sequence[GridAxis] | None = None
) -> KernelPart | None:
    """Return the description of a selection without points, or ``None`` if the kernel does not support it.

    Args:
        chunks: The chunks.
        projection: The selection.
        out: The output, or the values to write.
        axes: The grid in which the selection is; by default, the grid of the array.
    """
    if projection.point_axes or out.dtype != chunks.chain.spec.dtype.numpy or out.ndim != len(projection.target):
        return None
    places = [target if isinstance(target, slice) else slice(None) for target in projection.target]
    key: Any = (*places, ...)  # without the ellipsis, indexing without axes would return a copy
    targets = out[key]
    if not _fits(projection, targets.shape):
        return None
    memory: list[Any] = [out]
    axes_and_size = describe_axes(chunks, projection, targets.strides, memory, axes)
    if axes_and_size is None:
        return None
    packed, total = axes_and_size
    return KernelPart(projection, packed, total, targets.__array_interface__["data"][0], memory)


def _fits(projection: Projection, shape: Sequence[int]) -> bool:
    """Return whether an output has a place for each element. Values of other callers may have any shape."""
    for source, target, size in zip(projection.source, projection.target, shape, strict=True):
        count = length(source)
        if isinstance(target, slice):
            if count != size:
                return False
        elif count != len(target) or not (count == 0 or 0 <= int(target.min()) <= int(target.max()) < size):
            return False
    return True


def describe_axes(
    chunks: Chunks,
    projection: Projection,
    strides: Sequence[int],
    memory: list[Any],
    axes: Sequence[GridAxis] | None = None,
) -> tuple[bytes, int] | None:
    """Describe the axes of a selection for the kernel.

    Args:
        chunks: The chunks.
        projection: The selection. On point axes, the index 0 is described.
        strides: For each dimension of the target, the distance of its elements in bytes.
        memory: Receives arrays to which the description refers.
        axes: As for ``kernel_part``.

    Returns:
        A ``za_axis`` for each axis, and the number of chunks; ``None`` if the kernel does not support the selection.
    """
    inner_shape = chunks.chain.innermost_chain.spec.shape
    numbers: list[int] = []
    total, dim = 1, 1 if projection.point_axes else 0
    for number, axis in enumerate(chunks.metadata.grid.axes if axes is None else axes):
        if not isinstance(axis, RegularAxis):
            return None
        chunk, inner = axis.chunk, inner_shape[number]
        if number in projection.point_axes:
            numbers += (chunk, inner, 0, 1, 0, 1, 1, 0, 0, 0, 0)
            continue
        selector, target, stride = projection.source[number], projection.target[dim], strides[dim]
        dim += 1
        if not isinstance(target, slice) and isinstance(selector, slice):
            selector = np.arange(selector.start, selector.stop, selector.step)
        if isinstance(selector, slice):
            start, step = selector.start, selector.step
            length = len(range(start, selector.stop, step))
            if step <= chunk:
                first = start // chunk
                count = (start + (length - 1) * step) // chunk - first + 1
                numbers += (chunk, inner, first, count, start, step, length, stride, 0, 0, 0)
                total *= count
                continue
            chunk_list, indices, order = touched(selector, axis), 0, 0
        else:
            start, step, length = 0, 1, len(selector)
            positions = None if isinstance(target, slice) else target
            chunk_list, indices, order = touched(selector, axis), *_sorted(selector, positions, memory)
        listed = np.ascontiguousarray(chunk_list, np.int64)
        memory.append(listed)
        count = len(listed)
        numbers += (chunk, inner, 0, count, start, step, length, stride, listed.ctypes.data, indices, order)
        total *= count
    return b"".join([AXIS.pack(*numbers[at : at + 11]) for at in range(0, len(numbers), 11)]), total


def _sorted(selector: IntArray, positions: IntArray | None, memory: list[Any]) -> tuple[int, int]:
    """Return the addresses of ascending indices, and of their positions in the output (0 if these are 0, 1, 2 …)."""
    indices = np.ascontiguousarray(selector, np.int64)
    if len(indices) > 1 and (indices[1:] < indices[:-1]).any():
        order = np.argsort(indices, kind="stable")
        indices, positions = indices[order], order if positions is None else positions[order]
    if positions is not None:
        positions = np.ascontiguousarray(positions, np.int64)
    memory += (indices, positions)
    return indices.ctypes.data, 0 if positions is None else positions.ctypes.data


def kernel_points(chunks: Chunks, array: ArrayStruct, projection: Projection, out: Array) -> KernelPart | None:
    """Return the description of a selection with points, or ``None`` if the kernel does not support it.

    Args:
        chunks: The chunks.
        array: Their description.
        projection: The elements to read.
        out: The output.
    """
    target = projection.target[0]
    if out.dtype != chunks.chain.spec.dtype.numpy or not isinstance(target, slice):
        return None
    targets = out[(*projection.target, ...)]
    memory: list[Any] = [out]
    axes_and_size = describe_axes(chunks, projection, targets.strides, memory)
    if axes_and_size is None:
        return None
    axes, total = axes_and_size
    count = targets.shape[0]
    points = PointsStruct(count=count, out_stride=targets.strides[0])
    for axis in projection.point_axes:
        indices = np.ascontiguousarray(projection.source[axis], np.int64)
        memory.append(indices)
        points.indices[axis] = indices.ctypes.data
    order, offsets, edges = (np.empty(size, np.int64) for size in (count, count, count + 1))
    memory.append(offsets)
    points.order, points.offsets, points.edges = order.ctypes.data, offsets.ctypes.data, edges.ctypes.data
    own = worker()
    groups = own.sort_points(own.address, ctypes.addressof(array), axes, ctypes.addressof(points))
    if groups < 0:
        return None
    address = targets.__array_interface__["data"][0]
    points_by_chunk = SortedPoints(points, order, edges[: groups + 1])
    return KernelPart(projection, axes, groups * total, address, memory, points_by_chunk)


def listed_parts(chunks: Chunks, runs: Iterable[ChunkRun], out: Array) -> tuple[list[KernelPart], list[ChunkRun]]:
    """Return a part for each chunk, and the chunks that the kernel does not support.

    This is for chunks that are not a box of a regular grid: chunks of a grid with several shapes, and chunks that a caller
    lists.

    Args:
        chunks: The chunks, all of one shape.
        runs: The elements of each chunk, and their places in the output.
        out: The output, or the values to write.
    """
    parts, left = list[KernelPart](), list[ChunkRun]()
    for run in runs:
        for single in run.singles():
            part = kernel_part(chunks, single.projection, out, chunk_axes(chunks))
            if part is None or not part.total:
                left.append(single)
            else:
                parts.append(part._replace(run=single))
    return parts, left


def named_array(chunks: Chunks, array: ArrayStruct, part: KernelPart) -> ArrayStruct:
    """Return the description of the array for a part: with the name of its chunk, if it was listed."""
    if part.run is None:
        return array
    named = ArrayStruct.from_buffer_copy(array)
    named.head, named.separator = chunks.key(part.run.coords).encode(), 0
    return named


def chunk_axes(chunks: Chunks) -> Sequence[GridAxis]:
    """Return the grid that consists of one chunk."""
    return tuple([RegularAxis(length, length) for length in chunks.chain.spec.shape])


def split_part(chunks: Chunks, part: KernelPart, out: Array, wanted: int) -> Sequence[KernelPart]:
    """Split a part of a few shards along an axis, at the boundaries of inner chunks, so that threads can share it.

    Args:
        chunks: The shards.
        part: The part.
        out: The output.
        wanted: How many parts to make at most.
    """
    inner_shape = chunks.chain.innermost_chain.spec.shape
    best, most = -1, 1
    pairs = zip(part.projection.source, part.projection.target, strict=True)  # without points
    for number, (selector, places) in enumerate(pairs):
        if isinstance(selector, slice) and selector.step == 1 and isinstance(places, slice):
            touches = (selector.stop - 1) // inner_shape[number] - selector.start // inner_shape[number] + 1
            if touches > most:
                best, most = number, touches
    if best < 0:
        return [part]
    source, target = part.projection.source[best], part.projection.target[best]
    assert isinstance(source, slice)
    assert isinstance(target, slice)
    inner, first = inner_shape[best], source.start // inner_shape[best]
    length = -(-most // wanted)
    parts: list[KernelPart] = []
    for begin in range(first, first + most, length):
        start, stop = max(source.start, begin * inner), min(source.stop, (begin + length) * inner)
        ends = [target.start + (edge - source.start) * target.step for edge in (start, stop)]
        there = slice(ends[0], ends[1] if ends[1] >= 0 else None, target.step)
        projection = Projection(
            (),
            (*part.projection.source[:best], slice(start, stop, 1), *part.projection.source[best + 1 :]),
            (*part.projection.target[:best], there, *part.projection.target[best + 1 :]),
            part.projection.is_basic,
        )
        section = kernel_part(chunks, projection, out, None if part.run is None else chunk_axes(chunks))
        assert section is not None
        parts.append(section._replace(run=part.run))
    return parts
