"""Jobs on every kind of engine write what they write in this process."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import assert_same, joined, write_days


@contextlib.contextmanager
def threads() -> Iterator[Any]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@contextlib.contextmanager
def pool() -> Iterator[Any]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        yield executor


@contextlib.contextmanager
def map_of_a_pool() -> Iterator[Any]:
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        yield processes.map


@contextlib.contextmanager
def loky() -> Iterator[Any]:
    executor = pytest.importorskip("loky").get_reusable_executor(2)
    yield executor
    executor.shutdown(kill_workers=True)


@contextlib.contextmanager
def dask() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        yield client


@contextlib.contextmanager
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            yield module
        finally:
            module.shutdown()


@contextlib.contextmanager
def lithops() -> Iterator[Any]:
    module = pytest.importorskip("lithops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with module.FunctionExecutor(
            backend="localhost", storage="localhost", runtime=sys.executable, log_level="ERROR"
        ) as executor:
            yield executor


HERE: list[Callable[[], Any]] = [
    threads,
    lambda: contextlib.nullcontext(map),
    lambda: contextlib.nullcontext(lambda function, items: [function(item) for item in items]),
]
ELSEWHERE: list[Any] = [lambda: contextlib.nullcontext(2), pool, map_of_a_pool]
CLUSTERS: list[Any] = [loky, dask, ray, lithops]


async def write_everything(api: Api, folder: Path, executor: Any) -> None:
    """Ingest files, append others, copy the dataset with other chunks, and build a pyramid; compare the values."""
    paths = write_days(folder / "nc", range(4))
    out = folder / "out.zarr"
    call: dict[str, Any] = {"concat": "time", "chunks": {"time": 24}, "executor": executor}
    await api(api.ingest(paths[:3], out, **call))
    await api(api.ingest(paths, out, concat="time", append=True, on_duplicate="skip", executor=executor))
    assert_same(out, joined(paths))
    values = np.arange(1 << 21, dtype="i8").reshape(1 << 10, 1 << 11)  # 16 MiB, which is worth sharing
    sync.create_array(folder / "a.zarr", name="0", data=values, chunks=(512, 512), dimension_names=["y", "x"])
    await api(api.copy(folder / "a.zarr", folder / "b.zarr", chunks=(256, 1024), executor=executor, verify=True))
    np.testing.assert_array_equal(sync.open_array(folder / "b.zarr", path="0")[...], values)
    await api(api.pyramid(folder / "a.zarr", path="0", levels=2, method="nearest", executor=executor))
    np.testing.assert_array_equal(sync.open_array(folder / "a.zarr", path="1")[...], values[::2, ::2])


@pytest.mark.parametrize("engine", HERE, ids=["threads", "map", "list"])
async def test_engines_of_this_process(api: Api, tmp_path: Path, engine: Any):
    with engine() as executor:
        await write_everything(api, tmp_path, executor)


@pytest.mark.processes
@pytest.mark.parametrize("engine", ELSEWHERE, ids=["number", "pool", "map of a pool"])
async def test_engines_of_this_machine(api: Api, tmp_path: Path, engine: Any):
    with engine() as executor:
        await write_everything(api, tmp_path, executor)


@pytest.mark.foreign
@pytest.mark.slow
@pytest.mark.parametrize("engine", CLUSTERS, ids=lambda engine: engine.__name__)
async def test_clusters(api: Api, tmp_path: Path, engine: Any):
    with engine() as executor:
        await write_everything(api, tmp_path, executor)
