"""Plans: which chunks a selection touches, and where their elements are placed. Pure, no IO.

A plan lists runs of chunks. ``read`` and ``write`` carry it out, and decide only the order of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zarrasync._util.memory import aligned_empty, empty_in_order
from zarrasync.codecs import BoundChain
from zarrasync.codecs.spec import Array
from zarrasync.config import Config
from zarrasync.errors import SelectionError
from zarrasync.indexing.chunk_runs import AnyRun, ChunkRun, split_chunks, split_points
from zarrasync.indexing.projection import Projection
from zarrasync.indexing.transform import BufferLayout, Transform
from zarrasync.transfer.chunks import Chunks, Fields, dtype_of
from zarrasync.transfer.limits import JOB_CHUNKS, PAGES

R = TypeVar("R", bound=AnyRun)


class ReadPlan(NamedTuple):
    """The steps of a read.

    Attributes:
        chunks: The array's chunks.
        projection: The elements to read, and their places in the buffer.
        buffer: The memory for the elements: a view of the result, or converted to it by ``layout.to_result``.
    """

    chunks: Chunks
    projection: Projection
    buffer: Array

    def groups(self) -> Sequence[tuple[Chunks, Sequence[AnyRun]]]:
        """Return for each shape of stored chunks the chunks and the runs to read."""
        return self.chunks.by_shape(_runs_to_read(self.chunks, self.projection))


class WritePlan(NamedTuple):
    """The steps of a write.

    Attributes:
        chunks: The array's chunks.
        projection: The elements to write, and their places in the values.
        values: The values to write, laid out as a read's buffer.
    """

    chunks: Chunks
    projection: Projection
    values: Array

    def groups(self) -> Sequence[tuple[Chunks, Sequence[ChunkRun]]]:
        """Return for each shape of stored chunks the chunks and the runs to write."""
        chunks = self.chunks
        run_length = _run_length(chunks) if chunks.store.blocking else 1
        return chunks.by_shape(split_chunks(self.projection, chunks.metadata.grid, run_length))


def plan_read(chunks: Chunks, transform: Transform, buffer: Array | None = None, fields: Fields = None) -> ReadPlan:
    """Plan the reading of a selection.

    Args:
        chunks: The array's chunks.
        transform: The selection.
        buffer: Memory in the order of ``transform.layout``; new memory if not given.
        fields: Structured fields to read.

    Raises:
        MetadataError: If a chunk is larger than the settings allow.
    """
    if chunks.config.max_chunk_bytes:
        chunks.check_chunk_size()
    if buffer is None:
        buffer = new_buffer(chunks.metadata.chain, transform.layout, dtype_of(chunks, fields))
    return ReadPlan(chunks, transform.layout.projection(), buffer)


def plan_write(chunks: Chunks, transform: Transform, values: Array) -> WritePlan:
    """Plan the writing of values of the selection's shape.

    Raises:
        MetadataError: If a chunk is larger than the settings allow.
    """
    if chunks.config.max_chunk_bytes:
        chunks.check_chunk_size()
    layout = transform.layout
    return WritePlan(chunks, layout.projection(), layout.to_buffer(values))


def new_buffer(chain: BoundChain, layout: BufferLayout, dtype: np.dtype[Any]) -> Array:
    """Return memory for a result, in the axis order of the chunks' memory: reordering is slower than reading."""
    shape, order = layout.buffer_shape, chain.memory_axis_order
    make = aligned_empty if chain.is_raw and math.prod(shape) * dtype.itemsize >= PAGES else np.empty
    try:
        if order is None or layout.point_axes:
            return make(shape, dtype)
        return empty_in_order(shape, dtype, order, make)
    except MemoryError as error:
        nbytes = math.prod(shape) * dtype.itemsize
        raise SelectionError(
            f"not enough memory for a result of shape {shape} with {nbytes:,} bytes: select a smaller part", shape=shape
        ) from error


def _runs_to_read(chunks: Chunks, projection: Projection) -> Sequence[AnyRun]:
    """Return runs of chunks. Chunks with only a few selected elements form one run if that is faster."""
    chain, grid = chunks.metadata.chain, chunks.metadata.grid
    if chain.run_length > 1 and chunks.metadata.edges is None and not chain.supports_partial_reads:
        points = split_points(projection, grid)
        if points is not None:
            return points
    return split_chunks(projection, grid, _run_length(chunks))


def _run_length(chunks: Chunks) -> int:
    """Return the maximum number of neighbouring chunks in a run."""
    return chunks.metadata.chain.run_length if chunks.metadata.edges is None else 1


def batches(runs: Sequence[R], nbytes: int, settings: Config, threads: int, most: int = JOB_CHUNKS) -> list[list[R]]:
    """Split runs into batches, enough of them for all threads.

    Args:
        runs: The runs.
        nbytes: Bytes of a decoded chunk.
        settings: The settings, which limit the bytes of a batch.
        threads: Threads that share the batches.
        most: Maximum number of chunks in a batch.
    """
    most = max(1, min(most, settings.batch_bytes // max(nbytes, 1)))
    most = max(1, min(most, -(-sum([run.count for run in runs]) // threads)))
    if len(runs) == 1 and runs[0].count <= most:
        return [[runs[0]]]
    made: list[list[R]] = []
    room = 0
    for run in runs:
        for start in range(0, run.count, most):
            section: R = run.section(start, min(start + most, run.count))  # type: ignore[assignment]  # of the same kind
            if room < section.count:
                made.append([])
                room = most
            made[-1].append(section)
            room -= section.count
    return made
