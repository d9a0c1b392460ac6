"""Bulk ingestion: blocks of a source into an array, side by side, within the memory budget, again where it was interrupted."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import _bridge, dtypes, fills, formats, transfer
from zarrasync import config as settings
from zarrasync._calls import Tally
from zarrasync._runtime import aside, cancel_flag, drive, driven, thread_lock
from zarrasync.alignment import Unaligned, check_region, check_unaligned, is_safe_for_jobs
from zarrasync.array import AsyncArray
from zarrasync.blocks import Region, bounds, corners, cut_into_units, plan_blocks, units
from zarrasync.conventions import Described, reworded
from zarrasync.creation import check_options, check_same, plan_array
from zarrasync.errors import ChecksumError, MetadataError, NodeNotFoundError, NodeTypeError, ShapeError
from zarrasync.formats import Format
from zarrasync.hierarchy import create_array
from zarrasync.info import DIMENSIONS
from zarrasync.keys import normalize_path
from zarrasync.lineage import refuse_own_source
from zarrasync.node import on_store
from zarrasync.opening import ConfigLike, Mode, open_array_at, open_or_create, place_of
from zarrasync.progress import IngestReport, reporting
from zarrasync.regions import in_c_order
from zarrasync.sources import Source, in_threads, opened, pair_of, source_of
from zarrasync.stores import CountingStore, StoreLike, resolve
from zarrasync.transfer.common import side_by_side
from zarrasync.transfer.jobs import Job, Progress, run_jobs

__all__ = ["Ingestion", "checksum", "creation_of", "ingest"]

Block: TypeAlias = npt.NDArray[Any]
_NUMBERS = "biufcmM"
"""Kinds of types of which NumPy says what fits into what."""
_SAME = ("chunks", "shards", "dtype")
"""Parameters of which an array that is there has to be."""
_PLANNED = ("filters", "serializer", "compressors", "fill_value", "order", "attributes", "dimension_names")
"""Parameters that have to make sense, though what is there stays as it is."""
_AT_ONCE = 8
"""Blocks on their way to a store behind a network, at the most."""


async def ingest(
    source: Any,
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "a",
    region: tuple[slice, ...] | None = None,
    unaligned: Unaligned | None = None,
    verify: bool = False,
    concurrency: int = 0,
    progress: bool | Progress = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **options: Any,
) -> IngestReport:
    """Write all of a source into an array, block by block; a run that was interrupted is gone on with.

    Blocks are made of whole chunks (shards where there are such), several are read, encoded and stored at a time, and
    what is in flight stays within ``config.memory_budget``. A chunk is stored whole or not at all, so that what is
    there counts as done: with ``mode="a"`` another run writes only what is missing. That is wrong where something else
    has stored a part of a chunk: an assignment, or blocks and regions which cut chunks in a run with other ones.
    ``mode="r+"`` writes all again then, and ``verify`` finds such chunks. Of blocks that hold nothing but the fill value
    nothing is stored, so that another run makes them again.

    Args:
        source: What to write: anything with ``shape``, ``dtype`` and indexing (a NumPy, h5py or dask array, an array of
            zarrasync or zarr-python, xarray's variables; what blocks of dask share is computed for each of them, which
            ``integrations.dask.store`` does once); the path of an ``.npy`` file, or the path or URL of an array; a function that makes the block
            of a region, given as a tuple of slices; or an iterable of pairs of such a region and its block. Functions
            and iterables may be asynchronous; they need ``shape`` and ``dtype`` among the options.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        mode: ``"a"`` goes on with what is there, or creates; ``"w"`` replaces, ``"w-"`` creates only, ``"r+"`` writes
            into an array that is there, whatever it holds.
        region: Where in the array to write, as a tuple of slices of the source's shape; all of it if none is given.
        unaligned: What to do where the region cuts chunks, which somebody else may be writing, too: ``"safe"`` allows
            it where the store can compare what it replaces, ``"error"`` never, ``"allow"`` always. The settings' if
            not given.
        verify: Read everything again at the end, and compare. Values that the array's data type changes are an error,
            too, unless the source has a type and another one is among the options.
        concurrency: Blocks at a time; as many as suit the store if 0.
        progress: Show a progress bar, or call this with the bytes done since the last call.
        storage_options: Options for the filesystem of a URL.
        config: Settings.
        **options: For creating, as for ``create_array``; shape, data type, names of axes and attributes are the
            source's if they are not given, and so are the chunks and shards of one in Zarr.

    Returns:
        What was done.

    Raises:
        ShapeError: If the source does not fit the array or the region, or the region cuts chunks that may be shared.
        NodeNotFoundError: If there is no array for ``"r+"`` or a region.
        NodeExistsError: If there is a node and the mode is ``"w-"``.
        ChecksumError: If ``verify`` finds a difference.
        WriteConflictError: If others kept changing a chunk.
    """
    begin, report, tally = time.monotonic(), IngestReport(), Tally()
    if unaligned is not None:
        check_unaligned(unaligned)
    if isinstance(source, str | Path) and not str(source).endswith(".npy"):
        source = await opened(source)
    given = source_of(source, options)
    given.converts = given.typed and options.get("dtype") is not None
    counting = CountingStore(resolve(store, storage_options, config))
    if mode == "w":
        refuse_own_source(counting.inner, normalize_path(path), source)
    target, made = await _target(given, counting, path, mode, region, config, options)
    opening = counting.reset()
    work = Ingestion(given, target, region, unaligned or target.config.unaligned, report, concurrency)
    rows = given.shape[0] if given.shape else 0
    with tally, reporting(progress, work.nbytes, f"ingest {target.name}", rows) as tell:
        resume = mode == "a" and not made
        await work.run(tell or _silent, resume=resume, fresh=mode in ("a", "w"), verify=verify)
    counts = counting.reset()
    report.stored, report.requests = counts.bytes_written, opening.requests + counts.requests
    report.retries, report.conflicts = tally.retries, tally.conflicts
    report.seconds = time.monotonic() - begin
    return report


def _silent(nbytes: int) -> None:
    """Progress that nobody wants to hear of."""


async def _target(
    source: Source,
    store: CountingStore,
    path: str,
    mode: Mode,
    region: tuple[slice, ...] | None,
    config: ConfigLike,
    options: dict[str, Any],
) -> tuple[AsyncArray, bool]:
    """The array to write to, and whether it was made, so that nothing that is there comes from an earlier run."""
    if mode not in ("a", "w", "w-", "r+"):
        raise ValueError(f"mode is 'a', 'w', 'w-' or 'r+' for writing, found {mode!r}")

    everything = (slice(None),) * len(source.shape)

    def planned() -> dict[str, Any]:
        if region is not None and region not in (everything, [*everything]):
            raise NodeNotFoundError(
                f"a region is written into an array that is there, and stays: create {node.name} in {store.inner!r} first"
            )
        return creation_of(source, options, config)

    node, _ = place_of(store, path, options.get("zarr_format"), None, config)
    if mode in ("w", "w-"):
        return await create_array(store, path=path, overwrite=mode == "w", config=config, **planned()), True
    try:
        if mode == "r+":
            found, made = await open_array_at(node, formats.CANDIDATES), False
        else:  # of one that was erased chunks may be left
            found, made = await open_or_create(node, formats.CANDIDATES, planned, clear=True)
    except NodeTypeError as error:
        if error.found != "group":
            raise
        raise NodeTypeError(
            f"there is a group at {node.name} in {store.inner!r}; name a path below it for the array, or replace it with "
            "mode='w'",
            path=node.path,
            found="group",
            wanted="array",
        ) from error
    if not made:
        _check_fits(source, found, options)
    return found, made


def creation_of(source: Source, options: Mapping[str, Any], config: ConfigLike = None) -> dict[str, Any]:
    """What a new array for a source is created with.

    Raises:
        ShapeError: If the options name another shape than the source's.
    """
    given = {name: value for name, value in options.items() if name != "dtype" or value is not None}
    wanted = options.get("zarr_format")
    written = formats.by_name(settings.resolve(config).zarr_format if wanted is None else wanted)
    told = {**_described(source, options, written), **_laid_out(source, options, written)}
    planned = {"dtype": source.dtype, **told, **given}
    if planned.get("shape") not in (None, source.shape, [*source.shape], *source.shape[:1]):
        raise ShapeError(f"the source has shape {source.shape}, not {options['shape']}", found=source.shape)
    return {**planned, "shape": source.shape}


def _check_fits(source: Source, found: AsyncArray, options: Mapping[str, Any]) -> None:
    """Complain about an array that is there, but none for the source."""
    _check_options(found, options)
    if options.get("dtype") is not None:  # whoever names it wants values as that
        return
    own = dtypes.from_numpy(source.dtype).numpy
    numbers = own.kind in _NUMBERS and found.dtype.kind in _NUMBERS
    if numbers and not np.can_cast(own, found.dtype, "same_kind"):
        raise NodeTypeError(
            f"values of type {source.dtype} do not fit {found.name}, which has type {found.dtype}; convert them first",
            path=found.path,
            found=str(source.dtype),
            wanted=str(found.dtype),
        )


def _check_options(found: AsyncArray, options: Mapping[str, Any]) -> None:
    """Complain about options that would have made another array; attributes and codecs stay those that are there."""
    check_options(set(options) - {"zarr_format"})
    own, wanted = found._node.format, options.get("zarr_format")
    if wanted is not None and not formats.by_name(wanted).is_same(own):
        raise NodeTypeError(
            f"{found.name} is there in Zarr format {own.zarr_format!r}, not {wanted!r}",
            path=found.path,
            found=str(own.zarr_format),
            wanted=str(wanted),
        )
    check_same(found.metadata, found.name, **{name: options[name] for name in _SAME if name in options})
    parameters = {name: value for name, value in options.items() if name in _PLANNED and value is not None}
    if not parameters or (found.dtype.kind == "O" and "filters" not in parameters):  # objects need one to be planned
        return
    planned = plan_array(own, shape=found.shape, dtype=found.metadata.dtype, **parameters)
    if "fill_value" in parameters and not _alike(planned.spec.fill_value, found.metadata.spec.fill_value):
        raise MetadataError(
            f"{found.name} is there with the fill value {found.fill_value!r}, not {options['fill_value']!r}"
        )


def _alike(one: Any, other: Any) -> bool:
    """Whether two fill values are the same; NaN is."""
    return repr(one) == repr(other)


def _laid_out(source: Source, options: Mapping[str, Any], written: Format) -> dict[str, Any]:
    """The chunks and shards of an array in Zarr, as far as the format that is written has such, and none are given."""
    kept = {} if "chunks" in options else dict(source.layout)
    if not written.has_shards:
        kept.pop("shards", None)
    shards = options.get("shards")
    sizes = [shards] if isinstance(shards, int) else shards if isinstance(shards, tuple | list) else ()
    if kept and any(n % max(chunk, 1) for n, chunk in zip(sizes, kept["chunks"], strict=False)):
        return {}  # they are no parts of such shards
    return kept


def _described(source: Source, options: Mapping[str, Any], written: Format) -> dict[str, Any]:
    """What a source says of itself, in the words of the format that is written."""
    told = source.described
    if "attributes" not in told:
        return {}
    dtype = dtypes.from_numpy(options.get("dtype") or source.dtype)
    try:
        fill = fills.as_fill(dtype, told.get("fill_value"))
    except MetadataError:  # one of another type, which the values had before
        fill = None
    names = options.get("dimension_names", told.get("dimension_names"))
    chosen = "fill_value" in options  # then it means what it is
    own = Described(dtype, told["attributes"], names, fill, written.has_undefined_fill if chosen else source.masks)
    found = reworded(own, len(source.shape), written)
    described: dict[str, Any] = {"attributes": found.attributes}
    if found.names is not None:
        described["dimension_names"] = found.names
    if found.fill is not None or (written.has_undefined_fill and found.attributes.get(DIMENSIONS) is not None):
        described["fill_value"] = found.fill
    return described


# ------------------------------------------------------------------ the work


class Ingestion:
    """One ingestion: which blocks, and what happened to them.

    Args:
        source: What is written.
        target: Where to.
        region: The part of the target that the source is for; all of it if not given.
        unaligned: What to do about chunks that the region cuts.
        report: Where to count.
        concurrency: Blocks at the same time; 0: as many as suit the store.
        only: The grid coordinates of the stored values to write; all if not given.

    Raises:
        ShapeError: If the source does not fit.
    """

    def __init__(
        self,
        source: Source,
        target: AsyncArray,
        region: tuple[slice, ...] | None,
        unaligned: Unaligned,
        report: IngestReport,
        concurrency: int = 0,
        only: Collection[tuple[int, ...]] | None = None,
    ) -> None:
        self.source, self.target, self.report, self.concurrency = source, target, report, concurrency
        self.only = only
        self.start, self.stop = bounds(source.shape, target.shape, region)
        self.nbytes = math.prod(source.shape) * max(target.dtype.itemsize, 1)
        self._unaligned = unaligned
        self._compared: bool | None = None
        self._check()
        self._sums: dict[tuple[tuple[int, int], ...], int] = {}
        self._mutex = thread_lock()
        self._there: set[tuple[int, ...]] = set()

    async def run(self, tell: Progress, *, resume: bool, fresh: bool, verify: bool) -> None:
        """Write all blocks.

        Args:
            tell: Called as bytes are done.
            resume: Leave out what is there.
            fresh: Whether no chunk that is written can be there yet (all was erased, or what is there is left out), so
                that those of nothing but the fill value need not be erased.
            verify: Read everything again at the end, and compare.
        """
        self.tell, self.keep_sums = tell, verify
        self.absent = fresh and self.source.pairs is None  # whose regions may come twice
        if resume:
            # Of a chunk that the region cuts the others' part may be what is there.
            cut = units(self.target.metadata, self.start, self.stop, cut=True)
            self._there = await self.target._stored() - set(cut)
        await self._each(self._write_now, self._write)
        if verify:
            await self.target.refresh()
            regions = [tuple(slice(a, b) for a, b in spot) for spot in self._sums]
            await self._each(self._compare_now, self._compare, regions)

    # -------------------------------------------------------------- side by side

    async def _each(
        self,
        now: Callable[[Region, Any], None],
        later: Callable[[Region, Any], Awaitable[None]],
        regions: Iterable[Region] | None = None,
    ) -> None:
        """Do something with each block: on threads where nothing waits for a loop, else in tasks."""
        blocking = self.target.store.blocking
        if driven() or (blocking and not self.source.asynchronous):
            await on_store(partial(self._on_threads, now, regions), self.target.store)
        else:
            await self._on_loop(later, regions)

    async def _on_threads(self, work: Callable[[Region, Any], None], regions: Iterable[Region] | None) -> None:
        settings = self.target.config
        threads = self.concurrency or settings.pool_size
        if regions is None and self.source.pairs is not None:
            run_jobs(self._pair_jobs(work), settings, cancel_flag(), threads)
            return
        if regions is None:
            threads = self._in_memory(threads)
        planned = list(self._regions(threads) if regions is None else regions)
        if len(planned) <= threads:  # a write shares its chunks itself
            for region in planned:
                work(region, None)
            return
        jobs: Iterator[Job] = (partial(work, region, None) for region in planned)
        run_jobs(jobs, settings, cancel_flag(), threads)

    def _pair_jobs(self, work: Callable[[Region, Any], None]) -> Iterator[Job]:
        """Jobs of blocks as they come, each when there is room for it."""
        given: Any = self.source.pairs
        pairs = _bridge.iterate(given, blocking=False) if self.source.asynchronous else iter(given)
        room, taken, given_back = self._room, 0, threading.Condition()

        def begun(item: Any) -> Job:
            nonlocal taken
            held = [pair_of(item)]  # threads that wait for their next job have the last one in their hands
            size = self._size_of(held[0])
            with given_back:
                given_back.wait_for(lambda: not taken or taken + size <= room)
                taken += size

            def job() -> None:
                nonlocal taken
                try:
                    work(*held.pop())
                finally:
                    with given_back:
                        taken -= size
                        given_back.notify()

            return job

        yield from map(begun, pairs)

    async def _on_loop(self, work: Callable[[Region, Any], Awaitable[None]], regions: Iterable[Region] | None) -> None:
        if regions is None and self.source.pairs is not None:
            await self._pairs_on_loop(work, self.concurrency or _AT_ONCE)
            return

        async def one(region: Region) -> None:
            await work(region, None)

        count = self._in_memory(self.concurrency or _AT_ONCE)
        await side_by_side(one, self._regions(count) if regions is None else regions, count)

    async def _pairs_on_loop(self, work: Callable[[Region, Any], Awaitable[None]], count: int) -> None:
        """Take blocks as they come, and no more of them than are worked on, and there is room for."""
        pairs: Any = self.source.pairs
        source = aiter(pairs) if self.source.asynchronous else in_threads(iter(pairs))
        running: dict[asyncio.Future[None], int] = {}
        try:
            async for item in source:
                size = self._size_of(pair := pair_of(item))
                while running and (len(running) >= count or sum(running.values()) + size > self._room):
                    for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                        del running[task]
                        task.result()
                running[asyncio.ensure_future(work(*pair))] = size
                del item, pair
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    # -------------------------------------------------------------- one block

    def _size_of(self, pair: tuple[Region, Any]) -> int:
        return self._size(self._place(pair[0]))

    @property
    def _room(self) -> int:
        """Bytes of blocks in memory at a time, so that what encodes them has its part of the budget, too."""
        return max(1, 3 * self.target.config.memory_budget // 4)

    def _in_memory(self, count: int) -> int:
        """How many of the smallest blocks that are written whole to have at a time."""
        unit = max(self.target.metadata.chain.nbytes, 1)
        return count if self.source.instant else max(1, min(count, self._room // unit))

    def _regions(self, at_once: int) -> Iterator[Region]:
        metadata, limit = self.target.metadata, self.target.config.memory_budget // (4 * at_once)
        for region in plan_blocks(metadata, self.source.chunks, limit, self.start, self.stop, at_once):
            if not self._there and self.only is None:
                yield region
                continue
            parts = dict(cut_into_units(metadata, region))
            wanted = [at for at in parts if self.only is None or at in self.only]
            there = sum(at in self._there for at in wanted)
            if len(wanted) == len(parts) and there in (0, len(parts)):
                yield region
                continue
            self.tell(self._size(region) - sum(self._size(parts[at]) for at in wanted))
            yield from (parts[at] for at in wanted)

    def _of_source(self, region: Region) -> Region:
        """A region of the array as one of the source."""
        return tuple(slice(s.start - a, s.stop - a) for s, a in zip(region, self.start, strict=True))

    def _place(self, region: Any) -> Region:
        """The region of the array that one of the source goes to."""
        parts = region if isinstance(region, tuple) else (region,)
        if len(parts) != len(self.source.shape) or not all(isinstance(s, slice) for s in parts):
            raise ShapeError(f"a block's region is a tuple of {len(self.source.shape)} slices, found {region!r}")
        found = []
        for s, n, offset in zip(parts, self.source.shape, self.start, strict=True):
            begin, end, step = s.indices(n)
            if step != 1:
                raise ShapeError(f"a block's region has no steps, found {region!r}")
            found.append(slice(begin + offset, max(begin, end) + offset))
        return tuple(found)

    def _is_there(self, region: Region) -> bool:
        """Whether an earlier run has stored all of a block: others' parts of chunks that it cuts do not tell."""
        if not self._there:
            return False
        cut = units(self.target.metadata, *corners(region), cut=True)
        return not cut and all(at in self._there for at in units(self.target.metadata, *corners(region)))

    def _begin(self, region: Region, given: Any) -> tuple[Region, bool, bool]:
        """Where a block goes, whether its values are wanted, and whether they are to be written."""
        place = region if given is None else self._place(region)
        if not self._is_there(place):
            return place, True, True
        with self._mutex:
            self.report.skipped += 1
        self.tell(self._size(place))
        return place, self.keep_sums, False  # to compare it, it takes the source's values

    def _size(self, region: Region) -> int:
        count: int = math.prod(s.stop - s.start for s in region)
        return count * max(self.target.dtype.itemsize, 1)

    def _ready(self, region: Region, given: Any) -> Block:
        """A block as the array has it."""
        shape = tuple(s.stop - s.start for s in region)
        block = transfer.as_array(given, self.target.dtype, self.target.metadata.spec.fill_value)
        if block.shape != shape:
            raise ShapeError(f"the block of {_shown(region)} has shape {block.shape}, not {shape}", found=block.shape)
        if self.keep_sums:
            block = transfer.cast(block, self.target.dtype)
            if not self.source.converts:
                transfer.check_kept(given, block)
            with self._mutex:
                self._sums[tuple((s.start, s.stop) for s in region)] = checksum(block)
        return block

    def _note(self, region: Region) -> None:
        with self._mutex:
            self.report.blocks += 1
            self.report.nbytes += self._size(region)
        self.tell(self._size(region))

    def _write_now(self, region: Region, given: Any) -> None:
        place, wanted, missing = self._begin(region, given)
        if not wanted:
            return
        block = self._ready(place, self.source.get_now(self._of_source(place)) if given is None else given)
        if missing:
            drive(self._store(place, block))
            self._note(place)

    async def _write(self, region: Region, given: Any) -> None:
        place, wanted, missing = self._begin(region, given)
        if not wanted:
            return
        found = await self.source.get(self._of_source(place)) if given is None else given
        fit, dtype = partial(self._ready, place, found), self.target.dtype
        block = await (aside(fit) if self.keep_sums else transfer.beside(fit, found, dtype))
        if missing:
            await self._store(place, block)
            self._note(place)

    def _check(self) -> None:
        """Complain about chunks that the region cuts: at first, and if it turns out that the store can not compare."""
        compared = is_safe_for_jobs(self.target.store)
        if compared is not self._compared:
            check_region(self.target, self.start, self.stop, self._unaligned, safe=compared)
            self._compared = compared

    def _check_pair(self, place: Region) -> None:
        """Complain about chunks that a block cuts which was given with its place."""
        check_region(self.target, *corners(place), self._unaligned, safe=is_safe_for_jobs(self.target.store))

    async def _store(self, place: Region, block: Block) -> None:
        target = self.target
        where = target.view[place]._transform
        check = self._check if self.source.pairs is None else partial(self._check_pair, place)
        await transfer.write(target._chunks, where, block, absent=self.absent, check=check)

    def _compare_now(self, region: Region, _: Any) -> None:
        self._judge(region, drive(self.target.view[region].read()))

    async def _compare(self, region: Region, _: Any) -> None:
        found = await self.target.view[region].read()
        await aside(partial(self._judge, region, found))

    def _judge(self, region: Region, found: Block) -> None:
        block = transfer.as_array(found, self.target.dtype, self.target.metadata.spec.fill_value)
        own = tuple((s.start, s.stop) for s in region)
        if checksum(block) != self._sums[own]:
            if self._came_again(own):
                return
            raise ChecksumError(
                f"{self.target.name}[{_shown(region)}] in {self.target.store!r} is not what was written there"
            )
        with self._mutex:
            self.report.verified += 1

    def _came_again(self, own: tuple[tuple[int, int], ...]) -> bool:
        """Whether a part of a block was written again, by another block that an iterable gave."""
        overlap = (
            all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(own, other, strict=True))
            for other in self._sums
            if other != own
        )
        return self.source.pairs is not None and any(overlap)


def checksum(block: Block) -> int:
    """What tells blocks of one data type apart."""
    from crc32c import crc32c

    data: Any
    if block.dtype.kind in "TO":
        data = repr([_plain(value) for value in block.astype(object).reshape(-1)]).encode()
    else:
        data = in_c_order(block).reshape(-1).view(np.uint8)
    return crc32c(data)


def _plain(value: Any) -> Any:
    """An object of an array whose ``repr`` says all of it: arrays leave out what is in their middle."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _shown(region: Region) -> str:
    return ", ".join(f"{s.start}:{s.stop}" for s in region)
