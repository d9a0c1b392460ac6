"""``FilesPlan``: everything that the tasks of a job need to know, as plain data that can be stored as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import formats
from zarrasync._util import records
from zarrasync._util.redact import has_secrets
from zarrasync.bulk.files.sources.headers import ReaderOptions, SourceFile
from zarrasync.config import Config
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import GridAxis
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.documents import parse_texts, render_texts
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Store

Kind: TypeAlias = Literal["rows", "whole", "inline"]


STORED = -1
"""The number of the source of existing rows that move."""


class Segment(NamedTuple):
    """Consecutive rows of the destination that come from consecutive rows of one file.

    Attributes:
        start: The first row of the destination.
        stop: The row after the last one.
        source: The number of the file; ``STORED`` for rows that the destination had before the job.
        offset: The first row in the file, or in the destination before the job.
    """

    start: int
    stop: int
    source: int
    offset: int


@dataclass(frozen=True)
class Part:
    """One task: rows of all arrays of the kind ``"rows"``, or one array of the kind ``"whole"``.

    It writes the rows of segments between two rows. No other task writes the same stored chunks or shards.

    Attributes:
        start: The first row.
        stop: The row after the last one.
        array: The name of an array, instead of rows.
    """

    start: int = 0
    stop: int = 0
    array: str = ""


@dataclass(frozen=True)
class FileVariable:
    """A variable in one of the files.

    Attributes:
        dims: The names of its dimensions. It lacks the dimension of rows if the file is one row.
        units: The units and the calendar of its times; ``None`` for other variables.
        is_absent: Whether the file lacks the variable, so that its rows contain the fill value.
    """

    dims: tuple[str, ...] = ()
    units: tuple[str, str] | None = None
    is_absent: bool = False


@dataclass(frozen=True)
class ArrayPlan:
    """One array of the destination.

    Attributes:
        name: The name of the array.
        kind: ``"rows"``: the values are read from the files row by row; ``"whole"``: all values are read from the first
            file; ``"inline"``: the plan contains the values.
        documents: The metadata documents after the job, by key.
        shape: The shape before the job, or ``None`` if the array is new.
        axis: The number of the axis of rows, or ``None``.
        chunks: The shape of regions that are fastest to read.
        units: The units and the calendar that times are converted to.
        dims: The names of the dimensions.
        usual: The variable in the first file.
        unusual: The variable in each file in which it differs from that, by the number of the file.
        data: Inline values in C order, as base64; strings as a JSON list. Along the axis of rows, they are the rows of all
            segments one after the other.
        data_shape: The shape of inline values.
        rows: The rows of inline values, if these are not the rows of the segments.
        row_bytes: The decoded size of a row; the size of the array if it has no rows.
    """

    name: str
    kind: Kind
    documents: Mapping[str, str]
    shape: tuple[int, ...] | None = None
    axis: int | None = None
    chunks: tuple[int, ...] | None = None
    dims: tuple[str, ...] = ()
    units: tuple[str, str] | None = None
    usual: FileVariable = field(default_factory=FileVariable)
    unusual: Mapping[str, FileVariable] = field(default_factory=dict)
    data: str = ""
    data_shape: tuple[int, ...] = ()
    rows: Sequence[tuple[int, int]] = ()
    row_bytes: int = 0

    def with_values(self, values: npt.NDArray[Any]) -> ArrayPlan:
        """Return a plan that contains values."""
        is_text = values.dtype.kind in "OTU"
        data = json.dumps(values.reshape(-1).tolist()) if is_text else base64.b64encode(values.tobytes()).decode()
        return replace(self, kind="inline", data=data, data_shape=values.shape)

    def in_file(self, number: int) -> FileVariable:
        """Return the variable in a file."""
        return self.unusual.get(str(number), self.usual)

    def for_files(self, numbers: Mapping[int, int]) -> ArrayPlan:
        """Return a plan for some of the files, which get other numbers."""
        known = {str(new): self.unusual.get(str(number)) for number, new in numbers.items()}
        return replace(self, unusual={number: variable for number, variable in known.items() if variable is not None})

    def values(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the inline values."""
        if dtype.kind in "OTU":
            return np.array(json.loads(self.data), dtype).reshape(self.data_shape)
        return np.frombuffer(base64.b64decode(self.data), dtype).reshape(self.data_shape)


