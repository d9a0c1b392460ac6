"""Codecs by themselves: round trips, parts against wholes, and damage that must not pass."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from functools import partial

import numcodecs
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zarrasync import config, stores, sync
from zarrasync.codecs import (
    ArraySpec,
    BloscCodec,
    BytesBytesCodec,
    BytesCodec,
    CodecChain,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
    _functions,
    as_codec,
    chain_of,
    parse_codecs,
)
from zarrasync.errors import ChecksumError, CodecError, MetadataError, UnknownCodecError
from zarrasync.indexing.chunk_selection import Projection
from zarrasync.model.dtypes import from_numpy

SPEC = ArraySpec((8, 6), from_numpy("i4"), np.int32(0))
DATA = np.arange(48, dtype="i4").reshape(8, 6)

CHAINS = {
    "raw": [],
    "big": [BytesCodec("big")],
    "gzip": ["gzip"],
    "zstd": [ZstdCodec(3, checksum=True)],
    "blosc": [BloscCodec("lz4")],
    "crc": ["zstd", "crc32c"],
    "turned": [TransposeCodec((1, 0)), "gzip"],
    "delta": ["numcodecs.delta", "numcodecs.zlib"],
    "lz4": ["numcodecs.lz4"],
    "bz2": ["numcodecs.bz2"],
    "lzma": ["numcodecs.lzma"],
    "two": ["numcodecs.zlib", "gzip"],
}


def bound(codecs: list, spec: ArraySpec = SPEC):
    return chain_of(codecs, spec).bind(spec)


def shards(inner: list, location: str = "end", spec: ArraySpec = SPEC) -> list:
    chain = chain_of(inner, spec.replace(shape=(2, 3)))
    return [ShardingCodec((2, 3), chain, index_location=location)]


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_round_trip(codecs):
    chain = bound(codecs)
    data = chain.encode(DATA)
    np.testing.assert_array_equal(chain.decode(data), DATA)
    np.testing.assert_array_equal(chain.decode(bytes(data)), DATA)
    np.testing.assert_array_equal(chain.decode(memoryview(bytes(data)), np.empty(chain.raw_size, "u1")), DATA)
    if chain.decodes_to_output:
        target = np.empty_like(DATA)
        chain.decompress_into([data], [target.reshape(-1).view("u1")])
        np.testing.assert_array_equal(target, DATA)
    again = parse_codecs([codec.to_json() for codec in chain_of(codecs, SPEC).codecs])
    np.testing.assert_array_equal(again.bind(SPEC).decode(bytes(data)), DATA)


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_damage_is_an_error_or_the_right_size(codecs):
    """Cut, longer and garbled values: a typed error, or (without a checksum) an array of the right shape."""
    chain = bound(codecs)
    data = bytes(chain.encode(DATA))
    damaged = [b"", data[:-1], data[: len(data) // 2], data[:3], b"\0" * len(data), b"\xff" * 40]
    rng = random.Random(0)
    for _ in range(200):
        one = bytearray(data)
        one[rng.randrange(len(one))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(one))
    for value in damaged:
        try:
            found = chain.decode(value)
        except CodecError as error:
            assert error.codec
        else:
            assert found.shape == (8, 6)
    for value in (b"", data[:-1], data[: len(data) // 2]):
        if codecs != CHAINS["bz2"]:
            with pytest.raises(CodecError):
                chain.decode(value)


def test_bombs_do_not_go_off():
    """Values that would decompress to far more than the chunk has are cut off before memory is taken."""
    big = bytes(1 << 24)
    for codecs, value in (
        (["gzip"], gzip.compress(big)),
        (["zstd"], bytes(numcodecs.Zstd().encode(big))),
        ([BloscCodec("lz4")], bytes(numcodecs.Blosc("lz4").encode(big))),
        (["numcodecs.zlib"], zlib.compress(big)),
        (["numcodecs.lz4"], bytes(numcodecs.LZ4().encode(big))),
        (["numcodecs.bz2"], bytes(numcodecs.BZ2().encode(big))),
        (["numcodecs.lz4"], b"\xff\xff\xff\x7f" + b"\0" * 20),
    ):
        with pytest.raises(CodecError, match=r"more than 192 bytes|holds \d+ bytes, the chunk needs 192|192"):
            bound(codecs).decode(value)


def test_checksums():
    chain = bound(["crc32c"])
    data = bytearray(chain.encode(DATA))
    data[5] ^= 1
    with pytest.raises(ChecksumError, match=r"stored checksum is 0x[0-9a-f]{8}, that of the bytes 0x") as error:
        chain.decode(bytes(data))
    assert error.value.codec == "crc32c"
    assert isinstance(error.value, CodecError)


def test_shards_inside_a_compressor():
    """NumPy says that None equals float64; the chain must not believe it."""
    data = np.zeros(20000)
    data[:5000] = 7.5
    data[12000:] = np.random.default_rng(0).random(8000)
    for inner in (CodecChain.of([BytesCodec("little")]), CodecChain.of([BytesCodec("little"), ZstdCodec()])):
        serializer = ShardingCodec((5000,), inner)
        a = sync.create_array({}, data=data, chunks=20000, compressors=ZstdCodec(), serializer=serializer)
        np.testing.assert_array_equal(a[...], data)
        np.testing.assert_array_equal(a[4990:12010], data[4990:12010])


def test_values_of_shards_without_axes():
    for dtype, value in ((str, "q"), (bytes, b"q\0"), ("U2", "a"), ("f8", 2.5)):
        a = sync.create_array({}, shape=(), chunks=(), shards=(), dtype=dtype)
        a[...] = value
        assert a[()] == value


def test_an_inner_chunk_of_the_wrong_length_is_refused_in_part_and_whole():
    a = sync.create_array({}, data=np.arange(1, 32769, dtype="i4"), chunks=16384, shards=32768, compressors=None)
    value = bytearray(a.store.values["c/0"])
    index = [int.from_bytes(value[-36 + i : -28 + i], "little") for i in (0, 8, 16, 24)]
    assert index == [0, 65536, 65536, 65536]
    from zarrasync.codecs.sharding import DEFAULT_INDEX

    spec = ArraySpec((2, 2), from_numpy("u8"), np.uint64(0))
    for length in (100, 1 << 36):
        wrong = DEFAULT_INDEX.bind(spec).encode(np.array([[0, length], [65536, 65536]], "u8"))
        a.store.values["c/0"] = bytes(value[:-36]) + bytes(wrong)
        for key in (slice(10000, 10010), slice(0, 16384), ...):
            with pytest.raises(CodecError, match="which it can not have"):
                a[key]


def test_a_value_of_many_empty_members_is_refused_at_once():
    with pytest.raises(CodecError, match="more than 1000 members"):
        bound(["gzip"]).decode(gzip.compress(b"") * 100_000)


def test_gzip_members_and_padding():
    raw = DATA.tobytes()
    joined = gzip.compress(raw[:100]) + gzip.compress(raw[100:])
    np.testing.assert_array_equal(bound(["gzip"]).decode(joined), DATA)
    np.testing.assert_array_equal(bound(["gzip"]).decode(gzip.compress(raw) + b"\0" * 8), DATA)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3)), min_size=2, max_size=2),
    st.sampled_from(["end", "start"]),
    st.sampled_from(["raw", "gzip", "nested", "turned"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
def test_parts_of_shards_equal_the_whole(box, location, kind):
    inner = {
        "raw": [],
        "gzip": ["gzip"],
        "nested": [ShardingCodec((1, 1), chain_of(["zstd"], SPEC.replace(shape=(1, 1))), index_location=location)],
        "turned": [TransposeCodec((1, 0))],
    }[kind]
    data = DATA.copy()
    data[2:4, 0:3] = 0  # an absent inner chunk
    outer = [TransposeCodec((1, 0))] if kind == "turned" else []
    spec = SPEC
    codecs = [*outer, *shards(inner, location)]
    if outer:
        chain = chain_of(inner, SPEC.replace(shape=(3, 2)))
        codecs = [*outer, ShardingCodec((3, 2), chain, index_location=location)]
    chain = bound(codecs, spec)
    value = chain.encode(data)
    np.testing.assert_array_equal(chain.decode(value), data)
    start = [min(s, n - 1) for (s, _), n in zip(box, (8, 6), strict=True)]
    stop = [min(s + c, n) for s, (_, c), n in zip(start, box, (8, 6), strict=True)]
    where = tuple(slice(a, b, 1) for a, b in zip(start, stop, strict=True))
    out = np.full([b - a for a, b in zip(start, stop, strict=True)], -1, "i4")
    projection = Projection((), where, tuple(slice(0, n, 1) for n in out.shape))
    search = chain.locate(projection, out)
    try:
        ranges = next(search)
        while True:
            ranges = search.send([_bytes(value, r) for r in ranges])
    except StopIteration as stop_:
        pieces = stop_.value
    for piece in pieces:
        if piece.length < 0:
            piece.part.fill(piece.out, 0)
            continue
        own = memoryview(value)[piece.start : piece.start + piece.length]
        entries = piece.entries or [(0, piece.length)]
        assert len(entries) == piece.part.count
        boxes = np.stack([piece.chain.decode(own[first : first + length]) for first, length in entries])
        piece.part.read(boxes, piece.out)
    np.testing.assert_array_equal(out, data[where])
    merged, empty = chain.merge(value, projection, np.full_like(out, 99))
    want = data.copy()
    want[where] = 99
    assert not empty
    np.testing.assert_array_equal(chain.decode(merged), want)


def _bytes(value, r):
    return value[-r.length :] if r.suffix else value[r.start : r.start + r.length]


def test_damaged_shards():
    chain = bound(shards(["gzip"]))
    value = bytes(chain.encode(DATA))
    index = 8 * 16 + 4
    for damaged, message in (
        (value[:10], "its index alone needs"),
        (value[:-7] + b"\7" + value[-6:], "index is damaged"),
        (value[1:], "bytes|not|gzip"),
    ):
        with pytest.raises(CodecError, match=message):
            chain.decode(damaged)
    unchecked = [
        ShardingCodec(
            (2, 3),
            chain_of(["gzip"], SPEC.replace(shape=(2, 3))),
            index_codecs=CodecChain.of([BytesCodec("little")]),
        )
    ]
    chain = bound(unchecked)
    value = bytearray(chain.encode(DATA))
    index = 8 * 16
    outside = value.copy()
    outside[-index : -index + 8] = (1 << 20).to_bytes(8, "little")
    with pytest.raises(CodecError, match=r"inner chunk 0 at bytes 1048576 to \d+ of"):
        chain.decode(bytes(outside))
    large = value.copy()
    large[-index + 8 : -index + 16] = (1 << 36).to_bytes(8, "little")
    with pytest.raises(CodecError, match=r"gives inner chunk 0 68719476736 bytes, which it can not have"):
        chain.decode(bytes(large))
    half = value.copy()
    half[-index : -index + 8] = b"\xff" * 8
    with pytest.raises(CodecError, match="no value can have"):
        chain.decode(bytes(half))


def test_damage_in_a_store_names_the_key():
    for options in ({"chunks": 4}, {"chunks": 2, "shards": 4}):
        a = sync.create_array({}, name="g/a", data=np.arange(8), compressors="gzip", **options)
        a.store.values["g/a/c/1"] = a.store.values["g/a/c/1"][:-3]
        np.testing.assert_array_equal(a[:4], [0, 1, 2, 3])
        for read in (lambda a=a: a[...], lambda a=a: a[5], lambda a=a: a.__setitem__(5, 1)):
            with pytest.raises(CodecError, match=r"^g/a/c/1 in MemoryStore\(5 values\): ") as error:
                read()
            assert error.value.key == "g/a/c/1"


def test_inner_chunks_without_bytes_are_damage():
    a = sync.create_array(
        {}, data=np.arange(6000).reshape(6, 1000), chunks=(1, 1000), shards=(6, 1000), compressors="zstd"
    )
    value = bytearray(a.store.values["c/0/0"])
    value[-92:-84] = bytes(8)  # the length of the first
    value[-4:] = crc32c(bytes(value[-100:-4])).to_bytes(4, "little")
    a.store.values["c/0/0"] = bytes(value)
    remote = stores.WrapperStore(a.store)
    remote.blocking = False
    for opened in (sync.open_array(a.store), sync.open_array(remote)):
        np.testing.assert_array_equal(opened[1], np.arange(1000, 2000))
        for selection in (0, slice(0, 2), ...):
            with pytest.raises(CodecError, match="c/0/0"):
                opened[selection]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "expected a list"),
        ([], "exactly one array -> bytes codec"),
        (["gzip"], "exactly one array -> bytes codec"),
        (["bytes", "bytes"], "found 2 in: bytes, bytes"),
        ([{"name": "gzip", "configuration": {"level": 1}}, "bytes"], "out of order"),
        ([3], r"\$.codecs\[0\]: a codec is an object with a name, found 3"),
        ([{"configuration": {}}], "a codec is an object with a name"),
        (["bytes", {"name": "gzip", "configuration": 3}], r"\$.codecs\[1\].configuration: expected an object"),
        (["bytes", {"name": "gzip", "configuration": {"level": "x"}}], "level is an integer from -1 to 9, found 'x'"),
        (["bytes", {"name": "gzip", "configuration": {"nosuch": 1}}], "unexpected keyword argument 'nosuch'"),
        ([{"name": "bytes", "configuration": {"endian": "middle"}}], "'little' or 'big', found 'middle'"),
        ([{"name": "transpose", "configuration": {"order": [0, 0]}}, "bytes"], "permutation of the axes"),
        ([{"name": "transpose", "configuration": {}}, "bytes"], "order"),
        ([{"name": "sharding_indexed", "configuration": {}}], "missing member 'chunk_shape'"),
        ([{"name": "sharding_indexed", "configuration": {"chunk_shape": [0]}}], "positive integers"),
        (["bytes", {"name": "zstd", "configuration": {"level": 1, "checksum": 3}}], "checksum is true or false"),
        (["bytes", {"name": "blosc", "configuration": {"cname": "x"}}], "cname is one of"),
        (["bytes", {"name": "numcodecs.zlib", "configuration": {"nosuch": 1}}], "refuses the configuration"),
    ],
)
def test_bad_codec_lists(value, message):
    with pytest.raises(MetadataError, match=message):
        parse_codecs(value)


def test_unknown_codecs():
    with pytest.raises(UnknownCodecError, match=r"\$.codecs\[1\].name: unknown codec 'foo'; known are") as error:
        parse_codecs(["bytes", {"name": "foo"}])
    assert error.value.codec == "foo"
    with pytest.raises(UnknownCodecError, match="numcodecs .* has none of that id"):
        parse_codecs(["bytes", "numcodecs.nosuch"])
    chain = parse_codecs(["bytes", {"name": "foo", "must_understand": False}])
    assert [codec.label for codec in chain.codecs] == ["bytes"]


def test_codecs_as_users_give_them():
    for value in ("gzip", GzipCodec(5), {"name": "gzip"}, {"id": "gzip", "level": 5}, numcodecs.GZip(5)):
        assert as_codec(value) == GzipCodec(5)
    assert as_codec(numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE)) == BloscCodec("lz4", 5, "bitshuffle")
    settled = BloscCodec().settle(SPEC)
    assert (settled.typesize, settled.shuffle) == (4, "shuffle")
    assert Crc32cCodec().to_json() == {"name": "crc32c"}


def test_codecs_that_do_not_fit():
    for codecs, message in (
        ([TransposeCodec((0, 1, 2))], "order of 3 axes, the array has 2"),
        ([ShardingCodec((3, 3), chain_of([], SPEC))], r"inner chunks \(3, 3\) must divide shards \(8, 6\)"),
        (["vlen-utf8"], "stores data type 'string', the array has 'int32'"),
    ):
        with pytest.raises(MetadataError, match=message):
            bound(codecs)
    text = ArraySpec((2,), from_numpy(str), "")
    with pytest.raises(MetadataError, match="'bytes' can not store data type 'string'"):
        bound(["bytes"], text)
    sizes = ShardingCodec(
        (2, 3), chain_of([], SPEC), index_codecs=parse_codecs([BytesCodec("little").to_json(), "gzip"])
    )
    with pytest.raises(MetadataError, match="index of a fixed size"):
        bound([sizes])


def test_decoders_are_set_up_once_however_many_threads_begin():
    """A codec's module is loaded at its first chunk, which several threads may meet at once."""
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    from zarrasync.codecs.compressors import _with_header

    together = threading.Barrier(4, timeout=30)

    def load():
        together.wait()
        return SimpleNamespace(decompress=lambda data: b"four")

    decode = _with_header(lambda data: 4, load)(4, 9)
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
_DAMAGED = {
    **{f"{codec} {how}": (codec, damage) for codec in _TOGETHER for how, damage in _DAMAGE.items()},
    **{f"{codec} {size}": (codec, partial(_other_size, codec, size)) for codec in _TOGETHER for size in (100, 10_000)},
    "zstd hollow": ("zstd", partial(_other_size, "zstd", 0)),
    "zstd skipped": ("zstd", lambda value: value + b"\x50\x2a\x4d\x18\x04\0\0\0abcd"),
    "zstd flipped": ("zstd", lambda value: value[:-1] + bytes([value[-1] ^ 1])),
}


