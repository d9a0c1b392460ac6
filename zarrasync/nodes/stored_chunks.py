"""The stored values of an array (shards, or chunks if it has no shards), from a listing of their keys."""

from __future__ import annotations

from functools import partial

from zarrasync.nodes.node import run_on_store
from zarrasync.transfer import Chunks

__all__ = ["stored_coords", "stored_sizes"]


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
