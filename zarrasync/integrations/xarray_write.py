"""xarray writes through zarrasync: what ``zarrasync.integrations.xarray.write_dataset`` does."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from xarray import Dataset, Variable
from xarray.backends.zarr import FillValueCoder, encode_zarr_attr_value
from xarray.conventions import decode_cf_variable, encode_dataset_coordinates

import zarrasync as za
from zarrasync import config as settings
from zarrasync import formats, sync
from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.gather import gather, gather_all
from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync._concurrency.shield import run_cleanup
from zarrasync.bulk.blocks import for_job, write_blocks
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport
from zarrasync.errors import NodeExistsError, NodeNotFoundError, ShapeError
from zarrasync.formats import Format
from zarrasync.indexing.regions import resolve_corners
from zarrasync.integrations.xarray_encode import (
    alike,
    are_lossless,
    as_stored,
    fitting,
    inherited,
    lossless,
    without_nan,
)
from zarrasync.integrations.xarray_regions import Wanted, located
from zarrasync.integrations.xarray_stored import FILL, FILTERS, stored_variable
from zarrasync.metadata.conventions import DIMENSIONS
from zarrasync.metadata.create import attributes_of, plan_array
from zarrasync.model.chunk_keys import join, normalize_path
from zarrasync.nodes.access import chunks_of, give_back_rows, handle_of, reserve_rows, with_handle
from zarrasync.nodes.consolidated import Consolidated
from zarrasync.nodes.group import AsyncGroup
from zarrasync.stores import CountingStore, Store
from zarrasync.transfer.unaligned import Unaligned, check_region, is_safe_for_jobs

__all__ = ["leaving_room", "write"]

T = TypeVar("T")
Place: TypeAlias = tuple[slice, ...]
"""Where in an array something goes."""

_CATCH_UP = 10.0
"""Seconds in which another writer makes all variables longer, once it has begun to."""
_CREATING = ("chunks", "shards", "compressors", "filters", "serializer", "fill_value", "order", "chunk_key_encoding")
_ENCODINGS = frozenset(
    {
        *_CREATING,
        "compressor",
        FILTERS,
        "write_empty_chunks",
        "dtype",
        "preferred_chunks",
        "coordinates",
        "grid_mapping",
        "dimension_names",
    }
)
"""Encodings that are left when xarray's coders have taken theirs."""


