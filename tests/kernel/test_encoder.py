"""Encoding shards in memory with the kernel: the same bytes and the same errors as without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zarrasync as za
from tests.kernel.test_library import needs_kernel
from tests.kernel.test_read import CHECKS, CHUNKS, EXAMPLES, LAYOUTS, SHAPE, outcome
from tests.kernel.test_write import write_both
from tests.property.strategies import SEEDS, array_options
from zarrasync import stores, sync
from zarrasync.codecs.sharding import BoundSharding
from zarrasync.errors import CodecError
from zarrasync.transfer.kernel import write as kernel_write

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
VALUES = np.random.default_rng(0).integers(1, 99, SHAPE).cumsum(0).astype("i4")
VALUES[20:40, 30:60] = 7
SHARDED = {name: options for name, options in LAYOUTS.items() if "shards" in options}


def make(store: stores.Store, native: str, **options: Any) -> sync.Array:
    return sync.create_array(
        store, dtype="i4", shape=SHAPE, chunks=CHUNKS, fill_value=7, config={"native": native}, **options
    )


def content(store: stores.MemoryStore) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in store.values.items()}


@pytest.fixture(params=SHARDED)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SHARDED[request.param]


def test_stored_values_are_the_same(layout: dict[str, Any]):
    found = []
    for native in ("require", "off"):
        store = stores.MemoryStore()
        array = make(store, native, **layout)
        array[...] = VALUES
        array[5:44, :] = 3
        array[20:50, 15:45] = VALUES[20:50, 15:45][::-1, ::-1]
        array[40:60, 0:75] = 7
        array[1:60:3, 5] = 9
        array.oindex[[0, 9, 33], 3:70] = VALUES[:3, 3:70]
        array[0:20, 0:30] = np.asfortranarray(VALUES[20:40, 0:30])
        array[0:20, 0:30] = np.float64(2.7)
        found.append(content(store))
    assert found[0] == found[1]


@given(array_options(), SEEDS, st.data())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=CHECKS)
def test_random_writes(options: dict[str, Any], seed: int, data: st.DataObject):
    places = {native: stores.MemoryStore() for native in ("require", "off")}
    write_both(places.__getitem__, options, seed, data)
    assert content(places["require"]) == content(places["off"])


def fail(*arguments: Any, **named: Any) -> None:
    raise AssertionError(arguments)


def test_only_the_kernel_encodes(layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Also parts of shards, in synchronous and in asynchronous calls."""
    store, expected, part = stores.MemoryStore(), VALUES.copy(), (slice(5, 44), slice(3, 70))
    array = make(store, "require", **layout)
    for name in ("encode", "merge"):
        monkeypatch.setattr(BoundSharding, name, fail)
    array[...] = expected
    array[part] = expected[part] = VALUES[part][::-1]
    assert np.array_equal(array[...], expected)

    async def write() -> Any:
        array = await za.open_array(store, mode="r+", config=za.Config(native="require"))
        await array.setitem(part, VALUES[part])
        return await array.view.read()

    assert np.array_equal(asyncio.run(write()), VALUES)
    with pytest.raises(AssertionError):
        make(stores.MemoryStore(), "off", **layout)[...] = VALUES


def test_an_object_store(s3: tuple[str, dict[str, Any]], layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    url, options = s3
    array = sync.create_array(
        f"{url}/encoder", data=VALUES, chunks=CHUNKS, storage_options=options, overwrite=True, **layout
    )
    monkeypatch.setattr(BoundSharding, "merge", fail)
    array[5:44, 3:70] = expected = VALUES[5:44, 3:70][::-1]
    assert np.array_equal(array[5:44, 3:70], expected)
    assert np.array_equal(array[:5], VALUES[:5])


@pytest.mark.parametrize(
    "change", [lambda data: b"", lambda data: data[:7], lambda data: data[: len(data) // 2],
               lambda data: data[:-6] + b"abcdef", lambda data: b"\0" * len(data)],
)  # fmt: skip
def test_damaged_shards(change: Callable[[bytes], bytes], layout: dict[str, Any]):
    """Python looks at a damaged shard again, and explains what is wrong. The shard stays as it is."""
    found = []
    for native in ("require", "off"):
        store = stores.MemoryStore()
        array = make(store, native, **layout)
        array[...] = VALUES
        key = "c/0/0"
        store.values[key] = damaged = change(bytes(store.values[key]))
        found.append(outcome(lambda: array.__setitem__((slice(3, 5), slice(0, 9)), 1)))  # called at once
        found.append(bytes(store.values[key]) == damaged)
    assert found[:2] == found[2:]


def test_another_write_before_the_result_is_copied(monkeypatch: pytest.MonkeyPatch):
    """A signal handler, or a finalizer, may write at any moment on the same thread."""
    one, other = (make(stores.MemoryStore(), "require", shards=(20, 30), compressors=None) for _ in range(2))

    class Interrupted:
        """NumPy, whose first new array is interrupted by another write."""

        is_first = True

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def empty(self, *arguments: Any) -> np.ndarray:
            if Interrupted.is_first:
                Interrupted.is_first = False
                other[...] = -VALUES
            return np.empty(*arguments)

    monkeypatch.setattr(kernel_write, "np", Interrupted())
    one[...] = VALUES
    assert np.array_equal(one[...], VALUES)
    assert np.array_equal(other[...], -VALUES)


def test_an_encoded_shard_that_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    class Small:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def empty(self, *arguments: Any) -> np.ndarray:
            raise MemoryError

    array = make(stores.MemoryStore(), "require", shards=(20, 30))
    with monkeypatch.context() as patch:
        patch.setattr(kernel_write, "np", Small())
        with pytest.raises(CodecError, match="fit into memory"):
            array[...] = VALUES
    array[...] = VALUES
    assert np.array_equal(array[...], VALUES)
