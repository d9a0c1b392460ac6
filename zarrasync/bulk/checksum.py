"""Checksums of blocks, to compare the values read back with the written ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.indexing.axis_order import in_c_order

__all__ = ["checksum"]


def checksum(block: npt.NDArray[Any]) -> int:
    """Return the CRC-32C of a block's elements. Compare only checksums of blocks with the same data type."""
    from crc32c import crc32c

    data: Any
    if block.dtype.kind in "TO":
        data = repr([_plain(value) for value in block.astype(object).reshape(-1)]).encode()
    else:
        data = in_c_order(block).reshape(-1).view(np.uint8)
    return crc32c(data)


def _plain(value: Any) -> Any:
    """Return a value with a complete ``repr``, because the ``repr`` of a large array omits elements."""
    return value.tolist() if isinstance(value, np.ndarray) else value
