"""Copies as plans: boxes of arrays that any process can copy, and the documents that show the copy at the end."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from zarrasync import config as settings
from zarrasync import formats
from zarrasync.bulk.block_plan import UNSIZED_BYTES
from zarrasync.bulk.copy.files import copy_files
from zarrasync.bulk.copy.nodes import (
    CopyPlan,
    Nodes,
    check_absent,
    consolidate_copies,
    create_copies,
    erase_chunks,
    plan_copies,
)
from zarrasync.bulk.copy.values import compare_box, copy_box
from zarrasync.bulk.jobs.boxes import Box, Sizes
from zarrasync.bulk.jobs.claimed_work import ClaimedWork
from zarrasync.bulk.jobs.plan import Credentials, Task
from zarrasync.bulk.jobs.plan_place import NodePlace
from zarrasync.bulk.reports import CopyReport, add_reports
from zarrasync.display.progress import IngestReport
from zarrasync.errors import MetadataError, ShapeError
from zarrasync.formats import Format
from zarrasync.indexing.axis_cuts import count_touched
from zarrasync.indexing.chunk_blocks import BlockShapes
from zarrasync.indexing.regions import Region, corners
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import Grid
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.find import find_all
from zarrasync.nodes.functions import open
from zarrasync.nodes.group import make_node
from zarrasync.nodes.kinds import Metadata
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.transfer.threads import Progress

__all__ = ["CopyWork"]

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
        tasks: int = 0,
    ) -> CopyWork:
        """Return the work for nodes and the layout of their copies.

        Args:
            nodes: The nodes, starting with the root.
            plan: The place and the layout of the copy.
            report: A report with notes, to which this method adds others.
            consolidated: The paths of the groups that get consolidated metadata, relative to the first node.
            source_name: The path or URL of the source; empty without one.
            dest_name: The path or URL of the destination; empty without one.
            tasks: About how many tasks to make; 0 for a number that suits the size.
        """
        (_, root), *_ = nodes
        target = plan.target
        planned = plan_copies(nodes, target, plan.changes, report)
        pairs = [
            (path, node.metadata, copied)
            for path, node in nodes
            if isinstance(node, AsyncArray) and isinstance(copied := planned[path], ArrayMetadata)
        ]
        boxes, sizes = _make_tasks(pairs, tasks)
        return cls(
            NodePlace(root.store, root.path, source_name),
            NodePlace(target.store, target.path, dest_name),
            target.format,
            {path: _render(target.format, join(target.path, path), metadata) for path, metadata in planned.items()},
            boxes,
            sizes,
            plan.files,
            consolidated,
            plan.overwrite,
            target.config,
            tuple(report.notes),
            tuple(report.left_out),
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

    def opened(self, credentials: Credentials) -> CopyWork:
        return replace(
            self,
            source=self.source.opened(credentials.source_options),
            dest=self.dest.opened(credentials.storage_options),
        )

    # -------------------------------------------------------------- what tasks and commands do

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
        target, planned = self._target, self._planned
        if self.overwrite:
            self._run(erase_node(target))
        else:
            self._run(check_absent(target, planned))
        self._run(erase_chunks(target, planned))

    def write(self, number: int, progress: Progress, *, verify: bool) -> IngestReport:
        report = IngestReport()
        for box in self.boxes[number]:
            self._run(self._write(box, report, progress, verify=verify))
        return report

    async def _write(self, box: Box, report: IngestReport, progress: Progress, *, verify: bool) -> None:
        opening = partial(open, self.source.store, path=join(self.source.path, box.array), config=self.config)
        source = await run_on_store(opening, self.source.store)
        planned, handle = self._planned[box.array], self._target.at(join(self.path, box.array))
        assert isinstance(planned, ArrayMetadata)
        if not isinstance(source, AsyncArray) or source.shape != planned.shape:
            raise ShapeError(
                f"/{box.array} of {self._origin} has changed since the copy was planned; abandon the plan, and make a new one",
                found=getattr(source, "shape", ()),
                wanted=planned.shape,
            )
        target = make_node(replace(handle, is_format_known=True), planned)
        assert isinstance(target, AsyncArray)
        own = IngestReport()
        await copy_box(source, target, box.region, own, progress)
        if verify:
            await compare_box(source, target, box.region)
            own.verified = own.blocks
        add_reports(report, own)

    def publish(self, *, verify: bool) -> CopyReport:
        report = CopyReport(notes=list(self.notes), left_out=list(self.left_out))
        report.arrays = sum(isinstance(metadata, ArrayMetadata) for metadata in self._planned.values())
        report.groups = len(self._planned) - report.arrays
        self._run(self._publish(report, verify=verify))
        return report

    async def _publish(self, report: CopyReport, *, verify: bool) -> None:
        await create_copies(self._target, self._planned, resume=True)
        source = NodeHandle(self.source.store, self.source.path, self.format, self.config)
        await copy_files(source, self._target, self.files, report, resume=True, verify=verify)
        await consolidate_copies(self.consolidated, self._target, report.notes)

    def is_published(self) -> bool:
        return self._run(find_all(self._target, [self.path], [self.format], strict=False))[0] is not None

    def erase(self) -> None:
        self._run(erase_chunks(self._target, self._planned))


def _render(format_: Format, path: str, metadata: Metadata) -> dict[str, str]:
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


def _make_tasks(
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
