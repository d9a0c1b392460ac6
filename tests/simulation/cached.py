"""Scenario: clients with caches, which may be older than the store.

Promise: changes are made to what is stored, and not to what is cached, so that none is lost.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.arrays import Arrays
from tests.simulation.plan import Plan

__all__ = ["Cached"]


class Cached(Arrays):
    """Calls on an array, as in ``Arrays``. What is read may be old, and is not checked."""

    @staticmethod
    def draw(seed: int) -> Plan:
        max_age = Random(seed).choice([None, 0.05, 1000.0])
        return replace(Arrays.draw(seed), scenario="cached", details={"cached": True, "max_age": max_age})

    def check(self) -> None:
        self.reads.clear()
        self.scans.clear()
        super().check()
