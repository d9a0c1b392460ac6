"""State machines of arrays, groups, stores and datasets, through both APIs.

``ZARRASYNC_EXAMPLES=10000`` makes a long run, which draws other examples each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

pytest.importorskip("ml_dtypes")
pytest.importorskip("zarr")

from tests.property.array_machine import ArrayMachine
from tests.property.fresh_stores import STORES
from tests.property.group_machine import GroupMachine
from tests.property.store_machine import StoreMachine
from tests.support.api import Driver


def profile(examples: int, steps: int) -> settings:
    """Return settings that draw the same examples each time, unless a long run is asked for."""
    long = os.environ.get("ZARRASYNC_EXAMPLES")
    return settings(
        max_examples=int(long or examples),
        stateful_step_count=steps,
        derandomize=long is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )


@pytest.fixture(params=["async", "sync"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver(request.param)
    yield driver
    driver.close()


@pytest.mark.parametrize(("machine", "examples", "steps"), [(ArrayMachine, 100, 15), (GroupMachine, 60, 15)])
def test_nodes(machine: Any, examples: int, steps: int, driver: Driver, tmp_path: Path):
    run_state_machine_as_test(lambda: machine(driver, tmp_path), settings=profile(examples, steps))


@pytest.mark.parametrize("kind", STORES)
def test_stores(kind: str, driver: Driver, tmp_path: Path):
    run_state_machine_as_test(lambda: StoreMachine(driver, tmp_path, STORES[kind]), settings=profile(15, 15))
