"""Checking that the calls on one register could have happened one after the other (after Wing and Gong, and Lowe).

A register is a small array of cells that is stored as one value: a chunk or a shard. A write sets some of the cells, a
read sees some of them, each at one moment between the begin and the end of its call. A write that failed took place at
one such moment, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Access", "is_linearizable"]


class Access(NamedTuple):
    """A read or a write of cells of a register.

    Attributes:
        start: When it began.
        end: When it ended.
        cells: By number the values that were written or seen.
        writes: Whether it wrote them.
        required: Whether it certainly took place.
    """

    start: int
    end: int
    cells: Mapping[int, int]
    writes: bool
    required: bool = True


def is_linearizable(accesses: Sequence[Access], initial: tuple[int, ...]) -> bool:
    """Return whether some order of the accesses explains what was read.

    Args:
        accesses: The accesses.
        initial: The cells before all of them.
    """
    ordered = sorted(accesses, key=lambda access: access.start)
    required = sum(1 << number for number, access in enumerate(ordered) if access.required)
    tried: set[tuple[int, tuple[int, ...]]] = set()
    stack = [(0, initial, -1)]
    while stack:
        done, state, latest = stack.pop()
        if done & required == required:
            return True
        first_end = min(
            access.end for number, access in enumerate(ordered) if access.required and not done >> number & 1
        )
        for number, access in enumerate(ordered):
            if access.start > first_end:
                break
            if done >> number & 1 or access.end < latest:
                continue
            after = _apply(access, state)
            if after is None:
                continue
            key = (done | 1 << number, after)
            if key not in tried:
                tried.add(key)
                stack.append((*key, max(latest, access.start)))
    return False


def _apply(access: Access, state: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the cells after an access, or ``None`` if a read saw others."""
    if not access.writes:
        return state if all(state[cell] == value for cell, value in access.cells.items()) else None
    cells = list(state)
    for cell, value in access.cells.items():
        cells[cell] = value
    return tuple(cells)
