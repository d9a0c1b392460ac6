"""Transactions in branches of icechunk: in a session of one process, or in a fork that processes pass on."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.base import Store, Transaction
from zarrasync.stores.icechunk.repository import Repository
from zarrasync.stores.icechunk.sessions import ForkStore, SessionStore, fork_state, from_bytes, reason

MOST_COMMITS = 100
"""Commits of others that a transaction takes up before it gives up."""
_PROPERTY = "zarrasync_transaction"
"""The property of a commit by which it is recognized, if the process ended before it could note that."""


class _BranchTransaction(Transaction):
    """Changes of a branch.

    Args:
        repository: The repository.
        branch: The branch.
        store: The store for the changes.
    """

    _hint = ""
    """What a message about a conflict advises at its end."""

    def __init__(self, repository: Repository, branch: str, store: SessionStore) -> None:
        self._repository, self._branch = repository, branch
        self.store = self._store = store

    def commit(self, message: str, path: str = "") -> None:
        try:
            for _ in range(MOST_COMMITS):
                if self._try_to_commit(message, f"/{path}"):
                    return
        except (WriteConflictError, StoreError):
            raise
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot commit to {self._store!r}: {reason(error)}") from error
        raise self._conflict("and others continue to")

    @abstractmethod
    def _try_to_commit(self, message: str, group: str) -> bool:
        """Commit; ``False`` if another writer was faster.

        Raises:
            WriteConflictError: If the changes of others exclude a further attempt.
        """

    def _conflict(self, what: str) -> WriteConflictError:
        """Return the error of a commit that changes of others came before."""
        return WriteConflictError(
            f"another writer has committed to the branch {self._branch!r} of {self._store!r} meanwhile, {what}; nothing was "
            f"published{self._hint}",
            key="",
        )


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

    @property
    def _version(self) -> object:
        return None  # the first write replaces a session that only reads

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


class SessionTransaction(_BranchTransaction):
    """The changes of a session.

    Args:
        repository: The repository.
        branch: The branch.
        name: The name of the branch's store, for messages.
        session: The session.
        begin: Returns the session to use from the first write on; ``None`` if that is the same.
    """

    _hint = ", repeat the call"

    def __init__(
        self, repository: Repository, branch: str, name: str, session: Any, begin: Callable[[], Any] | None
    ) -> None:
        super().__init__(repository, branch, _BranchStore(session, begin, name))

    def _try_to_commit(self, message: str, group: str) -> bool:
        import icechunk

        session = self._store.session
        if not session.has_uncommitted_changes:
            return True
        begin = session.snapshot_id
        try:
            session.commit(message)
        except icechunk.ConflictError as error:
            self._take_up(session, begin, group, error)
            return False
        return True

    def _take_up(self, session: Any, begin: str, group: str, error: Exception) -> None:
        """Continue with the commits of others, if they have not changed the dataset of a group.

        icechunk compares the nodes and chunks that both have changed. The values that a job has read must not have changed
        either.
        """
        import icechunk

        try:
            session.rebase(icechunk.ConflictDetector())
        except (icechunk.ConflictError, icechunk.RebaseFailedError) as failure:
            raise self._conflict("with changes of the same nodes") from failure
        if changed := changed_nodes(self._repository.compare(begin, session.snapshot_id), group):
            raise self._conflict(f"with changes of {changed[0]!r}") from error


class DetachedTransaction(_BranchTransaction):
    """Changes in a fork of a session, which processes pass on to each other as bytes.

    Tasks write to forks of that fork. At the end, all of them are merged into a session of the branch, which is committed.

    Args:
        repository: The repository.
        branch: The branch.
        store: The store of the fork.
        begin: The ID of the snapshot of the branch that the fork is based on.
        identity: A string that the properties of the commit contain.
    """

    _store: ForkStore

    def __init__(self, repository: Repository, branch: str, store: ForkStore, begin: str, identity: str) -> None:
        super().__init__(repository, branch, store)
        self._begin, self._identity = begin, identity

    @classmethod
    def attach(cls, repository: Repository, branch: str, state: bytes, name: str, side: Store) -> DetachedTransaction:
        """Continue a transaction.

        Args:
            repository: The repository.
            branch: The branch.
            state: The result of ``state``.
            name: The name of the branch's store, for messages.
            side: The store for notes about jobs.

        Raises:
            StoreError: If another version of icechunk has begun it.
        """
        content = json.loads(state)
        changes, child = (base64.b64decode(content[key]) for key in ("changes", "child"))
        store = ForkStore(from_bytes(changes), name, side, child)
        return cls(repository, branch, store, content["snapshot"], content["identity"])

    def state(self) -> bytes:
        store = self._store
        store.child = store.child or fork_state(store.session, repr(store))
        states = {"changes": store.changes(), "child": store.child}
        encoded = {key: base64.b64encode(state).decode() for key, state in states.items()}
        return json.dumps({"snapshot": self._begin, "identity": self._identity, **encoded}).encode()

    def is_committed(self) -> bool:
        commits = self._repository.properties(self._branch, self._begin)
        return any(own.get(_PROPERTY) == self._identity for own in commits)

    def _try_to_commit(self, message: str, group: str) -> bool:
        import icechunk

        session = self._repository.writable_session(self._branch)
        if session.snapshot_id != self._begin:
            if self.is_committed():
                return True
            self._check(session, group)
        session.merge(self._store.session)
        try:
            session.commit(message, {_PROPERTY: self._identity})
        except icechunk.ConflictError:
            return False
        return True

    def _check(self, session: Any, group: str) -> None:
        """Check that the commits of others have not changed what this transaction has read, changed, or erased."""
        theirs, own = self._repository.compare(self._begin, session.snapshot_id), self._store.session.status()
        erased = [f"{place.rstrip('/')}/" for place in own.deleted_groups]
        below = [place for place in sorted(_paths(theirs)) if any(place.startswith(group) for group in erased)]
        both = sorted(_paths(theirs) & _paths(own))
        if changed := [*changed_nodes(theirs, group), *both, *below, *_moved(theirs)]:
            raise self._conflict(f"with changes of {changed[0]!r}")


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


def _paths(diff: Any) -> set[str]:
    """Return the paths of all nodes that differ."""
    groups = {*diff.new_groups, *diff.deleted_groups, *diff.updated_groups}
    return groups | {*diff.new_arrays, *diff.deleted_arrays, *diff.updated_arrays, *diff.updated_chunks}


def _moved(diff: Any) -> list[str]:
    return [place for places in getattr(diff, "moved_nodes", ()) for place in places]
