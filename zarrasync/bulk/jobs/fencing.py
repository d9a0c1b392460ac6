"""Fencing: permissions to run tasks of a job, and leases of the processes that run them without the claim.

A run leaves a note next to the claim while it writes, and renews it like a claim. A process that takes the claim over, or
publishes a result, waits until all runs have ended. So no task of an earlier job writes after that, even if it continues
for a while after its job was killed.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self

from zarrasync._concurrency.cancel import ignore_cancellation
from zarrasync.bulk.jobs.claim_folder import erase_notes
from zarrasync.errors import WriteConflictError
from zarrasync.stores import ABSENT, Request, Store
from zarrasync.stores.leases import DEAD_SECONDS, Lease, entry_of


@dataclass(frozen=True)
class FencingToken:
    """The permission to run tasks of a job, as it is sent to other processes.

    Attributes:
        folder: The folder of the claim.
        id: The name of the permission, which the claim contains as long as it holds.
    """

    folder: str
    id: str


class TaskLease(Lease):
    """A run of tasks: a context in which no other process takes over the job.

    Args:
        store: The store.
        token: The permission; ``None`` if the process has the claim itself, or the store does not support claims.
    """

    def __init__(self, store: Store, token: FencingToken | None) -> None:
        super().__init__(store, "" if token is None else f"{token.folder}/run-{uuid.uuid4().hex}", "a run of tasks")
        self._token = token

    def __enter__(self) -> Self:
        if self._token is not None:
            self._run(self._put([self.new_entry()], ABSENT))
            try:
                self._check_claim(self._token)
            except BaseException:
                self._erase_note(is_over=True)
                raise
            self._keep()
        return self

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            self.stop()
            self._erase_note(is_over=self.is_lost)

    def _erase_note(self, *, is_over: bool) -> None:
        """Remove the note, and a folder that it has created after the job, even if the call was cancelled."""
        self._erase(self._key)
        if is_over and self._token is not None and self._store.directories is not None:
            self._store.directories.remove_empty(f"{self._token.folder}/")

    def _erase(self, key: str) -> None:
        assert self._token is not None
        with ignore_cancellation():
            self._run(erase_notes(self._store, self._token.folder, [key]))

    def check(self) -> None:
        """Raise an error if others consider this run as ended."""
        if self.is_lost:
            raise WriteConflictError(
                f"this process was suspended for more than {DEAD_SECONDS:.0f} s, so another job may have continued; repeat "
                "the call",
                key=self._key,
            )

    def mark(self, key: str, value: bytes = b"") -> None:
        """Store the mark of a task that has ended.

        If others consider this run as ended, the mark is removed again. No other process may remove it after the job.

        Raises:
            WriteConflictError: If they do.
        """
        self._run(self._store.put(key, value))
        if self._token is None:
            return
        try:
            self._run(self.renew())
            self.check()
        except BaseException:
            self._erase(key)
            raise

    def _check_claim(self, token: FencingToken) -> None:
        """Check that the job still has the claim. A process that takes it over now finds the note of this run, and waits."""
        key = f"{token.folder}/claim"
        (claim,) = self._run(self._store.fetch([Request(key)]))
        if entry_of(claim).get("token") != token.id:
            raise WriteConflictError(
                f"the job of this task has ended, or another process continues it: {key!r} in {self._store!r} has changed",
                key=key,
            )
