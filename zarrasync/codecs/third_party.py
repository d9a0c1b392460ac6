"""Codecs of other packages: those that a program has registered with zarr-python, and guards around all of them.

The guards turn failures and wrong results into ``CodecError``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from zarrasync._concurrency.offload import run_to_end
from zarrasync._util.json import to_plain
from zarrasync._util.memory import check_budget, reason_of
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Decoder, Out
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import ZarrError
from zarrasync.model import dtypes


def from_zarr_registry(name: str, configuration: Mapping[str, Any]) -> Codec | None:
    """Return the codec that zarr-python's registry has under a name, if zarr-python is imported; otherwise ``None``.

    Raises:
        TypeError, ValueError, KeyError: If the configuration is invalid.
    """
    registry = sys.modules.get("zarr.registry")
    if registry is None:
        return None
    unknown: type[Exception] = getattr(sys.modules["zarr.errors"], "UnknownCodecError", KeyError)
    try:
        kind = registry.get_codec_class(name)
    except (KeyError, unknown):
        return None
    from zarr.abc import codec as abc

    codec = kind.from_dict({"name": name, "configuration": dict(to_plain(configuration))})
    wrappers = {abc.ArrayArrayCodec: _Arrays, abc.ArrayBytesCodec: _Serializer, abc.BytesBytesCodec: _Bytes}
    return next((wrapper(codec, name) for base, wrapper in wrappers.items() if isinstance(codec, base)), None)


@dataclass(frozen=True)
class Wrapped(Codec):
    """A codec of zarr-python.

    Attributes:
        codec: The codec.
        registered_name: Its name in documents.
        spec: The kind of chunks; ``None`` if it is unknown.
    """

    codec: Any
    registered_name: str
    spec: ArraySpec | None = None

    @property
    def label(self) -> str:
        return self.registered_name

    def configuration(self) -> dict[str, Any]:
        return dict(to_plain(self.codec.to_dict()).get("configuration") or {})

    def settle(self, spec: ArraySpec) -> Codec:
        return replace(self, codec=self.codec.evolve_from_array_spec(_zarr_spec(spec)), spec=spec)

    def call(self, method: str, value: Any, spec: ArraySpec | None) -> Any:
        """Call a coroutine of the codec to its end. It may use the running event loop of its thread."""
        chunk_spec = _zarr_spec(spec or ArraySpec((0,), dtypes.from_numpy("u1"), np.uint8(0)))
        return run_to_end(lambda: getattr(self.codec, method)(value, chunk_spec))


class _Bytes(Wrapped, BytesBytesCodec):
    def encode(self, data: Buffer) -> Buffer:
        return _bytes_of(self.call("_encode_single", _buffer(data), self.spec))

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        decoded = _bytes_of(self.call("_decode_single", _buffer(data), self.spec))
        check_budget(limit, len(decoded))
        return decoded


class _Arrays(Wrapped, ArrayArrayCodec):
    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        encoded = self.codec.resolve_metadata(_zarr_spec(spec))
        dtype = dtypes.from_numpy(encoded.dtype.to_native_dtype())
        return spec.replace(shape=tuple(encoded.shape), dtype=dtype, fill_value=encoded.fill_value)

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return _array_of(self.call("_encode_single", _array_buffer(array), spec))

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return _array_of(self.call("_decode_single", _array_buffer(array), spec))


class _Serializer(Wrapped, ArrayBytesCodec):
    def bind(self, spec: ArraySpec) -> _BoundSerializer:
        settled = self.settle(spec)
        assert isinstance(settled, _Serializer)
        return _BoundSerializer(settled, spec)


class _BoundSerializer(BoundArrayBytes):
    def __init__(self, codec: _Serializer, spec: ArraySpec) -> None:
        self._codec, self._spec = codec, spec

    def encode(self, array: Array) -> Buffer:
        return _bytes_of(self._codec.call("_encode_single", _array_buffer(array), self._spec))

    def decode(self, data: Buffer) -> Array:
        array = _array_of(self._codec.call("_decode_single", _buffer(data), self._spec))
        return array.astype(self._spec.dtype.numpy, copy=False).reshape(self._spec.shape)


def _zarr_spec(spec: ArraySpec) -> Any:
    from zarr.core.array_spec import ArrayConfig
    from zarr.core.array_spec import ArraySpec as ZarrSpec
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.dtype import parse_dtype

    dtype: Any = parse_dtype(spec.dtype.numpy, zarr_format=3)
    config = ArrayConfig(order="C", write_empty_chunks=True)
    return ZarrSpec(spec.shape, dtype, spec.fill_value, config, default_buffer_prototype())


def _buffer(data: Buffer) -> Any:
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype().buffer.from_bytes(bytes(data))


def _array_buffer(array: Array) -> Any:
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype().nd_buffer.from_numpy_array(array)


def _bytes_of(buffer: Any) -> bytes:
    return bytes(buffer.to_bytes())


def _array_of(buffer: Any) -> Array:
    array: Array = buffer.as_numpy_array()
    return array


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
