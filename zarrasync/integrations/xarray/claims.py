"""Labels of rows that are appended: the places of the rows, and claims that other writers see before the labels are stored.

The claims of a dataset are one value below its index coordinate, which exists as long as any append runs. A writer adds its
claim with a conditional write, after it has compared its labels with the stored ones and with the other claims. Then it
extends the coordinate, if that still has the length that it had when the labels were compared. Otherwise, another append
has extended it in between, and the labels are compared again. So no two writers get the same rows, or append the same
labels. A writer removes its claim once all values are stored.

The claim of a writer that was killed, or whose rows could not be removed after a failure, remains. The labels in it do
not count as existing: an append of the same labels writes these rows again in place.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from zarrasync.display.text import counted
from zarrasync.errors import CodecError, ConditionsUnsupported, ShapeError, StoreError, WriteConflictError
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.model.paths import join
from zarrasync.nodes.erase import APPENDS
from zarrasync.stores import Store, Value
from zarrasync.stores.leases import DEAD_SECONDS, Entry, Lease

OnDuplicate: TypeAlias = Literal["error", "skip", "replace", "allow"]
"""What to do with rows whose labels exist already."""
Labels: TypeAlias = npt.NDArray[Any]
_SHOWN = 3
"""Labels in a message."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Unfinished:
    """Rows that a writer has reserved or is about to, and whose values may not be written yet.

    Attributes:
        places: The positions of the rows.
        labels: Their labels, as stored numbers or strings.
    """

    places: npt.NDArray[np.int64]
    labels: Labels


@dataclass(frozen=True)
class Placement:
    """The places of the rows of an append.

    Attributes:
        places: The position of each row; -1 for rows that are left out.
        start: The position of the first new row. Rows before it exist.
        count: The number of new rows.
        claimed: Which rows are new, or replace rows of a writer that has failed.
    """

    places: npt.NDArray[np.int64]
    start: int
    count: int
    claimed: npt.NDArray[np.bool_]

    @classmethod
    def at_end(cls, start: int, count: int) -> Placement:
        """Return the placement of rows that are all new."""
        return cls(np.arange(start, start + count), start, count, np.ones(count, np.bool_))

    @property
    def needed(self) -> int:
        """The number of rows that arrays need."""
        return max(self.start + self.count if self.count else 0, int(self.places.max(initial=-1)) + 1)

    def runs(self) -> list[tuple[slice, slice]]:
        """Return runs of consecutive rows that are written to consecutive places, as slices of both."""
        rows = np.flatnonzero(self.places >= 0)
        places = self.places[rows]
        breaks = (np.diff(rows) != 1) | (np.diff(places) != 1) | (places[1:] == self.start)
        parts = np.split(np.arange(rows.size), np.flatnonzero(breaks) + 1) if rows.size else []
        return [
            (slice(int(rows[p[0]]), int(rows[p[-1]]) + 1), slice(int(places[p[0]]), int(places[p[-1]]) + 1))
            for p in parts
        ]


def place_rows(
    labels: Labels,
    stored: Labels,
    start: int,
    on_duplicate: OnDuplicate,
    *,
    encoding: CFEncoding,
    dim: str,
    fill: Any = None,
    unfinished: Sequence[Unfinished] = (),
    interrupted: Sequence[Unfinished] = (),
) -> Placement | None:
    """Return where rows are written; ``None`` while another writer appends rows with the same labels.

    Missing labels are equal to each other, as in pandas.

    Args:
        labels: The labels of the rows, as they would be stored.
        stored: The labels in the store.
        start: The position of the first new row.
        on_duplicate: What to do with rows whose labels exist already, in the store or in an earlier row.
        encoding: The meaning of the labels.
        dim: The dimension of the rows.
        fill: The label of rows that were reserved, and not written.
        unfinished: Rows of other writers that are still working.
        interrupted: Rows of other writers that have failed. They are written again in place.

    Raises:
        ShapeError: If a label exists already, and ``on_duplicate`` is ``"error"``, or if rows to replace have a label that
            is stored several times.
    """
    if on_duplicate == "allow":
        return Placement.at_end(start, len(labels))
    empty = np.zeros(1, stored.dtype) if fill is None else np.full(1, fill, stored.dtype)
    parts = [labels, stored, empty, *(rows.labels for rows in (*unfinished, *interrupted))]
    codes, own, unwritten, *others = _codes(parts, encoding)
    writing, failed = others[: len(unfinished)], others[len(unfinished) :]
    is_complete = np.ones(len(stored), np.bool_)
    not_written = [
        _not_written(*pair, own, unwritten) for pair in zip((*unfinished, *interrupted), others, strict=True)
    ]
    for rows, again in zip((*unfinished, *interrupted), not_written, strict=True):
        is_complete[rows.places[again & (rows.places < len(stored))]] = False
    repeated = pd.Index(codes).duplicated(keep="last" if on_duplicate == "replace" else "first")
    exists = np.isin(codes, own[is_complete])
    if on_duplicate == "error" and (repeated | exists).any():
        raise _duplicates(labels, repeated, exists, encoding, dim)
    kept = ~repeated if on_duplicate == "replace" else ~(repeated | exists)
    if np.isin(codes[kept], np.concatenate([codes[:0], *writing])).any():
        return None
    places = np.full(len(labels), -1, np.int64)
    if on_duplicate == "replace":
        present = np.flatnonzero(is_complete)
        found = kept & exists
        twice = found & np.isin(codes, own[present][pd.Index(own[present]).duplicated()])
        if twice.any():
            raise ShapeError(
                f"rows cannot be replaced: labels along {dim!r} are stored several times: "
                f"{_shown(labels[twice], encoding)}; write a region, with the positions of the rows"
            )
        places[found] = _positions(codes[found], own[present], present)
    claimed = kept & (places < 0)
    for rows, keys, is_own in zip(interrupted, failed, not_written[len(unfinished) :], strict=True):
        usable = is_own & (rows.places < start)
        again = kept & (places < 0) & np.isin(codes, keys[usable])
        places[again] = _positions(codes[again], keys[usable], rows.places[usable])
    running = np.concatenate([places[:0], *(rows.places for rows in unfinished)])
    if np.isin(places[claimed & (places >= 0)], running).any():
        return None  # its writer has them, or is about to find out that others have
    new = kept & (places < 0)
    count = int(new.sum())
    places[new] = start + np.arange(count)
    return Placement(places, start, count, claimed)


