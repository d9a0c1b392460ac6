"""Shards in which several inner chunks are the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from zarrasync import sync


@needs_kernel
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("native", ["off", "require"])
def test_inner_chunks_may_share_bytes(tmp_path, order, native):
    """A part of another inner chunk is read between two reads of the same bytes."""
    values = np.random.default_rng(0).integers(1, 1000, (1200, 512)).astype("i4")
    values[300:600, :256] = values[:300, :256]
    index = {"index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    codec = {"name": "transpose", "configuration": {"order": [1, 0]}}
    inner = [*([codec] if order == "F" else []), {"name": "bytes", "configuration": {"endian": "little"}}]
    sharding = {"chunk_shape": [300, 256], "codecs": inner, **index}
    array = sync.create_array(
        tmp_path,
        shape=values.shape,
        dtype="i4",
        chunks=values.shape,
        serializer={"name": "sharding_indexed", "configuration": sharding},
        compressors=None,
        config=za.Config(native=native, threads=1),
    )
    array[...] = values
    (shard,) = (path for path in (tmp_path / "c").rglob("*") if path.is_file())
    content = bytearray(shard.read_bytes())
    entries = memoryview(content)[-8 * 16 :]
    entries[32:48] = entries[:16]
    shard.write_bytes(content)
    for selection in ((slice(None), slice(20, 356)), (slice(20, 1100), slice(None)), (..., slice(150, 500))):
        np.testing.assert_array_equal(array[selection], values[selection])
