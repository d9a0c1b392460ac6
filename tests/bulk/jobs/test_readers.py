"""What readers see that open a dataset again and again while a job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import Layout, stores, sync
from zarrasync.errors import NodeNotFoundError

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
DAYS, HOURS = 6, 24
PLACES = ["local", "s3", "plain", "icechunk"]


class PlainStore(stores.LocalStore):
    """A store without conditional writes, like most filesystems of fsspec."""

    conditional = False


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """A destination, and the options with which it is opened."""
    if request.param == "s3":
        url, options = request.getfixturevalue("s3")
        return url, {"storage_options": options}
    if request.param == "icechunk":
        pytest.importorskip("icechunk", "2")
        return f"{tmp_path / 'repo'}|icechunk:", {}
    if request.param == "plain":
        return PlainStore(tmp_path / "plain.zarr"), {"config": {"unaligned": "allow"}}
    return tmp_path / "out.zarr", {}


def write_day(folder: Path, day: int, *, version: int = 0) -> Path:
    """Write a file whose values tell the hours since the first day, and its version."""
    folder.mkdir(exist_ok=True)
    hours = np.arange(day * HOURS, (day + 1) * HOURS)
    values = np.broadcast_to(hours[:, None] + 1000.0 * version, (HOURS, 50)).astype("f4")
    time = np.datetime64("2024-01-01", "ns") + hours * np.timedelta64(1, "h")
    path = folder / f"{day}.nc"
    xr.Dataset({"t": (("time", "x"), values)}, {"time": time}).to_netcdf(path, engine="h5netcdf")
    return path


@contextmanager
def reader(read: Callable[[], Any], check: Callable[[Any], None]) -> Iterator[list[Any]]:
    """Read in a loop on another thread as long as the block runs, and once more. Yield what it has read."""
    seen: list[Any] = []
    errors: list[BaseException] = []
    is_over, has_read = threading.Event(), threading.Event()

    def loop() -> None:
        try:
            while True:
                is_last = is_over.is_set()
                seen.append(value := read())
                check(value)
                has_read.set()
                if is_last:
                    return
        except BaseException as error:
            errors.append(error)
            has_read.set()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert has_read.wait(60)
        yield seen
    finally:
        is_over.set()
        thread.join(120)
    assert not errors, errors


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_appends(place: tuple[Any, dict[str, Any]], tmp_path: Path, tasks: str):
    """Readers find whole days, in order, each with its values."""
    store, options = place
    layout = Layout(chunks={"time": 10, "x": 20})
    if tasks == "plan" and not isinstance(store, str | Path):
        pytest.skip("a plan needs a name of its destination, and marks of tasks")
    sync.ingest_files(write_day(tmp_path / "nc", 0), store, concat="time", layout=layout, **options)

    def read() -> np.ndarray:
        group = sync.open_group(store, **options)
        time, values = group.get_array("time")[...], group.get_array("t")[...]
        assert len(time) <= len(values)
        return values[: len(time)]

    def check(values: np.ndarray) -> None:
        assert len(values) % HOURS == 0
        np.testing.assert_array_equal(values, np.broadcast_to(np.arange(len(values))[:, None], values.shape))

    with reader(read, check) as seen:
        for day in range(1, DAYS):
            files = write_day(tmp_path / "nc", day)
            if tasks == "plan":
                plan = sync.plan_ingest(
                    files, store, concat="time", append=True, plan=tmp_path / "plan.json", tasks=3, **options
                )
                plan.run()
                plan.finish()
            else:
                sync.ingest_files(files, store, concat="time", append=True, **options)
    assert len(seen[-1]) == DAYS * HOURS


def test_rows_that_are_written_again(place: tuple[Any, dict[str, Any]], tmp_path: Path):
    """Readers find old and new values, each chunk in one version; in icechunk, all in one version."""
    store, options = place
    files = [write_day(tmp_path / "nc", day) for day in range(DAYS)]
    sync.ingest_files(files, store, concat="time", layout=Layout(chunks={"time": HOURS, "x": 50}), **options)
    new = [write_day(tmp_path / "new", day, version=1) for day in range(DAYS)]
    is_atomic = "icechunk" in str(store)

    def read() -> np.ndarray:
        return sync.open_group(store, **options).get_array("t")[...]

    def check(values: np.ndarray) -> None:
        hours = np.arange(DAYS * HOURS)
        versions, rest = np.divmod(values, 1000)
        np.testing.assert_array_equal(rest, np.broadcast_to(hours[:, None], rest.shape))
        by_chunk = versions.reshape(DAYS, -1)
        assert (by_chunk == by_chunk[:, :1]).all()
        assert not is_atomic or (versions == versions[0, 0]).all()

    with reader(read, check) as seen:
        sync.ingest_files(new, store, concat="time", region="auto", **options)
    assert (seen[0] < 1000).any()
    assert (seen[-1] >= 1000).all()


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_copies(tmp_path: Path, s3: tuple[str, dict[str, Any]], tasks: str):
    """Readers find nothing, or all of the copy."""
    source, values = tmp_path / "source.zarr", np.arange(4000.0).reshape(80, 50)
    group = sync.create_group(source)
    for name in ("a", "b"):
        group.create_array(name, data=values, chunks=(10, 50))
    for dest, options in ((tmp_path / "dest.zarr", {}), (s3[0], {"storage_options": s3[1]})):

        def read(dest: Any = dest, options: Any = options) -> dict[str, np.ndarray]:
            try:
                opened = sync.open_group(dest, **options)
            except NodeNotFoundError:
                return {}
            return {name: opened.get_array(name)[...] for name in ("a", "b") if name in opened}

        def check(found: dict[str, np.ndarray]) -> None:
            for copied in found.values():
                np.testing.assert_array_equal(copied, values)

        with reader(read, check) as seen:
            arguments: dict[str, Any] = {"chunks": {"a": (80, 5)}, "dest_options": options.get("storage_options")}
            if tasks == "plan":
                plan = sync.plan_copy(source, dest, tasks=4, **arguments)
                plan.run()
                plan.finish()
            else:
                sync.copy(source, dest, verify=True, **arguments)
        assert (seen[0], sorted(seen[-1])) == ({}, ["a", "b"])


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_pyramids(tmp_path: Path, tasks: str):
    """Readers that follow the metadata find no levels, or all of them."""
    store, values = tmp_path / "image.zarr", np.random.default_rng(0).random((256, 256))
    sync.create_array(store, path="0", data=values, chunks=(32, 32), dimension_names=("y", "x"))

    def read() -> list[np.ndarray]:
        group = sync.open_group(store)
        scales = group.attrs.get("ome", {}).get("multiscales", [{"datasets": []}])[0]
        return [group.get_array(level["path"])[...] for level in scales["datasets"]]

    def check(levels: list[np.ndarray]) -> None:
        for fine, coarse in pairwise(levels):
            blocks = fine.reshape(coarse.shape[0], 2, coarse.shape[1], 2)
            np.testing.assert_allclose(coarse, blocks.mean((1, 3)))

    with reader(read, check) as seen:
        if tasks == "plan":
            plan = sync.plan_pyramid(store, levels=4, layout=Layout(shards=None), tasks=6)
            plan.run()
            plan.finish()
        else:
            sync.pyramid(store, levels=4, layout=Layout(shards=None))
    assert (len(seen[0]), len(seen[-1])) == (0, 4)
