"""The rows of an append: which of them have labels that exist already, and where each row is written. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from zarrasync.display.text import counted
from zarrasync.errors import CodecError, ShapeError
from zarrasync.metadata.conventions.cf_encoding import CFEncoding

__all__ = ["OnDuplicate", "Placement", "Unfinished", "place_rows"]

OnDuplicate: TypeAlias = Literal["error", "skip", "replace", "allow"]
"""What to do with rows whose labels exist already."""
Labels: TypeAlias = npt.NDArray[Any]
_SHOWN = 3
"""Labels in a message."""


@dataclass(frozen=True)
class Unfinished:
    """Rows that a writer has reserved, and whose values may not be written yet.

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
    for rows in unfinished:
        is_complete[rows.places[rows.places < len(stored)]] = False
    resumable = [_resumable(rows, keys, own, unwritten) for rows, keys in zip(interrupted, failed, strict=True)]
    for rows, again in zip(interrupted, resumable, strict=True):
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
    for rows, keys, is_own in zip(interrupted, failed, resumable, strict=True):
        usable = is_own & (rows.places < start)
        again = kept & (places < 0) & np.isin(codes, keys[usable])
        places[again] = _positions(codes[again], keys[usable], rows.places[usable])
    new = kept & (places < 0)
    count = int(new.sum())
    places[new] = start + np.arange(count)
    return Placement(places, start, count, claimed)


def _resumable(
    rows: Unfinished, keys: npt.NDArray[Any], stored: npt.NDArray[Any], unwritten: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which rows of a failed writer have its labels or none, and not labels that others have written since."""
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
