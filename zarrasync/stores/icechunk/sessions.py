"""Sessions of icechunk as stores, and their forks for the tasks of other processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from zarrasync.errors import StoreError, UnsupportedOperation
from zarrasync.stores.base import Store
from zarrasync.stores.zarr_python import ZarrPythonStore


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
    def _version(self) -> object:
        return self.session.snapshot_id if self.session.read_only else None

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


def reason(error: Exception) -> str:
    """Return the first line of an error of icechunk, which continues with where in its sources it happened."""
    return str(error).strip().partition("\n")[0]
