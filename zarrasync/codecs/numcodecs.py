"""Every numcodecs codec, by adaptor.

A numcodecs codec is a function of buffers; what it is in a chain depends on where it stands. Under a
Zarr v3 name (``numcodecs.delta``) those that change values are array -> array codecs, the others
bytes -> bytes. Among Zarr v2 filters all of them act on the raw buffer in stored order, which they
view with a dtype of their own or with the array's (``dtype``).
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from json import dumps, loads
from typing import Any, cast

import numpy as np

from zarrasync.codecs._functions import numcodecs_module
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec, Decoder, Out
from zarrasync.codecs.compressors import FILLING, bounded_decoder, deflate
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import MetadataError, UnknownCodecError
from zarrasync.model.dtypes import from_numpy

__all__ = ["NumcodecsArray", "NumcodecsBytes", "NumcodecsSerializer", "adapt", "check_complete", "numcodecs_codec"]

ARRAY_ARRAY = frozenset({"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"})
ARRAY_BYTES = frozenset({"zfpy", "pcodec"})
_CHECKSUMS = frozenset({"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"})
_OBJECTS = frozenset({"json2", "msgpack2", "pickle", "categorize", "vlen-array", "vlen-bytes", "vlen-utf8"})


@lru_cache(maxsize=256)
def _make(config: str) -> Any:
    registry, errors = numcodecs_module("registry"), numcodecs_module("errors")
    settings = loads(config)
    name = settings["id"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return registry.get_codec(settings)
    except (errors.UnknownCodecError, ImportError) as error:
        version = numcodecs_module("version").version
        raise UnknownCodecError(
            f"unknown codec {name!r}: numcodecs {version} has none of that id "
            "(some need the extra: pip install 'zarrasync[codecs]')",
            codec=str(name),
        ) from error
    except (TypeError, ValueError, KeyError, AssertionError, SyntaxError) as error:
        raise MetadataError(f"codec {name!r}: numcodecs refuses the configuration {settings}: {error}") from error


def numcodecs_codec(config: Mapping[str, Any]) -> Any:
    """The numcodecs codec of a configuration.

    Raises:
        UnknownCodecError: If numcodecs has no such codec.
        MetadataError: If it refuses the configuration.
    """
    return _make(dumps(dict(config), sort_keys=True))


_lock = threading.Lock()
_DEFLATE = {"zlib": 15, "gzip": 31}
"""The window that makes zlib's compressor write what these read."""


@dataclass(frozen=True)
class _Adaptor:
    """What both kinds of adaptor share: a numcodecs configuration."""

    config: Mapping[str, Any] = field(hash=False)

    @property
    def kind(self) -> str:
        """The numcodecs id."""
        return str(self.config["id"])

    @property
    def label(self) -> str:
        return f"numcodecs.{self.kind}"

    @cached_property
    def codec(self) -> Any:
        """The numcodecs codec."""
        with _lock:
            return numcodecs_codec(self.config)

    def configuration(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name != "id"}

    def to_json(self) -> dict[str, Any]:
        # zarr-python wants the configuration of these even where it is empty.
        return {"name": self.label, "configuration": self.configuration()}

    def _run(self, direction: str, data: Any) -> Any:
        codec = self.codec
        try:
            with np.errstate(all="ignore"):
                return getattr(codec, direction)(data)
        except Exception as error:  # whatever a third party's codec raises is a failure of that codec
            raise cast(Codec, self).fail(f"{type(error).__name__}: {error}", direction) from error


