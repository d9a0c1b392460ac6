"""The kernel's system calls: one that fails, or is not supported, changes neither results nor what is stored."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel.test_library import SOURCES, needs_kernel
from tests.support.api import Api
from tests.support.kernel_calls import CALLS, kernel_calls

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (3, 4), "compressors": None},
    "shards": {"chunks": (3, 4), "shards": (6, 8)},
    "flat names": {"chunks": (3, 4), "chunk_key_encoding": {"name": "default", "separator": "."}},
}
NEVER_FAIL = ("close", "readdir", "closedir")
"""Calls whose errors no program can act upon."""


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


async def use(api: Api, path: Path, **options: Any) -> np.ndarray:
    """Write all chunks of an array, change parts of some, append rows, and return the values."""
    array = await api(api.create_array(path, shape=(12, 12), dtype="i4", **options))
    await api.write(array, ..., np.arange(144).reshape(12, 12))
    await api.write(array, (slice(1, 8), slice(2, 12)), 7)
    await api(array.append(np.ones((4, 12), "i4")))
    return await api(array[...])


EXPECTED = np.concatenate([np.arange(144).reshape(12, 12), np.ones((4, 12), "i4")])
EXPECTED[1:8, 2:] = 7


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_the_table_is_that_of_the_header():
    if not (SOURCES / "system.h").exists():
        pytest.skip("this installation has no sources")
    assert re.findall(r"^    \w[\w ]* \*?\(\*(\w+)\)", (SOURCES / "system.h").read_text(), re.MULTILINE) == [*CALLS]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_each_call_fails_once(api: Api, layout: str, tmp_path: Path):
    """Python does what the kernel could not do, and no temporary file remains."""
    names: list[str] = []

    def count(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        names.append(name)
        return real(*args)

    with kernel_calls(count):
        np.testing.assert_array_equal(await use(api, tmp_path / "a", **LAYOUTS[layout]), EXPECTED)
    expected = files(tmp_path / "a")
    assert {"openat", "writev", "pread", "lock"} <= {*names}
    assert {"renameat", "rename_new"} & {*names}
    failing = [number for number, name in enumerate(names) if name not in NEVER_FAIL]
    for number in failing[:: 1 + len(failing) // 40]:
        at = 0

        def fail(name: str, real: Callable[..., Any], args: tuple[Any, ...], number: int = number) -> Any:
            nonlocal at
            at += 1
            if at == number + 1:
                raise error(errno.EIO)
            return real(*args)

        with kernel_calls(fail):
            found = await use(api, tmp_path / str(number), **LAYOUTS[layout])
        np.testing.assert_array_equal(found, EXPECTED, f"call {number}, {names[number]}")
        if names[number] not in ("unlinkat", "opendir"):
            assert files(tmp_path / str(number)) == expected, names[number]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK], ids=errno.errorcode.get)
async def test_chunks_are_created_without_hard_links(
    api: Api, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on some file systems. Parts of absent chunks are created only if nobody else has created them."""
    refused = []

    def refuse(*args: Any, **options: Any) -> Any:
        raise error(number)

    def handle(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name == "linkat":
            refused.append(name)
            raise error(number)
        return real(*args)

    monkeypatch.setattr(os, "link", refuse)
    with kernel_calls(handle):
        array = await api(api.create_array(tmp_path / "a", shape=(100, 100), chunks=(10, 10), dtype="i4"))
        await api.write(array, (0, 0), 1)
        await api.write(array, (slice(3, 95), slice(4, 96)), 1)
        await api(array.append(np.ones((5, 100), "i4")))
        assert (await api(array[...])).sum() == 1 + 92 * 92 + 500
    assert refused
    assert not [*tmp_path.rglob("*partial*")]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EXDEV, errno.EIO], ids=errno.errorcode.get)
async def test_parts_of_large_shards_are_copied_without_the_system(api: Api, number: int, tmp_path: Path):
    """Their bytes are read and written where the system cannot copy between files."""
    refused = []

    def handle(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name == "copy":
            refused.append(name)
            raise error(number)
        return real(*args)

    values = np.random.default_rng(0).integers(0, 1 << 30, (1024, 1024), "i4")
    with kernel_calls(handle):
        array = await api(
            api.create_array(
                tmp_path / "a", shape=values.shape, chunks=(64, 1024), shards=values.shape, dtype="i4", compressors=None
            )
        )
        await api.write(array, ..., values)
        await api.write(array, (slice(70, 90), slice(10, 20)), 5)
        values[70:90, 10:20] = 5
        np.testing.assert_array_equal(await api(array[...]), values)
    assert refused
