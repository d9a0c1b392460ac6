"""The work of a pyramid: computing levels from the ones before, in one call, or as boxes that any process can compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency import clock
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.offload import compute
from zarrasync._util.records import TRANSIENT
from zarrasync.bulk.block_writer import BlockWriter
from zarrasync.bulk.copy.values import ArrayCopy
from zarrasync.bulk.jobs.boxes import Box, Output, finer_region, make_tasks
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.claimed_work import ClaimedWork, OneCall
from zarrasync.bulk.jobs.plan import Options
from zarrasync.bulk.jobs.plan_location import NodeLocation
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.pyramid.downsample import downsample
from zarrasync.bulk.pyramid.prepare import Pyramid, PyramidRequest, prepare
from zarrasync.bulk.reports import PyramidReport, add_reports
from zarrasync.bulk.sources import Source
from zarrasync.display.progress import IngestReport, skip_of
from zarrasync.errors import UnsupportedOperation
from zarrasync.indexing.regions import Region, coarser_chunks, touched_chunks
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.pyramids import Method
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.model.fill_values import fill_word, is_fill
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.documents import render_texts
from zarrasync.nodes.functions import open
from zarrasync.nodes.node import run_on_store
from zarrasync.transfer.threads import Progress


@dataclass(frozen=True, kw_only=True)
class PyramidWork(ClaimedWork):
    """A pyramid whose tasks compute boxes of levels. A task needs all tasks of the levels before.

    Attributes:
        is_copied: Whether the finest level is copied into the group.
        request: What to compute.
        known: The pyramid, in the call that plans, runs and finishes it. Others look at the destination again.
    """

    is_copied: bool
    request: PyramidRequest
    known: Pyramid | None = field(default=None, repr=False, metadata=TRANSIENT)
    kind = "pyramid"
    is_shown_at_once = True

    @classmethod
    def of(cls, pyramid: Pyramid, source: NodeLocation, dest_name: str, notes: list[str], tasks: int) -> PyramidWork:
        """Return the work for a pyramid.

        Args:
            pyramid: The pyramid.
            source: The node of the finest level.
            dest_name: The path or URL of the destination; empty without one.
            notes: Notes for the report. Those about conversions of metadata are added.
            tasks: About how many tasks to make; 0 for a number that suits the size.
        """
        finest, handle, is_copied = pyramid.source.array.metadata, handle_of(pyramid.group), pyramid.is_copied
        planned = [pyramid.plan(level, notes) for level in pyramid.levels]
        above = [finest, planned[0] if is_copied else finest, *planned[1:]]
        stages = [
            [Output(level.path, source, metadata, level.factors)]
            for level, source, metadata in zip(pyramid.levels, above, planned, strict=False)
        ]
        paths = [level.path for level in pyramid.levels]
        boxes, sizes = make_tasks(stages[0 if is_copied else 1 :], tasks)
        return cls(
            source=source,
            dest=NodeLocation(handle.store, handle.path, dest_name),
            format=handle.format,
            config=handle.config,
            boxes=boxes,
            sizes=sizes,
            notes=tuple(dict.fromkeys(notes)),
            left_out=tuple(pyramid.left_out),
            is_copied=is_copied,
            request=pyramid.request,
            documents={
                path: render_texts(handle.format, join(handle.path, path), level)
                for path, level in zip(paths, planned, strict=True)
            },
        )

    @cached_property
    def levels(self) -> Sequence[str]:
        """The paths of the levels, from the finest one on, relative to the group."""
        return [*self.documents]

    def stage_of(self, box: Box) -> int:
        return self.levels.index(box.array)

    def opened(self, options: Options, source_options: Options = None) -> PyramidWork:
        return super().opened(options, source_options or options)

    # -------------------------------------------------------------- what tasks and commands do

    async def _pyramid(self) -> Pyramid:
        if self.known is not None:
            return self.known
        mode: Any = "r" if self.is_copied else "r+"
        opening = partial(open, self.source.store, path=self.source.path, mode=mode, config=self.config)
        node = await run_on_store(opening, self.source.store)
        pyramid, _ = await prepare(node, self.store if self.is_copied else None, self.path, self.request)
        return pyramid

    def _level(self, number: int, pyramid: Pyramid) -> AsyncArray:
        return self.array_of(self.levels[number]) if number or self.is_copied else pyramid.source.array

    async def prepare(self, claim: Claim, call: OneCall) -> OneCall:
        notes = [] if call.report is None else call.report.notes
        return replace(call, new=await (await self._pyramid()).make_levels(notes), resume=True)

    async def write_boxes(
        self, boxes: Sequence[Box], progress: Progress, call: OneCall, *, verify: bool
    ) -> IngestReport:
        pyramid, number, report = await self._pyramid(), self.stage_of(boxes[0]), IngestReport()
        level, is_new, begin = pyramid.levels[number], boxes[0].array in (call.new or ()), clock.monotonic()
        source = self._level(number - 1, pyramid) if number else pyramid.source.array
        target = self._level(number, pyramid)
        reduction = Reduction(source, target, level.factors, pyramid.method, pyramid.encoding)
        resume = call.resume and not is_new
        for box in boxes:
            region = box.within(target.shape)
            if number == 0:
                copy = ArrayCopy(source, target, region, call.workers.worth(target.nbytes), resume, is_new)
                done = await copy.run(progress, verify=verify)
            else:
                own = {"is_new": is_new, "resume": resume, "verify": verify}
                done = await compute_level(reduction, region, progress, call.workers, **own)
            add_reports(report, done)
        if call.report is not None:
            report.seconds = clock.monotonic() - begin
            call.report.add(level.path, level.shape, report)
        return report

    def new_result(self, pyramid: Pyramid) -> PyramidReport:
        """Return the report of the whole pyramid, without counts of values."""
        notes, left_out = list(self.notes), list(self.left_out)
        return PyramidReport(self.path, pyramid.convention, pyramid.method, notes=notes, left_out=left_out)

    async def publish(self, call: OneCall, *, verify: bool) -> PyramidReport:
        pyramid = await self._pyramid()
        report: PyramidReport = call.report or self.new_result(pyramid)
        if call.report is None:
            await pyramid.check_levels(self.planned)
            for level in pyramid.written:
                written = [task.nbytes for task in self.tasks if self.levels[task.stage] == level.path]
                report.add(level.path, level.shape, IngestReport(len(written), nbytes=sum(written)))
        await pyramid.publish()
        return report

    async def is_published(self) -> bool:
        return (await self._pyramid()).is_published()

    async def erase(self) -> None:
        pyramid = await self._pyramid()
        if not pyramid.is_published():  # by an earlier job
            await pyramid.drop()


# ------------------------------------------------------------------ computing levels


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
        chosen, is_blocking = dict(items), self.source.store.blocking
        found = [places for places in chosen.values() if places is not None]
        present = {coords for places in found for coords in places} if len(found) == len(chosen) else None
        source = Source(
            self.target.shape,
            self.target.dtype,
            lambda region: drive(self._read(present, region)) if is_blocking else self._read(present, region),
            asynchronous=not is_blocking,
            chunks=tuple(-(-n // f) for n, f in zip(self.source.metadata.write_chunks, self.factors, strict=True)),
        )
        return await BlockWriter(source, self.target, chosen=chosen.keys()).run(progress, is_new=is_new, verify=verify)

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
            above = finer_region(part, self.factors, self.source.shape)
            if present is not None and present.isdisjoint(touched_chunks(above, grid)):
                continue
            values = await self.source.view[above].read()
            place = tuple(slice(p.start - r.start, p.stop - r.start) for p, r in zip(part, region, strict=True))
            if not is_fill(values, fill, word):  # inner chunks of a shard may be absent
                result[place] = await compute(partial(downsample, values, self.factors, self.method, self.encoding))
        return result

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


async def compute_level(
    reduction: Reduction,
    region: Region | None,
    progress: Progress,
    workers: Workers,
    *,
    is_new: bool,
    resume: bool,
    verify: bool,
) -> IngestReport:
    """Compute a level, or a region of it. Parts for which the level before has no stored values are absent without being computed.

    Args:
        reduction: The level.
        region: The region; ``None`` for the whole level.
        progress: Called with the number of bytes written since the last call.
        workers: Where the level is computed.
        is_new: Whether no values are stored there.
        resume: Whether to keep stored values.
        verify: Whether to read the values back and compare them.

    Raises:
        StoreError: If other processes would write into copies of a store in the memory of this process.
    """
    source, target = reduction.source, reduction.target
    existing: set[Coordinates] = set()
    grid = target.metadata.grid
    every = lazy_product([range(n) for n in grid.shape]) if region is None else touched_chunks(region, grid)
    places: Iterable[tuple[Coordinates, Sequence[Coordinates] | None]] = ((coords, None) for coords in every)
    try:
        if resume:
            existing, is_new = await stored_chunks(target), True
        if region is None and is_new and not target.config.write_empty_chunks:  # others may have to be erased
            places = sorted((await _find_sources(reduction)).items())
    except UnsupportedOperation:  # the store cannot list
        pass
    every_place = list(places)
    items = [item for item in every_place if item[0] not in existing]
    work = partial(reduction.run, is_new=is_new, verify=verify)
    report = await workers.share(work, items, progress, source.store, target.store)
    if not workers.is_local:
        skip_of(progress)(target.nbytes - report.nbytes)
    report.skipped = len(every_place) - len(items)
    return report


async def _find_sources(reduction: Reduction) -> dict[Coordinates, list[Coordinates]]:
    """Return the stored values of the level before by the stored values of the level to which they contribute."""
    source, target = reduction.source, reduction.target
    sources: dict[Coordinates, list[Coordinates]] = {}
    for coords in filter(source.metadata.grid.__contains__, await stored_chunks(source)):
        for place in coarser_chunks([coords], source.metadata.grid, target.metadata.grid, reduction.factors):
            sources.setdefault(place, []).append(coords)
    return sources
