"""``zfp`` (zarr-extensions), and the checks that make zfp streams safe to decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayBytesCodec, Codec, check_members
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError, MetadataError, UnknownCodecError

_MODES: dict[str, tuple[str, ...]] = {
    "reversible": (),
    "expert": ("minbits", "maxbits", "maxprec", "minexp"),
    "fixed_accuracy": ("tolerance",),
    "fixed_rate": ("rate",),
    "fixed_precision": ("precision",),
}
"""Parameters of each mode."""
_LIMITS: dict[str, tuple[float, float]] = {"tolerance": (0, 1e300), "rate": (0.01, 64), "precision": (1, 64)}
_SHIFTS = {"int8": 31 - 8, "int16": 31 - 16, "uint8": 31 - 8, "uint16": 31 - 16}
"""Bits by which small integers are shifted left to fill 32 bits."""


@dataclass(frozen=True)
class ZfpCodec(ArrayBytesCodec):
    """``zfp``: zfp streams without a header, for up to four dimensions.

    See "zfp" in zarr-extensions.

    Attributes:
        options: The configuration: a mode and its parameters.
    """

    name = "zfp"
    options: Mapping[str, Any] = field(default_factory=lambda: {"mode": "reversible"}, hash=False)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        mode = configuration["mode"]
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}; found {mode!r}")
        check_members(configuration, "mode", *_MODES[mode])
        for name in _MODES[mode]:
            value, (low, high) = configuration[name], _LIMITS.get(name, (-(1 << 31), 1 << 31))
            is_integer = name not in ("tolerance", "rate")
            if type(value) not in ((int,) if is_integer else (int, float)) or not low <= value <= high:
                kind = "an integer" if is_integer else "a number"
                raise ValueError(f"{name} must be {kind} from {low} to {high}, found {value!r}")
        return cls(dict(configuration))

    def configuration(self) -> dict[str, Any]:
        return dict(self.options)

    def bind(self, spec: ArraySpec) -> _BoundZfp:
        return _BoundZfp(self, spec)


class _BoundZfp(BoundArrayBytes):
    def __init__(self, codec: ZfpCodec, spec: ArraySpec) -> None:
        name = spec.dtype.name
        if name not in ("int32", "int64", "float32", "float64", *_SHIFTS):
            raise MetadataError(f"codec 'zfp' does not compress data type {name!r}; put 'cast_value' before it")
        if len(spec.shape) > 4:
            raise MetadataError(f"codec 'zfp' has up to 4 dimensions, not {len(spec.shape)}; put 'reshape' before it")
        if codec.options["mode"] == "expert":
            raise MetadataError("codec 'zfp': the package zfpy, which is used here, has no mode 'expert'")
        self._codec, self._spec = codec, spec
        self._shift = _SHIFTS.get(name)
        self._zfp_dtype = np.dtype(np.int32) if self._shift is not None else spec.dtype.numpy
        self._options = {key: value for key, value in codec.options.items() if key != "mode"}
        _zfpy()

    def encode(self, array: Array) -> Buffer:
        values = np.ascontiguousarray(array, self._spec.dtype.numpy)
        if self._shift is not None:
            values = (values.astype(np.int32) - self._middle()) << np.int32(self._shift)
        values = values.reshape(self._spec.shape or (1,))
        data: bytes = _zfpy().compress_numpy(values, write_header=False, **self._options)
        return data

    def decode(self, data: Buffer) -> Array:
        zfpy, shape = _zfpy(), self._spec.shape or (1,)
        kind, view = zfpy.dtype_to_ztype(self._zfp_dtype), bytes(data)
        blocks = math.prod(-(-n // 4) for n in shape)
        if blocks > 8 * len(view):  # a block takes at least one bit
            raise self._codec.fail("the stream is cut short")
        out = np.zeros(shape, self._zfp_dtype)
        padding_size = blocks * 4 ** len(shape) * 16  # more than any mode reads

        def run(padding: bytes) -> Array:
            zfpy._decompress(view + padding, kind, shape, out=out, **self._options)  # noqa: SLF001  # the one for data without a header
            return out

        try:
            _check_complete(self._codec, run, padding_size)
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

    def _middle(self) -> np.int32:
        """Return the offset that makes unsigned integers signed; 0 for signed ones."""
        dtype = self._spec.dtype.numpy
        return np.int32(1 << (8 * dtype.itemsize - 1) if dtype.kind == "u" else 0)


def _zfpy() -> Any:
    try:
        import zfpy
    except ImportError as error:
        raise UnknownCodecError(
            "codec 'zfp' needs the package zfpy: pip install 'zarrasync[codecs]'", codec="zfp"
        ) from error
    return zfpy


_HEADER_DTYPES = tuple(map(np.dtype, ("i4", "i8", "f4", "f8")))
_MAX_ELEMENTS = 1 << 28
"""Elements that a header may declare if the size of the result is not known."""


def complete_zfp_stream(codec: Codec, data: Buffer, size: int | None, dtype: np.dtype[Any] | None) -> bytes:
    """Check a zfp stream with a header, and return it with padding, because zfp reads beyond the end.

    zfp itself trusts the header. The check requires that it declares the expected result and that no bytes are missing.

    Args:
        codec: The codec that messages name.
        data: The stream.
        size: The expected number of decoded bytes, if known.
        dtype: The expected dtype, if known.

    Raises:
        CodecError: If the stream is damaged.
    """
    view = bytes(data)
    if len(view) < 12 or view[:4] != b"zfp\x05":
        raise codec.fail("the value does not start with a zfp header")
    meta = int.from_bytes(view[4:12], "little") & (1 << 52) - 1  # dtype and dimensions
    declared_dtype, ndim = _HEADER_DTYPES[meta & 3], (meta >> 2 & 3) + 1
    width = 48 // ndim
    count = math.prod((meta >> 4 + axis * width & (1 << width) - 1) + 1 for axis in range(ndim))
    declared_size = count * declared_dtype.itemsize
    if size not in (None, declared_size) or (dtype is not None and dtype != declared_dtype):
        raise codec.fail(
            f"its header declares {count} elements of {declared_dtype}, the chunk has {size} bytes of {dtype or 'any'}"
        )
    if size is None and count > _MAX_ELEMENTS:
        raise codec.fail(f"its header declares {count} elements")
    import zfpy

    _check_complete(codec, lambda padding: zfpy.decompress_numpy(view + padding), declared_size)
    return view + bytes(declared_size + 64)


def _check_complete(codec: Codec, decode: Callable[[bytes], Array], size: int) -> None:
    """Raise ``CodecError`` if the result of a zfp stream depends on the bytes after it, which means it is cut short.

    Args:
        codec: The codec that messages name.
        decode: Decodes the stream with padding after it.
        size: Bytes of padding that suffice.
    """
    zeros, ones = (np.array(decode(byte * (size + 64))).tobytes() for byte in (b"\0", b"\xff"))
    if zeros != ones:
        raise codec.fail("the stream is cut short")
