"""How the elements of decoded chunks lie in memory, and how many chunks are worth decoding in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrasync.codecs.capabilities import ArrayStep
from zarrasync.codecs.spec import ArraySpec

__all__ = ["ChunkMemoryLayout", "chunk_memory_layout"]

_COPY_IS_SLOWER = 1 << 17
"""Bytes of a decoded chunk above which one more copy takes longer than placing each chunk on its own."""
_RUN_BYTES = 2 << 20
"""Bytes of decoded chunks that are placed in one step, enough to make the interpreter's share negligible."""
_RUN_CHUNKS = 256
"""Chunks that are placed in one step at most."""


class ChunkMemoryLayout(NamedTuple):
    """Memory layout of decoded chunks.

    Attributes:
        stored_dtype: The dtype of the stored elements if raw bytes are just the elements in C order, else ``None``.
        stored_shape: The chunk's shape as the array -> bytes codec receives it.
        view_axes: For each axis of the chunk, its number in ``stored_shape``; ``None`` if decoding takes more than a
            view of the raw bytes.
        axis_order: As ``BoundChain.memory_axis_order``.
        decodes_to_output: As ``BoundChain.decodes_to_output``.
        run_length: As ``BoundChain.run_length``.
    """

    stored_dtype: np.dtype[Any] | None
    stored_shape: tuple[int, ...]
    view_axes: list[int] | None
    axis_order: list[int] | None
    decodes_to_output: bool
    run_length: int


def chunk_memory_layout(
    spec: ArraySpec,
    array_steps: Sequence[ArrayStep],
    stored_spec: ArraySpec,
    stored_dtype: np.dtype[Any] | None,
    raw_size: int | None,
    *,
    inner_axis_order: list[int] | None,
    is_sharded: bool,
    decodes_into_buffer: bool,
) -> ChunkMemoryLayout:
    """Derive the layout of one kind of chunk.

    Args:
        spec: The spec of the decoded chunk.
        array_steps: The array -> array codecs.
        stored_spec: The spec that the array -> bytes codec is bound to.
        stored_dtype: As in ``ChunkMemoryLayout``.
        raw_size: Bytes of a raw chunk, or ``None`` if that depends on the data.
        inner_axis_order: The axis order of the inner chunks of a shard.
        is_sharded: Whether chunks are shards.
        decodes_into_buffer: Whether large chunks are decoded into memory of the caller without a copy.
    """
    order = _decoded_axis_order(inner_axis_order or list(range(len(stored_spec.shape))), array_steps)
    view_axes = order if stored_dtype is not None and raw_size else None
    return ChunkMemoryLayout(
        stored_dtype,
        stored_spec.shape,
        view_axes,
        _unless_c_order(order if is_sharded else view_axes),
        _is_chunk_memory(spec, array_steps, stored_dtype, raw_size),
        _run_length(view_axes, raw_size, decodes_into_buffer=decodes_into_buffer),
    )


def _decoded_axis_order(order: list[int] | None, array_steps: Sequence[ArrayStep]) -> list[int] | None:
    """Return the axis order after all array -> array codecs are undone, or ``None`` if one does more than reorder."""
    for codec, _ in reversed(array_steps):
        permutation = codec.permutation
        if order is None or permutation is None:
            return None
        order = [order[permutation.index(axis)] for axis in range(len(permutation))]
    return order


def _unless_c_order(order: list[int] | None) -> list[int] | None:
    return None if order is None or order == sorted(order) else order


def _is_chunk_memory(
    spec: ArraySpec, array_steps: Sequence[ArrayStep], stored_dtype: np.dtype[Any] | None, raw_size: int | None
) -> bool:
    """Return whether raw bytes are the chunk's memory: C order, native dtype, no array -> array codecs."""
    # NumPy considers None equal to the dtype float64, so compare with None first.
    return not array_steps and stored_dtype is not None and stored_dtype == spec.dtype.numpy and bool(raw_size)


def _run_length(view_axes: list[int] | None, raw_size: int | None, *, decodes_into_buffer: bool) -> int:
    """Return how many chunks to decode and place in one step.

    It is 1 if decoding takes more than a view, or if chunks are so large that the copy into shared memory costs more
    than separate steps.
    """
    if view_axes is None or not raw_size or (raw_size >= _COPY_IS_SLOWER and not decodes_into_buffer):
        return 1
    return max(1, min(_RUN_CHUNKS, _RUN_BYTES // raw_size))
