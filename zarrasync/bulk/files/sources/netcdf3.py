"""The size of netCDF-3 files according to their headers. The libraries return zeros for a missing end."""

from __future__ import annotations

import math
import os
import struct
from typing import BinaryIO, NamedTuple

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
"""The bytes of an element by the code of its data type."""
_STREAMED = (1 << 32) - 1, (1 << 64) - 1
"""The number of records if it was not known when the header was written."""
_LARGEST_HEADER = 256 << 20


class _Variable(NamedTuple):
    begin: int
    nbytes: int
    is_record: bool


def complete_size(file: BinaryIO, version: int) -> int:
    """Return the smallest size of the complete file, according to its header.

    Args:
        file: The file, after its first four bytes.
        version: The version of the format: 1, 2 with long offsets, or 5 with long sizes.

    Raises:
        ValueError: If the header is not complete.
        KeyError: If it is damaged; or an ``IndexError``.
    """
    return _Header(file, version).size()


class _Header:
    """The header of a file.

    Args:
        file: The file, after its first four bytes.
        version: The version of the format: 1, 2 with long offsets, or 5 with long sizes.
    """

    def __init__(self, file: BinaryIO, version: int) -> None:
        self._file, self._version = file, version

    def size(self) -> int:
        """Return the smallest size of the complete file."""
        records = self._count()
        lengths = [self._dimension() for _ in range(self._list())]
        self._skip_attributes()
        variables = [self._variable(lengths) for _ in range(self._list())]
        padded = [-(-variable.nbytes // 4) * 4 for variable in variables if variable.is_record]
        sizes = [variable.nbytes for variable in variables if variable.is_record]
        step = sum(sizes if len(sizes) == 1 else padded)  # a single one is not padded
        ends = [self._file.tell()]
        for begin, nbytes, is_record in variables:
            if not is_record:
                ends.append(begin + nbytes)
            elif records and records not in _STREAMED:
                ends.append(begin + (records - 1) * step + nbytes)
        return max(ends)

    def _dimension(self) -> int:
        self._skip(self._count())
        return self._count()

    def _variable(self, lengths: list[int]) -> _Variable:
        self._skip(self._count())
        shape = [lengths[self._count()] for _ in range(self._count())]
        self._skip_attributes()
        size = _SIZES[self._number(4)]
        self._count()  # the size of large variables is not correct
        begin = self._number(4 if self._version == 1 else 8)
        is_record = bool(shape) and shape[0] == 0
        return _Variable(begin, math.prod(shape[is_record:]) * size, is_record)

    def _skip_attributes(self) -> None:
        for _ in range(self._list()):
            self._skip(self._count())
            size = _SIZES[self._number(4)]
            self._skip(self._count() * size)

    def _list(self) -> int:
        self._number(4)  # the tag of the list
        return self._count()

    def _count(self) -> int:
        return self._number(8 if self._version == 5 else 4)

    def _number(self, nbytes: int) -> int:
        data = self._file.read(nbytes)
        if len(data) < nbytes or self._file.tell() > _LARGEST_HEADER:
            raise ValueError(
                "the file is truncated, or damaged: its header is not complete; fetch the file again from its source"
            )
        return int(struct.unpack(">I" if nbytes == 4 else ">Q", data)[0])

    def _skip(self, nbytes: int) -> None:
        """Skip bytes and their padding."""
        self._file.seek(-(-nbytes // 4) * 4, os.SEEK_CUR)
