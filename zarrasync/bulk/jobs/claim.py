"""Claims: two jobs must not write the same dataset at a time, and a job that was killed is continued or replaced.

A claim is a document next to the dataset, which the store creates only if it does not exist. The owner renews it every
few seconds. If it is not renewed any more, or its process has ended, another job takes it over, as soon as all tasks of
the earlier job have ended. The claim of a plan for independent tasks is only taken over by commands for that plan, until
its result is being published.

Stores without conditional writes have no claims: there, only one job may run at a time, and a rerun writes all tasks.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from zarrasync._concurrency import clock
from zarrasync.bulk.jobs import runs
from zarrasync.bulk.jobs.claim_folder import ClaimFolder
from zarrasync.bulk.jobs.runs import Permit
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import Store
from zarrasync.stores.leases import BEAT_SECONDS, DEAD_SECONDS, Observed
from zarrasync.stores.temporary_names import process_name

__all__ = ["WAIT_SECONDS", "Claim"]

_log = logging.getLogger(__name__)
WAIT_SECONDS = 600.0
"""Time that jobs wait for others by default."""
_POLL_SECONDS = 0.25
_OWN = ("owner", "id", "beat", "state")
_KEPT = ("interrupted", "created")
"""Members of a claim that are about the folder, and not about a job."""


class Claim:
    """The right to change a dataset.

    Args:
        store: The store.
        path: The path of the dataset's group.

    Attributes:
        folder: Where the claim is stored, with the marks of finished tasks.
        found: The content of the claim that this one continues or replaces.
        is_published: Whether the result of the job is published, so that no other job has to continue it.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self.folder = ClaimFolder(store, path)
        self.found: dict[str, Any] = {}
        self.is_published = False
        self._content: dict[str, Any] = {}
        self._version: object = None
        self._lost: BaseException | None = None
        self._has_permit = False
        self._created = 0
        self._new_marks: list[str] = []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: Any = None

    @property
    def is_enabled(self) -> bool:
        """Whether the store supports claims."""
        return self.folder.is_enabled

    # -------------------------------------------------------------- acquiring

    def acquire(self, wait: float, plan: str = "") -> None:
        """Take the claim, as soon as no other job has it and no task of an earlier job runs.

        Args:
            wait: Seconds to wait for another job.
            plan: The digest of a plan for independent tasks to continue.

        Raises:
            WriteConflictError: If another job continues for longer, a plan for independent tasks is not finished, or the
                plan to continue is not in progress.
        """
        if not self.is_enabled:
            return
        end, observed, is_waiting = clock.monotonic() + wait, Observed(), False
        while True:
            content, version = self.folder.read_claim()
            is_free = content.get("state") in ("left", "planned") or observed.is_over(content)
            if plan:
                self._check_plan(content, plan)
            elif is_free and _is_kept(content):
                raise WriteConflictError(
                    f"a plan of {content.get('files')} for {self.folder.dataset} is not finished: run its tasks, then "
                    "`zarrasync ingest finish PLAN`; or drop it with `zarrasync ingest abandon PLAN`",
                    key=self.folder.claim_key,
                )
            if is_free:
                try:
                    self._take(content, version, for_plan=bool(plan))
                except WriteConflictError:
                    continue
                break
            if not is_waiting and wait > 0:
                _log.info(
                    "waiting up to %.0f s for another job that writes %s: it ingests %s",
                    wait,
                    self.folder.dataset,
                    content.get("files") or "files",
                )
            is_waiting = True
            self._pause(end, wait, content)
        try:
            self.wait_for_runs(max(end - clock.monotonic(), DEAD_SECONDS + 1))
        except BaseException:
            self.restore()
            raise

    def _pause(self, end: float, wait: float, content: dict[str, Any]) -> None:
        if clock.monotonic() > end:
            files = f" (it ingests {content['files']})" if content.get("files") else ""
            raise WriteConflictError(
                f"another job writes {self.folder.dataset}{files}, and did not end within {wait:.0f} s; repeat the call when it "
                "has ended, or wait longer",
                key=self.folder.claim_key,
            )
        clock.sleep_blocking(_POLL_SECONDS)

    def _take(self, content: dict[str, Any], version: object, *, for_plan: bool) -> None:
        self.found = content
        self.folder.is_own = not content
        if not content:
            self._created = max(self._created, self.folder.create())
        created = max(self._created, content.get("created", 0))
        own = {"owner": process_name(), "id": uuid.uuid4().hex, "beat": 0, "state": "running", "created": created}
        self._content = {**_with_interruption(content), **own}
        if for_plan:
            self._content["planned"] = True
        self._version = self.folder.put_claim(self._content, version)
        self._has_permit = self.is_published = False
        self._stop.clear()
        self._thread = clock.current().start_thread("zarrasync-claim", self._beat)

    def planned(self) -> str:
        """Return the digest of the plan for independent tasks that is not finished; empty without one."""
        content = self.folder.read_claim()[0] if self.is_enabled else {}
        is_free = content.get("state") == "planned" or Observed().is_over(content)
        return str(content.get("plan", "")) if is_free and _is_kept(content) else ""

    def is_in_progress(self, digest: str) -> bool:
        """Return whether the claim belongs to a plan."""
        return self.is_enabled and self.folder.read_claim()[0].get("plan") == digest

    def _check_plan(self, content: dict[str, Any], digest: str) -> None:
        if content.get("plan") != digest:
            raise WriteConflictError(
                f"the plan is not in progress in {self.folder.dataset}: it was finished, abandoned, or replaced",
                key=self.folder.claim_key,
            )

    # -------------------------------------------------------------- keeping

    def update(self, **values: Any) -> None:
        """Change the content of the claim.

        Raises:
            WriteConflictError: If another job has taken the claim over.
        """
        if not self.is_enabled:
            return
        with self._lock:
            self.check()
            self._content.update(values)
            self._put()

    def note(self, **values: Any) -> None:
        """Change the content of the claim when it is renewed next. That is enough if the job leaves nothing to continue."""
        with self._lock:
            self._content.update(values)

    def _put(self) -> None:
        marks = list(self._new_marks)
        try:
            self._version = self.folder.put_claim(self._content, self._version)
            del self._new_marks[: len(marks)]
        except WriteConflictError as error:
            self._lost = error
            self.folder.erase(marks)  # the other job may have ended, and removed its marks
            raise WriteConflictError(
                f"another job has taken over {self.folder.dataset}, because this one was suspended for more than "
                f"{DEAD_SECONDS:.0f} s; repeat the call",
                key=self.folder.claim_key,
            ) from error

    def check(self) -> None:
        """Raise an error if another job has taken the claim over."""
        if self._lost is not None:
            raise WriteConflictError(
                f"another job has taken over {self.folder.dataset}; repeat the call", key=self.folder.claim_key
            )

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with self._lock:
                if self._stop.is_set():
                    return
                self._content["beat"] += 1
                try:
                    self._put()
                except WriteConflictError:
                    return
                except StoreError:
                    continue  # the next one may succeed

    # -------------------------------------------------------------- tasks

    def mark(self, digest: str, number: int) -> None:
        """Store the mark of a task that this process has finished.

        Raises:
            WriteConflictError: If another job has taken the claim over.
        """
        if not (key := self.folder.task_key(digest, number)):
            return
        self._new_marks.append(key)
        self.folder.mark(key)
        try:
            self.check()
        except WriteConflictError:
            self.folder.erase([key])
            raise

    def permit(self) -> Permit | None:
        """Return the permission for other processes to run tasks of this job, until ``end_runs`` is called."""
        self._has_permit, self.folder.is_own = True, False
        return Permit(self.folder.path, self._content["id"]) if self.is_enabled else None

    def end_runs(self, wait: float) -> None:
        """Withdraw the permission to run tasks, and wait until no task runs on another process.

        A cluster may start a task a second time while the first one ends. Then it finds that the job is over.

        Raises:
            WriteConflictError: If a task continues for longer, or another job has taken the claim over.
        """
        if self._has_permit:
            self.update(id=uuid.uuid4().hex)
        self.wait_for_runs(wait)

    def permit_for_plan(self, digest: str) -> Permit | None:
        """Return the permission to run tasks of a plan. It ends when the plan is finished or abandoned.

        Raises:
            WriteConflictError: If that happens already.
        """
        if not self.is_enabled:
            return None
        while True:
            content, version = self.folder.read_claim()
            self._check_plan(content, digest)
            if content.get("state") == "planned":
                break
            if content.get("state") != "left" and not Observed().is_over(content):
                raise WriteConflictError(
                    f"another process finishes or abandons the plan in {self.folder.dataset}", key=self.folder.claim_key
                )
            content = {**_with_interruption(content), "state": "planned", "planned": True}  # that process was killed
            try:
                self.folder.put_claim(content, version)
            except WriteConflictError:
                continue  # another task has done the same
            break
        return Permit(self.folder.path, content.get("id", ""))

    def wait_for_runs(self, wait: float) -> None:
        """Wait until no task runs on another process.

        Raises:
            WriteConflictError: If one continues for longer.
        """
        if not self.is_enabled or not self._store.listable or self.folder.is_own:
            return
        if runs.wait_for_runs(self._store, self.folder.path, wait):
            self._content["interrupted"] = True

    # -------------------------------------------------------------- publishing

    def note_commit(self) -> None:
        """Note that the result is published completely, such as by the commit of a transaction."""
        self.update(committed=True)

    @property
    def is_committed(self) -> bool:
        """Whether an earlier owner of this claim has published its result completely."""
        return bool(self.found.get("committed"))

    def begin_publishing(self, record: Mapping[str, Any]) -> None:
        """Store what will be published, so that another job can complete it if this process ends meanwhile.

        Claims must be enabled.
        """
        self.folder.save_record(record)
        self.update(publishing=True)

    @property
    def is_publishing(self) -> bool:
        """Whether an earlier owner of this claim has begun to publish its result."""
        return bool(self.found.get("publishing"))

    def end_publishing(self) -> None:
        """Forget the job of an earlier owner, which is published now."""
        self.folder.forget_tasks()
        self.found = {}
        self._content = {name: self._content[name] for name in (*_OWN, *_KEPT) if name in self._content}
        self.update()

    # -------------------------------------------------------------- releasing

    def plan_only(self) -> None:
        """Leave the claim to a plan, whose tasks other processes run."""
        self.folder.is_own = False
        self._content["planned"] = True
        self._end("planned")

    def leave(self) -> None:
        """Leave the claim after a failure. The next job continues it or takes it over."""
        self._end_after_failure("left")

    def restore(self) -> None:
        """Leave the claim after a failure as it was found."""
        self._end_after_failure("planned" if self._content.get("planned") else "left")

    def _end_after_failure(self, state: str) -> None:
        """End the claim. An error would hide the failure, and others take over a claim that is not renewed."""
        if self._lost is None:
            with suppress(StoreError):
                self._end(state)

    def release(self) -> None:
        """Remove the claim and the marks of tasks, and temporary files of processes that were killed."""
        if not self.is_enabled:
            return
        self._end_beats()
        if self._lost is not None:
            return
        try:
            self._put()  # if this process was suspended until now, another job may have the claim
        except WriteConflictError:
            return
        self.folder.remove_claim(
            is_interrupted=bool(self._content.get("interrupted")), above=self._content.get("created", 0)
        )

    def _end(self, state: str) -> None:
        if not self.is_enabled:
            return
        self._end_beats()
        self._content["state"] = state
        self._put()

    def _end_beats(self) -> None:
        self._stop.set()
        with self._lock:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None or self._stop.is_set():
            return
        is_kept = error is not None and not self.is_published and "plan" in self._content
        self.leave() if is_kept else self.release()


def _is_kept(content: Mapping[str, Any]) -> bool:
    """Return whether a claim is kept for a plan. While the result is being published, any job can complete that."""
    return bool(content.get("planned")) and not content.get("publishing")


def _with_interruption(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a claim, with a note if its owner was killed or has failed. Temporary files may remain."""
    is_interrupted = content.get("state") in ("running", "left") or content.get("interrupted", False)
    return {**content, "interrupted": True} if is_interrupted else dict(content)