@pytest.mark.parametrize("kind", _DAMAGED)
def test_the_damaged_one_of_values_that_are_decoded_together_is_named(kind, tmp_path):
    data = np.random.default_rng(5).integers(0, 50, (40, 20)).astype("i4")
    codec, damage = _DAMAGED[kind]
    a = sync.create_array(tmp_path, data=data, chunks=(4, 4), compressors=_TOGETHER[codec])
    assert a.metadata.chain.decodes_batches
    path = tmp_path / "c" / "7" / "3"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CodecError, match=rf"^c/7/3 in .*: codec {codec} can not decode: "):
        a[...]
    with pytest.raises(CodecError, match=rf"^c/7/3 in .*: codec {codec} can not decode: "):
        a.vindex[[1, 29, 33], [2, 13, 5]]
    np.testing.assert_array_equal(a[:28], data[:28])
    path.unlink()
    data[28:32, 12:16] = 0
    np.testing.assert_array_equal(a[...], data)


@pytest.mark.parametrize("whole", [True, False], ids=["into the result", "beside it"])
@pytest.mark.parametrize("own", [True, False], ids=["C function", "numcodecs"])
@pytest.mark.parametrize("kind", ["blosc", "zstd", *(name for name in _DAMAGED if not name.endswith("00"))])
def test_values_are_decompressed_into_memory_that_is_there(kind, own, whole, tmp_path, monkeypatch):
    """By the C function and, where numcodecs keeps that to itself, without it; a damaged one is named."""
    if not own:
        monkeypatch.setattr(_functions, "_function", lambda *which: None)
    codec, damage = _DAMAGED.get(kind, (kind, None))
    data = np.random.default_rng(5).integers(0, 50, (256, 512)).astype("i4")
    a = sync.create_array(tmp_path, data=data, chunks=(32, 512 if whole else 256), compressors=_TOGETHER[codec])
    name = "c/5/0" if whole else "c/5/1"
    if damage is not None:
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
        with pytest.raises(CodecError, match=rf"^{name} in .*: codec {codec} can not decode: "):
            a[...]
        with pytest.raises(CodecError, match=rf"^{name} in .*: codec {codec} can not decode: "):
            a.vindex[[200, 163, 3], [500, 511, 20]]
    np.testing.assert_array_equal(a[:160], data[:160])
    np.testing.assert_array_equal(a.vindex[[150, 3, 40], [500, 511, 20]], data[[150, 3, 40], [500, 511, 20]])


