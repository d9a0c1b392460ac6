"""Sessions of icechunk that change a branch: transactions, and forks for the tasks of other processes."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, Self

from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores.base import Store, Transaction
from zarrasync.stores.zarr_python import ZarrPythonStore

MOST_COMMITS = 100
"""Commits of others that a transaction takes up before it gives up."""


def session_store(store: Any) -> SessionStore | None:
    """Return a store over a store of icechunk; ``None`` for other stores.

    Args:
        store: A store with zarr-python's interface.
    """
    is_own = type(store).__module__.partition(".")[0] == "icechunk" and hasattr(store, "session")
    return SessionStore(store) if is_own else None


class SessionStore(ZarrPythonStore):
    """The store of a session. Tasks of other processes write to forks of it.

    Attributes:
        side: The store for notes about jobs, if there is one.
    """

    side: Store | None = None

    @property
    def notes(self) -> Store:
        return self if self.side is None else self.side

    @property
    def session(self) -> Any:
        """The session."""
        return self.store.session

    @property
    def forks(self) -> Self:
        return self

    def fork(self) -> Callable[[], Store]:
        return partial(_open_fork, fork_state(self.session, repr(self)), repr(self), self.side)

    def changes(self) -> bytes:
        return b""

    def merge(self, changes: bytes) -> None:
        try:
            self.session.merge(from_bytes(changes))
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot merge the changes of another process into {self!r}: {reason(error)}") from error


class ForkStore(SessionStore):
    """The store of a fork, which one task writes to.

    Args:
        session: The fork.
        name: The name of the store that it belongs to, for messages.
        side: The store for notes about jobs, if there is one.
        child: The state of the fork of this one for tasks, if there is one already.
    """

    def __init__(self, session: Any, name: str, side: Store | None, child: bytes = b"") -> None:
        super().__init__(session.store)
        self._session, self._name, self.side, self.child = session, name, side, child

    @property
    def session(self) -> Any:
        return self._session

    def fork(self) -> Callable[[], Store]:
        return partial(_open_fork, self.child, self._name, self.side) if self.child else super().fork()

    def changes(self) -> bytes:
        return _to_bytes(self._session)

    def __repr__(self) -> str:
        return self._name


def _open_fork(fork: bytes, name: str, side: Store | None) -> Store:
    """Return the store of a copy of a fork. Each task has its own, so that its changes are taken over as a whole."""
    return ForkStore(from_bytes(fork), name, side)


def fork_state(session: Any, name: str) -> bytes:
    """Return the state of a new fork of a session.

    Args:
        session: The session.
        name: The name of its store, for messages.

    Raises:
        UnsupportedOperation: If the session cannot be forked.
        StoreError: If the store failed.
    """
    try:
        return _to_bytes(session.fork())
    except ValueError as error:  # icechunk 1 forks sessions without changes only
        raise UnsupportedOperation(
            f"cannot share the changes of {name} with other processes: {reason(error)}; install icechunk 2, or let one "
            "process write"
        ) from error
    except Exception as error:  # of different classes in icechunk 1 and 2
        raise StoreError(f"cannot share the changes of {name} with other processes: {reason(error)}") from error


def _to_bytes(fork: Any) -> bytes:
    """Return a fork of a session without Python's format of pickled objects, which could contain programs."""
    data = fork.__getstate__()["_session"]
    assert isinstance(data, bytes)
    return data


def from_bytes(data: bytes) -> Any:
    """Return a fork of a session.

    Raises:
        StoreError: If another version of icechunk has made the bytes.
    """
    from icechunk.session import ForkSession

    fork = ForkSession.__new__(ForkSession)
    try:
        fork.__setstate__({"_session": data})
    except Exception as error:  # of different classes in icechunk 1 and 2
        raise StoreError(
            f"cannot read a session of icechunk: {reason(error)}; all processes of a job need the same version of icechunk"
        ) from error
    return fork


