"""Runs of tasks outside of the process that has the claim: on other processes, on clusters, or by other schedulers.

A run leaves a note next to the claim while it writes, and renews it like a claim. A process that takes the claim over, or
publishes a result, waits until all runs have ended. So no task of an earlier job writes after that, even if it continues
for a while after its job was killed.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from zarrasync._concurrency import bridge, clock
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import ABSENT, Request, Store, Value
from zarrasync.stores.leases import BEAT_SECONDS, DEAD_SECONDS, Observed
from zarrasync.stores.temporary_names import process_name

__all__ = ["Permit", "Run", "read_content", "wait_for_runs"]

T = TypeVar("T")
_POLL_SECONDS = 0.25


async def read_content(store: Store, key: str) -> tuple[dict[str, Any], object]:
    """Return the content of a claim or a note, and its version; ``{}`` and ``ABSENT`` if it does not exist."""
    (value,) = await store.fetch([Request(key)], versions=True)
    return _parse(value), ABSENT if value is None else value.version


async def read_contents(store: Store, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the contents of notes; ``{}`` for those that do not exist."""
    return [_parse(value) for value in await store.fetch([Request(key) for key in keys])]


def _parse(value: Value | None) -> dict[str, Any]:
    try:
        content = {} if value is None else json.loads(bytes(value.data))
    except (ValueError, RecursionError):
        content = {}
    if not isinstance(content, dict):
        return {}
    if content.get("owner"):  # a damaged name does not mean that the process has ended
        content["owner"] = str(content["owner"])
    if type(content.get("created", 0)) is not int:
        del content["created"]
    return content


def wait_for_runs(store: Store, folder: str, wait: float) -> bool:
    """Wait until no task runs on another process. Return whether one was killed, so that its temporary files may remain.

    Args:
        store: The store, which can list keys.
        folder: The folder of the claim.
        wait: Seconds to wait.

    Raises:
        WriteConflictError: If one continues for longer.
    """

    def run(call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=store.blocking)

    end, observed, is_interrupted = clock.monotonic() + wait, dict[str, Observed](), False
    while True:
        notes = [key for key in run(store.list_prefix(f"{folder}/")) if key.startswith(f"{folder}/run-")]
        contents = dict(zip(notes, run(read_contents(store, notes)), strict=True))
        running = [key for key in notes if not observed.setdefault(key, Observed()).is_over(contents[key])]
        is_interrupted |= len(running) < len(notes)
        if not running:
            run(store.erase_values(notes))
            return is_interrupted
        if clock.monotonic() > end:
            raise WriteConflictError(
                f"{len(running)} tasks of an earlier job still write {folder.rpartition('/')[0] or '/'!r} in {store!r}; repeat "
                "the call when they have ended",
                key=running[0],
            )
        clock.sleep_blocking(_POLL_SECONDS)


@dataclass(frozen=True)
class Permit:
    """The permission to run tasks of a job, as it is sent to other processes.

    Attributes:
        folder: The folder of the claim.
        id: The identity that the claim has as long as the permission holds.
    """

    folder: str
    id: str


class Run:
    """A run of tasks: a context in which no other process takes over the job.

    Args:
        store: The store.
        permit: The permission; ``None`` if the process has the claim itself, or the store does not support claims.
    """

    def __init__(self, store: Store, permit: Permit | None) -> None:
        self._store, self._permit = store, permit
        self._key = "" if permit is None else f"{permit.folder}/run-{uuid.uuid4().hex}"
        self._content: dict[str, Any] = {"owner": process_name(), "beat": 0}
        self._version: object = None
        self._lost: BaseException | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=self._store.blocking)

    def __enter__(self) -> Self:
        if self._permit is not None:
            self._put(ABSENT)
            try:
                self._check_claim(self._permit)
            except BaseException:
                self._erase_note(is_over=True)
                raise
            clock.current().start_thread("zarrasync-run", self._beat)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._permit is not None:
            self._stop.set()
            with self._lock:
                self._erase_note(is_over=self._lost is not None)

    def _erase_note(self, *, is_over: bool) -> None:
        """Remove the note, and a folder that it has created after the job."""
        self._run(self._store.erase(self._key))
        if is_over and self._permit is not None:
            self._run(self._store.remove_empty_directory(f"{self._permit.folder}/"))

    def check(self) -> None:
        """Raise an error if others consider this run as ended."""
        if self._lost is not None:
            raise WriteConflictError(
                f"this process was suspended for more than {DEAD_SECONDS:.0f} s, so another job may have continued; repeat "
                "the call",
                key=self._key,
            ) from self._lost

    def mark(self, key: str, value: bytes = b"") -> None:
        """Store the mark of a task that has ended.

        If others consider this run as ended, the mark is removed again. No other process may remove it after the job.

        Raises:
            WriteConflictError: If they do.
        """
        self._run(self._store.put(key, value))
        if self._permit is None:
            return
        try:
            with self._lock:
                self._renew()
            self.check()
        except BaseException:
            self._run(self._store.erase(key))
            raise

    def _check_claim(self, permit: Permit) -> None:
        """Check that the job still has the claim. A process that takes it over now finds the note of this run, and waits."""
        key = f"{permit.folder}/claim"
        content, _ = self._run(read_content(self._store, key))
        if content.get("id") != permit.id:
            raise WriteConflictError(
                f"the job of this task has ended, or another process continues it: {key!r} in {self._store!r} has changed",
                key=key,
            )

    def _put(self, version: object) -> None:
        data = json.dumps(self._content).encode()
        self._version = self._run(self._store.put(self._key, data, if_version=version))

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with self._lock:
                if self._stop.is_set() or self._lost is not None:
                    return
                with suppress(StoreError):  # the next one may succeed
                    self._renew()

    def _renew(self) -> None:
        """Renew the note. If another process has removed it, the run is lost. Call this with the lock."""
        if self._lost is not None:
            return
        self._content["beat"] += 1
        try:
            self._put(self._version)
        except WriteConflictError as error:
            self._lost = error
