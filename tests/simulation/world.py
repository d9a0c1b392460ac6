"""Running a plan: the clients and their store, the scenario's calls, and what must be true afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.environment import simulated
from tests.simulation.files import Files
from tests.simulation.history import History
from tests.simulation.object_store import MOST_REQUESTS, Bucket, Faults, SimulatedStore
from tests.simulation.plan import Actor, Plan, Step
from tests.simulation.scheduler import Client, Killed, Scheduler, Stuck
from zarrasync import config
from zarrasync.stores import CachingStore, LocalStore, Store

__all__ = ["Outcome", "Scenario", "Violation", "World", "run"]


class Violation(AssertionError):
    """A promise of the documentation was broken."""


class Scenario:
    """What actors do, and what must be true afterwards. Subclasses have a method ``do_KIND`` for each kind of step.

    Args:
        world: The simulated world.
    """

    def __init__(self, world: World) -> None:
        self.world, self.plan, self.history = world, world.plan, world.history

    @staticmethod
    def draw(seed: int) -> Plan:
        """Return a plan."""
        raise NotImplementedError

    async def set_up(self, store: Store) -> None:
        """Create what the actors work on."""

    async def verify(self, store: Store) -> None:
        """Look at what is stored in the end."""

    def check(self) -> None:
        """Check the history.

        Raises:
            Violation: If a promise was broken.
        """


@dataclass
class Outcome:
    """How a simulation went.

    Attributes:
        plan: What was done.
        history: What happened.
        error: What was wrong, if anything.
        steps: By the number of a client how many steps it made.
        calls: By the number of a client how many calls of the operating system it made that can fail.
    """

    plan: Plan
    history: History
    error: BaseException | None = None
    steps: dict[int, int] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        error = "no promise was broken" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"{self.plan}\n{self.history}\n{error}"


class World:
    """The clients of a plan and their store.

    Attributes:
        scheduler: Decides what happens next.
        history: What happened.
        clients: The clients of the plan's actors.
    """

    def __init__(self, plan: Plan, *, detailed: bool) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan.seed)
        self.history = History(self.scheduler, detailed)
        self.bucket = Bucket(
            self.scheduler, Faults(), self.history, plan.equal_tags, plan.details.get("conditions", True)
        )
        self.clients: dict[int, Client] = {}
        self._caches: dict[Client, Store] = {}
        failing = {(_name(number), count): code for (number, count), code in plan.failing.items()}
        self.files = (
            Files(self.scheduler, self.history, failing, kernel=plan.kernel != "off") if plan.store == "files" else None
        )

    def store(self, client: Client) -> Store:
        """Return a client's view of the store."""
        store = (
            SimulatedStore(self.bucket, client)
            if self.files is None
            else LocalStore(self.files.root, fsync=self.plan.fsync)
        )
        if not self.plan.details.get("cached") or client not in self.clients.values():
            return store
        if client not in self._caches:
            self._caches[client] = CachingStore(store, max_age=self.plan.details["max_age"])
        return self._caches[client]

    def _new_client(self, name: str) -> Client:
        client = self.scheduler.client(name)
        if self.files is not None:
            client.on_death.append(partial(self.files.close_all, client))
        return client

    @property
    def exclusive(self) -> bool:
        """Whether the store's locks hold for every client."""
        return self.files is not None

    def run(self, scenario: Scenario) -> None:
        """Run the plan.

        Raises:
            Violation: If a promise was broken.
        """
        self._run_alone("before", scenario.set_up)
        self.bucket.faults = self.plan.faults
        for client, at, seconds in self.plan.stalls:
            self.scheduler.call_later(at, partial(self._stall, client, seconds))
        for phase in sorted({actor.phase for actor in self.plan.actors}):
            if phase:
                self._run_alone("between", _nothing)
            actors = [actor for actor in self.plan.actors if actor.phase == phase]
            self._run_tasks([self._start(scenario, number, actor) for number, actor in enumerate(actors)])
        self.bucket.faults = Faults()
        self._check_files()
        if self.bucket.most > MOST_REQUESTS:
            raise Violation(f"{self.bucket.most} requests of a client were running, and {MOST_REQUESTS} are allowed")
        self._run_alone("after", scenario.verify)
        scenario.check()

    def _check_files(self) -> None:
        """Check that files are flushed as demanded, and that calls that fail or are cancelled remove their temporary files."""
        if self.files is None:
            return
        if self.plan.fsync and self.files.unflushed:
            raise Violation(f"these files were renamed before they were flushed: {self.files.unflushed}")
        can_clean = self.files.cleans and not any(client.dead for client in self.clients.values())
        if can_clean and (left := self.files.leftovers()):
            raise Violation(f"these temporary files were left: {left}")

    def _stall(self, number: int, seconds: float) -> None:
        if number in self.clients:
            self.scheduler.stall(self.clients[number], seconds)

    def _run_alone(self, name: str, step: Any) -> None:
        client = self._new_client(name)

        async def work() -> None:
            await asyncio.sleep(1000)  # what is under way arrives
            await step(self.store(client))

        self._run_tasks([client.start(work(), name)])

    def _run_tasks(self, tasks: list[asyncio.Task[Any]]) -> None:
        self.scheduler.run(*tasks)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _start(self, scenario: Scenario, number: int, actor: Actor) -> asyncio.Task[Any]:
        client = self.clients.get(actor.client)
        if client is None:
            client = self.clients[actor.client] = self._new_client(_name(actor.client))
            client.dies_at = self.plan.deaths.get(actor.client, 0)
            if self.plan.kernel == "mixed" and actor.client % 2:
                client.configure(native="off")
        return client.start(self._act(scenario, client, actor), f"actor {number}")

    async def _act(self, scenario: Scenario, client: Client, actor: Actor) -> None:
        """Make the calls of an actor, each in a task of its own, which may be cancelled."""
        state: dict[str, Any] = client.__dict__.setdefault("shared_state", {}) if actor.shares else {}
        store = self.store(client)
        for step in actor.steps:
            if step.pause:
                await asyncio.sleep(step.pause)
            call = asyncio.ensure_future(self._make_call(scenario, client, store, state, step))
            if step.cancel_after:
                asyncio.get_running_loop().call_later(step.cancel_after, call.cancel)
            await asyncio.wait([call])
            if not call.cancelled():
                call.result()

    async def _make_call(
        self, scenario: Scenario, client: Client, store: Store, state: dict[str, Any], step: Step
    ) -> None:
        late = bool(self.plan.faults.late) or bool(self.plan.faults.silence)
        with self.history.call(client.name, str(step), late=late) as call:
            await getattr(scenario, f"do_{step.kind}")(call, store, state, step)


async def _nothing(store: Store) -> None:
    pass


def _name(number: int) -> str:
    return f"client {number}"


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from calling finalizers at random times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run(plan: Plan, kind: type[Scenario], *, detailed: bool = False, most_steps: int = 0) -> Outcome:
    """Run a plan."""
    settings: dict[str, Any] = {"threads": 2, "retries": 6, "request_timeout": 60.0, "total_timeout": 300.0}
    settings["native"] = "off" if plan.kernel == "off" else "require"
    with _without_collector(), config.set(**settings):
        world = World(plan, detailed=detailed)
        if most_steps:
            world.scheduler.most_steps = most_steps
        with world.files.installed() if world.files else contextlib.nullcontext(), simulated(world.scheduler):
            error: BaseException | None = None
            try:
                world.run(kind(world))
            except (Exception, Killed, Stuck) as raised:
                error = raised
    calls = world.files.calls if world.files else {}
    return Outcome(
        plan,
        world.history,
        error,
        {number: client.steps for number, client in world.clients.items()},
        {number: calls.get(client.name, 0) for number, client in world.clients.items()},
    )