class _BranchStore(SessionStore):
    """The store of a transaction.

    Args:
        session: The session.
        begin: Returns the session to use from the first write on; ``None`` if that is the same.
        name: The name of the branch's store, for messages.
    """

    def __init__(self, session: Any, begin: Callable[[], Any] | None, name: str) -> None:
        super().__init__(session.store)
        self._begin, self._name = begin, name
        self._lock = thread_lock()

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        if self._begin is not None:
            await run_in_new_thread(self._begin_session)
        return await super().put(key, data, if_version=if_version)

    def fork(self) -> Callable[[], Store]:
        self._begin_session()
        return super().fork()

    def _begin_session(self) -> None:
        with self._lock:
            if self._begin is not None:
                self.store, self._begin = self._begin().store, None

    def __repr__(self) -> str:
        return self._name


class SessionTransaction(Transaction):
    """The changes of a session.

    Args:
        session: The session.
        begin: Returns the session to use from the first write on; ``None`` if that is the same.
        compare: Returns the nodes that differ between two snapshots.
        name: The name of the branch's store, for messages.
        branch: The branch.
    """

    def __init__(
        self,
        session: Any,
        begin: Callable[[], Any] | None,
        compare: Callable[[str, str], Any],
        name: str,
        branch: str,
    ) -> None:
        self._name, self._branch, self._compare = name, branch, compare
        self.store = self._store = _BranchStore(session, begin, name)

    def commit(self, message: str, path: str = "") -> None:
        import icechunk

        session = self._store.session
        if not session.has_uncommitted_changes:
            return
        begin = session.snapshot_id
        try:
            for _ in range(MOST_COMMITS):
                try:
                    session.commit(message)
                except icechunk.ConflictError as error:
                    self._take_up(session, begin, path, error)
                else:
                    return
        except (WriteConflictError, StoreError):
            raise
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot commit to {self._name}: {reason(error)}") from error
        raise conflict(self._branch, self._name, "and others continue to")

    def _take_up(self, session: Any, begin: str, path: str, error: Exception) -> None:
        """Continue with the commits of others, if they have not changed the dataset at a path.

        icechunk compares the nodes and chunks that both have changed. The values that a job has read must not have changed
        either.
        """
        import icechunk

        try:
            session.rebase(icechunk.ConflictDetector())
        except (icechunk.ConflictError, icechunk.RebaseFailedError) as failure:
            raise conflict(self._branch, self._name, "with changes of the same nodes") from failure
        if changed := changed_nodes(self._compare(begin, session.snapshot_id), f"/{path}"):
            raise conflict(self._branch, self._name, f"with changes of {changed[0]!r}") from error


def conflict(branch: str, name: str, what: str, hint: str = ", repeat the call") -> WriteConflictError:
    """Return the error of a commit that others came before.

    Args:
        branch: The branch.
        name: The name of the branch's store.
        what: The changes of others.
        hint: The way to continue.
    """
    return WriteConflictError(
        f"another writer has committed to the branch {branch!r} of {name} meanwhile, {what}; nothing was published{hint}",
        key="",
    )


def changed_nodes(diff: Any, group: str) -> list[str]:
    """Return the nodes of a dataset that differ, and the groups above it that were created or erased.

    Args:
        diff: The difference of two snapshots.
        group: The path of its group, with a slash before it.
    """
    groups = {*diff.new_groups, *diff.deleted_groups}
    arrays = {*diff.new_arrays, *diff.deleted_arrays, *diff.updated_arrays, *diff.updated_chunks}
    changed = {path for path in arrays if (path.rpartition("/")[0] or "/") == group}
    changed |= {group} & (groups | {*diff.updated_groups})
    changed |= {path for path in groups | arrays if group.startswith(f"{path.rstrip('/')}/") and path != group}
    return sorted(changed)


def reason(error: Exception) -> str:
    """Return the first line of an error of icechunk, which continues with where in its sources it happened."""
    return str(error).strip().partition("\n")[0]


_PROPERTY = "zarrasync_transaction"
"""The property of a commit by which it is recognized, if the process ended before it could note that."""


class Branch(Protocol):
    """A branch of a repository."""

    @property
    def name(self) -> str:
        """The name of the branch."""
        ...

    def open_session(self) -> Any:
        """Return a new session that changes the branch."""
        ...

    def compare(self, begin: str, end: str) -> Any:
        """Return the nodes that differ between two snapshots."""
        ...

    def properties(self, begin: str) -> Iterator[Mapping[str, Any]]:
        """Yield the properties of the commits after a snapshot, the newest first."""
        ...


