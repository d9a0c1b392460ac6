"""Copies and rechunking in other processes, and on a cluster of dask."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.strict_s3 import BUCKET, serve_s3
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.errors import ChecksumError, StoreError, WriteConflictError

VALUES = np.random.default_rng(0).integers(0, 1 << 30, (200, 120, 100), dtype="i4")
"""More values than one process copies alone."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "unchanged": {},
    "rechunked": {"chunks": (200, 20, 25)},
    "shards": {"chunks": (10, 60, 50), "shards": (50, 120, 100)},
    "format 2": {"zarr_format": 2},
}


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


def write(place: Path) -> Path:
    group = sync.create_group(place, attributes={"title": "test"})
    array = group.create_array("a", shape=VALUES.shape, dtype="i4", chunks=(8, 120, 100), fill_value=0)
    array[:120] = VALUES[:120]  # the other chunks are absent
    array[192:] = VALUES[192:]
    group.create_array("b", data=VALUES[0], chunks=(7, 9))
    return place


def content(place: Path) -> dict[str, bytes]:
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.processes
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_result_is_the_same(api: Api, tmp_path: Path, executor: Executor, layout: str):
    source, seen = write(tmp_path / "source"), list[int]()
    options = {"chunks": {"a": LAYOUTS[layout]["chunks"]}} if "chunks" in LAYOUTS[layout] else {}
    options = {**LAYOUTS[layout], **options}
    if "shards" in options:
        options["shards"] = {"a": options["shards"]}
    expected = await api(api.copy(source, tmp_path / "expected", **options))
    report = await api(
        api.copy(source, tmp_path / "found", executor=executor, verify=True, progress=seen.append, **options)
    )
    assert content(tmp_path / "found") == content(tmp_path / "expected")
    assert (report.arrays, report.groups, report.nbytes) == (expected.arrays, expected.groups, expected.nbytes)
    assert sum(seen) == VALUES.nbytes + VALUES[0].nbytes
    again = await api(api.copy(source, tmp_path / "found", executor=executor, resume=True, **options))
    assert again.copied == 0
    assert again.skipped > 0


@pytest.mark.processes
async def test_an_interrupted_copy_is_completed(api: Api, tmp_path: Path, executor: Executor):
    source = write(tmp_path / "source")
    for layout in ({}, {"chunks": {"a": (50, 20, 25)}}):
        place = tmp_path / f"copy{len(layout)}"
        await api(api.copy(source, place, **layout))
        whole = content(place)
        removed = sorted(name for name in whole if name.startswith("a/c/"))[1::2]
        for name in removed:
            (place / name).unlink()
        report = await api(api.copy(source, place, executor=executor, resume=True, **layout))
        assert content(place) == whole
        assert 0 < report.copied <= len(removed)
        assert report.skipped > 0


@pytest.mark.processes
async def test_damage_is_found_in_other_processes(api: Api, tmp_path: Path, executor: Executor):
    source = write(tmp_path / "source")
    await api(api.copy(source, tmp_path / "copy", chunks={"a": (50, 20, 25)}))
    sync.open_array(tmp_path / "copy", path="a", mode="r+")[3, 4, 5] += 1
    with pytest.raises(ChecksumError, match="/a"):
        await api(
            api.copy(source, tmp_path / "copy", chunks={"a": (50, 20, 25)}, executor=executor, resume=True, verify=True)
        )


@pytest.mark.processes
async def test_stores_of_this_process(api: Api, tmp_path: Path, executor: Executor):
    source = write(tmp_path / "source")
    with pytest.raises(StoreError, match="only in this process"):
        await api(api.copy(source, stores.MemoryStore(), executor=executor))
    memory = stores.MemoryStore()
    await api(api.copy(source, memory))
    with pytest.raises(StoreError, match="only in this process"):
        await api(api.copy(memory, tmp_path / "copy", executor=executor))


@pytest.mark.processes
async def test_an_object_store(api: Api, tmp_path: Path, executor: Executor):
    source = write(tmp_path / "source")
    with serve_s3(tmp_path) as options:
        url = f"s3://{BUCKET}/copy"
        await api(api.copy(source, url, dest_options=options, chunks={"a": (40, 60, 50)}, executor=executor))
        await api(
            api.copy(url, tmp_path / "back", source_options=options, chunks={"a": (50, 20, 25)}, executor=executor)
        )
    np.testing.assert_array_equal(sync.open_array(tmp_path / "back", path="a")[:120], VALUES[:120])


async def test_something_that_is_no_executor(api: Api, tmp_path: Path):
    with pytest.raises(TypeError, match="executor must be a number of processes, have a method submit"):
        await api(api.copy(write(tmp_path / "source"), tmp_path / "copy", executor="3"))


@pytest.mark.parametrize("job", ["copy", "pyramid"])
async def test_calls_that_an_executor_repeats_after_the_job(api: Api, tmp_path: Path, job: str):
    """They are refused, because the values may have changed since."""
    source, dest, calls = tmp_path / "a.zarr", tmp_path / "b.zarr", list[Any]()
    values = np.arange(1 << 21, dtype="i8").reshape(1 << 10, 1 << 11)  # 16 MiB, which is worth sharing
    sync.create_array(source, path="0", data=values, chunks=(256, 512), dimension_names=["y", "x"])

    def keep(function: Any, items: Any) -> list[Any]:
        calls.extend(partial(function, item) for item in items)
        return [call() for call in calls[-len(items) :]]

    if job == "copy":
        await api(api.copy(source, dest, chunks={"0": (512, 512)}, executor=keep))
    else:
        await api(api.pyramid(source, path="0", dest=dest, levels=2, method="nearest", executor=keep))
    arrays = [array for _, array in sync.open_group(dest, mode="r+").arrays()]
    for array in arrays:
        array[...] = 0
    errors = [call()[-1] for call in calls]
    assert errors
    assert all(isinstance(error, WriteConflictError) for error in errors)
    assert not any(array[...].any() for array in arrays)
    assert not (dest / ".ingest").exists()


def _end_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.processes
async def test_a_process_that_ends(api: Api, tmp_path: Path):
    source = write(tmp_path / "source")
    ending = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_process)
    with ending as pool, pytest.raises(StoreError, match="the processes that ran task"):
        await api(api.copy(source, tmp_path / "copy", executor=pool))
    await api(api.copy(source, tmp_path / "copy", resume=True))
    np.testing.assert_array_equal(sync.open_array(tmp_path / "copy", path="a")[:120], VALUES[:120])


@pytest.mark.processes
@pytest.mark.slow
def test_a_cluster_of_dask(tmp_path: Path):
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    source = write(tmp_path / "source")
    with distributed.Client(n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        sync.copy(source, tmp_path / "copy", chunks={"a": (200, 20, 25)}, executor=client)
    np.testing.assert_array_equal(sync.open_array(tmp_path / "copy", path="a")[:120], VALUES[:120])


@pytest.mark.processes
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write(tmp_path / "source")
    words = ["convert", str(source), str(tmp_path / "copy"), "--chunks", '{"a": [200, 20, 25]}', "--processes", "2"]
    assert main([*words, "--verify"]) == 0
    assert "2 arrays" in capsys.readouterr().out
    np.testing.assert_array_equal(sync.open_array(tmp_path / "copy", path="a")[:120], VALUES[:120])
