"""Plans: all that a simulation does, drawn from a seed before it starts, so that it can be repeated and made smaller."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.object_store import Faults

__all__ = [
    "Actor",
    "Layout",
    "Plan",
    "Step",
    "draw_deaths",
    "draw_failing",
    "draw_faults",
    "draw_layout",
    "draw_stalls",
]


@dataclass(frozen=True)
class Step:
    """One call that an actor makes.

    Attributes:
        kind: What it does; the scenario's method ``do_KIND``.
        args: With what.
        value: A number that no other step has, to be written.
        cancel_after: Seconds after which the call is cancelled; 0 for never.
        pause: Seconds before it.
    """

    kind: str
    args: tuple[int, ...] = ()
    value: int = 0
    cancel_after: float = 0.0
    pause: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}{self.args} {self.value}"


@dataclass(frozen=True)
class Actor:
    """A task of a client, with its steps.

    Attributes:
        client: The number of its client.
        steps: What it does.
        phase: Actors of a phase run together, after those of the phases before.
        shares: Whether it uses the objects of its client's other actors.
    """

    client: int
    steps: tuple[Step, ...]
    phase: int = 0
    shares: bool = False


@dataclass(frozen=True)
class Layout:
    """How an array is stored.

    Attributes:
        shape: Its shape at first.
        chunks: The shape of its chunks.
        shards: The shape of its shards, if it has some.
        options: Other parameters of ``create_array``.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> tuple[int, ...]:
        """The shape of what is stored as one value."""
        return self.shards or self.chunks

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of ``create_array``."""
        shards = {"shards": self.shards} if self.shards else {}
        return {"shape": self.shape, "chunks": self.chunks, "dtype": "i4", **shards, **self.options}

    def key(self, at: tuple[int, ...]) -> str:
        """Return the key of a stored chunk, relative to the array."""
        names = [str(number) for number in at]
        return ".".join(names) if self.options.get("zarr_format") == 2 else "/".join(["c", *names])


@dataclass(frozen=True)
class Plan:
    """A simulation.

    Attributes:
        seed: Decides the order of what happens.
        scenario: The name of the scenario.
        store: ``"objects"`` or ``"files"``.
        layout: The array.
        faults: What goes wrong with requests.
        actors: Who does what.
        deaths: By client the step after which it is killed.
        stalls: Clients that are suspended: which one, when, and for how many seconds.
        equal_tags: Whether equal objects have equal versions.
        failing: By client and number the call of the operating system that fails, and its error.
        details: What only the scenario understands.
        kernel: In which clients the compiled kernel is on: ``"on"`` for all, ``"off"`` for none, and ``"mixed"`` for those with
            even numbers.
        fsync: Whether files are flushed to the disk before they are renamed.
    """

    seed: int
    scenario: str
    store: str
    layout: Layout
    actors: tuple[Actor, ...]
    faults: Faults = Faults()  # noqa: RUF009  # it is frozen
    deaths: dict[int, int] = field(default_factory=dict)
    stalls: tuple[tuple[int, float, float], ...] = ()
    equal_tags: bool = True
    failing: dict[tuple[int, int], int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    kernel: str = "off"
    fsync: bool = False

    def __str__(self) -> str:
        store = f"{self.store}{' with fsync' * self.fsync}, kernel {self.kernel}"
        head = f"seed {self.seed}: {self.scenario} on {store}, {self.layout}, {self.faults}"
        actors = [
            f"  client {actor.client}, phase {actor.phase}: " + "; ".join(map(str, actor.steps))
            for actor in self.actors
        ]
        rest = f"  deaths {self.deaths}, stalls {self.stalls}, equal tags {self.equal_tags}, failing {self.failing}, {self.details}"
        return "\n".join([head, *actors, rest])

    def smaller(self) -> list[Plan]:
        """Return plans that do a little less."""
        plans = [replace(self, kernel="off")] if self.kernel != "off" else []
        plans += [replace(self, fsync=False)] if self.fsync else []
        plans += [replace(self, deaths={}, stalls=())] if self.deaths or self.stalls else []
        plans += [replace(self, failing={})] if self.failing else []
        plans += [replace(self, faults=Faults(seconds=self.faults.seconds))] if self.faults != Faults() else []
        for name in ("lost_request", "lost_answer", "twice", "refused", "collision", "silence", "late", "tail"):
            no_fault: dict[str, Any] = {name: 0.0}
            if getattr(self.faults, name):
                plans.append(replace(self, faults=replace(self.faults, **no_fault)))
        for number, actor in enumerate(self.actors):
            others = self.actors[:number], self.actors[number + 1 :]
            if len(self.actors) > 1:
                plans.append(replace(self, actors=(*others[0], *others[1])))
            for at in range(len(actor.steps)):
                steps = (*actor.steps[:at], *actor.steps[at + 1 :])
                plans.append(replace(self, actors=(*others[0], replace(actor, steps=steps), *others[1])))
        return plans


def draw_layout(random: Random, *, sharded: bool = True) -> Layout:
    """Return a small array with two axes, which chunks need not fill."""
    chunks = random.randint(1, 3), random.randint(1, 3)
    shape = random.randint(2, 8), random.randint(1, 4)
    shards = None
    if sharded and random.random() < 0.4:
        shards = chunks[0] * random.randint(1, 3), chunks[1] * random.randint(1, 2)
    options: dict[str, Any] = {"compressors": random.choice([None, "auto"])}
    if shards is None and random.random() < 0.2:
        options["zarr_format"] = 2
    return Layout(shape, chunks, shards, options)


def draw_faults(random: Random) -> Faults:
    """Return faults of a few kinds, or none."""
    if random.random() < 0.3:
        return Faults()
    rates: dict[str, Any] = {
        name: random.choice([0.02, 0.1, 0.3]) if random.random() < 0.4 else 0.0
        for name in ("lost_request", "lost_answer", "twice", "refused", "collision", "late", "tail")
    }
    rates["silence"] = 0.03 if random.random() < 0.2 else 0.0
    rates["tail"] /= 5
    return Faults(**rates)


def draw_deaths(random: Random, clients: int, within: int = 150) -> dict[int, int]:
    """Return after which of its steps a client is killed, for some of them."""
    if random.random() < 0.5:
        return {}
    return {client: random.randint(1, within) for client in range(clients) if random.random() < 0.5}


def draw_stalls(random: Random, clients: int) -> tuple[tuple[int, float, float], ...]:
    """Return clients that are suspended for a while."""
    if random.random() < 0.8:
        return ()
    return ((random.randrange(clients), random.random() * 0.3, random.choice([0.5, 20.0, 400.0])),)


def draw_failing(random: Random, clients: int, within: int = 60) -> dict[tuple[int, int], int]:
    """Return calls of the operating system that fail: by client and number the error."""
    if random.random() < 0.6:
        return {}
    count = random.randint(1, 3)
    errors = (errno.ENOSPC, errno.EIO)
    return {(random.randrange(clients), random.randint(1, within)): random.choice(errors) for _ in range(count)}
