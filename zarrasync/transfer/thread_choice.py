"""Choice of the number of threads that decode or encode chunks.

The interpreter runs one thread at a time. For small chunks, switching threads costs more than it gains, unless most of
the time is spent in the store or in a codec that releases the GIL. Whether several threads are faster depends on the
duration of system calls (for files in memory, or on a network disk). So it is measured during the work: 64 chunks on
one thread, 64 chunks per thread on several, then 4,096 chunks in the faster way, and again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CancelFlag
from zarrasync.indexing.points import Run
from zarrasync.transfer.chunks import Chunks
from zarrasync.transfer.threads import Job, run_jobs

__all__ = ["most_threads", "run_on_threads"]

R = TypeVar("R", bound=Run)
MakeJobs = Callable[[Sequence[R], int], Sequence[Job]]

_SMALL = 1 << 15
"""Bytes of a chunk below which the interpreter's share of the decoding time matters."""
_TRIAL, _STRETCH = 64, 4096
"""Chunks per thread timed to decide whether several threads are faster, and chunks after which to decide again."""
_PAYS = 0.8
"""Several threads must take less than this share of one thread's time, because contention varies."""

_has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
"""Whether the interpreter runs one thread at a time, as all but free-threaded builds do."""


def most_threads(chunks: Chunks, *, decoding: bool) -> int:
    """Return the number of threads above which more threads cannot make the work faster.

    Args:
        chunks: The chunks.
        decoding: Whether they are decoded rather than encoded.
    """
    chain, threads = chunks.chain, chunks.config.pool_size
    unit = chain.innermost_chain
    if unit.nbytes >= _SMALL or threads == 1 or not _has_lock():
        return threads
    parallel = unit.is_raw if unit is not chain else chunks.store.parallel and (unit.is_raw or not decoding)
    return threads if parallel or unit.releases_gil else 1


def run_on_threads(runs: Sequence[R], make_jobs: MakeJobs[R], chunks: Chunks, flag: CancelFlag, threads: int) -> None:
    """Run the jobs of runs on as many threads as make them faster.

    Args:
        runs: The runs.
        make_jobs: Makes jobs from runs, for a number of threads.
        chunks: The chunks.
        flag: Set from elsewhere to stop; set here on failure.
        threads: Maximum number of threads.
    """
    if threads == 1 or not _is_uncertain(chunks):
        run_jobs(make_jobs(runs, threads), chunks.config, flag, threads)
        return

    def seconds(runs: Sequence[R], threads: int) -> float:
        begin = clock.monotonic()
        run_jobs(make_jobs(runs, threads), chunks.config, flag, threads)
        return clock.monotonic() - begin

    waiting, left = deque(runs), sum(run.count for run in runs)
    while left >= 4 * _TRIAL * threads:
        one, several = _take(waiting, _TRIAL), _take(waiting, _TRIAL * threads)
        pays = seconds(one, 1) * threads * _PAYS > seconds(several, threads)
        seconds(_take(waiting, _STRETCH), threads if pays else 1)
        left -= _TRIAL * (1 + threads) + _STRETCH
    seconds(list(waiting), threads)


def _is_uncertain(chunks: Chunks) -> bool:
    """Return whether several threads may be slower than one."""
    unit = chunks.chain.innermost_chain
    return _has_lock() and unit is chunks.chain and unit.nbytes < _SMALL and not unit.releases_gil


def _take(waiting: deque[R], count: int) -> list[R]:
    """Take the first runs, which contain ``count`` chunks."""
    head = list[R]()
    while count and waiting:
        run: R = waiting.popleft()
        if run.count > count:
            waiting.appendleft(run.section(count, run.count))  # type: ignore[arg-type]  # a section is of the same kind
            run = run.section(0, count)  # type: ignore[assignment]  # likewise
        head.append(run)
        count -= run.count
    return head
