"""Scenario: writers, readers, appenders, and changes of attributes and of the shape, on one array.

Promises: each chunk is a register that is linearizable, also if calls change parts of it; rows that are appended have
places of their own and are not lost; readers see rows that were appended before they began; attributes are not lost.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import zarrasync as za
from tests.simulation.history import FOREVER, Call
from tests.simulation.linearizability import Access, is_linearizable
from tests.simulation.object_store import Faults
from tests.simulation.plan import Actor, Plan, Step, draw_deaths, draw_failing, draw_faults, draw_layout, draw_stalls
from tests.simulation.world import Scenario, Violation
from zarrasync.stores import Store

__all__ = ["Arrays"]

PATH = "a"


class Arrays(Scenario):
    """Calls on one array."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.writes: list[tuple[Call, tuple[slice, slice], int]] = []
        self.reads: list[tuple[Call, tuple[slice, slice]]] = []
        self.appends: dict[int, tuple[Call, int]] = {}
        self.scans: list[Call] = []
        self.attributes: dict[str, Call] = {}
        self.final = np.zeros((0, 0), "i4")
        self.final_attributes: dict[str, Any] = {}
        self.extent = self.plan.layout.shape
        """The part of the array that is checked as registers."""

    # -------------------------------------------------------------- plan

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        layout, on_files = draw_layout(random), random.random() < 0.3
        clients = random.randint(1, 3)
        weights = _draw_weights(random)
        actors = []
        for number in range(random.randint(1, 4)):
            steps = [
                _draw_step(random, layout.shape, weights, 100 * (number + 1) + at) for at in range(random.randint(1, 4))
            ]
            actors.append(Actor(random.randrange(clients), tuple(steps), 0, random.random() < 0.3))
        return Plan(
            seed,
            "arrays",
            "files" if on_files else "objects",
            layout,
            tuple(actors),
            Faults() if on_files else replace(draw_faults(random), alone=len(actors) == 1),
            draw_deaths(random, clients),
            draw_stalls(random, clients),
            random.random() < 0.5,
            draw_failing(random, clients) if on_files else {},
        )

    # -------------------------------------------------------------- steps

    async def set_up(self, store: Store) -> None:
        await za.create_array(store, path=PATH, **self.plan.layout.parameters())

    async def _array(self, store: Store, state: dict[str, Any]) -> za.AsyncArray:
        if "array" not in state:
            state["array"] = await za.open_array(store, path=PATH, mode="r+", zarr_format=None)
        return state["array"]

    async def do_write(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        box = _box(step.args)
        self.writes.append((call, box, step.value))
        array = await self._array(store, state)
        await array[box].write(step.value)

    async def do_ingest(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        box = _box(step.args)
        self.writes.append((call, box, step.value))
        shape = box[0].stop - box[0].start, box[1].stop - box[1].start
        await za.ingest(np.full(shape, step.value, "i4"), store, path=PATH, mode="r+", region=box)

    async def do_read(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        box = _box(step.args)
        array = await self._array(store, state)
        call.start = self.history.scheduler.steps  # opening took a while
        self.reads.append((call, box))
        call.result = (await array[box]).tolist()

    async def do_append(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        (count,) = step.args
        self.appends[step.value] = call, count
        array = await self._array(store, state)
        await array.append(np.full((count, self.plan.layout.shape[1]), step.value, "i4"))

    async def do_scan(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        array = await self._array(store, state)
        await array.refresh()
        self.scans.append(call)
        call.result = (await array[...]).tolist()

    async def do_attribute(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        self.attributes[f"k{step.value}"] = call
        array = await self._array(store, state)
        await array.update_attributes({f"k{step.value}": step.value})

    async def verify(self, store: Store) -> None:
        array = await za.open_array(store, path=PATH)
        self.final, self.final_attributes = await array[...], dict(array.attrs)
        # A new process can go on, and finds nothing where nothing was stored.
        rows, columns = array.shape
        array = await za.open_array(store, path=PATH, mode="r+")
        await array.append(np.full((2, columns), -1, "i4"))
        await array.resize((rows + 8, columns))
        beyond = (await array[rows:]).tolist()
        if beyond != [[-1] * columns] * 2 + [[0] * columns] * 6:
            raise Violation(f"after rows were appended, and the array was made longer, these follow: {beyond}")

    # -------------------------------------------------------------- promises

    def check(self) -> None:
        self._check_registers()
        self._check_rows()
        for scan in self.scans:
            if scan.ok:
                self._check_scan(scan)
        lost = [name for name, call in self.attributes.items() if call.ok and name not in self.final_attributes]
        if lost:
            raise Violation(f"attributes are lost: {lost}")

    def _check_registers(self) -> None:
        layout = self.plan.layout
        grid = [range(-(-size // step)) for size, step in zip(self.extent, layout.unit, strict=True)]
        for row in grid[0]:
            for column in grid[1]:
                accesses = self._accesses((row, column))
                if not is_linearizable(accesses, (0,) * (layout.unit[0] * layout.unit[1])):
                    text = "\n".join(map(str, sorted(accesses, key=lambda access: access.start)))
                    raise Violation(f"no order of these calls explains what was read of chunk {row, column}:\n{text}")

    def _accesses(self, at: tuple[int, int]) -> list[Access]:
        """Return what was done to the chunk at some coordinates, among the rows that the array had from the beginning."""
        key = f"{PATH}/{self.plan.layout.key(at)}"
        accesses = []
        for call, box, value in self.writes:
            cells = dict.fromkeys(self._cells(box, at), value)
            if cells:
                accesses.append(Access(call.start, call.end, cells, writes=True, required=call.ok))
                accesses.extend(
                    Access(call.start, call.end, cells, writes=True, required=False)
                    for step, client, repeated in self.history.repeats
                    if client == call.client and repeated == key and call.start <= step <= call.end
                )
        for call, box in self.reads:
            if call.ok:
                accesses.append(Access(call.start, call.end, self._seen(box, at, call.result), writes=False))
        box = slice(0, self.extent[0]), slice(0, self.extent[1])
        accesses.append(Access(FOREVER, FOREVER, self._seen(box, at, self.final.tolist()), writes=False))
        return [access for access in accesses if access.cells]

    def _seen(self, box: tuple[slice, slice], at: tuple[int, int], values: list[list[int]]) -> dict[int, int]:
        places = self._cells(box, at)
        top, left = box[0].start, box[1].start
        return {cell: values[i - top][j - left] for cell, (i, j) in places.items() if i - top < len(values)}

    def _cells(self, box: tuple[slice, slice], at: tuple[int, int]) -> dict[int, tuple[int, int]]:
        """Return the elements of a box in a chunk, by their number in the chunk."""
        (height, width), (row, column) = self.plan.layout.unit, at
        rows = range(max(box[0].start, row * height), min(box[0].stop, (row + 1) * height))
        columns = range(max(box[1].start, column * width), min(box[1].stop, (column + 1) * width))
        return {(i - row * height) * width + j - column * width: (i, j) for i in rows for j in columns}

    def _check_rows(self) -> None:
        """Check that appended rows have places of their own and are not lost."""
        rows = self.final[self.plan.layout.shape[0] :].tolist()
        places: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            for value in {*row} - {0}:
                places.setdefault(value, []).append(number)
        for value, found in places.items():
            if value not in self.appends:
                raise Violation(f"nobody has appended {value}: {rows}")
            _, count = self.appends[value]
            if found[-1] - found[0] >= count:
                raise Violation(f"{value} was appended once and is there twice: {rows}")
        acknowledged = {value: count for value, (call, count) in self.appends.items() if call.ok}
        self._check_present(acknowledged, rows)
        if len(acknowledged) == len(self.appends) and len(rows) != sum(acknowledged.values()):
            raise Violation(f"{sum(acknowledged.values())} rows were appended, there are {len(rows)}: {rows}")
        self._check_filled(rows, FOREVER)

    def _check_present(self, acknowledged: dict[int, int], rows: list[list[int]]) -> None:
        width = self.plan.layout.shape[1]
        for value, count in acknowledged.items():
            if sum(row == [value] * width for row in rows) != count:
                raise Violation(f"{count} rows of {value} were appended, not all are there: {rows}")

    def _check_scan(self, scan: Call) -> None:
        """Check that a reader sees the rows that were appended before it began."""
        rows = scan.result[self.plan.layout.shape[0] :]
        before = {value: count for value, (call, count) in self.appends.items() if call.ok and call.end < scan.start}
        self._check_present(before, rows)
        self._check_filled(rows, scan.end)

    def _check_filled(self, rows: list[list[int]], before: int) -> None:
        """Check that readers of local files see no rows that are reserved and not written."""
        withdrawn = any(
            call.outcome in ("failed", "cancelled") for call, _ in self.appends.values() if call.start < before
        )
        if self.world.exclusive and not withdrawn and any(0 in row for row in rows):
            raise Violation(f"rows can be seen that were not written: {rows}")


def _box(args: tuple[int, ...]) -> tuple[slice, slice]:
    return slice(args[0], args[1]), slice(args[2], args[3])


def _draw_weights(random: Random) -> list[int]:
    """Return how often each kind of step occurs: many of a few kinds."""
    return [random.choice([0, 1, 5]) + 0 for _ in _KINDS[:-1]] + [1]


_KINDS = ("write", "ingest", "append", "scan", "attribute", "read")


def _draw_step(random: Random, shape: tuple[int, ...], weights: list[int], value: int) -> Step:
    (kind,) = random.choices(_KINDS, weights)
    args: tuple[int, ...] = ()
    if kind in ("write", "ingest", "read"):
        rows, columns = (sorted(random.sample(range(size + 1), 2)) for size in shape)
        args = (*rows, *columns)
        if kind == "write" and random.random() < 0.1:
            value = 0
    elif kind == "append":
        args = (random.randint(1, 4),)
    cancel_after = random.random() * 0.4 if random.random() < 0.12 else 0.0
    pause = random.random() * 0.2 if random.random() < 0.3 else 0.0
    return Step(kind, args, value, cancel_after, pause)
