"""Computing one level of a pyramid from the one before it, in this process or in others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.blocks import Ingestion
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.pyramid.downsample import Method, downsample
from zarrasync.bulk.sources import Source
from zarrasync.display.progress import IngestReport, skip_of
from zarrasync.errors import UnsupportedOperation
from zarrasync.indexing.regions import Region, coarser_chunks, touched_chunks
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.model.fill_values import fill_word, is_fill
from zarrasync.nodes.access import stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.transfer.threads import Progress

Coordinates: TypeAlias = tuple[int, ...]
"""The place of a stored value in the grid of an array."""

_CONCURRENT_READS = 8
"""Number of blocks that are read at a time at least, among which memory is divided."""


@dataclass(frozen=True)
class Reduction:
    """The computation of one level. It can be sent to other processes.

    Attributes:
        source: The level before.
        target: The level to compute.
        factors: The number of elements along each axis that become one.
        method: The method.
        encoding: The meaning of the stored numbers.
    """

    source: AsyncArray
    target: AsyncArray
    factors: tuple[int, ...]
    method: Method
    encoding: CFEncoding

    async def run(
        self,
        items: Iterable[tuple[Coordinates, Sequence[Coordinates] | None]],
        progress: Progress,
        *,
        is_new: bool,
        verify: bool = False,
    ) -> IngestReport:
        """Compute stored values of the level.

        Args:
            items: The grid coordinates of each stored value, and the coordinates of the stored values of the finer level that
                contribute to it; ``None`` if they are unknown.
            progress: Called with the number of bytes written since the last call.
            is_new: Whether none of them exists in the store.
            verify: Whether to read the values back and compare them.
        """
        report, chosen, is_blocking = IngestReport(), dict(items), self.source.store.blocking
        found = [places for places in chosen.values() if places is not None]
        present = {coords for places in found for coords in places} if len(found) == len(chosen) else None
        source = Source(
            self.target.shape,
            self.target.dtype,
            partial(self._read_now if is_blocking else self._read, present),
            asynchronous=not is_blocking,
            chunks=tuple(-(-n // f) for n, f in zip(self.source.metadata.write_chunks, self.factors, strict=True)),
        )
        ingestion = Ingestion(source, self.target, None, "allow", report, chosen=chosen.keys())
        await ingestion.run(progress, resume=False, is_new=is_new, verify=verify)
        return report

    def _read_now(self, present: set[Coordinates] | None, region: Region) -> npt.NDArray[Any]:
        return drive(self._read(present, region))

    async def _read(self, present: set[Coordinates] | None, region: Region) -> npt.NDArray[Any]:
        """Return the values of a region of the level. The level before is read part by part.

        Args:
            present: The grid coordinates of the stored values of the level before; ``None`` if they are unknown.
            region: The region.
        """
        spec, grid = self.source.metadata.spec, self.source.metadata.grid
        fill, word = spec.fill_value, fill_word(spec.scalar)
        result = np.full([part.stop - part.start for part in region], fill, self.target.dtype)
        for part in self._parts(region):
            above = self._above(part)
            if present is not None and present.isdisjoint(touched_chunks(above, grid)):
                continue
            values = await self.source.view[above].read()
            place = tuple(slice(p.start - r.start, p.stop - r.start) for p, r in zip(part, region, strict=True))
            if not is_fill(values, fill, word):  # inner chunks of a shard may be absent
                result[place] = await compute(partial(downsample, values, self.factors, self.method, self.encoding))
        return result

    def _above(self, region: Region) -> Region:
        """Return the region of the level before that a region of this level consists of."""
        items = zip(region, self.factors, self.source.shape, strict=True)
        return tuple(slice(part.start * factor, min(part.stop * factor, n)) for part, factor, n in items)

    def _parts(self, region: Region) -> Iterator[Region]:
        """Cut a region into parts that are small enough to read, if possible along chunks of the level before."""
        config, chunks = self.source.config, self.source.metadata.chunks
        limit = config.memory_budget // (4 * max(config.pool_size, _CONCURRENT_READS))
        units = [max(1, chunk // factor) for chunk, factor in zip(chunks, self.factors, strict=True)]
        sizes = [part.stop - part.start for part in region]
        nbytes = math.prod(self.factors) * max(self.source.dtype.itemsize, 1)
        while math.prod(sizes) * nbytes > limit:
            axis = max(range(len(sizes)), key=lambda axis: sizes[axis] / units[axis])
            if sizes[axis] <= units[axis]:
                break
            sizes[axis] = units[axis] * -(-sizes[axis] // (2 * units[axis]))
        axes = [
            [slice(start, min(start + size, part.stop)) for start in range(part.start, part.stop, size)]
            for part, size in zip(region, sizes, strict=True)
        ]
        return product(*axes)


async def compute_level(reduction: Reduction, progress: Progress, *, resume: bool, workers: Workers) -> IngestReport:
    """Compute a level. Parts of it for which the level before has no stored values are absent without being computed.

    Args:
        reduction: The level.
        progress: Called with the number of bytes written since the last call.
        resume: Whether to keep existing stored values.
        workers: Where the level is computed.

    Raises:
        StoreError: If other processes would write into copies of a store in the memory of this process.
    """
    source, target = reduction.source, reduction.target
    existing: set[Coordinates] = set()
    every = lazy_product([range(n) for n in target.metadata.grid.shape])
    places: Iterable[tuple[Coordinates, Sequence[Coordinates] | None]] = ((coords, None) for coords in every)
    is_new = not resume
    try:
        if resume:
            existing, is_new = await stored_chunks(target), True
        if not target.config.write_empty_chunks:
            places = sorted((await _find_sources(reduction)).items())
    except UnsupportedOperation:  # the store cannot list
        pass
    items, skipped = [], 0
    for item in places:
        if item[0] in existing:
            skipped += 1
        else:
            items.append(item)
    report = await workers.share(partial(reduction.run, is_new=is_new), items, progress, source.store, target.store)
    if not workers.is_local:
        skip_of(progress)(target.nbytes - report.nbytes)
    report.skipped = skipped
    return report


async def _find_sources(reduction: Reduction) -> dict[Coordinates, list[Coordinates]]:
    """Return the stored values of the level before by the stored values of the level to which they contribute."""
    source, target = reduction.source, reduction.target
    sources: dict[Coordinates, list[Coordinates]] = {}
    for coords in filter(source.metadata.grid.__contains__, await stored_chunks(source)):
        for place in coarser_chunks([coords], source.metadata.grid, target.metadata.grid, reduction.factors):
            sources.setdefault(place, []).append(coords)
    return sources
