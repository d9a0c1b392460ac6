"""Plans of new datasets: the result is that of ``write_dataset``, whatever runs the tasks, and in whatever order."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import (
    ChecksumError,
    EncodingError,
    NodeExistsError,
    NodeNotFoundError,
    UnsupportedOperation,
    WriteConflictError,
)

xr = pytest.importorskip("xarray")
da = pytest.importorskip("dask.array")
from zarrasync.integrations.xarray import (  # after the skips
    WriteOptions,
    plan_write_dataset,
    plan_write_dataset_async,
    write_dataset,
)

SHAPE = (40, 30, 20)
ENCODING: dict[str, Any] = {
    "t2m": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768},
    "mask": {"chunks": (10, 20), "write_empty_chunks": True},
}


def make_dataset() -> Any:
    values = np.random.default_rng(5).uniform(-50, 50, SHAPE)
    values[3, 4, 5] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), da.from_array(values, chunks=(8, 30, 20))),
            "mask": (("lat", "lon"), np.zeros(SHAPE[1:], np.uint8)),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        {
            "time": np.datetime64("2026-01-01", "ns") + np.arange(SHAPE[0]) * np.timedelta64(1, "D"),
            "lat": np.linspace(-90, 90, SHAPE[1]),
            "name": ("lon", [f"column {number}" for number in range(SHAPE[2])]),
        },
        {"title": "test"},
    )


def planner(api: Api) -> Any:
    return plan_write_dataset_async if api.name == "async" else plan_write_dataset


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_the_result_is_that_of_write_dataset(api: Api, zarr_format: int):
    dataset, expected, store = make_dataset(), stores.MemoryStore(), stores.MemoryStore()
    options: dict[str, Any] = {"encoding": ENCODING, "zarr_format": zarr_format}
    write_dataset(dataset, expected, **options)
    plan = await api(planner(api)(dataset, store, tasks=6, **options))
    assert 4 <= len(plan.tasks) <= 12
    assert plan.kind == "write"
    assert plan.explain().passes == 1
    for task in reversed(plan.tasks):
        with pytest.raises(NodeNotFoundError):
            sync.open(store)
        report = await api(plan.run(task, verify=True))
        assert report.verified == report.blocks > 0
    assert (await api(plan.run())).skipped == len(plan.tasks)
    report = await api(plan.finish())
    assert (report.arrays, report.groups) == (6, 1)
    assert {key: bytes(value) for key, value in store.values.items()} == expected.values


def test_trees_below_other_groups(tmp_path: Path):
    tree = xr.DataTree.from_dict({"/": make_dataset()[["mask"]], "/fine/finer": make_dataset()[["t2m"]]})
    for name in ("one", "two"):
        sync.create_group(tmp_path / name, attributes={"title": "above"})
    write_dataset(tree, tmp_path / "one", group="a/b")
    plan = plan_write_dataset(tree, tmp_path / "two", group="a/b")
    plan.run()
    plan.finish()
    assert files(tmp_path / "two") == files(tmp_path / "one")
    assert not (tmp_path / "two/a/b/.ingest").exists()


@pytest.mark.processes
def test_other_processes_get_the_values_of_their_tasks_only(tmp_path: Path):
    dataset = make_dataset()
    dataset["t2m"] = dataset.t2m - dataset.t2m.mean("time")
    dataset["large"] = ("large", np.random.default_rng(1).random(100_000))
    options: dict[str, Any] = {"encoding": {"large": {"chunks": (10_000,)}}}
    write_dataset(dataset, tmp_path / "one", **options)
    plan = pickle.loads(pickle.dumps(plan_write_dataset(dataset, tmp_path / "two", tasks=8, **options)))
    sizes = [len(pickle.dumps(plan._async._work.part(task.number))) for task in plan.tasks]
    assert max(sizes) < 500_000
    assert len(pickle.dumps(plan)) > 800_000
    plan.run(executor=2)
    plan.finish()
    assert files(tmp_path / "two") == files(tmp_path / "one")


@pytest.mark.processes
def test_tasks_on_a_cluster(tmp_path: Path):
    """A task that computes values on the cluster that runs it leaves its place to the computation."""
    distributed = pytest.importorskip("distributed")
    dataset = make_dataset()
    write_dataset(dataset, tmp_path / "one", encoding=ENCODING)
    with distributed.Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
        plan = plan_write_dataset(dataset, tmp_path / "two", encoding=ENCODING, tasks=6)
        plan.run(executor=client)
        plan.finish()
    assert files(tmp_path / "two") == files(tmp_path / "one")


async def test_what_exists(api: Api, tmp_path: Path):
    dataset, out = make_dataset(), tmp_path / "out"
    write_dataset(xr.Dataset({"old": ("x", [1, 2])}), out)
    with pytest.raises(NodeExistsError, match="mode='w'"):
        await api(planner(api)(dataset, out))
    lazy = xr.open_dataset(out, engine="zarrasync", chunks={})
    with pytest.raises(NodeExistsError):
        await api(planner(api)(lazy, out, mode="w"))
    assert not (out / ".ingest").exists()
    plan = await api(planner(api)(dataset, out, mode="w"))
    with pytest.raises(WriteConflictError, match="is not finished"):
        await api(planner(api)(dataset, out))
    await api(plan.run())
    await api(plan.finish())
    xr.testing.assert_identical(xr.open_zarr(out).compute(), dataset.compute())


async def test_what_cannot_be_planned(api: Api, tmp_path: Path):
    dataset = make_dataset()
    for options in ({"mode": "a"}, {"mode": "r+"}, {"options": WriteOptions(compute=False)}):
        with pytest.raises(UnsupportedOperation, match=r"call write_dataset|omit compute"):
            await api(planner(api)(dataset, tmp_path / "out", **options))
    with pytest.raises(UnsupportedOperation, match="archive"):
        await api(planner(api)(dataset, stores.ZipStore(tmp_path / "out.zip", mode="w")))
    with pytest.raises(TypeError, match="unexpected keyword argument 'chunks'"):
        plan_write_dataset(dataset, tmp_path / "out", chunks=3)
    assert not (tmp_path / "out").exists()
    plan = await api(planner(api)(dataset, tmp_path / "out"))
    with pytest.raises(UnsupportedOperation, match="no JSON document"):
        plan.to_json()
    assert plan.location == ""
    await api(plan.abandon())
    assert files(tmp_path / "out") == {}


async def test_values_that_are_refused_when_they_are_computed(api: Api, tmp_path: Path):
    dataset = make_dataset()
    dataset["t2m"] = dataset.t2m * 1000
    plan = await api(planner(api)(dataset, out := tmp_path / "out", encoding=ENCODING))
    with pytest.raises(EncodingError, match="t2m"):
        await api(plan.run())
    with pytest.raises(NodeNotFoundError, match="not been run"):
        await api(plan.finish())
    await api((await api(api.open_plan(out))).abandon())  # by another process, which does not have the dataset
    assert files(tmp_path) == {}
    assert not (out / ".ingest").exists()


def test_transactions_are_not_divided(tmp_path: Path):
    pytest.importorskip("icechunk", "2")
    with pytest.raises(UnsupportedOperation, match="would not share a commit; call write_dataset"):
        plan_write_dataset(make_dataset(), f"{tmp_path / 'repository'}|icechunk:")


def test_values_that_are_damaged_on_their_way(tmp_path: Path):
    class Damaging(stores.LocalStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if key.startswith("mask/c"):
                key = "mask/c/9/9"
            return await super().put(key, data, if_version=if_version)

    plan = plan_write_dataset(make_dataset()[["mask"]], Damaging(tmp_path), encoding={"mask": {"fill_value": 1}})
    with pytest.raises(ChecksumError, match="mask"):
        plan.run(verify=True)
