"""A sample of the simulations; ``make simulate SEEDS=100000`` runs many more."""

from __future__ import annotations

import pytest

import zarrasync as za
from tests.simulation.__main__ import simulate
from tests.simulation.scenarios import SCENARIOS

pytestmark = pytest.mark.random

SEEDS = 120


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_seed_breaks_a_promise(scenario: str):
    summary = simulate(range(SEEDS), scenario, kernel="" if za.Config().kernel == "active" else "off")
    assert not summary.failed, f"python -m tests.simulation --scenario {scenario} --seed {min(summary.failed)}"
