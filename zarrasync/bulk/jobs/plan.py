"""``AsyncJobPlan``: a job that is divided into tasks, which run anywhere."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.redact import public_url
from zarrasync.bulk.jobs.boxes import Sizes
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.fencing import FencingToken
from zarrasync.bulk.jobs.plan_location import NodeLocation, PlanLocation, job_name
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import measured
from zarrasync.display.explanation import PlanExplanation
from zarrasync.display.progress import IngestReport, ProgressLike, skip_of
from zarrasync.errors import UnsupportedOperation, WriteConflictError
from zarrasync.stores import Store
from zarrasync.transfer.threads import Progress

Options: TypeAlias = Mapping[str, Any] | None
VERSION = 1
"""The version of stored plans."""


@dataclass(frozen=True)
class Task:
    """One task of a plan. It is independent of others of its stage, and may run again.

    Attributes:
        number: Its number, from 0.
        name: The part of the result that it writes.
        nbytes: The decoded size of the values that it writes, in bytes.
        memory: The largest size of values that it has in memory at a time, in bytes.
        stage: Its stage. It waits for all tasks of the stages before. Only pyramids have several, one for each level.
    """

    number: int
    name: str
    nbytes: int
    memory: int
    stage: int = 0


@dataclass(frozen=True)
class TaskRun:
    """A call that runs tasks.

    Attributes:
        numbers: The numbers of the tasks.
        workers: The workers that run them.
        token: The permission of processes that do not have the claim; ``None`` if this process has it, or without claims.
        report: The report to add counts to.
        advance: Called with the number of bytes written since the last call.
        verify: Whether to read the values back and compare them.
    """

    numbers: Sequence[int]
    workers: Any
    token: FencingToken | None
    report: Any
    advance: Progress
    verify: bool


class PlannedWork(ABC):
    """What a plan does. It can be pickled if its stores can. All methods block.

    Attributes:
        kind: The job: ``"ingest"``, ``"copy"``, ``"pyramid"`` or ``"write"``.
        dest: The destination.
        sizes: What each task reads and writes.
        notes: Remarks for the report.
        left_out: What the result will lack although no argument excludes it, with the reason.
    """

    kind: str
    dest: NodeLocation
    sizes: Sequence[Sizes]
    notes: Sequence[str]
    left_out: Sequence[str]

    @property
    @abstractmethod
    def digest(self) -> str:
        """A digest of the work, by which its document, the claim and the marks of finished tasks name it."""

    @property
    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """The tasks."""

    def explain(self) -> PlanExplanation:
        """Return what the plan reads and writes."""
        return PlanExplanation(
            self.kind,
            str(self.dest),
            [(task.name, task.nbytes, task.memory) for task in self.tasks],
            read_bytes=sum(sizes.read for sizes in self.sizes),
            written_bytes=sum(sizes.written for sizes in self.sizes),
            source_bytes=sum(sizes.source for sizes in self.sizes),
            requests=sum(sizes.requests for sizes in self.sizes),
            notes=[*self.notes, *self.left_out],
        )

    @abstractmethod
    def to_json(self, root: str | None = None) -> dict[str, Any]:
        """Return the plan as JSON values, without credentials.

        Args:
            root: The directory from which paths become relative; ``None`` if they stay absolute.

        Raises:
            UnsupportedOperation: If its sources have no names.
        """

    @abstractmethod
    def opened(self, options: Options, source_options: Options = None) -> PlannedWork:
        """Return the same work with other credentials.

        Args:
            options: Options of the filesystem or object store of the destination.
            source_options: Options of the filesystem or object store of the sources.
        """

    # -------------------------------------------------------------- commands

    @property
    def store(self) -> Store:
        """The store of the destination."""
        return self.dest.store

    @property
    def path(self) -> str:
        """The path of its node."""
        return self.dest.path

    @property
    def claim(self) -> Claim:
        """A claim of the destination, which this process does not have yet."""
        return Claim(self.store.notes, self.path)

    def run(self, numbers: Sequence[int], *, executor: Any, verify: bool, progress: ProgressLike) -> IngestReport:
        """Run tasks that are not finished, and mark each one.

        Raises:
            WriteConflictError: If the plan has ended.
        """
        report, claim = self.new_report(), self.claim
        if not numbers:
            return IngestReport() if self.tasks else report
        token, sizes = claim.token_for_plan(self.digest), {number: self.tasks[number].nbytes for number in numbers}
        finished = claim.folder.finished(self.digest) & sizes.keys()
        report.skipped, name = len(finished), f"{self.kind} {job_name(self.store, self.path)}"
        total = sum(sizes.values())
        with closing(self.new_workers(executor)) as workers, measured(report, progress, total, name) as advance:
            skip_of(advance)(sum(sizes[number] for number in finished))
            waiting = [number for number in numbers if number not in finished]
            self.run_tasks(TaskRun(waiting, workers, token, report, advance, verify))
        return report

    def finish(self, *, verify: bool) -> Any:
        """Check that all tasks are finished, and publish the result. May be repeated.

        Raises:
            NodeNotFoundError: If tasks are not finished.
            WriteConflictError: If the plan was abandoned or replaced.
        """
        claim = self.claim
        if not claim.is_in_progress(self.digest) and self.is_finished(claim):
            return self.complete(claim, is_finished=True, verify=verify)
        with claim.of_plan(self.digest):
            return self.complete(claim, is_finished=False, verify=verify)

    def abandon(self) -> None:
        """Drop the plan. May be repeated after a kill.

        Raises:
            WriteConflictError: If its result is being published or was published.
            StoreError: If tasks write new arrays, and the store does not allow to erase values. Nothing is changed then.
        """
        with self.claim.of_plan(self.digest) as claim:
            if self.is_visible(claim):
                raise WriteConflictError(
                    f"the plan for {claim.folder.dataset} cannot be abandoned, because its result is being published or can be "
                    "read already; complete it with `zarrasync ingest finish PLAN` or finish()",
                    key=self.path,
                )
            is_new = bool(claim.found.get("is_new")) and not self.store.checks_bounds
            if is_new:
                claim.folder.check_erases()
            claim.folder.forget_tasks()  # first, so that the plan cannot be finished if this process ends meanwhile
            if is_new:
                self.drop(claim)

    # -------------------------------------------------------------- what the commands need

    def new_report(self) -> IngestReport:
        """Return an empty report of running tasks."""
        return IngestReport()

    def new_workers(self, executor: Any) -> Workers:
        """Return where tasks run."""
        return Workers(executor)

    @abstractmethod
    def run_tasks(self, run: TaskRun) -> None:
        """Run tasks, and mark each one. ``new_workers`` has made the workers, and ``new_report`` the report."""

    @abstractmethod
    def is_finished(self, claim: Claim) -> bool:
        """Return whether an earlier call has published the result, if no plan is in progress."""

    @abstractmethod
    def complete(self, claim: Claim, *, is_finished: bool, verify: bool) -> Any:
        """Publish the result.

        Args:
            claim: The claim, which this process has unless the plan is finished.
            is_finished: Whether an earlier call has published the result.
            verify: Whether to compare values that this method writes.
        """

    def is_visible(self, claim: Claim) -> bool:
        """Return whether readers see the result or a part of it. This process has the claim."""
        return claim.is_publishing or claim.is_committed

    @abstractmethod
    def drop(self, claim: Claim) -> None:
        """Erase the values of new arrays, which tasks have written. This process has the claim."""


class AsyncJobPlan:
    """A job that is divided into tasks, which run anywhere: in this process, in others, or by a scheduler.

    ``run`` each task, in any order and at the same time, then ``finish``: readers see the result only then. Until a plan is
    finished or abandoned, other jobs cannot change its destination. A plan is a JSON document that lies at
    ``.ingest/plan.json`` in the destination, or at the location that ``plan`` names; ``open_plan`` opens it on other machines.
    It contains no credentials. Plans of data without a name, such as arrays in memory, have no document, but can be pickled.
    """

    def __init__(self, work: PlannedWork, location: PlanLocation | None) -> None:
        self._work, self._location = work, location

    @property
    def location(self) -> str:
        """The path or the URL by which ``open_plan`` opens this plan; empty if it has no document."""
        return "" if self._location is None else self._location.name

    @property
    def kind(self) -> str:
        """The job: ``"ingest"``, ``"copy"``, ``"pyramid"`` or ``"write"``."""
        return self._work.kind

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, with the sizes of the values that they write and of the memory that they need, in bytes."""
        return tuple(self._work.tasks)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the sources."""
        return tuple(self._work.notes)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Parts of the sources that the result will lack although no argument excludes them, with the reason."""
        return tuple(self._work.left_out)

    def explain(self) -> PlanExplanation:
        """Return what the plan reads and writes: passes over the sources, bytes, requests and memory."""
        return self._work.explain()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values, without credentials.

        Paths are absolute in a document on this machine. Elsewhere they are relative to the current directory.

        Raises:
            UnsupportedOperation: If the sources exist only in this process, such as arrays in memory.
        """
        root = os.getcwd() if self._location is not None and not self._location.is_local else None
        return {"version": VERSION, "kind": self.kind, "digest": self._work.digest, **self._work.to_json(root)}

    async def run(
        self,
        task: int | Task | Sequence[int | Task] | None = None,
        *,
        executor: Any = None,
        verify: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
        progress: ProgressLike = False,
    ) -> IngestReport:
        """Run a task, or all that are not finished. Tasks that are finished already are skipped.

        Args:
            task: The task or its number, or several ones. Numbers beyond the last task have nothing to do, because the
                size of an array job is often chosen before the plan. Default: all tasks.
            executor: Where several tasks run, as for ``ingest``. Default: this process.
            verify: Read the values back and compare them.
            storage_options: Options of the filesystem or object store of the destination, such as credentials.
            source_options: Options of the filesystem or object store of the sources.
            progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
                its last call, or a ``Monitor``.

        Returns:
            A report of the written values.

        Raises:
            ValueError: If the number is negative.
            ChecksumError: If values read back differ.
            WriteConflictError: If the plan was finished, abandoned or replaced.
            StoreError: If a store failed.
        """
        count = len(self._work.tasks)
        numbers = range(count) if task is None else sorted({number for number in _numbers(task) if number < count})
        work = self._work.opened(storage_options, source_options)
        call = partial(work.run, numbers, executor=executor, verify=verify, progress=progress)
        return await run_in_new_thread(call)

    async def finish(self, *, verify: bool = False, storage_options: Mapping[str, Any] | None = None) -> Any:
        """Check that all tasks are finished, and publish the result. May be repeated after a failure.

        Args:
            verify: Compare the values that this call writes with the stored ones.
            storage_options: Options of the filesystem or object store of the destination, such as credentials.

        Returns:
            A report of the job.

        Raises:
            NodeNotFoundError: If tasks are not finished. Nothing is published then.
            ChecksumError: If values read back differ.
            WriteConflictError: If the plan was abandoned or replaced.
            StoreError: If the store failed.
        """
        work = self._work.opened(storage_options)
        report = await run_in_new_thread(partial(work.finish, verify=verify))
        await self._erase()
        return report

    async def abandon(self, *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Drop the plan, and erase the values of new arrays that its tasks have written. May be repeated.

        New rows of existing arrays remain invisible, but rows that the tasks have replaced stay replaced.

        Args:
            storage_options: Options of the filesystem or object store of the destination, such as credentials.

        Raises:
            WriteConflictError: If the result is being published, or the plan was finished or abandoned.
            StoreError: If the store failed, or does not allow to erase values of new arrays. Nothing is changed then.
        """
        await run_in_new_thread(self._work.opened(storage_options).abandon)
        await self._erase()

    async def _erase(self) -> None:
        if self._location is not None:
            await run_in_new_thread(partial(self._location.erase, self._work.digest))

    def __repr__(self) -> str:
        return f"<AsyncJobPlan {self.explain().summary()}>"

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()  # the protocol of notebooks


def plan_with_document(work: PlannedWork, location: PlanLocation) -> tuple[AsyncJobPlan, dict[str, Any] | None]:
    """Return the plan for work, and its document; none in the destination if sources or the destination have no names.

    Raises:
        UnsupportedOperation: If they have no names, and the document would lie elsewhere.
    """
    plan = AsyncJobPlan(work, location)
    try:
        return plan, plan.to_json()
    except UnsupportedOperation:
        if not location.is_inside:
            raise
        return AsyncJobPlan(work, None), None


def _numbers(task: Any) -> list[int]:
    """Return the numbers of tasks.

    Raises:
        ValueError: If one is not a number of at least 0.
    """
    items = list(task) if isinstance(task, Sequence) and not isinstance(task, str) else [task]
    values = [item.number if isinstance(item, Task) else item for item in items]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise ValueError(f"the number of a task must be 0 or larger, found {value!r}")
    return [int(value) for value in values]


def name_of(value: Any) -> str:
    """Return the absolute path or the public URL of an argument, by which other processes open it; empty without one."""
    if not isinstance(value, str | os.PathLike):
        return ""
    path, bar, rest = os.fspath(value).partition("|")
    return public_url((path if "://" in path else os.path.abspath(path)) + bar + rest)
