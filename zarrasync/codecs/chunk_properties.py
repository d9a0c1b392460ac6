"""What chunks of one kind have in common, derived once: their sizes, their memory layout, and budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from zarrasync._util.memory import OutputBudget, expansion_budget
from zarrasync.codecs.base import ArrayArrayCodec, BytesBytesCodec, Codec
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.spec import ArraySpec

ArrayStep: TypeAlias = tuple[ArrayArrayCodec, ArraySpec]
"""An array -> array codec with the spec of its decoded side."""


def encoded_sizes(raw_size: int | None, compressors: Iterable[BytesBytesCodec]) -> list[int | None]:
    """Return the bytes after the array -> bytes codec and after each bytes -> bytes codec, ``None`` if data-dependent."""
    sizes = [raw_size]
    for codec in compressors:
        size = sizes[-1]
        sizes.append(None if size is None else codec.encoded_size(size))
    return sizes


def read_size_hint(raw_size: int | None, encoded_size: int | None) -> int:
    """Return a buffer size that holds most encoded chunks: an eighth and 4 KiB more than the raw chunk.

    It is the exact size if all encoded chunks have the same, and 0 if the size of raw chunks depends on the data.
    """
    return encoded_size or (raw_size + raw_size // 8 + 4096 if raw_size else 0)


def supports_partial_reads(
    serializer: BoundArrayBytes, array_steps: Sequence[ArrayStep], compressors: Sequence[BytesBytesCodec]
) -> bool:
    """Return whether parts of an encoded chunk can be located.

    The array -> bytes codec must support it, array -> array codecs may only reorder axes, and nothing may encode the
    bytes as a whole.
    """
    if compressors or not getattr(serializer, "divisible", True):
        return False
    return all(codec.permutation is not None for codec, _ in array_steps)


def is_quick(raw_size: int | None, codecs: Iterable[Codec]) -> bool:
    """Return whether decoding small chunks takes little time: their size is known and every codec is ``brief``."""
    return raw_size is not None and all(codec.brief for codec in codecs)


def decodes_into_buffer(stored_dtype: np.dtype[Any] | None, compressors: Sequence[BytesBytesCodec]) -> bool:
    """Return whether large chunks are decoded into memory of the caller without a copy.

    Raw chunks are read there. Otherwise the first bytes -> bytes codec, which is the last one to decode, must do so.
    """
    return compressors[0].fills if compressors else stored_dtype is not None


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


_MARGIN = 1 << 16
"""Bytes that headers and incompressible data may add to any chunk."""
_OVERHEADS, _OBJECT_OVERHEAD = {"string": 16, "bytes": 64}, 192
"""Bytes of an element whose size varies besides its content, by data type, and of any Python object."""


def memory_size(spec: ArraySpec) -> int:
    """Return the bytes of a decoded chunk, without the content of elements that vary in size."""
    if spec.nbytes is not None:
        return spec.nbytes
    return _OVERHEADS.get(spec.dtype.name, _OBJECT_OVERHEAD) * math.prod(spec.shape)


def fixed_budget(raw_size: int | None, raw_limit: int | None, spec: ArraySpec) -> OutputBudget | None:
    """Return the most bytes that any step of decoding may produce; ``None`` if that depends on the stored bytes.

    Args:
        raw_size: Bytes of a raw chunk, if they do not depend on the data.
        raw_limit: The most bytes of a raw chunk, if the array -> bytes codec limits them.
        spec: The spec of the decoded chunk.
    """
    if spec.nbytes is None:
        return _budget_of_setting(spec) if spec.max_nbytes else None
    most = raw_size if raw_size is not None else raw_limit if raw_limit is not None else 4 * spec.nbytes
    return OutputBudget(most + most // 4 + _MARGIN, f"a chunk has {spec.nbytes:,} bytes")


def variable_budget(stored_size: int, spec: ArraySpec) -> OutputBudget:
    """Return the most bytes that a chunk of variable-length elements may take in memory, and any step of decoding it.

    Args:
        stored_size: Bytes of the stored chunk.
        spec: The spec of the decoded chunk.
    """
    if spec.max_nbytes:
        return _budget_of_setting(spec)
    content = expansion_budget(stored_size)
    return OutputBudget(memory_size(spec) + content, f"{content.origin}; config.max_chunk_bytes sets another one")


def _budget_of_setting(spec: ArraySpec) -> OutputBudget:
    return OutputBudget(spec.max_nbytes, f"config.max_chunk_bytes is {spec.max_nbytes:,}")
