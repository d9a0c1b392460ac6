"""Codecs, their registry, and the parsers of their names and configurations.

>>> from zarrasync.codecs import ZstdCodec
>>> ZstdCodec(level=3).to_json()
{'name': 'zstd', 'configuration': {'level': 3, 'checksum': True}}
"""

from __future__ import annotations

from zarrasync.codecs.array_codecs import BitroundCodec, PackbitsCodec, ReshapeCodec, ScaleOffsetCodec, TransposeCodec
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from zarrasync.codecs.blosc import BloscCodec
from zarrasync.codecs.byte_ranges import Piece, Range
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.cast_value import CastValueCodec
from zarrasync.codecs.chain import BoundChain, CodecChain
from zarrasync.codecs.containers import ConditionalCodec, N5Codec
from zarrasync.codecs.crc32c import Crc32cCodec
from zarrasync.codecs.gzip import GzipCodec
from zarrasync.codecs.numcodecs import NumcodecsArray, NumcodecsBytes, adapt
from zarrasync.codecs.objects import OBJECT_CODECS, ObjectCodec, VlenBytesCodec, VlenUtf8Codec
from zarrasync.codecs.registry import (
    as_codec,
    chain_of,
    default_array_bytes,
    from_numcodecs,
    parse_codec,
    parse_codecs,
    register,
    registered,
)
from zarrasync.codecs.sharding import ShardingCodec
from zarrasync.codecs.spec import ArraySpec, Buffer
from zarrasync.codecs.zfp import ZfpCodec
from zarrasync.codecs.zstd import ZstdCodec

__all__ = [
    "OBJECT_CODECS",
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "ArraySpec",
    "BitroundCodec",
    "BloscCodec",
    "BoundChain",
    "Buffer",
    "BytesBytesCodec",
    "BytesCodec",
    "CastValueCodec",
    "Codec",
    "CodecChain",
    "ConditionalCodec",
    "Crc32cCodec",
    "GzipCodec",
    "N5Codec",
    "NumcodecsArray",
    "NumcodecsBytes",
    "ObjectCodec",
    "PackbitsCodec",
    "Piece",
    "Range",
    "ReshapeCodec",
    "ScaleOffsetCodec",
    "ShardingCodec",
    "TransposeCodec",
    "VlenBytesCodec",
    "VlenUtf8Codec",
    "ZfpCodec",
    "ZstdCodec",
    "adapt",
    "as_codec",
    "chain_of",
    "default_array_bytes",
    "from_numcodecs",
    "parse_codec",
    "parse_codecs",
    "register",
    "registered",
]
