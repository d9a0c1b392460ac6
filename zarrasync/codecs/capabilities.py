"""What a bound chain of codecs can do, derived once per kind of chunk.

Each function derives one value that ``BoundChain`` keeps as an attribute. The attributes of ``BoundChain`` document them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, BytesBytesCodec, Codec
from zarrasync.codecs.partial import BoundArrayBytes
from zarrasync.codecs.spec import ArraySpec

__all__ = [
    "ArrayStep",
    "decodes_into_buffer",
    "encoded_sizes",
    "is_quick",
    "read_size_hint",
    "supports_partial_reads",
]

ArrayStep: TypeAlias = tuple[ArrayArrayCodec, ArraySpec]
"""An array -> array codec with the spec of its decoded side."""


def encoded_sizes(raw_size: int | None, compressors: Iterable[BytesBytesCodec]) -> list[int | None]:
    """Return the bytes after the array -> bytes codec and after each bytes -> bytes codec, ``None`` if data-dependent."""
    sizes = [raw_size]
    for codec in compressors:
        size = sizes[-1]
        sizes.append(None if size is None else codec.encoded_size(size))
    return sizes


def read_size_hint(raw_size: int | None, encoded_size: int | None) -> int:
    """Return a buffer size that holds most encoded chunks: an eighth and 4 KiB more than the raw chunk.

    It is the exact size if all encoded chunks have the same, and 0 if the size of raw chunks depends on the data.
    """
    return encoded_size or (raw_size + raw_size // 8 + 4096 if raw_size else 0)


def supports_partial_reads(
    serializer: BoundArrayBytes, array_steps: Sequence[ArrayStep], compressors: Sequence[BytesBytesCodec]
) -> bool:
    """Return whether parts of an encoded chunk can be located.

    The array -> bytes codec must support it, array -> array codecs may only reorder axes, and nothing may encode the
    bytes as a whole.
    """
    if compressors or not getattr(serializer, "divisible", True):
        return False
    return all(codec.permutation is not None for codec, _ in array_steps)


def is_quick(raw_size: int | None, codecs: Iterable[Codec]) -> bool:
    """Return whether decoding small chunks takes little time: their size is known and every codec is ``brief``."""
    return raw_size is not None and all(codec.brief for codec in codecs)


def decodes_into_buffer(stored_dtype: np.dtype[Any] | None, compressors: Sequence[BytesBytesCodec]) -> bool:
    """Return whether large chunks are decoded into memory of the caller without a copy.

    Raw chunks are read there. Otherwise the first bytes -> bytes codec, which is the last one to decode, must do so.
    """
    return compressors[0].fills if compressors else stored_dtype is not None