@pytest.mark.parametrize("codec", [BloscCodec("lz4", typesize=4), ZstdCodec()], ids=["blosc", "zstd"])
def test_values_that_can_not_be_changed_are_decompressed_into_memory_that_is_there(codec):
    numbers = np.arange(4 << 14, dtype="f4").reshape(4, -1)
    values = [bytes(codec.encode(row.view("u1"))) for row in numbers]
    rows = np.empty((4, numbers[0].nbytes), "u1")
    decode = codec.rows_decoder(numbers[0].nbytes)
    assert decode(values[:2] + [memoryview(value) for value in values[2:]], list(rows))
    np.testing.assert_array_equal(rows.view("f4"), numbers)
    rows.fill(7)
    assert not decode([values[0], values[1][:3]], list(rows[:2]))
    assert not decode([values[0], values[1] + b"x"], list(rows[:2]))
    assert (rows == 7).all()
    kept = bytes(rows[0])
    assert not decode([values[0]], [np.frombuffer(kept, "u1")])
    assert not decode([values[0]], [np.zeros(2 * len(kept), "u1")[::2]])
    assert not decode([values[0]], [np.zeros(len(kept) - 1, "u1")])
    assert kept == bytes(rows[0])


def test_contexts_of_threads_that_are_gone_are_given_back():
    freed = []
    holder = _functions._Context(lambda: 5, freed.append)
    del holder
    assert freed == [5]


