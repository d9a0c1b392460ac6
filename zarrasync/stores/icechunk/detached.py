"""Transactions that several processes continue one after the other, and that one of them commits."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.base import Store, Transaction
from zarrasync.stores.icechunk.sessions import (
    MOST_COMMITS,
    ForkStore,
    changed_nodes,
    conflict,
    fork_state,
    from_bytes,
    reason,
)

__all__ = ["Branch", "DetachedTransaction"]

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
