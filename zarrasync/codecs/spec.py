"""The arrays and bytes that codecs transform: their types, and the ``ArraySpec`` that describes one kind of chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError
from zarrasync.model.dtypes import DataType

Array: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""Bytes in memory. Arrays among them are one-dimensional and contiguous."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape, data type and fill value of the arrays that a codec transforms.

    Attributes:
        shape: The chunk's shape.
        dtype: Its data type.
        fill_value: The array's fill value; zero if the array has none.
        undefined: Whether the array has no fill value. Then no chunk counts as empty.
        max_nbytes: The most bytes of a chunk in memory, if its elements vary in size; 0 for a limit that depends on
            the size of the stored chunk.
    """

    shape: tuple[int, ...]
    dtype: DataType
    fill_value: Any
    undefined: bool = False
    max_nbytes: int = 0

    def replace(self, **changes: Any) -> ArraySpec:
        """Return a copy with changed attributes."""
        return replace(self, **changes)

    @property
    def nbytes(self) -> int | None:
        """Bytes of one chunk, or ``None`` if elements vary in size."""
        size = self.dtype.itemsize
        return None if size is None else math.prod(self.shape) * size

    def new_array(self) -> Array:
        """Return a chunk that holds only the fill value.

        Raises:
            CodecError: If memory runs out.
        """
        try:
            array = np.empty(self.shape, self.dtype.numpy)
        except MemoryError as error:
            raise CodecError(f"not enough memory for a chunk: {error}") from error
        array[...] = self.scalar
        return array

    @property
    def scalar(self) -> Array:
        """The fill value as a zero-dimensional array, which keeps trailing NUL characters, unlike a NumPy scalar."""
        fill = np.empty((), self.dtype.numpy)
        fill[()] = self.fill_value
        return fill


def as_bytes_view(array: Array) -> npt.NDArray[np.uint8]:
    """Return a view of a contiguous array's memory as bytes."""
    return array.reshape(-1).view(np.uint8) if array.dtype.itemsize else np.empty(0, np.uint8)
