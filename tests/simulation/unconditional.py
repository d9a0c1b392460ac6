"""Scenario: a service without conditional writes, which clients notice when they first need one.

Promise: whole chunks are registers; writes that cut chunks, and appends, are refused rather than lose another's update.
"""

from __future__ import annotations

from dataclasses import replace

import zarrasync as za
from tests.simulation.arrays import PATH, Arrays
from tests.simulation.object_store import Faults
from tests.simulation.plan import Plan
from zarrasync.stores import Store

__all__ = ["Unconditional"]


class Unconditional(Arrays):
    """Calls on an array, as in ``Arrays``."""

    @staticmethod
    def draw(seed: int) -> Plan:
        plan = Arrays.draw(seed)
        faults = replace(plan.faults, late=0.0) if plan.store == "objects" else Faults()
        details = {"conditions": False}
        return replace(plan, scenario="unconditional", store="objects", faults=faults, failing={}, details=details)

    async def verify(self, store: Store) -> None:
        self.final = await (await za.open_array(store, path=PATH))[...]

    def check(self) -> None:
        self._check_registers()
