"""The engine: selections become plans, plans become batches of fetch, decode and place (or encode and store).

Planning is pure. A plan is carried out in one of two ways. On a blocking store, jobs fetch, decode and place a batch of
chunks on one thread, without a task or a future per chunk, and the caller's thread takes part. On an asynchronous store
tasks fetch, bounded by the store's limiter and the process's byte budget, while the codec threads decode fetched values.

Locks are always taken in this order: byte budget, thread turn, key lock, request permit.
"""

from __future__ import annotations

from zarrasync.transfer.chunks import Chunks, Missing
from zarrasync.transfer.convert_values import as_array, as_storable, cast, run_conversion
from zarrasync.transfer.exact_casts import as_exact_array, may_change
from zarrasync.transfer.read import read
from zarrasync.transfer.write import write

__all__ = [
    "Chunks",
    "Missing",
    "as_array",
    "as_exact_array",
    "as_storable",
    "cast",
    "may_change",
    "read",
    "run_conversion",
    "write",
]
