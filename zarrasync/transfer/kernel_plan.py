"""Work for the compiled kernel: the parts of a selection, as the structs that ``kernel.h`` describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrasync._kernel.structs import AXIS
from zarrasync.codecs.spec import Array
from zarrasync.indexing.axis_cuts import touched
from zarrasync.indexing.projection import Projection
from zarrasync.model.chunk_grids import RegularAxis
from zarrasync.transfer.chunks import Chunks

__all__ = ["KernelPart", "kernel_part", "split_part"]


class KernelPart(NamedTuple):
    """A selection, or a part of one, whose chunks are the product of the chunks along each axis.

    Attributes:
        projection: The elements and their places in the output.
        axes: A ``za_axis`` for each axis.
        total: The number of touched chunks.
        out: The address of the first element's place in the output.
        memory: What must live as long as the part.
    """

    projection: Projection
    axes: bytes
    total: int
    out: int
    memory: Sequence[Any]


def kernel_part(chunks: Chunks, projection: Projection, out: Array) -> KernelPart | None:
    """Return the description of a selection, or ``None`` if the kernel does not support it."""
    if projection.point_axes or out.dtype != chunks.chain.spec.dtype.numpy:
        return None
    grid, inner_shape = chunks.metadata.grid, chunks.chain.innermost_chain.spec.shape
    targets = out[(*projection.target, ...)]  # without the ellipsis, indexing without axes would return a copy
    numbers: list[int] = []
    counts: list[int] = []
    memory: list[Any] = [out]
    for number, axis in enumerate(grid.axes):
        selector, stride = projection.source[number], targets.strides[number]
        if not isinstance(axis, RegularAxis) or not isinstance(projection.target[number], slice):
            return None
        chunk = axis.chunk
        if isinstance(selector, slice):
            start, step = selector.start, selector.step
            length = len(range(start, selector.stop, step))
            if step <= chunk:
                first = start // chunk
                count = (start + (length - 1) * step) // chunk - first + 1
                numbers += (chunk, inner_shape[number], first, count, start, step, length, stride, 0, 0, 0)
                counts.append(count)
                continue
            chunk_list, indices, order = touched(selector, axis), 0, 0
        else:
            start, step, length = 0, 1, len(selector)
            chunk_list, indices, order = touched(selector, axis), *_sorted(selector, memory)
        listed = np.ascontiguousarray(chunk_list, np.int64)
        memory.append(listed)
        count = len(listed)
        numbers += (
            chunk,
            inner_shape[number],
            0,
            count,
            start,
            step,
            length,
            stride,
            listed.ctypes.data,
            indices,
            order,
        )
        counts.append(count)
    axes = b"".join([AXIS.pack(*numbers[at : at + 11]) for at in range(0, len(numbers), 11)])
    address = targets.__array_interface__["data"][0]
    return KernelPart(projection, axes, math.prod(counts), address, memory)


def _sorted(selector: Any, memory: list[Any]) -> tuple[int, int]:
    """Return the addresses of ascending indices and of their positions in the output (0 if they are ascending)."""
    indices = np.ascontiguousarray(selector, np.int64)
    order = None
    if len(indices) > 1 and (indices[1:] < indices[:-1]).any():
        order = np.argsort(indices, kind="stable").astype(np.int64, copy=False)
        indices = indices[order]
    memory += (indices, order)
    return indices.ctypes.data, 0 if order is None else order.ctypes.data


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
    for number, selector in enumerate(part.projection.source):
        if isinstance(selector, slice) and selector.step == 1:
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
        section = kernel_part(chunks, projection, out)
        assert section is not None
        parts.append(section)
    return parts
