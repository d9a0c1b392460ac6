"""Pyramids as plans: boxes of levels that any process can compute, one level after the other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zarrasync._concurrency import clock
from zarrasync.bulk.copy.planned import render_texts
from zarrasync.bulk.copy.values import copy_values
from zarrasync.bulk.jobs.boxes import Box, Output, Sizes, make_tasks
from zarrasync.bulk.jobs.claimed_work import ClaimedWork
from zarrasync.bulk.jobs.plan import Credentials
from zarrasync.bulk.jobs.plan_place import NodePlace, job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.pyramid.companions import copy_companions
from zarrasync.bulk.pyramid.levels import Reduction, compute_level
from zarrasync.bulk.pyramid.prepare import Pyramid, PyramidRequest, prepare
from zarrasync.bulk.reports import LevelReport, PyramidReport
from zarrasync.display.progress import IngestReport, ProgressLike, ignore_progress, report_progress
from zarrasync.errors import NodeNotFoundError
from zarrasync.indexing.regions import touched_chunks
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open
from zarrasync.nodes.node import run_on_store
from zarrasync.transfer.threads import Progress


@dataclass(frozen=True, kw_only=True)
class PyramidWork(ClaimedWork):
    """A pyramid whose tasks compute boxes of levels. A task needs all tasks of the levels before.

    Attributes:
        is_copied: Whether the finest level is copied into the group.
        request: What to compute.
        levels: The paths of the levels, from the finest one on, relative to the group.
        layout: A digest of the documents of the levels.
    """

    is_copied: bool
    request: PyramidRequest
    levels: Sequence[str]
    layout: str
    kind = "pyramid"

    @classmethod
    def of(
        cls, pyramid: Pyramid, source: NodePlace, dest_name: str, request: PyramidRequest, tasks: int = 0
    ) -> PyramidWork:
        """Return the work for a pyramid.

        Args:
            pyramid: The pyramid.
            source: The node of the finest level.
            dest_name: The path or URL of the destination; empty without one.
            request: The arguments.
            tasks: About how many tasks to make; 0 for a number that suits the size.
        """
        target, finest, notes = pyramid.target, pyramid.source.array.metadata, list(pyramid.notes)
        handle = handle_of(target.group)
        planned = [target.plan(level, request.changes, notes) for level in target.levels]
        above = [finest, planned[0] if pyramid.is_copied else finest, *planned[1:]]
        stages = [
            [Output(level.path, source, metadata, level.factors)]
            for level, source, metadata in zip(target.levels, above, planned, strict=False)
        ]
        documents = [
            render_texts(handle.format, level.path, own) for level, own in zip(target.levels, planned, strict=True)
        ]
        boxes, sizes = make_tasks(stages[0 if pyramid.is_copied else 1 :], tasks)
        return cls(
            source=source,
            dest=NodePlace(handle.store, handle.path, dest_name),
            format=handle.format,
            config=handle.config,
            boxes=boxes,
            sizes=sizes,
            notes=tuple(dict.fromkeys(notes)),
            left_out=tuple(pyramid.left_out),
            is_copied=pyramid.is_copied,
            request=request,
            levels=[level.path for level in target.levels],
            layout=hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()[:32],
        )

    def stage_of(self, box: Box) -> int:
        return self.levels.index(box.array)

    def memory_of(self, sizes: Sizes) -> int:
        return sizes.source + sizes.written

    def opened(self, credentials: Credentials) -> PyramidWork:
        return super().opened(
            replace(credentials, source_options=credentials.source_options or credentials.storage_options)
        )

    # -------------------------------------------------------------- what tasks and commands do

    @property
    def written(self) -> Sequence[str]:
        return self.levels[0 if self.is_copied else 1 :]

    async def _pyramid(self) -> Pyramid:
        mode: Any = "r" if self.is_copied else "r+"
        opening = partial(open, self.source.store, path=self.source.path, mode=mode, config=self.config)
        node = await run_on_store(opening, self.source.store)
        return await prepare(node, self.store if self.is_copied else None, self.path, self.request)

    async def _level(self, number: int, pyramid: Pyramid) -> AsyncArray:
        if number == 0 and not self.is_copied:
            return pyramid.source.array
        path = join(self.path, self.levels[number])
        array = await run_on_store(partial(open, self.store, path=path, mode="r+", config=self.config), self.store)
        if not isinstance(array, AsyncArray):
            raise NodeNotFoundError(
                f"the level /{path} in {self.store!r} is not an array any more; abandon the plan, and make a new one",
                path=path,
            )
        return array

    def prepare(self) -> None:
        self._run(self._prepare())

    async def _prepare(self) -> None:
        await self._make_levels(await self._pyramid(), [])

    async def _make_levels(self, pyramid: Pyramid, notes: list[str]) -> list[tuple[AsyncArray, bool]]:
        """Create the arrays of the levels, or open the existing ones of an interrupted call. Also return which ones are new."""
        target, overwrite = pyramid.target, self.request.overwrite
        if overwrite:
            await target.remove_other_levels()
        await copy_companions(pyramid.companions, target.group, notes, overwrite=overwrite)
        return [await target.make_level(level, self.request.changes, []) for level in pyramid.written]

    async def write_box(self, box: Box, progress: Progress, *, verify: bool) -> IngestReport:
        pyramid, number = await self._pyramid(), self.levels.index(box.array)
        target = await self._level(number, pyramid)
        if number == 0:
            source = pyramid.source.array
            return await copy_values(source, target, box.region, progress, workers=Workers(), verify=verify)
        above = await self._level(number - 1, pyramid)
        factors = pyramid.target.levels[number].factors
        reduction = Reduction(above, target, factors, pyramid.method, pyramid.encoding)
        items = ((coords, None) for coords in touched_chunks(box.region, target.metadata.grid))
        return await reduction.run(items, progress, is_new=False, verify=verify)

    def publish(self, *, verify: bool) -> PyramidReport:
        return self._run(self._publish())

    async def _publish(self) -> PyramidReport:
        pyramid = await self._pyramid()
        await pyramid.target.publish(await self._level(0, pyramid))
        report = self._report(pyramid)
        for level in pyramid.written:
            written = [task.nbytes for task in self.tasks if self.levels[task.stage] == level.path]
            report.levels.append(LevelReport(level.path, level.shape, len(written), 0, sum(written)))
        return report

    def _report(self, pyramid: Pyramid) -> PyramidReport:
        notes, left_out = list(self.notes), list(self.left_out)
        return PyramidReport(self.path, pyramid.convention, pyramid.method, notes=notes, left_out=left_out)

    # -------------------------------------------------------------- in one call

    async def at_once(self, pyramid: Pyramid, *, workers: Workers, progress: ProgressLike) -> PyramidReport:
        """Compute all levels in one call. Levels of an interrupted call are completed.

        Args:
            pyramid: The pyramid.
            workers: Where levels are computed.
            progress: As for ``pyramid``.
        """
        target, array = pyramid.target, pyramid.source.array
        report = self._report(pyramid)
        itemsize = max(array.dtype.itemsize, 1)
        total = sum(math.prod(level.shape) * itemsize for level in pyramid.written)
        name = f"{self.kind} {job_name(self.source.store, array.path)}"
        with report_progress(progress, total, name, report=report) as callback:
            advance = callback or ignore_progress

            async with self.claimed(workers) as claim, self.store.in_use() if self.is_copied else nullcontext():
                finest = above = array
                made = await self._make_levels(pyramid, report.notes)
                for level, (stored, is_new) in zip(pyramid.written, made, strict=True):
                    begin = clock.monotonic()
                    state: Any = {"workers": workers, "resume": not is_new}
                    if level is target.levels[0]:
                        state["workers"], finest = workers.worth(array.nbytes), stored
                        done = await copy_values(array, stored, None, advance, is_new=is_new, **state)
                    else:
                        reduction = Reduction(above, stored, level.factors, pyramid.method, pyramid.encoding)
                        done = await compute_level(reduction, advance, **state)
                    seconds = clock.monotonic() - begin
                    report.levels.append(
                        LevelReport(level.path, level.shape, done.blocks, done.skipped, done.nbytes, seconds)
                    )
                    above = stored
                    claim.check()
                await self.end_writes(claim, workers)
                await target.publish(finest)
        return report

    def must_be_finished(self) -> bool:
        return False  # one document shows all levels

    def is_published(self) -> bool:
        return self._run(self._is_published())

    async def _is_published(self) -> bool:
        pyramid = await self._pyramid()
        return pyramid.target.is_published()

    def erase(self) -> None:
        self._run(self._erase())

    async def _erase(self) -> None:
        target = (await self._pyramid()).target
        if not target.is_published():  # by an earlier job
            await target.erase_levels(is_copied=self.is_copied)
