"""A job whose plan exists: its tasks, which run in one call or anywhere, and publishing or dropping the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

from zarrasync import config as settings
from zarrasync._concurrency import clock
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
from zarrasync.bulk.files.running.tasks import FileWorkers, TaskRunner, run_task
from zarrasync.bulk.files.sources.content import bad_files_error
from zarrasync.bulk.jobs.boxes import Sizes
from zarrasync.bulk.jobs.claim import WAIT_SECONDS, Claim
from zarrasync.bulk.jobs.plan import Options, PlannedWork, Task, TaskRun
from zarrasync.bulk.jobs.plan_location import NodeLocation
from zarrasync.bulk.reports import FilesReport, add_reports
from zarrasync.display.progress import JobProgress
from zarrasync.display.text import counted
from zarrasync.errors import WriteConflictError
from zarrasync.indexing.axis_cuts import count_touched
from zarrasync.model.chunk_grids import Grid
from zarrasync.model.paths import join
from zarrasync.nodes.append_resize import erase_pending
from zarrasync.nodes.node import NodeHandle, run_blocking
from zarrasync.stores import CountingStore, Store
from zarrasync.stores.base import Transaction
from zarrasync.stores.changes import count_change

_NEW_PLAN = (
    "since the job was planned; repeat the call",
    "since the job was planned",
)


class PlannedJob:
    """A job whose plan exists. All methods block.

    Its tasks run in one call, or as commands of other processes; see ``FilesWork``.

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

    # -------------------------------------------------------------- commands

    def is_finished(self) -> bool:
        """Return whether an earlier command has published the result."""
        target = run_blocking(self._handle.store, read_target(self._published, self.plan.dim))
        return self.plan.digest in target.journal.finished and (self._claim.is_enabled or target.contains(self.plan))

    def finish(self, report: FilesReport, *, verify: bool) -> list[str]:
        """Publish the result, unless an earlier call has published it, or has begun to.

        Args:
            report: The report, to which notes are added.
            verify: Whether to compare values of the plan with the stored ones.

        Returns:
            A message if another writer has changed the dataset so that the result cannot be published.
        """
        if self._claim.is_committed:  # an earlier call was killed after that
            report.notes.append("the plan was finished before")
            return []
        self.check_transaction()
        if self._claim.is_publishing:  # an earlier call was killed
            return publish_again(self._claim, self._handle)
        self.complete(verify=verify, message=f"zarrasync ingest: {report.contents()}")
        return []

    def check_transaction(self) -> None:
        """Raise an error if a command that has abandoned the plan was killed before it had removed the claim."""
        if self._published.store.checks_bounds and self._transaction is None:
            raise WriteConflictError(
                f"the plan for {self._handle.name} in {self._handle.store!r} was abandoned; complete that with `zarrasync "
                "ingest abandon PLAN`, and make a new plan",
                key=self._handle.path,
            )

    def is_visible(self) -> bool:
        """Return whether readers see the result or a part of it. Stores without claims do not record that."""
        if self._claim.is_publishing or self._claim.is_committed:
            return True
        if self._transaction is not None and self._transaction.is_committed():
            return True
        if not self.plan.is_new:
            return False
        target = run_blocking(self._handle.store, read_target(self._published, self.plan.dim))
        is_group_last = not self._handle.store.checks_bounds
        return target.contains(self.plan) or (is_group_last and bool(target.arrays))

    # -------------------------------------------------------------- tasks

    def prepare(self) -> None:
        """Make the destination ready for tasks."""
        plan, handle = self.plan, self._handle
        if handle.store.checks_bounds:  # a transaction, in which nothing is visible before it is committed
            run_blocking(self._handle.store, publish_arrays(plan, handle))
            run_blocking(self._handle.store, publish_group(plan, handle, is_complete=False))
        for array in plan.arrays:
            if array.shape is not None:
                target = plan.open(array, handle.store, handle.config)
                present = target.metadata.with_shape(array.shape)
                place = NodeHandle(handle.store, target.path, handle.format, handle.config)
                run_blocking(self._handle.store, erase_pending(place, present))

    def unfinished(self, report: FilesReport, progress: JobProgress | None) -> list[int]:
        """Return the numbers of the tasks that are not finished.

        Args:
            report: The report to add the number of the others to.
            progress: The progress of the job, whose size is set.
        """
        sizes = [self.plan.task_bytes(part) for part in self.plan.parts]
        finished = self._claim.folder.finished(self.plan.digest) & {*range(len(sizes))}
        report.skipped += len(finished)
        if progress is not None:
            progress.expect(sum(sizes), self.plan.rows)
            progress.skip(sum(sizes[number] for number in finished))
        return [number for number in range(len(sizes)) if number not in finished]

    def run_tasks(self, run: TaskRun) -> None:
        """Run tasks, and mark each one. Tasks of a stored plan prepare the destination first, unless they have a fork of the store.

        On other processes, tasks whose process ended are run again by another one. If the processes need forks of the store, the
        changes of each task are merged when it has ended.

        Raises:
            SourceFilesError: If files cannot be read. The other tasks were run.
            StoreError: If processes that run the same task ended several times, or the store failed.
        """
        plan, claim, report, bad = self.plan, self._claim, run.report, dict[str, str]()
        store, config, forks = self._handle.store, self._handle.config, self._handle.store.forks
        if self._is_independent and forks is None:
            self.prepare()
        is_marked = run.workers.is_local and run.token is None and len(plan.parts) > 1

        def mark(number: int) -> str:
            return "" if run.token is None else claim.folder.task_key(plan.digest, number)

        def done(number: int, part: FilesReport) -> None:
            add_reports(report, part)
            bad.update(part.bad_files)
            if not part.bad_files:
                if is_marked:
                    claim.mark(plan.digest, number)
                self._done.add(number)
                report.tasks += 1
            claim.check()

        def written(nbytes: int) -> None:
            claim.check()
            run.advance(nbytes)

        if run.workers.is_local:
            files = run.workers.local_files(plan.reader, config)
            fork = forks.fork() if self._is_independent and forks is not None else partial(_same, store)
            for number in run.numbers:
                runner = TaskRunner(plan, fork(), config, files, run.verify)
                done(number, runner.run(plan.parts[number], mark(number), run.token, written))
        else:
            own = run.workers.config_of_each(plan.reader, config)
            open_store = partial(_same, store) if forks is None else forks.fork()

            def call(number: int) -> Callable[[], tuple[FilesReport, bytes]]:
                part = plan.for_part(plan.parts[number])
                return partial(run_task, part, mark(number), run.token, open_store, own, verify=run.verify)

            def ended(number: int, result: tuple[FilesReport, bytes]) -> None:
                part, changes = result
                if changes and forks is not None:
                    forks.merge(changes)
                done(number, part)
                if not part.bad_files:
                    written(part.nbytes)

            run.workers.run(run.numbers, call, ended)
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
        present = {} if is_grown else run_blocking(self._handle.store, unchanged_arrays(plan, self._handle))
        run_blocking(self._handle.store, write_inline(plan, self._handle, verify=verify))
        if self._claim.is_enabled and self._transaction is None:
            record = publication_record(plan, self._handle, is_independent=self._is_independent)
            self._claim.begin_publishing(record)
        run_blocking(self._handle.store, publish_arrays(plan, self._handle, present))
        self._claim.check()
        run_blocking(self._handle.store, publish_group(plan, self._handle, is_independent=self._is_independent))
        if self._transaction is not None:
            self._commit(self._transaction, message)
        self._claim.is_published = True

    def _commit(self, transaction: Transaction, message: str) -> None:
        try:
            transaction.commit(message, self.plan.path)
            count_change(self._published.store, self.plan.path, below=True)
            self._claim.update(committed=True)
        except WriteConflictError as error:
            raise WriteConflictError(
                f"{error}. Drop the plan with `zarrasync ingest abandon PLAN`, and make a new one", key=error.key
            ) from error

    def forget_finish(self) -> None:
        """Remove the record that an equal plan was finished before, because this one is not."""
        target = run_blocking(self._handle.store, read_target(self._handle, self.plan.dim))
        if self.plan.digest in target.journal.finished:
            run_blocking(self._handle.store, publish_group(self.plan, self._handle, is_complete=False))


