"""Groups of tasks that share no stored chunk or shard, so that other processes can write them at the same time."""

from __future__ import annotations

from collections.abc import Iterable

from zarrasync import formats
from zarrasync.bulk.files.plan import JobPlan
from zarrasync.bulk.files.tasks import planned_metadata
from zarrasync.model.chunk_grids import Axis

__all__ = ["disjoint_tasks"]


def disjoint_tasks(plan: JobPlan, numbers: Iterable[int]) -> dict[int, list[int]]:
    """Return tasks in groups, by their first number. Tasks that write parts of the same chunk are in one group.

    Args:
        plan: The job.
        numbers: The numbers of the tasks.
    """
    format_ = formats.by_name(plan.zarr_format)
    axes: list[Axis] = [
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
