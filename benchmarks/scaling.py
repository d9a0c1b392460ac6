"""Measure how the time of operations grows with the number of nodes and chunks.

    python benchmarks/scaling.py                      prints CPU seconds for 1,000 to 100,000, and the exponent
    python benchmarks/scaling.py --only tree copy     only operations whose names contain one of these
    python benchmarks/scaling.py --sizes 100 1000     other numbers of nodes and chunks

The exponent describes the last step: 1 means that the time grows in proportion, 2 that it grows with the square.
``count`` measures work in a way that does not depend on the machine. The tests use it with small numbers.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync import stores, sync

__all__ = ["TASKS", "Task", "count"]

Work = Callable[[], Any]
SECONDS = 100.0
"""An operation that takes longer is not measured with larger numbers."""


@dataclass(frozen=True)
class Task:
    """An operation whose work should be proportional to a number.

    Attributes:
        name: Its name.
        prepare: Returns the operation for an empty store and a number of nodes or chunks.
        kind: The kind of store.
    """

    name: str
    prepare: Callable[[stores.Store, int], Work]
    kind: str = "memory"

    def make(self, folder: Path, n: int) -> Work:
        """Return the operation for a number of nodes or chunks, in a new store."""
        place = Path(tempfile.mkdtemp(dir=folder))
        if self.kind == "local":
            return self.prepare(stores.LocalStore(place), n)
        if self.kind == "zip":
            return self.prepare(stores.ZipStore(place / "a.zip", mode="w"), n)
        return self.prepare(stores.MemoryStore(), n)


# ------------------------------------------------------------------ nodes


def nodes_of(n: int) -> dict[str, dict[str, Any] | None]:
    """Return the parameters of ``n`` nodes: groups that contain one array each."""
    array = {"shape": (1,), "dtype": "u1", "compressors": None}
    return {path: value for i in range(n // 2) for path, value in ((f"g{i}", None), (f"g{i}/a", array))}


def hierarchy(store: stores.Store, n: int, *, consolidated: bool = False) -> sync.Group:
    """Create nodes below a group and return the group."""
    sync.create_group(store)
    sync.create_hierarchy(store, nodes_of(n))
    return sync.consolidate_metadata(store) if consolidated else sync.open_group(store, mode="r+")


def of_group(work: Callable[[sync.Group, int], Any], *, consolidated: bool = False) -> Callable[..., Work]:
    """Return the preparation of an operation on a group with ``n`` nodes below."""

    def prepare(store: stores.Store, n: int) -> Work:
        group = hierarchy(store, n, consolidated=consolidated)
        return lambda: work(group, n)

    return prepare


def create_hierarchy(store: stores.Store, n: int) -> Work:
    """Create nodes with one call."""
    return lambda: sync.create_hierarchy(store, nodes_of(n))


def create_one_by_one(store: stores.Store, n: int) -> Work:
    """Create arrays in a group, each with a separate call."""
    group = sync.create_group(store)
    return lambda: [group.create_array(f"a{i}", shape=(1,), dtype="u1") for i in range(n)]


def erase_group(store: stores.Store, n: int) -> Work:
    """Erase a group with nodes below it."""
    root = sync.create_group(store)
    sync.create_hierarchy(store, {f"all/{path}": value for path, value in nodes_of(n).items()})
    return lambda: root.delete("all")


def look_up(group: sync.Group, n: int) -> None:
    """Look up members by name, half of which do not exist."""
    for i in range(n // 2):
        assert f"g{i}" in group
        assert f"x{i}" not in group


def validate(group: sync.Group, n: int) -> None:
    """Validate a hierarchy."""
    assert sync.validate(group.store, data=True).ok


# ------------------------------------------------------------------ chunks


def array_of(store: stores.Store, n: int, **options: Any) -> sync.Array:
    """Create an array of ``n`` chunks with one element."""
    return sync.create_array(store, shape=(n,), chunks=(1,), dtype="u1", compressors=None, **options)


def of_array(work: Callable[[sync.Array, int], Any], **options: Any) -> Callable[..., Work]:
    """Return the preparation of an operation on an array with ``n`` stored chunks."""

    def prepare(store: stores.Store, n: int) -> Work:
        array = array_of(store, n, **options)
        array[...] = 1
        return lambda: work(array, n)

    return prepare


def write(store: stores.Store, n: int) -> Work:
    """Write an array of ``n`` chunks."""
    array = array_of(store, n)
    return lambda: array.view[...].write(np.ones(n, "u1"))


def append(store: stores.Store, n: int) -> Work:
    """Append ``n`` times one row, each in a separate chunk."""
    array = array_of(store, 0)
    row = np.ones(1, "u1")
    return lambda: [array.append(row) for _ in range(n)]


def shrink_and_grow(array: sync.Array, n: int) -> None:
    """Make an array shorter, which erases its chunks, and longer again."""
    array.resize((1,))
    array.resize((n,))


def read_points(array: sync.Array, n: int) -> Any:
    """Read one element of each chunk in a random order."""
    return array.vindex[np.random.default_rng(0).permutation(n)]


def validate_array(array: sync.Array, n: int) -> None:
    """Validate an array with its chunks."""
    assert sync.validate(array.store, data=True).ok


TASKS = [
    *(
        Task(f"{name}, {kind}", prepare, kind)
        for kind in ("memory", "local")
        for name, prepare in (
            ("create_hierarchy", create_hierarchy),
            ("create one by one", create_one_by_one),
            ("open", of_group(lambda group, n: sync.open(group.store))),
            ("list_nodes", of_group(lambda group, n: sync.list_nodes(group.store))),
            ("members(None)", of_group(lambda group, n: group.members(None))),
            ("nmembers", of_group(lambda group, n: group.nmembers(None))),
            ("keys", of_group(lambda group, n: list(group.keys()))),
            ("tree", of_group(lambda group, n: group.tree())),
            ("in", of_group(look_up)),
            ("consolidate", of_group(lambda group, n: sync.consolidate_metadata(group.store))),
            ("validate nodes", of_group(validate)),
            ("manifest", of_group(lambda group, n: sync.manifest(group.store).digest)),
            ("copy nodes", of_group(lambda group, n: sync.copy(group.store, {}))),
            ("erase nodes", erase_group),
            ("write chunks", write),
            ("read chunks", of_array(lambda array, n: array[...])),
            ("read points", of_array(read_points)),
            ("count chunks", of_array(lambda array, n: array.nchunks_initialized())),
            ("validate chunks", of_array(validate_array)),
            ("copy chunks", of_array(lambda array, n: sync.copy(array.store, {}))),
            ("resize", of_array(shrink_and_grow)),
            ("append", append),
        )
    ),
    *(
        Task(f"{name}, consolidated", of_group(work, consolidated=True))
        for name, work in (
            ("open", lambda group, n: sync.open(group.store)),
            ("members(None)", lambda group, n: group.members(None)),
            ("nmembers", lambda group, n: group.nmembers(None)),
            ("keys", lambda group, n: list(group.keys())),
            ("tree", lambda group, n: group.tree()),
            ("in", look_up),
            ("validate nodes", validate),
            ("copy nodes", lambda group, n: sync.copy(group.store, {})),
        )
    ),
    Task("create_hierarchy, zip", create_hierarchy, "zip"),
    Task("tree, zip", of_group(lambda group, n: group.tree()), "zip"),
    Task("write chunks, zip", write, "zip"),
]


# ------------------------------------------------------------------ measuring


def count(work: Work) -> int:
    """Return the number of calls and of passes through loops that an operation makes, on all threads."""
    monitoring = sys.monitoring
    events, tool = monitoring.events, monitoring.PROFILER_ID
    total = 0

    def add(*_: object) -> None:
        nonlocal total
        total += 1

    monitoring.use_tool_id(tool, "scaling")
    try:
        for event in (events.PY_START, events.CALL, events.JUMP):
            monitoring.register_callback(tool, event, add)
        monitoring.set_events(tool, events.PY_START | events.CALL | events.JUMP)
        work()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return total


def measure(task: Task, folder: Path, sizes: list[int]) -> list[float]:
    """Return the seconds of CPU time of an operation for each number, as long as they are not too many."""
    seconds: list[float] = []
    for n in sizes:
        work = task.make(folder, n)
        begin = time.process_time()  # other programs disturb it less than the elapsed time
        work()
        seconds.append(time.process_time() - begin)
        if seconds[-1] > SECONDS:
            break
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000], help="nodes or chunks")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of operations")
    options = parser.parse_args()
    print(f"{'operation':<32}" + "".join(f"{n:>11,}" for n in options.sizes) + f"{'exponent':>10}")
    for task in TASKS:
        if not any(part in task.name for part in options.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            seconds = measure(task, Path(folder), options.sizes)
        exponent = ""
        if len(seconds) > 1:
            step = options.sizes[len(seconds) - 1] / options.sizes[len(seconds) - 2]
            exponent = f"{math.log(seconds[-1] / seconds[-2]) / math.log(step):.2f}"
        columns = [f"{value:.3f}" for value in seconds] + ["-"] * (len(options.sizes) - len(seconds))
        print(f"{task.name:<32}" + "".join(f"{value:>11}" for value in columns) + f"{exponent:>10}", flush=True)


if __name__ == "__main__":
    main()
