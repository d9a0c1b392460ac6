"""Adaptors for all codecs of numcodecs.

numcodecs' codecs are functions of buffers. Their kind in a chain depends on the format: under a Zarr v3 name
(``numcodecs.delta``) those that change values are array -> array codecs and the others bytes -> bytes codecs. Among
Zarr v2 filters all of them transform raw bytes in stored order, which they view with the dtype in their configuration or
with the array's (``dtype``).
"""

from __future__ import annotations

import bz2
import lzma
import math
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from json import dumps, loads
from typing import Any, cast

import numpy as np

from zarrasync._kernel.structs import DELTA, GZIP, LZ4, SHUFFLE, ZLIB
from zarrasync._util.memory import BudgetExceeded, check_budget, reason_of
from zarrasync.codecs.base import (
    ArrayArrayCodec,
    ArrayBytesCodec,
    BytesBytesCodec,
    Codec,
    Decoder,
    KernelStep,
    Out,
    rejection_of,
)
from zarrasync.codecs.blosc import blosc_decoder
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.decompression import (
    WARNINGS,
    DecoderFactory,
    checked_decoder,
    numcodecs_module,
    shuffle_decoder,
    stream_decoder,
    with_size_header,
)
from zarrasync.codecs.gzip import GZIP_WINDOW, ZLIB_WINDOW, deflate, gzip_decoder, inflate_decoder
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.codecs.zfp import complete_zfp_stream
from zarrasync.codecs.zstd import zstd_decoder
from zarrasync.errors import MetadataError, UnknownCodecError
from zarrasync.model.dtypes import from_numpy

_CODECS = frozenset(("blosc", "bz2", "gzip", "lz4", "lzma", "shuffle", "zlib", "zstd"))
_NUMBERS = frozenset(
    ("level", "clevel", "preset", "acceleration", "blocksize", "shuffle", "typesize", "elementsize", "delta")
)
"""Members of these codecs that are integers."""
_FLAGS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
"""Strings that stand for the flag ``checksum``, in any case."""
_LZMA_DELTA, _LZMA2 = 0x03, 0x21
"""IDs of liblzma's filters."""


def normalize_config(config: Mapping[str, Any], dtype: np.dtype[Any] | None) -> dict[str, Any]:
    """Return a configuration in the form of numcodecs.

    netCDF-C writes some numbers as strings, and 0 as the element size of the shuffle filter. GDAL writes the distance of
    LZMA's delta filter as a separate member, and flags as ``"YES"`` and ``"NO"``.

    Args:
        config: The configuration with its ``id``.
        dtype: The dtype of stored elements, if it is known.

    Raises:
        MetadataError: If a string stands for an integer and does not spell one.
    """
    if config["id"] not in _CODECS:
        return dict(config)
    normal = {name: _as_number(value) if name in _NUMBERS else value for name, value in config.items()}
    for name in _NUMBERS & normal.keys():
        if isinstance(normal[name], str):
            raise MetadataError(f"codec {config['id']!r}: {name} must be an integer, found {normal[name]!r}")
    if isinstance(flag := normal.get("checksum"), str):
        normal["checksum"] = _FLAGS.get(flag.lower(), flag)
    if normal["id"] == "shuffle" and normal.get("elementsize") == 0 and dtype is not None:
        normal["elementsize"] = dtype.itemsize
    if normal["id"] == "lzma" and "delta" in normal:
        distance, preset = normal.pop("delta"), normal.pop("preset", None)
        delta = [{"id": _LZMA_DELTA, "dist": distance}] if distance else []
        normal["filters"] = [*delta, {"id": _LZMA2, **({} if preset is None else {"preset": preset})}]
    return normal


