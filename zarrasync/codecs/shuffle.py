"""Decoding of numcodecs' ``shuffle`` into memory of the caller, without the GIL.

The encoded bytes contain the first byte of each element, then the second byte of each, and so on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zarrasync._util.output_budget import check_budget
from zarrasync.codecs.base import Decoder, Out
from zarrasync.codecs.decompression import DecoderFactory
from zarrasync.codecs.spec import Buffer

__all__ = ["shuffle_decoder"]

_WORDS = {2: "<u2", 4: "<u4"}
"""Sizes of elements that are assembled in registers, which is faster than writing their bytes one by one."""


def shuffle_decoder(element_size: int) -> DecoderFactory:
    """Return a factory of decoders.

    Args:
        element_size: The size of an element in bytes.
    """

    def decoder(size: int | None, limit: int) -> Decoder:
        def decode(data: Buffer, out: Out) -> Buffer:
            if len(data) > limit:
                check_budget(limit, len(data))
            if len(data) % max(element_size, 1):
                raise ValueError(f"{len(data)} bytes are no multiple of the element size {element_size}")
            if size is not None and len(data) != size:
                raise ValueError(f"the value has {len(data)} bytes, expected {size}")
            if element_size <= 1:
                return data
            result = np.empty(len(data), np.uint8) if out is None else out
            _unshuffle(np.frombuffer(data, np.uint8).reshape(element_size, -1), result)
            return result

        return decode

    return decoder


def _unshuffle(planes: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Write the elements whose first, second and further bytes are given. NumPy releases the GIL meanwhile."""
    size = len(planes)
    if size in _WORDS:
        words = out.view(_WORDS[size])
        np.copyto(words, planes[-1])
        for plane in planes[-2::-1]:
            np.left_shift(words, 8, out=words)
            np.bitwise_or(words, plane, out=words)
    else:
        elements = out.reshape(-1, size)
        for number, plane in enumerate(planes):
            elements[:, number] = plane
