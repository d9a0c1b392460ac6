"""What dask computes into: arrays that other processes may write, and that can be stopped. Does not import dask.

Dask arrays can exist only if dask has been imported.
"""

from __future__ import annotations

import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from zarrasync import sync, transfer
from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.fork import thread_lock
from zarrasync.display.progress import ignore_progress
from zarrasync.errors import StoreError
from zarrasync.indexing.regions import Region
from zarrasync.stores import Store
from zarrasync.transfer.threads import Progress


def is_dask_array(data: Any) -> bool:
    """Return whether a value is a dask array."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(data, module.Array)


@contextmanager
def seceded(*, waits: bool) -> Iterator[None]:
    """Secede from the dask worker for the length of a ``with`` block, if the caller runs in a task of a worker.

    This frees the task's thread for the tasks that the block waits for.

    Args:
        waits: Whether the block waits for other tasks.
    """
    if not waits or _worker() is None:
        yield
        return
    distributed: Any = sys.modules["distributed"]
    distributed.secede()
    try:
        yield
    finally:
        distributed.rejoin()


def _worker() -> Any:
    """Return the worker in one of whose tasks the caller runs, or ``None``."""
    distributed: Any = sys.modules.get("distributed")
    try:
        return None if distributed is None else distributed.get_worker()
    except ValueError:
        return None


def _is_released() -> bool:
    """Return whether the caller runs in a task that its cluster no longer needs, because its client has ended."""
    if (worker := _worker()) is None:
        return False
    key = worker.active_threads.get(threading.get_ident())  # other threads have no task
    task = worker.state.tasks.get(key)
    return task is not None and task.state == "cancelled"


# ------------------------------------------------------------------ where dask computes


def _out_of_reach(store: Store) -> StoreError:
    return StoreError(
        f"{store!r} exists only in this process, so values that other processes write would be lost; "
        "write to files or an object store, or compute with threads"
    )


def check_reach(store: Store) -> None:
    """Raise an error for a store in the memory of this process if dask computes in other processes.

    Raises:
        StoreError: If values written by other processes would be lost.
    """
    if not store.shareable and _pickles_targets():
        raise _out_of_reach(store)


def _pickles_targets() -> bool:
    """Return whether targets are pickled. A cluster pickles them even if its workers are threads of this process."""
    return current_cluster() is not None or getattr(_scheduler(), "__module__", "") == "dask.multiprocessing"


def current_cluster() -> Any:
    """Return the client of the cluster that dask is configured to compute on, or ``None``."""
    client: Any = getattr(_scheduler(), "__self__", None)
    return client if hasattr(client, "gather") and not client.asynchronous else None


def _scheduler() -> Any:
    return sys.modules["dask.base"].get_scheduler()


# ------------------------------------------------------------------ targets that can be stopped


class WriteTarget:
    """An array that blocks are written into until it is stopped. There is one per token in each process.

    Args:
        array: The array. If it is in the memory of this process, pickling the target raises an error.
        token: The token of a target in another process.
        progress: Called with the number of bytes written since its last call, in this process.

    Attributes:
        refusal: The error that pickling has raised. Schedulers only report that something could not be serialized.
        reported: The number of bytes that were reported to ``progress``.
        flag: The cancel flag of the call that computes, in its process.
    """

    def __init__(self, array: sync.Array, token: str = "", progress: Progress = ignore_progress) -> None:
        self.array, self.token = array, token or uuid.uuid4().hex
        self.refusal: StoreError | None = None
        self.reported = 0
        self.flag: CancelFlag | None = None
        self._progress = progress
        self._stopped, self._writing, self._changed = False, 0, threading.Condition()

    def write(self, region: Region, block: npt.NDArray[Any]) -> None:
        """Write a block, unless the target is stopped, or the client that computes it was killed.

        Raises:
            RuntimeError: If it is not written.
            EncodingError: If the data type of the array does not represent a value.
        """
        origin, fill = tuple(part.start for part in region), self.array.metadata.spec.fill_value
        block = transfer.as_exact_array(block, self.array.dtype, fill, origin)
        with self._changed:
            if self._stopped or (self.flag is not None and self.flag.cancelled) or _is_released():
                raise RuntimeError("the write was given up")
            self._writing += 1
        try:
            self.array[region] = block
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
        nbytes = block.size * max(self.array.dtype.itemsize, 1)
        with self._changed:
            self.reported += nbytes
        self._progress(nbytes)

    def stop(self) -> None:
        """Reject further writes, and wait for the running ones to end."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._writing)

    def __reduce__(self) -> Any:
        if not self.array.store.shareable:
            self.refusal = _out_of_reach(self.array.store)
            raise self.refusal
        return _target_in_process, (self.array, self.token)

    def __dask_tokenize__(self) -> Any:
        return self.token


_targets: weakref.WeakValueDictionary[str, WriteTarget] = weakref.WeakValueDictionary()
_stopped_tokens: deque[str] = deque(maxlen=10_000)
_lock = thread_lock()


def _target_in_process(array: sync.Array, token: str) -> WriteTarget:
    """Return this process's target with a token."""
    with _lock:
        target = _targets.get(token)
        if target is None:
            target = _targets[token] = WriteTarget(array, token)
            if token in _stopped_tokens:
                target.stop()
        return target


def stop_in_process(tokens: Sequence[str]) -> None:
    """Stop targets in this process, including those that arrive later."""
    with _lock:
        _stopped_tokens.extend(tokens)
        targets = [target for token in tokens if (target := _targets.get(token)) is not None]
    for target in targets:
        target.stop()
