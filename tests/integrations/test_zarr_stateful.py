"""zarr-python's own state machines of hierarchies and stores, on stores of zarrasync."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from zarrasync import stores

zarr = pytest.importorskip("zarr", "3.1")
pytest.importorskip("zarr.testing.stateful")

from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine  # after the skip

from zarrasync.integrations.zarr import ZarrStore

pytestmark = pytest.mark.random


class FileHierarchyStateMachine(ZarrHierarchyStateMachine):
    """Keeps chunks, because an erased one leaves an empty directory, which local stores list."""

    delete_chunk = None


SETTINGS = settings(
    max_examples=5, stateful_step_count=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "machine"),
    [
        ("memory", ZarrHierarchyStateMachine),
        ("local", FileHierarchyStateMachine),
        ("memory", ZarrStoreStateMachine),
        ("local", ZarrStoreStateMachine),
    ],
)
def test_state_machines(kind: str, machine: Any, tmp_path_factory: pytest.TempPathFactory):
    def make() -> Any:
        inner = stores.MemoryStore() if kind == "memory" else stores.LocalStore(tmp_path_factory.mktemp("store"))
        return machine(ZarrStore(inner))

    run_state_machine_as_test(make, settings=SETTINGS)  # type: ignore[arg-type]  # any function that makes a machine
