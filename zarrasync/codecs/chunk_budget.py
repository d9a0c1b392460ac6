"""The output budgets of chunks: how many bytes the steps of decoding one may produce."""

from __future__ import annotations

import math

from zarrasync._util.output_budget import OutputBudget, expansion_budget
from zarrasync.codecs.spec import ArraySpec

__all__ = ["fixed_budget", "memory_size", "variable_budget"]

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
