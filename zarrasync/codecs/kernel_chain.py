"""Chains of codecs for the compiled kernel, as far as it has their codecs: their description, and decoding with it."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._kernel.structs import (
    CRC32C,
    MAX_AXES,
    MAX_STEPS,
    ArrayStruct,
    ChainStruct,
    StepStruct,
    can_decode,
    can_encode,
    worker,
)
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.chain import BoundChain
from zarrasync.codecs.crc32c import Crc32cCodec
from zarrasync.codecs.sharding import BoundSharding
from zarrasync.codecs.spec import Array, Buffer


def describe_chain(chain: BoundChain, array: ArrayStruct) -> bool:
    """Describe how the chunks of an array are encoded.

    Args:
        chain: The codecs of a stored chunk.
        array: Receives the description.

    Returns:
        Whether the kernel can decode such chunks. If not, the content of ``array`` is undefined.
    """
    sharding, array.inner_count = chain.sharding, 1
    lengths = chain.spec.shape
    if sharding is not None:
        if not isinstance(sharding, BoundSharding) or not _describe_shard(sharding, array):
            return False
        chain = sharding.inner
    if not _describe_chunk(chain, array.chain):
        return False
    array.lengths[: len(lengths)], array.inner_lengths[: len(lengths)] = lengths, chain.spec.shape
    places = chain.memory_axis_order or range(len(lengths))
    array.order[: len(lengths)] = sorted(range(len(lengths)), key=places.__getitem__)
    array.can_write = all(can_encode(step.kind) for step in array.chain.steps[: array.chain.step_count])
    return True


def _describe_shard(sharding: BoundSharding, array: ArrayStruct) -> bool:
    """Describe the index of shards."""
    codecs = sharding.index_codecs
    serializer = codecs[0]
    if not isinstance(serializer, BytesCodec) or serializer.endian is None or len(codecs) > 2:
        return False
    if not all(isinstance(codec, Crc32cCodec) for codec in codecs[1:]):
        return False
    array.is_sharded, array.index_at_end = 1, int(sharding.index_at_end)
    array.index_is_big_endian, array.index_has_checksum = int(serializer.endian == "big"), len(codecs) - 1
    array.inner_count = sharding.grid.size
    array.inner_order = None if sharding.order is None else sharding.order.ctypes.data  # as long as these codecs exist
    lengths = sharding.grid.shape
    if len(lengths) > MAX_AXES:
        return False
    for axis in range(len(lengths)):
        array.inner_strides[axis] = math.prod(lengths[axis + 1 :])
    return True


def _describe_chunk(chain: BoundChain, chain_struct: ChainStruct) -> bool:
    """Describe the codecs of a chunk that contains elements.

    Args:
        chain: The codecs.
        chain_struct: Receives the description.

    Returns:
        Whether the kernel can decode such chunks.
    """
    strides, stored, dtype = chain.raw_strides, chain.stored_dtype, chain.spec.dtype.numpy
    if strides is None or stored is None or not chain.raw_size or len(strides) > MAX_AXES:
        return False
    word = _word_size(stored, dtype)
    if word is None or len(chain.compressors) > MAX_STEPS:
        return False
    chain_struct.step_count = 0
    for codec, size in chain.compressors:
        step = codec.kernel_step
        if step is None or not can_decode(step[0]) or (size is None and step[0] != CRC32C):
            return False
        chain_struct.steps[chain_struct.step_count] = StepStruct(step[0], -1 if size is None else size, step[1:])
        chain_struct.step_count += 1
    chain_struct.raw_size, chain_struct.item_size, chain_struct.word_size = chain.raw_size, stored.itemsize, word
    chain_struct.least, chain_struct.most = chain.size_bounds
    chain_struct.size_hint = chain.read_size_hint
    chain_struct.strides[: len(strides)] = strides
    chain_struct.fill = np.asarray(chain.spec.scalar, dtype).tobytes()
    return True


def _word_size(stored: np.dtype[Any], dtype: np.dtype[Any]) -> int | None:
    """Return the bytes of the words that are reversed between stored elements and memory: 0 if none are.

    ``None`` if elements differ in another way.
    """
    if stored == dtype:
        return 0
    if stored.newbyteorder() != dtype or dtype.fields is not None or dtype.subdtype is not None:
        return None
    return {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)


class KernelDecoder:
    """Decodes values in memory with the compiled kernel, without the interpreter's lock.

    Args:
        chain: The codecs of a chunk that contains elements.
        chain_struct: Their description.

    Attributes:
        chain: The codecs.
    """

    def __init__(self, chain: BoundChain, chain_struct: ChainStruct) -> None:
        self.chain, self._struct = chain, chain_struct

    @classmethod
    def of(cls, chain: BoundChain) -> KernelDecoder | None:
        """Return a decoder, or ``None`` if the chunks are not compressed, or the kernel does not have the codecs."""
        chain_struct = ChainStruct()
        return cls(chain, chain_struct) if chain.compressors and _describe_chunk(chain, chain_struct) else None

    def decode(self, values: Sequence[Buffer], rows: Sequence[npt.NDArray[np.uint8]]) -> bool:
        """Decode values, each into its own memory.

        Args:
            values: The encoded chunks.
            rows: Memory of ``raw_size`` bytes for each, at equal distances.

        Returns:
            Whether all were decoded. If not, the content of ``rows`` is undefined.
        """
        own, count, arrays = worker(), len(values), list[npt.NDArray[np.uint8]]()
        if all(type(value) is bytes for value in values):
            addresses: Any = (ctypes.c_char_p * count)(*values)  # type: ignore[misc]  # all are bytes
        else:
            arrays = [np.frombuffer(value, np.uint8) for value in values]  # keeps them in memory
            addresses = (ctypes.c_void_p * count)(*map(address_of, arrays))
        sizes, out = struct.pack(f"={count}q", *map(len, values)), address_of(rows[0])
        stride = address_of(rows[1]) - out if count > 1 else 0
        description = ctypes.addressof(self._struct)
        return bool(own.decode(own.address, description, count, addresses, sizes, out, stride))


def address_of(memory: Array) -> int:
    """Return the address of an array's memory."""
    address: int = memory.__array_interface__["data"][0]
    return address
