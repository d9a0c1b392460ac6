"""Leases: values that one process holds at a time, and renews as long as it runs.

They order processes in object stores, which have no locks. Every change of a lease is a conditional write, so that only
one of several waiting processes gets it. A process that was killed or suspended does not renew its lease, and loses it to
the next process.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from zarrasync._concurrency import clock
from zarrasync._concurrency.retry import ConflictBackoff, pause
from zarrasync._concurrency.shield import run_cleanup
from zarrasync.errors import ConditionsUnsupported, StoreError, WriteConflictError
from zarrasync.stores.base import Store
from zarrasync.stores.temporary_names import is_process_gone, is_process_name, process_name
from zarrasync.stores.values import ABSENT, Request

__all__ = ["BEAT_SECONDS", "DEAD_SECONDS", "Lease", "Observed"]

BEAT_SECONDS = 3.0
"""Time between two renewals."""
DEAD_SECONDS = 15.0
"""A lease that is not renewed for this long is abandoned. Measured by the waiting process, so clocks may differ."""
_POLL_SECONDS = 0.25


@dataclass
class Observed:
    """A lease of another process, as this process has seen it.

    Attributes:
        beat: What changes with each renewal.
        since: When it was seen for the first time.
    """

    beat: object = None
    since: float = 0.0

    def is_over(self, content: Mapping[str, Any]) -> bool:
        """Return whether the owner has ended, or has not renewed the content for long."""
        owner, beat, now = content.get("owner"), (content.get("id"), content.get("beat")), clock.monotonic()
        if beat != self.beat:
            self.beat, self.since = beat, now
        # The owner of a damaged note notices that when it renews the note, and ends.
        seconds = DEAD_SECONDS if not owner or is_process_name(owner) else 2 * BEAT_SECONDS
        return not owner or is_process_gone(owner) or now - self.since > seconds


class Lease:
    """A lease for the length of an ``async with`` block, which runs on an event loop.

    In stores that other processes cannot write, or without conditional writes, nothing is stored.

    Args:
        store: The store.
        key: The key of the lease. No other value has it.
        name: What waits for the lease, for messages.
        seconds: How long to wait for another process; 0 for no limit.
    """

    def __init__(self, store: Store, key: str, name: str, seconds: float) -> None:
        self._store, self._key, self._name, self._seconds = store, key, name, seconds
        self._id, self._beats = uuid.uuid4().hex, 0
        self._version: object = None
        self._renewal: asyncio.Task[None] | None = None
        self._is_lost = False

    async def __aenter__(self) -> Self:
        store = self._store
        is_shared = store.portable and not (store.blocking or store.exclusive or store.bounded)
        if is_shared and store.conditional and store.writeable:
            with suppress(ConditionsUnsupported):
                await self._acquire()
                self._renewal = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
            await run_cleanup(self._release)

    async def check(self) -> None:
        """Renew the lease now, before a step that only its holder may take.

        Raises:
            WriteConflictError: If this process was suspended for too long, and another process has taken the lease over.
        """
        if self._renewal is not None and not self._is_lost:
            await self._renew()
        if self._is_lost:
            raise WriteConflictError(
                f"{self._name}: another process has continued, because this one was suspended for more than "
                f"{DEAD_SECONDS:.0f} s; look at the result, and repeat the call",
                key=self._key,
            )

    async def _acquire(self) -> None:
        observed, empty = Observed(), Observed()
        end = clock.monotonic() + (self._seconds or float("inf"))
        backoff = ConflictBackoff(self._seconds, self._name)
        while True:
            content, version = await self._read()
            if version is ABSENT or (content and observed.is_over(content)):
                try:
                    self._version = await self._put(version)
                    return
                except WriteConflictError as conflict:
                    await backoff.after(conflict)
                    continue
            # A value without content is about to be erased, and never replaced: some stores cannot erase on condition.
            if not content and empty.is_over({"owner": "released"}):
                await self._store.erase(self._key)
                continue
            if clock.monotonic() > end:
                raise WriteConflictError(
                    f"{self._name}: another process did not finish within {self._seconds:g} s; repeat the call when it has "
                    "ended, or raise config.total_timeout",
                    key=self._key,
                )
            await pause(_POLL_SECONDS)

    async def _keep(self) -> None:
        while not self._is_lost:
            await clock.sleep(BEAT_SECONDS)
            with suppress(StoreError):  # the next renewal may succeed
                await self._renew()

    async def _renew(self) -> None:
        try:
            self._beats += 1
            self._version = await self._put(self._version)
        except WriteConflictError:  # also if ``check`` renews at the same time, or the response to a renewal was lost
            content, self._version = await self._read()
            self._is_lost = content.get("id") != self._id

    async def _release(self) -> None:
        content, version = await self._read()
        if content.get("id") == self._id:
            await self._store.put(self._key, b"{}", if_version=version)
            await self._store.erase(self._key)

    async def _read(self) -> tuple[dict[str, Any], object]:
        """Return the content and the version of the stored lease; ``ABSENT`` if it does not exist."""
        (value,) = await self._store.fetch([Request(self._key)], versions=True)
        if value is None:
            return {}, ABSENT
        try:
            content = json.loads(bytes(value.data))
        except (ValueError, RecursionError):
            content = None
        return content if isinstance(content, dict) else {"id": "damaged"}, value.version

    async def _put(self, version: object) -> object:
        content = {"id": self._id, "owner": process_name(), "beat": self._beats}
        return await self._store.put(self._key, json.dumps(content).encode(), if_version=version)
