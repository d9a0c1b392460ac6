"""Leases: entries in shared documents, each of which one process holds, and renews as long as it works.

They order processes in object stores, which have no locks. Every change of a document is a conditional write, so that only
one of several processes succeeds. A process that was killed or suspended does not renew its entry, and loses it to the
next process.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar

from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.backoff import ConflictBackoff, pause
from zarrasync._concurrency.cancel import raise_if_cancelled, run_cleanup
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.errors import ConditionsUnsupported, StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores.base import Store
from zarrasync.stores.local_files import is_process_gone, is_process_name, process_name
from zarrasync.stores.values import ABSENT, Request, Value

T = TypeVar("T")
Entry: TypeAlias = dict[str, Any]
"""An entry as it is stored, with ``id``, ``owner``, ``beat`` and ``state``."""
Change: TypeAlias = Callable[[Entry], Entry | None]
FINISHED = b'{"finished": true}'
"""What replaces the document of a process that has ended, if the store does not allow to erase it."""
_BEAT_SECONDS = 3.0
"""Time between two renewals."""
DEAD_SECONDS = 15.0
"""An entry that is not renewed for this long is abandoned. Measured by the waiting process, so clocks may differ."""
POLL_SECONDS = 0.25
"""Time after which a waiting process looks again."""


class Observed:
    """An entry of another process, as this process has seen it."""

    def __init__(self) -> None:
        self._beat: object = None
        self._since = 0.0

    def is_over(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the owner has ended or left the entry, or has not renewed it for long."""
        owner, beat, now = entry.get("owner"), (entry.get("id"), entry.get("beat")), clock.monotonic()
        if beat != self._beat:
            self._beat, self._since = beat, now
        # The owner of a damaged entry notices that when it renews it, and ends.
        seconds = DEAD_SECONDS if not owner or is_process_name(owner) else 2 * _BEAT_SECONDS
        is_left = not owner or entry.get("state") == "left"
        return is_left or is_process_gone(str(owner)) or now - self._since > seconds


def entry_of(value: Value | None) -> Entry:
    """Return the entry of a document with one; ``{}`` if the document does not exist, is damaged, or is of a finished process."""
    try:
        content = {} if value is None or value.data == FINISHED else json.loads(bytes(value.data))
    except (ValueError, RecursionError):
        content = {}
    if not isinstance(content, dict):
        return {}
    if content.get("owner"):  # a damaged name does not mean that the process has ended
        content["owner"] = str(content["owner"])
    return content