@dataclass(frozen=True)
class FilesPlan:
    """A job, as plain data.

    Attributes:
        zarr_format: The format of the destination.
        path: The path of the group in the store.
        dim: The dimension along which files are joined.
        length: The length of the dimension after the job.
        files: The files.
        reader: How to open the files.
        arrays: The arrays.
        segments: The rows to write.
        parts: The tasks.
        attributes: The attributes of a new group; ``None`` if the group exists.
        parameters: A digest of the parameters that determine stored values.
        journal: For each file, its first row, the row after its last one, and a digest of its labels; ``None`` if the record of
            an earlier version of the file remains.
        notes: Messages about the files, for the report.
        left_out: Parts of the files that the plan does not write although no argument excludes them, with the reason.
        place: The name of the array that the journal is next to.
        moved: The first existing row that moves, because rows are inserted; ``None`` if none does.
        moved_files: The rows of files of earlier jobs after the job, if they move.
        empty: The reserved rows that are still empty after the job.
    """

    zarr_format: int
    path: str
    dim: str
    length: int
    files: Sequence[SourceFile]
    reader: ReaderOptions
    arrays: Sequence[ArrayPlan]
    segments: Sequence[Segment]
    parts: Sequence[Part]
    attributes: Mapping[str, Any] | None = None
    parameters: str = ""
    journal: Sequence[tuple[int, int, str] | None] = ()
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    place: str = ""
    moved: int | None = None
    moved_files: Sequence[tuple[SourceFile, tuple[int, int, str]]] = ()
    empty: Sequence[tuple[int, int]] = ()

    @property
    def is_new(self) -> bool:
        """Whether the job creates the group."""
        return self.attributes is not None

    @property
    def rows(self) -> int:
        """The number of rows of files to write."""
        return sum(segment.stop - segment.start for segment in self.segments if segment.source != STORED)

    @property
    def added(self) -> tuple[int, int]:
        """The first row that the job adds to the dataset, and the row after its last one."""
        present = [(array.shape, array.axis) for array in self.arrays]
        lengths = [shape[axis] for shape, axis in present if shape is not None and axis is not None]
        return min(lengths, default=0), self.length

    @property
    def format(self) -> Format:
        """The format of the destination."""
        return formats.by_name(self.zarr_format)

    def metadata(self, array: ArrayPlan) -> ArrayMetadata:
        """Return the metadata that an array will have after the job."""
        metadata = parse_texts(self.format, join(self.path, array.name), array.documents)
        assert isinstance(metadata, ArrayMetadata)
        return metadata

    def documents(self, name: str, metadata: ArrayMetadata) -> dict[str, str]:
        """Return the documents of an array, by key."""
        return render_texts(self.format, join(self.path, name), metadata)

    def handle(self, store: Store, config: Config, name: str = "") -> NodeHandle:
        """Return the location of the group, or of an array or folder in it."""
        return NodeHandle(store, join(self.path, name), self.format, config, is_format_known=True)

    def open(self, array: ArrayPlan, store: Store, config: Config) -> AsyncArray:
        """Return an array with the metadata that it will have after the job. Its documents may not be stored yet."""
        return AsyncArray(self.handle(store, config, array.name), self.metadata(array))

    def arrays_of(self, part: Part) -> list[ArrayPlan]:
        """Return the arrays that a task writes."""
        return [array for array in self.arrays if array.name == part.array or (not part.array and array.kind == "rows")]

    def task_bytes(self, part: Part) -> int:
        """Return the decoded size of the values that a task writes."""
        rows = sum(run.stop - run.start for run in self.runs_of(part))
        return sum(array.row_bytes * (rows if array.axis is not None else 1) for array in self.arrays_of(part))

    def segments_of(self, start: int, stop: int) -> list[Segment]:
        """Return the parts of segments between two rows."""
        first, last = (bisect_left(self.segments, row, key=lambda segment: segment.start) for row in (start, stop))
        own = self.segments[max(first - 1, 0) : last]
        parts = ((max(segment.start, start), min(segment.stop, stop), segment) for segment in own)
        return [Segment(a, b, own.source, own.offset + a - own.start) for a, b, own in parts if a < b]

    def runs_of(self, part: Part) -> list[Part]:
        """Return the parts of a task that have no rows between them which it does not write."""
        if part.array:
            return [part]
        runs: list[Part] = []
        for start, stop, _, _ in self.segments_of(part.start, part.stop):
            first = runs.pop().start if runs and runs[-1].stop == start else start
            runs.append(Part(first, stop))
        return runs

    def for_part(self, part: Part) -> FilesPlan:
        """Return a plan with only what one task needs, to send to another process. Its size does not depend on the job."""
        segments = self.segments_of(part.start, part.stop)
        used = sorted({segment.source for segment in segments} | ({0} if part.array else set()))
        used = [number for number in used if number != STORED]
        numbers = {number: own for own, number in enumerate(used)}
        return replace(
            self.without_records(),
            files=[self.files[number] for number in used],
            arrays=[array.for_files(numbers) for array in self.arrays_of(part)],
            segments=[segment._replace(source=numbers.get(segment.source, STORED)) for segment in segments],
            parts=[part],
        )

    def without_records(self) -> FilesPlan:
        """Return the plan without what only its publication and its report need."""
        return replace(self, journal=(), notes=(), left_out=(), moved_files=(), empty=())

    @property
    def recorded(self) -> FilesPlan:
        """The plan as it is recorded in a dataset while it is published: without the paths and URLs of files, and options."""
        options = self.reader.engine_options
        if options and options.keys() != {"digest"}:
            text = json.dumps(options, sort_keys=True, default=repr)
            options = {"digest": hashlib.sha256(text.encode()).hexdigest()[:32]}
        files, reader = [file.recorded for file in self.files], replace(self.reader, engine_options=options)
        return replace(self, files=files, reader=reader, notes=(), left_out=())

    def public(self, root: str | None = None) -> FilesPlan:
        """Return the plan without credentials, for its document.

        Args:
            root: The directory from which paths of files become relative; ``None`` if they stay absolute.
        """
        options = {} if has_secrets(self.reader.engine_options) else self.reader.engine_options
        reader = replace(self.reader, engine_options=options)
        return replace(self, files=[file.public(root) for file in self.files], reader=reader)

    def under(self, root: str) -> FilesPlan:
        """Return the plan with absolute paths of files.

        Args:
            root: The directory from which relative paths start.
        """
        return replace(self, files=[file.under(root) for file in self.files])

    # -------------------------------------------------------------- JSON

    @cached_property
    def digest(self) -> str:
        """A digest of everything that determines the stored result."""
        return hashlib.sha256(json.dumps(self.recorded.to_json(), sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values, without ``storage_options``."""
        return records.to_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FilesPlan:
        """Return the plan that ``to_json`` returned.

        Raises:
            MetadataError: If the values are not such a plan.
        """
        return records.from_json(cls, values, "plan of the ingestion")


def split_rows(segments: Sequence[Segment], grids: Sequence[GridAxis], size: int) -> list[Part]:
    """Return tasks that begin at rows where all arrays begin a new stored chunk or shard. So no two of them write the same one.

    Args:
        segments: The rows to write.
        grids: The axes of rows of the arrays.
        size: About how many rows a task writes.
    """
    if not segments or not grids:
        return []
    longest = min(grids, key=lambda grid: grid.nchunks)
    starts = longest.start_all(np.arange(longest.nchunks))
    for grid in grids:
        starts = starts[grid.start_all(grid.find_all(starts)) == starts]
    first, stop = np.array([segment[:2] for segment in segments]).T
    count = np.cumsum(stop - first)
    # The segment in which or after which a chunk begins.
    at = np.maximum(np.searchsorted(first, starts, "right") - 1, 0)
    before = count[at] - np.clip(stop[at] - starts, 0, (stop - first)[at])  # the rows to write before it
    cuts = np.append(starts[np.unique(before // size, return_index=True)[1]], stop[-1])
    return [Part(*rows) for rows in pairwise(np.unique(np.clip(cuts, first[0], stop[-1])).tolist())]
