"""Writing the values of planned variables: those in memory concurrently, dask arrays in one computation, or tasks of a plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Never
from uuid import uuid4

from xarray import Variable

from zarrasync import config as settings
from zarrasync import consolidate_metadata
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.copy.planned import CopyWork
from zarrasync.bulk.jobs.boxes import Box, Output, make_tasks
from zarrasync.bulk.jobs.claimed_work import OneCall
from zarrasync.bulk.jobs.plan import Options
from zarrasync.bulk.jobs.plan_location import NodeLocation
from zarrasync.bulk.reports import CopyReport, WriteReport, add_reports
from zarrasync.display.progress import IngestReport, ignore_progress, report_progress
from zarrasync.errors import UnsupportedOperation
from zarrasync.formats import Format
from zarrasync.indexing.regions import resolve_corners
from zarrasync.integrations.dask_targets import current_cluster, is_dask_array, seceded
from zarrasync.integrations.xarray.groups import root_alone
from zarrasync.integrations.xarray.job import VariableTarget, WriteJob, WriteRequest
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import plan_array
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.access import chunks_of
from zarrasync.nodes.documents import Metadata, render_texts
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.unaligned import check_region, is_safe_for_jobs


def check_chunks(job: WriteJob) -> None:
    """Check that no region and no dask block cuts chunks if values could be lost, before anything is changed.

    Appended rows are checked again when they are reserved, because other writers may append rows before them.

    Raises:
        ShapeError: If one does.
    """
    request, safe = job.request, is_safe_for_jobs(job.request.store)
    for plan in job.plans:
        start: tuple[int, ...] = (0,) * plan.encoded.ndim
        if plan.updates and request.append_dim is None:
            array, slices = job.arrays[plan.name], job.region or {}
            region = tuple(slices.get(str(dim), slice(None)) for dim in plan.encoded.dims)
            start, stop = resolve_corners(plan.encoded.shape, array.shape, region)
            check_region(chunks_of(array), start, stop, job.unaligned, safe=safe)
        if not request.options.align_chunks and is_dask_array(plan.encoded.data):
            metadata = job.arrays[plan.name].metadata if plan.updates else _metadata(job.format, plan)
            if plan.rows_before is not None:
                start = tuple(plan.rows_before if dim == request.append_dim else 0 for dim in plan.encoded.dims)
                metadata = metadata.with_shape(tuple(map(sum, zip(start, plan.encoded.shape, strict=True))))
            _check_blocks(plan, metadata, start, request)


def _check_blocks(plan: VariablePlan, target: ArrayMetadata, start: tuple[int, ...], request: WriteRequest) -> None:
    """Check that blocks of dask share no chunks, except along the axis along which rows are appended."""
    from zarrasync.integrations.dask_write import check_blocks

    axis = plan.encoded.dims.index(request.append_dim) if plan.rows_before is not None else None
    safe = is_safe_for_jobs(request.store)
    check_blocks(plan.encoded.data, target, start, request.unaligned, safe=safe, append_axis=axis)


async def write_values(jobs: Sequence[WriteJob]) -> Any:
    """Write all values concurrently.

    Returns:
        A ``WriteReport``. Without ``compute``, an object whose ``compute()`` writes the dask arrays and returns it.
    """
    request = jobs[0].request
    targets = [target for job in jobs for target in job.targets]
    now = targets if request.options.compute else [target for target in targets if not target.is_lazy]
    label = f"write {jobs[0].request.store!r}"
    with report_progress(request.progress, sum(target.nbytes for target in now), label) as progress:
        reports = await _write_now(now, request, progress or ignore_progress)
    names = {join(job.path, plan.name) for job in jobs for plan in job.plans} - {target.name for target in targets}
    report = WriteReport({target.name: reports[target.name] for target in now} | dict.fromkeys(names, IngestReport()))
    return report if request.options.compute else _write_later([t for t in targets if t.is_lazy], request, report)


async def _write_now(
    targets: Sequence[VariableTarget], request: WriteRequest, progress: Progress
) -> dict[str, IngestReport]:
    """Write all values concurrently, dask arrays in one computation.

    If blocks are not aligned to chunks and dask would need more than the memory budget, regions are computed one by
    one.
    """
    reports: dict[str, IngestReport] = {}
    one_by_one = [target for target in targets if not target.is_lazy]
    together: list[tuple[VariableTarget, Any]] = []
    if lazy := [target for target in targets if target.is_lazy]:
        budget = settings.resolve(request.config).memory_budget
        on_cluster = await compute(current_cluster) is not None  # on a thread: dask's client may run on this loop
        for target in lazy:
            write = _dask_write(target)
            if on_cluster or write.held_bytes <= budget:
                together.append((target, _with_whole_chunks(write, target, request)))
            else:
                one_by_one.append(target)

    async def write_one(target: VariableTarget) -> None:
        _add_report(reports, target.name, await target.write(verify=request.verify, progress=progress))

    async def write_dask() -> None:
        from zarrasync.integrations.dask_write import write_together

        options: Any = {
            "verify": request.verify,
            "progress": progress,
            "options": request.options.chunkmanager_store_kwargs or {},
        }
        written = await write_together([write for _, write in together], **options)
        for (target, _), report in zip(together, written, strict=True):
            _add_report(reports, target.name, report)

    calls: list[Callable[[], Awaitable[None]]] = [partial(write_one, target) for target in one_by_one]
    await gather([*calls, write_dask] if together else calls)
    return reports


def _add_report(reports: dict[str, IngestReport], name: str, report: IngestReport) -> None:
    """Add the report of a variable, or of further rows of it."""
    if name in reports:
        add_reports(reports[name], report)
        reports[name].seconds = max(reports[name].seconds, report.seconds)
    else:
        reports[name] = report


def _dask_write(target: VariableTarget) -> Any:
    from zarrasync.integrations.dask_write import DaskWrite

    array, source = target.array, target.plan.encoded
    start, stop = resolve_corners(source.shape, array.shape, target.region)
    check_region(chunks_of(array), start, stop, array.config.unaligned, safe=is_safe_for_jobs(array.store))
    return DaskWrite(source.data, array, start)


def _with_whole_chunks(write: Any, target: VariableTarget, request: WriteRequest) -> Any:
    """Return a write of dask blocks that share no chunks, or raise an error if they do and must not be rechunked."""
    if request.options.align_chunks:
        return write.aligned()
    _check_blocks(target.plan, target.array.metadata, write.start, request)
    return write


# ------------------------------------------------------------------ compute=False


class CompletedWrite:
    """The result of ``compute=False`` if dask is not installed, and all values are therefore written.

    Args:
        report: The report.
    """

    def __init__(self, report: WriteReport) -> None:
        self.report = report

    def compute(self, **options: Any) -> WriteReport:
        """Return the report. Options, as for dask, have no effect."""
        return self.report


def _write_later(targets: Sequence[VariableTarget], request: WriteRequest, report: WriteReport) -> Any:
    """Return a dask object that writes variables when it is computed, on any scheduler, and returns a report.

    Args:
        targets: The variables.
        request: The arguments.
        report: The report of the variables that are written.
    """
    try:
        from dask.delayed import delayed
    except ImportError:
        return CompletedWrite(report)
    from zarrasync.integrations.dask_write import write_later

    writes = [_with_whole_chunks(_dask_write(target), target, request) for target in targets]
    names = [target.name for target in targets]
    later = write_later(writes, verify=request.verify) if writes else []
    complete: Any = delayed(_complete)  # untyped
    return complete(dict(report), names, later)


def _complete(done: dict[str, IngestReport], names: Sequence[str], reports: Sequence[IngestReport]) -> WriteReport:
    result = dict(done)
    for name, report in zip(names, reports, strict=True):
        _add_report(result, name, report)
    return WriteReport(result)


# ------------------------------------------------------------------ tasks of a plan


@dataclass(frozen=True, kw_only=True)
class DatasetWork(CopyWork):
    """A new dataset whose tasks write regions of its variables. The source is the destination, as datasets have no place.

    Attributes:
        request: The arguments.
        identity: The digest, which is random because values are not compared.
        plans: The variables by their paths relative to the group.
        cut: The values of regions, instead of ``plans`` in other processes.
    """

    request: WriteRequest = field(repr=False)
    identity: str
    plans: Mapping[str, VariablePlan] = field(repr=False)
    cut: Mapping[Box, VariablePlan] = field(default_factory=dict, repr=False)
    kind = "write"

    @classmethod
    def of_jobs(cls, jobs: Sequence[WriteJob], name: str, tasks: int) -> DatasetWork:
        """Return the work for the jobs of a new dataset.

        Args:
            jobs: The jobs, the one of the dataset's group first.
            name: The path or URL of the destination; empty without one.
            tasks: About how many tasks to make; 0 for a number that suits the size.
        """
        first, request = jobs[0], jobs[0].request
        plans = {join(job.path, plan.name): plan for job in jobs for plan in job.plans}
        arrays = {path: _metadata(first.format, plan) for path, plan in plans.items()}
        groups = {job.path: GroupMetadata(attributes=job.attributes) for job in jobs}
        above = {path: GroupMetadata() for array in arrays for path in ancestors(array)}
        nodes: dict[str, Metadata] = {**above, **groups, **arrays}
        outputs = [
            Output(path, _metadata(first.format, plan, read=True), arrays[path], (1,) * plan.encoded.ndim)
            for path, plan in plans.items()
        ]
        boxes, sizes = make_tasks([outputs], tasks)
        location = NodeLocation(request.store, request.group, name)
        return cls(
            source=location,
            dest=location,
            format=first.format,
            config=settings.resolve(request.config),
            boxes=boxes,
            sizes=sizes,
            documents={
                path: render_texts(first.format, join(location.path, path), node) for path, node in nodes.items()
            },
            files={},
            consolidated=(),
            overwrite=request.mode == "w",
            request=request,
            identity=uuid4().hex,
            plans=plans,
        )

    @property
    def digest(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.identity

    def to_json(self, root: str | None = None) -> Never:
        raise UnsupportedOperation(
            "a plan of write_dataset has no JSON document, because the values of its dataset exist only in this process; send "
            "the plan itself to other processes, which can be pickled"
        )

    def opened(self, options: Options, source_options: Options = None) -> DatasetWork:
        location = self.dest.opened(options)
        return replace(self, source=location, dest=location, request=replace(self.request, store=location.store))

    @property
    def origin(self) -> str:
        return "a dataset"

    # -------------------------------------------------------------- tasks

    def part(self, number: int) -> DatasetWork:
        return replace(self, plans={}, cut={box: self._cut(box) for box in self.boxes[number]})

    def _cut(self, box: Box) -> VariablePlan:
        """Return the plan of a variable with the values of a box. Only the tasks of dask that they need are pickled."""
        if box in self.cut:
            return self.cut[box]
        plan = self.plans[box.array]
        values: Variable = plan.encoded[box.region]
        if is_dask_array(values.data):
            from dask.base import optimize

            (values,) = optimize(values)  # type: ignore[no-untyped-call]
        return replace(plan, encoded=values)

    def write(self, number: int, progress: Progress, *, verify: bool) -> IngestReport:
        with seceded(waits=True):
            return super().write(number, progress, verify=verify)

    async def write_boxes(
        self, boxes: Sequence[Box], progress: Progress, call: OneCall, *, verify: bool
    ) -> IngestReport:
        report = IngestReport()
        for box in boxes:
            target = VariableTarget.of(box.array, self._cut(box), self.array_of(box.array), box.region, "allow")
            add_reports(report, await target.write(verify=verify, progress=progress, is_hidden=True))
        return report

    async def _publish_rest(self, report: CopyReport, *, resume: bool, verify: bool) -> None:
        request = self.request
        if request.store.supports_consolidated_metadata and request.options.consolidated is not False:
            root = await root_alone(request, self.format) if request.group else None
            options: Any = {"zarr_format": self.format.zarr_format, "config": request.config}
            await consolidate_metadata(request.store, path=request.group if root is None else "", **options)


def _metadata(format_: Format, plan: VariablePlan, *, read: bool = False) -> ArrayMetadata:
    """Return the metadata of the array of a variable.

    Args:
        format_: The format.
        plan: The plan of the variable.
        read: Whether to return the metadata of an array with the blocks of dask as chunks, which tasks read.
    """
    blocks = getattr(plan.encoded, "chunks", None) if read else None
    if not blocks:
        return plan_array(format_, shape=plan.encoded.shape, **plan.options)
    chunks = tuple(max(1, *sizes) for sizes in blocks)
    return plan_array(format_, shape=plan.encoded.shape, dtype=plan.options["dtype"], chunks=chunks)
