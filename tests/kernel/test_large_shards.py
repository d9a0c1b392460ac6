"""Changes of large shards: stored bytes of inner chunks that are not touched are copied by the system, and not read."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel.test_library import needs_kernel
from tests.kernel.test_write import content
from zarrasync import stores, sync
from zarrasync.errors import ZarrError

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
SIDE, INNER = 1024, 32
VALUES = np.random.default_rng(0).integers(1, 1 << 30, (SIDE, SIDE), dtype="i4")
INNER_BYTES, INDEX_BYTES = INNER * INNER * 4, (SIDE // INNER) ** 2 * 16 + 4
BOXES: list[Any] = [
    (slice(5, 44), slice(300, 777)),
    (slice(0, INNER), slice(0, INNER)),
    (slice(1000, 1024), slice(1000, 1024)),
    (slice(0, SIDE, 97), slice(0, SIDE, 3)),
    (500, slice(None)),
]
LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "checksums": {"compressors": [{"name": "crc32c"}]},
    "index at start": {
        "serializer": {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [INNER, INNER],
                "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
                "index_location": "start",
            },
        },
        "compressors": None,
    },
}


def create(store: Any, layout: dict[str, Any], native: str = "require") -> sync.Array:
    inner: dict[str, Any] = (
        {"chunks": (SIDE, SIDE)} if "serializer" in layout else {"chunks": (INNER, INNER), "shards": (SIDE, SIDE)}
    )
    return sync.create_array(
        store, shape=(SIDE, SIDE), dtype="i4", fill_value=0, config={"native": native}, **inner, **layout
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_are_the_same_as_without_the_kernel(tmp_path: Path, name: str):
    for native in ("require", "off"):
        array, expected = create(tmp_path / native, LAYOUTS[name], native), VALUES.copy()
        array[...] = expected
        for number, box in enumerate(BOXES):
            array[box] = number
            expected[box] = number
        array[64:160, 64:160] = expected[64:160, 64:160] = 0  # inner chunks of fill values are removed
        array[70:80, 70:80] = expected[70:80, 70:80] = 5  # and come back
        np.testing.assert_array_equal(array[...], expected)
    assert content(tmp_path / "require") == content(tmp_path / "off")


@pytest.mark.parametrize(("length", "cut"), [(1, 1), (2, 4), (6, 20)])
def test_only_inner_chunks_that_are_cut_are_read(tmp_path: Path, length: int, cut: int):
    store = stores.CountingStore(stores.LocalStore(tmp_path))
    array = create(store, LAYOUTS["raw"])
    array[...] = VALUES
    side = INNER * length
    store.reset()
    array[1 : side - 1, 1 : side - 1] = 3
    counts = store.reset()
    assert counts.bytes_read == INDEX_BYTES + cut * INNER_BYTES
    assert counts.bytes_written == SIDE * SIDE * 4 + INDEX_BYTES
    array[:side, :side] = 4  # whole inner chunks are not needed
    assert store.reset().bytes_read in (0, INDEX_BYTES)
    array[:512] = 4  # however many they are
    assert store.reset().bytes_read == INDEX_BYTES


def test_many_small_inner_chunks_are_read_at_once(tmp_path: Path):
    """To read each on its own, and copy the short pieces between them, took 10 times as long where blocks are shared."""
    store = stores.CountingStore(stores.LocalStore(tmp_path))
    array = create(store, LAYOUTS["raw"])
    array[...] = VALUES
    store.reset()
    array[:, 5:300] = 3
    assert store.reset().fetches == 1
    expected = VALUES.copy()
    expected[:, 5:300] = 3
    np.testing.assert_array_equal(array[...], expected)


def test_damage_of_other_inner_chunks_is_kept(tmp_path: Path):
    array = create(tmp_path, LAYOUTS["checksums"])
    array[...] = VALUES
    file = tmp_path / "c" / "0" / "0"
    data = bytearray(file.read_bytes())
    data[9] ^= 1
    file.write_bytes(data)
    array[500:510, 500:510] = 3
    np.testing.assert_array_equal(array[500:510, 480:500], VALUES[500:510, 480:500])
    with pytest.raises(ZarrError, match="checksum"):
        array[0, 0]
    with pytest.raises(ZarrError, match="checksum"):
        array[0:3, 0:3] = 1


@pytest.mark.parametrize("damage", ["index", "length"])
def test_a_damaged_shard_is_not_replaced(tmp_path: Path, damage: str):
    array = create(tmp_path, LAYOUTS["raw"])
    array[...] = VALUES
    file = tmp_path / "c" / "0" / "0"
    data = bytearray(file.read_bytes())
    if damage == "index":
        data[-99] ^= 1
    else:
        del data[-100:]
    file.write_bytes(data)
    with pytest.raises(ZarrError):
        array[500:510, 500:510] = 3
    assert file.read_bytes() == data
    assert len(os.listdir(file.parent)) == 1


REFUSING = """
import ctypes, errno, struct, sys
from pathlib import Path

COPY_FILE_RANGE, ALLOW, ERROR = 326, 0x7FFF0000, 0x00050000
program = b"".join(
    struct.pack("HBBI", *each)
    for each in [(0x20, 0, 0, 0), (0x15, 0, 1, COPY_FILE_RANGE), (6, 0, 0, ERROR | errno.EOPNOTSUPP), (6, 0, 0, ALLOW)]
)
memory = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", 4, ctypes.addressof(memory))) == 0

from zarrasync import stores, sync

store = stores.CountingStore(stores.LocalStore(Path(sys.argv[1])))
array = sync.open_array(store, mode="r+", config={"native": "require"})
array[5:44, 300:777] = 3
assert store.counts.bytes_read < 1 << 20, store.counts
"""


@pytest.mark.processes
@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="numbers of system calls")
def test_a_system_that_cannot_copy(tmp_path: Path):
    """Some file systems refuse the call; a filter of system calls does the same here."""
    create(tmp_path, LAYOUTS["raw"])[...] = VALUES
    subprocess.run([sys.executable, "-c", REFUSING, str(tmp_path)], check=True)
    expected = VALUES.copy()
    expected[5:44, 300:777] = 3
    np.testing.assert_array_equal(sync.open_array(tmp_path)[...], expected)
