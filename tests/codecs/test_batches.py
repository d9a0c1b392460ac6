"""Values that are encoded or decoded together, into memory of the caller, on several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.covering import covering
from zarrasync import config, sync
from zarrasync._util import memory
from zarrasync.codecs import BloscCodec, BytesBytesCodec, ZstdCodec
from zarrasync.errors import CodecError


def test_decoders_are_set_up_once_however_many_threads_begin():
    """A codec's module is loaded at its first chunk, which several threads may meet at once."""
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    from zarrasync.codecs.decompression import with_size_header

    together = threading.Barrier(4, timeout=30)

    def load():
        together.wait()
        return SimpleNamespace(decompress=lambda data: b"four")

    decode = with_size_header(lambda data: 4, load)(4, 9)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: decode(memoryview(b"x"), None), range(4)))
    assert found == [b"four"] * 4


def _other_size(codec, size, value):
    return bytes(numcodecs.get_codec({"id": codec}).encode(bytes(size)))


_TOGETHER = {"zstd": ZstdCodec(3, checksum=True), "blosc": BloscCodec("lz4")}

_DAMAGE = {
    "cut": lambda value: value[:-3],
    "longer": lambda value: value + b"x",
    "twice": lambda value: value + value,
    "other": lambda value: b"\0" * len(value),
    "empty": lambda value: b"",
}

_DAMAGED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    **{f"{codec} {how}": (codec, damage) for codec in _TOGETHER for how, damage in _DAMAGE.items()},
    **{f"{codec} {size}": (codec, partial(_other_size, codec, size)) for codec in _TOGETHER for size in (100, 10_000)},
    "zstd hollow": ("zstd", partial(_other_size, "zstd", 0)),
    "zstd skipped": ("zstd", lambda value: value + b"\x50\x2a\x4d\x18\x04\0\0\0abcd"),
    "zstd flipped": ("zstd", lambda value: value[:-1] + bytes([value[-1] ^ 1])),
}


@pytest.mark.parametrize("kind", _DAMAGED)
def test_a_damaged_value_of_a_batch_is_named(kind, tmp_path):
    data = np.random.default_rng(5).integers(0, 50, (40, 20)).astype("i4")
    codec, damage = _DAMAGED[kind]
    a = sync.create_array(tmp_path, data=data, chunks=(4, 4), compressors=_TOGETHER[codec])
    path = tmp_path / "c" / "7" / "3"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CodecError, match=rf"^c/7/3 in .*: codec {codec} cannot decode: "):
        a[...]
    with pytest.raises(CodecError, match=rf"^c/7/3 in .*: codec {codec} cannot decode: "):
        a.vindex[[1, 29, 33], [2, 13, 5]]
    np.testing.assert_array_equal(a[:28], data[:28])
    path.unlink()
    data[28:32, 12:16] = 0
    np.testing.assert_array_equal(a[...], data)


@pytest.mark.parametrize(
    ("kind", "kernel", "whole"),
    [
        *covering(
            ["blosc", "zstd", *(name for name in _DAMAGED if not name.endswith("00"))], [True, False], [True, False]
        ),
        ("zstd flipped", False, True),
    ],
)
def test_values_are_decompressed_into_existing_memory(kind, kernel, whole, tmp_path):
    """Decoding goes into existing memory, with and without the compiled kernel; damage is named by key."""
    codec, damage = _DAMAGED.get(kind, (kind, None))
    data = np.random.default_rng(5).integers(0, 50, (256, 512)).astype("i4")
    settings = {"native": "auto" if kernel else "off"}
    chunks = (32, 512 if whole else 256)
    a = sync.create_array(tmp_path, data=data, chunks=chunks, compressors=_TOGETHER[codec], config=settings)
    name = "c/5/0" if whole else "c/5/1"
    if damage is not None:
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
        with pytest.raises(CodecError, match=rf"^{name} in .*: codec {codec} cannot decode: "):
            a[...]
        with pytest.raises(CodecError, match=rf"^{name} in .*: codec {codec} cannot decode: "):
            a.vindex[[200, 163, 3], [500, 511, 20]]
    np.testing.assert_array_equal(a[:160], data[:160])
    np.testing.assert_array_equal(a.vindex[[150, 3, 40], [500, 511, 20]], data[[150, 3, 40], [500, 511, 20]])


