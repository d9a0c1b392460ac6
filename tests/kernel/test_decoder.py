"""Decoding values in memory with the kernel: the same values and the same errors as without it."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from tests.support.covering import covering
from zarrasync import stores, sync
from zarrasync.codecs import decompression
from zarrasync.errors import ZarrError

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
VALUES = np.random.default_rng(0).integers(0, 999, (40, 60))


def make(dtype: str, element: int) -> tuple[stores.MemoryStore, np.ndarray]:
    """Return a store with an array whose chunks are shuffled, and its values."""
    values, store = VALUES.astype(dtype), stores.MemoryStore()
    filters: list[Any] = [{"id": "shuffle", "elementsize": element}]
    options: dict[str, Any] = {"filters": filters, "compressors": {"id": "zlib", "level": 1}, "zarr_format": 2}
    sync.create_array(store, data=values, chunks=(8, 60), **options)
    return store, values


@pytest.mark.parametrize(("element", "dtype"), covering([1, 2, 3, 4, 8, 16], ["i2", "<f4", ">f4", "f8"], strength=1))
def test_shuffled_values(dtype: str, element: int):
    store, values = make(dtype, element)
    for native in ("require", "off"):
        config = za.Config(native=native)
        array = sync.open_array(store, config=config)
        for key in (np.s_[...], np.s_[3:30, ::7]):
            found = array[key]
            assert np.array_equal(found, values[key])
            assert found.dtype == values.dtype.newbyteorder("=")


def test_only_the_kernel_decodes(monkeypatch: pytest.MonkeyPatch):
    store, values = make("f4", 4)

    def fail(*arguments: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(decompression, "_unshuffle", fail)

    async def read() -> Any:
        array = await za.open_array(store, config=za.Config(native="require"))
        return await array.view.read()

    assert np.array_equal(asyncio.run(read()), values)
    assert np.array_equal(sync.open_array(store, config=za.Config(native="require"))[...], values)
    with pytest.raises(AssertionError):
        sync.open_array(store, config=za.Config(native="off"))[...]


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data[:-4] + b"abcd", lambda data: data[:99], lambda data: b"",
               lambda data: zlib.compress(b"\0" * 8 * 60 * 4 + b"\0"), lambda data: zlib.compress(b"\0" * 99)],
)  # fmt: skip
def test_damaged_values(change: Any):
    """Python decodes a damaged value again, and explains what is wrong."""
    store, values = make("f4", 4)
    asyncio.run(store.put("2.0", change(zlib.compress(values[16:24].tobytes()))))
    messages = []
    for native in ("require", "off"):
        config = za.Config(native=native)
        with pytest.raises(ZarrError) as caught:
            sync.open_array(store, config=config)[...]
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
    assert "2.0" in messages[0][1]
