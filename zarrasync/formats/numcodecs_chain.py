"""Conversion between codec chains and numcodecs configurations, as in Zarr v2 and in the draft of Zarr v3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zarrasync.codecs import (
    OBJECT_CODECS,
    ArrayArrayCodec,
    ArraySpec,
    BloscCodec,
    BytesBytesCodec,
    BytesCodec,
    Codec,
    CodecChain,
    Crc32cCodec,
    GzipCodec,
    ObjectCodec,
    TransposeCodec,
    ZstdCodec,
    as_codec,
    default_array_bytes,
    from_numcodecs,
)
from zarrasync.codecs.numcodecs import NumcodecsArray, NumcodecsBytes
from zarrasync.errors import UnsupportedByFormat
from zarrasync.formats.dtype_strings import VARIABLE_TYPES
from zarrasync.metadata.format import RequestedCodecs

__all__ = ["bytes_filter_chain", "fortran_order", "stored_dtype", "to_numcodecs"]

_BLOSC_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2, None: -1}


def to_numcodecs(codec: BytesBytesCodec) -> dict[str, Any]:
    """Return the numcodecs configuration of a codec.

    Raises:
        UnsupportedByFormat: If numcodecs does not support the codec.
    """
    if isinstance(codec, NumcodecsBytes):
        return dict(codec.config)
    if isinstance(codec, BloscCodec):
        return {
            "id": "blosc",
            "cname": codec.cname,
            "clevel": codec.clevel,
            "shuffle": _BLOSC_SHUFFLES[codec.shuffle],
            "blocksize": codec.blocksize,
        }
    if isinstance(codec, GzipCodec | ZstdCodec):
        # A zstd frame shows whether it has a checksum, and numcodecs before 0.13 rejects the parameter.
        options = {name: value for name, value in codec.configuration().items() if name != "checksum"}
        return {"id": codec.name, **options}
    if isinstance(codec, Crc32cCodec):
        return {"id": "crc32c"}
    raise UnsupportedByFormat(
        f"this format supports only codecs of numcodecs, not {codec.label!r}; use zarr_format=3",
        feature="codecs",
    )


def stored_dtype(serializer: Codec) -> np.dtype[Any] | None:
    """Return the exact dtype of stored elements if the array -> bytes codec specifies one, otherwise ``None``."""
    return serializer.stored if isinstance(serializer, BytesCodec) else None


def fortran_order(ndim: int) -> TransposeCodec:
    """Return the codec that stores elements in Fortran order."""
    return TransposeCodec(tuple(reversed(range(ndim))))


def bytes_filter_chain(
    requested: RequestedCodecs, spec: ArraySpec, unsupported: Callable[[str, str], Exception]
) -> CodecChain:
    """Return the codecs of a new array. Its filters transform the bytes of elements in stored order.

    Args:
        requested: The requested codecs.
        spec: The spec of a chunk.
        unsupported: A function that returns the error for an unsupported feature from its description and its name.
    """
    serializer, filters = _split_serializer(requested, spec)
    stored = None
    if isinstance(serializer, BytesCodec):
        stored = serializer.stored_form(spec.dtype.numpy)
        serializer = BytesCodec(None, stored)
    codecs: list[Codec] = [serializer]
    if requested.order == "F" and len(spec.shape) > 1:
        codecs.insert(0, fortran_order(len(spec.shape)))
    for item in (*filters, *requested.compressors):
        config = _numcodecs_config(item)
        is_config = isinstance(config, Mapping) and "id" in config
        codec = from_numcodecs(config, dtype=stored) if is_config else as_codec(item)
        if isinstance(codec, ArrayArrayCodec):
            if not isinstance(codec, NumcodecsArray):
                raise unsupported(f"the codec {codec.label!r}", "codecs")
            codec = from_numcodecs(codec.config, dtype=stored)
        codecs.append(codec)
    return CodecChain.of(codecs).settle(spec)


def _split_serializer(requested: RequestedCodecs, spec: ArraySpec) -> tuple[Codec, list[Any]]:
    """Return the array -> bytes codec, which may be the first filter, and the remaining filters."""
    filters = list(requested.filters)
    if filters:
        config = _numcodecs_config(filters[0])
        kind = config.get("id") if isinstance(config, Mapping) else None
        if kind in OBJECT_CODECS:
            return ObjectCodec(dict(config)), filters[1:]
        if kind in VARIABLE_TYPES and VARIABLE_TYPES[kind][0] == spec.dtype:
            return VARIABLE_TYPES[kind][1], filters[1:]
    is_default = requested.serializer in (None, "auto")
    return default_array_bytes(spec) if is_default else as_codec(requested.serializer), filters


def _numcodecs_config(codec: Any) -> Any:
    return codec.get_config() if hasattr(codec, "get_config") else codec
