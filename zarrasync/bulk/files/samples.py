"""Samples of the rows that a job has written, which show later whether the rows are still stored.

The shape of an array does not show that: rows that were removed with ``resize`` are fill values when the array grows again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency.gather import gather
from zarrasync.bulk.checksum import checksum
from zarrasync.bulk.files.plan import ArrayPlan, JobPlan
from zarrasync.bulk.files.tasks import planned_array
from zarrasync.indexing.regions import Region
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle

__all__ = ["changed_arrays", "take_samples"]

_MOST_CHUNKS = 64
"""Maximum number of chunks to read of each array, to find one with other values than the fill value."""


async def take_samples(plan: JobPlan, handle: NodeHandle) -> dict[str, Any]:
    """Return samples of the last rows of all arrays whose tasks have ended, as JSON values by the arrays' names.

    An array that contains only fill values has none, because nothing can be lost.

    Args:
        plan: The plan.
        handle: The location of the group.
    """
    arrays = [array for array in plan.arrays if array.kind == "rows" and plan.segments]
    samples = await gather([partial(_sample, plan, array, handle) for array in arrays])
    return {array.name: sample for array, sample in zip(arrays, samples, strict=True) if sample is not None}


async def _sample(plan: JobPlan, array: ArrayPlan, handle: NodeHandle) -> list[Any] | None:
    """Return a region and the checksum of its values; an empty list if too many chunks contain fill values only."""
    target = planned_array(plan, array, handle.store, handle.config)
    regions = _chunks(plan, array, target)
    for region in itertools.islice(regions, _MOST_CHUNKS):
        values = await _read(target, region)
        empty = np.full(values.shape, target.metadata.spec.scalar, values.dtype)
        if checksum(values) != checksum(empty):
            return [[[part.start, part.stop] for part in region], checksum(values)]
    return None if next(regions, None) is None else []


def _chunks(plan: JobPlan, array: ArrayPlan, target: AsyncArray) -> Iterator[Region]:
    """Yield the regions of the chunks that a plan writes, the last rows first, because others are never removed alone."""
    assert array.axis is not None
    sizes = [max(n, 1) for n in (target.chunks if target.metadata.edges is None else target.shape)]
    cuts = [range(0, n, size) for n, size in zip(target.shape, sizes, strict=True)]
    size = sizes[array.axis]
    for start, stop, _, _ in reversed(plan.segments):
        for first in reversed(range(start // size * size, stop, size)):
            own = [[first] if axis == array.axis else cut for axis, cut in enumerate(cuts)]
            for corner in itertools.product(*own):
                region = [slice(at, min(at + step, n)) for at, step, n in zip(corner, sizes, target.shape, strict=True)]
                region[array.axis] = slice(max(first, start), min(first + size, stop))
                yield tuple(region)


async def changed_arrays(plan: JobPlan, handle: NodeHandle, samples: Mapping[str, Any]) -> list[str]:
    """Return the names of arrays whose rows differ from their samples, or cannot be compared.

    Args:
        plan: The plan.
        handle: The location of the group.
        samples: The samples of ``take_samples``.
    """
    are_same = await gather([partial(_is_same, plan, name, handle, sample) for name, sample in samples.items()])
    return [name for name, is_same in zip(samples, are_same, strict=True) if not is_same]


async def _is_same(plan: JobPlan, name: str, handle: NodeHandle, sample: Any) -> bool:
    if not sample:
        return False
    region, expected = sample[0], int(sample[1])
    target = planned_array(plan, plan.array(name), handle.store, handle.config)
    return checksum(await _read(target, tuple(slice(*part) for part in region))) == expected


async def _read(target: AsyncArray, region: Region) -> npt.NDArray[Any]:
    return transfer.as_array(await target.view[region].read(), target.dtype, target.metadata.spec.fill_value)
