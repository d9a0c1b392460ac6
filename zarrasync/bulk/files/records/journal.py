"""The journal of ingested files, in a value next to one of the arrays."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.backoff import ConflictBackoff
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.display.text import listed
from zarrasync.errors import ConditionsUnsupported, WriteConflictError
from zarrasync.formats import SOURCES, by_name
from zarrasync.metadata.create import plan_array
from zarrasync.model.paths import join
from zarrasync.nodes.documents import put_documents
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import ABSENT, Request, Store, Value

_VERSION = 1
_MOST_PLANS = 16
"""The journal contains the digests of this many finished plans."""


class Rows(NamedTuple):
    """The rows of a file in a dataset.

    Attributes:
        start: The first row.
        stop: The row after the last one.
        digest: A digest of their labels, which is empty if they have none.
    """

    start: int
    stop: int
    digest: str

    def without(self, written: npt.NDArray[np.bool_]) -> Rows | None:
        """Return the rows from the first one that was not written since to the last one; ``None`` if no row remains."""
        own = written[self.start : self.stop]
        if not own.any():
            return self
        free = np.flatnonzero(~np.pad(own, (0, self.stop - self.start - len(own))))
        return Rows(self.start + int(free[0]), self.start + int(free[-1]) + 1, self.digest) if len(free) else None


@dataclass(frozen=True)
class Journal:
    """The files of a dataset.

    Attributes:
        dim: The dimension along which they were joined.
        parameters: A digest of the parameters with which they were ingested.
        files: The rows of each file.
        reserved: The rows that were laid out, and that no file has filled yet: the first one, and the one after the last.
        is_readable: Whether the value could be read. If not, it may lack files.
        finished: The digests of the last plans for independent tasks that were finished.
    """

    dim: str = ""
    parameters: str = ""
    files: Mapping[SourceFile, Rows] = field(default_factory=dict)
    reserved: Sequence[tuple[int, int]] = ()
    is_readable: bool = True
    finished: Sequence[str] = ()

    @classmethod
    def of(cls, value: Any) -> Journal:
        """Return the journal in a value of ``read_sources``. It is empty if it does not exist or cannot be read."""
        if value is None:
            return cls()
        try:
            members = {**value, "files": {SourceFile(*item[:3]): Rows(*item[3:]) for item in value["files"]}}
            return cls(**members) if members.pop("version") == _VERSION else cls(is_readable=False)
        except (KeyError, TypeError):
            return cls(is_readable=False)

    def rows(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file, or ``None`` if it was not ingested, or has changed since."""
        return self.files.get(file.recorded)

    def rows_of_any(self, file: SourceFile) -> Rows | None:
        """Return the rows of a file, which may have changed since."""
        return self._rows_of_urls.get(file.recorded.url)

    @cached_property
    def _rows_of_urls(self) -> dict[str, Rows]:
        return {file.url: rows for file, rows in self.files.items()}

    def with_files(
        self,
        dim: str,
        parameters: str,
        files: Sequence[SourceFile],
        rows: Sequence[tuple[int, int, str] | None],
        added: tuple[int, int] = (0, 0),
    ) -> Journal:
        """Return a journal with more files.

        A file with the same URL is replaced. A file whose rows are all written again by others is left out. If only some of
        them are, it counts as changed.

        Args:
            dim: The dimension along which they were joined.
            parameters: A digest of the parameters with which they were ingested.
            files: The files.
            rows: For each file its first row, the row after its last one, and a digest of the labels between; ``None`` if the
                record of an earlier version remains.
            added: The first row that the job adds to the dataset, and the row after its last one.
        """
        new = {file.recorded: Rows(*own) for file, own in zip(files, rows, strict=True) if own is not None}
        urls, written = {file.url for file in new}, np.zeros(added[1], np.bool_)
        for own in new.values():
            if not own.digest:  # rows with labels are known by these
                written[own.start : own.stop] = True
        merged = dict[SourceFile, Rows]()
        for file, own in self.files.items():
            if file.url in urls:
                continue
            if own.digest:  # earlier rows at the place of added ones were removed
                rest = own if own.start >= added[1] or own.stop <= added[0] else None
            else:
                rest = own.without(written)
            if rest is not None:
                merged[file if rest == own else SourceFile(file.url, None, "overwritten")] = rest  # equal to no file
        return replace(self, dim=dim, parameters=parameters, files=merged | new, is_readable=True)

    def with_rows(self, moved: Mapping[SourceFile, Sequence[Any]], reserved: Sequence[tuple[int, int]]) -> Journal:
        """Return a journal with files whose rows have moved, unless it contains newer versions, and with reserved rows."""
        newer = {file.url for file in self.files if file not in moved}
        others = {file: Rows(*rows) for file, rows in moved.items() if file.url not in newer}
        return replace(self, files={**self.files, **others}, reserved=reserved)

    def with_plan(self, digest: str, *, is_finished: bool) -> Journal:
        """Return a journal that contains a plan for independent tasks, or not, because it was made again."""
        others = [other for other in self.finished if other != digest]
        return replace(self, finished=[*others, digest][-_MOST_PLANS:] if is_finished else others)

    def to_json(self) -> dict[str, Any]:
        """Return the journal as JSON values."""
        files = [[*file.to_json(), *row] for file, row in self.files.items()]
        lists = {"reserved": [list(rows) for rows in self.reserved], "finished": list(self.finished)}
        known = {name: items for name, items in lists.items() if items}
        return {"version": _VERSION, "dim": self.dim, "parameters": self.parameters, "files": files, **known}

    def contains(self, file: SourceFile, labels: npt.NDArray[Any] | None, length: int) -> bool:
        """Return whether a file was ingested, and its rows are still in the dataset.

        The labels are compared, because the journal is stored before its rows become visible, and may have been copied with
        the files of another dataset.

        Args:
            file: The file.
            labels: The labels of the dataset.
            length: The number of rows of the dataset.
        """
        rows = self.rows(file)
        if rows is None or rows.stop > length:
            return False
        return labels is None or not rows.digest or self.contains_rows(rows, labels)

    @staticmethod
    def contains_rows(rows: Rows, labels: npt.NDArray[Any]) -> bool:
        """Return whether a dataset has the labels of recorded rows."""
        return rows.stop <= len(labels) and digest_rows(labels, rows.start, rows.stop) == rows.digest

    def text(self) -> str:
        """Return the names of some files, for messages."""
        return listed([file.short_name for file in self.files])


