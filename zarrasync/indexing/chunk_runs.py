"""Runs of neighbouring chunks with equal selections, which are fetched, decoded and copied together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.axis_order import assign
from zarrasync.indexing.projection import Projection

__all__ = ["ChunkRun"]


class ChunkRun(NamedTuple):
    """The touched elements of one chunk, or of several neighbouring chunks along an axis with the same source.

    Attributes:
        coords: The grid coordinates of the chunk, or of the first chunk of a run.
        projection: The touched elements of the chunk and their destination. All chunks of a run have the same source,
            and their targets follow each other along the axis.
        is_full: Whether all elements of a chunk that lie inside the array are touched, in order.
        axis: The axis along which the chunks of a run follow each other.
        count: The number of chunks. Runs of several chunks have a basic projection.
    """

    coords: tuple[int, ...]
    projection: Projection
    is_full: bool
    axis: int = 0
    count: int = 1  # type: ignore[assignment]  # hides the method of tuples, which is not used

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.count * self.projection.size

    def section(self, start: int, stop: int) -> ChunkRun:
        """Return the run of the chunks ``start`` to ``stop`` of this run."""
        if self.count == stop - start:
            return self
        axis, target = self.axis, self.projection.target
        first = target[axis]
        assert isinstance(first, slice)
        length = first.stop - first.start
        shifted = slice(first.start + start * length, first.stop + start * length, 1)
        coords = (*self.coords[:axis], self.coords[axis] + start, *self.coords[axis + 1 :])
        projection = Projection((), self.projection.source, (*target[:axis], shifted, *target[axis + 1 :]), True)
        return ChunkRun(coords, projection, self.is_full, axis, stop - start)

    def singles(self) -> Iterator[ChunkRun]:
        """Return the chunks one by one."""
        return iter((self,)) if self.count == 1 else (self.section(i, i + 1) for i in range(self.count))

    def stacked(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the targets of all chunks as one view of the output, with an additional first axis for the chunks.

        For example, the targets of 3 chunks of shape (2, 4) in a row along axis 1 are the view ``out[0:2, 0:12]``,
        reshaped from (2, 12) to (2, 3, 4) and transposed to (3, 2, 4).
        """
        axis, target = self.axis, self.projection.target
        if self.count == 1:
            return out[(*target, ...)][np.newaxis]  # without the ellipsis, indexing without axes would return a copy
        first = target[axis]
        assert isinstance(first, slice)
        length = first.stop - first.start
        view = out[(*target[:axis], slice(first.start, first.start + self.count * length), *target[axis + 1 :])]
        shape = view.shape
        view = view.reshape(*shape[:axis], self.count, length, *shape[axis + 1 :])  # splitting an axis never copies
        return view.transpose(axis, *range(axis), *range(axis + 1, len(shape) + 1))

    def read(self, boxes: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy elements from the decoded chunks, which are stacked along the first axis of ``boxes``."""
        if self.projection.is_basic:
            assign(self.stacked(out), boxes[(slice(None), *self.projection.source)])
        else:
            self.projection.read(boxes[0], out)

    def write(self, boxes: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Copy elements into the decoded chunks, which are stacked along the first axis of ``boxes``."""
        if self.projection.is_basic:
            assign(boxes[(slice(None), *self.projection.source)], self.stacked(values))
        else:
            self.projection.write(boxes[0], values)

    def fill(self, out: npt.NDArray[Any], value: Any) -> None:
        """Set the targets of all chunks to one value."""
        if self.projection.is_basic:
            self.stacked(out)[...] = value
        else:
            self.projection.fill(out, value)