async def write(
    dataset: Dataset,
    store: Store,
    *,
    group: str,
    mode: str,
    append_dim: str | None,
    region: Wanted | None,
    encoding: Mapping[str, Mapping[str, Any]],
    zarr_format: Literal[2, 3] | None,
    consolidated: bool | None,
    verify: bool,
    config: Any,
) -> dict[str, IngestReport]:
    """Write a dataset; see ``write_dataset``."""
    unknown = sorted(set(encoding) - set(map(str, dataset.variables)))
    if unknown:
        raise ValueError(f"the encoding names {unknown[0]!r}, which is no variable of the dataset")
    if strange := [name for name in (*dataset.variables, *dataset.dims) if not isinstance(name, str)]:
        raise TypeError(f"variables and dimensions have texts for names where they are stored; found {strange[0]!r}")
    found = await _group(store, group, mode, zarr_format, config) if mode in ("a", "r+") else None
    spoken = formats.by_name(zarr_format or 3) if found is None else handle_of(found).format
    if spoken.zarr_format not in (2, 3):
        raise ValueError(f"datasets are written in the formats 2 and 3, not {spoken.zarr_format!r}")
    arrays = {} if found is None else dict(await found.arrays())
    into = append_dim is not None or region is not None
    if into and found is not None and handle_of(found).consolidated is not None:
        # Copies of metadata may be older than an array that another program has put there.
        arrays = {name: _on(array, consolidated=None) for name, array in arrays.items()}
        await gather([array.refresh for name, array in arrays.items() if name in dataset.variables])
    present = await run_in_new_thread(partial(_present, arrays, dataset.variables))
    place: dict[str, slice] | None = None
    if region is not None:
        dataset, place = await run_in_new_thread(partial(located, dataset, region, present))
    variables, attributes = encode_dataset_coordinates(dataset)
    work = _Work(spoken, store, group, arrays, append_dim, place, verify, config)
    names = [str(name) for name in variables]
    # All is looked at before anything is changed.
    for name in names:
        normalize_path(join(group, name))
    # Values that are scaled, or made text of, are so here and now, which would hold up an event loop.
    plans = await run_in_new_thread(
        lambda: [work.plan(name, variables[name], encoding.get(name), present.get(name)) for name in names]
    )
    for plan in plans:
        if not plan.joins and mode != "w-":
            path = group if mode == "w" else join(group, plan.name)
            refuse_self_overwrite(store, path, plan.encoded)
    if any(_is_dask(plan.encoded.data) for plan in plans):
        from zarrasync.integrations.dask import check_reach

        await compute(partial(check_reach, store))  # not on a loop, which may be the client's
    _check_sizes(plans, present, append_dim)
    _check_rows(plans, present, append_dim)
    attributes = attributes_of(_plain(attributes))
    if found is not None:
        await _check_names(found, [plan.name for plan in plans if plan.name not in present])
    # For what is made anew not as a format that is known: there may be nodes of another one.
    known = spoken.zarr_format if mode == "a" else None
    own = replace(settings.resolve(config), zarr_format=spoken.zarr_format)
    node = found or await za.open_group(store, path=group, mode=cast("Any", mode), zarr_format=known, config=own)
    copies = work.copies = handle_of(node).consolidated
    work.node, work.erased = with_handle(node, replace(handle_of(node), consolidated=None)), mode == "w"
    reserved: list[tuple[za.AsyncArray, int, int, int]] = []
    try:
        places = await work.prepare(plans, reserved)
        if mode != "r+":  # now that nothing is refused any more
            await node.update_attributes(attributes)
        reports = await work.fill(plans, places)
    except BaseException:
        for array, axis, start, stop in reversed(reserved):
            await run_cleanup(partial(give_back_rows, array, axis, start, stop))
        raise
    if not spoken.has_dimension_names if consolidated is None else consolidated:
        await za.consolidate_metadata(store, path=group, zarr_format=node.zarr_format, config=config)
    elif copies is not None:
        await work.note(plan for plan in plans if plan.joins)
    await _refresh_above(node, store, group, config)
    return dict(zip(names, reports, strict=True))


_filters = thread_lock()
"""Held by who has changed the process's filters of warnings: another thread would put them back as it has found them."""


@contextmanager
def _without_notice() -> Iterator[None]:
    """Times may be stored in other units than those that they come with."""
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Times can't be serialized", UserWarning)
        yield


@contextmanager
def leaving_room(dataset: Any) -> Iterator[None]:
    """Where this is a task of a cluster of dask's, its place is for those that it waits for."""
    distributed: Any = sys.modules.get("distributed")
    lazy = isinstance(dataset, Dataset) and any(_is_dask(variable._data) for variable in dataset.variables.values())
    if distributed is None or not lazy or not _in_task(distributed):
        yield
        return
    distributed.secede()
    try:
        yield
    finally:
        distributed.rejoin()


def _in_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _check_sizes(plans: Sequence[Plan], present: Mapping[str, Variable], append_dim: str | None) -> None:
    """Complain about a variable that is new, or replaces one, and does not fit the others as they will be."""
    replaced = {plan.name for plan in plans if not plan.joins}
    rows = {(plan.name, append_dim): plan.encoded.sizes[append_dim] for plan in plans if plan.length is not None}
    sizes = {
        str(dim): (n + rows.get((name, str(dim)), 0), name)
        for name, variable in present.items()
        if name not in replaced
        for dim, n in variable.sizes.items()
    }
    for plan in plans:
        for dim, n in () if plan.joins else plan.encoded.sizes.items():
            there, whose = sizes.get(str(dim), (n, ""))
            if there != n:
                raise ShapeError(
                    f"{plan.name} has {n} elements along {dim!r}, where {whose} has {there} in the store"
                    f"{' then' if dim == append_dim else ''}; mode='w' replaces all variables",
                    found=(n,),
                    wanted=(there,),
                )


