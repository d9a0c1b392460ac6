"""Requests of a cancelled call that S3 still works on end before later writes of the same key."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.s3_server import Bucket
from tests.support.shifted_clock import advance_loop
from zarrasync import stores

MANY = 1 << 19  # of int32: more than signed URLs are used for


class Slow:
    """Delays the first request that changes a matching key until ``go`` is set."""

    def __init__(self, bucket: Bucket, key: str = "/c/") -> None:
        self._bucket, self._key = bucket, key
        self.begun, self.go = threading.Event(), threading.Event()
        bucket.fault = self._fault

    def _fault(self, key: str, data: bytes | None) -> None:
        if self._bucket.is_writing and self._key in key and not self.begun.is_set():
            self.begun.set()
            self.go.wait(30)


def store_of(bucket: Bucket, backend: str) -> Any:
    if backend != "zarr-python":
        return stores.resolve("s3://bucket/x", bucket.options(backend=backend))
    zarr, obstore = pytest.importorskip("zarr"), pytest.importorskip("obstore.store")
    s3: Any = obstore.S3Store(
        "bucket", prefix="x", endpoint=bucket.url, access_key_id="k", secret_access_key="s", region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    return zarr.storage.ObjectStore(s3)


async def cancel_and_write(array: za.AsyncArray, slow: Slow, value: int, next_value: int) -> None:
    """Cancel a write while the server delays it, and write another value meanwhile."""
    first = asyncio.create_task(array[...].write(value))
    await asyncio.to_thread(slow.begun.wait, 30)
    first.cancel()
    second = asyncio.create_task(array[...].write(next_value))
    done, _ = await asyncio.wait([first, second], timeout=0.2)
    assert not done  # the server still works on the first, and the second waits for that
    slow.go.set()
    await second
    assert first.cancelled()


@pytest.mark.parametrize("backend", ["obstore", "fsspec", "zarr-python"])
@pytest.mark.parametrize("size", [4, MANY])
async def test_a_later_write_holds(bucket: Bucket, backend: str, size: int):
    array = await za.create_array(
        store_of(bucket, backend), shape=(size,), chunks=(size,), dtype="i4", compressors=None
    )
    await cancel_and_write(array, Slow(bucket), 1, 2)
    assert np.frombuffer(bucket.values["x/c/0"], "i4").tolist() == [2] * size


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
async def test_a_cancelled_erase_ends_before_a_later_write(bucket: Bucket, backend: str):
    array = await za.create_array(store_of(bucket, backend), data=np.ones(4, "i4"), compressors=None)
    await cancel_and_write(array, Slow(bucket, "?delete"), 0, 3)  # the fill value alone, which erases the chunk
    assert (await array[...]).tolist() == [3] * 4


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("stage", ["/c/", "zarr.json"])
async def test_an_append_that_is_cancelled_leaves_nothing(
    bucket: Bucket, backend: str, stage: str, caplog: pytest.LogCaptureFixture
):
    """The reserved rows are given back, during reservation or writing, without reading a chunk."""
    store = store_of(bucket, backend)
    array = await za.create_array(store, data=np.ones(4, "i4"), chunks=(4,))
    slow = Slow(bucket, stage)
    bucket.requested_keys.clear()
    task = asyncio.create_task(array.append(np.full(40, 7, "i4")))
    await asyncio.to_thread(slow.begun.wait, 30)
    task.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "clean-up after a failed call failed" not in caplog.text
    assert (await za.open_array(store)).shape == (4,)
    assert [key for key in bucket.values if key.startswith("x/c/")] == ["x/c/0"]
    assert bucket.requested_keys.count("?delete") == (stage == "/c/")
    chunks = [key for key in bucket.requested_keys if "/c/" in key]
    assert len(chunks) <= 10  # each is stored once and never read
    await array.append(np.full(4, 8, "i4"))
    await array.resize((48,))
    assert (await array[...]).tolist() == [1] * 4 + [8] * 4 + [0] * 40


@pytest.mark.parametrize("again", [True, False])
async def test_cancelled_writers_do_not_wait_forever(bucket: Bucket, again: bool, monkeypatch: pytest.MonkeyPatch):
    """A second cancellation ends the wait, and so does the grace period."""
    array = await za.create_array(store_of(bucket, "obstore"), shape=(4,), dtype="i4")
    slow = Slow(bucket)
    task = asyncio.create_task(array[...].write(1))
    await asyncio.to_thread(slow.begun.wait, 30)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.1)
    assert not done
    if again:
        task.cancel()
    else:
        advance_loop(monkeypatch, 6)
    done, _ = await asyncio.wait([task], timeout=3)
    assert done
    assert task.cancelled()
    slow.go.set()
