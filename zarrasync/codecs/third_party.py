"""Guards around codecs of other packages, so that their failures and wrong results raise ``CodecError``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from zarrasync._util.output_budget import reason_of
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Decoder, Out
from zarrasync.codecs.partial import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.codecs.zarr_python import Wrapped
from zarrasync.errors import ZarrError

__all__ = ["checked", "checked_serializer"]

C = TypeVar("C", bound=Codec)


def checked(codec: C) -> C:
    """Return a codec of this package unchanged, and one of another package with its results checked."""
    if _is_builtin(codec):
        return codec
    if isinstance(codec, ArrayArrayCodec):
        return cast(C, _CheckedArrays(codec, codec))
    return cast(C, _CheckedBytes(codec, codec)) if isinstance(codec, BytesBytesCodec) else codec


def checked_serializer(codec: ArrayBytesCodec, spec: ArraySpec) -> BoundArrayBytes:
    """Bind an array -> bytes codec to a kind of chunk; one of another package has its results checked."""
    bound = codec.bind(spec)
    return bound if _is_builtin(codec) else cast(BoundArrayBytes, _CheckedSerializer(codec, bound))


def _is_builtin(codec: Codec) -> bool:
    return type(codec).__module__.partition(".")[0] == "zarrasync" and not isinstance(codec, Wrapped)


class _Checked:
    """Base of the guards: delegates to an object that belongs to a codec."""

    def __init__(self, codec: Codec, inner: Any) -> None:
        self._codec, self._inner = codec, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _call(self, direction: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except ZarrError:
            raise
        except Exception as error:  # codecs of other packages raise errors of any kind
            raise self._codec.fail(reason_of(error), direction) from error

    def _as_bytes(self, encoded: Any) -> Buffer:
        """Return an encoded value as a buffer whose length is its number of bytes."""
        if isinstance(encoded, bytes):
            return encoded
        view = self._call("encode", memoryview, encoded)
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8)


class _CheckedArrays(_Checked):
    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return self._transform("encode", array, spec, self._inner.encoded_spec(spec))

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return self._transform("decode", array, spec, spec)

    def _transform(self, direction: str, array: Array, spec: ArraySpec, expected: ArraySpec) -> Array:
        result = np.asarray(self._call(direction, getattr(self._inner, direction), array, spec))
        if result.shape != expected.shape:
            raise self._codec.fail(f"the result has shape {result.shape}, expected {expected.shape}", direction)
        return result


class _CheckedBytes(_Checked):
    def encode(self, data: Buffer) -> Buffer:
        encoded: Buffer = self._call("encode", self._inner.encode, data)
        size = self._call("encode", lambda: memoryview(encoded).nbytes)
        expected = self._inner.encoded_size(memoryview(data).nbytes)
        if expected not in (None, size):
            raise self._codec.fail(f"the result has {size} bytes, expected {expected}", "encode")
        return self._as_bytes(encoded)

    def decoder(self, size: int | None, limit: int) -> Decoder:
        decode = self._inner.decoder(size, limit)

        def call(data: Buffer, out: Out) -> Buffer:
            decoded: Buffer = self._call("decode", decode, data, out)
            decoded_size = self._call("decode", lambda: memoryview(decoded).nbytes)
            if size not in (None, decoded_size):
                raise self._codec.fail(f"the result has {decoded_size} bytes, expected {size}")
            return decoded

        return call


class _CheckedSerializer(_Checked):
    def encode(self, array: Array) -> Buffer | None:
        encoded = self._call("encode", self._inner.encode, array)
        return None if encoded is None else self._as_bytes(encoded)

    def decode(self, data: Buffer) -> Array:
        return cast(Array, self._call("decode", self._inner.decode, data))
