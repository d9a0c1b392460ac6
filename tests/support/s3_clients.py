"""Backends of S3, the clients that make their requests, and requests that fail."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.support.s3_server import VALUES, Answer, Bucket, Fault
from zarrasync import sync

BACKENDS = ["obstore", "fsspec"]

LEAN, OBSTORE = ("zarrasync", True), ("object_store", False)


def clients_of(bucket: Bucket, store: Any, **options: Any) -> set[tuple[str, bool]]:
    """Return the clients that make requests while a whole array is read."""
    bucket.clients.clear()
    np.testing.assert_array_equal(sync.open_array(store, **options)[...], VALUES)
    return set(bucket.clients)


def failing(kind: str, share: float, *, seed: int) -> Fault:
    """Return a fault that a share of the requests meets: a status 503, or a connection that is ``reset`` or ``cut``."""
    chance = random.Random(seed)
    slow_down = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"

    def fault(key: str, data: bytes | None) -> Answer | str | None:
        if chance.random() > share:
            return None
        return (503, {"Content-Type": "application/xml"}, slow_down) if kind == "503" else kind

    return fault
