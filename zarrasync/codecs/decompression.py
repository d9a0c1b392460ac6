"""Bounded decompression: the size of a result is checked before memory is allocated for it.

A size that a header declares is compared with the size of the chunk, or with the budget if that is not known. Without a
header, decompression stops one byte after the budget.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from itertools import count
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.fork import reentrant_lock
from zarrasync._util.memory import check_budget, reason_of
from zarrasync.codecs.base import Codec, Decoder, Out
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import ChecksumError, UnknownCodecError

DecoderFactory: TypeAlias = Callable[["int | None", int], Decoder]
"""Returns a decoder for a size, if that is known, and a limit. The decoder may raise errors of its library."""

WARNINGS = reentrant_lock()
"""Held while filters of warnings are changed, which belong to the whole process. Otherwise two threads that restore them in
another order than they changed them would lose the filters of the program."""

_MAX_MEMBERS, _LEAST_MEMBER = 1000, 1 << 10
"""Members of a gzip or bzip2 value, and average bytes of further ones. Starting a member takes as long as decompressing
some KiB, and parallel compressors write larger ones."""
_WINDOW = 1 << 16
"""Bytes that are decompressed at a time. The rest would be copied for each member."""
_WORDS = {2: "<u2", 4: "<u4"}
"""Sizes of elements that are assembled in registers, which is faster than writing their bytes one by one."""
_SLOW_OUT_SIZE = 1 << 15
"""Result size below which numcodecs takes longer to check memory of the caller than to allocate."""


@cache
def numcodecs_module(name: str) -> ModuleType:
    """Import a module of numcodecs without its deprecation warning about crc32c.

    Raises:
        UnknownCodecError: If numcodecs cannot be imported.
    """
    try:
        with WARNINGS, warnings.catch_warnings(record=True):  # numcodecs inserts its own filter before others
            return import_module(f"numcodecs.{name}")
    except ImportError as error:
        raise UnknownCodecError(
            f"codecs of numcodecs, such as blosc and lz4, cannot be used, because Python cannot import it: {error}; "
            "install a build of numcodecs with its compiled modules (PyPy has none)"
        ) from error


def with_size_header(
    declared_size: Callable[[Buffer], int | None],
    load_module: Callable[[], Any],
    load_small: Callable[[], Any] | None = None,
    least_out_size: int = _SLOW_OUT_SIZE,
    decode_undeclared: Callable[[Buffer, int], Buffer] | None = None,
) -> DecoderFactory:
    """Return a factory of decoders for values that declare their size.

    Args:
        declared_size: Reads the size of a value; ``None`` if it does not declare one.
        load_module: Loads the module of numcodecs that decodes into memory of the caller, or a similar object.
        load_small: Loads an object that decodes small values faster.
        least_out_size: Size from which on results are written into memory of the caller.
        decode_undeclared: Decodes a value of unknown size within a budget.
    """

    @cache
    def functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
        return load_module().decompress, (load_small or load_module)().decompress

    def decoder(size: int | None, limit: int) -> Decoder:
        def decode(data: Buffer, out: Out) -> Buffer:
            declared = declared_size(data)
            expected = declared if size is None else size
            if expected is None:
                if decode_undeclared is None:
                    raise ValueError("the value does not declare its size and the chunk does not fix it")
                return decode_undeclared(data, limit)
            if declared != expected and declared is not None:
                raise ValueError(f"the value declares {declared} bytes, expected {size}")
            if expected > limit:
                check_budget(limit, expected)
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
    """Return a factory of decoders that stop at the budget.

    Args:
        start: Returns a new object with ``decompress(data, max_length)``, ``eof`` and ``unused_data``.
    """

    def decoder(size: int | None, limit: int) -> Decoder:
        def decode_known(data: Buffer, out: Out) -> Buffer:
            assert size is not None
            stream = start()
            first = stream.decompress(data, size + 1)
            if stream.eof and not stream.unused_data and len(first) <= size:
                return first  # type: ignore[no-any-return]  # bytes
            return _decompress_members(start, memoryview(data), size)

        return partial(_decode_unknown, start, limit) if size is None else decode_known

    return decoder


def _decode_unknown(start: Callable[[], Any], limit: int, data: Buffer, out: Out) -> Buffer:
    return _decompress_members(start, memoryview(data), limit)


def _decompress_members(start: Callable[[], Any], data: memoryview, limit: int) -> bytes:
    """Decompress members one after the other, which zeros may follow, in steps.

    Args:
        start: See ``stream_decoder``.
        data: The members.
        limit: The most bytes that may come out.
    """
    parts, room, position, most_members = list[bytes](), limit, 0, _MAX_MEMBERS + len(data) // _LEAST_MEMBER
    for number in count():
        if number and (position == len(data) or not any(data[position:])):
            return b"".join(parts)
        if number > most_members:
            raise ValueError(f"the value has more than {most_members:,} members")
        stream = start()
        while not stream.eof:
            window = data[position : position + _WINDOW]
            if not len(window):
                raise ValueError("the value is cut short")
            parts.append(stream.decompress(window, room + 1))
            room -= len(parts[-1])
            if room < 0:
                check_budget(limit, limit - room, at_least=True)
            position += len(window)
        position -= len(stream.unused_data)
    raise AssertionError  # members are counted without end


_DATA_ERRORS = (
    ValueError, TypeError, RuntimeError, OSError, EOFError, OverflowError, MemoryError, SystemError, zlib.error
)  # fmt: skip
"""Errors that decompressors raise for damaged values, or for parameters that only they can check."""


_CHECKSUM_FAILURE = re.compile("checksum|data check|crc", re.IGNORECASE)
"""Messages of libraries that are about a checksum."""


def is_data_error(error: Exception) -> bool:
    """Return whether an error is about the data. Some libraries define their own error classes."""
    if isinstance(error, UnknownCodecError):  # the library cannot be imported
        return False
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
            failure = codec.fail(reason_of(error, with_kind=False))
            if _CHECKSUM_FAILURE.search(str(error)):
                failure = ChecksumError(str(failure), codec=failure.codec)
            raise failure from error
        if size is not None and len(decoded) != size:
            raise codec.fail(f"the result has {len(decoded)} bytes, expected {size}")
        return decoded

    return decode


def shuffle_decoder(element_size: int) -> DecoderFactory:
    """Return a factory of decoders of numcodecs' ``shuffle``, which decode into memory of the caller, without the GIL.

    The encoded bytes contain the first byte of each element, then the second byte of each, and so on.

    Args:
        element_size: The size of an element in bytes.
    """

    def decoder(size: int | None, limit: int) -> Decoder:
        def decode(data: Buffer, out: Out) -> Buffer:
            if len(data) > limit:
                check_budget(limit, len(data))
            if len(data) % max(element_size, 1):
                raise ValueError(f"{len(data)} bytes are no multiple of the element size {element_size}")
            if size is not None and len(data) != size:
                raise ValueError(f"the value has {len(data)} bytes, expected {size}")
            if element_size <= 1:
                return data
            result = np.empty(len(data), np.uint8) if out is None else out
            _unshuffle(np.frombuffer(data, np.uint8).reshape(element_size, -1), result)
            return result

        return decode

    return decoder


def _unshuffle(planes: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Write the elements whose first, second and further bytes are given. NumPy releases the GIL meanwhile."""
    size = len(planes)
    if size in _WORDS:
        words = out.view(_WORDS[size])
        np.copyto(words, planes[-1])
        for plane in planes[-2::-1]:
            np.left_shift(words, 8, out=words)
            np.bitwise_or(words, plane, out=words)
    else:
        elements = out.reshape(-1, size)
        for number, plane in enumerate(planes):
            elements[:, number] = plane
