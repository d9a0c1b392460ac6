"""Pyramids as plans: boxes of levels that any process can compute, one level after the other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from zarrasync import config as settings
from zarrasync._concurrency import clock
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.copy.values import copy_values
from zarrasync.bulk.jobs.claimed_work import ClaimedWork
from zarrasync.bulk.jobs.compare import compare_arrays
from zarrasync.bulk.jobs.plan import Box, Credentials, Sizes, Task
from zarrasync.bulk.jobs.plan_place import NodePlace, job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.pyramid.companions import copy_companions
from zarrasync.bulk.pyramid.levels import Reduction, compute_level
from zarrasync.bulk.pyramid.prepare import Pyramid, PyramidRequest, prepare
from zarrasync.bulk.pyramid.report import LevelReport, PyramidReport
from zarrasync.display.progress import IngestReport, ProgressLike, report_progress
from zarrasync.display.values import strict
from zarrasync.errors import MetadataError, NodeNotFoundError
from zarrasync.indexing.chunk_blocks import BlockShapes
from zarrasync.indexing.regions import corners, touched_chunks
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions.pyramids import PyramidLevel
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open
from zarrasync.nodes.node import run_on_store
from zarrasync.transfer.threads import Progress

__all__ = ["PyramidWork"]

_TASK_BYTES = 256 << 20
"""The decoded size of what a task reads, unless a single stored value of a level needs more."""


@dataclass(frozen=True)
class PyramidWork(ClaimedWork):
    """A pyramid whose tasks compute boxes of levels. A task needs all tasks of the levels before.

    Attributes:
        source: The node of the finest level.
        dest: The group of the pyramid.
        is_copied: Whether the finest level is copied into the group.
        request: What to compute.
        levels: The paths of the levels, from the finest one on, relative to the group.
        boxes: The box of each task.
        sizes: What each task reads and writes.
        zarr_format: The format of the levels.
        config: The settings.
    """

    source: NodePlace
    dest: NodePlace
    is_copied: bool
    request: PyramidRequest
    levels: Sequence[str]
    boxes: Sequence[Box]
    sizes: Sequence[Sizes]
    zarr_format: Any
    config: settings.Config
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    kind = "pyramid"

    @classmethod
    def of(
        cls, pyramid: Pyramid, source: NodePlace, dest_name: str, request: PyramidRequest, tasks: int | None = 0
    ) -> PyramidWork:
        """Return the work for a pyramid.

        Args:
            pyramid: The pyramid.
            source: The node that was the argument.
            dest_name: The path or URL of the store of its group; empty without one.
            request: What to compute.
            tasks: About how many tasks to make; 0 for a number that suits the size, ``None`` for none.
        """
        target, array, notes = pyramid.target, pyramid.source.array, list(pyramid.notes)
        handle = handle_of(target.group)
        metadata = [target.plan(level, request.changes, notes) for level in target.levels]
        boxes, sizes = (
            ([], [])
            if tasks is None
            else _make_tasks(
                [level.path for level in target.levels],
                [array.metadata, *metadata[1:]],
                [level.factors for level in target.levels],
                metadata[0] if pyramid.is_copied else None,
                tasks,
            )
        )
        return cls(
            source,
            NodePlace(handle.store, handle.path, dest_name),
            pyramid.is_copied,
            request,
            [level.path for level in target.levels],
            boxes,
            sizes,
            handle.format.zarr_format,
            handle.config,
            tuple(dict.fromkeys(notes)),
            tuple(pyramid.left_out),
        )

    # -------------------------------------------------------------- as data

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        return {
            "source": self.source.to_json("source", root),
            "dest": self.dest.to_json("destination", root),
            "is_copied": self.is_copied,
            "request": strict(self.request.to_json()),
            "levels": self.levels,
            "boxes": self.boxes,
            "sizes": self.sizes,
            "zarr_format": self.zarr_format,
            "notes": self.notes,
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], dest: NodePlace, root: str, config: settings.Config) -> PyramidWork:
        """Return the work that ``to_json`` has described.

        Args:
            values: The description.
            dest: The group of the pyramid.
            root: The directory from which relative paths start.
            config: The settings.

        Raises:
            MetadataError: If the values are not such a description.
        """
        try:
            return cls(
                NodePlace.of(values["source"], root, None, config),
                dest,
                bool(values["is_copied"]),
                PyramidRequest.from_json(values["request"]),
                [str(path) for path in values["levels"]],
                [Box(path, tuple(start), tuple(stop)) for path, start, stop in values["boxes"]],
                [Sizes(*map(int, sizes)) for sizes in values["sizes"]],
                values["zarr_format"],
                config,
                tuple(values["notes"]),
                tuple(values["left_out"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"the plan of the pyramid is damaged: {error}") from error

    @cached_property
    def digest(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        parts = [self.source.path, self.levels, self.boxes, strict(self.request.to_json())]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:32]

    @cached_property
    def tasks(self) -> Sequence[Task]:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        most = self.config.memory_budget
        return [
            Task(number, str(box), written, min(read + written, most), self.levels.index(box.array))
            for number, (box, (read, written, _)) in enumerate(zip(self.boxes, self.sizes, strict=True))
        ]

    @property
    def source_bytes(self) -> int:
        return sum(sizes.read for sizes in self.sizes)

    def opened(self, credentials: Credentials) -> PyramidWork:
        return replace(
            self,
            source=self.source.opened(credentials.source_options or credentials.storage_options),
            dest=self.dest.opened(credentials.storage_options),
        )

    # -------------------------------------------------------------- what tasks and commands do

    def describe(self) -> dict[str, Any]:
        origin = f"/{self.source.path} in {self.source.store!r}"
        written = self.levels[0 if self.is_copied else 1 :]
        return {"files": origin, "arrays": list(written), "zarr_format": self.zarr_format}

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
            raise NodeNotFoundError(f"the level /{path} in {self.store!r} is no array any more", path=path)
        return array

    def prepare(self) -> None:
        self._run(self._prepare())

    async def _prepare(self) -> None:
        pyramid = await self._pyramid()
        target = pyramid.target
        if self.request.overwrite:
            await target.remove_other_levels()
        for level in target.levels[0 if self.is_copied else 1 :]:
            await target.make_level(level, self.request.changes, [])
        await copy_companions(pyramid.companions, target.group, [], overwrite=self.request.overwrite)

    def write(self, number: int, progress: Progress, *, verify: bool) -> IngestReport:
        return self._run(self._write(self.boxes[number], progress, verify=verify))

    async def _write(self, box: Box, progress: Progress, *, verify: bool) -> IngestReport:
        pyramid, number = await self._pyramid(), self.levels.index(box.array)
        target = await self._level(number, pyramid)
        if number == 0:
            report = await copy_values(pyramid.source.array, target, box.region, progress)
            if verify:
                await compare_arrays(pyramid.source.array, target, box.region, Workers())
                report.verified = report.blocks
            return report
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
        for level in pyramid.target.levels[0 if self.is_copied else 1 :]:
            written = [
                sizes.written for box, sizes in zip(self.boxes, self.sizes, strict=True) if box.array == level.path
            ]
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
            concurrency: The number of blocks at a time in each process; 0 for a default that suits the store.
            progress: As for ``pyramid``.
        """
        target, array = pyramid.target, pyramid.source.array
        report, finest = self._report(pyramid), array
        itemsize = max(array.dtype.itemsize, 1)
        total = sum(math.prod(level.shape) * itemsize for level in target.levels[0 if self.is_copied else 1 :])
        name = f"{self.kind} {job_name(self.source.store, array.path)}"
        with report_progress(progress, total, name, report=report) as callback:
            advance = callback or ignore_progress

            async def fill(level: PyramidLevel, above: AsyncArray) -> AsyncArray:
                begin = clock.monotonic()
                stored, is_new = await target.make_level(level, self.request.changes, [])
                if level is target.levels[0]:
                    done = await copy_values(
                        above, stored, None, advance, resume=not is_new, is_new=is_new, workers=workers
                    )
                else:
                    reduction = Reduction(above, stored, level.factors, pyramid.method, pyramid.encoding)
                    done = await compute_level(reduction, advance, resume=not is_new, workers=workers)
                seconds = clock.monotonic() - begin
                report.levels.append(
                    LevelReport(level.path, level.shape, done.blocks, done.skipped, done.nbytes, seconds)
                )
                return stored

            async with self.claimed() as claim, self.store.in_use() if self.is_copied else nullcontext():
                if self.is_copied:
                    finest = await fill(target.levels[0], array)
                    await copy_companions(
                        pyramid.companions, target.group, report.notes, overwrite=self.request.overwrite
                    )
                if self.request.overwrite:
                    await target.remove_other_levels()
                above = finest
                for level in target.levels[1:]:
                    above = await fill(level, above)
                    claim.check()
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