def test_raw_values_of_a_wrong_length_are_found_where_many_are_read_at_once(tmp_path):
    """Also where there are so many that no memory is set aside, and where what one lacks another has too much."""
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


def test_the_one_of_values_encoded_together_that_can_not_be_is_named():
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
    values[8:12] = 0  # nothing but the fill value: it is not encoded
    values[20:24] = 9
    with pytest.raises(CodecError, match=r"^c/5 in .*codec picky can not encode: bad"):
        a[...] = values


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("filters", "inner"),
    [
        ([{"name": "reshape", "configuration": {"shape": [[0], 8, 8, [2]]}}], [1, 8, 8, 16]),
        ([{"name": "reshape", "configuration": {"shape": [[0, 1], [2]]}}], [16, 16]),
        ([{"name": "transpose", "configuration": {"order": [2, 0, 1]}}], [16, 1, 8]),
    ],
)
def test_shards_of_another_shape_than_the_chunks_they_are(filters, inner, threads):
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    shards = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": inner,
            "codecs": [little, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        },
    }
    data = np.random.default_rng(0).random((8, 64, 64))
    a = sync.create_array({}, data=data, chunks=(4, 64, 64), filters=filters, serializer=shards, compressors=None)
    with config.set(threads=threads):
        opened = sync.open_array(a.store, mode="r+")
        for selection in (..., 1, (slice(None), 5), (1, slice(3, 9)), (slice(None), slice(None, None, 7))):
            np.testing.assert_array_equal(opened[selection], data[selection])


