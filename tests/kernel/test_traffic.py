"""Files that the kernel reads and writes are counted like those that Python reads and writes."""

from __future__ import annotations

import numpy as np
import pytest

from zarrasync import config, stores, sync

VALUES = np.arange(1, 1_000_001, dtype="i4").reshape(1000, 1000)
LAYOUTS = {
    "chunks": {"chunks": (100, 100)},
    "raw": {"chunks": (100, 100), "compressors": None},
    "flat names": {"chunks": (100, 100), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "shards": {"chunks": (50, 50), "shards": (500, 500)},
    "several shapes": {"chunks": [[100, 200, 700], [500, 500]]},
}


def traffic(native: str, folder, layout):
    """Return the counts of a write, and of reads of all, of absent chunks and of points."""
    store = stores.CountingStore(stores.LocalStore(folder / native))
    with config.set(native=native):
        array = sync.create_array(store, shape=VALUES.shape, dtype="i4", **layout)
        store.reset()
        array[...] = VALUES
        counts = {"write": store.reset()}
        np.testing.assert_array_equal(array[...], VALUES)
        counts["read"] = store.reset()
        array[:500, :500] = 0
        store.reset()
        assert array[:600, 7].sum() == VALUES[500:600, 7].sum()
        counts["absent"] = store.reset()
        assert array[3, 4] == 0
        counts["element"] = store.reset()
    return counts


@pytest.mark.parametrize("name", LAYOUTS)
def test_counts_are_those_of_python(name, tmp_path):
    found, expected = (traffic(native, tmp_path, LAYOUTS[name]) for native in ("require", "off"))
    assert found["write"] == expected["write"]
    assert found["write"].puts == (4 if name == "shards" else 6 if name == "several shapes" else 100)
    assert found["element"] == expected["element"]
    for task in ("read", "absent"):
        assert found[task].absent == expected[task].absent
        if name != "shards":  # whose inner chunks Python joins to fewer ranges
            assert found[task].fetches == expected[task].fetches
    assert found["read"].bytes_read == expected["read"].bytes_read


def test_counting_stores_around_each_other_count_alike(tmp_path):
    inner = stores.CountingStore(stores.LocalStore(tmp_path))
    outer = stores.CountingStore(stores.PrefixStore(inner, "a/"))
    sync.create_array(outer, data=VALUES, chunks=(100, 100))[5, 5:9]
    assert outer.counts == inner.counts
    assert outer.counts.puts > 100


def test_methods_of_subclasses_are_not_bypassed(tmp_path):
    stored = []

    class Noting(stores.CountingStore):
        async def put_values(self, keys, values):
            stored.extend(keys)
            await super().put_values(keys, values)

    sync.create_array(Noting(stores.LocalStore(tmp_path)), data=VALUES, chunks=(100, 1000), name="a")
    assert len([key for key in stored if "/c/" in key]) == 10


def test_each_operation_is_traced(tmp_path):
    events = []
    store = stores.TracingStore(stores.LocalStore(tmp_path), on_event=events.append)
    sync.create_array(store, data=VALUES, chunks=(100, 1000), name="a")
    assert len([key for event in events if event.operation == "put" for key in event.keys]) >= 10