def journal_places(names: Iterable[str], dim: str) -> list[str]:
    """Return the arrays that the journal may be next to: of the labels, else the first one. The rest may have been added.

    Args:
        names: The names of the arrays of the dataset.
        dim: The dimension along which files are joined.
    """
    return sorted(names, key=lambda name: (name != dim, name))


def digest_rows(labels: npt.NDArray[Any], start: int, stop: int) -> str:
    """Return a short digest of the labels of some rows; of the label before ``start`` if the rows are empty."""
    own = labels[start - (start == stop > 0) : stop]
    if own.dtype.kind in "OTU":
        data = repr(own.tolist()).encode()
    else:
        data = own.astype(own.dtype.newbyteorder("="), copy=False).tobytes()
    return f"{zlib.crc32(data):08x}"


# ------------------------------------------------------------------ the value


FILE = "file"
"""The member of a value that is the file of a single array."""
JOURNAL = "journal"
"""The member that is the journal of a dataset."""

_FORMAT = by_name(3)
_ARRAY = plan_array(_FORMAT, shape=(1,), dtype="u1", chunks=(1,), compressors=None)
"""The array in stores that check bounds. Its only chunk is the value, whatever its size."""


def sources_key(store: Store, path: str) -> str:
    """Return the key of the value next to an array.

    Args:
        store: The store.
        path: The path of the array.
    """
    return join(path, SOURCES) + "/c/0" * store.checks_bounds


async def read_sources(store: Store, paths: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the values next to arrays; empty ones if they do not exist."""
    return [{} if value is None else _parse(bytes(value.data)) for value in await _fetch(store, paths)]


async def _fetch(store: Store, paths: Sequence[str]) -> list[Value | None]:
    """Fetch the values next to arrays with their versions."""
    keys = [sources_key(store, path) for path in paths]
    if store.checks_bounds:  # such stores fail for chunks of arrays that do not exist
        nodes = [join(path, SOURCES) for path in paths]
        documents = await store.fetch([Request(_FORMAT.document_keys(node)[0]) for node in nodes])
        keys = [key for key, document in zip(keys, documents, strict=True) if document is not None]
        values = iter(await store.fetch([Request(key) for key in keys]))
        return [None if document is None else next(values) for document in documents]
    return await store.fetch([Request(key) for key in keys], versions=True)


async def change_sources(handle: NodeHandle, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Change members of the value next to an array. Changes of other writers are not lost if the store has conditional writes.

    Args:
        handle: The location of the array, which need not exist yet.
        change: Returns members to replace, if any, given the present value, which is empty if it does not exist. May be
            called again.

    Raises:
        WriteConflictError: If other writers kept changing the value.
    """
    store, key = handle.store, sources_key(handle.store, handle.path)
    backoff = ConflictBackoff(handle.config.total_timeout, f"the records of sources in {key} of {store!r}")
    async with store.lock(key):
        while True:
            (present,) = await _fetch(store, [handle.path])
            before = None if present is None else bytes(present.data)
            value = {} if before is None else _parse(before)
            members = change(value)
            data = json.dumps({**value, **members}, separators=(",", ":")).encode()
            if not members or data == before:
                return
            if store.checks_bounds and before is None:
                await put_documents(store, _FORMAT.render(join(handle.path, SOURCES), _ARRAY), {})
            version = (ABSENT if present is None else present.version) if store.conditional else None
            try:
                await store.put(key, data, if_version=version)
            except WriteConflictError as conflict:
                await backoff.after(conflict)
            except ConditionsUnsupported:
                if store.conditional:
                    raise
            else:
                return


def _parse(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {JOURNAL: {}}  # a damaged one, which is not the same as none
