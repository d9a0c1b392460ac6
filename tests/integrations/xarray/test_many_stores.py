"""``open_mfdataset`` opens all stores at the same time, and is otherwise xarray's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.wave_store import WaveStore
from zarrasync import stores, sync
from zarrasync.errors import MetadataError, NodeNotFoundError

xr: Any = pytest.importorskip("xarray")
pytest.importorskip("zarr")
pytest.importorskip("dask")
from zarrasync.integrations.xarray import WriteOptions, open_mfdataset, write_dataset  # after the skip


def day(number: int) -> Any:
    times = np.datetime64("2000-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D") + np.timedelta64(4 * number, "D")
    values = {"v": (("time", "x"), np.full((4, 3), number + 0.5)), "w": ("x", np.arange(3))}
    return xr.Dataset(values, {"time": times, "x": np.arange(3.0)}, {"number": number})


OPTIONS: dict[str, Any] = {"data_vars": "minimal", "join": "outer", "compat": "override", "coords": "minimal"}


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = [str(tmp_path / f"{number}.zarr") for number in range(4)]
    for number, path in enumerate(found):
        write_dataset(day(number), path)
    return found


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("consolidated", [False, True])
def test_the_number_of_stores_does_not_matter(count: int, consolidated: bool):
    memories = [stores.MemoryStore() for _ in range(count)]
    for number, memory in enumerate(memories):
        write_dataset(day(number), memory, group="a", options=WriteOptions(consolidated=consolidated))
    # All requests through one store, whose waves are those of all of them.
    together = WaveStore(
        stores.MemoryStore(
            {f"{number}/{key}": value for number, memory in enumerate(memories) for key, value in memory.values.items()}
        )
    )
    parts = [stores.PrefixStore(together, f"{number}/") for number in range(count)]
    dataset = open_mfdataset(parts, group="a", **OPTIONS)
    assert len(together.take()) == (2 if consolidated else 3)
    xr.testing.assert_identical(dataset.load(), xr.concat([day(n) for n in range(count)], "time", **OPTIONS))


def test_datasets_are_combined_by_a_scalar_without_more_round_trips():
    together = WaveStore(stores.MemoryStore())
    parts = [stores.PrefixStore(together, f"{number}/") for number in range(6)]
    for number, part in enumerate(parts):
        dataset = xr.Dataset({"v": ("x", np.full(3, number))}, {"x": np.arange(3), "run": number, "crs": 0})
        write_dataset(dataset, part, options=WriteOptions(consolidated=False))
    together.take()
    opened = open_mfdataset(parts, combine="nested", concat_dim="run", **OPTIONS)
    assert len(together.take()) == 3
    assert opened.run.values.tolist() == list(range(6))
    assert opened.v.shape == (6, 3)


@pytest.mark.parametrize("kind", [str, Path, stores.LocalStore])
def test_it_equals_the_one_of_xarray(paths: list[str], kind: Any):
    given = [kind(path) for path in paths]
    theirs = xr.open_mfdataset(given, engine="zarrasync", **OPTIONS)
    with open_mfdataset(given, **OPTIONS) as ours:
        assert ours.chunks == theirs.chunks
        xr.testing.assert_identical(ours.load(), theirs.load())
        assert ours.encoding.get("source") == theirs.encoding.get("source")


def test_arguments_are_passed_on(paths: list[str], tmp_path: Path):
    sources = []

    def add_one(dataset: Any) -> Any:
        sources.append(dataset.encoding["source"])
        return dataset + 1

    nested: dict[str, Any] = {"combine": "nested", "concat_dim": ["run", "time"], **OPTIONS, "data_vars": "all"}
    opened = open_mfdataset([paths[:2], paths[2:]], preprocess=add_one, drop_variables="w", **nested)
    assert sources == paths
    assert opened.v.shape == (2, 16, 3)  # joined
    assert "w" not in opened
    assert float(opened.v[0, 0, 0]) == 1.5
    assert open_mfdataset(paths, attrs_file=paths[2], **OPTIONS).attrs == {"number": 2}
    assert open_mfdataset(str(tmp_path / "*.zarr"), **OPTIONS).sizes["time"] == 16
    nested["concat_dim"] = "time"
    whole = open_mfdataset(paths, chunks={"time": -1}, decode_times=False, parallel=True, **nested)
    assert whole.v.chunks == ((4, 4, 4, 4), (3,))
    assert whole.time.dtype == np.int64
    options = {"consolidated": False, "storage_options": {}}
    assert open_mfdataset([f"file://{path}" for path in paths], backend_kwargs=options, **OPTIONS).sizes["time"] == 16


def test_two_opens_have_the_same_tasks_unless_the_arrays_changed(paths: list[str]):
    from dask.base import tokenize

    first, second = (open_mfdataset(paths, **OPTIONS) for _ in range(2))
    assert tokenize(first.v.data) == tokenize(second.v.data)
    sync.open_array(paths[3], path="v", mode="r+").update_attributes({"changed": True})
    sync.consolidate_metadata(paths[3])
    assert tokenize(open_mfdataset(paths, **OPTIONS).v.data) != tokenize(first.v.data)


def test_stores_that_cannot_be_opened(paths: list[str]):
    missing = os.path.join(os.path.dirname(paths[0]), "missing.zarr")
    broken = os.path.join(os.path.dirname(paths[0]), "broken.zarr")
    sync.create_group(broken).create_array("v", data=[1.0], attributes={"_FillValue": {"a": 1}})
    given = [paths[0], missing, broken, *paths[1:]]
    with pytest.raises(NodeNotFoundError, match=r"missing\.zarr"):
        open_mfdataset(given, **OPTIONS)
    with pytest.raises(MetadataError, match="_FillValue"):
        open_mfdataset(given[2:], **OPTIONS)
    assert open_mfdataset(given, errors="ignore", **OPTIONS).sizes["time"] == 16
    with pytest.warns(UserWarning, match=r"missing\.zarr"):
        open_mfdataset(given[:2], errors="warn", **OPTIONS)
    with pytest.raises(OSError, match="no files"):
        open_mfdataset([])
