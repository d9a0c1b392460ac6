"""Copies as plans: boxes of arrays that any process can copy, and the documents that show the copy at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.advice import in_terms_of
from zarrasync._util.records import TRANSIENT
from zarrasync.bulk.copy.nodes import (
    OR_RESUME,
    RESUME,
    clear_place,
    consolidate_copies,
    copy_files,
    create_copies,
    erase_chunks,
)
from zarrasync.bulk.copy.values import ArrayCopy
from zarrasync.bulk.jobs.boxes import Box
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.claimed_work import ClaimedWork, OneCall, digest_of
from zarrasync.bulk.reports import CopyReport, add_reports
from zarrasync.display.progress import IngestReport, part_of
from zarrasync.errors import ShapeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.documents import render_texts
from zarrasync.nodes.find import find_all
from zarrasync.nodes.functions import open
from zarrasync.nodes.node import run_on_store
from zarrasync.transfer.threads import Progress

_CONCURRENT_ARRAYS = 16
"""The number of arrays to copy at a time in one call."""


@dataclass(frozen=True, kw_only=True)
class CopyWork(ClaimedWork):
    """A copy whose tasks copy boxes of arrays.

    Attributes:
        files: The new keys of files that are not part of a Zarr node, by their present keys.
        consolidated: The paths of the groups that get consolidated metadata, relative to the copied node.
        arrays: The arrays of the source that are open in this process, by their paths relative to the copied node.
    """

    files: Mapping[str, str]
    consolidated: Sequence[str]
    arrays: Mapping[str, AsyncArray] = field(default_factory=dict, repr=False, metadata=TRANSIENT)
    kind = "copy"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "arrays": {}}  # other processes open them

    # -------------------------------------------------------------- what tasks and commands do

    async def write_boxes(
        self, boxes: Sequence[Box], progress: Progress, call: OneCall, *, verify: bool
    ) -> IngestReport:
        report, turn = IngestReport(), asyncio.Lock()  # encoding one large array can take the whole memory budget

        async def copy_one(item: tuple[str, Sequence[Box]]) -> None:
            (path, parts), is_new = item, call.new is None or item[0] in call.new
            source, target = await self._array(path), self.array_of(path)
            is_small = _CONCURRENT_ARRAYS * source.nbytes <= source.config.memory_budget // 2
            decodes = verify or not has_same_values(source.metadata, target.metadata)
            rows = source.shape[0] if source.shape else 0
            async with turn if decodes and not is_small else nullcontext():
                with part_of(progress, source.name, source.nbytes, rows) as advance:
                    for box in parts:
                        workers, region = call.workers.worth(source.nbytes), box.within(source.shape)
                        copy = ArrayCopy(source, target, region, workers, call.resume, is_new)
                        done = await copy.run(advance, verify=verify)
                        add_reports(report, done)
                        if call.report is not None:
                            call.report.add(target.name, done)

        items = [(path, [*parts]) for path, parts in groupby(boxes, lambda box: box.array)]
        is_blocking = self.store.blocking and self.source.store.blocking
        await for_each(copy_one, items, 1 if is_blocking else _CONCURRENT_ARRAYS)
        return report

    async def _array(self, path: str) -> AsyncArray:
        """Return an array of the source."""
        if path in self.arrays:
            return self.arrays[path]
        opening = partial(open, self.source.store, path=join(self.source.path, path), config=self.config)
        source, wanted = await run_on_store(opening, self.source.store), self.array_of(path).shape
        if not isinstance(source, AsyncArray) or source.shape != wanted:
            raise ShapeError(
                f"/{path} of {self.origin} has changed since the copy was planned; abandon the plan, and make a new one",
                found=getattr(source, "shape", ()),
                wanted=wanted,
            )
        return source

    # -------------------------------------------------------------- in one call

    async def prepare(self, claim: Claim, call: OneCall) -> OneCall:
        """Make the destination ready.

        Readers see the copy at the end. Stores without conditional writes cannot keep other jobs away otherwise than by the
        documents, so that these are stored first, as they are in archives, which have no other readers.
        """
        resume, clear = call.resume, partial(clear_place, self.target, self.planned, overwrite=self.overwrite)
        if call.report is None:
            await clear()
            return call
        is_empty, has_begun = False, resume and claim.found.get("plan") == self.layout_digest
        is_archive = self.store.lasting_identity and not self.store.shareable  # documents lie at its beginning
        is_shown = not claim.is_enabled or is_archive
        if resume and not has_begun and not is_shown:
            is_shown = await run_on_store(self.is_published, self.store)
        if is_shown:
            await create_copies(
                self.target, self.planned, overwrite=self.overwrite, resume=resume, erase_leftovers=resume
            )
        elif not has_begun:
            if claim.found.get("is_new") and not self.overwrite:
                raise self.target.exists_error(self._interrupted(resume=resume))
            with in_terms_of(*OR_RESUME):
                is_empty = await run_on_store(clear, self.store)
        if not is_shown:
            noted = partial(claim.update, plan=self.layout_digest, is_new=True, **self.describe())
            await run_in_new_thread(noted)
        new = self.planned if is_empty or resume or self.overwrite else ()
        return replace(call, new=new, is_shown=is_shown, has_begun=has_begun)

    @cached_property
    def layout_digest(self) -> str:
        """A digest of the arrays of the copy, by which a later call knows that it resumes the same copy."""
        plain = {path: replace(own, attributes={}, source=None) for path, own in self.planned.items()}
        return digest_of({path: render_texts(self.format, path, metadata) for path, metadata in plain.items()})

    def _interrupted(self, *, resume: bool) -> str:
        place = f"{self.target.name} in {self.store!r}"
        if resume:
            return f"cannot resume the copy to {place}: the interrupted one has another layout; pass overwrite=True to replace it"
        return (
            f"a job was interrupted that has written values to {place}; pass overwrite=True to replace them, {RESUME}"
        )

    def new_result(self) -> CopyReport:
        """Return the report of the whole copy, without counts of values."""
        count = sum(isinstance(metadata, ArrayMetadata) for metadata in self.planned.values())
        return CopyReport(len(self.planned) - count, count, left_out=list(self.left_out), notes=list(self.notes))

    async def publish(self, call: OneCall, *, verify: bool) -> CopyReport:
        report: CopyReport = call.report or self.new_result()
        if call.report is None:
            report.copied, report.nbytes = len(self.tasks), sum(task.nbytes for task in self.tasks)
        for path in self.arrays:  # also those without elements, which no task writes
            report.members.setdefault(self.array_of(path).name, IngestReport())
        if not call.is_shown:
            await create_copies(self.target, self.planned, resume=call.has_begun, at_once=True)
        await self._publish_rest(report, resume=call.resume or call.report is None, verify=verify)
        return report

    async def _publish_rest(self, report: CopyReport, *, resume: bool, verify: bool) -> None:
        """Copy other files, and consolidate the metadata of groups."""
        await copy_files(self.source.store, self.target, self.files, report, resume=resume, verify=verify)
        await consolidate_copies(self.consolidated, self.target, report.notes)

    async def is_published(self) -> bool:
        (node,) = await find_all(self.target, [self.path], [self.format], strict=False)
        return node is not None

    async def erase(self) -> None:
        below = [join(self.path, path) for path in self.planned if path]  # documents that a killed command has stored
        await self.store.erase_values([key for path in below for key in self.format.document_keys(path)])
        await erase_chunks(self.target, self.planned)
