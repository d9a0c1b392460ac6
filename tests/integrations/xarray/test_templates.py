"""``compute=False``: a template is written at once, and the values of dask variables later."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import sync

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
dask = pytest.importorskip("dask")
from dask.delayed import Delayed  # after the skip

from zarrasync.integrations.xarray import (  # after the skip
    WriteOptions,
    WriteReport,
    write_dataset,
    write_dataset_async,
)

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 24


def whole(*, lazy: bool = True) -> Any:
    values = np.arange(ROWS * 5.0).reshape(ROWS, 5)
    given = xr.Dataset({"a": (("t", "x"), values), "b": ("t", values[:, 0] + 0.5)}, {"t": np.arange(ROWS)})
    area = xr.DataArray(np.arange(5.0), dims="x")
    return (given.chunk(t=4) if lazy else given).assign(area=area)


def chunk_keys(store: Any) -> set[str]:
    return {key for key in store if "/c/" in key}


@pytest.mark.parametrize("verify", [False, True])
async def test_a_template_and_a_computation(verify: bool):
    store: dict[str, bytes] = {}
    encoding = {"a": {"chunks": (6, 5)}}
    later = await write_dataset_async(
        whole(), store, options=WriteOptions(compute=False), encoding=encoding, verify=verify
    )
    assert isinstance(later, Delayed)
    assert chunk_keys(store) == {"t/c/0", "area/c/0"}  # values in memory
    template = xr.open_dataset(store, engine="zarrasync", consolidated=True).load()
    assert template.sizes == {"t": ROWS, "x": 5}
    assert np.isnan(template.a).all()
    report = later.compute()
    assert isinstance(report, WriteReport)
    assert set(report) == {"a", "b", "t", "area"}
    assert (report["a"].blocks, report["a"].verified) == (4, 4 if verify else 0)
    xr.testing.assert_identical(xr.open_dataset(store, engine="zarrasync").load(), whole(lazy=False))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("scheduler", "verify"), [("threads", False), ("threads", True), ("processes", False), ("distributed", True)]
)
def test_the_report_of_a_computation(tmp_path: Path, scheduler: str, verify: bool):
    """The counts of all processes together, as those of a write at once."""
    with contextlib.ExitStack() as stack:
        if scheduler == "distributed":
            distributed = pytest.importorskip("distributed")
            options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
            cluster = stack.enter_context(distributed.LocalCluster(**options))
            stack.enter_context(distributed.Client(cluster))
        expected = write_dataset(whole(), tmp_path / "now", verify=verify)
        later = write_dataset(whole(), tmp_path / "later", options=WriteOptions(compute=False), verify=verify)
        report = later.compute() if scheduler == "distributed" else later.compute(scheduler=scheduler)
    for name in ("a", "b"):
        stored = sum(path.stat().st_size for path in (tmp_path / "later" / name / "c").rglob("*") if path.is_file())
        assert report[name].stored == expected[name].stored == stored
        assert report[name].requests == expected[name].requests >= report[name].blocks * (1 + verify)
        assert (report[name].blocks, report[name].nbytes) == (expected[name].blocks, expected[name].nbytes)
        assert report[name].seconds > 0
        assert report[name].rate > 0


def test_tasks_that_variables_share_are_computed_once():
    da = pytest.importorskip("dask.array")
    calls: list[int] = []

    def shared(block: Any) -> Any:
        calls.append(1)
        return block

    source = da.map_blocks(shared, da.ones((8, 4), chunks=(2, 4)), meta=np.empty((0, 0)))
    given = xr.Dataset({"a": (("t", "x"), source), "b": (("t", "x"), source * 2), "c": ("t", source.sum(axis=1))})
    later = write_dataset(given, {}, options=WriteOptions(compute=False))
    assert not calls
    later.compute()
    assert len(calls) == 4


def test_several_are_computed_together(tmp_path: Path):
    given = whole()
    first = write_dataset(given, tmp_path / "first", options=WriteOptions(compute=False))
    second = write_dataset(given * 2, tmp_path / "second", options=WriteOptions(compute=False))
    reports = dask.compute(first, second)
    assert [type(report) for report in reports] == [WriteReport, WriteReport]
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "second", engine="zarrasync").load(), whole(lazy=False) * 2)


@pytest.mark.parametrize("mode", ["append", "region", "tree", "memory"])
def test_other_writes_that_are_computed_later(mode: str):
    store: dict[str, bytes] = {}
    if mode == "append":
        write_dataset(whole(lazy=False), store)
        later = write_dataset(whole(), store, append_dim="t", on_duplicate="allow", options=WriteOptions(compute=False))
        assert sync.open_array(store, path="a").shape == (2 * ROWS, 5)
    elif mode == "region":
        write_dataset(whole(lazy=False) * 0, store, encoding={"a": {"chunks": (4, 5)}, "b": {"chunks": (4,)}})
        part = whole().isel(t=slice(4, 12)).drop_vars(["t", "area"])
        later = write_dataset(part, store, region={"t": slice(4, 12)}, options=WriteOptions(compute=False))
        assert not sync.open_array(store, path="a")[...].any()
    elif mode == "tree":
        later = write_dataset(
            xr.DataTree.from_dict({"/": whole(), "/g": whole() * 2}), store, options=WriteOptions(compute=False)
        )
    else:
        later = write_dataset(whole(lazy=False), store, options=WriteOptions(compute=False))
    assert isinstance(later.compute(), WriteReport)
    found = sync.open_array(store, path="g/a" if mode == "tree" else "a")[...]
    expected = whole(lazy=False).a.values
    if mode == "append":
        expected = np.concatenate([expected] * 2)
    elif mode == "tree":
        expected = expected * 2
    np.testing.assert_array_equal(found[4:12], expected[4:12])
    assert mode == "region" or (found == expected).all()


@pytest.mark.processes
def test_a_computation_elsewhere(tmp_path: Path):
    """The object can be sent to a cluster, unless the store exists only in this process."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        later = write_dataset(whole(), tmp_path / "x", options=WriteOptions(compute=False), verify=True)
        assert client.compute(later).result()["a"].verified == 6
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "x", engine="zarrasync").load(), whole(lazy=False))