class Lease:
    """The entry of this process in a shared document. A thread renews it as long as it is held.

    This class reads and changes documents with one entry. Subclasses define its meaning, and documents with several ones.

    Args:
        store: The store, which supports conditional writes.
        key: The key of the document.
        name: What the lease is for, for messages.
        seconds: How long to repeat changes that conflict with others; 0 for no limit.

    Attributes:
        is_held: Whether the entry was stored, and not ended.
        is_lost: Whether another process has removed or replaced it.
    """

    def __init__(self, store: Store, key: str, name: str, seconds: float = 0.0) -> None:
        self._store, self._key, self._name, self._seconds = store, key, name, seconds
        self.is_held = self.is_lost = False
        self._id = ""
        self._known: tuple[list[Entry], object] = [], ABSENT
        """The entries of the document and its version, as last read or written."""
        self._observed: dict[str, Observed] = {}
        self._stop, self._renewing = threading.Event(), threading.Lock()

    def new_entry(self, **values: Any) -> Entry:
        """Return an entry of this process, for ``enter``."""
        return {"id": self._id, "owner": process_name(), "beat": 0, "state": "running", **values}

    @property
    def entry(self) -> Entry:
        """The own entry, as it is stored; ``{}`` without one."""
        return next((entry for entry in self._known[0] if entry.get("id") == self._id), {})

    # -------------------------------------------------------------- acquiring

    async def enter(
        self,
        choose: Callable[[list[Entry], list[Entry]], Awaitable[list[Entry] | None]],
        busy: Callable[[], str],
        wait: float,
        poll: float = POLL_SECONDS,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Add an entry, as soon as the other ones allow that.

        Args:
            choose: Returns all entries to store, from those whose owners work and those whose owners have ended; ``None``
                to wait for other processes. Without an own entry, nothing is stored.
            busy: Returns the message of the error if other processes work for too long.
            wait: Seconds to wait for them.
            poll: Seconds after which to look again.
            then: A step to take with the entry. If it raises ``WriteConflictError``, because other processes have finished
                between the calls of ``choose`` and of this function, the entry is removed, and chosen again.

        Raises:
            WriteConflictError: If they work for longer, or if changes conflict for too long.
        """
        self._id, self.is_lost = uuid.uuid4().hex, False
        end, backoff, empty = clock.monotonic() + wait, ConflictBackoff(self._seconds, self._name), Observed()
        while True:
            raise_if_cancelled()  # the thread of a job waits for a loop that does not know of its cancellation
            entries, version = await self._read()
            if not entries and version is not ABSENT:
                # It is about to be erased, and never replaced: some stores cannot erase on condition.
                if empty.is_over({"owner": "released"}):
                    await self._io(partial(self._store.erase, self._key))
                await pause(poll / 10)
                continue
            over = [entry for entry in entries if self._is_over(entry)]
            chosen = await choose([entry for entry in entries if entry not in over], over)
            if chosen is None:
                if clock.monotonic() > end:
                    raise WriteConflictError(busy(), key=self._key)
                await pause(poll)
                continue
            if not any(entry["id"] == self._id for entry in chosen):
                return
            try:
                await self._put(chosen, version)
                self._keep()
                if then is not None:
                    await then()
                return
            except WriteConflictError as conflict:
                await self.end()
                await backoff.after(conflict)
            except asyncio.CancelledError:
                if not self.is_held:  # the request may have stored the entry
                    await run_cleanup(self._withdraw)
                raise

    async def _withdraw(self) -> None:
        """Remove the entry if it is stored, although it is not held."""
        await self._read()
        self.is_held = bool(self.entry)
        await self.end()

    def _is_over(self, entry: Entry) -> bool:
        return self._observed.setdefault(repr(entry.get("id")), Observed()).is_over(entry)

    def _keep(self) -> None:
        """Renew the entry from now on, on a separate thread."""
        self.is_held, self.is_lost, self._stop = True, False, threading.Event()
        clock.current().start_thread("zarrasync-lease", partial(self._beat, self._stop))

    def _beat(self, stop: threading.Event) -> None:
        while not clock.current().wait(stop, _BEAT_SECONDS):
            with self._renewing:
                if stop.is_set():
                    return
                with suppress(StoreError):  # the next renewal may succeed
                    if not self.change_now(_renewed):
                        return

    # -------------------------------------------------------------- changing

    async def change(self, change: Change) -> bool:
        """Change the own entry; ``None`` removes it. Return whether this process still holds it."""
        backoff = ConflictBackoff(self._seconds, self._name)
        while not self.is_lost:
            entries, version = self._known  # together, because the thread that renews the entry changes them
            own = [entry for entry in entries if entry.get("id") == self._id]
            if not own:
                self.is_lost = True
                break
            others, changed = [entry for entry in entries if entry not in own], change(own[0])
            try:
                await self._put(others if changed is None else [*others, changed], version)
            except WriteConflictError as conflict:  # of a renewal at the same time, or another process
                await self._read()
                if self.entry:
                    await backoff.after(conflict)
            else:
                return True
        return False

    def change_now(self, change: Change) -> bool:
        """Change the own entry from synchronous code, as ``change`` does."""
        return self._run(self.change(change))

    async def renew(self) -> bool:
        """Renew the entry now. Return whether this process still holds it."""
        return await self.change(_renewed)

    async def end(self, change: Change = lambda entry: None) -> bool:
        """Make the last change of the entry, which by default removes it. Return whether this process held it until then."""
        self._stop.set()
        is_own, self.is_held = self.is_held and await self.change(change), False
        return is_own

    def stop(self) -> None:
        """End renewing the entry, from synchronous code. No renewal is under way afterwards."""
        self._stop.set()
        with self._renewing:
            self.is_held = False

    # -------------------------------------------------------------- the document

    async def _read(self) -> tuple[list[Entry], object]:
        """Return the entries of the document, and its version."""
        (value,) = await self._io(partial(self._store.fetch, [Request(self._key)], versions=True))
        known = ([], ABSENT) if value is None else (self._parse(value), value.version)
        self._known = known
        return known

    async def _put(self, entries: Sequence[Entry], version: object) -> None:
        """Replace a version of the document, and erase it if no entries remain.

        Raises:
            WriteConflictError: If another process has changed it.
        """
        if not entries and version is not ABSENT:
            try:
                await self._io(partial(self._store.erase, self._key, if_version=version))
            except UnsupportedOperation:  # then an empty document is stored first, which no process replaces
                pass
            else:
                self._known = [], ABSENT
                return
        data = json.dumps(self._render(entries)).encode()
        new_version = await self._io(partial(self._store.put, self._key, data, if_version=version))
        self._known = list(entries), new_version
        if not entries:
            with suppress(StoreError):  # the next process erases it
                await self._io(partial(self._store.erase, self._key))

    def _parse(self, value: Value) -> list[Entry]:
        if bytes(value.data) == b"{}":
            return []
        return [entry_of(value) or {"id": "damaged"}]

    def _render(self, entries: Sequence[Entry]) -> Any:
        return entries[0] if entries else {}

    async def _io(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (run_in_worker(call) if self._store.blocking else call())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=self._store.blocking)


def _renewed(entry: Entry) -> Entry:
    return {**entry, "beat": entry["beat"] + 1}


class Turn(Lease):
    """A lease that one process holds at a time, for the length of an ``async with`` block, which runs on an event loop.

    In stores that other processes cannot write, or without conditional writes, nothing is stored.

    Args:
        store: The store.
        key: The key of the document.
        name: What waits for the lease, for messages.
        seconds: How long to wait for another process; 0 for no limit.
    """

    async def __aenter__(self) -> Self:
        store = self._store
        is_shared = store.shareable and not (store.blocking or store.exclusive_locks or store.checks_bounds)
        if is_shared and store.conditional and store.writeable:
            with suppress(ConditionsUnsupported):
                await self.enter(self._choose, self._busy, self._seconds or float("inf"))
        return self

    async def _choose(self, running: list[Entry], over: list[Entry]) -> list[Entry] | None:
        return None if running else [self.new_entry()]

    def _busy(self) -> str:
        return (
            f"{self._name}: another process did not finish within {self._seconds:g} s; repeat the call when it has ended, or "
            "raise config.total_timeout"
        )

    async def __aexit__(self, *error: object) -> None:
        if self.is_held:
            await run_cleanup(self.end)

    async def check(self) -> None:
        """Renew the lease now, before a step that only its holder may take.

        Raises:
            WriteConflictError: If this process was suspended for too long, and another process has taken the lease over.
        """
        if self.is_held and not await self.renew():
            raise WriteConflictError(
                f"{self._name}: another process has continued, because this one was suspended for more than "
                f"{DEAD_SECONDS:.0f} s; look at the result, and repeat the call",
                key=self._key,
            )
