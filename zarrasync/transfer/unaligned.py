"""Writes that cut chunks, of which somebody else may be writing another part: what is refused, and what is said then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from zarrasync.errors import ShapeError
from zarrasync.indexing.chunk_blocks import units
from zarrasync.indexing.transform import Transform
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.stores import CountingStore, Store

if TYPE_CHECKING:
    from zarrasync.nodes.array import AsyncArray
    from zarrasync.transfer.chunks import Fields

__all__ = ["Unaligned", "check_append", "check_assignment", "check_region", "check_unaligned", "for_job", "is_allowed"]

Unaligned: TypeAlias = Literal["safe", "error", "allow"]
_ALLOW = ", or allow it with config={'unaligned': 'allow'} if nobody else writes at the same time"


def check_unaligned(unaligned: Unaligned) -> None:
    """Complain about what is no way to treat shared chunks."""
    if unaligned not in ("safe", "error", "allow"):
        raise ValueError(f"unaligned is 'safe', 'error' or 'allow', found {unaligned!r}")


def is_allowed(unaligned: Unaligned, *, safe: bool) -> bool:
    """Whether parts of chunks may be written; ``safe`` if no other writer's part is lost where they are."""
    return unaligned == "allow" or (unaligned == "safe" and safe)


def is_safe_for_jobs(store: Store) -> bool:
    """Whether no writer's part of a value is lost that jobs change: also by copies of the store in other processes."""
    return store.conditional or (store.exclusive and not store.portable)


def for_job(array: AsyncArray, unaligned: Unaligned) -> AsyncArray:
    """An array for a job, which says itself what may be cut: what the array's settings say of that is for others."""
    node = replace(array._handle, config=replace(array.config, unaligned=unaligned))
    return type(array)(node, array.metadata)


def check_region(
    target: AsyncArray,
    start: tuple[int, ...],
    stop: tuple[int, ...],
    unaligned: Unaligned,
    *,
    safe: bool,
) -> None:
    """Complain about chunks that a region cuts, where another writer's part of them could be lost.

    Args:
        target: The array.
        start: Where the region begins.
        stop: Where it ends.
        unaligned: What to do about it.
        safe: Whether no other writer's part is lost there.

    Raises:
        ShapeError: If there are such, and they are not allowed.
    """
    if target.store.writeable and not is_allowed(unaligned, safe=safe):
        _refuse(target, units(target.metadata, start, stop, cut=True), start)


def check_assignment(target: AsyncArray, transform: Transform, fields: Fields = None) -> None:
    """Complain about chunks that an assignment changes in part, if the array's settings do not allow that.

    Where the store's locks keep everybody out it is safe. Jobs do not ask for that: copies that they send to other
    processes may be on their own there.

    Args:
        target: The array.
        transform: What is assigned to.
        fields: The fields of its elements, if not all.

    Raises:
        ShapeError: If there are such, and they are not allowed.
    """
    if not target.store.writeable or is_allowed(target.config.unaligned, safe=target._chunks.store.guarded):
        return
    given = {fields} if isinstance(fields, str) else set(fields or ())
    whole = fields is None or given == set(target.dtype.names or ())
    _refuse(target, list(transform.layout.projection().cut(target.metadata.grid, whole=whole)), transform.shape)


def check_append(target: AsyncArray, metadata: ArrayMetadata, axis: int, start: int, stop: int) -> None:
    """Complain about an append that could lose somebody's rows, if the array's settings do not allow that.

    Args:
        target: The array.
        metadata: Its metadata as it will be.
        axis: The axis along which it grows.
        start: Where along it the values go.
        stop: Where they end.

    Raises:
        ShapeError: If two could append to the same place, or chunks are cut, and that is not allowed.
    """
    unaligned, guarded = target.config.unaligned, target.store.guarded
    if start == stop or not target.store.writeable or is_allowed(unaligned, safe=guarded):
        return
    if not guarded:
        raise ShapeError(
            f"{target.store!r} can not compare what it replaces, so that two who append to {target.name} at the same "
            f"time could write to the same place; resize it once, and write regions of whole chunks{_ALLOW}",
            found=target.shape,
            wanted=metadata.shape,
        )
    begin = tuple(start if number == axis else 0 for number in range(metadata.ndim))
    end = tuple(stop if number == axis else n for number, n in enumerate(metadata.shape))
    _refuse(target, units(metadata, begin, end, cut=True), begin)


def _refuse(target: AsyncArray, cut: Sequence[tuple[int, ...]], found: tuple[int, ...]) -> None:
    """Name chunks that are cut, if there are any."""
    if not cut:
        return
    keys = [target._chunks.full_key(target._chunks.key(at)) for at in cut[:3]]
    more = f" and {len(cut) - 3:,} more" if len(cut) > 3 else ""
    store = target.store.inner if isinstance(target.store, CountingStore) else target.store  # which is a job's
    blind = f"where {store!r} could lose what another writer stores at the same time"
    why = "which another writer may be writing, too" if target._chunks.store.guarded else blind
    raise ShapeError(
        f"the region cuts the chunks {', '.join(keys)}{more} of {target.name}, {why}; "
        f"align it to multiples of {target.metadata.write_chunks}{_ALLOW}",
        found=found,
        wanted=target.metadata.write_chunks,
    )
