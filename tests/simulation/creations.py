"""Scenarios: nodes that several processes create at the same time, and nodes that are replaced and deleted.

Promises: of two that create the same node, one succeeds; those that open or create get the node that is there; what is
there is what was created; no node is below an array, and all groups above a node exist; readers of an array that is
replaced see no chunk that is partly old; nothing of a replaced or deleted array comes back.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import zarrasync as za
from tests.simulation.history import Call
from tests.simulation.object_store import Faults
from tests.simulation.plan import Actor, Plan, Step, draw_deaths, draw_failing, draw_faults, draw_layout, draw_stalls
from tests.simulation.world import Scenario, Violation
from zarrasync.errors import NodeNotFoundError
from zarrasync.stores import Store

__all__ = ["Creations", "Replacements"]

_PATHS = ("g", "g/x", "g/x/y", "z")


class Creations(Scenario):
    """Nodes that are created where there were none."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.created: list[tuple[Call, str, int]] = []
        self.opened: list[tuple[Call, str]] = []
        self.final: dict[str, za.AsyncArray | za.AsyncGroup] = {}

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        on_files, clients = random.random() < 0.4, random.randint(2, 4)
        paths = random.sample(range(len(_PATHS)), random.randint(1, 3))
        kinds = random.sample(["array", "group", "require_array", "require_group"], random.randint(1, 4))
        actors = []
        for client in range(clients):
            steps = tuple(
                Step(
                    random.choice(kinds),
                    (random.choice(paths),),
                    100 * (client + 1) + at,
                    random.random() * 0.2 if random.random() < 0.1 else 0.0,
                    random.random() * 0.1,
                )
                for at in range(random.randint(1, 3))
            )
            actors.append(Actor(client, steps))
        layout = replace(draw_layout(random), shape=(2, 2))
        if random.random() < 0.8:
            layout.options.pop("zarr_format", None)
        return Plan(
            seed,
            "creations",
            "files" if on_files else "objects",
            layout,
            tuple(actors),
            Faults() if on_files else draw_faults(random),
            draw_deaths(random, clients, 60),
            draw_stalls(random, clients),
            random.random() < 0.5,
            draw_failing(random, clients) if on_files else {},
        )

    @property
    def _format(self) -> dict[str, Any]:
        return {"zarr_format": self.plan.layout.options.get("zarr_format", 3)}

    async def do_array(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        path = _PATHS[step.args[0]]
        self.created.append((call, path, step.value))
        await za.create_array(store, path=path, attributes={"by": step.value}, **self.plan.layout.parameters())

    async def do_group(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        path = _PATHS[step.args[0]]
        self.created.append((call, path, step.value))
        await za.create_group(store, path=path, attributes={"by": step.value}, **self._format)

    async def do_require_array(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        path = _PATHS[step.args[0]]
        options = {**self.plan.layout.parameters(), "attributes": {"by": step.value}}
        array = await za.open_array(store, path=path, mode="a", **options)
        self.opened.append((call, path))
        call.result = array.attrs.get("by")

    async def do_require_group(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        path = _PATHS[step.args[0]]
        group = await za.open_group(store, path=path, mode="a", attributes={"by": step.value}, **self._format)
        self.opened.append((call, path))
        call.result = group.attrs.get("by")

    async def verify(self, store: Store) -> None:
        for path in ("", *_PATHS):
            try:
                self.final[path] = await za.open(store, path=path, mode="r", **self._format)
            except NodeNotFoundError:
                continue

    def check(self) -> None:
        if self._format["zarr_format"] == 2:
            # Arrays, groups and attributes have documents of their own, which no write compares together: an array and
            # a group can be created at the same path, and either process's attributes may stay.
            return
        for call, path, value in self.created:
            if call.ok:
                self._check_exists(path)
                if self.final[path].attrs.get("by") != value:
                    raise Violation(f"{value} has created {path}, and {self.final[path].attrs.get('by')} is there")
        for call, path in self.opened:
            if call.ok:
                self._check_exists(path)
                found = self.final[path].attrs.get("by")
                if call.result != found:
                    raise Violation(f"{call.result} was opened at {path}, and {found} is there")
        for path, node in self.final.items():
            below = [other for other in self.final if other.startswith(f"{path}/")]
            if isinstance(node, za.AsyncArray) and below:
                raise Violation(f"below the array {path} are {below}")

    def _check_exists(self, path: str) -> None:
        if path not in self.final:
            raise Violation(f"{path} was created and is not there")
        while path:
            path = path.rpartition("/")[0]
            if not isinstance(self.final.get(path), za.AsyncGroup):
                raise Violation(f"the group above, {path!r}, is not there")


class Replacements(Scenario):
    """One array that one process after another replaces or deletes, while others read it."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.changes: list[tuple[Call, str, int]] = []
        self.reads: list[Call] = []
        self.final: list[list[int]] | None = None
        self.keys: list[str] = []

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        layout, on_files = draw_layout(random), random.random() < 0.4
        phases = random.randint(1, 3)
        owners = [
            Actor(
                phase,
                tuple(
                    Step(random.choice(["replace", "replace", "delete"]), (), 10 * (phase + 1) + at)
                    for at in range(random.randint(1, 2))
                ),
                phase,
            )
            for phase in range(phases)
        ]
        readers = [
            Actor(8, tuple(Step("read", (), 0, 0.0, random.random() * 0.2) for _ in range(3)), random.randrange(phases))
            for _ in range(random.randint(0, 2))
        ]
        return Plan(
            seed,
            "replacements",
            "files" if on_files else "objects",
            layout,
            (*owners, *readers),
            Faults() if on_files else replace(draw_faults(random), alone=True),
            draw_deaths(random, phases, 120),
            failing=draw_failing(random, phases) if on_files else {},
        )

    async def set_up(self, store: Store) -> None:
        await self._replace(store, 1)

    async def _replace(self, store: Store, value: int) -> None:
        array = await za.create_array(store, path="a", overwrite=True, **self.plan.layout.parameters())
        await array[: self.plan.layout.shape[0] // 2 + value % 2].write(value)

    def _replaced(self, value: int) -> list[list[int]]:
        rows, columns = self.plan.layout.shape
        return [[value if row < rows // 2 + value % 2 else 0] * columns for row in range(rows)]

    async def do_replace(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        self.changes.append((call, "replace", step.value))
        await self._replace(store, step.value)

    async def do_delete(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        group = await za.open_group(store, mode="r+", zarr_format=self.plan.layout.options.get("zarr_format", 3))
        if await group.contains("a"):  # otherwise chunks may be left of a call that failed
            self.changes.append((call, "delete", step.value))
            await group.delete("a")

    async def do_read(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        self.reads.append(call)
        array = await za.open_array(store, path="a")
        call.result = (await array[...]).tolist()

    async def verify(self, store: Store) -> None:
        try:
            self.final = (await za.load(store, path="a")).tolist()
        except NodeNotFoundError:
            self.keys = await store.list_prefix("a/")

    def check(self) -> None:
        for call in self.reads:
            if call.ok:
                self._check_chunks(call.result)
        if self.final is not None:
            self._check_chunks(self.final)
        call, kind, value = self.changes[-1] if self.changes else (None, "", 0)
        if call is None or not call.ok:
            return
        if kind == "replace" and self.final != self._replaced(value):
            raise Violation(f"{self._replaced(value)} was stored in a new array, {self.final} is there")
        if kind == "delete" and (self.final is not None or self.keys):
            raise Violation(f"the array was deleted, {self.final or self.keys} is there")

    def _check_chunks(self, values: list[list[int]]) -> None:
        """Check that no chunk has values of two arrays."""
        (height, width), seen = self.plan.layout.unit, dict[tuple[int, int], set[int]]()
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                seen.setdefault((i // height, j // width), set()).add(value)
        mixed = {at: found for at, found in seen.items() if len(found - {0}) > 1}
        if mixed:
            raise Violation(f"chunks have values of two arrays: {mixed}")