# ------------------------------------------------------------------ many processes

SCRIPT = """
import os, signal, sys
from tests.integrations.xarray.test_templates import WriteOptions, whole, write_dataset
path, start, stop, kill = sys.argv[1], *map(int, sys.argv[2:5])
def interrupt(block, block_info=None):
    if kill and block_info[0]["array-location"][0][0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return block
part = whole().isel(t=slice(start, stop)).drop_vars("area")
part["a"] = part.a.copy(data=part.a.data.map_blocks(interrupt, meta=part.a.data._meta))
write_dataset(part, path, region="auto", options=WriteOptions(chunkmanager_store_kwargs={"scheduler": "synchronous"}))
"""


def start_writer(path: Path, start: int, stop: int, *, kill: bool = False) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", SCRIPT, str(path), str(start), str(stop), str(int(kill))]
    return subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.processes
def test_regions_of_processes_one_of_which_is_killed(tmp_path: Path):
    """Regions of 5 rows share chunks, which the locks of local files protect."""
    path, step = tmp_path / "x.zarr", 5
    write_dataset(
        whole(), path, options=WriteOptions(compute=False), encoding={"a": {"chunks": (6, 5)}, "b": {"chunks": (6,)}}
    )
    parts = [(start, min(start + step, ROWS)) for start in range(0, ROWS, step)]
    writers = [start_writer(path, *part, kill=number == 1) for number, part in enumerate(parts)]
    results = [writer.wait(120) for writer in writers]
    assert results[1] == -signal.SIGKILL
    assert not any(result for number, result in enumerate(results) if number != 1)
    xr.open_dataset(path, engine="zarrasync").load()  # all chunks can be read
    assert start_writer(path, *parts[1]).wait(120) == 0
    xr.testing.assert_identical(xr.open_dataset(path, engine="zarrasync").load(), whole(lazy=False))
