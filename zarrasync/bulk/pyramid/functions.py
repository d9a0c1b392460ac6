"""Pyramids: coarser levels of an array, with the metadata by which viewers find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.drive import driven
from zarrasync._util.short_tracebacks import short_tracebacks
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.copy.values import copy_array
from zarrasync.bulk.jobs.job_names import job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.overwrite_guard import overlap
from zarrasync.bulk.pyramid.companions import Companions, copy_companions, find_companions
from zarrasync.bulk.pyramid.downsample import Method, check_method
from zarrasync.bulk.pyramid.levels import Reduction, compute_level
from zarrasync.bulk.pyramid.plan import Factors, plan_levels
from zarrasync.bulk.pyramid.source import AxisChanges, PyramidSource, find_source
from zarrasync.bulk.pyramid.target import PyramidTarget
from zarrasync.bulk.reports import CopyReport
from zarrasync.display.progress import ProgressLike, report_progress, skip_of
from zarrasync.display.report import JobReport
from zarrasync.display.text import Table, counted, duration_text, printable, size_text
from zarrasync.errors import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata.chunk_shapes import ChunksLike
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.ome_versions import is_version_for
from zarrasync.metadata.convert import LayoutChanges
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import CodecsLike, open, open_group
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import Store, StoreLike, resolve
from zarrasync.transfer.threads import Progress

__all__ = ["LevelReport", "PyramidReport", "pyramid"]

_FIRST = "0"
"""The name of the finest level in a new group."""
_VERSIONS = ("0.4", "0.5", "0.6")


@dataclass
class LevelReport:
    """The result of computing one level.

    Attributes:
        path: The path of its array, relative to the group of the pyramid.
        shape: Its shape.
        blocks: The number of blocks that were written.
        skipped: The number of stored values that an earlier run had written.
        nbytes: The decoded size of the written elements, in bytes.
        seconds: The duration in seconds.
    """

    path: str
    shape: tuple[int, ...]
    blocks: int = 0
    skipped: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        skipped = f", {self.skipped:,} were there" if self.skipped else ""
        size = " x ".join(f"{n:,}" for n in self.shape)
        done = f"{counted(self.blocks, 'block')} written{skipped}, {size_text(self.nbytes)}"
        return f"{self.path}: {size}: {done}, {self.seconds:.1f} s"


@dataclass
class PyramidReport(JobReport):
    """The result of computing a pyramid.

    Attributes:
        path: The path of its group.
        convention: ``"ome"`` or ``"zarr-conventions"``.
        method: The method.
        levels: The levels that were computed or copied.
        notes: Conversions of metadata that the format cannot express.
        left_out: Coordinates that the levels lack, with the reason.
        seconds: The duration in seconds.
    """

    path: str
    convention: str
    method: str
    levels: list[LevelReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def summary(self) -> str:
        return f"{counted(len(self.levels), 'level')}, {self.seconds:.1f} s"

    def remarks(self) -> Sequence[str]:
        return [*self.notes, *self.left_out]

    def losses(self) -> Sequence[str]:
        return self.left_out

    def tables(self) -> Sequence[Table]:
        columns = ("level", "shape", ">blocks", ">skipped", ">size", ">time")
        rows = [
            (
                printable(level.path),
                " x ".join(f"{n:,}" for n in level.shape),
                f"{level.blocks:,}",
                f"{level.skipped:,}",
                size_text(level.nbytes),
                duration_text(level.seconds),
            )
            for level in self.levels
        ]
        return [Table(columns, rows)] if rows else []

    def __str__(self) -> str:
        return "\n".join([*map(str, self.levels), *self.remarks(), self.summary()])


@short_tracebacks
async def pyramid(
    store: StoreLike,
    *,
    path: str = "",
    dest: Any = None,
    dest_path: str = "",
    levels: int | Literal["auto"] = "auto",
    method: Method | Literal["auto"] = "auto",
    factors: Factors = None,
    missing: Any = "auto",
    axes: Sequence[str] | None = None,
    scale: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    convention: Literal["auto", "ome", "zarr-conventions"] = "auto",
    version: Literal["0.4", "0.5", "0.6"] | None = None,
    chunks: ChunksLike | Literal["keep", "auto"] = "keep",
    shards: ChunksLike | Literal["keep", "auto"] | None = "keep",
    compressors: CodecsLike = "keep",
    overwrite: bool = False,
    executor: Any = None,
    concurrency: int = 0,
    progress: ProgressLike = False,
    storage_options: Mapping[str, Any] | None = None,
    dest_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> PyramidReport:
    """Compute coarser levels of an array, and describe them in OME-Zarr or zarr-conventions.

    Each level is computed from the one before it, block by block and within ``config.memory_budget``. Where an array has
    no stored values, its levels have none, and are not computed. After an interruption, the same call resumes: it keeps
    stored values, because a value is stored completely or not at all. The attributes that describe the levels are written
    last. If the values of the finest level have changed, pass ``overwrite=True``.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of an array, whose levels become members of its group, or of a group with a pyramid or with one
            array.
        dest: The store of another group for the pyramid, into which the finest level is copied as ``"0"``. Default: the
            group of the array.
        dest_path: The path of that group.
        levels: The number of levels, with the finest one. ``"auto"``: until no axis that becomes coarser has more than 256
            elements.
        method: ``"mean"``, ``"mode"`` (the most frequent value), ``"nearest"``, ``"max"`` or ``"min"`` of the elements that
            become one, computed from what stored numbers mean by CF. ``"auto"``: ``"mode"`` for label images and for flags,
            and ``"mean"`` for others.
        factors: The factor from each level to the next along spatial axes, or along axes by name, such as
            ``{"y": 2, "x": 2}``. A list contains one of these for each level after the finest one: ``[2, 2, 4]``. Default:
            2 along spatial axes whose step is at most 1.5 times the smallest one, so that steps become more even. If no
            axis is known to be spatial, the last two are.
        missing: The stored number of missing elements, or several ones. They are left out like NaN. ``"auto"``: the
            numbers that CF attributes and the format specify, and those outside the valid range; ``None``: none.
        axes: The names of all axes, such as ``"czyx"``, if the array has none or others should be written.
        scale: The distances between elements by the names of axes. Default: what conventions specify, or 1.
        units: The units by the names of axes, such as ``{"x": "micrometer"}``.
        convention: ``"ome"``: OME-Zarr; ``"zarr-conventions"``: ``multiscales``, ``spatial`` and ``proj``. ``"auto"``: the
            second one for geographic grids.
        version: The version of OME-Zarr. Default: as in the group, or 0.5, or 0.4 in Zarr format 2.
        chunks: The shape of chunks. ``"keep"``: as in the finest level.
        shards: The shape of shards. ``"keep"``: as in the finest level if it has shards, and otherwise chosen by size.
            ``None``: no shards.
        compressors: The compressors. ``"keep"``: as in the finest level.
        overwrite: Replace existing levels, but not the finest one in its own group.
        executor: Where levels are computed: a number of processes, a ``concurrent.futures.Executor`` or another object
            with ``submit``, a client of dask.distributed, the module ``ray``, a ``FunctionExecutor`` of Lithops, or a
            function ``map(function, items)``. Default: threads of this process.
        concurrency: The number of blocks at a time in each process; 0 for a default that suits the store.
        progress: ``True`` to show a progress bar, or a function that is called with the number of bytes written since
            its last call.
        storage_options: Options of the filesystem or object store of a URL.
        dest_options: Options of the filesystem or object store of the URL ``dest``.
        config: Settings for this call.

    Returns:
        A report of the levels.

    Raises:
        NodeNotFoundError: If no node exists at the path.
        NodeTypeError: If it is a group with several arrays, or an array without a group, and ``dest`` is omitted.
        NodeExistsError: If a level exists that was not computed with the same parameters, and ``overwrite`` is not set.
        MetadataError: If axes have no names, or the coordinates of the finest level cannot be described.
        ValueError: If an argument is invalid.
        UnsupportedOperation: If the method cannot reduce the data type, or would compute means of flags.
        StoreError: If the store failed, or the executor runs in other processes and the store exists only in this one.

    Example:
        >>> store = {}
        >>> array = await za.create_array(store, path="0", data=np.arange(16.0).reshape(4, 4), dimension_names=("y", "x"))
        >>> report = await za.pyramid(store, levels=2)
        >>> coarse = await za.open_array(store, path="1")
        >>> await coarse[...]
        array([[ 2.5,  4.5],
               [10.5, 12.5]])
        >>> (await za.open_group(store)).info["Levels"]
        '0 (y 1, x 1), 1 (y 2, x 2)'
    """
    begin, values = clock.monotonic(), settings.resolve(config)
    if version not in (None, *_VERSIONS):
        raise ValueError(f"version must be one of {', '.join(_VERSIONS)}; found {version!r}")
    if convention not in ("auto", "ome", "zarr-conventions"):
        raise ValueError(f"convention must be 'auto', 'ome' or 'zarr-conventions'; found {convention!r}")
    mode: Any = "r+" if dest is None else "r"
    node = await open(store, path=path, mode=mode, storage_options=storage_options, config=values)
    target_store = node.store if dest is None else resolve(dest, dest_options, values)
    names = list(axes) if axes is not None else None
    request = _Request(
        AxisChanges(names, scale, units), levels, method, factors, missing, convention, version,
        LayoutChanges(chunks, shards, compressors), overwrite, Workers(executor), concurrency, progress,
    )  # fmt: skip
    with closing(request.workers):
        work = _build(node, None if dest is None and not dest_path else target_store, dest_path, request)
        if driven() and not target_store.blocking:  # the stores differ, so that an event loop is needed
            report = bridge.run(work, blocking=False)
        else:
            report = await work
    report.seconds = clock.monotonic() - begin
    return report


@dataclass(frozen=True)
class _Request:
    """The arguments of ``pyramid`` that do not specify places."""

    axes: AxisChanges
    levels: int | Literal["auto"]
    method: Method | Literal["auto"]
    factors: Factors
    missing: Any
    convention: str
    version: str | None
    changes: LayoutChanges
    overwrite: bool
    workers: Workers
    concurrency: int
    progress: ProgressLike


async def _build(node: AsyncArray | AsyncGroup, dest: Store | None, dest_path: str, request: _Request) -> PyramidReport:
    source = await find_source(node, request.axes)
    is_geo = source.is_geographic if request.convention == "auto" else request.convention == "zarr-conventions"
    source = source.as_grid() if is_geo else source.as_image()
    encoding = source.encoding(request.missing, has_named_axes=is_geo)
    has_codes = source.meaning.labels is not None or encoding.flags is not None
    method: Method = ("mode" if has_codes else "mean") if request.method == "auto" else request.method
    check_method(method, encoding)
    path = source.path if dest is None else _FIRST
    planned = plan_levels(path, source.array.shape, source.axes, request.levels, request.factors, method)
    group = await _open_target(source, dest, dest_path, request.version)
    origin = {"method": method, **_missing_of(encoding)}
    companions = Companions() if dest is None else await find_companions(source, planned)
    target = PyramidTarget(
        group, source, planned, "geo" if is_geo else "ome", _version(group, request.version), origin, request.overwrite,
        shared=None if dest is None else companions.shared.keys(),
    )  # fmt: skip
    report = PyramidReport(group.path, "zarr-conventions" if is_geo else "ome", method)
    target.check(report.notes)
    if dest is None:
        await _check_names(source, group)
    report.left_out += source.left_out.values() if dest is None else companions.left_out.values()
    total = sum(_nbytes(source.array, level.shape) for level in planned[0 if dest is not None else 1 :])
    with report_progress(
        request.progress, total, f"pyramid {job_name(source.array.store, source.array.path)}", report=report
    ) as callback:
        async with group.store.in_use() if dest is not None else nullcontext():
            finest = source.array
            if dest is not None:
                finest = await _copy_finest(source.array, target, request, report, callback or ignore_progress)
                await copy_companions(companions, group, report.notes, overwrite=request.overwrite)
            await _compute(finest, target, encoding, request, report, callback or ignore_progress)
            await target.publish(finest)
    return report


async def _compute(
    finest: AsyncArray,
    target: PyramidTarget,
    encoding: CFEncoding,
    request: _Request,
    report: PyramidReport,
    progress: Progress,
) -> None:
    """Compute all levels after the finest one."""
    if request.overwrite:
        await target.remove_other_levels()
    above = finest
    for level in target.levels[1:]:
        begin = clock.monotonic()
        array, is_new = await target.make_level(level, request.changes, report.notes)
        done = await compute_level(
            Reduction(above, array, level.factors, target.origin["method"], encoding),
            resume=not is_new,
            workers=request.workers,
            concurrency=request.concurrency,
            progress=progress,
            skip=skip_of(progress),
        )
        seconds = clock.monotonic() - begin
        report.levels.append(LevelReport(level.path, level.shape, done.blocks, done.skipped, done.nbytes, seconds))
        above = array


async def _copy_finest(
    source: AsyncArray, target: PyramidTarget, request: _Request, report: PyramidReport, progress: Progress
) -> AsyncArray:
    """Copy the finest level into the group, or complete the copy of an interrupted run."""
    begin, copied = clock.monotonic(), CopyReport()
    finest = target.levels[0]
    array, is_new = await target.make_level(finest, request.changes, report.notes)
    await copy_array(source, array, copied, progress, resume=not is_new, is_new=is_new, workers=request.workers)
    seconds = clock.monotonic() - begin
    report.levels.append(LevelReport(finest.path, finest.shape, copied.copied, copied.skipped, copied.nbytes, seconds))
    return array


# ------------------------------------------------------------------ places


async def _open_target(source: PyramidSource, dest: Store | None, dest_path: str, version: str | None) -> AsyncGroup:
    """Open or create the group of the pyramid, in format 2 for version 0.4 of OME-Zarr, or as others in the store."""
    handle = handle_of(source.array)
    if dest is not None:
        path = normalize_path(dest_path)
        if overlap(handle.store, handle.path, dest, path):
            raise NodeExistsError(
                f"cannot write the pyramid of {source.array.name} to /{path} in {dest!r}: one contains the other; omit dest "
                "to add levels to the group of the array",
                path=path,
            )
        try:
            return await open_group(dest, path=path, mode="r+", config=handle.config)
        except NodeNotFoundError:
            format_ = handle.format.zarr_format if dest is handle.store else 2 if version == "0.4" else None
            return await open_group(dest, path=path, mode="a", zarr_format=format_, config=handle.config)
    if not handle.path:
        raise NodeTypeError(
            f"{source.array.name} in {handle.store!r} is the root of its store and has no group for more levels; pass dest, "
            "to which the array is copied",
            path="",
            found="array",
            wanted="group",
        )
    path = handle.path[: len(handle.path) - len(source.path)].rstrip("/")
    return await open_group(handle.store, path=path, mode="r+", config=handle.config)


async def _check_names(source: PyramidSource, group: AsyncGroup) -> None:
    """Check that levels can be members of the group: it must not be a dataset, whose arrays share dimensions.

    Raises:
        NodeTypeError: If the group contains other arrays.
    """
    if source.meaning.levels or source.path.endswith("0"):
        return
    others = [
        name for name in await group.array_keys() if name != source.path and not name.startswith(f"{source.path}_")
    ]
    if others:
        raise NodeTypeError(
            f"the group of {source.array.name} contains other arrays ({', '.join(others[:5])}), so levels of other shapes "
            "would make it unreadable for xarray; pass dest, such as another path of the same store",
            path=group.path,
            found="group",
            wanted="group",
        )


def _version(group: AsyncGroup, requested: str | None) -> str:
    """Return the version of OME-Zarr to write.

    Raises:
        MetadataError: If the format of the group does not allow it.
    """
    ome, format_ = group.attrs.get("ome"), formats.by_name(group.zarr_format)
    present = ome.get("version") if isinstance(ome, Mapping) else None
    version = requested or (present if isinstance(present, str) else format_.ome_version)
    if not is_version_for(version, format_):
        raise MetadataError(
            f"OME-Zarr {version} cannot be written in Zarr format {group.zarr_format}: version 0.4 needs format 2, and later "
            "ones need format 3"
        )
    if isinstance(present, str) and present[:3] != version[:3]:
        raise MetadataError(f"the group contains OME-Zarr {present}; omit version, which was {version!r}")
    return version


def _nbytes(array: AsyncArray, shape: Sequence[int]) -> int:
    count = max(array.dtype.itemsize, 1)
    for n in shape:
        count *= n
    return count


def _missing_of(encoding: CFEncoding) -> dict[str, Any]:
    """Return which numbers are missing, as attributes by which later calls recognize the same computation."""
    numbers = [_as_json(number) for number in encoding.missing]
    valid = [None if limit is None else _as_json(limit) for limit in encoding.valid]
    return {**({"missing": numbers} if numbers else {}), **({"valid": valid} if valid != [None, None] else {})}


def _as_json(number: Any) -> Any:
    """Return a number as an attribute. Infinities and complex numbers become strings."""
    plain = number.item()
    is_plain = isinstance(plain, int) or (isinstance(plain, float) and abs(plain) < float("inf"))
    return plain if is_plain else str(plain)