def _same(store: Store) -> Store:
    return store


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
    dest: NodeLocation = field(metadata=records.TRANSIENT)
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
    def from_json(cls, values: Mapping[str, Any], dest: NodeLocation, root: str, config: settings.Config) -> FilesWork:
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

    def opened(self, options: Options, source_options: Options = None) -> FilesWork:
        plan = self.plan
        if plan is not None and source_options:
            own = {**plan.reader.storage_options, **source_options}
            plan = replace(plan, reader=replace(plan.reader, storage_options=own))
        return replace(self, plan=plan, dest=self.dest.opened(options))

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

    def job(self, claim: Claim) -> PlannedJob:
        """Return the job, whose destination may belong to a transaction that another process has begun.

        Args:
            claim: The claim of the destination.
        """
        assert self.plan is not None
        handle = self.plan.handle(self.store, self.config)
        state = b"" if self.store.notes is self.store else claim.folder.transaction()
        if not state:
            return PlannedJob(self.plan, handle, claim, is_independent=True)
        assert self.store.transactions is not None  # which have begun it
        transaction = self.store.transactions.attach(state)
        own = self.plan.handle(CountingStore(transaction.store), self.config)
        return PlannedJob(self.plan, own, claim, is_independent=True, transaction=transaction, published=handle)

    def new_report(self) -> FilesReport:
        return FilesReport(known=self.known if self.plan is None else 0)

    def new_workers(self, executor: Any) -> FileWorkers:
        return FileWorkers(executor)

    def run_tasks(self, run: TaskRun) -> None:
        job = self.job(self.claim)
        job.check_transaction()
        run.workers.check_stores(self.store)
        reader = job.plan.reader
        with in_terms_of(_NEW_PLAN), redacted_errors(reader.storage_options, reader.engine_options):
            job.run_tasks(run)

    def is_finished(self, claim: Claim) -> bool:
        return self.plan is None or self.job(claim).is_finished()

    def complete(self, claim: Claim, *, is_finished: bool, verify: bool) -> FilesReport:
        begin, plan = clock.monotonic(), self.plan
        if plan is None:
            return FilesReport(known=self.known, notes=list(self.notes), left_out=list(self.left_out))
        report = FilesReport(known=self.known, files=len(plan.files), rows=plan.rows)
        report.notes, report.left_out = list(plan.notes), list(plan.left_out)
        if is_finished:
            claim.folder.remove()  # an earlier call may have been killed
            report.notes.append("the plan was finished before")
        elif changes := self.job(claim).finish(report, verify=verify):
            claim.release()
            raise WriteConflictError(f"{changes[0]}; make a new plan", key=plan.path)
        report.seconds = clock.monotonic() - begin
        return report

    def abandon(self) -> None:
        if self.plan is not None:
            super().abandon()

    def is_visible(self, claim: Claim) -> bool:
        return self.job(claim).is_visible()

    def drop(self, claim: Claim) -> None:
        """Erase the values of a new dataset. In an existing one, new rows are invisible, and replaced rows stay replaced."""
        assert self.plan is not None
        handle = self.plan.handle(self.store, self.config)
        run_blocking(self.store, erase_arrays(handle, [array.name for array in self.plan.arrays]))


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
    places = [f"the URLs of {counted(urls, 'file')}"] * bool(urls)
    places += ["the options of the engine"] * has_secrets(plan.reader.engine_options)
    if not places:
        return []
    return [f"the document of the plan lacks the credentials in {' and '.join(places)}; other processes need them"]