def _check_rows(plans: Sequence[Plan], present: Mapping[str, Variable], append_dim: str | None) -> None:
    """Complain if only some variables become longer, so that nobody could read the dataset any more."""
    rows = {plan.name: plan.encoded.sizes[append_dim] for plan in plans if plan.length is not None}
    there = {name: variable.sizes[append_dim] for name, variable in present.items() if append_dim in variable.dims}
    lengths = {name: n + rows.get(name, 0) for name, n in there.items()}
    left = sorted(there.keys() - rows.keys())
    if rows and left and len(set(lengths.values())) > 1:
        raise ShapeError(
            f"{', '.join(left)} would stay shorter along {append_dim!r} than {', '.join(sorted(rows))}, and the dataset "
            "could not be read; append to all of its variables at once"
        )


async def _check_names(group: AsyncGroup, names: Sequence[str]) -> None:
    """Complain about groups that have the names of variables, which would be replaced with all that is in them."""
    for name, node in zip(names, await gather([partial(group.get, name) for name in names]), strict=True):
        if isinstance(node, AsyncGroup):
            raise NodeExistsError(f"{node.name} in {group.store!r} is a group; a variable {name!r} can not go there")


async def _refresh_above(node: AsyncGroup, store: Store, group: str, config: Any) -> None:
    """Groups above that hold copies of all metadata below them get those of what was written, too."""
    while group:
        group = group.rpartition("/")[0]
        try:
            above = await za.open_group(store, path=group, zarr_format=node.zarr_format, config=config)
        except NodeNotFoundError:
            continue
        if handle_of(above).consolidated is not None:
            await za.consolidate_metadata(store, path=group, zarr_format=node.zarr_format, config=config)


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON can hold them."""
    encode: Any = encode_zarr_attr_value  # it has no types
    return {str(name): encode(value) for name, value in attributes.items()}


async def _group(
    store: Store, group: str, mode: str, zarr_format: Literal[2, 3] | None, config: Any
) -> AsyncGroup | None:
    """The group that is there, if it need not be."""
    try:
        return await za.open_group(store, path=group, mode="r+", zarr_format=zarr_format, config=config)
    except NodeNotFoundError:
        if mode == "r+":
            raise
        return None


def _present(arrays: Mapping[str, za.AsyncArray], names: Container[Any]) -> dict[str, Variable]:
    """The variables that are there; those of some names with what their values were encoded with, others as they are stored.

    They are no dataset: another writer may have made some of them longer, and be about to do so with the others.
    """
    stored = {name: stored_variable(name, sync.Array(array), mask=None) for name, array in arrays.items()}
    return {
        name: decode_cf_variable(name, variable, concat_characters=False) if name in names else variable
        for name, variable in stored.items()
    }


def _on(array: za.AsyncArray, **place: Any) -> za.AsyncArray:
    """An array whose place is another one in some respect."""
    return with_handle(array, replace(handle_of(array), **place))


class Plan(NamedTuple):
    """What is written of a variable.

    Attributes:
        name: Its name.
        encoded: It, as it is stored.
        options: How an array for it is created, if it does not go into one that is there.
        joins: Whether it goes into an array that is there.
        length: Elements along the appended dimension that were there; ``None`` if it has no such dimension.
    """

    name: str
    encoded: Variable
    options: dict[str, Any]
    joins: bool
    length: int | None


class _Work:
    """What the variables of one call have in common."""

    def __init__(
        self,
        spoken: Format,
        store: Store,
        group: str,
        arrays: Mapping[str, za.AsyncArray],
        append_dim: str | None,
        region: Mapping[str, slice] | None,
        verify: bool,
        config: Any,
    ) -> None:
        # Copies of metadata follow when all is done, not each change.
        self.arrays = {name: _on(array, consolidated=None) for name, array in arrays.items()}
        self.node: AsyncGroup  # once there is one
        self.erased = False  # whether nothing is left of what was there
        self.copies: Consolidated | None = None
        self.store, self.group, self.append_dim = store, group, append_dim
        self.region, self.verify, self.config = region, verify, config
        self.format: Any = spoken

    def plan(self, name: str, variable: Variable, encoding: Mapping[str, Any] | None, present: Variable | None) -> Plan:
        """A variable as it is stored, and how an array for it is created.

        Raises:
            ShapeError: If it does not fit the array that is there.
        """
        joins = present is not None and (self.region is not None or self.append_dim is not None)
        if encoding and joins:
            raise ValueError(f"{name} is stored as what is there is; its encoding {dict(encoding)} can not be chosen")
        variable = variable.copy(deep=False)
        variable.encoding = dict(encoding) if encoding is not None else fitting(variable)
        if joins and present is not None:
            if sorted(map(str, variable.dims)) != sorted(map(str, present.dims)):
                raise ShapeError(f"{name} has the dimensions {present.dims} in the store, not {variable.dims}")
            if variable.dims != present.dims:
                variable = variable.transpose(*present.dims)
            variable = alike(variable, present)
        elif present is not None and encoding is None:
            variable.encoding = inherited(name, variable, present)
        elif self.region is not None:
            raise NodeNotFoundError(f"a region is written into arrays that are there; {name} is not")
        if self.region is not None and not set(self.region) & set(map(str, variable.dims)):
            raise ValueError(
                f"{name} has none of the region's dimensions {sorted(self.region)}; drop it before writing"
            )
        creating = {key: variable.encoding[key] for key in _CREATING if variable.encoding.get(key) is not None}
        if "compressors" in variable.encoding:  # None: it is not compressed
            creating["compressors"] = variable.encoding["compressors"]
        of_two, compressor = self.format.has_undefined_fill, variable.encoding.get("compressor", ())
        # What is not asked for may not hold what has been changed, unless it loses nothing.
        if compressor != () and (encoding or (of_two and are_lossless(compressor or (), variable.dtype))):
            creating["compressors"] = compressor
        with _without_notice() if joins else nullcontext():  # of units that are changed, which is refused
            encoded = as_stored(name, variable)
        filters = variable.encoding.get(FILTERS) if of_two and "filters" not in variable.encoding else None
        if filters is not None and are_lossless(filters, encoded.dtype):
            creating["filters"] = filters
        left = {key for key, value in encoded.encoding.items() if key != FILL or value is not None}
        if unknown := sorted(set(encoding or ()) & left - _ENCODINGS):
            raise ValueError(
                f"{name} has the unknown encoding {unknown[0]!r}; known are {', '.join(sorted(_ENCODINGS))}"
            )
        if joins and present is not None:
            self._check(name, encoded, present)
            encoded = lossless(name, encoded, present, timed=variable.dtype.kind in "mM")
        options = {} if joins else self._options(encoded, creating)
        if not joins:
            plan_array(self.format, shape=encoded.shape, **options)  # complains before anything is replaced
        length = present.sizes.get(self.append_dim) if joins and present is not None else None
        return Plan(name, encoded, options, joins=joins, length=length)

    def _check(self, name: str, encoded: Variable, present: Variable) -> None:
        """Complain about a shape that does not fit what is there."""
        if self.region is not None:
            wanted = tuple(
                len(range(*self.region.get(str(dim), slice(None)).indices(n)))
                for dim, n in zip(present.dims, present.shape, strict=True)
            )
            if encoded.shape != wanted:
                raise ShapeError(
                    f"{name} has shape {encoded.shape}, the region {wanted}", found=encoded.shape, wanted=wanted
                )
            return
        sizes = zip(present.dims, present.shape, encoded.shape, strict=True)
        if any(dim != self.append_dim and there != given for dim, there, given in sizes):
            how = f"appended along {self.append_dim!r}" if self.append_dim in present.dims else "written there"
            raise ShapeError(
                f"{name} has shape {present.shape}; {encoded.shape} can not be {how}",
                found=encoded.shape,
                wanted=present.shape,
            )

    def _options(self, encoded: Variable, creating: dict[str, Any]) -> dict[str, Any]:
        attributes = _plain(without_nan(encoded.attrs, encoded.dtype))
        fill = encoded.attrs.get(FILL)
        attributes.pop(FILL, None)
        options: dict[str, Any] = {"dtype": str if encoded.dtype.kind in "OT" else encoded.dtype, **creating}
        if self.format.has_undefined_fill:  # there the fill value says what is missing
            options["fill_value"] = fill
        else:
            if encoded.dtype.kind == "f":  # what nobody has written is missing, as in xarray's own engine
                options.setdefault("fill_value", np.nan)
            if fill is not None:
                text = encoded.dtype.kind in "OT" and isinstance(fill, str)  # which xarray can not write
                attributes[FILL] = str(fill) if text else FillValueCoder.encode(fill, encoded.dtype)
        if self.format.has_dimension_names:
            options["dimension_names"] = tuple(map(str, encoded.dims))
        else:
            attributes[DIMENSIONS] = list(map(str, encoded.dims))
        blocks = getattr(encoded, "chunks", None)
        if blocks and not creating.get("shards"):  # dask's
            options.setdefault("chunks", tuple(max(1, *own) for own in blocks))
        return {**options, "attributes": attributes}

    async def prepare(
        self, plans: Sequence[Plan], reserved: list[tuple[za.AsyncArray, int, int, int]]
    ) -> list[tuple[za.AsyncArray, Place | None]]:
        """Create arrays, or make them longer; the array of each variable, and where in it the values go.

        Rows that are appended are reserved in one array, that of the coordinates if it is among them, and lie at that
        place in all others, so that those of writers who append at the same time stay together.

        Raises:
            ShapeError: If arrays are longer than others: what is there would be overwritten, or something left out.
        """
        rows = [plan for plan in plans if plan.length is not None and self.region is None]
        rows.sort(key=lambda plan: (plan.name != self.append_dim, plan.name))
        await self._catch_up(rows)
        await gather_all([partial(self._reserve, first, None, reserved) for first in rows[:1]])
        at = reserved[0][2] if reserved else None
        await gather_all([partial(self._reserve, plan, at, reserved) for plan in rows[1:]])
        # What is replaced comes last, when nothing can be refused any more.
        made = [plan for plan in plans if not plan.joins]
        taken = await self._taken({plan.name for plan in made})
        create = self.node.create_array
        try:
            arrays = await gather(
                [
                    partial(create, plan.name, shape=plan.encoded.shape, overwrite=plan.name in taken, **plan.options)
                    for plan in made
                ]
            )
        except BaseException:
            await run_cleanup(partial(self.note, made))
            raise
        await self.note(made)
        self.arrays.update({plan.name: array for plan, array in zip(made, arrays, strict=True)})
        added = {plan.name for plan in rows}
        place = {str(self.append_dim): slice(*reserved[0][2:])} if reserved else {}
        places = [self._place(plan, place if plan.name in added else self.region or {}) for plan in plans]
        return [(self.arrays[plan.name], place) for plan, place in zip(plans, places, strict=True)]

    async def _taken(self, names: set[str]) -> set[str]:
        """The names at which something lies: an array, or chunks of one whose replacement was interrupted."""
        there = names & self.arrays.keys()
        if not self.erased and names - there:
            below = await handle_of(self.node).children()
            there |= {name for name in names if name.partition("/")[0] in below}
        return there

    async def note(self, plans: Iterable[Plan]) -> None:
        """Have copies of metadata follow: what is made anew at once, rows when they are written."""
        keys = [key for plan in plans for key in self.format.document_keys(join(self.group, plan.name))]
        if self.copies is not None and keys:
            await self.copies.note(self.store, keys)

    def _place(self, plan: Plan, place: Mapping[str, slice]) -> Place | None:
        """Where a variable's values go in its array; ``None``: they are all of it."""
        return tuple(place.get(str(dim), slice(None)) for dim in plan.encoded.dims) if plan.joins else None

    async def _reserve(self, plan: Plan, at: int | None, reserved: list[tuple[za.AsyncArray, int, int, int]]) -> None:
        """Make an array longer for a variable's values, which lie at a place along the appended dimension."""
        assert plan.length is not None
        if at is not None and plan.length > at:  # who appends to all has made the first one longer before
            raise self._uneven(plan.name, plan.length, at)
        axis, array = plan.encoded.dims.index(str(self.append_dim)), self.arrays[plan.name]
        start = await reserve_rows(array, axis, plan.encoded.shape, at)
        reserved.append((array, axis, start, start + plan.encoded.shape[axis]))

    async def _catch_up(self, rows: Sequence[Plan]) -> None:
        """Wait until all arrays are as long as the first one was: another writer may be about to make them so."""
        first = (rows[0].length or 0) if rows else 0
        end = clock.monotonic() + _CATCH_UP
        for plan in rows[1:]:
            length, pause = plan.length or 0, 0.02
            while length < first:
                if clock.monotonic() > end:
                    raise self._uneven(plan.name, length, first)
                await clock.sleep(pause)
                pause = min(2 * pause, 0.5)
                array = await self.node.get(plan.name)
                assert isinstance(array, za.AsyncArray)
                length = array.shape[plan.encoded.dims.index(str(self.append_dim))]

    def _uneven(self, name: str, length: int, first: int) -> ShapeError:
        return ShapeError(
            f"{name} has {length} rows along {self.append_dim!r}, where another variable has {first}: something was appended to "
            "some of them alone; resize() those that are too long or too short",
            found=(length,),
            wanted=(first,),
        )

    async def fill(
        self, plans: Sequence[Plan], places: Sequence[tuple[za.AsyncArray, Place | None]]
    ) -> list[IngestReport]:
        """Write all values: those of dask as one computation, others side by side.

        Where blocks lie across chunks so that dask would have to keep more than the budget, regions are computed one by one.
        """
        reports: dict[str, IngestReport] = {}

        async def one(plan: Plan, target: za.AsyncArray, place: Place | None) -> None:
            source = source_of(plan.encoded if plan.encoded.shape else np.asarray(plan.encoded.values), {})
            reports[plan.name] = await write_blocks(source, target, place, self._unaligned, verify=self.verify)

        calls: list[Callable[[], Awaitable[None]]] = []
        lazy: list[tuple[Plan, za.AsyncArray, Place | None]] = []
        for plan, (array, place) in zip(plans, places, strict=True):
            own = (plan, _on(array, store=CountingStore(array.store)), place)
            if _is_dask(plan.encoded.data):
                lazy.append(own)
            else:
                calls.append(partial(one, *own))
        if lazy:
            from zarrasync.integrations import dask_write
            from zarrasync.integrations.dask import cluster

            shares = [self._share(*own) for own in lazy]
            budget = settings.resolve(self.config).memory_budget
            remote = await compute(cluster) is not None  # not on a loop, which may be the client's
            small = [remote or share.held <= budget for share in shares]
            calls += [partial(one, *own) for own, fits in zip(lazy, small, strict=True) if not fits]

            async def of_dask() -> None:
                found = await dask_write.write_together(list(compress(shares, small)), verify=self.verify)
                names = (plan.name for plan, *_ in compress(lazy, small))
                reports.update(zip(names, found, strict=True))

            if any(small):
                calls.append(of_dask)
        await gather(calls)
        return [reports[plan.name] for plan in plans]

    def _share(self, plan: Plan, target: za.AsyncArray, place: Place | None) -> Any:
        """What is written of one of dask's arrays into which array."""
        from zarrasync.integrations.dask_write import Share

        start, stop = resolve_corners(plan.encoded.shape, target.shape, place)
        check_region(chunks_of(target), start, stop, self._unaligned, safe=is_safe_for_jobs(target.store))
        return Share(plan.encoded.data, for_job(target, self._unaligned), start)

    @property
    def _unaligned(self) -> Unaligned:
        """Rows that were reserved are nobody else's; of chunks that are shared each keeps its part in this process."""
        return "allow" if self.append_dim is not None else settings.resolve(self.config).unaligned


def _is_dask(data: Any) -> bool:
    """Whether it is an array of dask's, which is not imported to find that out."""
    loaded = sys.modules.get("dask.array")
    return loaded is not None and isinstance(data, loaded.Array)
