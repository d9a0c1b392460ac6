"""The engine: select -> locate -> fetch -> decode -> place, and back.

There is one plan and there are two ways to carry it out. On a blocking store a job fetches,
decodes and places a batch of chunks on one thread, without a task or a future per chunk; the
caller's thread takes part. On an asynchronous store tasks fetch, bounded by the store's limiter
and the process's byte budget, while the codec threads decode what has arrived.

Locks are always taken in this order: byte budget, turn, key lock, request permit.
"""

from __future__ import annotations

from zarrasync.transfer.chunks import Chunks, Missing
from zarrasync.transfer.convert_values import as_array, beside, cast, check_kept, storable
from zarrasync.transfer.read import read
from zarrasync.transfer.write import write

__all__ = ["Chunks", "Missing", "as_array", "beside", "cast", "check_kept", "read", "storable", "write"]
