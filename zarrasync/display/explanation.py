"""Explanations of reads and plans: how many chunks, requests and bytes a selection takes, and what the tasks of a job do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zarrasync.display import html
from zarrasync.display.report import JobReport
from zarrasync.display.svg import draw
from zarrasync.display.text import Table, counted, printable, size_text
from zarrasync.indexing.regions import Coverage
from zarrasync.indexing.transform import Transform
from zarrasync.metadata import ArrayMetadata


@dataclass(frozen=True)
class Explanation:
    """The chunks, requests and bytes that reading a selection takes.

    Attributes:
        name: The name of the array.
        shape: The shape of the selection.
        dtype: The dtype of the selection.
        chunks: The number of chunks to decode.
        shards: The number of shards to read from, or ``None`` if the array is not sharded.
        requests: The number of requests: one per chunk, or two per shard (its index, then its chunks together).
        most_requests: The maximum number of requests. Chunks that are far apart in a shard take separate requests.
        decoded_bytes: The size of the decoded chunks, in bytes.
        result_bytes: The size of the result, in bytes.
        needed_bytes: The size of the stored elements that the result needs, in bytes. Decoded values may be larger.
        coverage: The chunks that are read.
        metadata: The metadata of the array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: int
    shards: int | None
    requests: int
    most_requests: int
    decoded_bytes: int
    result_bytes: int
    needed_bytes: int
    coverage: Coverage = field(repr=False, compare=False)
    metadata: ArrayMetadata = field(repr=False, compare=False)

    def __str__(self) -> str:
        shards = f" in {counted(self.shards, 'shard')}" if self.shards is not None else ""
        return (
            f"{self.name} {self.shape} {self.dtype}: {counted(self.chunks, 'chunk')}{shards}, {self.requests_text}, "
            f"{size_text(self.decoded_bytes)} decoded for {size_text(self.result_bytes)} ({self.share_text})"
        )

    @property
    def requests_text(self) -> str:
        """The number of requests in words."""
        if self.most_requests <= self.requests:
            return counted(self.requests, "request")
        return f"about {self.requests:,} requests, at most {self.most_requests:,}"

    @property
    def share_text(self) -> str:
        """The share of the decoded bytes that the result needs, in words."""
        share = self.needed_bytes / self.decoded_bytes if self.decoded_bytes else 1.0
        return f"{share:.0%}" if share >= 0.01 or not share else "less than 1%"

    __repr__ = __str__

    def to_html(self, title: str = "Read") -> str:
        """Return the counts and a picture of the chunks as HTML."""
        chunk_count = self.metadata.read_grid.size
        facts = {"Chunks": f"{self.chunks:,} of {chunk_count:,}"}
        if self.shards is not None:
            facts["Shards"] = f"{self.shards:,} of {self.metadata.grid.size:,}"
        facts["Requests"] = self.requests_text.replace(" requests", "").replace(" request", "")
        facts["Decoded"] = size_text(self.decoded_bytes)
        facts["Result"] = f"{size_text(self.result_bytes)} ({self.share_text} of the decoded bytes)"
        head = f"{self.shape} {self.dtype}"
        picture = draw(self.metadata, self.coverage if self.chunks else None)
        return html.card(title, self.name, head, facts, picture)

    def _repr_html_(self) -> str:
        return self.to_html()


def explain(
    name: str, metadata: ArrayMetadata, transform: Transform, dtype: str, nbytes: int, needed_bytes: int
) -> Explanation:
    """Count the chunks, requests and bytes that reading a selection takes.

    Args:
        name: The name of the array.
        metadata: The metadata of the array.
        transform: The selection.
        dtype: The dtype of the result.
        nbytes: The size of the result in bytes.
        needed_bytes: The size of the stored elements that it needs, in bytes.
    """
    projection = transform.layout.projection()
    is_sharded = metadata.shards is not None
    read = Coverage(projection, metadata.read_grid)
    stored = Coverage(projection, metadata.grid) if is_sharded else read
    bytes_per_element = metadata.chain.nbytes / math.prod(metadata.write_chunks)
    is_empty = transform.size == 0
    stored_count = 0 if is_empty else stored.count
    read_count = 0 if is_empty else read.count
    return Explanation(
        name,
        transform.shape,
        dtype,
        chunks=read_count,
        shards=stored_count if is_sharded else None,
        requests=2 * stored_count if is_sharded else stored_count,
        most_requests=stored_count + read_count if is_sharded else stored_count,
        decoded_bytes=0 if is_empty else round(read.elements * bytes_per_element),
        result_bytes=nbytes,
        needed_bytes=needed_bytes,
        coverage=read,
        metadata=metadata,
    )


# ------------------------------------------------------------------ plans of jobs


_MOST_ROWS = 20
"""The number of tasks in a table. The others are counted."""


@dataclass(repr=False)
class PlanExplanation(JobReport):
    """What a plan reads and writes.

    Attributes:
        kind: The job: ``"ingest"``, ``"copy"``, ``"pyramid"`` or ``"write"``.
        destination: The destination.
        tasks: The name, the size in bytes and the memory in bytes of each task.
        read_bytes: The decoded size of what the tasks read, in bytes.
        written_bytes: The decoded size of what the tasks write, in bytes.
        source_bytes: The decoded size of the sources, in bytes.
        requests: About how many requests the tasks make.
        notes: Remarks about the sources.
    """

    kind: str
    destination: str
    tasks: Sequence[tuple[str, int, int]] = ()
    read_bytes: int = 0
    written_bytes: int = 0
    source_bytes: int = 0
    requests: int = 0
    notes: Sequence[str] = field(default_factory=list)

    @property
    def passes(self) -> float:
        """How often the tasks read their sources."""
        return self.read_bytes / self.source_bytes if self.source_bytes else 0.0

    @property
    def memory(self) -> int:
        """The largest size of values that a task has in memory at a time, in bytes."""
        return max((memory for _, _, memory in self.tasks), default=0)

    def summary(self) -> str:
        head = f"{self.kind} into {self.destination}: {counted(len(self.tasks), 'task')}"
        if not self.tasks:
            return f"{head}, nothing to do"
        passes = f"{self.passes:.1f} passes" if self.passes > 1.05 else "one pass"
        return (
            f"{head}, {size_text(self.read_bytes)} read in {passes}, {size_text(self.written_bytes)} written in about "
            f"{counted(self.requests, 'request')}, at most {size_text(self.memory)} in memory per task"
        )

    def tables(self) -> Sequence[Table]:
        if not self.tasks:
            return ()
        most = max(nbytes for _, nbytes, _ in self.tasks) or 1
        rows = [
            (str(number), printable(name), size_text(nbytes), size_text(memory), "█" * round(20 * nbytes / most))
            for number, (name, nbytes, memory) in enumerate(self.tasks[:_MOST_ROWS])
        ]
        if more := len(self.tasks) - len(rows):
            rows.append(("", f"and {counted(more, 'other task')}", "", "", ""))
        return [Table((">task", "writes", ">size", ">memory", "share"), rows)]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "passes": self.passes, "memory": self.memory}

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
