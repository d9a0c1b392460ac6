"""Shards that are replaced or erased while they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

import zarrasync as za
from tests.support.api import Api
from tests.support.gated_store import GatedStore
from zarrasync import stores, sync
from zarrasync.stores import MemoryStore, WrapperStore


def test_a_rewritten_shard_is_not_read_torn(tmp_path):
    """A shard that is replaced between the requests for its index and its chunks is read again."""
    one, two = np.full((64, 64), 1.0), np.random.default_rng(0).random((64, 64))
    options: dict[str, Any] = {"chunks": (8, 8), "shards": (64, 64), "compressors": "gzip"}
    for place in (tmp_path, {}):
        target = sync.create_array(place, data=one, **options)

        class Meddling(WrapperStore):
            count = 0

            async def fetch(self, requests, *, versions=False):
                values = await self.inner.fetch(requests, versions=versions)
                if any(request.suffix for request in requests):
                    Meddling.count += 1
                    target[...] = two
                return values

        a = sync.open_array(Meddling(stores.resolve(place)))
        np.testing.assert_array_equal(a[0:8], two[0:8])
        assert Meddling.count == 1
        target[...] = one


async def test_a_nested_shard_that_vanishes_while_it_is_read():
    """If the inner index is missing, the value is read again instead of being skipped."""
    from zarrasync.codecs import BytesCodec, CodecChain, ShardingCodec

    nested = ShardingCodec((2,), CodecChain.of([BytesCodec("little")]))
    inner = MemoryStore()
    a = await za.create_array(inner, data=np.arange(1, 17), chunks=8, shards=16, serializer=nested, compressors=None)

    class Vanishing(GatedStore):
        count = 0

        async def fetch(self, requests, *, versions=False):
            values = await super().fetch(requests, versions=versions)
            if any(request.suffix for request in requests):
                inner.values.pop("c/0", None)
            return values

    out = np.full(2, -99)
    await (await za.open_array(Vanishing(inner)))[3:5].read(out=out)
    assert out.tolist() == [0, 0]
    assert a.shape == (16,)


async def test_the_index_of_a_replaced_shard_is_forgotten(api: Api):
    """The next read fetches the new index, and the one after it a chunk alone."""
    values: dict[str, bytes] = {}
    store = stores.CountingStore(stores.MemoryStore(values))
    writer = await api(api.create_array(values, data=np.arange(65536.0), chunks=(16,), shards=(65536,)))
    reader = await api(api.open_array(store))
    assert (await api(reader.get_basic_selection(slice(16, 18)))).tolist() == [16, 17]
    replacement = np.random.default_rng(0).random(65536)
    await api(writer.set_basic_selection(..., replacement))
    most = [len(values["c/0"]) * 2, 16 * 4096 + 1024, 1024]
    for nbytes in most:
        store.reset()
        np.testing.assert_array_equal(await api(reader.get_basic_selection(slice(16, 18))), replacement[16:18])
        assert store.counts.bytes_read < nbytes
