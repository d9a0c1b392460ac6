"""Codecs by themselves: round trips, damage, documents that are refused."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import zlib
from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.codec_chains import DATA, SPEC, bound
from tests.support.covering import covering
from zarrasync import sync
from zarrasync.codecs import (
    ArraySpec,
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
    as_codec,
    chain_of,
    parse_codecs,
)
from zarrasync.errors import ChecksumError, CodecError, MetadataError, UnknownCodecError
from zarrasync.model.dtypes import from_numpy

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
    "shuffle": ["numcodecs.shuffle", "numcodecs.zlib"],
    "two": ["numcodecs.zlib", "gzip"],
}


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
    """Truncated, extended and garbled values raise a typed error or, without a checksum, give an array of the right shape."""
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
            assert error.codec  # noqa: PT017  # not all damage is noticed
        else:
            assert found.shape == (8, 6)
    for value in (b"", data[:-1], data[: len(data) // 2]):
        if codecs != CHAINS["bz2"]:
            with pytest.raises(CodecError):
                chain.decode(value)


def test_bombs_do_not_go_off():
    """Decompression stops before it allocates more memory than the chunk needs."""
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
        with pytest.raises(CodecError, match=r"more than 192 bytes|declares \d+ bytes, expected 192|192"):
            bound(codecs).decode(value)


def test_checksums():
    chain = bound(["crc32c"])
    data = bytearray(chain.encode(DATA))
    data[5] ^= 1
    with pytest.raises(
        ChecksumError, match=r"stored checksum is 0x[0-9a-f]{8}, but the bytes have checksum 0x"
    ) as error:
        chain.decode(bytes(data))
    assert error.value.codec == "crc32c"
    assert isinstance(error.value, CodecError)


def test_gzip_members_and_padding():
    raw = DATA.tobytes()
    joined = gzip.compress(raw[:100]) + gzip.compress(raw[100:])
    np.testing.assert_array_equal(bound(["gzip"]).decode(joined), DATA)
    np.testing.assert_array_equal(bound(["gzip"]).decode(gzip.compress(raw) + b"\0" * 8), DATA)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "expected a list"),
        ([], "exactly one array -> bytes codec"),
        (["gzip"], "exactly one array -> bytes codec"),
        (["bytes", "bytes"], "found 2 in: bytes, bytes"),
        ([{"name": "gzip", "configuration": {"level": 1}}, "bytes"], "out of order"),
        ([3], r"\$.codecs\[0\]: a codec must be an object with a name, found 3"),
        ([{"configuration": {}}], "a codec must be an object with a name"),
        (["bytes", {"name": "gzip", "configuration": 3}], r"\$.codecs\[1\].configuration: expected an object"),
        (
            ["bytes", {"name": "gzip", "configuration": {"level": "x"}}],
            "level must be an integer from -1 to 9, found 'x'",
        ),
        (["bytes", {"name": "gzip", "configuration": {"nosuch": 1}}], "unknown member 'nosuch'"),
        ([{"name": "bytes", "configuration": {"endian": "middle"}}], "'little' or 'big', found 'middle'"),
        ([{"name": "transpose", "configuration": {"order": [0, 0]}}, "bytes"], "permutation of the axes"),
        ([{"name": "transpose", "configuration": {}}, "bytes"], "order"),
        ([{"name": "sharding_indexed", "configuration": {}}], "missing member 'chunk_shape'"),
        ([{"name": "sharding_indexed", "configuration": {"chunk_shape": [0]}}], "positive integers"),
        (["bytes", {"name": "zstd", "configuration": {"level": 1, "checksum": 3}}], "checksum must be true or false"),
        (["bytes", {"name": "blosc", "configuration": {"cname": "x"}}], "cname must be one of"),
        (["bytes", {"name": "numcodecs.zlib", "configuration": {"nosuch": 1}}], "rejects the configuration"),
    ],
)
def test_bad_codec_lists(value, message):
    with pytest.raises(MetadataError, match=message):
        parse_codecs(value)


def test_unknown_codecs():
    with pytest.raises(
        UnknownCodecError, match=r"\$.codecs\[1\].name: unknown codec 'foo'; install the package"
    ) as error:
        parse_codecs(["bytes", {"name": "foo"}])
    assert error.value.codec == "foo"
    with pytest.raises(UnknownCodecError, match=r"numcodecs .* has no codec with this ID"):
        parse_codecs(["bytes", "numcodecs.nosuch"])
    chain = parse_codecs(["bytes", {"name": "foo", "must_understand": False}])
    assert [codec.label for codec in chain.codecs] == ["bytes"]


def test_codecs_as_users_give_them():
    for value in ("gzip", GzipCodec(5), {"name": "gzip"}, {"id": "gzip", "level": 5}, numcodecs.GZip(5)):
        assert as_codec(value) == GzipCodec(5)
    assert as_codec(numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE)) == BloscCodec("lz4", 5, "bitshuffle")
    settled = BloscCodec().settle(SPEC)
    assert isinstance(settled, BloscCodec)
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
    with pytest.raises(MetadataError, match="'bytes' cannot store data type 'string'"):
        bound(["bytes"], text)
    sizes = ShardingCodec(
        (2, 3), chain_of([], SPEC), index_codecs=parse_codecs([BytesCodec("little").to_json(), "gzip"])
    )
    with pytest.raises(MetadataError, match="index of a fixed size"):
        bound([sizes])


def test_zstd_of_other_writers_is_read_together_with_ours(tmp_path):
    """Frames without a content size, of several blocks, with a window, with and without a checksum."""
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
    for some in ({1, 2, 3, 4, 5}, {2, 3, 4, 5}):
        a[...] = data
        for number in some:
            (tmp_path / "c" / str(number) / "0").write_bytes(others[number])
        np.testing.assert_array_equal(a[...], data)


@pytest.mark.parametrize(
    ("size", "compression"), covering([0, 1, 2, 3, 4, 6, 8, 16], [[], [{"id": "zlib", "level": 1}]], strength=1)
)
def test_shuffled_elements_of_all_sizes(size, compression):
    data = np.random.default_rng(size).integers(0, 256, (3, 16, 96), dtype="u1")
    filters = [{"id": "shuffle", "elementsize": size}, *compression]
    store = {}
    array = sync.create_array(
        store, data=data, chunks=(1, 16, 96), zarr_format=2, filters=filters, compressors=None, fill_value=0
    )
    stored = store["1.0.0"] if not compression else zlib.decompress(store["1.0.0"])
    assert bytes(stored) == bytes(numcodecs.Shuffle(size).encode(data[1]))
    assert array.metadata.chain.decodes_into_buffer
    np.testing.assert_array_equal(array[...], data)
    np.testing.assert_array_equal(array[:, 3:7, ::5], data[:, 3:7, ::5])
    np.testing.assert_array_equal(array.view[1].read(out=np.empty((16, 96), "u1")), data[1])


def test_shuffled_values_of_the_wrong_size():
    store = {}
    array = sync.create_array(
        store, data=np.arange(8, dtype="i4"), zarr_format=2, filters=[numcodecs.Shuffle(4)], compressors=None
    )
    for damaged in (bytes(31), bytes(28), bytes(36)):
        store["0"] = damaged
        with pytest.raises(CodecError, match="bytes"):
            array[...]


@pytest.mark.processes
def test_numcodecs_warnings_are_suppressed():
    """numcodecs warns at import if ``google_crc32c`` is not installed."""
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


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_blosc_refuses_chunks_that_it_cannot_compress(zarr_format):
    """The header declares 32-bit sizes, so the first write would fail."""
    options = {"dtype": "f4", "compressors": numcodecs.Blosc(), "zarr_format": zarr_format}
    with pytest.raises(MetadataError, match="at most 2,147,483,631 bytes"):
        sync.create_array({}, shape=1 << 29, chunks=1 << 29, **options)
    assert sync.create_array({}, shape=1 << 29, chunks=1 << 28, **options).nchunks == 2


@pytest.mark.parametrize(
    ("codec", "match"),
    [
        (
            {"name": "gzip", "configuration": {"levels": 1}},
            "codec 'gzip': unknown member 'levels'; did you mean 'level'",
        ),
        (
            {"name": "zstd", "configuration": {"x": 1}},
            "codec 'zstd': unknown member 'x'; the members are level, checksum",
        ),
        ({"name": "crc32c", "configuration": {"x": 1}}, "unknown member 'x'; the codec has no members"),
        ({"id": "gzip", "levels": 1}, "codec 'gzip': .*: got an unexpected keyword argument 'levels'"),
        ({"id": "zlib", "levels": 1}, "codec 'zlib': .*: got an unexpected keyword argument 'levels'"),
        (
            {"name": "numcodecs.zlib", "configuration": {"levels": 1}},
            "'zlib': .*: got an unexpected keyword argument 'levels'",
        ),
    ],
)
def test_messages_name_misspelt_members(codec: dict[str, Any], match: str):
    with pytest.raises(MetadataError, match=match) as error:
        sync.create_array({}, shape=4, compressors=[codec])
    assert "__init__" not in str(error.value)
    assert "Codec." not in str(error.value)
