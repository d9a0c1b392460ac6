"""Tasks of jobs with many files that write to an asynchronous store: the next array is read while the last one is sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.stores.wrappers import WrapperStore

PATIENCE = 30.0


class Meeting(WrapperStore):
    """An asynchronous store that knows which arrays have chunks on their way.

    Args:
        awaited: The number of arrays that must have chunks on their way before one is stored.

    Attributes:
        most: The largest number of arrays that had chunks on their way.
    """

    def __init__(self, awaited: int) -> None:
        super().__init__(stores.MemoryStore())
        self.blocking, self.is_local, self.most = False, False, 0
        self._awaited, self._arrays, self._met = awaited, Counter[str](), asyncio.Event()

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        array = key.partition("/")[0]
        if "/c/" not in key or array == "dim_0":
            return await self.inner.put(key, data, if_version=if_version)
        self._arrays[array] += 1
        self.most = max(self.most, len(self._arrays))
        if self.most >= self._awaited:
            self._met.set()
        try:
            await asyncio.wait_for(self._met.wait(), PATIENCE)
            await asyncio.sleep(0.01)
            return await self.inner.put(key, data, if_version=if_version)
        finally:
            self._arrays -= Counter([array])


@pytest.mark.parametrize(("budget", "together"), [(64 << 20, 2), (1 << 20, 1)])
async def test_arrays_are_written_together_if_memory_suffices(api: Api, tmp_path: Path, budget: int, together: int):
    values = np.random.default_rng(0).random((3, 4, 20, 1000))
    for number, (a, b, c, d) in enumerate(values):
        np.savez(tmp_path / f"{number}.npz", a=a, b=b, c=c, d=d)
    paths, store = sorted(tmp_path.iterdir()), Meeting(together)
    report = await api(
        api.ingest(
            paths, store, concat="dim_0", chunks={"dim_0": 10}, config=za.Config(memory_budget=budget), verify=True
        )
    )
    assert store.most == together
    assert report.verified == report.blocks > 0
    group = sync.open_group(store.inner)
    for number, name in enumerate("abcd"):
        assert np.array_equal(group.get_array(name)[...], values[:, number].reshape(60, 1000))