def test_zstd_of_other_writers_is_read_together_with_ours(tmp_path):
    """Frames without a size, of several blocks, with a window, with and without a checksum."""
    zstandard = pytest.importorskip("zstandard")
    data = np.random.default_rng(6).integers(0, 3, (6, 30_000)).astype("u1")
    a = sync.create_array(tmp_path, data=data, chunks=(1, 30_000), compressors=ZstdCodec(1))
    parameters = zstandard.ZstdCompressionParameters(window_log=10)
    several = zstandard.ZstdCompressor(level=3).compressobj(size=30_000)
    parts = [several.compress(data[3, :9000]) + several.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    others = {
        1: zstandard.ZstdCompressor(write_content_size=False).compress(data[1].tobytes()),
        2: zstandard.ZstdCompressor(compression_params=parameters).compress(data[2].tobytes()),
        3: b"".join([*parts, several.compress(data[3, 9000:]), several.flush()]),
        4: zstandard.ZstdCompressor(level=22, write_checksum=True).compress(data[4].tobytes()),
        5: zstandard.ZstdCompressor(level=-50).compress(data[5].tobytes()),
    }
    for some, together in (({1, 2, 3, 4, 5}, False), ({2, 3, 4, 5}, True)):
        a[...] = data
        chain = a.metadata.chain
        assert (chain.decompress_batch([others[number] for number in some])[0] is not chain) is together
        for number in some:
            (tmp_path / "c" / str(number) / "0").write_bytes(others[number])
        np.testing.assert_array_equal(a[...], data)


def test_a_zstandard_that_takes_one_value_at_a_time_will_do(tmp_path, monkeypatch):
    from zarrasync.codecs import compressors

    class Plain(compressors._Contexts):
        def __init__(self):
            super().__init__()
            self.decompress_all = None

        def compressor(self, level, checksum):
            whole = super().compressor(level, checksum)
            return type("Compressor", (), {"compress": staticmethod(whole.compress)})()

    plain = Plain()
    monkeypatch.setattr(compressors, "_contexts", lambda: plain)
    data = np.random.default_rng(5).integers(0, 50, (40, 40))
    a = sync.create_array(tmp_path, data=data, chunks=(4, 4), shards=(20, 20), compressors="zstd")
    assert not a.metadata.chain.innermost_chain.releases_gil
    np.testing.assert_array_equal(a[...], data)
    monkeypatch.undo()
    np.testing.assert_array_equal(sync.open_array(tmp_path)[...], data)


def test_memory_of_large_values_is_used_again_when_nobody_uses_it():
    from zarrasync._util import memory

    parts = [b"a" * (1 << 20), np.full(1 << 20, 98, np.uint8), memoryview(b"c" * 5)]
    first = memory.joined(parts, 3 << 20)
    assert bytes(first) == b"a" * (1 << 20) + b"b" * (1 << 20) + b"ccccc"
    assert memory.stays(first)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    part = first[5:20].view("u1")
    address = first.ctypes.data
    del first
    other = memory.joined(parts[::-1], 3 << 20)  # the part still needs the first one's memory
    assert other.ctypes.data != address
    assert bytes(part) == b"a" * 15
    del part
    assert memory.joined(parts, 3 << 20).ctypes.data == address
    assert not memory.stays(np.zeros(3, np.uint8))
    assert isinstance(memory.joined([b"few", b" bytes"], 9), bytes)
    few = [memory.joined(parts, 32 << 20) for _ in range(2)]  # do not hold what many could lie in
    assert {bytes(one) for one in few} == {b"".join(map(bytes, parts))}
    assert all(isinstance(one, bytes) for one in few)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("chunks", [(1, 4), (4, 1), (512, 512)])
def test_inner_chunks_lie_in_c_order(chunks: tuple[int, int], location: str):
    """However they were gathered: what is read in that order is read from front to back."""
    rows, columns = chunks
    data = np.random.default_rng(7).integers(1, 9, (8 * rows, 3 * columns))
    data[:rows, columns : 2 * columns] = 0
    spec = ArraySpec(data.shape, from_numpy(data.dtype), np.int64(0))
    inner = chain_of(["bytes", "zstd"], spec.replace(shape=chunks))
    shard = bytes(bound([ShardingCodec(chunks, inner, index_location=location)], spec).encode(data))
    size = 24 * 16 + 4  # of the index, with its checksum
    index = np.frombuffer(shard[-size:-4] if location == "end" else shard[: size - 4], "<u8").reshape(24, 2)
    assert index[1].tolist() == [2**64 - 1] * 2
    offsets, lengths = np.delete(index, 1, axis=0).T
    np.testing.assert_array_equal(offsets, (0 if location == "end" else size) + np.r_[0, lengths[:-1].cumsum()])
    for number in (0, 2, 23):
        row, column = divmod(number, 3)
        offset, length = map(int, index[number])
        np.testing.assert_array_equal(
            inner.bind(spec.replace(shape=chunks)).decode(shard[offset : offset + length]),
            data[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns],
        )


def test_numcodecs_says_nothing_to_those_who_do_not_import_it():
    """Where only one of the two packages for CRC32C is installed, it deprecates that whatever filters there are."""
    code = """
import sys
sys.modules["google_crc32c"] = None
from zarrasync import sync
array = sync.create_array({}, shape=(4,), dtype="i4")
array[...] = 1
print(array[...].sum(), "numcodecs" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("4 True\n", "")
