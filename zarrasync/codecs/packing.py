"""Codecs with byte layouts of their own: ``packbits``, ``zfp``, ``n5_default`` and ``conditional`` (zarr-extensions)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.base import ArrayBytesCodec, BytesBytesCodec, Codec
from zarrasync.codecs.bytes import BytesCodec, check_limits
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.numcodecs import check_complete
from zarrasync.codecs.partial import BoundWhole
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError, UnknownCodecError

__all__ = ["ConditionalCodec", "N5Codec", "PackbitsCodec", "ZfpCodec"]


def _only(configuration: Mapping[str, Any], *known: str) -> None:
    if unknown := set(configuration) - set(known):
        raise ValueError(f"unknown member {min(unknown)!r}")


# ------------------------------------------------------------------ packbits


@dataclass(frozen=True)
class PackbitsCodec(ArrayBytesCodec):
    """The bits of the elements that matter, one right after the other, the lowest first.

    Attributes:
        padding_encoding: ``"none"``, or where a byte stands that counts the bits of padding: ``"first_byte"`` or
            ``"last_byte"``.
        first_bit: The lowest bit that is kept; ``None`` for the lowest there is.
        last_bit: The highest; ``None`` for the highest there is.
    """

    name = "packbits"
    padding_encoding: str = "none"
    first_bit: int | None = None
    last_bit: int | None = None

    def __post_init__(self) -> None:
        if self.padding_encoding not in ("none", "first_byte", "last_byte"):
            raise ValueError(
                f"padding_encoding is 'none', 'first_byte' or 'last_byte'; found {self.padding_encoding!r}"
            )
        for bit in (self.first_bit, self.last_bit):
            if bit is not None and (type(bit) is not int or bit < 0):
                raise ValueError(f"bits are numbered from 0, found {bit!r}")

    def configuration(self) -> dict[str, Any]:
        found = {"padding_encoding": self.padding_encoding} if self.padding_encoding != "none" else {}
        bits = {"first_bit": self.first_bit, "last_bit": self.last_bit}
        return {**found, **{name: bit for name, bit in bits.items() if bit is not None}}

    def bind(self, spec: ArraySpec) -> _BoundPackbits:
        return _BoundPackbits(self, spec)


class _BoundPackbits(BoundWhole):
    def __init__(self, codec: PackbitsCodec, spec: ArraySpec) -> None:
        data_type = spec.dtype
        known = data_type.numpy.kind in "biufcmM" or data_type.bits < 8 or data_type.name.endswith("float16")
        small = data_type.name.removeprefix("complex_").startswith(("bfloat", "float"))
        if data_type.is_variable or not (known or small):
            raise MetadataError(f"codec 'packbits' packs numbers, not data type {data_type.name!r}")
        self._codec, self._spec = codec, spec
        self._width = 8 * data_type.numpy.itemsize // data_type.components
        self._first = codec.first_bit or 0
        self._last = data_type.bits - 1 if codec.last_bit is None else codec.last_bit
        if not self._first <= self._last < data_type.bits:
            raise MetadataError(
                f"codec 'packbits': bits {self._first} to {self._last} of data type {data_type.name!r}, "
                f"which has {data_type.bits}"
            )
        self._count = math.prod(spec.shape) * data_type.components
        self._kept = self._last - self._first + 1
        body = -(-self._count * self._kept // 8)
        self._padding = 8 * body - self._count * self._kept
        self._body = body
        self.encoded_size: int | None = body + (codec.padding_encoding != "none")

    def encode(self, array: Array) -> Buffer:
        data_type = self._spec.dtype
        check_limits(self._codec, array, data_type.limits)
        little = np.ascontiguousarray(array).astype(data_type.numpy.newbyteorder("<"), copy=False)
        octets = np.frombuffer(little.tobytes(), np.uint8).reshape(self._count, self._width // 8)
        bits = np.unpackbits(octets, axis=1, bitorder="little")[:, self._first : self._last + 1]
        body = np.packbits(bits.reshape(-1), bitorder="little").tobytes()
        count = bytes([self._padding])
        where = self._codec.padding_encoding
        return count + body if where == "first_byte" else body + count if where == "last_byte" else body

    def decode(self, data: Buffer) -> Array:
        view, where = np.frombuffer(data, np.uint8), self._codec.padding_encoding
        whole = self._kept == self._width and len(view) == self._body  # some writers leave the byte out then
        if where != "none" and not whole and len(view):
            count = int(view[0] if where == "first_byte" else view[-1])
            if count != self._padding:
                raise self._codec.fail(f"it says that {count} bits are padding, {self._padding} must be")
            view = view[1:] if where == "first_byte" else view[:-1]
        if len(view) != self._body:
            raise self._codec.fail(f"the value has {len(view)} bytes of packed bits, the chunk {self._body}")
        data_type = self._spec.dtype
        bits = np.zeros((self._count, self._width), np.uint8)
        packed = np.unpackbits(view, count=self._count * self._kept, bitorder="little")
        bits[:, self._first : self._last + 1] = packed.reshape(self._count, self._kept)
        if data_type.numpy.kind == "i":
            bits[:, self._last + 1 :] = bits[:, self._last, np.newaxis]  # the sign
        octets = np.packbits(bits, axis=1, bitorder="little")
        little = data_type.numpy.newbyteorder("<")
        return np.frombuffer(octets.tobytes(), little).reshape(self._spec.shape)


# ------------------------------------------------------------------ zfp

_ZFP_MODES: dict[str, tuple[str, ...]] = {
    "reversible": (),
    "expert": ("minbits", "maxbits", "maxprec", "minexp"),
    "fixed_accuracy": ("tolerance",),
    "fixed_rate": ("rate",),
    "fixed_precision": ("precision",),
}


_ZFP_LIMITS: dict[str, tuple[float, float]] = {"tolerance": (0, 1e300), "rate": (0.01, 64), "precision": (1, 64)}


@dataclass(frozen=True)
class ZfpCodec(ArrayBytesCodec):
    """zfp streams without a header, for one to four dimensions.

    Attributes:
        options: The configuration: a mode and its parameters.
    """

    name = "zfp"
    options: Mapping[str, Any] = field(default_factory=lambda: {"mode": "reversible"}, hash=False)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        mode = configuration["mode"]
        if mode not in _ZFP_MODES:
            raise ValueError(f"mode is one of {', '.join(_ZFP_MODES)}; found {mode!r}")
        _only(configuration, "mode", *_ZFP_MODES[mode])
        for name in _ZFP_MODES[mode]:
            value, (low, high) = configuration[name], _ZFP_LIMITS.get(name, (-(1 << 31), 1 << 31))
            whole = name not in ("tolerance", "rate")
            if type(value) not in ((int,) if whole else (int, float)) or not low <= value <= high:
                raise ValueError(
                    f"{name} is {'an integer' if whole else 'a number'} from {low} to {high}, found {value!r}"
                )
        return cls(dict(configuration))

    def configuration(self) -> dict[str, Any]:
        return dict(self.options)

    def bind(self, spec: ArraySpec) -> _BoundZfp:
        return _BoundZfp(self, spec)


_PROMOTED = {"int8": 31 - 8, "int16": 31 - 16, "uint8": 31 - 8, "uint16": 31 - 16}


class _BoundZfp(BoundWhole):
    def __init__(self, codec: ZfpCodec, spec: ArraySpec) -> None:
        name = spec.dtype.name
        if name not in ("int32", "int64", "float32", "float64", *_PROMOTED):
            raise MetadataError(f"codec 'zfp' does not compress data type {name!r}; put 'cast_value' before it")
        if len(spec.shape) > 4:
            raise MetadataError(f"codec 'zfp' has up to 4 dimensions, not {len(spec.shape)}; put 'reshape' before it")
        if codec.options["mode"] == "expert":
            raise MetadataError("codec 'zfp': the package zfpy, which is used here, has no mode 'expert'")
        self._codec, self._spec = codec, spec
        self._shift = _PROMOTED.get(name)
        self._form = np.dtype(np.int32) if self._shift is not None else spec.dtype.numpy
        self._options = {key: value for key, value in codec.options.items() if key != "mode"}
        _zfpy()

    def encode(self, array: Array) -> Buffer:
        values = np.ascontiguousarray(array, self._spec.dtype.numpy)
        if self._shift is not None:
            values = (values.astype(np.int32) - self._middle()) << np.int32(self._shift)
        values = values.reshape(self._spec.shape or (1,))
        data: bytes = _zfpy().compress_numpy(values, write_header=False, **self._options)
        return data

    def _middle(self) -> np.int32:
        """What unsigned numbers are shifted by to become signed ones."""
        dtype = self._spec.dtype.numpy
        return np.int32(1 << (8 * dtype.itemsize - 1) if dtype.kind == "u" else 0)

    def decode(self, data: Buffer) -> Array:
        zfpy, shape = _zfpy(), self._spec.shape or (1,)
        kind, view = zfpy.dtype_to_ztype(self._form), bytes(data)
        blocks = math.prod(-(-n // 4) for n in shape)
        if blocks > 8 * len(view):  # a block has a bit at least
            raise self._codec.fail("the stream is cut short")
        out = np.zeros(shape, self._form)
        room = blocks * 4 ** len(shape) * 16  # more than any mode takes

        def run(padding: bytes) -> Array:
            # zfp reads on after the end of what it is given.
            zfpy._decompress(view + padding, kind, shape, out=out, **self._options)
            return out

        try:
            check_complete(self._codec, run, room)
        except (ValueError, RuntimeError, TypeError) as error:
            if isinstance(error, CodecError):
                raise
            raise self._codec.fail(str(error)) from error
        if self._shift is None:
            return out.reshape(self._spec.shape)
        values = (out >> np.int32(self._shift)) + self._middle()
        info = np.iinfo(self._spec.dtype.numpy)
        clipped: Array = np.clip(values, info.min, info.max).astype(self._spec.dtype.numpy)
        return clipped.reshape(self._spec.shape)


def _zfpy() -> Any:
    try:
        import zfpy
    except ImportError as error:
        raise UnknownCodecError(
            "codec 'zfp' needs the package zfpy: pip install 'zarrasync[codecs]'", codec="zfp"
        ) from error
    return zfpy


# ------------------------------------------------------------------ n5_default


@dataclass(frozen=True)
class N5Codec(ArrayBytesCodec):
    """The blocks of N5: a header with the block's own size, then big-endian elements, the first axis fastest.

    Attributes:
        codecs: What the bytes after the header are encoded with: ``transpose``, ``bytes``, and one compressor
            at the most.
    """

    name = "n5_default"
    codecs: CodecChain

    def __post_init__(self) -> None:
        chain, maker = self.codecs, self.codecs.array_bytes
        orders = [codec.permutation for codec in chain.array_array]
        reverse = len(orders) == 1 and orders[0] is not None and orders[0] == tuple(reversed(range(len(orders[0]))))
        big = isinstance(maker, BytesCodec) and maker.endian in ("big", None)
        if not reverse or not big or len(chain.bytes_bytes) > 1:
            raise ValueError("codecs are 'transpose' with the axes reversed, big-endian 'bytes', and one more at most")

    @classmethod
    def parse(cls, configuration: Mapping[str, Any], parse_codecs: Callable[[Any, str], CodecChain]) -> N5Codec:
        """The codec of a document; ``parse_codecs`` parses the list inside."""
        _only(configuration, "codecs")
        return cls(parse_codecs(configuration["codecs"], "codecs"))

    def configuration(self) -> dict[str, Any]:
        return {"codecs": [codec.to_json() for codec in self.codecs.codecs]}

    def bind(self, spec: ArraySpec) -> _BoundN5:
        return _BoundN5(self, spec)


class _BoundN5(BoundWhole):
    def __init__(self, codec: N5Codec, spec: ArraySpec) -> None:
        if spec.dtype.numpy.kind not in "iuf" or spec.dtype.bits < 8 or spec.dtype.name not in _N5_TYPES:
            raise MetadataError(f"codec 'n5_default' stores numbers, not data type {spec.dtype.name!r}")
        self._codec, self._spec = codec, spec
        self._whole = codec.codecs.bind(spec)

    def encode(self, array: Array) -> Buffer:
        shape = self._spec.shape
        header = np.array([0, len(shape)], ">u2").tobytes() + np.array(shape, ">u4").tobytes()
        body = self._whole.encode(array)
        assert body is not None
        return b"".join((header, body))

    def decode(self, data: Buffer) -> Array:
        shape, view = self._spec.shape, memoryview(data)
        start = 4 + 4 * len(shape)
        if len(view) < start:
            raise self._codec.fail(f"a value of {len(view)} bytes has no room for the header of {start}")
        mode, ndim = np.frombuffer(view[:4], ">u2").tolist()
        if mode != 0 or ndim != len(shape):
            raise self._codec.fail(f"a block of mode {mode} with {ndim} dimensions, expected mode 0 with {len(shape)}")
        own = tuple(np.frombuffer(view[4:start], ">u4").tolist())
        if own == shape:
            return self._whole.decode(view[start:])
        if math.prod(own) > 4 * math.prod(shape) + (1 << 20):
            raise self._codec.fail(f"a block of shape {own} in an array of chunks {shape}")
        # Blocks at the edge may be cut off there, or reach beyond the chunk.
        block = self._codec.codecs.bind(self._spec.replace(shape=own)).decode(view[start:])
        chunk = self._spec.new_array()
        common = tuple(slice(0, min(a, b)) for a, b in zip(own, shape, strict=True))
        chunk[common] = block[common]
        return chunk


_N5_TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]


# ------------------------------------------------------------------ conditional


@dataclass(frozen=True)
class ConditionalCodec(BytesBytesCodec):
    """Codecs that are applied to a chunk where they make it smaller; a header tells which were.

    Attributes:
        codecs: Bytes -> bytes codecs, in the order of encoding.
        header_bits: Bits of the header, a multiple of 8; ``None`` for as many as are needed.
    """

    name = "conditional"
    codecs: tuple[BytesBytesCodec, ...]
    header_bits: int | None = None

    def __post_init__(self) -> None:
        bits = self.header_bits
        if bits is not None and (type(bits) is not int or bits % 8 or not len(self.codecs) <= bits <= 1 << 16):
            raise ValueError(f"header_bits is a multiple of 8 of at least {len(self.codecs)}, found {bits!r}")

    @classmethod
    def parse(
        cls, configuration: Mapping[str, Any], parse_codec: Callable[[Any, str], Codec | None]
    ) -> ConditionalCodec:
        """The codec of a document; ``parse_codec`` parses an entry of the list inside."""
        _only(configuration, "codecs", "header_bits")
        found: list[BytesBytesCodec] = []
        for number, entry in enumerate(configuration["codecs"]):
            codec = parse_codec(entry, f"codecs[{number}]")
            if not isinstance(codec, BytesBytesCodec):
                raise ValueError(f"codecs are bytes -> bytes codecs, {entry!r} is not")
            found.append(codec)
        return cls(tuple(found), configuration.get("header_bits"))

    def configuration(self) -> dict[str, Any]:
        more = {} if self.header_bits is None else {"header_bits": self.header_bits}
        return {"codecs": [codec.to_json() for codec in self.codecs], **more}

    def settle(self, spec: ArraySpec) -> Codec:
        settled = tuple(codec.settle(spec) for codec in self.codecs)
        return ConditionalCodec(settled, self.header_bits)  # type: ignore[arg-type]  # they stay of their kind

    @property
    def _header(self) -> int:
        return (self.header_bits or 8 * -(-len(self.codecs) // 8)) // 8

    def encode(self, data: Buffer) -> Buffer:
        applied = 0
        for number, codec in enumerate(self.codecs):
            trial = codec.encode(data)
            if len(trial) < len(data):
                data, applied = trial, applied | 1 << number
        return b"".join((applied.to_bytes(self._header, "little"), data))

    def decode(self, data: Buffer, size: int | None, limit: int, out: npt.NDArray[np.uint8] | None) -> Buffer:
        view = memoryview(data)
        if len(view) < self._header:
            raise self.fail(f"a value of {len(view)} bytes has no room for the header of {self._header}")
        applied = int.from_bytes(view[: self._header], "little")
        if applied >> len(self.codecs):
            raise self.fail(f"its header names codecs beyond the {len(self.codecs)} there are")
        found: Buffer = view[self._header :]
        used = [codec for number, codec in enumerate(self.codecs) if applied >> number & 1]
        for codec in reversed(used):
            found = codec.decode(found, size if codec is used[0] else None, limit, None)
        if size is not None and len(found) != size:
            raise self.fail(f"{len(found)} bytes came out, the chunk needs {size}")
        return found
