"""Elements of large chunks of blosc and zstd, of which the kernel decodes only a part."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel.test_library import needs_kernel
from tests.kernel.test_read import check_equal, files
from zarrasync import sync
from zarrasync.codecs import BloscCodec, Crc32cCodec

pytestmark = [needs_kernel, pytest.mark.usefixtures("kernel_in_use")]
KEYS: list[Any] = [
    (3, 4), (-1, -1), (slice(2, 4), slice(5, 9)), (7, slice(None)), (slice(None), 7), slice(30, 60), (slice(1, 99, 40), 2),
    ([3, 90, 5], [1, 2, 90]), ([1, 3], slice(3, 5)), ...,
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shuffle", "block"),
    [
        ("u1", "bitshuffle", 256),
        ("<i4", "shuffle", 1000),
        ("<i4", "noshuffle", 4096),
        (">f8", "shuffle", 4096),
        (">f8", "bitshuffle", 0),
        ([("a", "u1"), ("b", "<i2")], "noshuffle", 256),
    ],
)
def test_values(tmp_path: Path, dtype: Any, shuffle: Any, block: int):
    generator = np.random.default_rng(1)
    typesize = 3 if shuffle == "shuffle" else 1  # elements of blosc need not be those of the array
    for number, random in enumerate((False, True)):  # a random chunk is stored as it is
        values = generator.integers(0, 250 if random else 3, (100, 150)).astype(np.dtype(dtype))
        codec = BloscCodec("lz4", 5, shuffle, typesize, block)
        layouts: dict[str, dict[str, Any]] = {
            "plain": {},
            "columns": {"filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}]},
            "checked": {"compressors": [codec, Crc32cCodec()]},
            "sharded": {"shards": (100, 150), "chunks": (100, 75)},
        }
        for name, options in layouts.items():
            path = tmp_path / f"{name}{number}"
            given: Any = {"chunks": (100, 100), "compressors": [codec], **options}
            sync.create_array(path, data=values, **given)
            for key in KEYS:
                check_equal(path, itemgetter(key))


def test_other_blocks_are_not_decoded(tmp_path: Path):
    values = np.arange(1 << 16, dtype="i4")
    codec = BloscCodec("zstd", 5, "shuffle", 4, 1 << 14)
    array = sync.create_array(tmp_path, data=values, chunks=values.shape, compressors=[codec])
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    start = int.from_bytes(data[16 + 4 * 12 :][:4], "little")  # of a block
    data[start : start + 100] = bytes(100)
    file.write_bytes(data)
    assert array[7] == 7
    assert array[60_000:60_003].tolist() == [60_000, 60_001, 60_002]
    with pytest.raises(Exception, match="blosc"):
        _ = array[12 << 12]
    with pytest.raises(Exception, match="blosc"):
        _ = array[:]


@pytest.mark.parametrize("is_random", [False, True])  # zstd stores random blocks as they are
def test_beginnings_of_zstd_frames(tmp_path: Path, is_random: bool):
    generator = np.random.default_rng(2)
    values = generator.integers(0, 1 << (31 if is_random else 3), (500, 600)).astype("i4")
    zstd: Any = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    layouts: dict[str, dict[str, Any]] = {
        "plain": {},
        "columns": {"filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}]},
        "checked": {"compressors": [zstd, Crc32cCodec()]},
        "sharded": {"shards": (500, 600), "chunks": (500, 300)},
    }
    for name, options in layouts.items():
        sync.create_array(tmp_path / name, data=values, **{"chunks": (500, 600), "compressors": [zstd], **options})
        for key in (*KEYS[:-1], (slice(0, 300), 599), (250, 300), ...):
            check_equal(tmp_path / name, itemgetter(key))


@pytest.mark.parametrize("has_checksum", [False, True])
def test_frames_with_a_checksum_are_decoded_entirely(tmp_path: Path, has_checksum: bool):
    """Damage after the last selected element is found by a checksum, and does not matter without one."""
    values = np.random.default_rng(3).integers(0, 1 << 31, 1 << 18).astype("i4")
    codec: Any = {"name": "zstd", "configuration": {"level": 1, "checksum": has_checksum}}
    array = sync.create_array(tmp_path, data=values, chunks=values.shape, compressors=[codec])
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1  # of a random block, which has no redundancy
    file.write_bytes(data)
    if has_checksum:
        with pytest.raises(Exception, match="zstd"):
            _ = array[7]
    else:
        assert array[7] == values[7]
        assert array[100_000:100_003].tolist() == values[100_000:100_003].tolist()
    file.write_bytes(data[:200])
    with pytest.raises(Exception, match="zstd"):
        _ = array[7]
