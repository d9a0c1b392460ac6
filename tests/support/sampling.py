"""The options ``--sample`` and ``--slow``: run a fixed part of the tests, or of those that are marked ``slow``."""

from __future__ import annotations

import zlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, default=1, metavar="N", help="run one test out of N, always the same ones")
    parser.addoption(
        "--slow", type=int, default=8, metavar="N", help="run one slow test out of N, always the same ones; 1 for all"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests whose IDs have a checksum divisible by N: the same ones in every process and on every machine."""
    size, slow = config.getoption("sample"), config.getoption("slow")

    def is_kept(item: pytest.Item) -> bool:
        divisor = size * slow if item.get_closest_marker("slow") else size
        return zlib.crc32(item.nodeid.encode()) % divisor == 0

    left_out = [item for item in items if not is_kept(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_kept(item)]
