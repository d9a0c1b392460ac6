"""``FilesWork``: the ingestion of files as a plan whose tasks run anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from zarrasync import config as settings
from zarrasync._util.redact import has_secrets
from zarrasync.bulk.files.records.plan import FilesPlan, Part
from zarrasync.bulk.files.running.planned_job import PlannedJob
from zarrasync.bulk.files.running.pool import FileWorkers
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.bulk.jobs.boxes import Sizes
from zarrasync.bulk.jobs.plan import Credentials, PlannedWork, Task
from zarrasync.bulk.jobs.plan_place import NodePlace, job_name
from zarrasync.display.progress import IngestReport, ProgressLike, report_progress
from zarrasync.display.text import counted
from zarrasync.errors import MetadataError
from zarrasync.indexing.axis_cuts import count_touched
from zarrasync.model.chunk_grids import Grid


@dataclass(frozen=True)
class FilesWork(PlannedWork):
    """The ingestion of files, whose tasks write the rows of files.

    Attributes:
        plan: The plan; ``None`` if all files were ingested before.
        dest: The destination.
        config: The settings.
        known: The number of files that were ingested before.
    """

    plan: FilesPlan | None
    dest: NodePlace
    config: settings.Config
    known: int = 0
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    kind = "ingest"

    # -------------------------------------------------------------- as data

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        plan = self.plan
        return {
            "dest": self.dest.to_json("destination", root),
            "plan": None if plan is None else plan.public(root).to_json(),
            "known": self.known,
            "notes": self.notes,
            "left_out": self.left_out,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], dest: NodePlace, root: str, config: settings.Config) -> FilesWork:
        """Return the work that ``to_json`` has described.

        Args:
            values: The description.
            dest: The destination.
            root: The directory from which relative paths start.
            config: The settings.

        Raises:
            MetadataError: If the values are not such a description.
        """
        try:
            plan, facts = values["plan"], (int(values["known"]), tuple(values["notes"]), tuple(values["left_out"]))
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"the plan of the ingestion is damaged: {error}") from error
        return cls(None if plan is None else FilesPlan.from_json(plan).under(root), dest, config, *facts)

    def opened(self, credentials: Credentials) -> FilesWork:
        plan = self.plan
        if plan is not None and credentials.source_options:
            options = {**plan.reader.storage_options, **credentials.source_options}
            plan = replace(plan, reader=replace(plan.reader, storage_options=options))
        return replace(self, plan=plan, dest=self.dest.opened(credentials.storage_options))

    # -------------------------------------------------------------- tasks and commands

    @property
    def digest(self) -> str:
        return "nothing" if self.plan is None else self.plan.digest

    @cached_property
    def sizes(self) -> Sequence[Sizes]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  # computed once
        plan = self.plan
        if plan is None:
            return []
        grids = {array.name: plan.metadata(array).grid for array in plan.arrays}
        parts = [(plan.task_bytes(part), _requests(plan, part, grids)) for part in plan.parts]
        return [Sizes(nbytes, nbytes, nbytes, requests) for nbytes, requests in parts]

    @cached_property
    def tasks(self) -> Sequence[Task]:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        plan, most = self.plan, self.config.memory_budget
        items = [] if plan is None else [(_text(plan, part), plan.task_bytes(part)) for part in plan.parts]
        return [Task(number, name, nbytes, min(nbytes, most)) for number, (name, nbytes) in enumerate(items)]

    def run(self, numbers: Sequence[int], *, executor: Any, verify: bool, progress: ProgressLike) -> IngestReport:
        if self.plan is None:
            return FilesReport(known=self.known)
        if not numbers:
            return IngestReport()
        name = f"ingest {job_name(self.dest.store, self.dest.path)}"
        with closing(FileWorkers(executor)) as workers, report_progress(progress, 0, name) as watch:
            workers.check_stores(self.dest.store)
            return self._job().run_independently(workers, numbers, verify=verify, progress=watch)

    def finish(self, *, verify: bool) -> FilesReport:
        if self.plan is None:
            return FilesReport(known=self.known, notes=list(self.notes), left_out=list(self.left_out))
        report = self._job().finish(verify=verify)
        report.known = self.known
        return report

    def abandon(self) -> None:
        if self.plan is not None:
            self._job().abandon()

    def _job(self) -> PlannedJob:
        assert self.plan is not None
        return PlannedJob.of(self.plan, self.dest.store, self.config)


def _text(plan: FilesPlan, part: Part) -> str:
    if part.array:
        return f"/{part.array}"
    return f"{plan.dim}[{part.start}:{part.stop}] of {counted(len(plan.arrays_of(part)), 'array')}"


def _requests(plan: FilesPlan, part: Part, grids: Mapping[str, Grid]) -> int:
    """Return about how many requests a task makes: one for each part of a file, and one for each stored value."""
    count = 0
    for array in plan.arrays_of(part):
        grid = grids[array.name]
        region = [slice(0, axis.extent) for axis in grid.axes]
        if array.axis is not None:
            region[array.axis] = slice(part.start, part.stop)
        values = (count_touched(selector, axis)[0] for selector, axis in zip(region, grid.axes, strict=True))
        count += math.prod(values) + len(plan.segments_of(part.start, part.stop))
    return count


def missing_credentials(plan: FilesPlan) -> list[str]:
    """Return a remark if the document of a plan leaves out credentials."""
    urls = sum(file.name != file.url for file in plan.files)
    places = [
        *([f"the URLs of {counted(urls, 'file')}"] * bool(urls)),
        *(["the options of the engine"] * has_secrets(plan.reader.engine_options)),
    ]
    if not places:
        return []
    return [f"the document of the plan lacks the credentials in {' and '.join(places)}; other processes need them"]