def _as_number(value: Any) -> Any:
    """Return the integer that a string spells, or the value unchanged."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,10}", value) else value


def may_lose_values(config: Mapping[str, Any]) -> bool:
    """Return whether a filter can change values by more than its precision.

    numcodecs casts without checks: values beyond the range of ``astype`` wrap around, and NaN becomes an integer.

    Args:
        config: The numcodecs configuration.
    """
    kind = config["id"]
    if kind == "astype":
        return not np.can_cast(config["decode_dtype"], config["encode_dtype"], "safe")
    if kind in ("fixedscaleoffset", "quantize"):
        return True
    # Differences of integers wrap around, and back when they are summed, unless they are stored in fewer bits.
    source, target = np.dtype(config.get("dtype", "u1")), np.dtype(config.get("astype") or config.get("dtype", "u1"))
    return kind == "delta" and source.kind in "iu" and target.itemsize < source.itemsize


def is_within_range(config: Mapping[str, Any], values: Array) -> bool:
    """Return whether a filter certainly keeps values, judged by the smallest and the largest one.

    That takes a fraction of the time of decoding and comparing them. If the result is false, the values may be lost.

    Args:
        config: The numcodecs configuration.
        values: The values, of shape ``(count,)``.
    """
    if not values.size:
        return True
    low, high = values.min().item(), values.max().item()  # NaN makes all comparisons false
    kind, dtype = config["id"], np.dtype(config.get("encode_dtype") or config.get("astype") or config["dtype"])
    if kind in ("fixedscaleoffset", "quantize"):
        return values.dtype.kind == "f" and values.itemsize > 2 and _fits_scaled(config, values, dtype, low, high)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        is_small = kind != "delta" or (dtype.kind == "i" and high - low <= limits.max)
        return bool(is_small and int(limits.min) <= low and high <= int(limits.max))
    are_floats = kind == "astype" and dtype.kind == values.dtype.kind == "f"
    return are_floats and _fits_float(values, low, high, np.finfo(dtype))


def _fits_scaled(config: Mapping[str, Any], values: Array, dtype: np.dtype[Any], low: float, high: float) -> bool:
    """Return whether floats stay within the range of a type when they are multiplied by a filter's scale."""
    scale, offset = 2.0 * 10.0 ** int(config.get("digits", 0)), float(config.get("offset", 0))
    scale = abs(float(config.get("scale", scale)))
    largest = max(abs(low - offset), abs(high - offset), 1.0) * max(scale, 1.0)
    if not 4 * largest < float(np.finfo(values.dtype).max):
        return False
    if config["id"] == "quantize":
        return 4 * largest < float(np.finfo(dtype).max)
    eps = float(np.finfo(values.dtype).eps)
    if dtype.kind not in "iu" or 8 * eps * abs(offset) * scale > 1:  # then a difference to it has too few digits
        return False
    low, high = sorted(((low - offset) * float(config["scale"]), (high - offset) * float(config["scale"])))
    margin = 1 + 8 * eps * largest  # for rounding
    return int(np.iinfo(dtype).min) <= low - margin and high + margin <= int(np.iinfo(dtype).max)


def _fits_float(values: Array, low: float, high: float, limits: Any) -> bool:
    """Return whether floats are finite and not subnormal as floats of another size."""
    if not max(-low, high) <= float(limits.max):
        return False
    tiny = limits.smallest_normal
    return bool(low > tiny or high < -tiny or ((np.abs(values) >= tiny) | (values == 0)).all())


def find_loss(config: Mapping[str, Any], values: Array, decoded: Array) -> str:
    """Return a description of the first value that a filter does not store, or an empty string.

    Args:
        config: The numcodecs configuration.
        values: The values that were encoded, of shape ``(count,)``.
        decoded: The values after decoding, of the same shape.
    """
    with np.errstate(all="ignore"):
        difference = np.abs(decoded.astype(np.float64) - values.astype(np.float64))
        lost = ~((decoded == values) | (difference <= _tolerance(config, values)))
    lost &= (values == values) | (decoded == decoded)  # NaN may stay NaN
    if not lost.any():
        return ""
    first = int(np.argmax(lost))
    return f"{values[first]!s} would be read back as {decoded[first]!s} ({int(lost.sum()):,} of {lost.size:,} values)"