@dataclass(frozen=True)
class NumcodecsArray(_Adaptor, ArrayArrayCodec):
    """A numcodecs codec that changes values, over arrays of any shape."""

    def settle(self, spec: ArraySpec) -> Codec:
        known = "decode_dtype" if self.kind == "astype" else "dtype"
        if self.kind in ("bitround", "packbits") or known in self.config:
            return self
        return replace(self, config={**self.config, known: spec.dtype.numpy.str})

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if self.kind == "packbits":
            if spec.dtype.name != "bool":
                raise MetadataError(f"codec {self.label!r} packs data type 'bool', not {spec.dtype.name!r}")
            return ArraySpec((1 + -(-math.prod(spec.shape) // 8),), from_numpy(np.uint8), np.uint8(0))
        target = self.config.get("encode_dtype" if self.kind == "astype" else "astype")
        if not target:
            return spec
        dtype = from_numpy(target)
        try:
            with np.errstate(all="ignore"):
                fill = np.asarray(spec.fill_value).astype(dtype.numpy)[()]
        except (ValueError, TypeError) as error:
            raise MetadataError(
                f"codec {self.label!r} can not store the fill value {spec.fill_value!r}: {error}"
            ) from error
        return spec.replace(dtype=dtype, fill_value=fill)

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        flat, encoded = np.ascontiguousarray(array, spec.dtype.numpy).reshape(-1), self.encoded_spec(spec)
        return self._shaped("encode", flat, encoded.dtype.numpy, encoded.shape)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        flat = np.ascontiguousarray(array, self.encoded_spec(spec).dtype.numpy).reshape(-1)
        return self._shaped("decode", flat, spec.dtype.numpy, spec.shape)

    def _shaped(self, direction: str, flat: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        found = np.asarray(self._run(direction, flat))
        try:
            return found.view(dtype).reshape(shape)
        except (ValueError, TypeError) as error:
            raise self.fail(f"what comes out does not fit data type {dtype}: {error}", direction) from error


@dataclass(frozen=True)
class NumcodecsBytes(_Adaptor, BytesBytesCodec):
    """A numcodecs codec over bytes.

    Attributes:
        dtype: How the bytes are viewed for a codec that looks at elements (v2 filters).
    """

    dtype: str = "|u1"

    def encoded_size(self, size: int) -> int | None:
        kind, config = self.kind, self.config
        if kind in _CHECKSUMS:
            return size + 4
        if kind in ("shuffle", "quantize", "fixedscaleoffset", "delta", "bitround"):
            source, target = config.get("dtype"), config.get("astype")
            return _scaled(size, source, target) if source and target else size
        if kind == "astype":
            return _scaled(size, config["decode_dtype"], config["encode_dtype"])
        if kind == "packbits":
            return 1 + math.ceil(size / 8)
        return None

    def encode(self, data: Buffer) -> Buffer:
        if self.kind in _DEFLATE:
            try:
                return deflate(data, self.codec.level, _DEFLATE[self.kind])
            except Exception as error:  # each of the libraries that may do it has errors of its own
                raise self.fail(f"level {self.codec.level!r}: {error}", "encode") from error
        view = np.frombuffer(data, np.uint8)
        if (
            len(view) % np.dtype(self.dtype).itemsize == 0
        ):  # otherwise a filter before this one made other bytes of them
            view = view.view(self.dtype)
        return _flat_bytes(self._run("encode", view))

    @property
    def fills(self) -> bool:
        return self.kind in FILLING

    def decoder(self, size: int | None, limit: int) -> Decoder:
        return bounded_decoder(self, self.kind, size, limit, self.config) or partial(self._decode_as_it_can, size)

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        return self.decoder(size, limit)(data, out)

    def _decode_as_it_can(self, size: int | None, data: Buffer, out: Out) -> Buffer:
        if self.kind == "zfpy":
            data = zfpy_stream(self, data, size, None)
        found = _flat_bytes(self._run("decode", data))
        if size is not None and len(found) != size:
            raise self.fail(f"{len(found)} bytes came out, the chunk needs {size}")
        return found


@dataclass(frozen=True)
class NumcodecsSerializer(_Adaptor, ArrayBytesCodec):
    """A numcodecs codec that compresses arrays of numbers."""

    def bind(self, spec: ArraySpec) -> _BoundSerializer:
        if spec.dtype.numpy.kind not in "iuf":
            raise MetadataError(f"codec {self.label!r} compresses real numbers, not data type {spec.dtype.name!r}")
        _ = self.codec  # complains if its package is missing
        return _BoundSerializer(self, spec)


class _BoundSerializer(BoundWhole):
    def __init__(self, codec: NumcodecsSerializer, spec: ArraySpec) -> None:
        self._codec, self._spec = codec, spec

    def encode(self, array: Array) -> Buffer:
        found = self._codec._run("encode", np.ascontiguousarray(array, self._spec.dtype.numpy))
        return _flat_bytes(found)

    def decode(self, data: Buffer) -> Array:
        dtype, shape = self._spec.dtype.numpy, self._spec.shape
        if self._codec.kind == "zfpy":
            data = zfpy_stream(self._codec, data, math.prod(shape) * dtype.itemsize, dtype)
        found = np.asarray(self._codec._run("decode", bytes(data)))
        if found.size != math.prod(shape) or found.dtype != dtype:
            raise self._codec.fail(f"{found.size} elements of {found.dtype} came out, the chunk has {shape} of {dtype}")
        return found.reshape(shape)


_ZFP_TYPES = tuple(map(np.dtype, ("i4", "i8", "f4", "f8")))


def zfpy_stream(codec: Codec, data: Buffer, size: int | None, dtype: np.dtype[Any] | None) -> bytes:
    """A zfp stream with its header, if that declares what must come out, and nothing is missing at its end.

    zfp itself believes the header, and reads on after the end.

    Raises:
        CodecError: If it is damaged.
    """
    view = bytes(data)
    if len(view) < 12 or view[:4] != b"zfp\x05":
        raise codec.fail("it does not begin as a zfp stream does")
    meta = int.from_bytes(view[4:12], "little") & (1 << 52) - 1  # type and dimensions
    kind, ndim = _ZFP_TYPES[meta & 3], (meta >> 2 & 3) + 1
    width = 48 // ndim
    count = math.prod((meta >> 4 + axis * width & (1 << width) - 1) + 1 for axis in range(ndim))
    if (size is not None and count * kind.itemsize != size) or dtype not in (None, kind):
        raise codec.fail(
            f"its header declares {count} elements of {kind}, the chunk has {size} bytes of {dtype or 'any'}"
        )
    if size is None and count > 1 << 28:
        raise codec.fail(f"its header declares {count} elements")
    import zfpy

    check_complete(codec, lambda padding: zfpy.decompress_numpy(view + padding), count * kind.itemsize)
    return view + bytes(count * kind.itemsize + 64)


def check_complete(codec: Codec, decode: Callable[[bytes], Array], size: int) -> None:
    """Complain if what a zfp stream decodes to depends on what follows it: then it is cut short.

    Raises:
        CodecError: If so.
    """
    zeros, ones = (np.array(decode(byte * (size + 64))).tobytes() for byte in (b"\0", b"\xff"))
    if zeros != ones:
        raise codec.fail("the stream is cut short")


def _scaled(size: int, source: str, target: str) -> int:
    """Bytes of as many elements of another dtype."""
    return size // max(int(np.dtype(source).itemsize), 1) * int(np.dtype(target).itemsize)


def _flat_bytes(data: Any) -> Buffer:
    if isinstance(data, bytes):
        return data
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def adapt(config: Mapping[str, Any], *, dtype: np.dtype[Any] | None = None, arrays: bool = False) -> Codec:
    """A numcodecs configuration as one of our codecs.

    Args:
        config: The configuration with its ``id``.
        dtype: The dtype of stored elements, for codecs that look at them.
        arrays: Whether codecs that change values become array -> array ones (v3) or stay on bytes (v2).

    Raises:
        UnknownCodecError: If numcodecs has no such codec.
        MetadataError: If it refuses the configuration.
    """
    kind = config.get("id")
    if not isinstance(kind, str):
        raise MetadataError(f"a numcodecs configuration needs an 'id', found {dict(config)!r}")
    if kind in _OBJECTS:
        raise UnknownCodecError(f"codec {kind!r} makes bytes of objects and can not stand here", codec=kind)
    made: NumcodecsArray | NumcodecsBytes | NumcodecsSerializer
    if arrays and kind in ARRAY_BYTES:
        made = NumcodecsSerializer({name: value for name, value in config.items() if name != "compression_kwargs"})
    elif arrays and kind in ARRAY_ARRAY:
        made = NumcodecsArray(dict(config))
    else:
        made = NumcodecsBytes(dict(config), dtype.str if dtype is not None and dtype.kind in "biufcmM" else "|u1")
    if isinstance(made, NumcodecsBytes) or "dtype" in config:
        _ = made.codec  # refuse a bad configuration now, not at the first chunk
    return made
