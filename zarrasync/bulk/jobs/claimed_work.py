"""``ClaimedWork``: tasks that other processes run, while a claim keeps other jobs away from the destination."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, ClassVar, Self, TypeVar

from zarrasync import formats
from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.cancel import raise_if_cancelled, run_cleanup, shielded
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util import records
from zarrasync._util.records import TRANSIENT
from zarrasync.bulk.jobs.boxes import Box, Sizes
from zarrasync.bulk.jobs.claim import WAIT_SECONDS, Claim
from zarrasync.bulk.jobs.fencing import FencingToken, TaskLease
from zarrasync.bulk.jobs.plan import AsyncJobPlan, Options, PlannedWork, Task, TaskRun, plan_with_document
from zarrasync.bulk.jobs.plan_location import NodeLocation, PlanLocation
from zarrasync.bulk.jobs.workers import Workers
from zarrasync.bulk.reports import add_reports
from zarrasync.config import Config
from zarrasync.display.progress import IngestReport
from zarrasync.display.report import JobReport
from zarrasync.display.text import counted
from zarrasync.display.values import strict
from zarrasync.errors import MetadataError, NodeNotFoundError, UnsupportedOperation
from zarrasync.formats import Format
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.documents import Metadata, parse_texts
from zarrasync.nodes.group import make_node
from zarrasync.nodes.node import NodeHandle
from zarrasync.transfer.threads import Progress

T = TypeVar("T")
_POLL_SECONDS = 1.0
_HEAD = frozenset({"version", "kind", "digest", "source", "dest", "zarr_format"})
"""The members of the documents of all plans."""


@dataclass(frozen=True)
class OneCall:
    """A call that plans, runs and finishes work. The tasks and the end of a plan know less: for them, use the defaults.

    Attributes:
        report: The report of the whole work; ``None`` for a plan.
        workers: Where large arrays are written.
        resume: Whether to keep stored values.
        new: The paths of the arrays without stored values; ``None`` if the plan has made the destination ready.
        is_shown: Whether the documents of the result are stored already.
        has_begun: Whether some of them may be.
    """

    report: Any = None
    workers: Workers = field(default_factory=Workers)
    resume: bool = False
    new: Collection[str] | None = None
    is_shown: bool = False
    has_begun: bool = True


@dataclass(frozen=True, kw_only=True)
class ClaimedWork(PlannedWork):
    """Work whose tasks write boxes of arrays that readers do not see yet, and whose end stores the documents that show it.

    Attributes:
        source: The node that tasks read.
        dest: The node that they write.
        format: The format of the nodes that they write.
        config: The settings.
        documents: The metadata documents of each node of the result, by its path relative to the destination.
        boxes: The boxes of each task.
        sizes: What each task reads and writes.
        notes: Remarks for the report.
        left_out: What the result will lack.
        overwrite: Whether everything in the destination is erased first.
        is_shown_at_once: Whether one document shows the result, so that readers cannot see a part of it.
    """

    source: NodeLocation = field(metadata=TRANSIENT)
    dest: NodeLocation = field(metadata=TRANSIENT)
    format: Format = field(metadata=TRANSIENT)
    config: Config = field(metadata=TRANSIENT)
    documents: Mapping[str, Mapping[str, str]]
    boxes: Sequence[Sequence[Box]] = ()
    sizes: Sequence[Sizes] = ()
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    overwrite: bool = False
    is_shown_at_once: ClassVar[bool] = False

    # -------------------------------------------------------------- as data

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        return {
            "source": self.source.to_json("source", root),
            "dest": self.dest.to_json("destination", root),
            "zarr_format": self.format.zarr_format,
            **records.to_json(self),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], dest: NodeLocation, root: str, config: Config) -> Self:
        """Return the work that a document describes.

        Args:
            values: The document.
            dest: The location of the result.
            root: The directory to which relative paths of the source refer.
            config: The settings.

        Raises:
            MetadataError: If the document is damaged.
        """
        what, own = f"plan of the {cls.kind}", {name: values[name] for name in values if name not in _HEAD}
        try:
            source = NodeLocation.of(values["source"], root, None, config)
            format_ = formats.by_name(values["zarr_format"])
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"the {what} is damaged: it names no source or no format") from error
        return records.from_json(cls, own, what, source=source, dest=dest, format=format_, config=config)

    @cached_property
    def digest(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        return digest_of({**records.to_json(self), "source": self.source.path, "notes": (), "left_out": ()})

    def opened(self, options: Options, source_options: Options = None) -> Self:
        return replace(self, source=self.source.opened(source_options), dest=self.dest.opened(options))

    # -------------------------------------------------------------- the result

    @property
    def target(self) -> NodeHandle:
        """The location of the result."""
        return NodeHandle(self.store, self.path, self.format, self.config)

    @cached_property
    def planned(self) -> dict[str, Metadata]:
        """The metadata of its nodes, by their paths relative to the destination."""
        return {path: parse_texts(self.format, join(self.path, path), texts) for path, texts in self.documents.items()}

    def array_of(self, path: str) -> AsyncArray:
        """Return an array of the result, whose document may not be stored yet."""
        handle = replace(self.target.at(join(self.path, path)), is_format_known=True)
        array = make_node(handle, self.planned[path])
        assert isinstance(array, AsyncArray)
        return array

    # -------------------------------------------------------------- tasks and sizes

    @cached_property
    def tasks(self) -> Sequence[Task]:  # pyright: ignore[reportIncompatibleMethodOverride]  # computed once
        most = self.config.memory_budget
        return [
            Task(number, _text(boxes), sizes.written, min(sizes.memory, most), self.stage_of(boxes[0]))
            for number, (boxes, sizes) in enumerate(zip(self.boxes, self.sizes, strict=True))
        ]

    def stage_of(self, box: Box) -> int:
        """Return the stage of the task that writes a box."""
        return 0

    @property
    def origin(self) -> str:
        """The source in words."""
        return f"/{self.source.path} in {self.source.store!r}"

    def describe(self) -> dict[str, Any]:
        """Return what processes without the document know of the work.

        Returns:
            ``files`` in words, a digest of the ``source``, ``arrays``, and ``zarr_format``.
        """
        source = self.source.name, self.source.store.identity
        return {
            "files": self.origin,
            "source": digest_of(repr(source)),  # as it may contain credentials
            "arrays": list(dict.fromkeys(box.array for boxes in self.boxes for box in boxes)),
            "zarr_format": self.format.zarr_format,
        }

    # -------------------------------------------------------------- what tasks and commands do

    @abstractmethod
    async def prepare(self, claim: Claim, call: OneCall) -> OneCall:
        """Make the destination ready for tasks.

        Args:
            claim: The claim, with what an interrupted call has noted. If its ``plan`` is updated, a failure keeps it.
            call: The call.

        Returns:
            The call, with what exists in the destination.

        Raises:
            NodeExistsError: If it contains something else.
        """

    def write(self, number: int, progress: Progress, *, verify: bool) -> IngestReport:
        """Run a task.

        Args:
            number: The number of the task.
            progress: Called with the number of bytes written since the last call. It raises if the task must stop.
            verify: Whether to read the values back and compare them.
        """
        return self._run(self.write_boxes(self.boxes[number], progress, OneCall(), verify=verify))

    @abstractmethod
    async def write_boxes(
        self, boxes: Sequence[Box], progress: Progress, call: OneCall, *, verify: bool
    ) -> IngestReport:
        """Write the boxes of a task; see ``write``. Counts of each array are added to the report of a call."""

    @abstractmethod
    async def publish(self, call: OneCall, *, verify: bool) -> JobReport:
        """Store the documents that show the result. May be repeated.

        Args:
            call: The call that does that.
            verify: Whether to compare files that this method copies.
        """

    @abstractmethod
    async def is_published(self) -> bool:
        """Return whether readers see the result, or a part of it."""

    @abstractmethod
    async def erase(self) -> None:
        """Erase what tasks have written."""

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=self.store.blocking and self.source.store.blocking)

    def check_found(self, claim: Claim) -> None:
        """Check that no job was interrupted while it published its result, because only that job can complete it.

        Raises:
            WriteConflictError: If one was.
        """
        if claim.is_publishing and not self.overwrite:
            raise claim.folder.conflict(
                f"a job that writes {claim.found.get('files') or 'files'} was interrupted while it published its result in "
                f"{claim.folder.dataset}; repeat that job first"
            )

    async def at_once(self, call: OneCall, progress: Progress, *, verify: bool = False) -> None:
        """Run a task for each stage, and publish the result. After a failure the next call can resume.

        Args:
            call: The call.
            progress: Called with the number of bytes written since the last call.
            verify: Whether to read the values back and compare them.
        """
        claim, workers = self.claim, call.workers
        try:
            # Here, because the thread takes the claim even if this call is cancelled.
            await run_in_new_thread(partial(claim.acquire, WAIT_SECONDS))
            self.check_found(claim)
            if not workers.is_local:
                workers.require(self.store.notes, claim.token())
            call = await self.prepare(claim, call)
            for boxes in self.boxes:
                await self.write_boxes(boxes, progress, call, verify=verify)
                claim.check()
            if not workers.is_local:
                await run_in_new_thread(partial(claim.end_runs, WAIT_SECONDS))
            await self.publish(call, verify=verify)
        except BaseException as error:
            await run_cleanup(partial(run_in_new_thread, partial(claim.__exit__, type(error), error, None)))
            raise
        await shielded(partial(run_in_new_thread, claim.release))

    def begin(self, save: Callable[[], None]) -> None:
        """Keep other jobs away from the destination, until the work is finished or abandoned.

        Args:
            save: Stores the plan, before anything is kept or changed.
        """
        claim = self.claim
        claim.folder.check_marks()
        described, kept = self.describe(), claim.planned()
        if (kept.get("plan"), kept.get("source")) == (self.digest, described["source"]):
            save()  # the process may have been killed before it returned the plan
            return
        with claim:
            claim.acquire(WAIT_SECONDS)
            self.check_found(claim)
            claim.folder.is_own = False
            claim.folder.forget_tasks()
            save()
            self._run(self.prepare(claim, OneCall()))
            claim.update(plan=self.digest, is_new=True, **described)
            claim.plan_only()

    def run_tasks(self, run: TaskRun) -> None:
        def done(number: int, part: IngestReport) -> None:
            add_reports(run.report, part)
            run.advance(self.tasks[number].nbytes)

        if run.workers.is_local:
            for number in run.numbers:
                done(number, self.run_task(number, run.token, verify=run.verify))
            return
        run.workers.check_stores(self.store, self.source.store)
        for _, stage in groupby(run.numbers, lambda number: self.tasks[number].stage):
            run.workers.run(stage, lambda n: partial(self.part(n).run_task, n, run.token, verify=run.verify), done)

    def part(self, number: int) -> ClaimedWork:
        """Return the work as it is sent to the process that runs a task."""
        return self

    def run_task(self, number: int, token: FencingToken | None, *, verify: bool) -> IngestReport:
        """Run a task in this process after the stages before, and mark it."""
        self._wait_for_stages(self.tasks[number].stage)
        with TaskLease(self.store.notes, token) as run:
            report = self.write(number, lambda nbytes: run.check(), verify=verify)
            run.mark(self.claim.folder.task_key(self.digest, number))
        return report

    def _wait_for_stages(self, stage: int) -> None:
        """Wait until all tasks of the stages before are finished.

        Raises:
            NodeNotFoundError: If they are not finished in time.
        """
        needed = {task.number for task in self.tasks if task.stage < stage}
        end, folder = clock.monotonic() + WAIT_SECONDS, self.claim.folder
        while missing := needed - folder.finished(self.digest):
            raise_if_cancelled()
            if clock.monotonic() > end:
                raise NodeNotFoundError(
                    f"this task needs all tasks of earlier stages, of which {counted(len(missing), 'task')} are unfinished, "
                    f"first task {min(missing)}; run them first",
                    path=self.path,
                )
            clock.current().sleep_blocking(_POLL_SECONDS)

    def is_finished(self, claim: Claim) -> bool:
        return self._run(self.is_published())

    def complete(self, claim: Claim, *, is_finished: bool, verify: bool) -> JobReport:
        if is_finished:
            return self._run(self.publish(OneCall(), verify=verify))
        if not claim.is_committed:  # an earlier call may have been killed after that
            claim.folder.check_finished(self.digest, len(self.tasks))
        claim.check()
        report = self._run(self.publish(OneCall(), verify=verify))
        claim.update(committed=True)  # before the marks of tasks are erased
        return report

    def is_visible(self, claim: Claim) -> bool:
        return not self.is_shown_at_once and self._run(self.is_published())

    def drop(self, claim: Claim) -> None:
        self._run(self.erase())


def digest_of(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(strict(value), sort_keys=True).encode()).hexdigest()[:32]


def _text(boxes: Sequence[Box]) -> str:
    return str(boxes[0]) if len(boxes) == 1 else f"{boxes[0]} … {boxes[-1]}, {len(boxes):,} parts"


async def begin_plan(work: ClaimedWork, location: PlanLocation) -> AsyncJobPlan:
    """Return the plan for work, after its document was stored and other jobs are kept away from the destination.

    Args:
        work: The work.
        location: The location of the document. Without a name of the sources, none is stored in the destination.

    Raises:
        UnsupportedOperation: If the sources have no names, and the document would lie outside the destination; or if the
            destination is written by transactions.
    """
    if not work.store.writeable:
        raise UnsupportedOperation(
            f"no plan of this job can be made for {work.store!r}, because its tasks would not share a commit; write it in one call"
        )
    plan, document = plan_with_document(work, location)

    def begin() -> None:
        with location.saving() as save:
            work.begin(partial(save, document))

    await run_in_new_thread(begin)
    return plan