def _tolerance(config: Mapping[str, Any], values: Array) -> Any:
    """Return the greatest difference that the precision of a filter explains."""
    if config["id"] == "delta":
        return 0
    if config["id"] == "fixedscaleoffset":
        step = 1 / abs(float(config["scale"]))
    elif config["id"] == "quantize":
        step = 10.0 ** -int(config["digits"])
    else:
        step = 1.0 if np.dtype(config["encode_dtype"]).kind in "iu" else 0.0
    types = [values.dtype, *(np.dtype(config[name]) for name in ("encode_dtype", "astype") if config.get(name))]
    precision = max((float(np.finfo(dtype).eps) for dtype in types if dtype.kind == "f"), default=0.0)
    return step + 4 * precision * np.abs(values.astype(np.float64))


ARRAY_ARRAY = frozenset({"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"})
"""IDs of codecs that are array -> array codecs in Zarr v3."""
_ARRAY_BYTES = frozenset({"zfpy", "pcodec"})
_CHECKSUMS = frozenset({"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"})
_OBJECTS = frozenset({"json2", "msgpack2", "pickle", "categorize", "vlen-array", "vlen-bytes", "vlen-utf8"})


@lru_cache(maxsize=256)
def _make(config: str) -> Any:
    registry, errors = numcodecs_module("registry"), numcodecs_module("errors")
    settings = loads(config)
    name = settings["id"]
    try:
        with WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return registry.get_codec(settings)
    except (errors.UnknownCodecError, ImportError) as error:
        version = numcodecs_module("version").version
        raise UnknownCodecError(
            f"unknown codec {name!r}: numcodecs {version} has no codec with this ID "
            "(some need the extra: pip install 'zarrasync[codecs]')",
            codec=str(name),
        ) from error
    except (TypeError, ValueError, KeyError, AssertionError, SyntaxError) as error:
        raise MetadataError(
            f"codec {name!r}: numcodecs rejects the configuration {settings}: {rejection_of(error)}"
        ) from error


def numcodecs_codec(config: Mapping[str, Any]) -> Any:
    """Return the numcodecs codec of a configuration.

    Raises:
        UnknownCodecError: If numcodecs has no such codec.
        MetadataError: If it rejects the configuration.
    """
    return _make(dumps(dict(config), sort_keys=True))


# -------------------------------------------------------------- bounded decoders


def _lz4_size(data: Buffer) -> int:
    if len(data) < 4:
        raise ValueError("shorter than an lz4 header")
    return int.from_bytes(bytes(data[:4]), "little")


_LZMA_MEMORY = 1 << 28
"""Bytes that LZMA may allocate to decompress; its presets need a quarter of that at most."""


def _lzma_filter_stream(container: int, filters: Any) -> Any:
    if container != lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(format=container, memlimit=_LZMA_MEMORY)
    largest = max((one.get("dict_size") or 0 for one in filters if isinstance(one, Mapping)), default=0)
    if largest > _LZMA_MEMORY:
        raise ValueError(f"its dictionary of {largest:,} bytes is larger than {_LZMA_MEMORY:,}")
    return lzma.LZMADecompressor(format=container, filters=filters)


_DECODERS: dict[str, DecoderFactory] = {
    "blosc": blosc_decoder,
    "zstd": zstd_decoder,
    "lz4": with_size_header(_lz4_size, partial(numcodecs_module, "lz4")),
    "gzip": gzip_decoder,
    "zlib": inflate_decoder(ZLIB_WINDOW),
    "bz2": stream_decoder(bz2.BZ2Decompressor),
    "lzma": stream_decoder(partial(lzma.LZMADecompressor, memlimit=_LZMA_MEMORY)),
}
_DECODES_INTO_MEMORY = frozenset(("blosc", "zstd", "lz4", "shuffle"))
"""IDs of codecs whose decoders write large results into memory of the caller."""
_SHUFFLED_SIZE = 4
"""The size of elements that numcodecs shuffles by default."""
_MOST_SHUFFLED = 255
"""The largest elements that the compiled kernel shuffles."""
_DEFLATE_WINDOWS = {"zlib": ZLIB_WINDOW, "gzip": GZIP_WINDOW}


