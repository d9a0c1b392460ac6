"""Scenario: readers of a few inner chunks, which keep the indexes of shards, while others change the shards.

Promise: what a reader sees of a shard belongs to one version of it.
"""

from __future__ import annotations

from random import Random

from tests.simulation.arrays import Arrays
from tests.simulation.object_store import Faults
from tests.simulation.plan import Actor, Layout, Plan, Step, draw_faults

__all__ = ["Shards"]


class Shards(Arrays):
    """Small reads and writes of large shards, of which inner chunks come and go."""

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        rows, on_files = random.randint(4, 8), random.random() < 0.3
        layout = Layout((rows, 2), (1, random.randint(1, 2)), (8, 2), {"compressors": random.choice([None, "auto"])})
        first = Actor(0, (Step("write", (0, rows, 0, 2), 1),))
        reads = [_draw(random, "read", rows, 0) for _ in range(random.randint(2, 5))]
        writers = [
            Actor(
                client, tuple(_draw(random, "write", rows, 10 * client + at) for at in range(random.randint(1, 4))), 1
            )
            for client in range(2, random.randint(2, 3) + 1)
        ]
        return Plan(
            seed,
            "shards",
            "files" if on_files else "objects",
            layout,
            (first, Actor(1, tuple(reads), 1), *writers),
            Faults() if on_files or random.random() < 0.7 else draw_faults(random),
        )


def _draw(random: Random, kind: str, rows: int, value: int) -> Step:
    first = random.randrange(rows)
    args = (first, min(first + random.randint(1, 2), rows), 0, 2)
    if kind == "write" and random.random() < 0.5:
        value = 0  # an inner chunk of fill values is not stored, and others move
    return Step(kind, args, value, pause=random.random() * 0.15)
