"""Scenario: changes of a hierarchy with consolidated metadata by several processes.

Promises: changes through a group that was opened with its consolidated metadata are in the copies, too; no change of
attributes is lost, neither by other changes nor by consolidating.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import zarrasync as za
from tests.simulation.history import Call
from tests.simulation.object_store import Faults
from tests.simulation.plan import Actor, Plan, Step, draw_deaths, draw_failing, draw_faults, draw_layout, draw_stalls
from tests.simulation.world import Scenario, Violation
from zarrasync.nodes.access import handle_of
from zarrasync.stores import Store

__all__ = ["Consolidation"]

_MEMBERS = ("a", "b")


class Consolidation(Scenario):
    """A group with members, whose documents are copied into one."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.changes: list[tuple[Call, str, str]] = []
        """Calls that change a document: the call, the path, and the attribute that is set."""
        self.documents: dict[str, Any] = {}
        self.copies: dict[str, Any] = {}
        self.attributes: dict[str, Any] = {}

    @staticmethod
    def draw(seed: int) -> Plan:
        random = Random(seed)
        on_files, clients = random.random() < 0.4, random.randint(1, 3)
        kinds = random.sample(["attribute", "create", "root_attribute", "consolidate"], random.randint(1, 4))
        actors = []
        for number in range(random.randint(1, 4)):
            steps = tuple(
                Step(
                    random.choice(kinds),
                    (random.randrange(2),),
                    100 * (number + 1) + at,
                    random.random() * 0.3 if random.random() < 0.1 else 0.0,
                    random.random() * 0.1,
                )
                for at in range(random.randint(1, 3))
            )
            actors.append(Actor(random.randrange(clients), steps, 0, random.random() < 0.3))
        return Plan(
            seed,
            "consolidation",
            "files" if on_files else "objects",
            draw_layout(random),
            tuple(actors),
            Faults() if on_files else draw_faults(random),
            draw_deaths(random, clients, 120),
            draw_stalls(random, clients),
            random.random() < 0.5,
            draw_failing(random, clients) if on_files else {},
        )

    @property
    def _format(self) -> int:
        return self.plan.layout.options.get("zarr_format", 3)

    async def set_up(self, store: Store) -> None:
        await za.create_group(store, zarr_format=self._format)
        for name in _MEMBERS:
            await za.create_array(store, path=name, **self.plan.layout.parameters())
        await za.consolidate_metadata(store, zarr_format=self._format)

    async def _group(self, store: Store, state: dict[str, Any]) -> za.AsyncGroup:
        if "group" not in state:
            state["group"] = await za.open_group(store, mode="r+", use_consolidated=True, zarr_format=self._format)
        return state["group"]

    async def do_attribute(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        path = _MEMBERS[step.args[0]]
        self.changes.append((call, path, f"k{step.value}"))
        member = await (await self._group(store, state)).getitem(path)
        await member.update_attributes({f"k{step.value}": step.value})

    async def do_root_attribute(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        self.changes.append((call, "", f"k{step.value}"))
        group = await self._group(store, state)
        await group.update_attributes({f"k{step.value}": step.value})

    async def do_create(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        name = f"n{step.value}"
        self.changes.append((call, name, "new"))
        group = await self._group(store, state)
        await group.create_group(name, attributes={"new": True})

    async def do_consolidate(self, call: Call, store: Store, state: dict[str, Any], step: Step) -> None:
        await za.consolidate_metadata(store, zarr_format=self._format)

    async def verify(self, store: Store) -> None:
        group = await za.open_group(store, use_consolidated=True, zarr_format=self._format)
        copies = handle_of(group).consolidated
        assert copies is not None
        self.copies = {key: json.loads(data) for key, data in copies.documents.items()}
        for path in sorted({path for _, path, _ in self.changes}):
            for key in handle_of(group).format.document_keys(path):
                data = await store.get(key)
                if data is not None:
                    self.documents[key] = json.loads(data)
        self.attributes = dict(group.attrs)

    def check(self) -> None:
        for call, path, attribute in self.changes:
            if call.ok and attribute not in self._attributes_of(path, self.documents):
                raise Violation(f"the attribute {attribute} of /{path} is lost: {self.documents}")
        if all(call.ok for call in self.history.calls):
            for path in {path for _, path, _ in self.changes} - {""}:
                stored, copied = self._attributes_of(path, self.documents), self._attributes_of(path, self.copies)
                if stored != copied:
                    raise Violation(f"the attributes of /{path} are {stored}, those of its copy are {copied}")

    def _attributes_of(self, path: str, documents: dict[str, Any]) -> Any:
        prefix = f"{path}/" if path else ""
        if self._format == 2:
            return documents.get(f"{prefix}.zattrs", {})
        return documents.get(f"{prefix}zarr.json", {}).get("attributes", {})
