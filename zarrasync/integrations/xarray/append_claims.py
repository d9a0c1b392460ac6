"""Claims of rows: appends to a dataset that run at the same time know each other's labels before they are stored.

The claims of a dataset are one value below its index coordinate, which exists as long as any append runs. A writer adds its
claim with a conditional write, and compares its labels with the stored ones and with the other claims first. So if two
writers append the same label at the same time, the claim of one fails, and it compares again. A writer removes its claim
once all values are stored.

The claim of a writer that was killed, or whose rows could not be removed after a failure, remains. The labels in it do
not count as existing: an append of the same labels writes these rows again in place.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency import bridge, clock
from zarrasync._concurrency.retry import ConflictBackoff, pause
from zarrasync.errors import ConditionsUnsupported, StoreError, WriteConflictError
from zarrasync.integrations.xarray.labels import Placement, Unfinished
from zarrasync.model.paths import join
from zarrasync.nodes.erase import APPENDS
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import ABSENT, Request, Store
from zarrasync.stores.leases import BEAT_SECONDS, DEAD_SECONDS, Observed
from zarrasync.stores.temporary_names import process_name

__all__ = ["AppendClaim"]

_POLL_SECONDS = 0.1
_RUNNING, _LEFT = "running", "left"


@dataclass(frozen=True)
class _Entry:
    """The claim of one writer, as it is stored."""

    rows: Unfinished
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    owner: str = field(default_factory=process_name)
    beat: int = 0
    state: str = _RUNNING

    def to_json(self) -> dict[str, Any]:
        shared = {"id": self.id, "owner": self.owner, "beat": self.beat, "state": self.state}
        return {**shared, "places": _to_text(self.rows.places), "labels": _to_text(self.rows.labels)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> _Entry:
        rows = Unfinished(_from_text(content["places"]), _from_text(content["labels"]))
        return cls(rows, content["id"], content["owner"], content["beat"], content["state"])

    def without(self, places: npt.NDArray[np.int64]) -> _Entry:
        """Return the claim without some rows."""
        kept = ~np.isin(self.rows.places, places)
        return replace(self, rows=Unfinished(self.rows.places[kept], self.rows.labels[kept]))


def _to_text(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind in "OT":
        values = values.astype(str) if values.size else np.zeros(0, "U1")
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _from_text(text: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return values


class AppendClaim:
    """The claim of one append to a dataset.

    Without conditional writes nothing is claimed. Only one writer may append to such a store at a time.

    Args:
        store: The store.
        path: The path of the index coordinate.
        seconds: How long to wait for other writers; 0 for no limit.
    """

    def __init__(self, store: Store, path: str, seconds: float) -> None:
        self._store, self._seconds = store.notes, seconds
        self._key, self._name = join(path, APPENDS), f"/{path} in {store!r}"
        self._own: _Entry | None = None
        self._stop = threading.Event()

    def _is_enabled(self) -> bool:
        """Whether the store supports claims. Some stores notice with the first write that they do not."""
        return self._store.conditional and self._store.writeable

    async def acquire(
        self,
        place: Callable[[Sequence[Unfinished], Sequence[Unfinished]], Awaitable[Placement | None]],
        labels: npt.NDArray[Any],
    ) -> Placement:
        """Claim rows, as soon as no other writer appends rows with the same labels.

        Args:
            place: Returns the places of the rows, from the rows of other writers that run and of those that have failed;
                ``None`` to wait for other writers.
            labels: The labels of the rows.

        Raises:
            WriteConflictError: If other writers continue for too long.
        """
        if not self._is_enabled():
            placement = await place([], [])
            assert placement is not None
            return placement
        observed: dict[str, Observed] = {}
        end = clock.monotonic() + (self._seconds or float("inf"))
        backoff = ConflictBackoff(self._seconds, self._name)
        while True:
            entries, version = await self._read()
            over = [entry for entry in entries if _is_over(entry, observed)]
            running = [entry for entry in entries if entry not in over]
            placement = await place([entry.rows for entry in running], [entry.rows for entry in over])
            if placement is None:
                if clock.monotonic() > end:
                    raise WriteConflictError(
                        f"{self._name}: another writer appends rows with the same labels, and did not finish within "
                        f"{self._seconds:g} s; repeat the call when it has ended, or raise config.total_timeout",
                        key=self._key,
                    )
                await pause(_POLL_SECONDS)
                continue
            claimed = placement.claimed
            if not claimed.any():
                return placement
            own = _Entry(Unfinished(placement.places[claimed], labels[claimed]))
            # Rows of failed writers beyond the end were never reserved, and others get these places.
            rest = [entry.without(np.append(own.rows.places, _beyond(entry, placement.start))) for entry in over]
            try:
                await self._put([*running, *(entry for entry in rest if entry.rows.places.size), own], version)
            except WriteConflictError as conflict:
                await backoff.after(conflict)
                continue
            except ConditionsUnsupported:
                if self._is_enabled():
                    raise
                return placement  # the store no longer uses conditional writes
            self._own = own
            clock.current().start_thread("zarrasync-append", partial(self._beat, own.id))
            return placement

    async def release(self) -> None:
        """Remove the claim, because all values are stored.

        Raises:
            WriteConflictError: If another writer has taken the rows over.
        """
        if self._own is not None and not await self._end(lambda own: None):
            raise WriteConflictError(
                f"{self._name}: another writer has taken over the appended rows, because this one was suspended for more "
                f"than {DEAD_SECONDS:.0f} s; compare the rows, and repeat the call",
                key=self._key,
            )

    async def leave(self, length: int) -> None:
        """Remove the claim after a failure, except for rows that could not be removed.

        Args:
            length: The number of rows that the coordinate has now.
        """
        if self._own is not None:
            await self._end(lambda own: replace(own.without(_beyond(own, length)), state=_LEFT))

    async def _end(self, change: Callable[[_Entry], _Entry | None]) -> bool:
        """Make the last change of the own claim. Return whether it existed."""
        own, self._own = self._own, None
        self._stop.set()
        return own is not None and await self._change(own.id, change)

    def _beat(self, own: str) -> None:
        """Renew the claim, on a separate thread."""
        while not self._stop.wait(BEAT_SECONDS):
            with suppress(StoreError):  # the next one may succeed
                renew = self._change(own, lambda entry: replace(entry, beat=entry.beat + 1))
                bridge.run(renew, blocking=self._store.blocking)

    async def _change(self, identity: str, change: Callable[[_Entry], _Entry | None]) -> bool:
        """Replace a claim; ``None`` or a claim without rows removes it. Return whether it exists."""
        backoff = ConflictBackoff(self._seconds, self._name)
        while True:
            entries, version = await self._read()
            own = next((entry for entry in entries if entry.id == identity), None)
            if own is None:
                return False
            changed = change(own)
            others = [entry for entry in entries if entry is not own]
            try:
                await self._put(
                    [*others, changed] if changed is not None and changed.rows.places.size else others, version
                )
            except WriteConflictError as conflict:
                await backoff.after(conflict)
            else:
                return True

    # -------------------------------------------------------------- the stored value

    async def _read(self) -> tuple[list[_Entry], object]:
        """Return the claims of all writers, and the version of the value.

        A value without claims is about to be erased, and never replaced: some stores cannot erase on condition.
        """
        since = clock.monotonic()
        while True:
            (value,) = await self._run(partial(self._store.fetch, [Request(self._key)], versions=True))
            if value is None:
                return [], ABSENT
            if entries := self._parse(bytes(value.data)):
                return entries, value.version
            if clock.monotonic() - since > DEAD_SECONDS:  # the writer that wanted to erase it was killed
                await self._run(partial(self._store.erase, self._key))
            await pause(_POLL_SECONDS / 10)

    def _parse(self, data: bytes) -> list[_Entry]:
        try:
            return [_Entry.from_json(content) for content in json.loads(data)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(
                f"{self._name}: the claims of appends are damaged; erase {self._key!r} if no other writer appends, and "
                "repeat the call",
                key=self._key,
            ) from error

    async def _put(self, entries: Sequence[_Entry], version: object) -> None:
        data = json.dumps([entry.to_json() for entry in entries]).encode()
        await self._run(partial(self._store.put, self._key, data, if_version=version))
        if not entries:
            with suppress(StoreError):  # the next writer erases it
                await self._run(partial(self._store.erase, self._key))

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await run_on_store(call, self._store)


def _beyond(entry: _Entry, length: int) -> npt.NDArray[np.int64]:
    return entry.rows.places[entry.rows.places >= length]


def _is_over(entry: _Entry, observed: dict[str, Observed]) -> bool:
    content = {"owner": entry.owner, "id": entry.id, "beat": entry.beat}
    return entry.state == _LEFT or observed.setdefault(entry.id, Observed()).is_over(content)
