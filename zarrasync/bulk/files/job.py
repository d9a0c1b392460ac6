"""A job from its files to the published dataset, or to a plan whose tasks run independently."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from zarrasync._concurrency import clock
from zarrasync._util.advice import in_terms_of
from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.planning.axis import RepeatedLabelsError
from zarrasync.bulk.files.planning.consistency import add_stored_forms
from zarrasync.bulk.files.planning.file_choice import Choice, choose_files, unknown_files, unread_files
from zarrasync.bulk.files.planning.make_plan import plan_job
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.records.target import Target, read_constants, read_target
from zarrasync.bulk.files.running.moved_rows import cut_before_moved, drop_kept
from zarrasync.bulk.files.running.planned_job import PlannedJob, complete_earlier_job, erase_arrays
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.files.sources.engines import is_zarr
from zarrasync.bulk.files.sources.headers import LARGE_BYTES, FileHeader, SourceFile
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.plan import TaskRun
from zarrasync.bulk.overwrite_guard import contains
from zarrasync.bulk.reports import CheckReport, FilesReport
from zarrasync.display.progress import JobProgress, ignore_progress
from zarrasync.display.text import counted, listed
from zarrasync.errors import (
    CodecError,
    NodeExistsError,
    NodeNotFoundError,
    ShapeError,
    SourceFilesError,
    UnsupportedOperation,
)
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.find import find_all
from zarrasync.nodes.functions import open_group
from zarrasync.nodes.node import NodeHandle, run_blocking, run_on_store
from zarrasync.stores import resolve
from zarrasync.stores.base import Transaction

_MILDER: dict[str, Any] = {"on_duplicate": "skip", "on_gap": "report"}
"""What a check of files does instead of an error, so that it finds the other problems as well."""


class Job:
    """A job with many files. All methods block.

    ``run`` keeps other jobs away from the destination until the context of the claim ends.

    Args:
        files: The files.
        handle: The location of the destination, in a ``CountingStore`` or another store.
        parameters: The parameters.
        missing: The reasons for files that were named but do not exist, and are left out.

    Attributes:
        claim: The claim of the destination.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        handle: NodeHandle,
        parameters: Parameters,
        missing: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.handle = handle
        distinct = dict[str, SourceFile]()
        for file in files:
            distinct.setdefault(file.recorded.url, file)
        self._files, others = [*distinct.values()], len(files) - len(distinct)
        self._notes = [f"{counted(others, 'file')} left out: other names of the same files"] * bool(others)
        self._parameters = parameters
        self._is_replaced = parameters.mode == "w"
        name = "append" if parameters.append else "region" if parameters.region is not None else ""
        # Parts of messages, and the text that replaces them, because mode="w" excludes other parameters of this job.
        self._advice = [("mode='w'", f"mode='w' instead of {name}")] * bool(name)
        self.claim = Claim(handle.store.notes, handle.path)
        self._transaction: Transaction | None = None
        self._bad = dict(missing)

    def groups(self, workers: FileWorkers) -> dict[str, bool]:
        """Return the paths of the groups in the file of this job, parents first, and whether each one has variables.

        The path of the group that is read is empty. Only that one counts if files are joined, or variables were chosen.
        """
        parameters = self._parameters
        if parameters.dim or parameters.reader.variables or parameters.is_one_group:
            return {"": True}
        found = workers.local_files(self._parameters.reader, self.handle.config).groups(*self._files)
        return found if any(found.values()) else {"": True}

    def store_empty_group(self, workers: FileWorkers) -> FilesReport:
        """Store the group of a file that has no variables: its attributes. Call it in the context of the claim."""
        self._acquire(workers)
        (header,) = workers.headers(self._files, self._parameters.reader, self.handle.config)
        if header.error is not None:
            raise header.error

        async def store() -> None:
            handle, mode = self.handle, self._parameters.mode if self._parameters.mode in ("w", "w-") else "a"
            options: Any = {"mode": mode, "zarr_format": handle.format.zarr_format, "config": handle.config}
            group = await run_on_store(partial(open_group, handle.store, path=handle.path, **options), handle.store)
            if not header.attributes.items() <= group.attrs.items():
                await group.update_attributes(header.attributes)

        run_blocking(self.handle.store, store())
        return FilesReport()

    def _acquire(self, workers: FileWorkers) -> None:
        """Keep other jobs away from the destination until the context of the claim ends."""
        self.claim.acquire(self._parameters.wait)
        if not workers.is_local:
            self.claim.folder.is_own = False

    def run(
        self,
        workers: FileWorkers,
        *,
        verify: bool = False,
        progress: JobProgress | None = None,
    ) -> FilesReport:
        """Plan the job, run its tasks, and publish the result. Call it in the context of the claim.

        Args:
            workers: Where to read headers and run tasks.
            verify: Whether to compare stored values with the files.
            progress: The progress of the job, whose size is set after planning.
        """
        begin = clock.monotonic()
        self._acquire(workers)
        while True:
            with in_terms_of(*self._advice):
                job, report = self._plan(workers, is_short=workers.is_local)
            if progress is not None:
                progress.report = report
            if job is None:
                break
            token = None if workers.is_local else self.claim.token()
            try:
                job.prepare()
                numbers = job.unfinished(report, progress)
                job.run_tasks(TaskRun(numbers, workers, token, report, progress or ignore_progress, verify))
            except SourceFilesError as error:
                complete_earlier_job(self.claim, self.handle)  # which restores rows that should have moved
                if self._parameters.on_bad_file == "error" or not error.files.keys() - self._bad.keys():
                    raise
                self._bad.update(error.files)  # which only the values show: plan the others again
                continue
            job.complete(verify=verify)
            if job.plan.moved is not None:
                drop_kept(self.claim, self.handle)
            break
        report.seconds = clock.monotonic() - begin
        return report

    def plan_only(
        self,
        workers: FileWorkers,
        save: Callable[[FilesPlan, FilesReport], None] = lambda plan, report: None,
        transaction: Transaction | None = None,
    ) -> tuple[FilesPlan | None, FilesReport]:
        """Return a plan whose tasks other processes run. No other job can change the dataset until it is finished.

        The plan is ``None`` if all files were ingested before.

        Args:
            workers: Where to read the headers of the files.
            save: Stores the plan with its report, before other jobs are kept out for longer than this process runs, and
                before anything is changed.
            transaction: The transaction that the destination belongs to, which other processes can continue.

        Raises:
            UnsupportedOperation: If other processes cannot write to the store, or it cannot mark tasks as finished.
        """
        self._transaction, self._parameters = transaction, replace(self._parameters, inserts=False)
        if self.handle.store.checks_bounds and transaction is None:
            raise UnsupportedOperation(
                f"a plan cannot be made for {self.handle.store!r}, because other processes cannot continue this session; pass "
                "the URL of the repository, or ingest the files in one call"
            )
        self.claim.folder.check_marks()
        in_progress = self.claim.planned().get("plan")
        if in_progress:  # the process may have been killed before it returned the plan
            with in_terms_of(*self._advice):
                job, report, _, _ = self._make_plan(workers)
            if job is not None and job.plan.digest == in_progress:
                save(job.plan, report)
                return job.plan, report
        with self.claim:
            self.claim.acquire(self._parameters.wait)
            self.claim.folder.is_own = False
            with in_terms_of(*self._advice):
                job, report = self._plan(workers, save)
            if job is not None:
                job.prepare()
                job.forget_finish()
                if transaction is not None:
                    self.claim.folder.save_transaction(transaction.state())
                self.claim.plan_only()
        return None if job is None else job.plan, report

    def check(self, workers: FileWorkers) -> CheckReport:
        """Return every problem that ingesting the files into a new dataset would have. Nothing is written."""
        begin, report = clock.monotonic(), CheckReport(files=len(self._files), notes=list(self._notes))
        refusals = {name: milder for name, milder in _MILDER.items() if getattr(self._parameters, name) == "error"}
        parameters = replace(self._parameters, on_bad_file="skip", **refusals)
        headers = workers.headers(self._files, self._parameters.reader, self.handle.config)
        report.bad_files = {**self._bad, **unread_files(headers)}
        try:
            choice = choose_files(headers, Target(self.handle), parameters)
        except SourceFilesError as error:
            choice, report.bad_files = Choice(), {**report.bad_files, **error.files}
        except (ShapeError, CodecError) as error:
            choice, report.left_out = Choice(), [str(error)]
        report.bad_files |= choice.bad_files
        if choice.plan is not None:
            report.rows, report.left_out = choice.plan.rows, list(choice.plan.left_out)
            report.notes += choice.plan.notes
            good = [own for own in headers if own.file.name not in report.bad_files]
            for name in refusals:
                refusing: Any = {name: "error"}
                try:
                    plan_job(good, Target(self.handle), replace(parameters, **refusing))
                except ShapeError as error:
                    report.left_out += error.files if isinstance(error, RepeatedLabelsError) else [str(error)]
        report.left_out += [f"{name}: {reason}" for name, reason in report.bad_files.items()]
        report.seconds = clock.monotonic() - begin
        return report

    # -------------------------------------------------------------- planning

    def _plan(
        self,
        workers: FileWorkers,
        save: Callable[[FilesPlan, FilesReport], None] = lambda plan, report: None,
        *,
        is_short: bool = False,
    ) -> tuple[PlannedJob | None, FilesReport]:
        """Return the job with its plan, and a report without counts; ``None`` if all files were ingested before.

        From now on the claim belongs to this plan. The result of an interrupted job is published before, but a dataset
        that will be replaced is not changed before all headers were read.
        """
        notes = [] if self._is_replaced else complete_earlier_job(self.claim, self.handle)
        job, report, files, target = self._make_plan(workers)
        report.notes[:0] = notes
        if job is None:
            return None, report
        complete_earlier_job(self.claim, self.handle, is_replaced=self._is_replaced)
        plan = job.plan
        if self._transaction is None:
            self._check_unfinished(plan)
        is_another = self._transaction is not None or self.claim.found.get("plan") != plan.digest
        if is_another:
            self.claim.folder.forget_tasks()
        save(plan, report)
        if is_another and self._is_replaced:
            self._erase()
        if plan.is_new:
            self._refuse_members(plan)
        is_short = is_short and not plan.is_new and len(plan.parts) <= 1 and plan.moved is None
        (self.claim.note if is_short else self.claim.update)(
            plan=plan.digest,
            is_new=plan.is_new,
            arrays=[array.name for array in plan.arrays],
            zarr_format=plan.zarr_format,
            files=_text(files),
            request=self._request,
        )
        if plan.moved is not None:
            cut_before_moved(plan, target, self.claim)
        return job, report

    def _make_plan(self, workers: FileWorkers) -> tuple[PlannedJob | None, FilesReport, Sequence[SourceFile], Target]:
        """Return the job with its plan, a report without counts, the files that are new, and the destination. Change nothing."""
        parameters = self._parameters
        if self._is_replaced:
            self._refuse_own_sources()
        target = Target(self.handle)
        if not self._is_replaced:
            target = run_blocking(self.handle.store, read_target(self.handle, parameters.dim))
        if parameters.reader.labels is None:
            target.labels = None
        self._check_destination(target)
        report, files = FilesReport(notes=list(self._notes)), self._files
        if target.group is not None:
            if parameters.region is None:
                files, notes = unknown_files(files, target, parameters)
                report.notes += notes
            report.known = len(self._files) - len(files)
            if not files:
                return None, report, files, target
            before, own = target.journal.parameters.partition("-")[2], parameters.reader.preprocess
            if target.journal.parameters and before != own:
                names = [name or "none" for name in (own, before)]
                report.notes.append(f"preprocess is {names[0]}, but the dataset was created with {names[1]}")
            if target.arrays and not parameters.append and parameters.region is None:
                self._refuse_existing(target, files)
        small = LARGE_BYTES if parameters.reader.coordinate_tolerance else parameters.reader.small_bytes
        if target.group is not None:
            run_blocking(self.handle.store, read_constants(target, parameters.dim, small))
        config = self.handle.config
        headers = workers.headers([file for file in files if file.name not in self._bad], parameters.reader, config)

        def prepare(header: FileHeader) -> None:
            if target.group is not None:
                read = partial(workers.local_files(parameters.reader, config).read, header.file)
                target.stored_forms.clear()
                add_stored_forms(target, header, read, small)

        choice = choose_files(headers, target, parameters, prepare)
        report.bad_files = {**self._bad, **choice.bad_files}
        report.left_out = [f"{name}: left out: {reason}" for name, reason in report.bad_files.items()] + choice.late
        plan = choice.plan
        if plan is None:
            return None, report, files, target
        report.files, report.rows, report.notes = len(plan.files), plan.rows, [*report.notes, *plan.notes]
        report.left_out += plan.left_out
        plan = replace(plan, left_out=report.left_out)
        job = PlannedJob(plan, target.handle, self.claim, self._parameters.wait, transaction=self._transaction)
        return job, report, files, target

    # -------------------------------------------------------------- checks

    def _check_destination(self, target: Target) -> None:
        needs, is_there = self._parameters.region is not None, target.group is not None
        if (self._parameters.mode == "r+" or needs) and not is_there:
            message = f"there is no dataset to change: no group exists at {self.handle.name} in {self.handle.store!r}"
            raise NodeNotFoundError(message, path=self.handle.path, store=repr(self.handle.store))
        if self._parameters.mode == "w-" and is_there:
            raise self._exists("a group exists at {place}; pass mode='w' to replace it")
        if is_there and target.journal.dim not in ("", self._parameters.dim):
            raise self._exists(
                f"the files of {{place}} were joined along {target.journal.dim!r}; pass concat={target.journal.dim!r}"
            )
        is_same = target.journal.parameters in ("", self._parameters.digest)
        if is_there and not self._parameters.append and not needs and not is_same:
            raise self._exists(
                "{place} contains files that were ingested with other parameters (chunks, encoding, variables or decode); "
                "pass mode='w' to replace them, or append=True instead of these parameters to add files with the existing layout"
            )

    def _refuse_own_sources(self) -> None:
        """Raise an error if a dataset that will be erased contains one of the sources."""
        reader = self._parameters.reader
        for file in self._files:
            if not (is_zarr(file.url) or os.path.isdir(file.url)):
                continue  # other files are not erased, also if they are in its folder
            source = resolve(file.url, dict(reader.storage_options) or None)
            if contains(self.handle.store, self.handle.path, source, normalize_path(reader.group)):
                raise self._exists(
                    f"{{place}} cannot be replaced with values of {file.name}, because it contains them and is erased first; "
                    "write to another path"
                )

    def _refuse_existing(self, target: Target, files: Sequence[SourceFile]) -> None:
        """Raise an error, because a dataset exists and contains other files."""
        contents = target.journal.text() if target.journal.files else "data of an unknown source"
        changed = [file for file in files if target.journal.rows_of_any(file) and not target.journal.rows(file)]
        if changed:
            raise self._exists(
                f"{{place}} contains {contents}, and {changed[0].name} has changed since; pass append=True with "
                "on_duplicate='replace' to write its rows again, or mode='w' to replace the dataset"
            )
        raise self._exists(
            f"{{place}} contains {contents}, and it does not contain {_text(files)}; pass append=True to add rows, or "
            "mode='w' to replace the dataset"
        )

    def _check_unfinished(self, plan: FilesPlan) -> None:
        """Raise an error if an unfinished job has stored values of other files at the place of a new dataset."""
        found = self.claim.found
        if plan.is_new and not self._is_replaced and found.get("is_new") and found.get("plan") != plan.digest:
            if found.get("request") == self._request:  # of which files were found to be bad, or have changed since
                run_blocking(self.handle.store, erase_arrays(self.handle, found.get("arrays", ())))
                return
            raise self._exists(
                f"an ingestion of {found.get('files')} into {{place}} was interrupted; repeat it with the same files and "
                "parameters to complete it, or pass mode='w' to replace it"
            )

    @property
    def _request(self) -> str:
        """A digest of the names of the files and of the parameters."""
        names = json.dumps([sorted(file.recorded.url for file in self._files), self._parameters.digest])
        return hashlib.sha256(names.encode()).hexdigest()[:16]

    def _exists(self, text: str) -> NodeExistsError:
        place = f"{self.handle.name} in {self.handle.store!r}"
        return self.handle.exists_error(text.replace("{place}", place))

    def _refuse_members(self, plan: FilesPlan) -> None:
        """Raise an error if arrays or groups exist where a new dataset will be, although the group does not exist."""
        paths = [join(self.handle.path, array.name) for array in plan.arrays]
        nodes = run_blocking(self.handle.store, find_all(self.handle, paths, (self.handle.format,), strict=False))
        for path, node in zip(paths, nodes, strict=True):
            if node is not None and self.claim.found.get("plan") != plan.digest:
                raise self._exists(
                    f"a node exists at /{path}, although {{place}} has no arrays; pass mode='w' to replace it"
                )

    # -------------------------------------------------------------- erasing

    def _erase(self) -> None:
        """Erase the dataset that is replaced, or what an interrupted job has left."""
        run_blocking(self.handle.store, erase_node(self.handle))
        if self.claim.found.get("is_new"):
            run_blocking(self.handle.store, erase_arrays(self.handle, self.claim.found.get("arrays", ())))


def _text(files: Sequence[SourceFile]) -> str:
    return listed([file.short_name for file in files])
