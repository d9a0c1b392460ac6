"""What chunks of one kind have in common, derived once: their sizes, their memory layout, and budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from zarrasync._util.memory import OutputBudget, expansion_budget
from zarrasync.codecs.base import ArrayArrayCodec, BytesBytesCodec
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


_COPY_IS_SLOWER = 1 << 17
"""Bytes of a decoded chunk above which one more copy takes longer than placing each chunk on its own."""
_RUN_BYTES = 2 << 20
"""Bytes of decoded chunks that are placed in one step, enough to make the interpreter's share negligible."""
_RUN_CHUNKS = 256
"""Chunks that are placed in one step at most."""


def decoded_axis_order(order: list[int] | None, array_steps: Sequence[ArrayStep]) -> list[int] | None:
    """Return the axis order after all array -> array codecs are undone, or ``None`` if one does more than reorder."""
    for codec, _ in reversed(array_steps):
        permutation = codec.permutation
        if order is None or permutation is None:
            return None
        order = [order[permutation.index(axis)] for axis in range(len(permutation))]
    return order


def run_length(raw_size: int, *, decodes_into_buffer: bool) -> int:
    """Return how many chunks, whose memory is a view of the raw bytes, to decode and place in one step.

    It is 1 if chunks are so large that the copy into shared memory costs more than separate steps.
    """
    if raw_size >= _COPY_IS_SLOWER and not decodes_into_buffer:
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