def _decoder_factory(config: Mapping[str, Any]) -> DecoderFactory | None:
    """Return the factory of bounded decoders for a configuration, or ``None`` if the codec has none."""
    if config["id"] == "lzma" and config.get("filters") is not None:
        return stream_decoder(partial(_lzma_filter_stream, config.get("format", 1), config["filters"]))
    if config["id"] == "shuffle":
        return shuffle_decoder(config.get("elementsize", _SHUFFLED_SIZE))
    return _DECODERS.get(config["id"])


# -------------------------------------------------------------- adaptors


@dataclass(frozen=True)
class _Adaptor:
    """Base class of the adaptors.

    Attributes:
        config: The numcodecs configuration.
    """

    config: Mapping[str, Any] = field(hash=False)

    @property
    def kind(self) -> str:
        """The numcodecs ID."""
        return str(self.config["id"])

    @property
    def label(self) -> str:
        return f"numcodecs.{self.kind}"

    @cached_property
    def codec(self) -> Any:
        """The numcodecs codec."""
        return numcodecs_codec(self.config)

    def configuration(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name != "id"}

    def to_json(self) -> dict[str, Any]:
        # zarr-python requires the configuration of these codecs even if it is empty.
        return {"name": self.label, "configuration": self.configuration()}

    @cached_property
    def _may_lose_values(self) -> bool:
        return may_lose_values(self.config)

    def _encode_elements(self, values: Array) -> Any:
        """Encode values, and check that a filter with a limited range has not changed them."""
        encoded = self._run("encode", values)
        if self._may_lose_values and values.dtype.kind in "biuf" and not is_within_range(self.config, values):
            decoded = np.asarray(self._run("decode", encoded)).view(values.dtype).reshape(-1)
            loss = find_loss(self.config, values, decoded)
            if loss:
                raise cast(Codec, self).fail(f"{loss}; use a data type with a larger range", "encode")
        return encoded

    def _run(self, direction: str, data: Any) -> Any:
        return self._call(direction, partial(getattr(self.codec, direction), data))

    def _call(self, direction: str, function: Callable[[], Any]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return function()
        except Exception as error:  # codecs of other packages raise errors of any kind
            raise cast(Codec, self).fail(reason_of(error), direction) from error


@dataclass(frozen=True)
class NumcodecsArray(_Adaptor, ArrayArrayCodec):
    """``numcodecs.*``: a numcodecs codec that changes values, for arrays of any shape.

    Attributes:
        config: The numcodecs configuration.
    """

    def settle(self, spec: ArraySpec) -> Codec:
        dtype_member = "decode_dtype" if self.kind == "astype" else "dtype"
        if self.kind in ("bitround", "packbits") or dtype_member in self.config:
            return self
        return replace(self, config={**self.config, dtype_member: spec.dtype.numpy.str})

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
                f"codec {self.label!r} cannot store the fill value {spec.fill_value!r}: {error}"
            ) from error
        return spec.replace(dtype=dtype, fill_value=fill)

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        flat, encoded = np.ascontiguousarray(array, spec.dtype.numpy).reshape(-1), self.encoded_spec(spec)
        return self._shaped(self._encode_elements(flat), "encode", encoded.dtype.numpy, encoded.shape)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        flat = np.ascontiguousarray(array, self.encoded_spec(spec).dtype.numpy).reshape(-1)
        decoded_dtype = self.config.get("decode_dtype" if self.kind == "astype" else "dtype")
        if decoded_dtype and np.dtype(decoded_dtype).itemsize > spec.dtype.numpy.itemsize:
            raise self.fail(f"it decodes to data type {decoded_dtype}, whose elements are larger than the array's")
        return self._shaped(self._run("decode", flat), "decode", spec.dtype.numpy, spec.shape)

    def _shaped(self, result: Any, direction: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        try:
            return np.asarray(result).view(dtype).reshape(shape)
        except (ValueError, TypeError) as error:
            raise self.fail(f"the result does not fit data type {dtype}: {error}", direction) from error


@dataclass(frozen=True)
class NumcodecsBytes(_Adaptor, BytesBytesCodec):
    """``numcodecs.*``: a numcodecs codec that transforms bytes.

    Attributes:
        config: The numcodecs configuration.
        dtype: The dtype with which a codec of elements views the bytes (v2 filters).
    """

    dtype: str = "|u1"

    def has_checksum(self, data: Buffer | None = None) -> bool:
        return self.kind in _CHECKSUMS or self.kind in ("zlib", "gzip", "bz2", "lzma")

    def encoded_size(self, size: int) -> int | None:
        kind, config = self.kind, self.config
        if kind in _CHECKSUMS:
            return size + 4
        if kind in ("shuffle", "quantize", "fixedscaleoffset", "delta", "bitround"):
            source, target = config.get("dtype"), config.get("astype")
            return _size_after_cast(size, source, target) if source and target else size
        if kind == "astype":
            return _size_after_cast(size, config["decode_dtype"], config["encode_dtype"])
        if kind == "packbits":
            return 1 + math.ceil(size / 8)
        return None

    def encode(self, data: Buffer) -> Buffer:
        if self.kind in _DEFLATE_WINDOWS:
            try:
                return deflate(data, self.codec.level, _DEFLATE_WINDOWS[self.kind])
            except Exception as error:  # the error class depends on the library that is installed
                raise self.fail(f"level {self.codec.level!r}: {reason_of(error, with_kind=False)}", "encode") from error
        view = np.frombuffer(data, np.uint8)
        if len(view) % np.dtype(self.dtype).itemsize == 0:  # a filter before this one may have changed the size
            view = view.view(self.dtype)
        return _flat_bytes(self._encode_elements(view))

    @property
    def kernel_step(self) -> KernelStep | None:
        if self.kind == "lz4":
            return (LZ4, self.codec.acceleration)
        if self.kind in _DEFLATE_WINDOWS:
            return (GZIP if self.kind == "gzip" else ZLIB, self.codec.level)
        if self.kind == "shuffle":
            size = self.config.get("elementsize", _SHUFFLED_SIZE)
            return (SHUFFLE, size) if isinstance(size, int) and 0 < size <= _MOST_SHUFFLED else None
        if self.kind == "delta" and sys.byteorder == "little":
            dtype = self.codec.dtype
            is_supported = dtype.kind in "iu" and dtype.isnative and dtype == self.codec.astype == np.dtype(self.dtype)
            return (DELTA, dtype.itemsize) if is_supported else None
        return None

    @property
    def fills(self) -> bool:
        return self.kind in _DECODES_INTO_MEMORY

    def decoder(self, size: int | None, limit: int) -> Decoder:
        factory = _decoder_factory(self.config)
        if factory is None:
            return partial(self._decode_by_numcodecs, size, limit)
        return checked_decoder(self, factory(size, limit), size)

    def _decode_by_numcodecs(self, size: int | None, limit: int, data: Buffer, out: Out) -> Buffer:
        """Decode with a codec that cannot stop at a budget, so its result must be known to fit."""
        try:
            check_budget(limit, self._most_decoded_bytes(len(data)))
        except BudgetExceeded as error:
            raise self.fail(str(error)) from error
        if self.kind == "zfpy":
            data = complete_zfp_stream(self, data, size, None)
        decoded = self._decode_pcodec(size, data) if self.kind == "pcodec" else _flat_bytes(self._run("decode", data))
        if size is not None and len(decoded) != size:
            raise self.fail(f"the result has {len(decoded)} bytes, expected {size}")
        return decoded

    def _decode_pcodec(self, size: int | None, data: Buffer) -> Buffer:
        if size is None:
            raise self.fail("the chunk does not fix the size of the value")
        memory = np.empty(size // np.dtype(self.dtype).itemsize, self.dtype)
        self._call("decode", partial(_fill_by_pcodec, data, memory))
        return _flat_bytes(memory)

    def _most_decoded_bytes(self, size: int) -> int:
        """Return the maximum decoded size of ``size`` encoded bytes; compressors have other limits."""
        config = self.config
        if self.kind == "packbits":
            return 8 * size
        if self.kind == "astype":
            return _size_after_cast(size, config["encode_dtype"], config["decode_dtype"])
        source, target = config.get("dtype"), config.get("astype")
        return _size_after_cast(size, target, source) if source and target else size


@dataclass(frozen=True)
class NumcodecsSerializer(_Adaptor, ArrayBytesCodec):
    """``numcodecs.*``: a numcodecs codec that compresses arrays of numbers.

    Attributes:
        config: The numcodecs configuration.
    """

    def bind(self, spec: ArraySpec) -> _BoundSerializer:
        if spec.dtype.numpy.kind not in "iuf":
            raise MetadataError(f"codec {self.label!r} compresses real numbers, not data type {spec.dtype.name!r}")
        _ = self.codec  # raises if its package is missing
        return _BoundSerializer(self, spec)


class _BoundSerializer(BoundArrayBytes):
    def __init__(self, codec: NumcodecsSerializer, spec: ArraySpec) -> None:
        self._codec, self._spec = codec, spec

    def encode(self, array: Array) -> Buffer:
        return _flat_bytes(self._codec._run("encode", np.ascontiguousarray(array, self._spec.dtype.numpy)))  # noqa: SLF001  # its codec

    def decode(self, data: Buffer) -> Array:
        dtype, shape = self._spec.dtype.numpy, self._spec.shape
        if self._codec.kind == "zfpy":
            data = complete_zfp_stream(self._codec, data, math.prod(shape) * dtype.itemsize, dtype)
        if self._codec.kind == "pcodec":
            memory = np.empty(math.prod(shape), dtype)
            self._codec._call("decode", partial(_fill_by_pcodec, data, memory))  # noqa: SLF001  # its codec
            return memory.reshape(shape)
        array = np.asarray(self._codec._run("decode", bytes(data)))  # noqa: SLF001  # its codec
        if array.size != math.prod(shape) or array.dtype != dtype:
            raise self._codec.fail(
                f"the result has {array.size} elements of {array.dtype}, expected {shape} of {dtype}"
            )
        return array.reshape(shape)


def _fill_by_pcodec(data: Buffer, memory: Array) -> None:
    """Decompress pcodec into memory of exactly the right size, as its header may declare any size."""
    from pcodec import standalone  # pyright: ignore[reportAttributeAccessIssue]  # compiled

    progress = standalone.simple_decompress_into(bytes(data), memory)
    if progress.n_processed != len(memory) or not progress.finished:
        raise ValueError(f"it does not have the {len(memory):,} elements of a chunk")


def _size_after_cast(size: int, source: str, target: str) -> int:
    """Return the bytes of the same number of elements of another dtype."""
    return size // max(int(np.dtype(source).itemsize), 1) * int(np.dtype(target).itemsize)


def _flat_bytes(data: Any) -> Buffer:
    if isinstance(data, bytes):
        return data
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def adapt(config: Mapping[str, Any], *, dtype: np.dtype[Any] | None = None, arrays: bool = False) -> Codec:
    """Return the adaptor for a numcodecs configuration.

    Args:
        config: The configuration with its ``id``.
        dtype: The dtype of stored elements, for codecs of elements.
        arrays: Whether codecs that change values become array -> array codecs (v3) or transform bytes (v2).

    Raises:
        UnknownCodecError: If numcodecs has no such codec.
        MetadataError: If it rejects the configuration.
    """
    kind = config.get("id")
    if not isinstance(kind, str):
        raise MetadataError(f"a numcodecs configuration needs an 'id', found {dict(config)!r}")
    if kind in _OBJECTS:
        raise UnknownCodecError(
            f"codec {kind!r} converts objects to bytes and is not supported in this position", codec=kind
        )
    codec: NumcodecsArray | NumcodecsBytes | NumcodecsSerializer
    if arrays and kind in _ARRAY_BYTES:
        codec = NumcodecsSerializer({name: value for name, value in config.items() if name != "compression_kwargs"})
    elif arrays and kind in ARRAY_ARRAY:
        codec = NumcodecsArray(dict(config))
    else:
        codec = NumcodecsBytes(dict(config), dtype.str if dtype is not None and dtype.kind in "biufcmM" else "|u1")
    if isinstance(codec, NumcodecsBytes) or "dtype" in config:
        _ = codec.codec  # reject a bad configuration now, not at the first chunk
    return codec
