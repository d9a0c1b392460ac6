"""State machines of arrays, groups, stores and datasets, through both APIs.

``ZARRASYNC_EXAMPLES=10000`` makes a long run, which draws other examples each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

pytest.importorskip("ml_dtypes")
pytest.importorskip("zarr")
pytest.importorskip("xarray")
pytest.importorskip("dask")

from tests.property.array_machine import ArrayMachine
from tests.property.dataset_machine import DatasetMachine
from tests.property.fresh_stores import STORES
from tests.property.group_machine import GroupMachine
from tests.property.store_machine import StoreMachine
from tests.support.api import Driver
from zarrasync import stores

pytestmark = pytest.mark.random


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


def check(make: Callable[[], RuleBasedStateMachine], examples: int, steps: int = 15) -> None:
    """Run a state machine."""
    run_state_machine_as_test(make, settings=profile(examples, steps))  # type: ignore[arg-type]  # any function that makes a machine


@pytest.fixture(params=["async", "sync"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver(request.param)
    yield driver
    driver.close()


@pytest.mark.parametrize(("machine", "examples"), [(ArrayMachine, 100), (GroupMachine, 60)])
def test_nodes(machine: Any, examples: int, driver: Driver, tmp_path: Path):
    check(lambda: machine(driver, tmp_path), examples)


@pytest.mark.parametrize("kind", STORES)
def test_stores(kind: str, driver: Driver, tmp_path: Path):
    check(lambda: StoreMachine(driver, tmp_path, STORES[kind]), 15)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_stores_on_s3(backend: str, driver: Driver, tmp_path: Path, s3: tuple[str, dict[str, Any]]):
    url, options = s3

    def make(path: Path) -> stores.Store:
        return stores.resolve(f"{url}/{path.name}", {**options, "backend": backend})

    check(lambda: StoreMachine(driver, tmp_path, make), 5)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_datasets(driver: Driver, tmp_path: Path):
    check(lambda: DatasetMachine(driver, tmp_path), 15, 10)
