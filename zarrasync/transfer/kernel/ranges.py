"""Reading a few elements of local files with one call of the compiled kernel, which finds their chunks itself."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np

from zarrasync._kernel.structs import BLOSC, ArrayStruct, Traffic, worker
from zarrasync._util.memory import aligned_empty, empty_in_order
from zarrasync.codecs import BoundChain
from zarrasync.codecs.kernel_chain import address_of
from zarrasync.codecs.spec import Array
from zarrasync.indexing.transform import Const, Transform
from zarrasync.transfer.limits import FILE, ONE_THREAD, SMALL


class RangesReader:
    """Reads ranges of elements of an array.

    What does not depend on the selection is computed once.

    Args:
        array: The description of the array.
        chain: The codecs of its stored chunks.
        most: Bytes that ``read`` decodes at most.
        counter: Called with what a read needed.
    """

    def __init__(
        self, array: ArrayStruct, chain: BoundChain, most: int, counter: Callable[[Traffic], None] | None = None
    ) -> None:
        self._array, self._address = array, ctypes.addressof(array)
        inner = chain.innermost_chain
        self._work, self._chunk_shape = inner.nbytes + (0 if array.is_sharded else FILE), inner.spec.shape
        self._is_partial = chain.is_raw or (array.chain.step_count > 0 and array.chain.steps[0].kind == BLOSC)
        self._dtype, self._order = chain.spec.dtype.numpy, chain.memory_axis_order
        self._most, self._counter = most, counter
        self._pack: Callable[..., bytes] = struct.Struct(f"={4 + 3 * len(chain.spec.shape)}q").pack
        has_buffer = self._order is None and self._dtype.isbuiltin == 1 and self._dtype.kind in "biufc"
        self._address_of = _address_of_buffer if has_buffer else address_of

    def suits(self, transform: Transform) -> bool:
        """Return whether one thread reads a selection, which is a range along each axis, in the time that sharing takes."""
        ranges = transform.ranges()
        if ranges is None:
            return False
        count = 1
        for at, chunk in enumerate(self._chunk_shape):
            start, step, length = ranges[3 * at : 3 * at + 3]
            count *= (start + (length - 1) * step) // chunk - start // chunk + 1
        return count * self._work <= ONE_THREAD or (count == 1 and self._is_partial)

    def read(self, transform: Transform) -> Array | None:
        """Read a selection.

        Args:
            transform: The selection.

        Returns:
            A new array, or ``None`` if more has to be decoded, if the selection has no elements or is not a range along each
            axis, or if the kernel cannot read it.
        """
        size = transform.size
        if not 0 < size * self._dtype.itemsize <= self._most or (ranges := transform.ranges()) is None:
            return None
        make = aligned_empty if size * self._dtype.itemsize >= SMALL else np.empty
        out = make(transform.shape, self._dtype) if self._order is None else self._empty_in_order(transform, make)
        own = worker()
        done = own.read_ranges(self._pack(own.address, self._address, self._address_of(out), self._most, *ranges))
        if self._counter is not None and done >= 0:
            self._counter(own.traffic())
        return out if done == size else None

    def _empty_in_order(self, transform: Transform, make: Callable[..., Array]) -> Array:
        """Return memory for a result, in the axis order of the chunk's memory."""
        assert self._order is not None
        places = [place for place, axis in zip(self._order, transform.maps, strict=True) if type(axis) is not Const]
        return empty_in_order(transform.shape, self._dtype, places, make)


def _address_of_buffer(array: Array) -> int:
    """Return the address of a C-contiguous array of numbers, in a quarter of the time of ``address_of``."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))
