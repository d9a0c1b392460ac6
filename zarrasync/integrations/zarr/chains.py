"""The codecs of zarr-python, translated into chains of this library that do exactly the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu
from zarr.core.codec_pipeline import fill_value_or_default  # type: ignore[attr-defined,unused-ignore]  # in all releases

from zarrasync._util.json import to_plain
from zarrasync.codecs import BoundChain, CodecChain, from_numcodecs, parse_codecs
from zarrasync.codecs import Codec as OwnCodec
from zarrasync.codecs import ShardingCodec as OwnShardingCodec
from zarrasync.codecs.sharding import in_order_of
from zarrasync.codecs.spec import Array
from zarrasync.errors import ZarrError
from zarrasync.formats.numpy_documents import VARIABLE_TYPES, fortran_order, parse_dtype, render_dtype, stored_dtype
from zarrasync.metadata import ArrayMetadata
from zarrasync.model import dtypes
from zarrasync.model.chunk_keys import ChunkKeyEncoding
from zarrasync.model.dtypes import DataType

_KNOWN_MODULES = ("zarr.codecs.", "numcodecs.")
"""Where the codecs come from that are known. Subclasses of users, and other packages, may do something else."""
_BYTE_CODECS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "shuffle", "zlib", "zstd"})
"""numcodecs' codecs of bytes, whatever the elements."""


class ChunkKind:
    """Chunks with equal shapes, data types, fill values and codecs.

    Attributes:
        dtype: The dtype of arrays in zarr-python.
        metadata: The metadata of an array that is one such chunk.
        chain: The codecs. It has no fill value if empty chunks are stored, so that no chunk counts as empty.
    """

    __slots__ = ("chain", "dtype", "metadata")

    def __init__(self, dtype: np.dtype[Any], metadata: ArrayMetadata, *, keep_empty: bool) -> None:
        self.dtype, self.metadata = dtype, metadata
        self.chain: BoundChain = metadata.codecs.bind(metadata.spec.replace(undefined=keep_empty))

    def view(self, array: Array, *, writes: bool) -> Array | None:
        """Return an array of zarr-python with the dtype of the chain, or ``None`` if its dtype is another one.

        Elements in the other byte order of format 2 are moved as they are, so their bytes have no meaning here.

        Args:
            array: The array.
            writes: Whether its values are read only. Then they may be a copy.
        """
        if writes and array.dtype != self.dtype and array.dtype.newbyteorder() == self.dtype:
            array = array.astype(self.dtype)
        if array.dtype != self.dtype:
            return None
        own: np.dtype[Any] = self.metadata.dtype.numpy
        return array if own == self.dtype else array.view(own)


def kind_of(codecs: Iterable[Codec], spec: ArraySpec) -> ChunkKind | None:
    """Return a kind of chunk, or ``None`` if this library cannot do exactly what zarr-python's codecs would do.

    Args:
        codecs: The codecs of zarr-python, with all parameters set.
        spec: What zarr-python knows about the chunks.
    """
    codecs = tuple(codecs)
    if not _is_in_ordinary_memory(spec) or not all(map(_is_known, codecs)):
        return None
    to_native = getattr(spec.dtype, "to_native_dtype", None)  # absent before zarr-python 3.1
    native = np.dtype(spec.dtype) if to_native is None else to_native()  # type: ignore[call-overload,unused-ignore]  # any dtype
    try:
        data_type, chain = _translate(codecs, native, spec)
        fill = fill_value_or_default(spec)
        if data_type.numpy != native:
            if data_type.numpy != native.newbyteorder() or not _moves_bytes(codecs, native):
                return None
            # NumPy does not swap the bytes of NaT without a unit when it converts it to another byte order.
            fill = np.asarray(fill, data_type.numpy).byteswap()[()]
        metadata = ArrayMetadata(spec.shape, data_type, spec.shape, ChunkKeyEncoding(), chain, fill)
        settled = chain.settle(metadata.spec)
        metadata = ArrayMetadata(spec.shape, data_type, spec.shape, ChunkKeyEncoding(), settled, fill)
        return ChunkKind(native, metadata, keep_empty=spec.config.write_empty_chunks)
    except (ZarrError, TypeError, ValueError, NotImplementedError):
        return None


def _is_in_ordinary_memory(spec: ArraySpec) -> bool:
    """Return whether chunks are in ordinary memory: not on a GPU, and not in buffers of a subclass."""
    return spec.prototype.buffer is cpu.Buffer and spec.prototype.nd_buffer is cpu.NDBuffer


def _is_known(codec: Codec) -> bool:
    if type(codec) is ShardingCodec:
        return all(map(_is_known, (*codec.codecs, *codec.index_codecs)))
    if type(codec) is V2Codec:
        return all(type(item).__module__.startswith("numcodecs.") for item in _numcodecs(codec))
    return type(codec).__module__.startswith(_KNOWN_MODULES)


def _numcodecs(codec: V2Codec) -> list[Any]:
    """Return filters and compressor."""
    return [*(codec.filters or ()), *([codec.compressor] if codec.compressor else [])]


def _translate(codecs: tuple[Codec, ...], native: np.dtype[Any], spec: ArraySpec) -> tuple[DataType, CodecChain]:
    if len(codecs) == 1 and type(codecs[0]) is V2Codec:
        return _translate_v2(codecs[0], native, spec)
    chain = parse_codecs([to_plain(codec.to_dict()) for codec in codecs])
    sharding = next((codec for codec in codecs if type(codec) is ShardingCodec), None)
    if sharding is not None:
        assert isinstance(chain.array_bytes, OwnShardingCodec)
        chain = replace(chain, array_bytes=in_order_of(chain.array_bytes, sharding))
    innermost = chain.array_bytes
    while isinstance(innermost, OwnShardingCodec):
        innermost = innermost.codecs.array_bytes
    if innermost.name in VARIABLE_TYPES:
        return VARIABLE_TYPES[innermost.name][0], chain
    return dtypes.from_numpy(native), chain


def _moves_bytes(codecs: tuple[Codec, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether the codecs of format 2 do not depend on the values of elements, whose bytes may be swapped."""
    if type(codecs[0]) is not V2Codec or dtype.kind not in "iufcmM":
        return False
    return all(item.codec_id in _BYTE_CODECS for item in _numcodecs(codecs[0]))


def _translate_v2(codec: V2Codec, native: np.dtype[Any], spec: ArraySpec) -> tuple[DataType, CodecChain]:
    configs = [item.get_config() for item in _numcodecs(codec)]
    if _moves_bytes((codec,), native):
        native = native.newbyteorder("=")
    dtype = "|O" if native.kind in "OT" else render_dtype(native)
    data_type, serializer, configs = parse_dtype(dtype, configs)
    codecs: list[OwnCodec] = [serializer]
    if spec.order == "F" and len(spec.shape) > 1:
        codecs.insert(0, fortran_order(len(spec.shape)))
    codecs.extend(from_numcodecs(config, dtype=stored_dtype(serializer)) for config in configs)
    return data_type, CodecChain.of(codecs)
