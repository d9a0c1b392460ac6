"""Sessions of icechunk that change a branch: transactions, and forks for the tasks of other processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores.base import Store, Transaction
from zarrasync.stores.zarr_python import ZarrPythonStore

__all__ = ["SessionTransaction", "reason", "session_store"]

_MOST_COMMITS = 100
"""Commits of others that a transaction takes up before it gives up."""


def session_store(store: Any) -> Store | None:
    """Return a store over a store of icechunk; ``None`` for other stores.

    Args:
        store: A store with zarr-python's interface.
    """
    is_own = type(store).__module__.partition(".")[0] == "icechunk" and hasattr(store, "session")
    return _SessionStore(store) if is_own else None


class _SessionStore(ZarrPythonStore):
    """The store of a session. Tasks of other processes write to forks of it."""

    @property
    def session(self) -> Any:
        """The session."""
        return self.store.session

    def fork(self) -> Callable[[], Store]:
        try:
            fork = self.session.fork()
        except ValueError as error:  # icechunk 1 forks sessions without changes only
            raise UnsupportedOperation(
                f"cannot share the changes of {self!r} with other processes: {reason(error)}; install icechunk 2, or omit "
                "processes and executor"
            ) from error
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot share the changes of {self!r} with other processes: {reason(error)}") from error
        return partial(_open_fork, pickle.dumps(fork), repr(self))

    def merge(self, changes: bytes) -> None:
        try:
            self.session.merge(pickle.loads(changes))  # noqa: S301  # from a process that runs tasks of this one
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot merge the changes of another process into {self!r}: {reason(error)}") from error


class _ForkStore(_SessionStore):
    """The store of a fork, which one task writes to.

    Args:
        session: The fork.
        name: The name of the store that it belongs to, for messages.
    """

    def __init__(self, session: Any, name: str) -> None:
        super().__init__(session.store)
        self._session, self._name = session, name

    def changes(self) -> bytes:
        return pickle.dumps(self._session)

    def __repr__(self) -> str:
        return self._name


def _open_fork(fork: bytes, name: str) -> Store:
    """Return the store of a copy of a fork. Each task has its own, so that its changes are taken over as a whole."""
    return _ForkStore(pickle.loads(fork), name)  # noqa: S301  # from the process that runs the job


class _BranchStore(_SessionStore):
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
            for _ in range(_MOST_COMMITS):
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
        raise self._conflict("and others continue to")

    def _take_up(self, session: Any, begin: str, path: str, conflict: Exception) -> None:
        """Continue with the commits of others, if they have not changed the dataset at a path.

        icechunk compares the nodes and chunks that both have changed. The values that a job has read must not have changed
        either.
        """
        import icechunk

        try:
            session.rebase(icechunk.ConflictDetector())
        except (icechunk.ConflictError, icechunk.RebaseFailedError) as error:
            raise self._conflict("with changes of the same nodes") from error
        if changed := _changed_nodes(self._compare(begin, session.snapshot_id), f"/{path}"):
            raise self._conflict(f"with changes of {changed[0]!r}") from conflict

    def _conflict(self, what: str) -> WriteConflictError:
        return WriteConflictError(
            f"another writer has committed to the branch {self._branch!r} of {self._name} meanwhile, {what}; nothing was "
            "published, repeat the call",
            key="",
        )


def _changed_nodes(diff: Any, group: str) -> list[str]:
    """Return the nodes of a dataset that differ, and the groups above it that were erased.

    Args:
        diff: The difference of two snapshots.
        group: The path of its group, with a slash before it.
    """
    arrays = {*diff.new_arrays, *diff.deleted_arrays, *diff.updated_arrays, *diff.updated_chunks}
    changed = {path for path in arrays if (path.rpartition("/")[0] or "/") == group}
    changed |= {group} & {*diff.new_groups, *diff.deleted_groups, *diff.updated_groups}
    changed |= {path for path in diff.deleted_groups if group.startswith(f"{path.rstrip('/')}/")}
    return sorted(changed)


def reason(error: Exception) -> str:
    """Return the first line of an error of icechunk, which continues with where in its sources it happened."""
    return str(error).strip().partition("\n")[0]
