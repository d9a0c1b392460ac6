"""Scenario: an array that one process after another makes shorter and longer, while others read it.

Promise: what was outside a smaller shape is the fill value when the array is longer again, also if a process died.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import zarrasync as za
from tests.simulation.arrays import PATH, Arrays
from tests.simulation.history import Call
from tests.simulation.object_store import Faults
from tests.simulation.plan import Actor, Plan, Step, draw_deaths, draw_failing, draw_faults, draw_layout
from zarrasync.stores import Store

__all__ = ["Resizes"]

_MOST_ROWS = 10


class Resizes(Arrays):
    """Changes of the shape. A smaller shape is a write of the fill value to the rows outside."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.extent = _MOST_ROWS, self.plan.layout.shape[1]

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        layout, on_files = draw_layout(random), random.random() < 0.4
        layout = replace(layout, shape=(_MOST_ROWS, layout.shape[1]))
        owners = [
            Actor(phase, tuple(_draw_step(random, 100 * (phase + 1) + at) for at in range(random.randint(1, 4))), phase)
            for phase in range(random.randint(1, 3))
        ]
        readers = [
            Actor(9, (Step("scan", (), 0, 0.0, random.random()),) * 2, random.randrange(len(owners)))
            for _ in range(random.randint(0, 1))
        ]
        return Plan(
            seed,
            "resizes",
            "files" if on_files else "objects",
            layout,
            (*owners, *readers),
            Faults() if on_files else replace(draw_faults(random), alone=True),
            draw_deaths(random, len(owners), 100),
            failing=draw_failing(random, len(owners)) if on_files else {},
        )

    async def _owned(self, store: Store, state: dict[str, Any]) -> za.AsyncArray:
        """Return the array with its present shape, which a call that failed may have changed."""
        array = await self._array(store, state)
        await array.refresh()
        return array

    async def do_write(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        array = await self._owned(store, state)
        first, last, left, right = step.args
        box = slice(min(first, len(array)), min(last, len(array))), slice(left, min(right, array.shape[1]))
        self.writes.append((call, box, step.value))
        await array[box].write(step.value)

    async def do_resize(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        array = await self._owned(store, state)
        (rows,) = step.args
        if rows < len(array):
            self.writes.append((call, (slice(rows, _MOST_ROWS), slice(0, self.extent[1])), 0))
        await array.resize((rows, array.shape[1]))

    async def do_scan(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        array = await self._owned(store, state)
        call.start = self.history.scheduler.steps
        self.reads.append((call, (slice(0, _MOST_ROWS), slice(0, self.extent[1]))))
        call.result = (await array[...]).tolist()

    async def verify(self, store: Store) -> None:
        array = await za.open_array(store, path=PATH, mode="r+")
        await array.resize((_MOST_ROWS, array.shape[1]))
        self.final = await array[...]

    def check(self) -> None:
        self._check_registers()


def _draw_step(random: Random, value: int) -> Step:
    cancel_after = random.random() * 0.4 if random.random() < 0.1 else 0.0
    if random.random() < 0.5:
        return Step("resize", (random.randint(0, _MOST_ROWS),), value, cancel_after)
    rows, columns = (sorted(random.sample(range(size + 1), 2)) for size in (_MOST_ROWS, 4))
    return Step("write", (*rows, *columns), value, cancel_after)
