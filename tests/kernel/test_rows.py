"""Raw chunks are written from where the values are, row by row, and as few bytes at a time as the system takes."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel.test_library import needs_kernel
from tests.support.kernel_calls import kernel_calls
from zarrasync import sync

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
ROWS, LENGTH = 300, 512
"""More rows than one call writes; each has 2 KiB."""
VALUES = np.random.default_rng(0).integers(1, 99, (2 * ROWS, 2 * LENGTH), "i4")
LAYOUTS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "C order": (np.array, {}),
    "F order of the values": (np.asfortranarray, {}),
    "F order of the chunks": (
        np.asfortranarray,
        {"filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}]},
    ),
    "rows in reverse": (lambda values: values[::-1].copy()[::-1], {}),
    "columns in reverse": (lambda values: values[:, ::-1].copy()[:, ::-1], {}),
    "one row for all": (lambda values: np.broadcast_to(values[:1], values.shape), {}),
    "every second column": (lambda values: np.repeat(values, 2, axis=1)[:, ::2], {}),
    "big-endian chunks": (np.array, {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}}),
}


def stored(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_those_of_python(layout: str, tmp_path: Path):
    arrange, options = LAYOUTS[layout]
    values = arrange(VALUES)
    for native in ("require", "off"):
        array = sync.create_array(
            tmp_path / native,
            shape=values.shape,
            dtype="i4",
            chunks=(ROWS, LENGTH),
            compressors=None,
            config={"native": native},
            **options,
        )
        array[...] = values
        array[ROWS:, LENGTH:] = values[ROWS:, LENGTH:]  # a chunk in a folder that exists
    assert stored(tmp_path / "require") == stored(tmp_path / "off")
    assert len(stored(tmp_path / "require")) == 5


def test_chunks_of_the_fill_value_are_not_stored(tmp_path: Path):
    values = VALUES.copy()
    values[:ROWS, :LENGTH] = 0
    values[ROWS:, :LENGTH] = 0
    values[-1, LENGTH - 1] = 5
    array = sync.create_array(tmp_path / "a", shape=values.shape, dtype="i4", chunks=(ROWS, LENGTH), compressors=None)
    array[...] = values
    assert sorted(stored(tmp_path / "a")) == ["c/0/1", "c/1/0", "c/1/1", "zarr.json"]
    np.testing.assert_array_equal(array[...], values)
    array[:, LENGTH:] = 0
    assert sorted(stored(tmp_path / "a")) == ["c/1/0", "zarr.json"]


@pytest.mark.parametrize("length", [2048, 2049, 1000, 1, 3000 * 512])
def test_writes_that_are_cut_short(length: int, tmp_path: Path):
    """The system writes fewer bytes than it was given, or none because of a signal."""
    calls: list[int] = []

    def cut(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name != "writev":
            return real(*args)
        calls.append(args[2])
        if len(calls) % 3 == 2:
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))
        left, parts = length if len(calls) % 2 else 1 << 30, []
        for address, size in zip(*[iter((ctypes.c_size_t * (2 * args[2])).from_address(args[1]))] * 2, strict=True):
            parts += [address, min(size, left)]
            left -= parts[-1]
        return real(args[0], (ctypes.c_size_t * len(parts))(*parts), len(parts) // 2)

    array = sync.create_array(
        tmp_path / "a", shape=VALUES.shape, dtype="i4", chunks=(ROWS, LENGTH), compressors=None, config={"threads": 1}
    )
    with kernel_calls(cut):
        array[...] = VALUES
    assert max(calls) > 200
    assert len(calls) > 8
    np.testing.assert_array_equal(sync.open_array(tmp_path / "a", config={"native": "off"})[...], VALUES)
