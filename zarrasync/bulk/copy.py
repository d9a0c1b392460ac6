"""Copying hierarchies from one store, format or layout to another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.blocks import Ingestion
from zarrasync.bulk.overwrite_guard import physical_location
from zarrasync.bulk.sources import source_of
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport, report_progress
from zarrasync.display.text import counted, size_text
from zarrasync.errors import ChecksumError, NodeExistsError, UnsupportedOperation
from zarrasync.formats import Format
from zarrasync.indexing.chunk_blocks import plan_blocks
from zarrasync.indexing.coverage import touched_chunks
from zarrasync.metadata.convert import Changes, alike, translate
from zarrasync.metadata.create import ChunksLike, check_axes
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.chunk_grids import lazy_product
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import chunks_of, handle_of, stored_chunks
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import create_node
from zarrasync.nodes.create_hierarchy import create_levels
from zarrasync.nodes.find import find_all
from zarrasync.nodes.functions import CodecsLike, open
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.kinds import Metadata
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import Request, StoreLike, resolve
from zarrasync.transfer.threads import Progress

__all__ = ["CopyReport", "copy"]

_BATCH = 256
_ARRAYS = 16
"""That are copied side by side."""
_MANY = 64
"""Stored values of which it pays to list which are there."""


@dataclass
class CopyReport:
    """What a copy did.

    Attributes:
        groups: Groups made.
        arrays: Arrays copied.
        copied: Stored values, or regions of several, that were copied.
        skipped: Those that an earlier copy had done.
        nbytes: Bytes of the elements in what was copied, decoded.
        notes: What could not be kept as it was, and what it is now.
    """

    groups: int = 0
    arrays: int = 0
    copied: int = 0
    skipped: int = 0
    nbytes: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = counted(self.copied, "part") + " copied" + (f", {self.skipped:,} were there" if self.skipped else "")
        nodes = f"{counted(self.arrays, 'array')} and {counted(self.groups, 'group')}"
        return "\n".join([f"{nodes}: {done}, {size_text(self.nbytes)}", *self.notes])


@dataclass(frozen=True)
class _Options:
    changes: Changes
    resume: bool
    verify: bool


async def copy(
    source: StoreLike,
    dest: StoreLike,
    *,
    source_path: str = "",
    dest_path: str = "",
    zarr_format: int | str | None = None,
    chunks: ChunksLike | Literal["keep", "auto"] = "keep",
    shards: ChunksLike | Literal["keep", "auto"] | None = "keep",
    compressors: CodecsLike = "keep",
    overwrite: bool = False,
    resume: bool = False,
    verify: bool = False,
    progress: bool | Progress = False,
    source_options: Mapping[str, Any] | None = None,
    dest_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> CopyReport:
    """Copy an array, or a group with all below it, in any format to any other.

    Stored values that need no change are copied as they are; others are decoded and written again, within
    ``config.memory_budget``. What the new format has no words for is kept in another way where there is one (names
    of axes as xarray's attribute, filters undone); the report says so.

    Args:
        source: A store, path, URL, mapping, or fsspec filesystem or mapper.
        dest: Likewise.
        source_path: The node to copy.
        dest_path: Where to.
        zarr_format: The format to write; that of the source if none is given.
        chunks: The shape of chunks in all arrays of as many axes; ``"keep"`` for that of the source.
        shards: The shape of shards likewise; ``None`` for none.
        compressors: The compressors of all arrays; ``"keep"`` for those of the source.
        overwrite: Replace what is at the destination.
        resume: Go on with a copy that was interrupted: what is there already is left as it is.
        verify: Read everything again at the end, and compare.
        progress: Show a progress bar, or call this with the bytes done since the last call.
        source_options: Options for the filesystem of a source URL.
        dest_options: Options for the filesystem of a destination URL.
        config: Settings.

    Returns:
        What was done.

    Raises:
        NodeNotFoundError: If there is nothing at the source.
        NodeExistsError: If there is a node at the destination, and ``overwrite`` and ``resume`` are not set; or one
            that is not what an earlier copy made.
        UnsupportedByFormat: If the format can not say what the source holds, such as objects in format 3.
        ShapeError: If no array has as many axes as ``chunks`` or ``shards``.
        MetadataError: If the compressors can not be used.
        ChecksumError: If ``verify`` finds a difference.
    """
    if overwrite and resume:
        raise ValueError("overwrite begins anew, resume goes on: give one of them")
    values, report = settings.resolve(config), CopyReport()
    origin, below = await _source(source, source_path, source_options, values, report.notes)
    store = resolve(dest, dest_options, values)
    wanted = handle_of(origin).format if zarr_format is None else formats.by_name(zarr_format)
    place = NodeHandle(store, normalize_path(dest_path), wanted.for_unknown_store(), values)
    _check_apart(handle_of(origin), place, anew=not (overwrite or resume))
    options = _Options(Changes(chunks, shards, compressors), resume, verify)
    work = partial(_copy_all, [("", origin), *below], place, options, report, overwrite)
    arrays = [node for _, node in (("", origin), *below) if isinstance(node, AsyncArray)]
    for what, given in (("chunks", chunks), ("shards", shards)):
        check_axes(what, given, (array.ndim for array in arrays))
    with report_progress(progress, sum(array.nbytes for array in arrays), f"copy {origin.name}") as tell:
        await run_on_store(partial(work, tell or _silent), origin.store, store)
    return report


def _silent(nbytes: int) -> None:
    """Progress that nobody wants to hear of."""


async def _source(
    store: StoreLike, path: str, options: Mapping[str, Any] | None, values: Config, notes: list[str]
) -> tuple[AsyncArray | AsyncGroup, Sequence[tuple[str, AsyncArray | AsyncGroup]]]:
    """What is to be copied, with all below it. Copies of its metadata may be old, so that they are the last resort."""
    origin = await open(store, path=path, storage_options=options, config=values, use_consolidated=False)
    if not isinstance(origin, AsyncGroup):
        return origin, ()
    try:
        return origin, await origin.members(max_depth=None)
    except UnsupportedOperation as error:
        found = await open(store, path=path, storage_options=options, config=values)
        if not isinstance(found, AsyncGroup) or handle_of(found).consolidated is None:
            raise
        notes.append(f"{found.name}: {error}; what its consolidated metadata names was copied")
        return found, await found.members(max_depth=None)


def _check_apart(source: NodeHandle, dest: NodeHandle, *, anew: bool) -> None:
    """Complain about a copy that would erase what it is made of, or copy itself."""
    (*one, path), (*other, target) = (
        physical_location(source.store, source.path),
        physical_location(dest.store, dest.path),
    )
    if one != other:
        return
    below, above = target.startswith(path), path.startswith(target)
    if above or (below and not anew):
        raise NodeExistsError(
            f"{source.name} in {source.store!r} can not be copied to {dest.name} in {dest.store!r}: one lies in the other",
            path=dest.path,
        )


async def _copy_all(
    nodes: Sequence[tuple[str, AsyncArray | AsyncGroup]],
    place: NodeHandle,
    options: _Options,
    report: CopyReport,
    overwrite: bool,
    tell: Progress,
) -> None:
    if place.format.unread_entry_point is not None and not (overwrite and not place.path):
        place = await run_on_store(place.bind, place.store)
    # Everything is planned before anything is erased or written.
    plans: dict[str, Metadata] = {}
    named = any(isinstance(node, AsyncArray) and node.dimension_names for _, node in nodes)
    for path, node in nodes:
        place.format.check_path(join(place.path, path))
        plans[path] = _planned(node, place.format, options, report, named=named)
    report.notes[:] = dict.fromkeys(report.notes)

    async def make(target: NodeHandle, path: str) -> AsyncArray | AsyncGroup:
        return await _make(target, plans[path], options, overwrite and not path)

    made = await run_on_store(partial(create_levels, place, plans, make), place.store)
    pairs = [(node, target) for path, node in nodes for target in [made[path]] if isinstance(node, AsyncArray)]

    turn = asyncio.Lock()  # what is read or coded anew fills the budget by itself, if it is large

    async def copy_one(pair: tuple[AsyncArray, AsyncArray | AsyncGroup]) -> None:
        node, target = pair
        assert isinstance(target, AsyncArray)
        small = _ARRAYS * node.nbytes <= node.config.memory_budget // 2
        async with nullcontext() if small or alike(node.metadata, target.metadata) else turn:
            await _copy_array(node, target, options, report, tell, fresh=overwrite or options.resume)
        if options.verify:
            await target.refresh()  # what was stored counts, not what was planned
            async with nullcontext() if small else turn:
                await _compare(node, target)

    blocking = place.store.blocking and nodes[0][1].store.blocking
    await for_each(copy_one, pairs, 1 if blocking else _ARRAYS)


def _planned(
    node: AsyncArray | AsyncGroup, target: Format, options: _Options, report: CopyReport, *, named: bool
) -> Metadata:
    """The metadata of a node's copy; where others have named axes, those without any are of xarray's, too."""
    metadata = node.metadata
    planned: Metadata
    if isinstance(metadata, ArrayMetadata):
        own, changes = handle_of(node).format, options.changes
        planned = translate(metadata, node.name, own, target, changes, report.notes, named=named)
        report.arrays += 1
    else:
        planned = GroupMetadata(attributes=metadata.attributes)
        report.groups += 1
    target.render("", planned)  # complains about what the format can not say
    return planned


async def _make(target: NodeHandle, planned: Metadata, options: _Options, overwrite: bool) -> AsyncArray | AsyncGroup:
    """The node at the destination: a new one, or what an earlier copy made."""
    (present,) = await find_all(target, [target.path], (target.format,)) if options.resume else (None,)
    if present is None:
        made = await create_node(target, planned, overwrite=overwrite, erase_leftovers=options.resume)
        return make_node(made, planned)

    def essence(metadata: Metadata) -> Mapping[str, bytes]:
        return target.format.render("", replace(metadata, attributes={}, source=None))

    if essence(planned) != essence(present.metadata):
        raise NodeExistsError(
            f"{target.name} in {target.store!r} is not what this copy would make; pass overwrite=True to replace it",
            path=target.path,
            store=repr(target.store),
        )
    if planned.attributes != present.metadata.attributes:  # the earlier copy may have ended between the two
        for key, data in target.format.render(target.path, planned).items():
            await target.store.put(key, data)
    return make_node(replace(target, is_format_known=True), planned)


# ------------------------------------------------------------------ copying


async def _copy_array(
    source: AsyncArray, target: AsyncArray, options: _Options, report: CopyReport, tell: Progress, *, fresh: bool
) -> None:
    if alike(source.metadata, target.metadata):
        there = await stored_chunks(target) if options.resume else set()
        await _copy_values(source, target, there, report, tell)
        return
    done = IngestReport()
    only = await _with_values(source, target, fresh=fresh)
    work = Ingestion(source_of(source, {}), target, None, "allow", done, only=only)
    await work.run(tell, resume=options.resume, fresh=fresh, verify=False)
    report.copied += done.blocks
    report.skipped += done.skipped
    report.nbytes += done.nbytes


async def _with_values(source: AsyncArray, target: AsyncArray, *, fresh: bool) -> set[tuple[int, ...]] | None:
    """Which of the target's values to store: those of which the source stores something. All of them if it can not list.

    Of others the elements tell that they hold the fill value, which takes its time where most are such. Where it is
    undefined they do not tell, as what is absent reads as values like any other.
    """
    own, other = source.metadata.spec, target.metadata.spec
    grid = target.metadata.grid
    many = grid.size > _MANY and repr(own.fill_value) == repr(other.fill_value)
    if target.config.write_empty_chunks or not (other.undefined or many):
        return None
    try:
        stored = await stored_chunks(source)
        there = set() if fresh or other.undefined else await stored_chunks(target)  # which may have to be erased
    except UnsupportedOperation:
        return None
    found = set(filter(grid.__contains__, there))
    axes, shape = source.metadata.grid.axes, source.shape
    for at in filter(source.metadata.grid.__contains__, stored):
        starts = tuple(axis.start(i) for i, axis in zip(at, axes, strict=True))
        sizes = (axis.size(i) for i, axis in zip(at, axes, strict=True))
        stops = tuple(min(a + size, n) for a, size, n in zip(starts, sizes, shape, strict=True))
        found.update(touched_chunks(tuple(map(slice, starts, stops)), target.metadata.grid))
    return found


async def _copy_values(
    source: AsyncArray, target: AsyncArray, there: set[tuple[int, ...]], report: CopyReport, tell: Progress
) -> None:
    """Copy stored values as they are."""
    origin, dest = chunks_of(source), chunks_of(target)
    blocking = origin.store.blocking and dest.store.blocking
    count = 1 if blocking else min(origin.concurrency, dest.concurrency)
    grid, each = source.metadata.grid, source.metadata.chain.nbytes
    # What is absent is a defined value in the source, and anything to some readers of the target.
    absent = (
        source.metadata.chain.encode_fill_chunk()
        if target.metadata.spec.undefined > source.metadata.spec.undefined
        else None
    )
    fetched = 0

    async def copy_one(coords: tuple[int, ...]) -> None:
        nonlocal fetched
        async with origin.budget(each):
            wanted = [Request(origin.key(coords))]
            (value,) = await run_on_store(partial(origin.store.fetch, wanted), origin.store)
            data = absent if value is None else value.data
            if data is not None:
                await run_on_store(partial(dest.store.put, dest.key(coords), data), dest.store)
                fetched += 1

    coords = lazy_product([range(n) for n in grid.shape])
    while batch := list(islice(coords, _BATCH)):
        missing = [at for at in batch if at not in there]
        await for_each(copy_one, missing, count)
        report.skipped += len(batch) - len(missing)
        report.copied += fetched
        report.nbytes += fetched * each
        fetched = 0
        tell(len(batch) * each)


async def _compare(source: AsyncArray, target: AsyncArray) -> None:
    """Complain if the copy does not read as the source does."""
    most = source.config.memory_budget // 8 // (target.dtype.itemsize or 16)
    for region in plan_blocks(target.metadata.grid, source.metadata.write_chunks, most):
        one, other = [await array.view[(*region, ...)].read() for array in (source, target)]
        if not _same(one, other):
            spot = ", ".join(f"{s.start}:{s.stop}" for s in region)
            raise ChecksumError(
                f"{target.name}[{spot}] in {target.store!r} differs from {source.name} in {source.store!r}"
            )


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.dtype.kind in "TO":
        return bool(one.shape == other.shape and one.astype(object).tolist() == other.astype(object).tolist())
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
