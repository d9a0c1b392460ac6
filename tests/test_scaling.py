"""Work grows in proportion to the number of nodes and chunks. ``benchmarks/scaling.py`` measures the same in seconds."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.scaling import TASKS, Task, count
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.stores.values import KeyIndex

pytestmark = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.11 cannot count calls on all threads")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_four_times_as_many_take_four_times_the_work(task: Task, tmp_path: Path):
    task.make(tmp_path, 4)()  # imports and caches
    few, many = (count(task.make(tmp_path, n)) for n in (50, 200))
    assert many < 5 * few


@pytest.mark.slow
async def test_100_000_nodes_in_consolidated_metadata(api: Api):
    copies = {f"g{i}": {"zarr_format": 3, "node_type": "group", "attributes": {}} for i in range(100_000)}
    inline = {"kind": "inline", "must_understand": False, "metadata": copies}
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": inline}
    group = await api(api.open_group({"zarr.json": json.dumps(document).encode()}))
    begin = time.process_time()
    assert len(await api(group.members(None))) == 100_000
    assert str(await api(group.tree())).count("\n") == 100_000
    assert time.process_time() - begin < 30  # a quadratic walk takes minutes


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_change_does_not_parse_the_copies_of_other_nodes(zarr_format: int):
    calls = []
    for n in (100, 400):
        store = stores.MemoryStore()
        sync.create_group(store, zarr_format=zarr_format)
        array = {"shape": (1,), "dtype": "u1", "attributes": {"units": "K"}}
        sync.create_hierarchy(store, {f"a{i}": array for i in range(n)}, zarr_format=zarr_format)
        group = sync.consolidate_metadata(store)
        group["a0"].update_attributes({"first": True})  # parses the copies
        member = group["a1"]
        calls.append(count(partial(member.update_attributes, {"x": 1})))
    assert calls[1] - calls[0] < 300 * 25


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/", "x/", "a.b/"])
def test_listings_of_an_index(prefix: str):
    keys = ["a/b/c", "a", "a/d", "a.b/c", "a0", "a/b/e", "b/c/d", "a!/x", "é/ü", "a/b.c", "a/b0/d", "a/\U0001f600/x"]
    index = KeyIndex(keys)
    below = sorted(key for key in keys if key.startswith(prefix))
    assert index.list_prefix(prefix) == below
    names = [key[len(prefix) :].partition("/") for key in below]
    listing = index.list_dir(prefix)
    assert listing.keys == tuple(sorted(prefix + name for name, slash, _ in names if not slash))
    assert listing.prefixes == tuple(sorted({f"{prefix}{name}/" for name, slash, _ in names if slash}))
