"""Repositories of icechunk by URL: reading a branch, tag or snapshot, and transactions in a branch, with its package."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.errors import StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores.base import Transaction
from zarrasync.stores.errors import redact_queries
from zarrasync.stores.icechunk.sessions import SessionTransaction, reason
from zarrasync.stores.icechunk.storage import Storage, storage_at
from zarrasync.stores.locations import Location
from zarrasync.stores.zarr_python import ZarrPythonStore

__all__ = ["IcechunkStore", "open_repository"]

_VERSION = re.compile(r"(?:@|//)(?:(branch|tag)\.)?([^/]+)(?:/(.*))?", re.DOTALL)
"""A version before the path: ``@branch.main/`` in Neuroglancer, ``//branch.main/`` in the specification of pipelines."""


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
            f"reading {redact_queries(location.url)!r} requires the icechunk package: pip install icechunk"
        ) from error
    repository = Repository(redact_queries(location.url), storage_at(location), version)
    return location.inside(IcechunkStore(repository), path)


@dataclass
class Repository:
    """A session of a repository with zarr-python's interface, which opens it on first use. Copies read the same snapshot.

    Attributes:
        url: The URL of the repository, for messages.
        storage: The place and the permissions.
        version: The argument of ``readonly_session``.
    """

    url: str
    storage: Storage
    version: dict[str, str]
    store: Any = None
    supports_writes = False
    supports_listing = True
    supports_consolidated_metadata = False

    @property
    def _is_open(self) -> bool:
        return self.store is not None

    async def _open(self) -> None:
        session = await run_in_new_thread(self._open_session)
        if self.store is None:  # another task may have been faster
            self.store, self.version = session.store, {"snapshot_id": session.snapshot_id}

    def _open_session(self) -> Any:
        return self._session(self.storage.make(), "readonly_session", **self.version)

    def begin(self, branch: str) -> tuple[Any, Callable[[], Any] | None]:
        """Return a session that changes a branch, and a function that returns the session to use for writes, if it differs.

        A repository that does not exist is created by this function, with the branch ``main``. Until then, the session
        belongs to an empty repository in memory.

        Raises:
            StoreError: If the repository or the branch cannot be opened.
        """
        import icechunk

        storage = self.storage.make()
        if branch == "main" and not self._exists(storage):
            session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
            return session, partial(self._create, storage)
        return self._session(storage, "writable_session", branch=branch), None

    def _exists(self, storage: Any) -> bool:
        import icechunk

        try:
            return bool(icechunk.Repository.exists(storage))
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot open the icechunk repository {self.url!r}: {reason(error)}") from error

    def _create(self, storage: Any) -> Any:
        """Create the repository, and return a session that changes it."""
        import icechunk

        try:
            return icechunk.Repository.create(storage).writable_session("main")
        except Exception as error:  # of different classes in icechunk 1 and 2
            if self._exists(storage):
                raise WriteConflictError(
                    f"another writer has created the repository {self.url!r} meanwhile; repeat the call", key=""
                ) from error
            raise StoreError(f"cannot create the icechunk repository {self.url!r}: {reason(error)}") from error

    def _session(self, storage: Any, method: str, **version: str) -> Any:
        repository = self._open_repository(storage)
        try:
            return getattr(repository, method)(**version)
        except Exception as error:
            (kind, name), *_ = version.items()
            branches, tags = sorted(repository.list_branches()), sorted(repository.list_tags())
            raise StoreError(
                f"cannot open {kind.removesuffix('_id')} {name!r} of {self.url!r}: {reason(error)}; "
                f"its branches are {branches}, its tags {tags}"
            ) from error

    def _open_repository(self, storage: Any) -> Any:
        import icechunk

        try:
            return icechunk.Repository.open(storage)
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot open the icechunk repository {self.url!r}: {reason(error)}") from error

    def compare(self, begin: str, end: str) -> Any:
        """Return the nodes that differ between two snapshots, in icechunk's form."""
        repository = self._open_repository(self.storage.make())
        return repository.diff(from_snapshot_id=begin, to_snapshot_id=end)

    def __getattr__(self, name: str) -> Any:
        store = self.__dict__.get("store")
        if store is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(store, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "store": None}

    # Attributes by which an object is recognized as a store, before it is open.

    def get_partial_values(self, *args: Any, **options: Any) -> Any:
        """Forward to the session's store."""
        return self.store.get_partial_values(*args, **options)

    def list_prefix(self, prefix: str) -> Any:
        """Forward to the session's store."""
        return self.store.list_prefix(prefix)

    def list_dir(self, prefix: str) -> Any:
        """Forward to the session's store."""
        return self.store.list_dir(prefix)


class IcechunkStore(ZarrPythonStore):
    """A version of an icechunk repository, read-only. Changes need a commit: of a transaction, or of a session of icechunk.

    Args:
        repository: The repository and version.
    """

    def __init__(self, repository: Repository) -> None:
        super().__init__(repository)
        self._repository = repository
        self._url, self._storage = repository.url, repository.storage
        ((self._kind, self._name),) = repository.version.items()  # a branch, while it is read at a snapshot
        self.bounded = True

    @property
    def identity(self) -> Hashable:
        return ("icechunk", *self._storage.place, self._kind, self._name)

    @property
    def viewer(self) -> Hashable:
        return self._storage.viewer

    def begin(self) -> Transaction:
        if self._kind != "branch":
            raise UnsupportedOperation(
                f"cannot write to {self!r}, because only branches can change; write to {self._url!r} with @branch.NAME"
            )
        return SessionTransaction(*self._repository.begin(self._name), self._repository.compare, repr(self), self._name)

    def __repr__(self) -> str:
        return f"IcechunkStore({self._url!r}, {self._kind}={self._name!r})"

    def _unsupported(
        self, verb: str, hint: str = "write to repository.writable_session('main').store with icechunk, and commit"
    ) -> UnsupportedOperation:
        return super()._unsupported(verb, hint)
