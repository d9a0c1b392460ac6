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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import ConditionsUnsupported, StoreError, WriteConflictError
from zarrasync.integrations.xarray.labels import Placement, Unfinished
from zarrasync.model.paths import join
from zarrasync.nodes.erase import APPENDS
from zarrasync.stores import Store, Value
from zarrasync.stores.leases import DEAD_SECONDS, Entry, Lease

__all__ = ["AppendClaim"]

_POLL_SECONDS = 0.1


class AppendClaim(Lease):
    """The claim of one append to a dataset. The document contains the claims of all writers.

    Without conditional writes nothing is claimed. Only one writer may append to such a store at a time.

    Args:
        store: The store.
        path: The path of the index coordinate.
        seconds: How long to wait for other writers; 0 for no limit.
    """

    def __init__(self, store: Store, path: str, seconds: float) -> None:
        super().__init__(store.notes, join(path, APPENDS), f"/{path} in {store!r}", seconds)

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
        placement: Placement | None = None

        async def choose(running: list[Entry], over: list[Entry]) -> list[Entry] | None:
            nonlocal placement
            placement = await place([*map(_rows_of, running)], [*map(_rows_of, over)])
            if placement is None:
                return None
            claimed, places = placement.claimed, placement.places
            if not claimed.any():
                return running
            own = _with_rows(self.new_entry(), Unfinished(places[claimed], labels[claimed]))
            # Rows of failed writers beyond the end were never reserved, and others get these places.
            rest = (_without(entry, places[claimed], placement.start) for entry in over)
            return [*running, *(entry for entry in rest if entry is not None), own]

        if not self._is_enabled():
            placement = await place([], [])
        else:
            try:
                await self.enter(choose, self._busy, self._seconds or float("inf"), _POLL_SECONDS)
            except ConditionsUnsupported:  # the store no longer uses conditional writes
                if self._is_enabled():
                    raise
        assert placement is not None
        return placement

    def _busy(self) -> str:
        return (
            f"{self._name}: another writer appends rows with the same labels, and did not finish within {self._seconds:g} s; "
            "repeat the call when it has ended, or raise config.total_timeout"
        )

    async def release(self) -> None:
        """Remove the claim, because all values are stored.

        Raises:
            WriteConflictError: If another writer has taken the rows over.
        """
        if self.is_held and not await self.end():
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

        def change(own: Entry) -> Entry | None:
            return _without({**own, "state": "left"}, np.zeros(0, np.int64), length)

        await self.end(change)

    # -------------------------------------------------------------- the document

    def _parse(self, value: Value) -> list[Entry]:
        try:
            entries: list[Entry] = json.loads(bytes(value.data))
            for entry in entries:
                _rows_of(entry)
                _ = entry["id"], entry["owner"], entry["beat"], entry["state"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(
                f"{self._name}: the claims of appends are damaged; erase {self._key!r} if no other writer appends, and "
                "repeat the call",
                key=self._key,
            ) from error
        return entries

    def _render(self, entries: Sequence[Entry]) -> Any:
        return entries


def _rows_of(entry: Entry) -> Unfinished:
    return Unfinished(_from_text(entry["places"]), _from_text(entry["labels"]))


def _with_rows(entry: Entry, rows: Unfinished) -> Entry:
    return {**entry, "places": _to_text(rows.places), "labels": _to_text(rows.labels)}


def _without(entry: Entry, places: npt.NDArray[np.int64], length: int) -> Entry | None:
    """Return a claim without some rows and those beyond a length; ``None`` if no rows remain."""
    rows = _rows_of(entry)
    kept = ~np.isin(rows.places, places) & (rows.places < length)
    return _with_rows(entry, Unfinished(rows.places[kept], rows.labels[kept])) if kept.any() else None


def _to_text(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind in "OT":
        values = values.astype(str) if values.size else np.zeros(0, "U1")
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _from_text(text: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return values
