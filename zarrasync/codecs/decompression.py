"""Bounded decompression: the size of a result is checked before memory is allocated for it.

A size that a header declares is compared with the size of the chunk. Without a header, decompression stops one byte
after the limit. A damaged or hostile value therefore raises an error instead of exhausting memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from zarrasync.codecs.base import BatchDecoder, Codec, Decoder, Out
from zarrasync.codecs.spec import Buffer

__all__ = [
    "DecoderFactory",
    "checked_decoder",
    "is_data_error",
    "none_if_damaged",
    "stream_decoder",
    "with_size_header",
]

DecoderFactory: TypeAlias = Callable[["int | None", int], Decoder]
"""Returns a decoder for a size, if that is known, and a limit. The decoder may raise errors of its library."""

_MAX_MEMBERS = 1000
"""Members of a gzip or bzip2 value. Parallel compressors write a few; only an attack uses more than this."""
_SLOW_OUT_SIZE = 1 << 15
"""Result size below which numcodecs takes longer to check memory of the caller than to allocate."""


def with_size_header(
    declared_size: Callable[[Buffer], int | None],
    load_module: Callable[[], ModuleType],
    load_small: Callable[[], Any] | None = None,
    least_out_size: int = _SLOW_OUT_SIZE,
) -> DecoderFactory:
    """Return a factory of decoders for values that declare their size.

    Args:
        declared_size: Reads the size of a value; ``None`` if it does not declare one.
        load_module: Loads the module of numcodecs that decodes into memory of the caller.
        load_small: Loads an object that decodes small values faster.
        least_out_size: Size from which on results are written into memory of the caller.
    """

    @cache
    def functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
        return load_module().decompress, (load_small or load_module)().decompress

    def decoder(size: int | None, limit: int) -> Decoder:
        def decode(data: Buffer, out: Out) -> Buffer:
            declared = declared_size(data)
            expected = declared if size is None else size
            if expected is None:
                raise ValueError("the value does not declare its size and the chunk does not fix it")
            if declared != expected and declared is not None:
                raise ValueError(f"the value declares {declared} bytes, expected {size}")
            if expected > limit:
                raise ValueError(f"the value declares {expected} bytes, more than the limit of {limit}")
            decompress_into, decompress = functions()
            if out is not None and expected >= least_out_size:
                decompress_into(data, out)
                return out
            if expected == 0:
                return b""
            if declared is None:
                memory = np.empty(expected, np.uint8)
                decompress_into(data, memory)
                return memory
            return decompress(data)  # type: ignore[no-any-return]  # numcodecs has no types

        return decode

    return decoder


def stream_decoder(start: Callable[[], Any]) -> DecoderFactory:
    """Return a factory of decoders that stop at the limit.

    Args:
        start: Returns a new object with ``decompress(data, max_length)``, ``eof`` and ``unused_data``.
    """

    def decoder(size: int | None, limit: int) -> Decoder:
        most = limit if size is None else size

        def decode(data: Buffer, out: Out) -> Buffer:
            members: list[bytes] = []
            total = 0
            while True:
                stream = start()
                member = stream.decompress(data, most - total + 1)
                members.append(member)
                total += len(member)
                if len(members) > _MAX_MEMBERS:
                    raise ValueError(f"the value has more than {_MAX_MEMBERS} members")
                if total > most:
                    raise ValueError(f"the result has more than {most} bytes")
                if not stream.eof:
                    raise ValueError("the value is cut short")
                data = memoryview(stream.unused_data)
                if len(data) == 0 or not any(data):  # no other member follows, at most padding
                    break
            return members[0] if len(members) == 1 else b"".join(members)

        return decode

    return decoder


_DATA_ERRORS = (
    ValueError, TypeError, RuntimeError, OSError, EOFError, OverflowError, MemoryError, SystemError, zlib.error
)  # fmt: skip
"""Errors that decompressors raise for damaged values, or for parameters that only they can check."""


def is_data_error(error: Exception) -> bool:
    """Return whether an error is about the data. Some libraries define their own error classes."""
    return isinstance(error, _DATA_ERRORS) or type(error).__name__ in ("IsalError", "error", "LZMAError", "ZstdError")


def checked_decoder(codec: Codec, decoder: Decoder, size: int | None) -> Decoder:
    """Wrap a decoder so that it raises ``CodecError`` for values that are damaged or have the wrong size.

    Args:
        codec: The codec that messages name.
        decoder: The decoder.
        size: The exact number of decoded bytes, if known.
    """

    def decode(data: Buffer, out: Out) -> Buffer:
        try:
            decoded = decoder(data, out)
        except Exception as error:
            if not is_data_error(error):
                raise
            raise codec.fail(str(error) or type(error).__name__) from error
        if size is not None and len(decoded) != size:
            raise codec.fail(f"the result has {len(decoded)} bytes, expected {size}")
        return decoded

    return decode


def none_if_damaged(decode: BatchDecoder) -> BatchDecoder:
    """Wrap a decoder of several values so that it returns ``None`` if one is damaged."""

    def decode_or_none(values: Sequence[Buffer]) -> Sequence[Buffer] | None:
        try:
            return decode(values)
        except Exception as error:
            if not is_data_error(error):
                raise
            return None

    return decode_or_none
