"""Copies as plans: boxes of arrays that any process can copy, and the documents that show the copy at the end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency.gather import for_each
from zarrasync._util.advice import in_terms_of
from zarrasync.bulk.block_plan import UNSIZED_BYTES
from zarrasync.bulk.copy.files import copy_files
from zarrasync.bulk.copy.nodes import (
    OR_RESUME,
    CopyPlan,
    Nodes,
    clear_place,
    consolidate_copies,
    create_copies,
    erase_chunks,
    plan_copies,
)
from zarrasync.bulk.copy.values import copy_values
from zarrasync.bulk.jobs.claimed_work import ClaimedWork
from zarrasync.bulk.jobs.compare import compare_arrays
from zarrasync.bulk.jobs.plan import Box, Credentials, Sizes, Task, run_blocking
from zarrasync.bulk.jobs.plan_place import NodePlace
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import CopyReport, add_reports
from zarrasync.display.progress import IngestReport, part_of
from zarrasync.errors import MetadataError, NodeExistsError, ShapeError
from zarrasync.formats import Format
from zarrasync.indexing.axis_cuts import count_touched
from zarrasync.indexing.chunk_blocks import BlockShapes
from zarrasync.indexing.regions import Region, corners
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.convert import has_same_values
from zarrasync.model.chunk_grids import Grid
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.documents import Metadata
from zarrasync.nodes.find import find_all
from zarrasync.nodes.functions import open
from zarrasync.nodes.group import make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.transfer.threads import Progress

__all__ = ["CopyWork", "make_tasks", "render_texts"]

_CONCURRENT_ARRAYS = 16
"""The number of arrays to copy at a time in one call."""
_TASK_BYTES = 256 << 20
"""The decoded size of a task, unless a single stored value is larger or there would be too many tasks."""
_MOST_TASKS = 10_000


@dataclass(frozen=True)
class CopyWork(ClaimedWork):
    """A copy whose tasks copy boxes of arrays.

    Attributes:
        source: The node to copy.
        dest: The place of the copy.
        format: The format of the copy.
        documents: The metadata documents of each node of the copy, by its path relative to the copied node.
        boxes: The boxes of each task.
        sizes: What each task reads and writes.
        files: The new keys of files that are not part of a Zarr node, by their present keys.
        consolidated: The paths of the groups that get consolidated metadata, relative to the copied node.
        overwrite: Whether to replace an existing node.
        config: The settings.
        arrays: The arrays of the source that are open in this process, by their paths relative to the copied node.
    """

    source: NodePlace
    dest: NodePlace
    format: Format
    documents: Mapping[str, Mapping[str, str]]
    boxes: Sequence[Sequence[Box]]
    sizes: Sequence[Sizes]
    files: Mapping[str, str]
    consolidated: Sequence[str]
    overwrite: bool
    config: settings.Config
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    arrays: Mapping[str, AsyncArray] = field(default_factory=dict, repr=False)
    kind = "copy"

    @classmethod
    def of(
        cls,
        nodes: Nodes,
        plan: CopyPlan,
        report: CopyReport,
        consolidated: Sequence[str],
        source_name: str,
        dest_name: str,
        tasks: int | None = 0,
    ) -> CopyWork:
        """Return the work for nodes and the layout of their copies.

        Args:
            nodes: The nodes, starting with the root.
            plan: The place and the layout of the copy.
            report: A report with notes, to which this method adds others.
            consolidated: The paths of the groups that get consolidated metadata, relative to the first node.
            source_name: The path or URL of the source; empty without one.
            dest_name: The path or URL of the destination; empty without one.
            tasks: About how many tasks to make; 0 for a number that suits the size, ``None`` for none.
        """
        (_, root), *_ = nodes
        target = plan.target
        planned = plan_copies(nodes, target, plan.changes, report)
        pairs = [
            (path, node.metadata, copied)
            for path, node in nodes
            if isinstance(node, AsyncArray) and isinstance(copied := planned[path], ArrayMetadata)
        ]
        boxes, sizes = ((), ()) if tasks is None else make_tasks(pairs, tasks)
        return cls(
            NodePlace(root.store, root.path, source_name),
            NodePlace(target.store, target.path, dest_name),
            target.format,
            {
                path: render_texts(target.format, join(target.path, path), metadata)
                for path, metadata in planned.items()
            },
            boxes,
            sizes,
            plan.files,
            consolidated,
            plan.overwrite,
            target.config,
            tuple(report.notes),
            tuple(report.left_out),
            {path: node for path, node in nodes if isinstance(node, AsyncArray)},
        )

    # -------------------------------------------------------------- as data

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        return {
            "source": self.source.to_json("source", root),
            "dest": self.dest.to_json("destination", root),
            "zarr_format": self.format.zarr_format,
            "documents": self.documents,
            "boxes": self.boxes,
            "sizes": self.sizes,
            "files": self.files,
            "consolidated": self.consolidated,
            "overwrite": self.overwrite,
            "notes": self.notes,
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], dest: NodePlace, root: str, config: settings.Config) -> CopyWork:
        """Return the work that ``to_json`` has described.

        Args:
            values: The description.
            dest: The destination.
            root: The directory from which relative paths start.
            config: The settings.

        Raises:
            MetadataError: If the values are not such a description.
        """
        try:
            return cls(
                NodePlace.of(values["source"], root, None, config),
                dest,
                formats.by_name(values["zarr_format"]),
                {str(path): dict(documents) for path, documents in values["documents"].items()},
                [[Box(name, tuple(start), tuple(stop)) for name, start, stop in task] for task in values["boxes"]],
                [Sizes(*map(int, sizes)) for sizes in values["sizes"]],
                dict(values["files"]),
                [str(path) for path in values["consolidated"]],
                bool(values["overwrite"]),
                config,
                tuple(values["notes"]),
                tuple(values["left_out"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"the plan of the copy is damaged: {error}") from error

    @cached_property
    def digest(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        parts = [self.source.path, self.documents, self.boxes, self.files]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    @cached_property
    def tasks(self) -> Sequence[Task]:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        most = self.config.memory_budget
        return [
            Task(number, _text(boxes), written, min(written, most))
            for number, (boxes, (_, written, _)) in enumerate(zip(self.boxes, self.sizes, strict=True))
        ]

    @property
    def source_bytes(self) -> int:
        return sum(sizes.written for sizes in self.sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "arrays": {}}  # other processes open them

    def opened(self, credentials: Credentials) -> CopyWork:
        return replace(
            self,
            source=self.source.opened(credentials.source_options),
            dest=self.dest.opened(credentials.storage_options),
        )

    # -------------------------------------------------------------- what tasks and commands do

    @property
    def erases_dataset(self) -> bool:
        return self.overwrite

    def describe(self) -> dict[str, Any]:
        arrays = [path for path, metadata in self._planned.items() if isinstance(metadata, ArrayMetadata)]
        return {"files": self._origin, "arrays": arrays, "zarr_format": self.format.zarr_format}

    @property
    def _origin(self) -> str:
        return f"/{self.source.path} in {self.source.store!r}"

    @property
    def _target(self) -> NodeHandle:
        return NodeHandle(self.store, self.path, self.format, self.config)

    @cached_property
    def _planned(self) -> dict[str, Metadata]:
        return {path: _parse(self.format, join(self.path, path), texts) for path, texts in self.documents.items()}

    def prepare(self) -> None:
        self._run(clear_place(self._target, self._planned, overwrite=self.overwrite))

    def write(self, number: int, progress: Progress, *, verify: bool) -> IngestReport:
        report = IngestReport()
        for box in self.boxes[number]:
            add_reports(report, self._run(self._write(box, progress, verify=verify)))
        return report

    async def _write(self, box: Box, progress: Progress, *, verify: bool) -> IngestReport:
        source, target = await self._array(box.array), self._copy_of(box.array)
        report = await copy_values(source, target, box.region, progress)
        if verify:
            await compare_arrays(source, target, box.region, Workers())
            report.verified = report.blocks
        return report

    async def _array(self, path: str) -> AsyncArray:
        """Return an array of the source."""
        opening = partial(open, self.source.store, path=join(self.source.path, path), config=self.config)
        source, wanted = await run_on_store(opening, self.source.store), self._copy_of(path).shape
        if not isinstance(source, AsyncArray) or source.shape != wanted:
            raise ShapeError(
                f"/{path} of {self._origin} has changed since the copy was planned; abandon the plan, and make a new one",
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
        async with self.claimed() as claim:
            has_begun, is_empty = resume and claim.found.get("plan") == self.layout_digest, False
            is_archive = self.store.lasting and not self.store.portable  # documents lie at its beginning
            is_shown = not claim.is_enabled or is_archive
            if resume and not has_begun and not is_shown:
                is_shown = await run_on_store(self._exists, self.store)
            if is_shown:
                await create_copies(
                    self._target, self._planned, overwrite=self.overwrite, resume=resume, erase_leftovers=resume
                )
            elif not has_begun:
                if claim.found.get("is_new") and not self.overwrite:
                    raise self._interrupted(resume=resume)
                with in_terms_of(*OR_RESUME):
                    clear = partial(clear_place, self._target, self._planned, overwrite=self.overwrite)
                    is_empty = await run_on_store(clear, self.store)
            if not is_shown:
                noted = partial(claim.update, plan=self.layout_digest, is_new=True, **self.describe())
                await run_blocking(noted)
            is_new = is_empty or resume or self.overwrite
            await self._copy_arrays(report, progress, resume=resume, is_new=is_new, verify=verify, workers=workers)
            claim.check()
            if not is_shown:
                await create_copies(self._target, self._planned, resume=has_begun)
            await self._publish_rest(report, resume=resume, verify=verify)

    async def _copy_arrays(
        self, report: CopyReport, progress: Progress, *, resume: bool, is_new: bool, verify: bool, workers: Workers
    ) -> None:
        """Copy all arrays, small ones at the same time."""
        turn = asyncio.Lock()  # encoding one large array can take the whole memory budget

        async def copy_one(path: str) -> None:
            source, target = self.arrays[path], self._copy_of(path)
            is_small = _CONCURRENT_ARRAYS * source.nbytes <= source.config.memory_budget // 2
            async with nullcontext() if is_small or has_same_values(source.metadata, target.metadata) else turn:
                rows = source.shape[0] if source.shape else 0
                with part_of(progress, source.name, source.nbytes, rows) as part:
                    done = await copy_values(source, target, None, part, resume=resume, is_new=is_new, workers=workers)
            report.members[target.name] = done
            report.copied, report.skipped = report.copied + done.blocks, report.skipped + done.skipped
            report.nbytes += done.nbytes
            if verify:
                async with nullcontext() if is_small else turn:
                    await compare_arrays(source, target, tuple(slice(0, n) for n in source.shape), workers)

        is_blocking = self.store.blocking and self.source.store.blocking
        await for_each(copy_one, list(self.arrays), 1 if is_blocking else _CONCURRENT_ARRAYS)

    @cached_property
    def layout_digest(self) -> str:
        """A digest of the arrays of the copy, by which a later call knows that it resumes the same copy."""
        layouts = {
            path: {key: data.decode() for key, data in self.format.render(path, plain).items()}
            for path, metadata in self._planned.items()
            for plain in [replace(metadata, attributes={}, source=None)]
        }
        return hashlib.sha256(json.dumps(layouts, sort_keys=True).encode()).hexdigest()[:32]

    def _interrupted(self, *, resume: bool) -> NodeExistsError:
        place = f"{self._target.name} in {self.store!r}"
        return NodeExistsError(
            f"cannot resume the copy to {place}: the interrupted one has another layout; pass overwrite=True to replace it"
            if resume
            else f"a job was interrupted that has written values to {place}; pass {OR_RESUME[1]}",
            path=self.path,
            store=repr(self.store),
        )

    def publish(self, *, verify: bool) -> CopyReport:
        report = CopyReport(notes=list(self.notes), left_out=list(self.left_out))
        report.arrays = sum(isinstance(metadata, ArrayMetadata) for metadata in self._planned.values())
        report.groups = len(self._planned) - report.arrays
        report.copied, report.nbytes = len(self.boxes), sum(sizes.written for sizes in self.sizes)  # by all tasks
        self._run(self._publish(report, verify=verify))
        return report

    async def _publish(self, report: CopyReport, *, verify: bool) -> None:
        await create_copies(self._target, self._planned, resume=True)
        await self._publish_rest(report, resume=True, verify=verify)

    async def _publish_rest(self, report: CopyReport, *, resume: bool, verify: bool) -> None:
        """Copy other files, and consolidate the metadata of groups."""
        source = NodeHandle(self.source.store, self.source.path, self.format, self.config)
        await copy_files(source, self._target, self.files, report, resume=resume, verify=verify)
        await consolidate_copies(self.consolidated, self._target, report.notes)

    def is_published(self) -> bool:
        return self._run(self._exists())

    async def _exists(self) -> bool:
        """Return whether the copied node exists."""
        (node,) = await find_all(self._target, [self.path], [self.format], strict=False)
        return node is not None

    def erase(self) -> None:
        self._run(erase_chunks(self._target, self._planned))


def render_texts(format_: Format, path: str, metadata: Metadata) -> dict[str, str]:
    """Return the documents of a node as strings."""
    return {key: data.decode() for key, data in format_.render(path, metadata).items()}


def _parse(format_: Format, path: str, texts: Mapping[str, str]) -> Metadata:
    documents = {key: texts[key].encode() if key in texts else None for key in format_.document_keys(path)}
    metadata = format_.parse(path, documents)
    if metadata is None:
        raise MetadataError(f"the plan of the copy is damaged: it has no document of /{path}")
    return metadata


def _text(boxes: Sequence[Box]) -> str:
    return str(boxes[0]) if len(boxes) == 1 else f"{boxes[0]} … {boxes[-1]}, {len(boxes):,} parts"


# ------------------------------------------------------------------ tasks


def make_tasks(
    pairs: Sequence[tuple[str, ArrayMetadata, ArrayMetadata]], count: int
) -> tuple[list[list[Box]], list[Sizes]]:
    """Divide arrays into tasks of whole stored values.

    Args:
        pairs: For each array its path, its metadata, and the metadata of its copy.
        count: About how many tasks to make; 0 for a number that suits the size.

    Returns:
        The boxes of each task, and its sizes.
    """
    total = sum(_nbytes(target, target.shape) for _, _, target in pairs)
    size = max(1, -(-total // count)) if count else max(_TASK_BYTES, total // _MOST_TASKS)
    boxes: list[list[Box]] = []
    sizes: list[Sizes] = []
    for box, own in _boxes(pairs, size):
        if boxes and sizes[-1].written + own.written <= size:
            boxes[-1].append(box)
            sizes[-1] = Sizes(*map(sum, zip(sizes[-1], own, strict=True)))
        else:
            boxes.append([box])
            sizes.append(own)
    return boxes, sizes


def _boxes(pairs: Sequence[tuple[str, ArrayMetadata, ArrayMetadata]], size: int) -> Iterator[tuple[Box, Sizes]]:
    for path, source, target in pairs:
        itemsize = target.dtype.itemsize or UNSIZED_BYTES
        for region in BlockShapes(target.grid, source.chunks, source.write_chunks).blocks(size // itemsize):
            box = Box(path, *corners(region))
            reads, read = _touched(region, source.grid)
            writes, _ = _touched(region, target.grid)
            written = math.prod(part.stop - part.start for part in region) * itemsize
            yield box, Sizes(read * itemsize, written, reads + writes)


def _touched(region: Region, grid: Grid) -> tuple[int, int]:
    """Return how many stored values a region touches, and how many elements they have."""
    counts = [count_touched(part, axis) for part, axis in zip(region, grid.axes, strict=True)]
    return math.prod(count for count, _ in counts), math.prod(elements for _, elements in counts)


def _nbytes(metadata: ArrayMetadata, shape: Sequence[int]) -> int:
    return math.prod(shape) * (metadata.dtype.itemsize or UNSIZED_BYTES)
