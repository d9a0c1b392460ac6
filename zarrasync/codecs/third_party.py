"""Codecs of other packages: whatever they raise, and what they make that does not fit, is a typed error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Decoder, Out
from zarrasync.codecs.partial import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import ZarrError

__all__ = ["watched", "watched_maker"]

C = TypeVar("C", bound=Codec)


def watched(codec: C) -> C:
    """A codec of ours as it is, another one so that its failures are told as ours are."""
    if _is_ours(codec):
        return codec
    kind = _Arrays if isinstance(codec, ArrayArrayCodec) else _Bytes if isinstance(codec, BytesBytesCodec) else None
    return codec if kind is None else cast(C, kind(codec, codec))


def watched_maker(codec: ArrayBytesCodec, spec: ArraySpec) -> BoundArrayBytes:
    """The same of a codec that makes bytes of arrays, bound to a chunk's spec."""
    bound = codec.bind(spec)
    return bound if _is_ours(codec) else cast(BoundArrayBytes, _Maker(codec, bound))


def _is_ours(codec: Codec) -> bool:
    return type(codec).__module__.partition(".")[0] == "zarrasync"


class _Watched:
    """Does what something else does, which belongs to a codec."""

    def __init__(self, codec: Codec, inner: Any) -> None:
        self._codec, self._inner = codec, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _call(self, direction: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (ZarrError, MemoryError):
            raise
        except Exception as error:  # whatever a third party's codec raises is a failure of that codec
            raise self._codec.fail(f"{type(error).__name__}: {error}", direction) from error

    def _row(self, made: Any) -> Buffer:
        """What was encoded, as one row of bytes, whose length is their number."""
        if isinstance(made, bytes):
            return made
        view = self._call("encode", memoryview, made)
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8)


class _Arrays(_Watched):
    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return self._fitting("encode", array, spec, self._inner.encoded_spec(spec))

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return self._fitting("decode", array, spec, spec)

    def _fitting(self, direction: str, array: Array, spec: ArraySpec, wanted: ArraySpec) -> Array:
        found = np.asarray(self._call(direction, getattr(self._inner, direction), array, spec))
        if found.shape != wanted.shape:
            raise self._codec.fail(f"an array of shape {found.shape} came out, not {wanted.shape}", direction)
        return found


class _Bytes(_Watched):
    def encode(self, data: Buffer) -> Buffer:
        found: Buffer = self._call("encode", self._inner.encode, data)
        given, size = memoryview(data).nbytes, self._call("encode", lambda: memoryview(found).nbytes)
        if self._inner.encoded_size(given) not in (None, size):
            raise self._codec.fail(f"{size} bytes came out, not {self._inner.encoded_size(given)}", "encode")
        return self._row(found)

    def encode_all(self, values: Sequence[Buffer]) -> Sequence[Buffer]:
        return [self.encode(value) for value in values]

    def decoder(self, size: int | None, limit: int) -> Decoder:
        decode = self._inner.decoder(size, limit)

        def call(data: Buffer, out: Out) -> Buffer:
            found: Buffer = self._call("decode", decode, data, out)
            count = self._call("decode", lambda: memoryview(found).nbytes)
            if size not in (None, count):
                raise self._codec.fail(f"{count} bytes came out, not {size}")
            return found

        return call


class _Maker(_Watched):
    def encode(self, array: Array) -> Buffer | None:
        found = self._call("encode", self._inner.encode, array)
        return None if found is None else self._row(found)

    def decode(self, data: Buffer) -> Array:
        return cast(Array, self._call("decode", self._inner.decode, data))