def _not_written(
    rows: Unfinished, keys: npt.NDArray[Any], stored: npt.NDArray[Any], unwritten: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which rows of a writer have its labels or none, and not labels of others, who got the rows instead."""
    result = np.ones(len(keys), np.bool_)
    inside = rows.places < len(stored)
    labels = stored[rows.places[inside]]
    result[inside] = (labels == keys[inside]) | (labels == unwritten)
    return result


def _codes(parts: Sequence[Labels], encoding: CFEncoding) -> list[npt.NDArray[np.int64]]:
    """Return numbers that are equal for equal labels."""
    together = np.concatenate([_comparable(part) for part in parts if part.size] or [np.zeros(0)])
    if encoding.dtype.kind in "biufc" and together.dtype.kind == encoding.dtype.kind:
        missing = encoding.is_missing(together)
        if missing.any():
            together[missing] = together[missing][0]
    codes = pd.factorize(together, use_na_sentinel=False)[0].astype(np.int64)
    return np.split(codes, np.cumsum([part.size for part in parts])[:-1])


def _comparable(labels: Labels) -> Labels:
    """Return labels in a data type that pandas can compare."""
    if labels.dtype.kind in "OTSU":
        return np.array([_string(value) for value in labels.tolist()], object)
    if labels.dtype == np.float16:
        return labels.astype(np.float32)
    return labels.astype(labels.dtype.newbyteorder("="))


def _string(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _positions(codes: npt.NDArray[Any], keys: npt.NDArray[Any], places: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the place of the key that is equal to each code."""
    order = np.argsort(keys, kind="stable")
    return np.asarray(places[order[np.searchsorted(keys[order], codes)]], np.int64)


def _duplicates(
    labels: Labels, repeated: npt.NDArray[Any], exists: npt.NDArray[Any], encoding: CFEncoding, dim: str
) -> ShapeError:
    wrong, where = (exists, "exist already in the store") if exists.any() else (repeated, "are repeated in the dataset")
    count = int(wrong.sum())
    return ShapeError(
        f"{counted(count, 'label')} of {dim!r} that would be appended {where if count > 1 else _singular(where)}: "
        f"{_shown(labels[wrong], encoding)}; pass on_duplicate='skip' to leave out such rows, 'replace' to write the rows of "
        "the store again, or 'allow' to store labels several times"
    )


def _singular(text: str) -> str:
    return text.replace("exist ", "exists ").replace("are ", "is ")


def _shown(labels: Labels, encoding: CFEncoding) -> str:
    """Return the first labels as strings, dates as dates."""
    first = labels[:_SHOWN]
    try:
        values = encoding.decode(first) if encoding.dtype.kind in "biufc" else first
    except CodecError:  # a calendar that needs cftime
        values = first
    texts = np.datetime_as_string(values, unit="auto") if values.dtype.kind == "M" else map(_string, values.tolist())
    return ", ".join(map(str, texts)) + (", …" if len(labels) > _SHOWN else "")


# ------------------------------------------------------------------ claims


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
        """Whether the store supports claims."""
        return self._store.conditional and self._store.writeable

    async def acquire(
        self,
        place: Callable[[Sequence[Unfinished], Sequence[Unfinished]], Awaitable[Placement | None]],
        labels: Labels,
        reserve: Callable[[], Awaitable[None]],
    ) -> None:
        """Claim rows, as soon as no other writer appends rows with the same labels, and reserve them.

        Args:
            place: Returns the places of the rows, from the rows of other writers that run and of those that have failed;
                ``None`` to wait for other writers.
            labels: The labels of the rows.
            reserve: Reserves the rows. If it raises ``WriteConflictError``, because others got them first, they are placed
                again.

        Raises:
            WriteConflictError: If other writers continue for too long.
        """
        is_reserved = False

        async def choose(running: list[Entry], over: list[Entry]) -> list[Entry] | None:
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

        async def reserve_claimed() -> None:
            nonlocal is_reserved
            await reserve()
            is_reserved = True

        with suppress(ConditionsUnsupported):  # some stores notice with the first write
            if self._is_enabled():
                await self.enter(choose, self._busy, self._seconds or float("inf"), _POLL_SECONDS, reserve_claimed)
        if not self._is_enabled():
            await place([], [])
        if not is_reserved:
            await reserve()

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
