"""The stored values of an array (shards, or chunks if it has no shards): which exist, and whether their keys are right."""

from __future__ import annotations

import warnings
from functools import partial

from zarrasync.codecs.chunk_properties import is_fill
from zarrasync.codecs.spec import Array
from zarrasync.indexing.split import split_chunks
from zarrasync.indexing.transform import Transform
from zarrasync.nodes.node import run_on_store
from zarrasync.stores.values import Request
from zarrasync.transfer import Chunks


async def stored_coords(chunks: Chunks) -> set[tuple[int, ...]]:
    """Return the grid coordinates of all stored values, including those outside the array's shape.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    store, metadata = chunks.store, chunks.metadata
    keys = await run_on_store(partial(store.list_prefix, ""), store)
    return {coords for key in keys if (coords := metadata.keys.decode(key, metadata.ndim)) is not None}


async def stored_sizes(chunks: Chunks) -> dict[tuple[int, ...], int]:
    """Return the encoded sizes in bytes of the stored values inside the array's shape, by their grid coordinates.

    Raises:
        UnsupportedOperation: If the store cannot list.
    """
    store, metadata = chunks.store, chunks.metadata
    listed = await run_on_store(partial(store.list_sizes, ""), store)
    decoded = ((metadata.keys.decode(key, metadata.ndim), size) for key, size in listed.items())
    return {coords: size for coords, size in decoded if coords is not None and coords in metadata.grid}


async def check_separator(chunks: Chunks, transform: Transform, result: Array) -> None:
    """Warn if the first read of an array gave only fill values because its keys have the other separator.

    Another value proves the separator. Otherwise, the key of the first chunk with the other separator is requested.

    Args:
        chunks: The array's chunks.
        transform: The selection that was read.
        result: The values.
    """
    chunks.unproven.clear()
    metadata = chunks.metadata
    spec = metadata.chain.spec
    if not result.size or not is_fill(result, spec.fill_value if result.dtype.kind in "TO" else spec.scalar):
        return
    first = split_chunks(transform.layout.projection(), metadata.grid)[0]
    key = metadata.keys.with_other_separator().encode(first.coords)
    (value,) = await run_on_store(partial(chunks.store.fetch, [Request(key, 0, 1)]), chunks.store)
    if value is not None:
        warnings.warn(
            f"{chunks.name} reads as fill values: its metadata does not contain the separator of chunk keys, which implies "
            f"{metadata.keys.separator!r}, but the key {chunks.full_key(key)!r} exists; add the separator '/' to the "
            "array's metadata document",
            stacklevel=2,
        )
