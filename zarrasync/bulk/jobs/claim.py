"""Claims: two jobs must not write the same dataset at a time, and a job that was killed is continued or replaced.

A claim is a document next to the dataset, which the store creates only if it does not exist. The owner renews it every
few seconds. If it is not renewed any more, or its process has ended, another job takes it over, as soon as all tasks of
the earlier job have ended. The claim of a plan for independent tasks is only taken over by commands for that plan, until
its result is being published.

Stores without conditional writes have no claims: there, only one job may run at a time, and a rerun writes all tasks.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import ignore_cancellation, raise_if_cancelled
from zarrasync.bulk.jobs.claim_folder import ClaimFolder
from zarrasync.bulk.jobs.fencing import FencingToken
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import Store
from zarrasync.stores.changes import count_change
from zarrasync.stores.leases import DEAD_SECONDS, POLL_SECONDS, Change, Entry, Lease, Observed

_log = logging.getLogger(__name__)
WAIT_SECONDS = 600.0
"""Time that jobs wait for others by default."""
_OWN = ("owner", "id", "beat", "state", "token")
_KEPT = ("interrupted", "created")
"""Members of a claim that are about the folder, and not about a job."""


class Claim(Lease):
    """The right to change a dataset.

    Args:
        store: The store.
        path: The path of the dataset's group.

    Attributes:
        folder: Where the claim is stored, with the marks of finished tasks.
        is_enabled: Whether the store supports claims.
        found: The content of the claim that this one continues or replaces.
        is_published: Whether the result of the job is published, so that no other job has to continue it.
    """

    def __init__(self, store: Store, path: str) -> None:
        self.folder, self._path = ClaimFolder(store, path), path
        super().__init__(store, self.folder.claim_key, self.folder.dataset)
        self.is_enabled = self.folder.is_enabled
        self.found: Entry = {}
        self.is_published = False
        self._has_token = False
        self._created = 0
        self._new_marks, self._notes = set[str](), Entry()

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
        end, other = clock.monotonic() + wait, Entry()

        async def choose(running: list[Entry], over: list[Entry]) -> list[Entry] | None:
            (content,) = running or over or [{}]
            is_free = not running or content.get("state") == "planned"
            if plan:
                self._check_plan(content, plan)
            elif is_free and _is_kept(content):
                raise _unfinished_plan(content, self.folder)
            if is_free:
                return [await self._taken(content, for_plan=bool(plan))]
            if not other and wait > 0:
                files, dataset = content.get("files") or "files", self.folder.dataset
                _log.info("waiting up to %.0f s for another job that writes %s from %s", wait, dataset, files)
            other.update({"files": "", **content})
            return None

        def busy() -> str:
            files = f" (from {other['files']})" if other["files"] else ""
            return (
                f"another job writes {self.folder.dataset}{files}, and did not end within {wait:.0f} s; repeat the call "
                "when it has ended, or wait longer"
            )

        self._run(self.enter(choose, busy, wait))
        self._has_token = self.is_published = False
        try:
            self.wait_for_runs(max(end - clock.monotonic(), DEAD_SECONDS + 1))
        except BaseException:
            self.restore()
            raise

    async def _taken(self, content: Entry, *, for_plan: bool) -> Entry:
        """Return the claim with which this job continues or replaces another one."""
        self.found, self.folder.is_own = content, not content
        self.folder.keeps = bool(content.get("cut"))  # the interrupted job has removed rows, which the folder contains
        if not content:
            self._created = max(self._created, await self.folder.create())
        created = max(self._created, _created(content))
        own = self.new_entry(token=uuid.uuid4().hex, created=created, **({"planned": True} if for_plan else {}))
        return {**_with_interruption(content), **own}

    def planned(self) -> Entry:
        """Return the claim of the plan for independent tasks that is not finished; ``{}`` without one."""
        content = self.folder.claim() if self.is_enabled else {}
        is_free = content.get("state") == "planned" or Observed().is_over(content)
        return content if is_free and _is_kept(content) else {}

    def is_in_progress(self, digest: str) -> bool:
        """Return whether the claim belongs to a plan."""
        return self.is_enabled and self.folder.claim().get("plan") == digest

    def _check_plan(self, content: Entry, digest: str) -> None:
        if content.get("plan") != digest:
            raise self.folder.conflict(
                f"the plan is not in progress in {self.folder.dataset}: it was finished, abandoned, or replaced"
            )

    # -------------------------------------------------------------- keeping

    def update(self, **values: Any) -> None:
        """Change the content of the claim.

        Raises:
            WriteConflictError: If another job has taken the claim over.
        """
        if self.is_enabled:
            self._replace(lambda entry: {**entry, **values})
            self.folder.keeps = bool(self.entry.get("cut"))

    def note(self, **values: Any) -> None:
        """Change the content of the claim when it is renewed next. That is enough if the job leaves nothing to continue."""
        self._notes = values

    def _replace(self, change: Change) -> None:
        if not self.change_now(change):
            self.check()

    def change_now(self, change: Change) -> bool:
        marks, notes = self._new_marks.copy(), self._notes
        is_own = super().change_now(lambda entry: change({**entry, **notes}))
        self._new_marks -= marks
        self._notes = {} if self._notes is notes else self._notes
        if not is_own:
            self.folder.erase([*marks])  # the other job may have ended, and removed its marks
        return is_own

    def check(self) -> None:
        """Raise an error if another job has taken the claim over."""
        if self.is_lost:
            raise self.folder.conflict(
                f"another job has taken over {self.folder.dataset}, because this one was suspended for more than "
                f"{DEAD_SECONDS:.0f} s; repeat the call"
            )

    # -------------------------------------------------------------- tasks

    def mark(self, digest: str, number: int) -> None:
        """Store the mark of a task that this process has finished.

        Raises:
            WriteConflictError: If another job has taken the claim over.
        """
        if not (key := self.folder.task_key(digest, number)):
            return
        self._new_marks.add(key)
        self.folder.put(key)
        try:
            self.check()
        except WriteConflictError:
            self.folder.erase([key])
            raise

    def token(self) -> FencingToken | None:
        """Return the permission for other processes to run tasks of this job, until ``end_runs`` is called."""
        self._has_token, self.folder.is_own = True, False
        return FencingToken(self.folder.path, self.entry.get("token", "")) if self.is_enabled else None

    def end_runs(self, wait: float) -> None:
        """Withdraw the permission to run tasks, and wait until no task runs on another process.

        A cluster may start a task a second time while the first one ends. Then it finds that the job is over.

        Raises:
            WriteConflictError: If a task continues for longer, or another job has taken the claim over.
        """
        if self._has_token:
            self.update(token=uuid.uuid4().hex)
        self.wait_for_runs(wait)

    def token_for_plan(self, digest: str) -> FencingToken | None:
        """Return the permission to run tasks of a plan. It ends when the plan is finished or abandoned.

        Raises:
            WriteConflictError: If that happens already.
        """
        if not self.is_enabled:
            return None
        while True:
            entries, version = self._run(self._read())
            content = entries[0] if entries else {}
            self._check_plan(content, digest)
            if content.get("state") == "planned":
                break
            if not Observed().is_over(content):
                raise self.folder.conflict(f"another process finishes or abandons the plan in {self.folder.dataset}")
            # That process was killed. If it was only suspended, it notices that the identity has changed.
            own = {"id": uuid.uuid4().hex, "state": "planned", "planned": True}
            content = {**_with_interruption(content), **own}
            try:
                self._run(self._put([content], version))
            except WriteConflictError:
                continue  # another task has done the same
            break
        return FencingToken(self.folder.path, content.get("token", ""))

    def wait_for_runs(self, wait: float) -> None:
        """Wait until no task runs on another process.

        Raises:
            WriteConflictError: If one continues for longer.
        """
        if not self.is_enabled or not self._store.listable or self.folder.is_own:
            return
        if self.folder.wait_for_runs(wait):
            self.update(interrupted=True)

    @contextmanager
    def of_plan(self, digest: str) -> Iterator[Self]:
        """Hold the claim of a plan while the plan is finished or abandoned, and remove it then. After a failure, leave it.

        No task of the plan runs meanwhile.

        Raises:
            WriteConflictError: If the plan is not in progress, or others finish or abandon it.
        """
        self.acquire(WAIT_SECONDS, digest)
        try:
            yield self
        except BaseException:
            self.restore()
            raise
        self.is_published = True
        self.release()

    # -------------------------------------------------------------- publishing

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
        self._replace(lambda entry: {name: entry[name] for name in (*_OWN, *_KEPT) if name in entry})

    # -------------------------------------------------------------- releasing

    def plan_only(self) -> None:
        """Leave the claim to a plan, whose tasks other processes run."""
        self.folder.is_own = False
        self._end("planned")

    def restore(self) -> None:
        """Leave the claim after a failure as it was found. The next job continues it or takes it over.

        An error would hide the failure, and others take over a claim that is not renewed. A cancellation may be the failure.
        """
        with suppress(StoreError), ignore_cancellation():
            self._end("planned" if self.entry.get("planned") else "left")

    def _end(self, state: str) -> None:
        self._count_changes()
        if self.is_held:
            self.stop()
            is_planned = {"planned": True} if state == "planned" else {}
            self._replace(lambda entry: {**entry, **is_planned, "state": state})

    def release(self) -> None:
        """Remove the claim and the marks of tasks, and temporary files of processes that were killed.

        A cancellation does not interrupt that, because otherwise the claim would remain.
        """
        self._count_changes()
        if not self.is_held:
            return
        self.stop()
        with ignore_cancellation():
            if self._run(self.renew()):  # if this process was suspended until now, another job may have the claim
                entry, (_, version) = self.entry, self._known
                is_interrupted = bool(entry.get("interrupted"))
                self.folder.remove_claim(version, is_interrupted=is_interrupted, above=_created(entry))

    def _count_changes(self) -> None:
        """Note that the dataset may have changed, also by other processes that have run tasks."""
        count_change(self._store, self._path, below=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        is_kept = error is not None and not self.is_published and "plan" in {**self.entry, **self._notes}
        is_kept |= bool(self.entry.get("cut"))
        self.restore() if is_kept else self.release()


def _created(content: Mapping[str, Any]) -> int:
    """Return how many directories above the folder jobs have created."""
    created = content.get("created", 0)
    return created if type(created) is int else 0


def wait_for_jobs(store: Store, path: str, wait: float) -> None:
    """Wait until no job has the claim of a dataset, for writers that work side by side without a claim.

    Args:
        store: The store.
        path: The path of the dataset's group.
        wait: Seconds to wait.

    Raises:
        WriteConflictError: If a job continues for longer, or a plan for independent tasks is not finished.
    """
    folder, observed, end = ClaimFolder(store, path), Observed(), clock.monotonic() + wait
    while folder.is_enabled and (content := folder.claim()):
        raise_if_cancelled()
        if _is_kept(content):
            raise _unfinished_plan(content, folder)
        if observed.is_over(content):
            return
        if clock.monotonic() > end:
            raise folder.conflict(
                f"another job writes {folder.dataset}, and did not end within {wait:.0f} s; repeat the call when it has ended"
            )
        clock.current().sleep_blocking(POLL_SECONDS)


def _unfinished_plan(content: Entry, folder: ClaimFolder) -> WriteConflictError:
    return folder.conflict(
        f"a plan of {content.get('files')} for {folder.dataset} is not finished: run its tasks, then "
        "`zarrasync ingest finish PLAN`; or drop it with `zarrasync ingest abandon PLAN`"
    )


def _is_kept(content: Mapping[str, Any]) -> bool:
    """Return whether a claim is kept for a plan. While the result is being published, any job can complete that."""
    return bool(content.get("planned")) and not content.get("publishing")


def _with_interruption(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a claim, with a note if its owner was killed or has failed. Temporary files may remain."""
    is_interrupted = content.get("state") in ("running", "left") or content.get("interrupted", False)
    return {**content, "interrupted": True} if is_interrupted else dict(content)
