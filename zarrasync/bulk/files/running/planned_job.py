"""A job whose plan exists: its tasks, which run in one call or anywhere, and publishing or dropping the result."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from zarrasync import config as settings
from zarrasync._concurrency import bridge, clock
from zarrasync._util import records
from zarrasync._util.advice import in_terms_of
from zarrasync._util.redact import has_secrets, redacted_errors
from zarrasync.bulk.files.records.plan import FilesPlan, Part
from zarrasync.bulk.files.records.target import read_target
from zarrasync.bulk.files.running.moved_rows import drop_kept, restore_moved
from zarrasync.bulk.files.running.publish import (
    publication_record,
    publish_again,
    publish_arrays,
    publish_group,
    unchanged_arrays,
    write_inline,
)
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.files.sources.content import bad_files_error
from zarrasync.bulk.jobs.boxes import Sizes
from zarrasync.bulk.jobs.claim import WAIT_SECONDS, Claim
from zarrasync.bulk.jobs.plan import Credentials, PlannedWork, Task
from zarrasync.bulk.jobs.plan_place import NodePlace, job_name
from zarrasync.bulk.jobs.runs import Permit
from zarrasync.bulk.reports import add_reports
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport, JobProgress, ProgressLike, ignore_progress, report_progress
from zarrasync.display.text import counted
from zarrasync.errors import WriteConflictError
from zarrasync.indexing.axis_cuts import count_touched
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.chunk_grids import Grid
from zarrasync.model.paths import join
from zarrasync.nodes.append_resize import erase_pending
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import CountingStore, Store
from zarrasync.stores.base import Transaction

T = TypeVar("T")
_NEW_PLAN = (
    "since the job was planned; repeat the call",
    "since the job was planned",
)


class PlannedJob:
    """A job whose plan exists. All methods block.

    Its tasks run in one call, or as commands of other processes: ``run_independently`` and ``finish`` or ``abandon``.

    Args:
        plan: The plan.
        handle: The location of the destination, in a ``CountingStore`` or another store.
        claim: The claim of the destination.
        wait: Seconds to wait for tasks of other processes, and for commands that have the claim.
        is_independent: Whether the tasks run as commands of other processes.
        transaction: The transaction that the destination belongs to, if this class commits it.
        published: The location of the destination as readers see it, if that is another store.
    """

    def __init__(
        self,
        plan: FilesPlan,
        handle: NodeHandle,
        claim: Claim,
        wait: float = WAIT_SECONDS,
        *,
        is_independent: bool = False,
        transaction: Transaction | None = None,
        published: NodeHandle | None = None,
    ) -> None:
        self.plan = plan
        self._handle, self._claim, self._wait, self._is_independent = handle, claim, wait, is_independent
        self._transaction, self._published = transaction, published or handle
        self._done = set[int]()  # tasks that this process has run

    @classmethod
    def of(cls, plan: FilesPlan, store: Store, config: Config) -> PlannedJob:
        """Return the job of a plan that another process has made.

        Args:
            plan: The plan.
            store: The store of the destination.
            config: The settings.
        """
        handle, claim = plan.handle(store, config), Claim(store.notes, plan.path)
        state = b"" if store.notes is store else claim.folder.transaction()
        if not state:
            return cls(plan, handle, claim, is_independent=True)
        assert store.transactions is not None  # which have begun it
        transaction = store.transactions.attach(state)
        own = plan.handle(CountingStore(transaction.store), config)
        return cls(plan, own, claim, is_independent=True, transaction=transaction, published=handle)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=self._handle.store.blocking)

    # -------------------------------------------------------------- commands

    def run_independently(
        self,
        workers: FileWorkers,
        numbers: Sequence[int] | None = None,
        *,
        verify: bool = False,
        progress: JobProgress | None = None,
    ) -> FilesReport:
        """Run some tasks, or all of them. Other processes may run the same ones."""
        begin, report, plan = clock.monotonic(), FilesReport(), self.plan
        if progress is not None:
            progress.report = report
        permit = self._claim.permit_for_plan(plan.digest)
        self._check_transaction()
        with (
            in_terms_of(_NEW_PLAN),
            redacted_errors(plan.reader.storage_options, plan.reader.engine_options),
        ):
            self.run_tasks(workers, report, permit, numbers=numbers, verify=verify, progress=progress)
        report.seconds = clock.monotonic() - begin
        return report

    def finish(self, *, verify: bool = False) -> FilesReport:
        """Check that all tasks have been run, and publish the result. May be repeated.

        Args:
            verify: Whether to compare values of the plan with the stored ones.

        Raises:
            NodeNotFoundError: If tasks have not been run.
            WriteConflictError: If the plan was abandoned or replaced.
        """
        begin, plan = clock.monotonic(), self.plan
        report = FilesReport(
            files=len(plan.files), rows=plan.rows, notes=list(plan.notes), left_out=list(plan.left_out)
        )
        target = self._run(read_target(self._published, plan.dim))
        is_finished = plan.digest in target.journal.finished and (self._claim.is_enabled or target.contains(plan))
        if is_finished and not self._claim.is_in_progress(plan.digest):
            self._claim.folder.remove()  # an earlier call may have been killed
            report.notes.append("the plan was finished before")
        else:
            with self._claim.of_plan(plan.digest):
                changes = self._finish(report, verify=verify)
            if changes:
                raise WriteConflictError(f"{changes[0]}; make a new plan", key=plan.path)
        report.seconds = clock.monotonic() - begin
        return report

    def _finish(self, report: FilesReport, *, verify: bool) -> list[str]:
        """Publish the result. Return a message if another writer has changed the dataset so that it cannot be published."""
        if self._claim.is_committed:  # an earlier call was killed after that
            report.notes.append("the plan was finished before")
            return []
        self._check_transaction()
        if self._claim.is_publishing:  # an earlier call was killed
            return publish_again(self._claim, self._handle)
        self.complete(verify=verify, message=f"zarrasync ingest: {report.contents()}")
        return []

    def _check_transaction(self) -> None:
        """Raise an error if a command that has abandoned the plan was killed before it had removed the claim."""
        if self._published.store.checks_bounds and self._transaction is None:
            raise WriteConflictError(
                f"the plan for {self._handle.name} in {self._handle.store!r} was abandoned; complete that with `zarrasync "
                "ingest abandon PLAN`, and make a new plan",
                key=self._handle.path,
            )

    def abandon(self) -> None:
        """Drop the plan. May be repeated after a kill.

        The values of a new dataset are erased. In an existing dataset, new rows remain invisible, but rows that the tasks
        have replaced stay replaced (``region`` and ``on_duplicate="replace"``).

        Raises:
            WriteConflictError: If the result is being published, or the plan is finished or abandoned.
        """
        plan = self.plan
        with self._claim.of_plan(plan.digest):
            is_committed = self._transaction is not None and self._transaction.is_committed()
            is_committed = is_committed or self._claim.is_committed
            if self._claim.is_publishing or is_committed or (plan.is_new and self._is_published()):
                raise WriteConflictError(
                    f"the plan for {self._handle.name} in {self._handle.store!r} cannot be abandoned, because its rows are "
                    "being published or can be read already; complete it with `zarrasync ingest finish PLAN`",
                    key=self._handle.path,
                )
            self._claim.folder.forget_tasks()  # first, so that the plan cannot be finished if this process ends meanwhile
            if plan.is_new and self._transaction is None:
                self._run(erase_arrays(self._handle, [array.name for array in plan.arrays]))

    def _is_published(self) -> bool:
        """Return whether readers see the new dataset of the plan. Stores without claims do not record that."""
        target = self._run(read_target(self._published, self.plan.dim))
        is_group_last = not self._handle.store.checks_bounds
        return target.contains(self.plan) or (is_group_last and bool(target.arrays))

    # -------------------------------------------------------------- tasks

    def prepare(self) -> None:
        """Make the destination ready for tasks."""
        plan, handle = self.plan, self._handle
        if handle.store.checks_bounds:  # a transaction, in which nothing is visible before it is committed
            self._run(publish_arrays(plan, handle))
            self._run(publish_group(plan, handle, is_complete=False))
        for array in plan.arrays:
            if array.shape is not None:
                target = plan.open(array, handle.store, handle.config)
                present = target.metadata.with_shape(array.shape)
                place = NodeHandle(handle.store, target.path, handle.format, handle.config)
                self._run(erase_pending(place, present))

    def run_tasks(
        self,
        workers: FileWorkers,
        report: FilesReport,
        permit: Permit | None,
        *,
        numbers: Sequence[int] | None = None,
        verify: bool = False,
        progress: JobProgress | None = None,
    ) -> None:
        """Run the tasks that are not finished, and mark each one.

        Args:
            workers: Where to run them.
            report: The report to add counts to.
            permit: The permission for processes that do not have the claim.
            numbers: The numbers of the tasks; all by default.
            verify: Whether to compare stored values with the files.
            progress: The progress of the job, whose size is set.
        """
        plan, store, config = self.plan, self._handle.store, self._handle.config
        fork = store.forks.fork() if self._is_independent and store.forks is not None else None
        if fork is None:
            self.prepare()
        finished = self._claim.folder.finished(plan.digest)
        chosen = range(len(plan.parts)) if numbers is None else sorted(set(numbers))
        waiting = [n for n in chosen if n not in finished]
        report.skipped += len(chosen) - len(waiting)
        if progress is not None:
            sizes = {n: plan.task_bytes(plan.parts[n]) for n in chosen}
            progress.expect(sum(sizes.values()), plan.rows if numbers is None else 0)
            progress.skip(sum(sizes[n] for n in finished & sizes.keys()))

        bad, is_marked = dict[str, str](), workers.is_local and permit is None and len(plan.parts) > 1

        def mark(number: int) -> str:
            return "" if permit is None else self._claim.folder.task_key(plan.digest, number)

        def done(number: int, part: FilesReport) -> None:
            if is_marked and not part.bad_files:
                self._claim.mark(plan.digest, number)
            add_reports(report, part)
            bad.update(part.bad_files)
            if not part.bad_files:
                self._done.add(number)
                report.tasks += 1
            self._claim.check()

        def written(nbytes: int) -> None:
            self._claim.check()
            (progress or ignore_progress)(nbytes)

        options: Any = {"verify": verify, "fork": fork, "permit": permit, "mark": mark, "done": done}
        workers.run_tasks(plan, waiting, store, config, progress=written, **options)
        if bad and self._is_independent:
            has_changed = all(_NEW_PLAN[0] in reason for reason in bad.values())
            hint = "drop the plan with `zarrasync ingest abandon PLAN`, and make a new one"
            raise bad_files_error(bad, len(plan.files), hint + ("" if has_changed else " without these files"))
        if bad:
            raise bad_files_error(bad, len(plan.files))

    # -------------------------------------------------------------- publishing

    def complete(self, *, verify: bool = False, message: str = "") -> None:
        """Publish the result of all tasks. This process has the claim, and keeps it.

        Args:
            verify: Whether to compare the stored labels, and other values in the plan, with the plan.
            message: The message of the commit, if the job has a transaction.

        Raises:
            NodeNotFoundError: If tasks have not been run.
            ChecksumError: If stored values differ. Nothing was published then. Finishing again compares them again.
            WriteConflictError: If other writers have changed the dataset since the transaction has begun.
        """
        plan = self.plan
        self._claim.end_runs(self._wait)
        if self._claim.is_enabled:
            self._claim.folder.check_finished(plan.digest, len(plan.parts), self._done)
        self._claim.check()
        if self._transaction is not None and (forks := self._handle.store.forks) is not None:
            for changes in self._claim.folder.results(plan.digest):
                forks.merge(changes)
        is_grown = self._handle.store.checks_bounds  # by ``prepare``, in a transaction
        present = {} if is_grown else self._run(unchanged_arrays(plan, self._handle))
        self._run(write_inline(plan, self._handle, verify=verify))
        if self._claim.is_enabled and self._transaction is None:
            record = publication_record(plan, self._handle, is_independent=self._is_independent)
            self._claim.begin_publishing(record)
        self.publish(present)
        if self._transaction is not None:
            self._commit(self._transaction, message)
        self._claim.is_published = True

    def _commit(self, transaction: Transaction, message: str) -> None:
        try:
            transaction.commit(message, self.plan.path)
            self._claim.note_commit()
        except WriteConflictError as error:
            raise WriteConflictError(
                f"{error}. Drop the plan with `zarrasync ingest abandon PLAN`, and make a new one", key=error.key
            ) from error

    def publish(self, present: Mapping[str, ArrayMetadata] = MappingProxyType({})) -> None:
        """Store the documents that make the result visible. All values are stored. May be repeated.

        Args:
            present: As for ``publish_arrays``.
        """
        self._run(publish_arrays(self.plan, self._handle, present))
        self._claim.check()
        self._run(publish_group(self.plan, self._handle, is_independent=self._is_independent))

    def forget_finish(self) -> None:
        """Remove the record that an equal plan was finished before, because this one is not."""
        target = self._run(read_target(self._handle, self.plan.dim))
        if self.plan.digest in target.journal.finished:
            self._run(publish_group(self.plan, self._handle, is_complete=False))


def complete_earlier_job(claim: Claim, handle: NodeHandle, *, is_replaced: bool = False) -> list[str]:
    """Publish the result of an interrupted job that had begun to publish, and remove its marks from the claim.

    Args:
        claim: The claim, which this process has.
        handle: The location of the destination.
        is_replaced: Whether the dataset will be replaced, so that the result is not needed.

    Returns:
        A message if the result could not be published, because another writer has changed the dataset.
    """
    if not claim.is_publishing:
        if claim.found.get("cut"):
            drop_kept(claim, handle) if is_replaced else restore_moved(claim, handle)
        return []
    notes = [] if is_replaced else publish_again(claim, handle)
    if claim.found.get("cut"):
        restore_moved(claim, handle) if notes else drop_kept(claim, handle)
    claim.end_publishing()
    return notes


async def erase_arrays(handle: NodeHandle, names: Iterable[str]) -> None:
    """Erase the arrays of a dataset that was not published."""
    for name in names:
        for prefix in handle.format.erase_prefixes(join(handle.path, name)):
            await handle.store.erase_prefix(prefix)


# ------------------------------------------------------------------ plans


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
    dest: NodePlace = field(metadata=records.TRANSIENT)
    config: settings.Config = field(metadata=records.TRANSIENT)
    known: int = 0
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    kind = "ingest"

    # -------------------------------------------------------------- as data

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        own = replace(self, plan=None if self.plan is None else self.plan.public(root))
        return {"dest": self.dest.to_json("destination", root), **records.to_json(own)}

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
        own = {item.name: values[item.name] for item in fields(cls) if item.name in values.keys() - {"dest"}}
        work = records.from_json(cls, own, "plan of the ingestion", dest=dest, config=config)
        return replace(work, plan=None if work.plan is None else work.plan.under(root))

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
