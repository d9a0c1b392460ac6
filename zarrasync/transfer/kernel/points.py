"""Points for the compiled kernel, which sorts them by chunk."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from zarrasync._kernel.structs import ArrayStruct, PointsStruct, worker
from zarrasync.codecs.spec import Array
from zarrasync.indexing.projection import Projection
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.kernel.plan import KernelPart, SortedPoints, describe_axes

__all__ = ["kernel_points"]


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
    described = describe_axes(chunks, projection, targets.strides, memory)
    if described is None:
        return None
    axes, total = described
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
