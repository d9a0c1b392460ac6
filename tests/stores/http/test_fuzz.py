"""Random changes of valid answers: the right values or an error of zarrasync, in time.

``ZARRASYNC_FUZZ`` is the number of answers per client; a sample runs by default.
"""

from __future__ import annotations

import asyncio
import os
import random

import numpy as np
import pytest

import zarrasync as za
from tests.support.mutations import mutate
from tests.support.raw_answers import answering, chunked, head, sized
from tests.support.web_stores import WAYS, web_store
from zarrasync import stores, sync
from zarrasync.errors import ZarrError

pytestmark = pytest.mark.servers

COUNT = int(os.environ.get("ZARRASYNC_FUZZ", "300"))
SEED = int(os.environ.get("ZARRASYNC_FUZZ_SEED", "1"))
VALUES = np.arange(5, dtype="u1")


def answers(values: bytes) -> list[bytes]:
    """Return valid answers that contain a value."""
    size = len(values)
    return [
        sized(body=values),
        sized("Server: x", 'ETag: "a"', "Date: Tue, 01 Jul 2025 12:00:00 GMT", "Retry-After: 3", body=values),
        sized(f"Content-Range: bytes 0-{size - 1}/{size}", body=values, status="HTTP/1.1 206 Partial Content"),
        chunked(b"%x;a=b\r\n%s\r\n" % (size, values), trailers=b"X: y\r\n"),
        chunked(*(b"1\r\n%c\r\n" % byte for byte in values)),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + sized(body=values),
        head("Connection: close") + values,
    ]


@pytest.mark.parametrize("client", [*WAYS, "sync"])
async def test_changed_answers(client: str):
    """A checksum tells other bytes, and absence is an error, so that no change of an answer leads to other values."""
    stored: dict[str, bytes] = {}
    sync.create_array(stored, data=VALUES, compressors="crc32c")
    messages = answers(bytes(stored["c/0"]))
    chance = random.Random(SEED)
    current, closes = b"", True

    def answer(request: bytes) -> tuple[bytes, bool]:
        if b"/zarr.json " in request:
            return sized(body=bytes(stored["zarr.json"])), False
        return current, closes

    results = {"values": 0, "errors": 0}
    async with answering(answer) as url:
        with za.config.set(request_timeout=0.5, total_timeout=2.0):
            for number in range(COUNT):
                current, closes = mutate(messages, chance), chance.random() < 0.98
                store = web_store("lean" if client == "sync" else client, url)
                try:
                    async with asyncio.timeout(5):
                        values = await (read_sync if client == "sync" else read_async)(store)
                except ZarrError:
                    results["errors"] += 1
                except Exception as error:
                    error.add_note(f"answer {number} of seed {SEED}: {current[:2000]!r}")
                    raise
                else:
                    assert values.tobytes() == VALUES.tobytes(), (number, current)
                    results["values"] += 1
                finally:
                    await store.close()
    assert min(results.values()) > COUNT // 20, results


async def read_async(store: stores.Store) -> np.ndarray:
    array = await za.open_array(store, zarr_format=3)
    return np.asarray(await array.view[...].read(missing="error"))


async def read_sync(store: stores.Store) -> np.ndarray:
    return await asyncio.to_thread(
        lambda: np.asarray(sync.open_array(store, zarr_format=3).view[...].read(missing="error"))
    )