def _make_tasks(
    paths: Sequence[str],
    metadata: Sequence[ArrayMetadata],
    factors: Sequence[Sequence[int]],
    copied: ArrayMetadata | None,
    count: int,
) -> tuple[list[Box], list[Sizes]]:
    """Divide levels into tasks of whole stored values.

    Args:
        paths: The paths of all levels.
        metadata: The metadata of all levels, from the finest one on, which is the source.
        factors: The factors of each level from the one before.
        copied: The metadata of the copy of the finest level; ``None`` if it is not copied.
        count: About how many tasks to make; 0 for a number that suits the size.

    Returns:
        The box of each task, and its sizes.
    """
    levels = [*([(0, copied, (1,) * copied.ndim)] if copied is not None else [])]
    levels += [(number, metadata[number], tuple(factors[number])) for number in range(1, len(metadata))]
    itemsize = metadata[0].dtype.itemsize or 16
    total = sum(math.prod(level.shape) * math.prod(own) for _, level, own in levels) * itemsize
    size = max(1, -(-total // count)) if count else _TASK_BYTES
    boxes, sizes = [], []
    for number, level, own in levels:
        scale = math.prod(own)
        above = copied if number == 1 and copied is not None else metadata[max(number - 1, 0)]
        near = tuple(max(1, chunk // factor) for chunk, factor in zip(above.write_chunks, own, strict=True))
        for region in BlockShapes(level.grid, near).blocks(size // (itemsize * scale)):
            box = Box(paths[number], *corners(region))
            written = math.prod(b - a for a, b in zip(box.start, box.stop, strict=True)) * itemsize
            reads = math.prod(
                -(-((b - a) * f) // chunk)
                for a, b, f, chunk in zip(box.start, box.stop, own, above.write_chunks, strict=True)
            )
            writes = math.prod(
                -(-(b - a) // chunk) for a, b, chunk in zip(box.start, box.stop, level.write_chunks, strict=True)
            )
            boxes.append(box)
            sizes.append(Sizes(written * scale, written, reads + writes))
    return boxes, sizes
