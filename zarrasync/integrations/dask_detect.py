"""Detection of dask arrays without importing dask: they can exist only if it has been imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["is_dask_array", "seceded"]


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
    distributed: Any = sys.modules.get("distributed")
    if distributed is None or not waits or not _runs_in_task(distributed):
        yield
        return
    distributed.secede()
    try:
        yield
    finally:
        distributed.rejoin()


def _runs_in_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True
