"""Targets of dask computations: arrays that may be sent to other processes, and arrays that may not."""

from __future__ import annotations

from typing import Any

import dask.base

from zarrasync import sync
from zarrasync.errors import StoreError
from zarrasync.stores import Store

__all__ = ["LocalTarget", "check_reach", "current_cluster", "refusal_behind", "target_of"]


class LocalTarget:
    """An array in the memory of this process. Other processes would write into copies, so pickling it raises.

    Args:
        array: The array.
    """

    def __init__(self, array: sync.Array) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self.was_pickled = False

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[key] = value

    def __dask_tokenize__(self) -> Any:
        return self.array.__dask_tokenize__()

    def __reduce__(self) -> Any:
        self.was_pickled = True
        raise self.refusal

    @property
    def refusal(self) -> StoreError:
        """The error that pickling raises."""
        return _out_of_reach(self.array.store)


def target_of(array: sync.Array) -> sync.Array | LocalTarget:
    """Return an object for dask to write to: the array, or a ``LocalTarget``."""
    return array if array.store.portable else LocalTarget(array)


def refusal_behind(target: Any) -> StoreError | None:
    """Return the error to raise if a computation failed because a target was sent to another process, else ``None``.

    Schedulers only report that something could not be serialized.
    """
    return target.refusal if isinstance(target, LocalTarget) and target.was_pickled else None


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
    if not store.portable and _computes_elsewhere():
        raise _out_of_reach(store)


def _computes_elsewhere() -> bool:
    """Return whether targets are pickled. A cluster pickles them even if its workers are threads of this process."""
    get_scheduler: Any = dask.base.get_scheduler  # untyped
    return current_cluster() is not None or getattr(get_scheduler(), "__module__", "") == "dask.multiprocessing"


def current_cluster() -> Any:
    """Return the client of the cluster that dask is configured to compute on, or ``None``."""
    get_scheduler: Any = dask.base.get_scheduler  # untyped
    client: Any = getattr(get_scheduler(), "__self__", None)
    return client if hasattr(client, "gather") and not client.asynchronous else None
