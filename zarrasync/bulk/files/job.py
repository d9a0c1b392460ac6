"""A job from its files to the published dataset: in one call, or divided into planning, tasks and finishing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from zarrasync import formats
from zarrasync._concurrency import bridge, clock
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.files.claim import Claim
from zarrasync.bulk.files.headers import SourceFile
from zarrasync.bulk.files.journal import ATTRIBUTE, Journal
from zarrasync.bulk.files.known import unknown_files
from zarrasync.bulk.files.plan import JobPlan
from zarrasync.bulk.files.planning import Parameters, plan_job
from zarrasync.bulk.files.pool import Workers
from zarrasync.bulk.files.publish import publish_arrays, publish_group, write_inline
from zarrasync.bulk.files.report import FilesReport
from zarrasync.bulk.files.runs import Permit
from zarrasync.bulk.files.target import Target, read_target
from zarrasync.bulk.files.tasks import TaskRunner, add_reports, planned_array
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport, JobProgress
from zarrasync.display.text import counted
from zarrasync.errors import NodeExistsError, NodeNotFoundError, WriteConflictError
from zarrasync.model.paths import join
from zarrasync.nodes.append_resize import erase_pending
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import Store
from zarrasync.transfer.unaligned import Unaligned

__all__ = ["Job"]

T = TypeVar("T")


class Job:
    """A job with many files. All methods block.

    Args:
        files: The files.
        handle: The location of the destination, in a ``CountingStore`` or another store.
        parameters: The parameters.
        mode: ``"a"``: create, or continue the same job; ``"w"``: replace; ``"w-"``: create.
        wait: Seconds to wait for another job that writes the same dataset.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        handle: NodeHandle,
        parameters: Parameters,
        mode: str = "a",
        wait: float = 600.0,
    ) -> None:
        self.files, self.handle, self.parameters, self.mode, self._wait = list(files), handle, parameters, mode, wait
        self.claim = Claim(handle.store, handle.path)
        self.journal = Journal()

    @classmethod
    def of_plan(cls, plan: JobPlan, store: Store, config: Config) -> Job:
        """Return the job of a plan that was made before."""
        format_ = formats.by_name(plan.zarr_format)
        handle = NodeHandle(store, plan.path, format_, config, is_format_known=True)
        return cls(plan.files, handle, Parameters(plan.dim, reader=plan.reader))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=self.handle.store.blocking)

    # -------------------------------------------------------------- all of it

    def run(
        self,
        workers: Workers,
        *,
        verify: bool = False,
        unaligned: Unaligned = "safe",
        progress: JobProgress | None = None,
    ) -> FilesReport:
        """Plan the job, run its tasks, and publish the result.

        Args:
            workers: Where to read headers and run tasks.
            verify: Whether to compare stored values with the files.
            unaligned: Whether tasks may share chunks.
            progress: The progress of the job, whose size is set after planning.
        """
        begin = clock.monotonic()
        with self.claim:
            self.claim.acquire(self._wait)
            self._complete_earlier_job()
            plan, report = self.plan(workers)
            if progress is not None:
                progress.report = report
            if plan is None:
                self.claim.release()
            else:
                permit = None if workers.is_local else self.claim.permit()
                self.run_tasks(plan, workers, report, permit, verify=verify, unaligned=unaligned, progress=progress)
                self.finish(plan, verify=verify)
        report.seconds = clock.monotonic() - begin
        return report

    # -------------------------------------------------------------- independent tasks

    def plan_only(
        self, workers: Workers, save: Callable[[JobPlan], None] = lambda plan: None
    ) -> tuple[JobPlan | None, FilesReport]:
        """Return a plan whose tasks other processes run. No other job can change the dataset until it is finished.

        Args:
            workers: Where to read the headers of the files.
            save: Keeps the plan. It is called before other jobs are kept out for longer than this process runs.
        """
        in_progress = self.claim.planned()
        if in_progress:  # the process may have been killed before it returned the plan
            plan, report, _ = self._make_plan(workers)
            if plan is not None and plan.digest == in_progress:
                save(plan)
                return plan, report
        with self.claim:
            self.claim.acquire(self._wait)
            self._complete_earlier_job()
            plan, report = self.plan(workers)
            if plan is None:
                self.claim.release()
            else:
                self.prepare(plan)
                save(plan)
                self.claim.plan_only()
        return plan, report

    def run_planned(
        self,
        plan: JobPlan,
        workers: Workers,
        numbers: Sequence[int] | None,
        *,
        verify: bool = False,
        progress: JobProgress | None = None,
    ) -> FilesReport:
        """Run some tasks of a plan, or all of them. Other processes may run the same ones."""
        begin, report = clock.monotonic(), FilesReport()
        if progress is not None:
            progress.report = report
        permit = self.claim.permit_for_plan(plan.digest)
        for number in numbers or ():
            if not 0 <= number < len(plan.parts):
                raise ValueError(f"the plan has the tasks 0 to {len(plan.parts) - 1}, not {number}")
        self.run_tasks(plan, workers, report, permit, numbers=numbers, verify=verify, progress=progress)
        report.seconds = clock.monotonic() - begin
        return report

    def finish_planned(self, plan: JobPlan, *, verify: bool = False) -> FilesReport:
        """Check that all tasks of a plan have been run, and publish the result. May be repeated."""
        begin = clock.monotonic()
        report = FilesReport(files=len(plan.files), rows=plan.rows, notes=list(plan.notes))
        target = self._run(read_target(self.handle, plan.dim))
        if not self.claim.is_in_progress(plan.digest) and target.contains(plan):
            self.claim.remove_folder()  # an earlier call may have been killed
            report.notes.append("the plan was finished before")
            return report
        self.claim.acquire(self._wait, plan.digest)
        try:
            if self.claim.is_publishing:  # an earlier call was killed
                self._publish_again()
                self.claim.release()
            else:
                self.journal = self._run(read_target(self.handle, plan.dim)).journal
                self.finish(plan, verify=verify)
        except BaseException:
            self.claim.plan_only()
            raise
        report.seconds = clock.monotonic() - begin
        return report

    def abandon(self, plan: JobPlan) -> None:
        """Drop a plan. May be repeated after a kill.

        The values of a new dataset are erased. In an existing dataset, new rows remain invisible, but rows that the tasks
        have replaced stay replaced (``region`` and ``on_duplicate="replace"``).

        Raises:
            WriteConflictError: If the result is being published, or the plan is finished or abandoned.
        """
        self.claim.acquire(self._wait, plan.digest)
        try:
            if self.claim.is_publishing or (plan.is_new and self._is_published(plan)):
                raise WriteConflictError(
                    f"the plan for {self.handle.name} in {self.handle.store!r} cannot be abandoned, because its rows are "
                    "being published or can be read already; complete it with `zarrasync ingest finish PLAN`",
                    key=self.handle.path,
                )
            self.claim.forget_tasks()  # first, so that the plan cannot be finished if this process ends meanwhile
            if plan.is_new:
                self._erase_arrays([array.name for array in plan.arrays])
        except BaseException:
            self.claim.restore()
            raise
        self.claim.release()

    def _is_published(self, plan: JobPlan) -> bool:
        """Return whether readers see the new dataset of a plan. Stores without claims do not record that."""
        target = self._run(read_target(self.handle, plan.dim))
        is_group_last = not self.handle.store.bounded
        return target.contains(plan) or (is_group_last and target.group is not None)

    # -------------------------------------------------------------- planning

    def plan(self, workers: Workers) -> tuple[JobPlan | None, FilesReport]:
        """Return the plan and a report without counts. The plan is ``None`` if all files were ingested before.

        From now on the claim belongs to this plan.
        """
        plan, report, files = self._make_plan(workers)
        if plan is None:
            return None, report
        self._check_unfinished(plan)
        if self.claim.found.get("plan") != plan.digest:
            self.claim.forget_tasks()
            if self.mode == "w":
                self._erase()
        self.claim.update(
            plan=plan.digest, is_new=plan.is_new, arrays=[a.name for a in plan.arrays], files=_text(files)
        )
        if plan.is_new:
            self._refuse_members(plan)
        return plan, report

    def _make_plan(self, workers: Workers) -> tuple[JobPlan | None, FilesReport, list[SourceFile]]:
        """Return the plan, a report without counts, and the files that were not ingested before. Change nothing."""
        target = self._run(read_target(self.handle, self.parameters.dim)) if self.mode != "w" else Target(self.handle)
        self._check_destination(target)
        report, files = FilesReport(), self.files
        self.journal = target.journal
        if target.group is not None:
            if self.parameters.region is None:
                files, report.notes = unknown_files(files, target, self.parameters)
            report.known = len(self.files) - len(files)
            if not files:
                return None, report, files
            if not self.parameters.append and self.parameters.region is None:
                self._refuse_existing(target, files)
        headers = workers.headers(files, self.parameters.reader)
        plan = plan_job(headers, target, self.parameters)
        self.handle = target.handle
        report.files, report.rows, report.notes = len(files), plan.rows, [*report.notes, *plan.notes]
        if not plan.rows and not plan.is_new:
            report.notes.append("all rows exist already")
        return plan, report, files

    def _check_destination(self, target: Target) -> None:
        needs = self.parameters.region is not None
        if self.mode == "r+" or needs:
            if target.group is None:
                raise NodeNotFoundError(
                    f"there is no dataset to change: no group exists at {self.handle.name} in {self.handle.store!r}",
                    path=self.handle.path,
                    store=repr(self.handle.store),
                )
        elif self.mode == "w-" and target.group is not None:
            raise self._exists("a group exists at {place}; pass mode='w' to replace it")
        if target.group is not None and target.journal.dim not in ("", self.parameters.dim):
            raise self._exists(
                f"the files of {{place}} were joined along {target.journal.dim!r}; pass concat={target.journal.dim!r}"
            )
        is_same = not target.journal.parameters or target.journal.parameters == self.parameters.digest
        if target.group is not None and not self.parameters.append and not needs and not is_same:
            raise self._exists(
                "{place} contains files that were ingested with other parameters (chunks, encoding, variables or decode); "
                "pass mode='w' to replace them, or append=True to add files with the existing layout"
            )

    def _refuse_existing(self, target: Target, files: Sequence[SourceFile]) -> None:
        """Raise an error, because a dataset exists and contains other files."""
        contents = target.journal.text() if target.journal.files else "data of an unknown source"
        changed = [file for file in files if file.name in {known.url for known in target.journal.files}]
        what = f"{changed[0].name} has changed since" if changed else f"it does not contain {_text(files)}"
        raise self._exists(
            f"{{place}} contains {contents}, and {what}; pass append=True to add rows, region='auto' to write existing rows "
            "again, or mode='w' to replace the dataset"
        )

    def _check_unfinished(self, plan: JobPlan) -> None:
        """Raise an error if an unfinished job has stored values of other files at the place of a new dataset."""
        found = self.claim.found
        if plan.is_new and self.mode != "w" and found.get("is_new") and found.get("plan") != plan.digest:
            raise self._exists(
                f"an ingestion of {found.get('files')} into {{place}} was interrupted; repeat it with the same files and "
                "parameters to complete it, or pass mode='w' to replace it"
            )

    def _exists(self, text: str) -> NodeExistsError:
        place = f"{self.handle.name} in {self.handle.store!r}"
        return NodeExistsError(text.replace("{place}", place), path=self.handle.path, store=repr(self.handle.store))

    def _refuse_members(self, plan: JobPlan) -> None:
        """Raise an error if arrays or groups exist where a new dataset will be, although the group does not exist."""
        paths = [join(self.handle.path, array.name) for array in plan.arrays]
        nodes = self._run(find_all(self.handle, paths, (self.handle.format,), strict=False))
        for path, node in zip(paths, nodes, strict=True):
            if node is not None and self.claim.found.get("plan") != plan.digest:
                raise self._exists(
                    f"a node exists at /{path}, although no group exists at {{place}}; pass mode='w' to replace it"
                )

    def _erase(self) -> None:
        """Erase the dataset that is replaced, or what an interrupted job has left."""
        self._run(erase_node(self.handle))
        self._erase_arrays(self.claim.found.get("arrays", ()) if self.claim.found.get("is_new") else ())

    def _erase_arrays(self, names: Sequence[str]) -> None:
        for name in names:
            for prefix in self.handle.format.erase_prefixes(join(self.handle.path, name)):
                self._run(self.handle.store.erase_prefix(prefix))

    # -------------------------------------------------------------- tasks

    def prepare(self, plan: JobPlan) -> None:
        """Make the destination ready for tasks."""
        if self.handle.store.bounded:  # a transaction, in which nothing is visible before it is committed
            self._run(publish_arrays(plan, self.handle))
            self._run(publish_group(plan, self.handle, self.journal))
        for array in plan.arrays:
            if array.shape is not None:
                target = planned_array(plan, array, self.handle.store, self.handle.config)
                present = target.metadata.with_shape(array.shape)
                place = NodeHandle(self.handle.store, target.path, self.handle.format, self.handle.config)
                self._run(erase_pending(place, present))

    def run_tasks(
        self,
        plan: JobPlan,
        workers: Workers,
        report: FilesReport,
        permit: Permit | None,
        *,
        numbers: Sequence[int] | None = None,
        verify: bool = False,
        unaligned: Unaligned = "safe",
        progress: JobProgress | None = None,
    ) -> None:
        """Run the tasks that are not finished, and mark each one.

        Args:
            plan: The plan.
            workers: Where to run them.
            report: The report to add counts to.
            permit: The permission for processes that do not have the claim.
            numbers: The numbers of the tasks; all by default.
            verify: Whether to compare stored values with the files.
            unaligned: Whether tasks may share chunks. Where only this process writes, they may.
            progress: The progress of the job, whose size is set.
        """
        self.prepare(plan)
        finished = self.claim.finished(plan.digest)
        chosen = range(len(plan.parts)) if numbers is None else sorted(set(numbers))
        waiting = [n for n in chosen if n not in finished]
        report.skipped += len(chosen) - len(waiting)
        if progress is not None:
            sizes = {n: plan.task_bytes(plan.parts[n]) for n in chosen}
            progress.expect(sum(sizes.values()), plan.rows if numbers is None else 0)
            progress.skip(sum(sizes[n] for n in finished & sizes.keys()))

        def done(number: int, part: IngestReport) -> None:
            add_reports(report, part)
            report.tasks += 1
            self.claim.check()

        def mark(number: int) -> str:
            return self.claim.task_key(plan.digest, number)

        store, config = self.handle.store, self.handle.config
        if not workers.is_local:

            def done_elsewhere(number: int, part: IngestReport) -> None:
                done(number, part)
                if progress is not None:
                    progress(part.nbytes)

            workers.run(
                plan,
                waiting,
                store,
                config,
                permit,
                verify=verify,
                unaligned=unaligned,
                mark=mark,
                done=done_elsewhere,
            )
            return
        runner = TaskRunner(plan, store, config, verify, "allow")  # tasks run one after the other
        try:
            for number in waiting:
                done(number, runner.run(plan.parts[number], mark(number), permit, progress or ignore_progress))
        finally:
            if runner.files is not None:
                runner.files.close()

    # -------------------------------------------------------------- finishing

    def finish(self, plan: JobPlan, *, verify: bool = False) -> None:
        """Publish the result of all tasks, and remove the claim.

        Args:
            plan: The plan.
            verify: Whether to compare the stored labels, and other values in the plan, with the plan.

        Raises:
            NodeNotFoundError: If tasks have not been run.
            ChecksumError: If stored values differ. Nothing was published then. Finishing again compares them again.
        """
        self.claim.wait_for_runs(self._wait)
        finished = self.claim.finished(plan.digest)
        missing = [number for number in range(len(plan.parts)) if number not in finished]
        if self.claim.is_enabled and missing:
            raise NodeNotFoundError(
                f"{counted(len(missing), 'task')} of {len(plan.parts):,} have not been run, the first is {missing[0]}; run "
                "them, then finish again. Nothing was published",
                path=plan.path,
            )
        self.claim.check()
        self._run(write_inline(plan, self.handle, verify=verify))
        journal = self.journal.with_files(plan.dim, plan.parameters, plan.files, plan.journal)
        self.claim.begin_publishing({"plan": plan.recorded.to_json(), "journal": journal.to_json()})
        self.publish(plan, journal)
        self.claim.release()

    def publish(self, plan: JobPlan, journal: Journal) -> None:
        """Store the documents that make a result visible. All values are stored. May be repeated."""
        self._run(publish_arrays(plan, self.handle))
        self.claim.check()
        self._run(publish_group(plan, self.handle, journal))

    def _complete_earlier_job(self) -> None:
        """Publish the result of a job whose process ended while it published, and forget that job."""
        if self.claim.is_publishing:
            self._publish_again()
            self.claim.end_publishing()

    def _publish_again(self) -> None:
        """Publish what an earlier owner of the claim has begun to publish. Without a record, all is published."""
        record = self.claim.unpublished()
        if record is None:
            return
        plan = JobPlan.from_json(record["plan"])
        job = Job.of_plan(plan, self.handle.store, self.handle.config)
        job.claim = self.claim
        job.publish(plan, Journal.of({ATTRIBUTE: record["journal"]}))


def _text(files: Sequence[SourceFile]) -> str:
    names = [file.name.rpartition("/")[2] for file in files[:2]]
    return ", ".join(names) + (f" and {len(files) - 2:,} more" if len(files) > 2 else "")
