"""Groups of tasks that share no stored chunk or shard, so that other processes can write them at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from zarrasync import formats
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.tasks import planned_metadata
from zarrasync.errors import ShapeError
from zarrasync.model.chunk_grids import GridAxis


def disjoint_tasks(plan: FilesPlan, numbers: Iterable[int]) -> dict[int, list[int]]:
    """Return tasks in groups, by their first number. Tasks that write parts of the same chunk are in one group.

    Args:
        plan: The job.
        numbers: The numbers of the tasks.
    """
    format_ = formats.by_name(plan.zarr_format)
    axes: list[GridAxis] = [
        planned_metadata(plan, array, format_).grid.axes[array.axis]
        for array in plan.arrays
        if array.kind == "rows" and array.axis is not None
    ]
    groups: dict[int, list[int]] = {}
    first, last = -1, -1
    for number in sorted(numbers, key=lambda number: plan.parts[number].start):
        part = plan.parts[number]
        if part.array:  # all of an array that no other task writes
            groups[number] = [number]
            continue
        if last >= 0 and any(axis.find(part.start) == axis.find(last) for axis in axes):
            groups[first].append(number)
        else:
            first = number
            groups[first] = [number]
        last = part.stop - 1
    return groups


def with_disjoint_tasks(plan: FilesPlan) -> FilesPlan:
    """Return a plan in which one task writes all rows of a chunk.

    Raises:
        ShapeError: If a chunk contains rows that do not follow each other.
    """
    parts = []
    for numbers in disjoint_tasks(plan, range(len(plan.parts))).values():
        own = [plan.parts[number] for number in numbers]
        if gap := next(((a.stop, b.start) for a, b in pairwise(own) if a.stop != b.start), None):
            raise ShapeError(
                f"independent tasks cannot write rows before {gap[0]} and from {gap[1]} on, because they are in the same chunk; "
                "ingest the files in one call, or as several jobs"
            )
        parts.append(replace(own[0], stop=own[-1].stop))
    return replace(plan, parts=parts)
