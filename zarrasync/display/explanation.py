"""Explanations of reads: how many chunks, requests and bytes a selection takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from zarrasync.display import html
from zarrasync.display.text import counted, size_text
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
        return html.selection(title, self.name, head, facts, self.metadata, self.coverage if self.chunks else None)

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
    stored, read = Coverage(projection, metadata.grid), Coverage(projection, metadata.read_grid)
    bytes_per_element = metadata.chain.nbytes / math.prod(metadata.write_chunks)
    is_sharded = metadata.shards is not None
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
