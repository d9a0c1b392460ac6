"""Files of a journal without their names, so that a journal of many files remains small. A record takes about 20 bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from zarrasync.bulk.files.records.file_rows import Rows, WrittenRows
from zarrasync.bulk.files.sources.headers import SourceFile

__all__ = ["OlderFiles", "overwritten"]

_COLUMNS = ("<u8", "<u4", "<i8", "<i8", "<u4", "u1")
"""The types of the members of a record; the digest is a number, and a flag that is 0 for rows without labels."""


class _Record(NamedTuple):
    state: int
    rows: Rows


@dataclass(frozen=True)
class OlderFiles:
    """Files that are recognised by digests of their URLs, sizes and stamps.

    Attributes:
        records: The records by the digest of the URL.
    """

    records: Mapping[int, _Record] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    def rows(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file, or ``None`` if it is unknown or has changed."""
        record = self.records.get(_digest(file.url, 8))
        return None if record is None or record.state != _state(file) else record.rows

    def rows_of_url(self, url: str) -> Rows | None:
        """Return the rows of the file with a URL, which may have changed since."""
        record = self.records.get(_digest(url, 8))
        return None if record is None else record.rows

    def changed(self, without: Collection[str], written: WrittenRows, more: Mapping[SourceFile, Rows]) -> OlderFiles:
        """Return other records.

        Args:
            without: The URLs of files to leave out.
            written: Rows that are written over rows of other files.
            more: Files to add.
        """
        outdated = self._digests(without)
        state, records = _state(overwritten("")), dict[int, _Record]()
        for url, record in self.records.items():
            if url in outdated:
                continue
            if not written.overlap(record.rows):
                records[url] = record
            elif rest := written.rest(record.rows):
                records[url] = _Record(state, rest)
        records.update((_digest(file.url, 8), _Record(_state(file), rows)) for file, rows in more.items())
        return OlderFiles(records)

    def _digests(self, urls: Collection[str]) -> set[int]:
        return {_digest(url, 8) for url in urls} if self.records else set()

    def to_text(self) -> str:
        """Return the records as a string."""
        values = [
            (url, record.state, *record.rows[:2], int(record.rows.digest or "0", 16), bool(record.rows.digest))
            for url, record in self.records.items()
        ]
        columns = zip(*values, strict=True)  # column by column, because similar numbers take less space
        data = [np.array(column, dtype).tobytes() for column, dtype in zip(columns, _COLUMNS, strict=False)]
        return base64.b64encode(zlib.compress(b"".join(data), 9)).decode()

    @classmethod
    def from_text(cls, text: str) -> OlderFiles:
        """Return the records that ``to_text`` returned.

        Raises:
            ValueError: If the string is damaged.
        """
        try:
            data = zlib.decompress(base64.b64decode(text))
        except zlib.error as error:
            raise ValueError("the records of older files are damaged") from error
        count, rest = divmod(len(data), sum(np.dtype(dtype).itemsize for dtype in _COLUMNS))
        if rest:
            raise ValueError("the records of older files are damaged")
        columns, offset = [], 0
        for dtype in _COLUMNS:
            columns.append(np.frombuffer(data, dtype, count, offset).tolist())
            offset += count * np.dtype(dtype).itemsize
        return cls(
            {
                url: _Record(state, Rows(start, stop, f"{digest:08x}" if is_labelled else ""))
                for url, state, start, stop, digest, is_labelled in zip(*columns, strict=True)
            }
        )


def overwritten(url: str) -> SourceFile:
    """Return a file that is never equal to one with the same URL. It stands for a file that has lost some of its rows."""
    return SourceFile(url, None, "overwritten")


def _state(file: SourceFile) -> int:
    return _digest(json.dumps([file.size, file.stamp]), 4)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
