"""Scenario: ingestion, or copying, that is interrupted and run again, also two runs of ingestion at a time.

Promises: a run that ends has stored all values; whatever interrupted the runs before it, another run stores what is
missing; no value of an array that ``mode="w"`` replaces is left.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import zarrasync as za
from tests.simulation.history import Call
from tests.simulation.object_store import Faults
from tests.simulation.plan import Actor, Plan, Step, draw_deaths, draw_failing, draw_faults, draw_layout, draw_stalls
from tests.simulation.world import Scenario, Violation
from zarrasync.stores import MemoryStore, Store

__all__ = ["Ingestions"]

_PATH = "g/a"


class Ingestions(Scenario):
    """Runs of ``ingest`` or ``copy`` with the same source."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        rows, columns = self.plan.layout.shape
        self.source = np.arange(1, rows * columns + 1, dtype="i4").reshape(rows, columns)
        self.source[: self.plan.details["empty"]] = 0
        self.runs: list[tuple[Call, str]] = []
        self.final = self.source
        self.origin = MemoryStore()

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        layout, on_files, replaces = draw_layout(random), random.random() < 0.3, random.random() < 0.5
        first = [Actor(0, (Step("replace" if replaces else "ingest", (), 1, _draw_cancel(random)),))]
        copies = random.random() < 0.3
        if not replaces and not copies and random.random() < 0.6:
            first.append(Actor(1, (Step("ingest", (), 2, _draw_cancel(random), random.random() * 0.2),)))
        second = Actor(2, (Step("ingest", (), 3, _draw_cancel(random)),), 1)
        faults = replace(draw_faults(random), alone=replaces)
        if not replaces:  # no key is erased, so that old listings only lack keys
            faults = replace(faults, stale_listing=random.choice([0.0, 0.5]))
        return Plan(
            seed,
            "ingestions",
            "files" if on_files else "objects",
            layout,
            (*first, *([second] if random.random() < 0.5 else [])),
            Faults() if on_files else faults,
            draw_deaths(random, 3, 200),
            draw_stalls(random, 3),
            failing=draw_failing(random, 3) if on_files else {},
            details={"replaces": replaces, "empty": random.randint(0, 3), "copies": copies},
        )

    async def set_up(self, store: Store) -> None:
        await za.create_group(store, path="g", zarr_format=self.plan.layout.options.get("zarr_format", 3))
        if self.plan.details["copies"]:
            array = await za.create_array(self.origin, **self.plan.layout.parameters())
            await array[...].write(self.source)
        if self.plan.details["replaces"]:
            array = await za.create_array(store, path=_PATH, **self.plan.layout.parameters())
            await array[...].write(-1)

    async def _ingest(self, store: Store, mode: Any) -> None:
        if self.plan.details["copies"]:
            await za.copy(self.origin, store, dest_path=_PATH, overwrite=mode == "w", resume=mode == "a")
            return
        options = {
            name: value for name, value in self.plan.layout.parameters().items() if name not in ("shape", "dtype")
        }
        await za.ingest(self.source, store, path=_PATH, mode=mode, **options)

    async def do_ingest(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        self.runs.append((call, "a"))
        await self._ingest(store, "a")
        call.result = (await za.load(store, path=_PATH)).tolist()

    async def do_replace(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        self.runs.append((call, "w"))
        await self._ingest(store, "w")
        call.result = (await za.load(store, path=_PATH)).tolist()

    async def verify(self, store: Store) -> None:
        await self._ingest(store, "a")
        self.final = await za.load(store, path=_PATH)

    def check(self) -> None:
        replaced = any(call.ok for call, mode in self.runs if mode == "w")
        old = np.full(self.source.shape, -1)
        may_be_old = self.plan.details["replaces"] and not replaced
        results = [call.result for call, _ in self.runs if call.ok]
        for result in (*results, self.final.tolist()):
            if result != self.source.tolist() and not (may_be_old and result == old.tolist()):
                raise Violation(f"{self.source.tolist()} was ingested, {result} is there")


def _draw_cancel(random: Random) -> float:
    return random.random() if random.random() < 0.25 else 0.0
