"""Claims: two jobs must not write the same dataset at a time, and a job that was killed is continued or replaced.

A claim is a document next to the dataset, which the store creates only if it does not exist. The owner renews it every
few seconds. If it is not renewed any more, or its process has ended, another job takes it over. Below the claim lie
empty values that mark finished tasks. All of them are removed when the result is published.

Stores without conditional writes have no claims: there, only one job may run at a time, and a rerun writes all tasks.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from zarrasync._concurrency import bridge, clock
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.model.paths import join
from zarrasync.stores import ABSENT, Request, Store
from zarrasync.stores.temporary_names import is_process_gone, process_name

__all__ = ["Claim"]

T = TypeVar("T")
_BEAT_SECONDS = 3.0
"""Time between two renewals."""
_DEAD_SECONDS = 15.0
"""A claim that is not renewed for this long is abandoned. Measured by the waiting process, so clocks may differ."""
_POLL_SECONDS = 0.25
_FOLDER = ".ingest"


class Claim:
    """The right to change a dataset.

    Args:
        store: The store.
        path: The path of the dataset's group.

    Attributes:
        found: The content of the claim that this one continues or replaces.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._folder = join(path, _FOLDER)
        self._key = f"{self._folder}/claim"
        self.is_enabled = store.conditional and store.writeable
        self.found: dict[str, Any] = {}
        self._content: dict[str, Any] = {}
        self._version: object = None
        self._lost: BaseException | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: Any = None

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=self._store.blocking)

    # -------------------------------------------------------------- acquiring

    def acquire(self, wait: float) -> None:
        """Take the claim, as soon as no other job has it.

        Args:
            wait: Seconds to wait for another job.

        Raises:
            WriteConflictError: If another job continues for longer, or a plan for independent tasks is not finished.
        """
        if not self.is_enabled:
            return
        end, seen, since = clock.monotonic() + wait, None, clock.monotonic()
        while True:
            content, version = self._read()
            now = clock.monotonic()
            if (content.get("owner"), content.get("beat")) != seen:
                seen, since = (content.get("owner"), content.get("beat")), now
            if content.get("state") == "planned":
                raise WriteConflictError(
                    f"a plan of {content.get('files')} for {self._describe()} is not finished: run its tasks, then "
                    "`zarrasync ingest finish PLAN`; or drop it with `zarrasync ingest abandon PLAN`",
                    key=self._key,
                )
            if self._is_free(content, now - since):
                try:
                    self._take(content, version)
                except WriteConflictError:
                    continue
                return
            if now > end:
                raise WriteConflictError(
                    f"another job writes {self._describe()}: it ingests {content.get('files') or 'files'} since "
                    f"{wait:.0f} s; repeat the call when it has ended",
                    key=self._key,
                )
            clock.sleep_blocking(_POLL_SECONDS)

    def _is_free(self, content: dict[str, Any], idle: float) -> bool:
        owner = content.get("owner")
        return not owner or content.get("state") == "left" or idle > _DEAD_SECONDS or is_process_gone(owner)

    def _take(self, content: dict[str, Any], version: object) -> None:
        self.found = content
        self._content = {**content, "owner": process_name(), "id": uuid.uuid4().hex, "beat": 0, "state": "running"}
        self._version = self._run(self._store.put(self._key, self._dumps(), if_version=version))
        self._thread = clock.current().start_thread("zarrasync-claim", self._beat)

    def _read(self) -> tuple[dict[str, Any], object]:
        (value,) = self._run(self._store.fetch([Request(self._key)], versions=True))
        if value is None:
            return {}, ABSENT
        try:
            content = json.loads(bytes(value.data))
        except ValueError:
            content = {}
        return content if isinstance(content, dict) else {}, value.version

    def _dumps(self) -> bytes:
        return json.dumps(self._content).encode()

    def _describe(self) -> str:
        return f"/{self._folder.removesuffix(_FOLDER).rstrip('/')} in {self._store!r}"

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

    def _put(self) -> None:
        try:
            self._version = self._run(self._store.put(self._key, self._dumps(), if_version=self._version))
        except WriteConflictError as error:
            self._lost = error
            raise WriteConflictError(
                f"another job has taken over {self._describe()}, because this one was suspended for more than "
                f"{_DEAD_SECONDS:.0f} s; repeat the call",
                key=self._key,
            ) from error

    def check(self) -> None:
        """Raise an error if another job has taken the claim over."""
        if self._lost is not None:
            raise WriteConflictError(f"another job has taken over {self._describe()}; repeat the call", key=self._key)

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
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

    def finished(self, digest: str) -> set[int]:
        """Return the numbers of the finished tasks of a plan."""
        if not self.is_enabled or not self._store.listable:
            return set()
        prefix = f"{self._folder}/{digest}/"
        keys = self._run(self._store.list_prefix(prefix))
        return {int(key.rpartition("-")[2]) for key in keys if key.startswith(f"{prefix}task-")}

    def task_key(self, digest: str, number: int) -> str:
        """Return the key of the value that marks a task as finished; empty without claims."""
        return f"{self._folder}/{digest}/task-{number}" if self.is_enabled else ""

    # -------------------------------------------------------------- publishing

    def begin_publishing(self, record: Mapping[str, Any]) -> None:
        """Store what will be published, so that another job can complete it if this process ends meanwhile."""
        if self.is_enabled:
            self._run(self._store.put(self._record_key, json.dumps(record).encode()))
            self.update(publishing=True)

    def unpublished(self) -> dict[str, Any] | None:
        """Return what an earlier owner of this claim has begun to publish, or ``None``."""
        if not self.found.get("publishing"):
            return None
        data = self._run(self._store.get(self._record_key))
        record: dict[str, Any] | None = None if data is None else json.loads(data)
        return record

    def end_publishing(self) -> None:
        """Forget the job of an earlier owner, which is published now."""
        self._erase_marks()
        self.found = {}
        self._content = {name: self._content[name] for name in ("owner", "id", "beat", "state")}
        self.update()

    @property
    def _record_key(self) -> str:
        return f"{self._folder}/record"

    def _erase_marks(self) -> None:
        keys = self._run(self._store.list_prefix(f"{self._folder}/"))
        self._run(self._store.erase_values([key for key in keys if key != self._key]))

    # -------------------------------------------------------------- releasing

    def plan_only(self) -> None:
        """Leave the claim to a plan, whose tasks other processes run."""
        self._end("planned")

    def leave(self) -> None:
        """Leave the claim after a failure. The next job continues it or takes it over."""
        if self._lost is None:
            self._end("left")

    def release(self) -> None:
        """Remove the claim and the marks of tasks."""
        if not self.is_enabled:
            return
        self._end_beats()
        if self._lost is None:
            self._erase_marks()
            self._run(self._store.erase_values([self._key]))
            if self._store.blocking:
                self._run(self._store.erase_prefix(f"{self._folder}/"))  # empty directories

    def resume(self, digest: str, *, take: bool) -> None:
        """Continue the claim that a plan has left.

        Args:
            digest: The digest of the plan.
            take: Whether to own the claim from now on. Otherwise the claim is only checked.

        Raises:
            WriteConflictError: If the plan was finished or abandoned.
        """
        if not self.is_enabled:
            return
        content, version = self._read()
        if content.get("plan") != digest:
            raise WriteConflictError(
                f"the plan is not in progress in {self._describe()}: it was finished, abandoned, or replaced",
                key=self._key,
            )
        if take:
            self._take(content, version)

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
        if error is not None and not self._stop.is_set() and self._thread is not None:
            self.leave() if "plan" in self._content else self.release()
