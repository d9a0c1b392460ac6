"""The folder next to a dataset in which jobs keep their claim, the marks of finished tasks, and notes for their successors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import raise_if_cancelled
from zarrasync.display.text import counted
from zarrasync.errors import NodeNotFoundError, StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.model.paths import join
from zarrasync.nodes.erase import JOB_PLAN, JOB_RECORD, JOB_TASK
from zarrasync.nodes.node import JOB_FOLDER, run_blocking
from zarrasync.stores import Request, Store
from zarrasync.stores.leases import FINISHED, POLL_SECONDS, Entry, Observed, entry_of

KEPT = "kept"
"""The folder below, with values that the next job needs if this one is interrupted."""
_REFUSED = "refused"
"""The name of a value that exists if the store did not allow to erase another one."""


async def erase_notes(store: Store, folder: str, keys: Sequence[str], version: object = None) -> None:
    """Erase values in the folder of a claim. If the store does not allow that, replace them by ones that mean nothing.

    Values that another job has stored since stay, because an erase may have taken effect although it failed.

    Args:
        store: The store, which supports conditional writes.
        folder: The folder.
        keys: The keys of the values.
        version: The version of a single value that other jobs may replace. Default: the version after the erase has failed.
    """
    try:
        await (store.erase_values(keys) if version is None else _erase_version(store, keys[0], version))
    except (StoreError, PermissionError):
        values = await store.fetch([Request(key) for key in keys], versions=True)
        stored = {key: value for key, value in zip(keys, values, strict=True) if value and value.data != FINISHED}
        if stored:  # before the marks of tasks are replaced
            await store.put(f"{folder}/{_REFUSED}", FINISHED)
        for key, value in stored.items():
            with suppress(WriteConflictError):
                await store.put(key, FINISHED, if_version=value.version if version is None else version)


async def _erase_version(store: Store, key: str, version: object) -> None:
    try:
        await store.erase(key, if_version=version)
    except UnsupportedOperation:
        await store.erase(key)
    except WriteConflictError:  # another job has replaced the value
        pass


class ClaimFolder:
    """The folder of a claim.

    Args:
        store: The store.
        path: The path of the dataset's group.

    Attributes:
        path: The path of the folder.
        claim_key: The key of the claim.
        is_enabled: Whether the store has what claims need: conditional writes.
        is_own: Whether the folder contains only what this object has stored, because no claim existed before and no other
            process has a permission. Then it need not be listed.
        keeps: Whether values in ``KEPT`` are still needed.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._prefix = store, f"{path}/" if path else ""
        self.path = join(path, JOB_FOLDER)
        self.claim_key = f"{self.path}/claim"
        self._plan_key = f"{self.path}/{JOB_PLAN}"
        self.is_enabled = store.conditional and store.writeable
        self.is_own = self.keeps = False
        self._own_keys = dict[str, None]()

    @property
    def dataset(self) -> str:
        """The path of the dataset and its store, for messages."""
        return f"/{self._prefix.rstrip('/')} in {self._store!r}"

    @property
    def _has_marks(self) -> bool:
        return self.is_enabled and self._store.listable

    def _keys(self) -> list[str]:
        return [*self._own_keys] if self.is_own else run_blocking(self._store, self._store.list_prefix(f"{self.path}/"))

    def _get(self, key: str) -> bytes | None:
        """Return a value; ``None`` if it does not exist, or could not be erased."""
        data = run_blocking(self._store, self._store.get(key))
        return None if data is None or data == FINISHED else bytes(data)

    def put(self, key: str, data: bytes = b"") -> None:
        """Store a value, such as the mark of a task, which is empty."""
        self._own_keys[key] = None
        run_blocking(self._store, self._store.put(key, data))

    # -------------------------------------------------------------- the claim

    def conflict(self, message: str) -> WriteConflictError:
        """Return the error for a claim that another job has."""
        return WriteConflictError(message, key=self.claim_key)

    def claim(self) -> Entry:
        """Return the claim; ``{}`` without one."""
        (value,) = run_blocking(self._store, self._store.fetch([Request(self.claim_key)]))
        return entry_of(value)

    async def create(self) -> int:
        """Create the folder. Return how many directories above it did not exist before."""
        directories = self._store.directories
        return 0 if directories is None else max(directories.create(f"{self.path}/") - 1, 0)

    def remove(self, above: int = 0) -> None:
        """Remove the folder, and temporary files in it, if no job has the claim.

        Args:
            above: The number of directories above it to remove as well, if they are empty.
        """
        if (directories := self._store.directories) is not None:
            directories.remove_unfinished(f"{self.path}/")
            directories.remove_empty(f"{self.path}/", above)

    def remove_claim(self, version: object, *, is_interrupted: bool, above: int = 0) -> None:
        """Remove the folder with the claim.

        Args:
            version: The version of the claim.
            is_interrupted: Whether processes were killed, so that temporary files of theirs may lie in the dataset.
            above: The number of directories above it that jobs have created. Empty ones are removed.
        """
        self.forget_tasks()
        if is_interrupted and (directories := self._store.directories) is not None:
            directories.remove_unfinished(self._prefix)
        plans = [] if self.is_own else [Request(self._plan_key)]
        found = run_blocking(self._store, self._store.fetch(plans, versions=True))
        run_blocking(self._store, erase_notes(self._store, self.path, [self.claim_key], version))
        for plan in filter(None, found):  # afterwards, because a plan without a document counts as lost
            run_blocking(self._store, erase_notes(self._store, self.path, [self._plan_key], plan.version))
        self.remove(above)

    def check_erases(self) -> None:
        """Check that the store allows to erase values, before a plan of new arrays is dropped.

        Raises:
            StoreError: If it does not.
        """
        key = f"{self.path}/trial"
        self.put(key, FINISHED)
        try:
            run_blocking(self._store, self._store.erase(key))
        except (StoreError, PermissionError) as error:
            raise StoreError(
                f"the plan for {self.dataset} cannot be abandoned, because the store does not allow to erase what its tasks have "
                f"written: {error}; finish the plan, or abandon it with credentials that may delete",
                key=key,
            ) from error

    # -------------------------------------------------------------- tasks

    def check_marks(self) -> None:
        """Check that tasks can be marked as finished. Without marks, it would be unknown whether all tasks have run.

        Raises:
            UnsupportedOperation: If the store lacks what marks and claims need.
        """
        if not self._has_marks:
            raise UnsupportedOperation(
                f"no plan can be made for {self.dataset}: the store has no conditional writes or no listings, which keep other jobs "
                "away and mark tasks as finished; run the job in one call"
            )

    def task_key(self, digest: str, number: int) -> str:
        """Return the key of the value that marks a task of a plan as finished; empty without claims."""
        return f"{self.path}/{JOB_TASK}{digest}-{number}" if self.is_enabled else ""

    def erase(self, keys: Sequence[str]) -> None:
        """Erase values."""
        if keys:
            run_blocking(self._store, erase_notes(self._store, self.path, keys))
        for key in keys:
            self._own_keys.pop(key, None)

    def finished(self, digest: str) -> set[int]:
        """Return the numbers of the finished tasks of a plan."""
        if not self._has_marks:
            return set()
        prefix, keys = f"{self.path}/{JOB_TASK}{digest}-", self._keys()
        marks = [key for key in keys if key.startswith(prefix)]
        if f"{self.path}/{_REFUSED}" in keys:  # there may be marks of an earlier, equal plan
            marks = [key for key in marks if self._get(key) is not None]
        numbers = [key.removeprefix(prefix) for key in marks]
        return {int(number) for number in numbers if number.isascii() and number.isdigit()}

    def check_finished(self, digest: str, count: int, known: Collection[int] = ()) -> None:
        """Check that all tasks of a plan are finished.

        Args:
            digest: The digest of the plan.
            count: The number of its tasks.
            known: The numbers of tasks that are known to be finished without a mark.

        Raises:
            NodeNotFoundError: If some are not.
        """
        finished = self.finished(digest)
        missing = [number for number in range(count) if number not in finished and number not in known]
        if missing:
            raise NodeNotFoundError(
                f"{counted(len(missing), 'task')} of {count:,} {'has' if len(missing) == 1 else 'have'} not been run, the first is "
                f"{missing[0]}; run them, then finish again. Nothing was published",
                path=self._prefix.rstrip("/"),
            )

    def results(self, digest: str) -> Iterator[bytes]:
        """Yield the values of the marks of all finished tasks of a plan: the changes of forks of the store."""
        for number in sorted(self.finished(digest)):
            yield self._get(self.task_key(digest, number)) or b""

    def forget_tasks(self) -> None:
        """Remove marks and notes, because the result is published, or other tasks will replace the values."""
        if self._has_marks:
            others = [key for key in self._keys() if key not in (self.claim_key, self._plan_key)]
            self.erase([key for key in others if not (self.keeps and key.startswith(f"{self.path}/{KEPT}/"))])

    def wait_for_runs(self, wait: float) -> bool:
        """Wait until no task runs on another process. The store can list keys.

        Args:
            wait: Seconds to wait.

        Returns:
            Whether one was killed, so that its temporary files may remain.

        Raises:
            WriteConflictError: If one continues for longer.
        """
        end, observed, is_interrupted = clock.monotonic() + wait, dict[str, Observed](), False
        while True:
            raise_if_cancelled()
            keys = run_blocking(self._store, self._store.list_prefix(f"{self.path}/"))
            notes = [key for key in keys if key.startswith(f"{self.path}/run-")]
            values = run_blocking(self._store, self._store.fetch([Request(key) for key in notes]))
            found = {
                key: entry_of(value)
                for key, value in zip(notes, values, strict=True)
                if value and value.data != FINISHED
            }
            running = [key for key, note in found.items() if not observed.setdefault(key, Observed()).is_over(note)]
            is_interrupted |= len(running) < len(found)
            if not running:
                self.erase([*found])
                return is_interrupted
            if clock.monotonic() > end:
                raise WriteConflictError(
                    f"{len(running)} tasks of an earlier job still write {self._prefix.rstrip('/') or '/'!r} in "
                    f"{self._store!r}; repeat the call when they have ended",
                    key=running[0],
                )
            clock.current().sleep_blocking(POLL_SECONDS)

    # -------------------------------------------------------------- notes for other processes

    def save_transaction(self, state: bytes) -> None:
        """Keep the state of a transaction for the processes that continue it."""
        self.put(f"{self.path}/transaction", state)

    def transaction(self) -> bytes:
        """Return the state of the transaction of the plan that is not finished; empty without one."""
        return self._get(f"{self.path}/transaction") or b""

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Store what will be published, so that another job can complete it if this process ends meanwhile."""
        self.put(f"{self.path}/{JOB_RECORD}", json.dumps(record).encode())

    def record(self) -> dict[str, Any] | None:
        """Return what an earlier job has begun to publish; ``None`` if it has published all of it.

        Raises:
            StoreError: If the record is damaged.
        """
        data = self._get(f"{self.path}/{JOB_RECORD}")
        if data is None:
            return None
        try:
            record = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise self.damaged_record(error) from error
        if not isinstance(record, dict):
            raise self.damaged_record("expected an object with a plan")
        return record

    def damaged_record(self, reason: object) -> StoreError:
        """Return the error for a record that cannot be read."""
        key = f"{self.path}/{JOB_RECORD}"
        return StoreError(
            f"{key!r} in {self._store!r}, the record of a job that was interrupted while it published its result, is damaged: "
            f"{reason}; erase it and repeat the call, which ingests files again that were not published",
            key=key,
        )