def test_raw_values_of_a_wrong_length_are_found_where_many_are_read_at_once(tmp_path):
    """Also for more values than one buffer holds, and for lengths that are wrong but add up."""
    data = np.tile(np.arange(8192, dtype="u1"), (128 * 12, 12))
    with config.set(batch_bytes=1 << 30, memory_budget=1 << 31, threads=1):
        a = sync.create_array(tmp_path, data=data, chunks=(128, 8192), fill_value=255, compressors=None)
        np.testing.assert_array_equal(a[...], data)
        short, longer = tmp_path / "c" / "3" / "2", tmp_path / "c" / "3" / "3"
        short.write_bytes(short.read_bytes()[:-100])
        with pytest.raises(CodecError, match=r"^c/3/2 in "):
            a[...]
        longer.write_bytes(longer.read_bytes() + bytes(100))
        with pytest.raises(CodecError, match=r"^c/3/2 in "):
            a[...]


def test_an_invalid_value_of_a_batch_is_named():
    @dataclass(frozen=True)
    class Picky(BytesBytesCodec):
        name = "picky"

        def encode(self, data):
            if data[0] in (0, 9):
                raise self.fail("bad", "encode")
            return bytes(data)

        def decode(self, data, size, limit, out):
            return data

    a = sync.create_array({}, shape=40, dtype="u1", chunks=4, compressors=[Picky()])
    values = np.ones(40, "u1")
    values[8:12] = 0  # only the fill value: not encoded
    values[20:24] = 9
    with pytest.raises(CodecError, match=r"^c/5 in .*codec picky cannot encode: bad"):
        a[...] = values


def test_memory_of_large_values_is_reused():
    parts = [b"a" * (1 << 20), np.full(1 << 20, 98, np.uint8), memoryview(b"c" * 5)]
    first: Any = memory.join_buffers(parts, 3 << 20)
    assert bytes(first) == b"a" * (1 << 20) + b"b" * (1 << 20) + b"ccccc"
    assert memory.is_immutable(first)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    part = first[5:20].view("u1")
    address = first.ctypes.data
    del first
    other: Any = memory.join_buffers(parts[::-1], 3 << 20)  # the part still needs the first one's memory
    assert other.ctypes.data != address
    assert bytes(part) == b"a" * 15
    del part
    again: Any = memory.join_buffers(parts, 3 << 20)
    assert again.ctypes.data == address
    del again
    assert not memory.is_immutable(np.zeros(3, np.uint8))
    assert isinstance(memory.join_buffers([b"few", b" bytes"], 9), bytes)
    few = [memory.join_buffers(parts, 32 << 20) for _ in range(2)]  # large buffers are not kept for reuse
    assert {bytes(one) for one in few} == {b"".join(map(bytes, parts))}
    assert all(isinstance(one, bytes) for one in few)


def test_an_array_with_the_id_of_a_dead_result_is_mutable(monkeypatch):
    """PyPy calls finalizers some time after an object is gone."""
    monkeypatch.setattr(memory, "_reuse", lambda *_: None)  # not yet
    dead_ids = set[int]()
    for _ in range(100):
        result = memory.join_buffers([bytes(1 << 20)], 1 << 20)
        assert memory.is_immutable(result)
        dead_ids.add(id(result))
        del result
        array = np.empty(0, np.uint8)
        if id(array) in dead_ids:
            assert not memory.is_immutable(array)
            break
    else:
        pytest.skip("no id was used again")
