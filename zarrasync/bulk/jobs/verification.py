"""Comparison of stored values with the values that a job has written. All jobs verify with it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from zarrasync import transfer
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.checksum import checksum
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.display.progress import IngestReport
from zarrasync.errors import ChecksumError
from zarrasync.indexing.regions import Region, region_text
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import Store
from zarrasync.transfer.threads import Progress


async def has_values(array: AsyncArray, region: Any, expected: Any) -> bool:
    """Return whether a region of an array contains some values, bit by bit.

    Args:
        array: The array.
        region: The region.
        expected: The values, or the checksum that they have in the data type of the array.
    """
    dtype, fill = array.dtype, array.metadata.spec.fill_value

    def digest(values: Any) -> int:
        return checksum(transfer.cast(transfer.as_array(values, dtype, fill), dtype))

    stored = await array.view[region].read()
    wanted = expected if isinstance(expected, int) else await compute(partial(digest, expected))
    return await compute(partial(digest, stored)) == wanted


async def compare_values(array: AsyncArray, region: Region, expected: Any, origin: str = "the written values") -> None:
    """Compare a region of an array with the values that it should contain.

    Args:
        array: The array.
        region: The region.
        expected: The values, or the checksum that they have in the data type of the array.
        origin: Where the values come from, for messages.

    Raises:
        ChecksumError: If they differ.
    """
    if not await has_values(array, region, expected):
        raise difference(f"{array.name}[{region_text(region)}]", array.store, origin)


def difference(name: str, store: Store, origin: str) -> ChecksumError:
    """Return the error for stored values or documents that differ from the written ones."""
    return ChecksumError(
        f"verification failed: {name} in {store!r} differs from {origin}; another writer may have changed one of them"
    )


async def compare_arrays(source: AsyncArray, target: AsyncArray, regions: Iterable[Region], workers: Workers) -> None:
    """Compare regions of two arrays.

    Args:
        source: The array that was copied.
        target: Its copy.
        regions: The regions, each of which fits into memory twice.
        workers: The processes that compare them.

    Raises:
        ChecksumError: If the values differ.
    """
    await workers.share(partial(_compare, source, target), regions, None, source.store, target.store)


async def _compare(source: AsyncArray, target: AsyncArray, regions: Iterable[Region], _: Progress) -> IngestReport:
    for region in regions:
        values = await source.view[(*region, ...)].read()
        await compare_values(target, region, values, f"{source.name} in {source.store!r}")
    return IngestReport()
