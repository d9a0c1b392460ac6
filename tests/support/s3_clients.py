"""Backends of S3, and which client makes their requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.s3_server import VALUES, Bucket
from zarrasync import sync

BACKENDS = ["obstore", "fsspec"]

LEAN, OBSTORE = ("zarrasync", True), ("object_store", False)


def clients_of(bucket: Bucket, store: Any, **options: Any) -> set[tuple[str, bool]]:
    """Who asks, if all is read."""
    bucket.clients.clear()
    np.testing.assert_array_equal(sync.open_array(store, **options)[...], VALUES)
    return set(bucket.clients)
