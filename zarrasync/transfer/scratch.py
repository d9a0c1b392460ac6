"""Scratch memory that a thread uses again and again, because touching fresh pages costs more than decoding into them."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from zarrasync._util.memory import aligned_empty
from zarrasync.errors import CodecError
from zarrasync.transfer.limits import LARGEST_KEPT

__all__ = ["ScratchMemory"]


class _Kept(threading.local):
    def __init__(self) -> None:
        self.by_purpose: dict[str, npt.NDArray[np.uint8]] = {}


_kept = _Kept()


class ScratchMemory:
    """Memory of this thread for the length of a ``with`` block.

    Memory in use is not in the thread's cache, so nested calls get other memory.

    Args:
        purpose: What the memory is for; one piece is kept per purpose.
        size: Bytes.

    Raises:
        CodecError: On entering, if there is not enough memory.
    """

    __slots__ = ("_memory", "_purpose", "_size")

    def __init__(self, purpose: str, size: int) -> None:
        self._purpose, self._size = purpose, size

    def __enter__(self) -> npt.NDArray[np.uint8]:
        memory = _kept.by_purpose.pop(self._purpose, None)
        if memory is None or len(memory) < self._size:
            try:
                memory = aligned_empty(self._size)
            except MemoryError as error:
                raise CodecError(f"a chunk of {self._size:,} bytes does not fit into memory") from error
        self._memory = memory
        return memory[: self._size]

    def __exit__(self, *error: object) -> None:
        if len(self._memory) <= LARGEST_KEPT:
            _kept.by_purpose[self._purpose] = self._memory
