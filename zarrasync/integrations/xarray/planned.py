"""New datasets as plans, whose tasks compute and write regions of variables in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Never
from uuid import uuid4

from xarray import Variable

from zarrasync import config as settings
from zarrasync import consolidate_metadata
from zarrasync.bulk.copy.planned import CopyWork, make_tasks, render_texts
from zarrasync.bulk.jobs.plan import Box, Credentials
from zarrasync.bulk.jobs.plan_place import NodePlace
from zarrasync.bulk.reports import CopyReport, add_reports
from zarrasync.display.progress import IngestReport
from zarrasync.errors import UnsupportedOperation
from zarrasync.formats import Format
from zarrasync.integrations.dask_targets import is_dask_array, seceded
from zarrasync.integrations.xarray.consolidation import root_alone
from zarrasync.integrations.xarray.job import Target, WriteJob, WriteRequest
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import plan_array
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.documents import Metadata
from zarrasync.transfer.threads import Progress

__all__ = ["DatasetWork"]


@dataclass(frozen=True)
class DatasetWork(CopyWork):
    """A new dataset whose tasks write regions of its variables. The source is the destination, as datasets have no place.

    Attributes:
        request: The arguments.
        identity: The digest, which is random because values are not compared.
        plans: The variables by their paths relative to the group.
        cut: The values of regions, instead of ``plans`` in other processes.
    """

    request: WriteRequest = field(kw_only=True, repr=False)
    identity: str = field(kw_only=True)
    plans: Mapping[str, VariablePlan] = field(kw_only=True, repr=False)
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
        pairs = [(path, _metadata(first.format, plan, read=True), arrays[path]) for path, plan in plans.items()]
        place = NodePlace(request.store, request.group, name)
        return cls(
            place,
            place,
            first.format,
            {path: render_texts(first.format, join(place.path, path), node) for path, node in nodes.items()},
            *make_tasks(pairs, tasks),
            files={},
            consolidated=(),
            overwrite=request.mode == "w",
            config=settings.resolve(request.config),
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

    def opened(self, credentials: Credentials) -> DatasetWork:
        place = self.dest.opened(credentials.storage_options)
        return replace(self, source=place, dest=place, request=replace(self.request, store=place.store))

    @property
    def _origin(self) -> str:
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
        report = IngestReport()
        with seceded(waits=True):
            for box in self.boxes[number]:
                target = Target.of(box.array, self._cut(box), self._copy_of(box.array), box.region, "allow")
                add_reports(report, self._run(target.write(verify=verify, progress=progress, is_hidden=True)))
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
