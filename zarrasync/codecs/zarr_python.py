"""Codecs that a program has registered with zarr-python at run time, as codecs of this package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarrasync._concurrency.foreign import run_to_end
from zarrasync._util.json import to_plain
from zarrasync._util.output_budget import check_budget
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Out
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.model import dtypes

__all__ = ["Wrapped", "from_zarr_registry"]


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


class _BoundSerializer(BoundWhole):
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
