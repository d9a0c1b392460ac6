"""A pytest plugin for zarr-python's own tests: runs a sample of them, and marks those that are expected to fail.

It is loaded by its file name, because zarr-python's tests are a package named ``tests`` as well. ``DIFFERENCES`` in the
environment is the path of the list of expected failures, ``SAMPLE`` the number N if one test out of N runs.
"""

from __future__ import annotations

import os
import tomllib
import zlib
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    size = int(os.environ["SAMPLE"])
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % size == 0]
    differences = tomllib.loads(Path(os.environ["DIFFERENCES"]).read_text())["difference"]
    reasons = {name: entry["reason"] for entry in differences for name in entry["tests"]}
    for item in items:
        name = item.nodeid.removeprefix("tests/").partition("[")[0]
        if name in reasons:
            item.add_marker(pytest.mark.xfail(reason=reasons[name], strict=False))
