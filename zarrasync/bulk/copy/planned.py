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
from zarrasync.bulk.jobs.claimed_work import ClaimedWork, digest_of
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import CopyReport, add_reports
from zarrasync.display.progress import IngestReport, part_of
from zarrasync.errors import ShapeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.documents import Metadata, parse_texts, render_texts
from zarrasync.nodes.find import find_all
from zarrasync.nodes.functions import open
from zarrasync.nodes.group import make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.transfer.threads import Progress

_CONCURRENT_ARRAYS = 16
"""The number of arrays to copy at a time in one call."""


@dataclass(frozen=True, kw_only=True)
class CopyWork(ClaimedWork):
    """A copy whose tasks copy boxes of arrays.

    Attributes:
        documents: The metadata documents of each node of the copy, by its path relative to the copied node.
        files: The new keys of files that are not part of a Zarr node, by their present keys.
        consolidated: The paths of the groups that get consolidated metadata, relative to the copied node.
        arrays: The arrays of the source that are open in this process, by their paths relative to the copied node.
    """

    documents: Mapping[str, Mapping[str, str]]
    files: Mapping[str, str]
    consolidated: Sequence[str]
    arrays: Mapping[str, AsyncArray] = field(default_factory=dict, repr=False, metadata=TRANSIENT)
    kind = "copy"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "arrays": {}}  # other processes open them

    # -------------------------------------------------------------- what tasks and commands do

    @property
    def _target(self) -> NodeHandle:
        return NodeHandle(self.store, self.path, self.format, self.config)

    @cached_property
    def _planned(self) -> dict[str, Metadata]:
        return {path: parse_texts(self.format, join(self.path, path), texts) for path, texts in self.documents.items()}

    async def prepare(self) -> None:
        await clear_place(self._target, self._planned, overwrite=self.overwrite)

    async def write_boxes(self, boxes: Sequence[Box], progress: Progress, *, verify: bool) -> IngestReport:
        report = IngestReport()
        for path, parts in groupby(boxes, lambda box: box.array):
            source, target = await self._array(path), self._copy_of(path)
            for part in parts:
                add_reports(report, await ArrayCopy(source, target, part.region).run(progress, verify=verify))
        return report

    async def _array(self, path: str) -> AsyncArray:
        """Return an array of the source."""
        opening = partial(open, self.source.store, path=join(self.source.path, path), config=self.config)
        source, wanted = await run_on_store(opening, self.source.store), self._copy_of(path).shape
        if not isinstance(source, AsyncArray) or source.shape != wanted:
            raise ShapeError(
                f"/{path} of {self.origin} has changed since the copy was planned; abandon the plan, and make a new one",
                found=getattr(source, "shape", ()),
                wanted=wanted,
            )
        return source

    def _copy_of(self, path: str) -> AsyncArray:
        """Return an array of the copy, whose document may not be stored yet."""
        handle = replace(self._target.at(join(self.path, path)), is_format_known=True)
        array = make_node(handle, self._planned[path])
        assert isinstance(array, AsyncArray)
        return array

    # -------------------------------------------------------------- in one call

    async def at_once(
        self, report: CopyReport, progress: Progress, *, resume: bool, verify: bool, workers: Workers
    ) -> None:
        """Copy everything in one call, with what this process knows of the source.

        Readers see the copy at the end. Stores without conditional writes cannot keep other jobs away otherwise than by the
        documents, so that these are stored first, as they are in archives, which have no other readers.

        Args:
            report: The report to add counts to.
            progress: Called with the number of bytes copied since the last call.
            resume: Whether to complete an interrupted copy.
            verify: Whether to read all values back and compare them.
            workers: Where large arrays are copied.
        """
        async with self.claimed(workers) as claim:
            has_begun, is_empty = resume and claim.found.get("plan") == self.layout_digest, False
            is_archive = self.store.lasting_identity and not self.store.shareable  # documents lie at its beginning
            is_shown = not claim.is_enabled or is_archive
            if resume and not has_begun and not is_shown:
                is_shown = await run_on_store(self.is_published, self.store)
            if is_shown:
                await create_copies(
                    self._target, self._planned, overwrite=self.overwrite, resume=resume, erase_leftovers=resume
                )
            elif not has_begun:
                if claim.found.get("is_new") and not self.overwrite:
                    raise self._target.exists_error(self._interrupted(resume=resume))
                with in_terms_of(*OR_RESUME):
                    clear = partial(clear_place, self._target, self._planned, overwrite=self.overwrite)
                    is_empty = await run_on_store(clear, self.store)
            if not is_shown:
                noted = partial(claim.update, plan=self.layout_digest, is_new=True, **self.describe())
                await run_in_new_thread(noted)
            is_new = is_empty or resume or self.overwrite
            await self._copy_arrays(report, progress, resume=resume, is_new=is_new, verify=verify, workers=workers)
            await self.end_writes(claim, workers)
            if not is_shown:
                await create_copies(self._target, self._planned, resume=has_begun, at_once=True)
            await self._publish_rest(report, resume=resume, verify=verify)

    async def _copy_arrays(
        self, report: CopyReport, progress: Progress, *, resume: bool, is_new: bool, verify: bool, workers: Workers
    ) -> None:
        """Copy all arrays, small ones at the same time."""
        turn = asyncio.Lock()  # encoding one large array can take the whole memory budget

        async def copy_one(path: str) -> None:
            source, target = self.arrays[path], self._copy_of(path)
            copy = ArrayCopy(source, target, None, workers.worth(source.nbytes), resume, is_new)
            is_small = _CONCURRENT_ARRAYS * source.nbytes <= source.config.memory_budget // 2
            decodes = verify or not has_same_values(source.metadata, target.metadata)
            rows = source.shape[0] if source.shape else 0
            async with turn if decodes and not is_small else nullcontext():
                with part_of(progress, source.name, source.nbytes, rows) as part:
                    done = await copy.run(part, verify=verify)
            report.members[target.name] = done
            report.copied, report.skipped = report.copied + done.blocks, report.skipped + done.skipped
            report.nbytes += done.nbytes

        is_blocking = self.store.blocking and self.source.store.blocking
        await for_each(copy_one, list(self.arrays), 1 if is_blocking else _CONCURRENT_ARRAYS)

    @cached_property
    def layout_digest(self) -> str:
        """A digest of the arrays of the copy, by which a later call knows that it resumes the same copy."""
        plain = {path: replace(own, attributes={}, source=None) for path, own in self._planned.items()}
        return digest_of({path: render_texts(self.format, path, metadata) for path, metadata in plain.items()})

    def _interrupted(self, *, resume: bool) -> str:
        place = f"{self._target.name} in {self.store!r}"
        if resume:
            return f"cannot resume the copy to {place}: the interrupted one has another layout; pass overwrite=True to replace it"
        return (
            f"a job was interrupted that has written values to {place}; pass overwrite=True to replace them, {RESUME}"
        )

    async def publish(self, *, verify: bool) -> CopyReport:
        report = CopyReport(notes=list(self.notes), left_out=list(self.left_out))
        report.arrays = sum(isinstance(metadata, ArrayMetadata) for metadata in self._planned.values())
        report.groups = len(self._planned) - report.arrays
        report.copied, report.nbytes = len(self.tasks), sum(task.nbytes for task in self.tasks)
        await create_copies(self._target, self._planned, resume=True, at_once=True)
        await self._publish_rest(report, resume=True, verify=verify)
        return report

    async def _publish_rest(self, report: CopyReport, *, resume: bool, verify: bool) -> None:
        """Copy other files, and consolidate the metadata of groups."""
        await copy_files(self.source.store, self._target, self.files, report, resume=resume, verify=verify)
        await consolidate_copies(self.consolidated, self._target, report.notes)

    async def is_published(self) -> bool:
        (node,) = await find_all(self._target, [self.path], [self.format], strict=False)
        return node is not None

    async def erase(self) -> None:
        below = [join(self.path, path) for path in self._planned if path]  # documents that a killed command has stored
        await self.store.erase_values([key for path in below for key in self.format.document_keys(path)])
        await erase_chunks(self._target, self._planned)
