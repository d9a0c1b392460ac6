"""``config.max_read_bytes`` for elements that vary in size, whose content is known only when their chunks are decoded."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from zarrasync._concurrency.fork import thread_lock
from zarrasync.codecs.spec import Array
from zarrasync.errors import SelectionError
from zarrasync.indexing.points import PointRun, Run

__all__ = ["ContentBudget"]


class ContentBudget:
    """Bytes that the content of a read's elements may have. The threads of the read share it.

    Args:
        limit: The most bytes of the result.
        room: Those that are left for content.
    """

    def __init__(self, limit: int, room: int) -> None:
        self._limit, self._room, self._lock = limit, room, thread_lock()

    def take(self, run: Run, boxes: Array) -> None:
        """Count the elements of a chunk that are about to be placed.

        Args:
            run: The elements.
            boxes: The decoded chunk, with an axis of length 1 in front.

        Raises:
            SelectionError: If the result is larger than the limit.
        """
        assert not isinstance(run, PointRun)
        size = _content_size(run.projection.pick(boxes[0]))
        with self._lock:
            self._room -= size
            exceeded = self._room < 0
        if exceeded:
            raise SelectionError(
                f"the selected elements have more than {self._limit:,} bytes, which is config.max_read_bytes"
            )


def _content_size(elements: Array) -> int:
    """Return the characters of strings, or the bytes of objects."""
    if elements.dtype.kind == "T":
        return int(np.strings.str_len(elements).sum())
    return sum(map(_object_size, elements.reshape(-1).tolist()))


def _object_size(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else sys.getsizeof(value)
