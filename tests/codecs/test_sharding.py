"""Shards: parts equal the whole, damage is found, inner chunks in C order."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.codec_chains import DATA, SPEC, bound, shards
from zarrasync import config, stores, sync
from zarrasync.codecs import ArraySpec, BytesCodec, CodecChain, ShardingCodec, TransposeCodec, ZstdCodec, chain_of
from zarrasync.errors import CodecError, MetadataError
from zarrasync.indexing.projection import Projection
from zarrasync.model.dtypes import from_numpy


def test_shards_inside_a_compressor():
    """NumPy considers None equal to float64; the chain must not."""
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


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    ("order", "stored"),
    [("C", [0, 1, 2, 3, 4, 5, 6, 7]), ("F", [0, 2, 4, 6, 1, 3, 5, 7]), ("morton", [0, 2, 1, 3, 4, 6, 5, 7])],
)
def test_inner_chunks_are_stored_in_the_order_of_the_codec(order: Any, stored: list[int], location: str):
    codec = ShardingCodec((1, 1), CodecChain.of([BytesCodec()]), index_location=location, order=order)
    chain = bound([codec], ArraySpec((4, 2), from_numpy("u1"), np.uint8(9)))
    shard = np.arange(8, dtype="u1").reshape(4, 2)
    data = bytes(chain.encode(shard))
    assert list(data[-8:] if location == "start" else data[:8]) == stored
    np.testing.assert_array_equal(chain.decode(data), shard)
    part = Projection((), (slice(1, 2, 1), slice(0, 2, 1)), (slice(0, 1, 1), slice(0, 2, 1)), is_basic=True)
    merged, is_empty = chain.merge(data, part, np.array([[9, 7]], "u1"))  # one becomes absent
    assert not is_empty
    np.testing.assert_array_equal(chain.decode(merged), [[0, 1], [9, 7], [4, 5], [6, 7]])
    created, _ = chain.merge(None, part, np.array([[9, 7]], "u1"))
    np.testing.assert_array_equal(chain.decode(created), [[9, 9], [9, 7], [9, 9], [9, 9]])
    assert chain.merge(None, part, np.array([[9, 9]], "u1")) == (None, True)


def test_the_order_of_inner_chunks_belongs_to_the_codec():
    """Two codecs that write different shards are not equal, so that nothing takes one for the other."""
    codecs = [ShardingCodec((1, 1), CodecChain.of([BytesCodec()]), order=order) for order in ("C", "F", "C")]
    assert codecs[0] == codecs[2] != codecs[1]
    assert len({*codecs}) == 2
    assert codecs[0].to_json() == codecs[1].to_json()
    with pytest.raises(ValueError, match="order must be one of C, F, morton, found 'Z'"):
        ShardingCodec((1, 1), CodecChain.of([BytesCodec()]), order="Z")  # type: ignore[arg-type]  # wrong on purpose


def test_an_inner_chunk_of_the_wrong_length_is_refused():
    values: dict[str, bytes] = {}
    data = np.arange(1, 32769, dtype="i4")
    a = sync.create_array(values, data=data, chunks=16384, shards=32768, compressors=None)
    value = bytearray(values["c/0"])
    index = [int.from_bytes(value[-36 + i : -28 + i], "little") for i in (0, 8, 16, 24)]
    assert index == [0, 65536, 65536, 65536]
    from zarrasync.codecs.sharding import DEFAULT_INDEX

    spec = ArraySpec((2, 2), from_numpy("u8"), np.uint64(0))
    for length in (100, 1 << 36):
        wrong = DEFAULT_INDEX.bind(spec).encode(np.array([[0, length], [65536, 65536]], "u8"))
        values["c/0"] = bytes(value[:-36]) + bytes(wrong)
        for key in (slice(10000, 10010), slice(0, 16384), ...):
            with pytest.raises(CodecError, match="which is impossible"):
                a[key]


def test_a_value_of_many_empty_members_is_refused_at_once():
    with pytest.raises(CodecError, match=r"more than [\d,]+ members"):
        bound(["gzip"]).decode(gzip.compress(b"") * 100_000)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3)), min_size=2, max_size=2),
    st.sampled_from(["end", "start"]),
    st.sampled_from(["raw", "gzip", "nested", "turned"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
def test_parts_of_shards_equal_the_full_read(box, location, kind):
    kinds: dict[str, list[Any]] = {
        "raw": [],
        "gzip": ["gzip"],
        "nested": [ShardingCodec((1, 1), chain_of(["zstd"], SPEC.replace(shape=(1, 1))), index_location=location)],
        "turned": [TransposeCodec((1, 0))],
    }
    inner = kinds[kind]
    data = DATA.copy()
    data[2:4, 0:3] = 0  # a missing inner chunk
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
        (value[:10], "fewer than its index needs"),
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
    with pytest.raises(CodecError, match=r"gives 68719476736 bytes for inner chunk 0, which is impossible"):
        chain.decode(bytes(large))
    half = value.copy()
    half[-index : -index + 8] = b"\xff" * 8
    with pytest.raises(CodecError, match="an impossible byte range"):
        chain.decode(bytes(half))


def test_damage_in_a_store_names_the_key():
    for chunks, outer in ((4, None), (2, 4)):
        values: dict[str, bytes] = {}
        a = sync.create_array(values, name="g/a", data=np.arange(8), compressors="gzip", chunks=chunks, shards=outer)
        values["g/a/c/1"] = values["g/a/c/1"][:-3]
        np.testing.assert_array_equal(a[:4], [0, 1, 2, 3])
        for read in (lambda a=a: a[...], lambda a=a: a[5], lambda a=a: a.__setitem__(5, 1)):
            with pytest.raises(CodecError, match=r"^g/a/c/1 in MemoryStore\(5 values\): ") as error:
                read()
            assert error.value.key == "g/a/c/1"


def test_inner_chunks_without_bytes_are_damage():
    values: dict[str, bytes] = {}
    a = sync.create_array(
        values, data=np.arange(6000).reshape(6, 1000), chunks=(1, 1000), shards=(6, 1000), compressors="zstd"
    )
    value = bytearray(values["c/0/0"])
    value[-92:-84] = bytes(8)  # the length of the first
    value[-4:] = crc32c(bytes(value[-100:-4])).to_bytes(4, "little")
    values["c/0/0"] = bytes(value)
    remote = stores.WrapperStore(a.store)
    remote.blocking = False
    for opened in (sync.open_array(a.store), sync.open_array(remote)):
        np.testing.assert_array_equal(opened[1], np.arange(1000, 2000))
        for selection in (0, slice(0, 2), ...):
            with pytest.raises(CodecError, match="c/0/0"):
                opened[selection]


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


@pytest.mark.parametrize("order", ["C", "F", "morton"])
def test_shards_of_very_many_inner_chunks(order: Any):
    """The order of inner chunks is computed up to a size that fits into memory."""
    codec = ShardingCodec((1, 1), CodecChain.of([BytesCodec()]), order=order)
    spec = ArraySpec((1 << 13, 1 << 13), from_numpy(np.dtype("u1")), np.uint8(0))
    if order == "C":
        codec.bind(spec)
    else:
        with pytest.raises(MetadataError, match="67,108,864 inner chunks cannot be stored in the order"):
            codec.bind(spec)
