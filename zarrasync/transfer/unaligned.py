"""Checks that reject writes to parts of chunks if a concurrent writer of the same chunks could lose values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from zarrasync.errors import ShapeError
from zarrasync.indexing.regions import Coverage, partial_chunks
from zarrasync.indexing.transform import Transform
from zarrasync.metadata import ArrayMetadata
from zarrasync.stores import Store
from zarrasync.transfer.chunks import Chunks, Fields

Unaligned: TypeAlias = Literal["safe", "error", "allow"]
"""When chunks may be written in part: if that is safe, never, or always."""
_ALLOW = ", or allow it with config={'unaligned': 'allow'} if this is the only writer"


def check_unaligned(unaligned: Unaligned) -> None:
    """Check the value of an ``unaligned`` option.

    Raises:
        ValueError: If it is not a valid value.
    """
    if unaligned not in ("safe", "error", "allow"):
        raise ValueError(f"unaligned must be 'safe', 'error' or 'allow', found {unaligned!r}")


def is_allowed(unaligned: Unaligned, *, safe: bool) -> bool:
    """Return whether parts of chunks may be written; ``safe`` if no other writer's values can be lost."""
    return unaligned == "allow" or (unaligned == "safe" and safe)


def is_safe_for_jobs(store: Store) -> bool:
    """Return whether jobs can change parts of a value without losing any, even with store copies in other processes."""
    return store.conditional or (store.exclusive_locks and not store.shareable)


def check_region(
    chunks: Chunks, start: tuple[int, ...], stop: tuple[int, ...], unaligned: Unaligned, *, safe: bool
) -> None:
    """Check that no chunk is written in part if another writer's values in it could be lost.

    Args:
        chunks: The array's chunks.
        start: The start of the written region on each axis.
        stop: The stop of the written region on each axis.
        unaligned: Which partial writes are allowed.
        safe: Whether no other writer's values can be lost.

    Raises:
        ShapeError: If a chunk is written in part, and that is not allowed.
    """
    if _store(chunks).writeable and not is_allowed(unaligned, safe=safe):
        _refuse(chunks, list(partial_chunks(tuple(map(slice, start, stop)), chunks.metadata.grid)), start)


def check_assignment(chunks: Chunks, transform: Transform, fields: Fields = None) -> None:
    """Check that no chunk is assigned to in part, unless the array's settings allow it.

    It is safe if the store's locks exclude every other writer. Jobs do not rely on locks, because copies of the store
    in other processes may not share them.

    Args:
        chunks: The array's chunks.
        transform: The selection that is assigned to.
        fields: The structured fields that are assigned to; all if ``None``.

    Raises:
        ShapeError: If a chunk is assigned to in part, and that is not allowed.
    """
    if not _store(chunks).writeable or is_allowed(chunks.config.unaligned, safe=chunks.store.safe_updates):
        return
    assigned = {fields} if isinstance(fields, str) else set(fields or ())
    whole = fields is None or assigned == set(chunks.metadata.dtype.numpy.names or ())
    coverage = Coverage(transform.layout.projection(), chunks.metadata.grid)
    _refuse(chunks, list(coverage.partial_chunks() if whole else coverage.chunks()), transform.shape)


def check_append(chunks: Chunks, metadata: ArrayMetadata, axis: int, start: int, stop: int) -> None:
    """Check that an append cannot lose another writer's rows, unless the array's settings allow it.

    Args:
        chunks: The array's chunks before the append.
        metadata: The array's metadata after the append.
        axis: The axis along which it grows.
        start: The first index of the new rows along ``axis``.
        stop: The stop of the new rows along ``axis``.

    Raises:
        ShapeError: If two writers could append the same rows, or if chunks are changed in part, and that is not
            allowed.
    """
    store = _store(chunks)
    if start == stop or not store.writeable or is_allowed(chunks.config.unaligned, safe=store.safe_updates):
        return
    if not store.safe_updates:
        raise ShapeError(
            f"{store!r} cannot write conditionally, so concurrent appends to {chunks.name} could overwrite each "
            f"other; resize it once and write regions of whole chunks{_ALLOW}",
            found=chunks.metadata.shape,
            wanted=metadata.shape,
        )
    begin = tuple(start if number == axis else 0 for number in range(metadata.ndim))
    end = tuple(stop if number == axis else n for number, n in enumerate(metadata.shape))
    _refuse(chunks, list(partial_chunks(tuple(map(slice, begin, end)), metadata.grid)), begin)


def _store(chunks: Chunks) -> Store:
    """Return the store that the user passed."""
    return chunks.origin or chunks.store


def _refuse(chunks: Chunks, partial_chunks: Sequence[tuple[int, ...]], found: tuple[int, ...]) -> None:
    """Raise an error that names the chunks that are written in part, if any."""
    if not partial_chunks:
        return
    keys = [chunks.full_key(chunks.key(at)) for at in partial_chunks[:3]]
    more = f" and {len(partial_chunks) - 3:,} more" if len(partial_chunks) > 3 else ""
    blind = f"and {_store(chunks)!r} could lose values that another writer stores in them at the same time"
    why = "and another writer may write the same chunks" if chunks.store.safe_updates else blind
    raise ShapeError(
        f"the region covers only parts of the chunks {', '.join(keys)}{more} of {chunks.name}, {why}; "
        f"align it to multiples of {chunks.metadata.write_chunks}{_ALLOW}",
        found=found,
        wanted=chunks.metadata.write_chunks,
    )
