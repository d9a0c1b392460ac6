"""Errors of documents with large values."""

from __future__ import annotations

import json

import pytest

from zarrasync import sync
from zarrasync.errors import MetadataError

LARGE = "x" * (1 << 20)


@pytest.mark.parametrize(
    ("key", "document"),
    [
        (".zmetadata", {"zarr_consolidated_format": LARGE, "metadata": {}}),
        (".zarray", {"zarr_format": 2, "shape": LARGE, "dtype": "<i4", "chunks": [1], "fill_value": 0, "order": "C"}),
        ("zarr.json", {"zarr_format": 3, "node_type": LARGE}),
    ],
)
def test_messages_stay_short(key: str, document: object):
    store = {key: json.dumps(document).encode()}
    if key == ".zmetadata":
        store[".zgroup"] = b'{"zarr_format": 2}'
    with pytest.raises(MetadataError) as caught:
        sync.open(store, use_consolidated=True if key == ".zmetadata" else None)
    assert len(str(caught.value)) < 5000
