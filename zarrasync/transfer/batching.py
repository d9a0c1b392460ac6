"""Batches of runs, each of which is one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from zarrasync.config import Config
from zarrasync.indexing.points import Run

__all__ = ["batches"]

R = TypeVar("R", bound=Run)


def batches(runs: Sequence[R], nbytes: int, settings: Config, threads: int, most: int = 256) -> list[list[R]]:
    """Split runs into batches, enough of them for all threads.

    Args:
        runs: The runs.
        nbytes: Bytes of a decoded chunk.
        settings: The settings, which limit the bytes of a batch.
        threads: Threads that share the batches.
        most: Maximum number of chunks in a batch.
    """
    most = max(1, min(most, settings.batch_bytes // max(nbytes, 1)))
    most = max(1, min(most, -(-sum([run.count for run in runs]) // threads)))
    if len(runs) == 1 and runs[0].count <= most:
        return [[runs[0]]]
    made: list[list[R]] = []
    room = 0
    for run in runs:
        for start in range(0, run.count, most):
            section: R = run.section(start, min(start + most, run.count))  # type: ignore[assignment]  # of the same kind
            if room < section.count:
                made.append([])
                room = most
            made[-1].append(section)
            room -= section.count
    return made
