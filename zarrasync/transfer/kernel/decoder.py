"""Decoding values in memory with the compiled kernel, which keeps what its codecs need from one value to the next."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zarrasync._kernel.structs import GZIP, SHUFFLE, ZLIB, ChainStruct, worker
from zarrasync.codecs import BoundChain
from zarrasync.codecs.kernel_chain import describe_chunk
from zarrasync.codecs.spec import Buffer

__all__ = ["KernelDecoder"]

_FASTER = (GZIP, ZLIB, SHUFFLE)
"""Codecs whose functions in Python return new memory, or need several passes."""


class KernelDecoder:
    """Decodes the chunks of a chain of codecs.

    Args:
        chain: The codecs.
        struct: Their description.

    Attributes:
        chain: The codecs.
    """

    def __init__(self, chain: BoundChain, struct: ChainStruct) -> None:
        self.chain, self._struct = chain, struct

    @classmethod
    def of(cls, chain: BoundChain) -> KernelDecoder | None:
        """Return a decoder, or ``None`` if the kernel does not have the codecs, or is not faster."""
        if not any(
            step is not None and step[0] in _FASTER for step in (codec.kernel_step for codec, _ in chain.compressors)
        ):
            return None
        struct = ChainStruct()
        return cls(chain, struct) if describe_chunk(chain, struct) else None

    def decode(self, values: Sequence[Buffer], rows: Sequence[npt.NDArray[np.uint8]]) -> bool:
        """Decode values, each into its own memory.

        Args:
            values: The encoded chunks.
            rows: Memory of ``raw_size`` bytes for each.

        Returns:
            Whether all were decoded. If not, the content of ``rows`` is undefined.
        """
        own, chain = worker(), ctypes.addressof(self._struct)
        for value, row in zip(values, rows, strict=True):
            data = np.frombuffer(value, np.uint8)
            if not own.decode(own.address, chain, _address(data), len(data), _address(row)):
                return False
        return True


def _address(memory: npt.NDArray[np.uint8]) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address
