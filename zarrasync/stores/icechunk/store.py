"""A version of a repository of icechunk as a store."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Hashable
from typing import Any, Self
from urllib.parse import quote, unquote

from zarrasync._util.redact import redact
from zarrasync.errors import UnsupportedOperation
from zarrasync.stores.base import Store, Transaction
from zarrasync.stores.icechunk.repository import Repository, storage_at
from zarrasync.stores.icechunk.sessions import ForkStore, fork_state, from_bytes
from zarrasync.stores.icechunk.transactions import DetachedTransaction, SessionTransaction
from zarrasync.stores.locations import Location
from zarrasync.stores.wrappers import PrefixStore
from zarrasync.stores.zarr_python import ZarrPythonStore

_VERSION = re.compile(r"(?:@|//)(?:(branch|tag)\.)?([^/]+)(?:/(.*))?", re.DOTALL)
"""A version before the path: ``@branch.main/`` in Neuroglancer, ``//branch.main/`` in the specification of pipelines."""
_NOTES = "zarrasync"
"""The directory in the repository for notes about jobs."""


def open_repository(location: Location, path: str) -> Location:
    """Return the location of a path in a version of the repository at a location.

    Args:
        location: The location of the repository.
        path: A version, unless it is the branch ``main``, and the path.

    Raises:
        ImportError: If icechunk is not installed.
        ValueError: If icechunk cannot read from such a location.
    """
    match = _VERSION.fullmatch(path)
    version = {"branch": "main"}
    if match is not None:
        kind, name, path = match[1] or "snapshot_id", unquote(match[2]), match[3] or ""
        version = {kind: name}
    try:
        import icechunk  # noqa: F401  # a missing package is reported when the URL is given
    except ImportError as error:
        raise ImportError(
            f"reading {redact(location.url)!r} requires the icechunk package: pip install icechunk"
        ) from error
    repository = Repository(redact(location.url), storage_at(location), version)
    return location.inside(IcechunkStore(repository, location.open_directory), path)


class IcechunkStore(ZarrPythonStore):
    """A version of an icechunk repository, read-only. Changes need a commit: of a transaction, or of a session of icechunk.

    Args:
        repository: The repository and version.
        open_directory: Returns the store of the files of the repository.
    """

    _how_to_write = "write to repository.writable_session('main').store with icechunk, and commit"

    def __init__(self, repository: Repository, open_directory: Callable[[], Store] | None = None) -> None:
        super().__init__(repository)
        self._open_directory = open_directory
        self._repository = repository
        self._url, self._storage = repository.url, repository.storage
        ((self._kind, self._name),) = repository.version.items()  # a branch, while it is read at a snapshot
        self.checks_bounds = True

    @property
    def identity(self) -> Hashable:
        return ("icechunk", *self._storage.place, self._kind, self._name)

    @property
    def viewer(self) -> Hashable:
        return self._storage.viewer

    @property
    def _version(self) -> object:
        return self._repository.session.snapshot_id  # it is open, because a value was read

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_open_directory": None}

    @property
    def transactions(self) -> Self:
        return self

    def begin(self) -> Transaction:
        session, begin = self._repository.begin(self._writeable_branch())
        return SessionTransaction(self._repository, self._name, repr(self), session, begin)

    def detach(self) -> Transaction:
        branch = self._writeable_branch()
        if secrets := self._storage.secrets:
            raise UnsupportedOperation(
                f"independent tasks cannot write to {self!r}, because {secrets[0]} would be stored among its files; provide "
                "credentials in environment variables instead of storage options"
            )
        session, begin = self._repository.begin(branch)
        session = session if begin is None else begin()
        store = ForkStore(from_bytes(fork_state(session, repr(self))), repr(self), self.notes)
        return DetachedTransaction(self._repository, branch, store, session.snapshot_id, uuid.uuid4().hex)

    def attach(self, state: bytes) -> Transaction:
        branch = self._writeable_branch()
        return DetachedTransaction.attach(self._repository, branch, state, repr(self), self.notes)

    @property
    def notes(self) -> Store:
        if self._open_directory is None:  # a copy in another process, which only reads
            return self
        return PrefixStore(self._open_directory(), f"{_NOTES}/{quote(self._name, safe='')}/")

    def _writeable_branch(self) -> str:
        if self._kind != "branch":
            raise UnsupportedOperation(
                f"cannot write to {self!r}, because only branches can change; write to {self._url!r} with @branch.NAME"
            )
        return self._name

    def __repr__(self) -> str:
        return f"IcechunkStore({self._url!r}, {self._kind}={self._name!r})"
