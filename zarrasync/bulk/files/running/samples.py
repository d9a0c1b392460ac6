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
from zarrasync.bulk.files.records.plan import ArrayPlan, JobPlan
from zarrasync.bulk.files.records.row_samples import RowSample
from zarrasync.bulk.files.records.spans import common
from zarrasync.bulk.files.records.target import LostRows, Target
from zarrasync.bulk.files.running.tasks import planned_array
from zarrasync.indexing.regions import Region
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle

__all__ = ["changed_arrays", "find_lost_rows", "row_samples", "take_samples"]

_MOST_CHUNKS = 64
"""Maximum number of chunks to read of each array, to find one with other values than the fill value."""


async def take_samples(plan: JobPlan, handle: NodeHandle) -> dict[str, Any]:
    """Return samples of the last rows of all arrays, whose rows are stored, as JSON values by the arrays' names.

    An array that contains only fill values has none, because nothing can be lost.

    Args:
        plan: The plan.
        handle: The location of the group.
    """
    arrays = [array for array in plan.arrays if array.axis is not None and plan.segments]
    samples = await gather([partial(_sample, plan, array, handle) for array in arrays])
    return {array.name: sample for array, sample in zip(arrays, samples, strict=True) if sample is not None}


async def _sample(plan: JobPlan, array: ArrayPlan, handle: NodeHandle) -> list[Any] | None:
    """Return a region and the checksum of its values; an empty list if too many chunks contain fill values only."""
    target = planned_array(plan, array, handle.store, handle.config)
    regions = _chunks(plan, array, target)
    for region in itertools.islice(regions, _MOST_CHUNKS):
        values = await _read(target, region)
        if not _is_empty(target, values):
            return [[[part.start, part.stop] for part in region], checksum(values)]
    return None if next(regions, None) is None else []


def _chunks(plan: JobPlan, array: ArrayPlan, target: AsyncArray) -> Iterator[Region]:
    """Yield the regions of the chunks that a plan writes, the last rows first, because others are never removed alone."""
    assert array.axis is not None
    sizes = _chunk_sizes(target)
    cuts = [range(0, n, size) for n, size in zip(target.shape, sizes, strict=True)]
    size = sizes[array.axis]
    for start, stop, _, _ in reversed(plan.segments):
        for first in reversed(range(start // size * size, stop, size)):
            own = [[first] if axis == array.axis else cut for axis, cut in enumerate(cuts)]
            for corner in itertools.product(*own):
                region = [slice(at, min(at + step, n)) for at, step, n in zip(corner, sizes, target.shape, strict=True)]
                region[array.axis] = slice(max(first, start), min(first + size, stop))
                yield tuple(region)


def _chunk_sizes(array: AsyncArray) -> list[int]:
    """Return the shape of chunks; the shape of the array if they differ."""
    return [max(n, 1) for n in (array.chunks if array.metadata.edges is None else array.shape)]


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


def row_samples(plan: JobPlan, samples: Mapping[str, Any]) -> dict[str, RowSample]:
    """Return the samples of ``take_samples`` as the journal contains them."""
    stop = max((segment.stop for segment in plan.segments), default=0)
    return {
        array.name: RowSample(stop, array.axis, tuple((start, end) for start, end in samples[array.name][0]))
        for array in plan.arrays
        if array.axis is not None and samples.get(array.name)
    }


async def find_lost_rows(target: Target, dim: str) -> LostRows:
    """Return the rows of a destination that were removed from an array, and came back as fill values.

    Args:
        target: The destination.
        dim: The dimension along which files are joined.
    """
    known = {
        name: own
        for name, own in target.journal.samples.items()
        if name in target.arrays and dim in target.dims[name] and _fits(target.arrays[name], own)
    }
    are_empty = await gather([partial(_is_sample_empty, target.arrays[name], own) for name, own in known.items()])
    lost = [name for name, is_empty in zip(known, are_empty, strict=True) if is_empty]
    starts = await gather([partial(_first_lost_row, target.arrays[name], known[name]) for name in lost])
    spans = [(start, known[name].length) for name, start in zip(lost, starts, strict=True)]
    return LostRows(common([*target.journal.lost, *spans], [(0, target.length(dim))]), tuple(lost))


async def _first_lost_row(array: AsyncArray, sample: RowSample) -> int:
    """Return the row from which on values may be lost, by reading few of them: no row before one with values is lost.

    Args:
        array: The array.
        sample: A sample that is lost.
    """
    size, start, stop = _chunk_sizes(array)[sample.axis], 0, sample.rows[0]
    first, last = 0, -(-stop // size)
    while first < last:
        middle = (first + last) // 2
        rows = max(middle * size, start), min((middle + 1) * size, stop)
        region = tuple(slice(*rows) if axis == sample.axis else part for axis, part in enumerate(sample.region))
        values = np.moveaxis(await _read(array, region), sample.axis, 0)
        if _is_empty(array, values):
            last, stop = middle, rows[0]
        else:
            kept = next(number for number in reversed(range(len(values))) if not _is_empty(array, values[number]))
            first, start = middle + 1, rows[0] + kept + 1
    return start


def _fits(array: AsyncArray, sample: RowSample) -> bool:
    return len(sample.bounds) == array.ndim and all(
        stop <= n for (_, stop), n in zip(sample.bounds, array.shape, strict=True)
    )


async def _is_sample_empty(array: AsyncArray, sample: RowSample) -> bool:
    return _is_empty(array, await _read(array, sample.region))


def _is_empty(target: AsyncArray, values: npt.NDArray[Any]) -> bool:
    """Return whether all values are the fill value."""
    return checksum(values) == checksum(np.full(values.shape, target.metadata.spec.scalar, values.dtype))


async def _read(target: AsyncArray, region: Region) -> npt.NDArray[Any]:
    return transfer.as_array(await target.view[region].read(), target.dtype, target.metadata.spec.fill_value)
