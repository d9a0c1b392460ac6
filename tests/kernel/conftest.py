"""The tests of the kernel use it, also in a run in which the setting ``native`` is off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import zarrasync as za


@pytest.fixture
def kernel_in_use() -> Iterator[None]:
    with za.config.set(native="require"):
        yield
