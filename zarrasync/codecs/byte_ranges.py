"""The byte-range protocol: how parts of an encoded chunk are located, fetched and decoded on their own.

A codec that supports partial reads returns a ``Locator``: a generator that requests byte ranges and finally returns
the ``Piece``s to decode. It does no IO, so files, object stores and nested shards all use the same one. ``run_search``
runs it with a function that fetches ranges.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.projection import Projection


class Range(NamedTuple):
    """A byte range of an encoded value.

    Attributes:
        start: The first byte; ignored for a suffix.
        length: The number of bytes.
        suffix: Whether the range is the last ``length`` bytes of the value.
    """

    start: int
    length: int
    suffix: bool = False


class ChunkDecoder(Protocol):
    """Decodes chunks of one kind. ``BoundChain`` is the implementation, and documents the members."""

    spec: ArraySpec
    raw_size: int | None
    stored_dtype: np.dtype[Any] | None
    is_raw: bool
    decodes_to_output: bool
    decodes_into_buffer: bool

    def decode(self, data: Buffer, workspace: npt.NDArray[np.uint8] | None = None) -> Array:
        """Decode a chunk."""
        ...

    def decompress_into(self, values: Sequence[Buffer], rows: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Undo the bytes -> bytes codecs of several chunks, each into its own memory."""
        ...

    def view_chunks(self, rows: npt.NDArray[np.uint8]) -> Array | None:
        """View raw chunks as one array."""
        ...


class Piece(NamedTuple):
    """A byte range of an encoded value that decodes on its own, and the destination of its elements.

    Attributes:
        start: Its first byte in the value.
        length: The number of bytes; negative if the chunk is absent and reads as the fill value.
        chain: The codecs that decode it.
        part: Its elements and their destinations. A run covers several chunks that are stored contiguously.
        out: The array that receives the elements.
        entries: For a run, the start (relative to the start of the piece) and the length of each chunk.
    """

    start: int
    length: int
    chain: ChunkDecoder
    part: ChunkRun
    out: Array
    entries: Sequence[tuple[int, int]] = ()


Locator: TypeAlias = Generator[list[Range], Sequence[Buffer | None], list[Piece] | None]
"""A search for pieces. It yields byte ranges, is sent their bytes (``None`` if the value is absent), and returns the
pieces, or ``None`` if the value is absent."""


async def run_search(
    search: Locator, fetch: Callable[[list[Range]], Awaitable[Sequence[Buffer | None]]]
) -> list[Piece] | None:
    """Run a search and return its result.

    Args:
        search: The search.
        fetch: Returns the bytes of each range, or ``None`` if the value is absent.
    """
    try:
        ranges = next(search)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # what a Locator returns
    while True:
        data = await fetch(ranges)
        try:
            ranges = search.send(data)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # what a Locator returns


def search_inside(search: Locator, start: int, length: int) -> Locator:
    """Turn a search in one chunk of a value into a search in the value.

    Args:
        search: The search in the chunk.
        start: The first byte of the chunk in the value.
        length: The chunk's number of bytes.
    """
    end = start + length
    try:
        ranges = next(search)
        while True:
            outer = []
            for requested in ranges:
                first = start + (max(length - requested.length, 0) if requested.suffix else requested.start)
                outer.append(Range(first, min(requested.length, end - first)))
            ranges = search.send((yield outer))
    except StopIteration as stop:
        return [p._replace(start=p.start + start) if p.length >= 0 else p for p in stop.value or ()]


def search_together(searches: Iterable[Locator]) -> Locator:
    """Run several searches in the same value side by side: each round requests one batch of ranges for all of them."""
    pieces: list[Piece] = []
    waiting: list[tuple[Locator, list[Range]]] = []

    def advance(search: Locator, data: Sequence[Buffer | None] | None) -> None:
        try:
            ranges = next(search) if data is None else search.send(data)
        except StopIteration as stop:
            pieces.extend(stop.value or ())
        else:
            waiting.append((search, ranges))

    for search in searches:
        advance(search, None)
    while waiting:
        active, waiting = waiting, []
        answers = iter((yield [requested for _, ranges in active for requested in ranges]))
        for search, ranges in active:
            advance(search, [next(answers) for _ in ranges])
    return pieces


class BoundArrayBytes:
    """An array -> bytes codec bound to one kind of chunk. By default, it only decodes whole chunks.

    Codecs of other packages may return any object with ``encoded_size``, ``stored_dtype`` and these methods.

    Attributes:
        encoded_size: Bytes of an encoded chunk, or ``None`` if that depends on the data.
        encoded_limit: The most bytes of an encoded chunk, if they are limited although they depend on the data.
        stored_dtype: The dtype of the stored elements if the encoded bytes are just the elements in C order.
        divisible: Whether ``locate`` can return a search.
    """

    encoded_size: int | None = None
    encoded_limit: int | None = None
    stored_dtype: np.dtype[Any] | None = None
    divisible = False

    def decode(self, data: Buffer) -> Array:
        """Decode a chunk. The result may share memory with ``data``.

        Codecs of elements that vary in size may have a method ``decode_within(data, budget)`` as well.
        """
        raise NotImplementedError

    def encode(self, array: Array) -> Buffer | None:
        """Encode a chunk; ``None`` if nothing needs storing. The result may share memory with ``array``."""
        raise NotImplementedError

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """Return a search for the bytes of a projection, or ``None`` if only whole chunks can be decoded."""
        return None

    def merge(self, data: Buffer, projection: Projection, values: Array) -> Buffer | None:
        """Return the encoded chunk with the elements of a projection replaced by ``values``, as ``encode`` would."""
        chunk = np.array(self.decode(data))
        projection.write(chunk, values)
        return self.encode(chunk)