class DetachedTransaction(Transaction):
    """Changes in a fork of a session, which processes pass on to each other as bytes.

    Tasks write to forks of that fork. At the end, all of them are merged into a session of the branch, which is committed.

    Args:
        branch: The branch.
        begin: The ID of the snapshot of the branch that the fork is based on.
        store: The store of the fork.
        identity: A string that the properties of the commit contain.
    """

    def __init__(self, branch: Branch, begin: str, store: ForkStore, identity: str) -> None:
        self._branch, self._begin, self._identity = branch, begin, identity
        self.store = self._store = store

    @classmethod
    def begin(cls, branch: Branch, session: Any, name: str, side: Store) -> DetachedTransaction:
        """Begin a transaction.

        Args:
            branch: The branch.
            session: A session that changes the branch, without changes.
            name: The name of the branch's store, for messages.
            side: The store for notes about jobs.

        Raises:
            StoreError: If the store failed.
        """
        store = ForkStore(from_bytes(fork_state(session, name)), name, side)
        return cls(branch, session.snapshot_id, store, uuid.uuid4().hex)

    @classmethod
    def of(cls, branch: Branch, state: bytes, name: str, side: Store) -> DetachedTransaction:
        """Continue a transaction.

        Args:
            branch: The branch.
            state: The result of ``state``.
            name: The name of the branch's store, for messages.
            side: The store for notes about jobs.

        Raises:
            StoreError: If another version of icechunk has begun it.
        """
        content = json.loads(state)
        changes, child = (base64.b64decode(content[key]) for key in ("changes", "child"))
        return cls(branch, content["snapshot"], ForkStore(from_bytes(changes), name, side, child), content["identity"])

    def state(self) -> bytes:
        store = self._store
        store.child = store.child or fork_state(store.session, repr(store))
        states = {"changes": store.changes(), "child": store.child}
        encoded = {key: base64.b64encode(state).decode() for key, state in states.items()}
        return json.dumps({"snapshot": self._begin, "identity": self._identity, **encoded}).encode()

    def is_committed(self) -> bool:
        return any(own.get(_PROPERTY) == self._identity for own in self._branch.properties(self._begin))

    def commit(self, message: str, path: str = "") -> None:
        import icechunk

        name = repr(self._store)
        try:
            for _ in range(MOST_COMMITS):
                session = self._branch.open_session()
                if session.snapshot_id != self._begin and self.is_committed():
                    return
                self._check(session, path)
                session.merge(self._store.session)
                try:
                    session.commit(message, {_PROPERTY: self._identity})
                except icechunk.ConflictError:
                    continue
                return
        except (WriteConflictError, StoreError):
            raise
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot commit to {name}: {reason(error)}") from error
        raise conflict(self._branch.name, name, "and others continue to", "")

    def _check(self, session: Any, path: str) -> None:
        """Check that the commits of others have not changed what this transaction has read, changed, or erased."""
        if session.snapshot_id == self._begin:
            return
        theirs, own = self._branch.compare(self._begin, session.snapshot_id), self._store.session.status()
        erased = [f"{place.rstrip('/')}/" for place in own.deleted_groups]
        below = [place for place in sorted(_paths(theirs)) if any(place.startswith(group) for group in erased)]
        both = sorted(_paths(theirs) & _paths(own))
        if changed := [*changed_nodes(theirs, f"/{path}"), *both, *below, *_moved(theirs)]:
            raise conflict(self._branch.name, repr(self._store), f"with changes of {changed[0]!r}", "")


def _paths(diff: Any) -> set[str]:
    """Return the paths of all nodes that differ."""
    groups = {*diff.new_groups, *diff.deleted_groups, *diff.updated_groups}
    return groups | {*diff.new_arrays, *diff.deleted_arrays, *diff.updated_arrays, *diff.updated_chunks}


def _moved(diff: Any) -> list[str]:
    return [place for places in getattr(diff, "moved_nodes", ()) for place in places]
