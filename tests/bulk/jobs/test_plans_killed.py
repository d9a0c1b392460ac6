"""Commands of plans of copies and pyramids that are killed at each request that changes the destination."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.dying import in_child, names
from zarrasync import FileOptions, Layout, PyramidAxes, stores, sync
from zarrasync.errors import NodeNotFoundError, WriteConflictError

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")]
VALUES = np.arange(3200, dtype="f4").reshape(40, 80)


def die(calls: int, command: Callable[[], Any]) -> None:
    """Run a command, and kill the process when it changes a local file for the n-th time."""
    left = calls

    def dying(method: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return await method(*arguments, **options)

        return call

    for name in ("put", "put_values", "erase", "erase_values", "erase_prefix"):
        setattr(stores.LocalStore, name, dying(getattr(stores.LocalStore, name)))
    command()


def repeat(command: Callable[[], Any], step: int = 1) -> int:
    """Kill a command at each of its requests until it ends. Return how often it was killed."""
    calls, code = 0, -1
    while code:
        code = in_child(die, calls, command)
        assert code in (0, -signal.SIGKILL)
        calls += step
    return calls // step - 1


def visible(dest: Path) -> bool:
    """Return whether readers see the destination, and check that they see all of it."""
    try:
        group = sync.open_group(dest)
    except NodeNotFoundError:
        return False
    for name in ("x", "inner/y"):
        if name in group:
            np.testing.assert_array_equal(group[name][...], VALUES)
    return True


@pytest.mark.parametrize("overwrite", [False, True])
def test_copies(tmp_path: Path, *, overwrite: bool):
    source, dest, clean = (tmp_path / name for name in ("a.zarr", "b.zarr", "c.zarr"))
    group = sync.create_group(source)
    group.create_array("x", data=VALUES, chunks=(10, 80))
    group.create_array("inner/y", data=VALUES, chunks=(40, 10))
    if overwrite:
        sync.create_array(dest, data=VALUES + 1, chunks=(5, 5))
    options: dict[str, Any] = {"chunks": {"x": (40, 8)}, "tasks": 3, "overwrite": overwrite}
    assert repeat(lambda: sync.plan_copy(source, dest, **options)) >= 3
    assert repeat(lambda: sync.open_plan(dest).run()) >= 3
    if not overwrite:
        assert not visible(dest)

    def finish() -> None:
        try:
            plan = sync.open_plan(dest)
        except NodeNotFoundError:
            return  # a killed command had only the document to erase
        plan.finish()

    assert repeat(finish) >= 4
    assert visible(dest)
    sync.copy(source, clean, chunks={"x": (40, 8)})
    assert names(dest) == names(clean)


def test_copies_that_are_abandoned(tmp_path: Path):
    source, dest = tmp_path / "a.zarr", tmp_path / "b.zarr"
    sync.create_array(source, path="x", data=VALUES, chunks=(10, 80))
    sync.plan_copy(source, dest, tasks=2).run()

    def abandon() -> None:
        try:
            sync.open_plan(dest).abandon()
        except (NodeNotFoundError, WriteConflictError):
            assert not (dest / ".ingest/claim").exists()

    assert repeat(abandon) >= 3
    assert not visible(dest)
    assert [path for path in dest.rglob("*") if path.is_file() and path.name != "plan.json"] == []
    sync.copy(source, dest)
    np.testing.assert_array_equal(sync.open_array(dest, path="x")[...], VALUES)


def test_pyramids(tmp_path: Path):
    image, clean = tmp_path / "image.zarr", tmp_path / "clean.zarr"
    for place in (image, clean):
        sync.create_array(place, path="0", data=VALUES, chunks=(10, 10), dimension_names=("y", "x"))
    sync.pyramid(clean, levels=3, layout=Layout(shards=None))
    assert repeat(lambda: sync.plan_pyramid(image, levels=3, layout=Layout(shards=None))) >= 3
    assert repeat(lambda: sync.open_plan(image).run()) >= 3

    def finish() -> None:
        try:
            plan = sync.open_plan(image)
        except NodeNotFoundError:
            return
        plan.finish()

    assert repeat(finish) >= 3
    assert names(image) == names(clean)
    for path in ("1", "2"):
        one, other = (sync.open_array(place, path=path)[...] for place in (image, clean))
        np.testing.assert_array_equal(one, other)


def test_other_jobs_after_an_interrupted_publication(tmp_path: Path):
    """Only the job that was killed while it published its result can complete it. Others keep its record."""
    pytest.importorskip("xarray")
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", VALUES + number)
    files, out = [str(tmp_path / f"{number}.npy") for number in range(3)], tmp_path / "out.zarr"
    source = FileOptions(dims="y,x")
    ingest = partial(sync.ingest_files, store=out, concat="time", append=True, source=source)
    ingest(files[:1])
    claim, calls = out / ".ingest/claim", 0
    while not (claim.exists() and "publishing" in claim.read_text()):
        assert in_child(die, calls, partial(ingest, files)) == -signal.SIGKILL
        calls += 1
    before = names(out)
    sync.create_array(other := tmp_path / "other.zarr", data=VALUES)
    for job in (
        lambda: sync.plan_pyramid(
            out, path="values", axes=PyramidAxes(names=("time", "y", "x"), factors={"y": 2, "x": 2})
        ),
        lambda: sync.copy(other, out),
    ):
        with pytest.raises(
            WriteConflictError, match=r"was interrupted while it published its result .* repeat that job"
        ):
            job()
        assert names(out) == before
    ingest(files)
    found = sync.open_array(out, path="values")
    np.testing.assert_array_equal(found[...], [VALUES, VALUES + 1, VALUES + 2])
