"""A process dies, or a call of the operating system fails, at each point there is; others go on, and nothing is wrong."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from tests.kernel.test_library import needs_kernel
from tests.simulation.plan import Actor, Layout, Plan, Step
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import run

pytestmark = pytest.mark.random

SPARSE = 13
"""The quick tests try one point of so many, the slow ones all."""
STRIDES = [SPARSE, pytest.param(1, marks=pytest.mark.slow)]
LAYOUTS = [
    Layout((5, 3), (2, 2)),
    Layout((5, 3), (1, 1), (2, 3)),
    Layout((5, 3), (2, 2), None, {"zarr_format": 2}),
]
STEPS = {
    "arrays": (
        Step("write", (1, 4, 0, 2), 1),
        Step("append", (3,), 2),
        Step("attribute", (), 3),
        Step("ingest", (0, 5, 0, 3), 4),
        Step("append", (1,), 5),
    ),
    "resizes": (
        Step("write", (0, 9, 0, 3), 1),
        Step("resize", (3,), 2),
        Step("resize", (8,), 3),
        Step("write", (2, 7, 1, 2), 4),
        Step("resize", (1,), 5),
    ),
    "creations": (Step("array", (2,), 1), Step("group", (3,), 2), Step("require_array", (2,), 3)),
    "replacements": (Step("replace", (), 2), Step("delete", (), 3), Step("replace", (), 5)),
    "consolidation": (Step("attribute", (0,), 1), Step("create", (0,), 2), Step("root_attribute", (0,), 3)),
    "ingestions": (Step("replace", (), 1), Step("ingest", (), 2)),
}


KERNEL = ["off", pytest.param("on", marks=needs_kernel)]
STORES = [("objects", "off"), ("files", "off"), pytest.param("files", "on", marks=needs_kernel)]
"""Stores, and whether the compiled kernel is on."""


def plan_of(scenario: str, store: str, layout: Layout, *, kernel: str) -> Plan:
    """Return a plan of one process, and one that looks on where that is part of the scenario."""
    actors = [Actor(0, STEPS[scenario])]
    if scenario == "arrays":
        actors.append(Actor(1, (Step("scan"), Step("append", (2,), 9), Step("scan"))))
    details = {"replaces": True, "empty": 1, "copies": False} if scenario == "ingestions" else {}
    if scenario == "resizes":
        layout = replace(layout, shape=(10, layout.shape[1]))
    return Plan(0, scenario, store, layout, tuple(actors), details=details, kernel=kernel)


def check(plans: Iterable[Plan]) -> None:
    for plan in plans:
        outcome = run(plan, SCENARIOS[plan.scenario])
        if outcome.error is not None:
            detailed = run(plan, SCENARIOS[plan.scenario], detailed=True)
            pytest.fail(str(detailed))


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["chunks", "shards", "v2"])
@pytest.mark.parametrize(("store", "kernel"), STORES)
@pytest.mark.parametrize("scenario", STEPS)
def test_a_process_dies_at_each_point(scenario: str, store: str, kernel: str, layout: Layout, stride: int):
    plan = plan_of(scenario, store, layout, kernel=kernel)
    points = run(plan, SCENARIOS[scenario]).steps[0]
    assert points > 20
    start = Random(f"{scenario} {store}").randrange(stride) + 1
    check(replace(plan, deaths={0: step}) for step in range(start, points + 1, stride))


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("kernel", KERNEL)
@pytest.mark.parametrize("scenario", STEPS)
def test_each_call_of_the_operating_system_fails(scenario: str, kernel: str, code: int, stride: int):
    """Once, or from that point on, as on a full or a broken disk."""
    for layout in LAYOUTS:
        plan = plan_of(scenario, "files", layout, kernel=kernel)
        calls = run(plan, SCENARIOS[scenario]).calls[0]
        assert calls > 10
        start = Random(f"{scenario} {code}").randrange(stride) + 1
        for number in range(start, calls + 1, stride):
            check([replace(plan, failing={(0, number): code})])
            check([replace(plan, failing={(0, later): code for later in range(number, 2 * calls)})])


@needs_kernel
def test_the_kernel_calls_the_simulated_system():
    plan = plan_of("arrays", "files", LAYOUTS[0], kernel="on")
    outcome = run(plan, SCENARIOS["arrays"], detailed=True)
    calls = {text.split()[2] for _, _, text in outcome.history.notes if text.startswith("client 0: ")}
    assert {"openat", "pread", "lock", "renameat", "rename_new"} <= calls, outcome
