"""The format of zip archives: members, local headers, and the end of an archive that was not closed."""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from zarrasync._util.memory import check_budget, expansion_budget
from zarrasync.codecs.spec import Buffer
from zarrasync.codecs.zstd import zstd_decoder
from zarrasync.stores.values import Request

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
"""The fixed part of the header in front of a member's data."""
_END_SIGNATURE, _END_SIZE = b"PK\5\6", 22
"""Signature and minimum size of the record at the end of an archive."""
_ENCRYPTED_FLAG = 1
_ZIP_ZSTANDARD = 93
"""A compression method that Python knows from version 3.14."""
_LZMA_HEADER = struct.Struct("<2sHBI")
_LZMA_DICTIONARY_LIMIT = 1 << 28
"""Largest accepted LZMA dictionary, in bytes; presets use at most a quarter of that."""
_MAXIMUM_RATIO = 1 << 20
"""Upper bound of the compression ratio of any method."""
_OVERHEAD = 1 << 16
"""Bytes by which compressed data may be longer than twice their content."""
_PIECE = 1 << 20
"""Bytes that are decompressed at a time, if only some of them are kept."""
DAMAGE_ERRORS = (
    OSError, ValueError, OverflowError, MemoryError, EOFError, NotImplementedError,
    struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""Errors that reading a damaged archive can raise."""


_SUFFIXES = (".zip", ".ozx")
"""Ends of the names of archives. The second one is for OME-Zarr."""


def is_archive_name(path: str) -> bool:
    """Return whether a path has the name of an archive. It may be a directory."""
    return path.endswith(_SUFFIXES)


class Member(NamedTuple):
    """A member of an archive, as its directory describes it.

    Attributes:
        header_offset: Position of the local header, in bytes.
        compressed_size: Size of the stored data, in bytes.
        size: Size of the uncompressed data, in bytes.
        method: Compression method.
        crc: CRC-32 of the uncompressed data.
    """

    header_offset: int
    compressed_size: int
    size: int
    method: int
    crc: int


def members_of(archive: zipfile.ZipFile, size: int) -> dict[str, Member]:
    """Return the members of an archive by name.

    Args:
        archive: The archive.
        size: Its size in bytes.

    Raises:
        ValueError: If a member is encrypted, or has sizes that are impossible.
    """
    members = {}
    for info in archive.infolist():
        if not info.filename or info.is_dir():
            continue
        if info.flag_bits & _ENCRYPTED_FLAG:
            raise ValueError(f"its member {info.filename!r} is encrypted")
        if info.compress_type == zipfile.ZIP_STORED:
            possible = info.file_size == info.compress_size
        else:
            possible = info.file_size <= _MAXIMUM_RATIO * (info.compress_size + 1)
        if not possible or info.header_offset + info.compress_size > size:
            sizes = f"{info.compress_size} compressed, {info.file_size} uncompressed"
            raise ValueError(f"its member {info.filename!r} has an impossible size: {sizes}")
        members[info.filename] = Member(
            info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC
        )
    return members


def data_offset(header: Buffer, member: Member) -> int:
    """Return the position of a member's data, which depends on the sizes in its local header.

    Raises:
        ValueError: If the header is damaged.
    """
    signature, *_, name_size, extra_size = LOCAL_HEADER.unpack_from(header)
    if signature != b"PK\3\4":
        raise ValueError("a member's header is damaged")
    return member.header_offset + LOCAL_HEADER.size + int(name_size) + int(extra_size)


def check_expansion(request: Request, member: Member) -> None:
    """Check the size of a compressed member before it is read. Without a limit it may be as for other values.

    Raises:
        BudgetExceeded: If it is too large.
        ValueError: If it is impossible.
    """
    request.check_size(member.size)
    if request.limit is None:
        check_budget(expansion_budget(member.compressed_size), member.size, what="member")
    if member.compressed_size > 2 * member.size + _OVERHEAD:
        raise ValueError(f"it has {member.compressed_size} compressed bytes for {member.size}, which is impossible")


def content(data: Buffer, member: Member, request: Request) -> Buffer:
    """Decompress a member, to at most one byte more than its declared size, and return the requested bytes.

    If not all are requested, such as from an archive in the archive, the others are not kept in memory.

    Raises:
        ValueError: If the compression method is not supported, or size or checksum differ from the directory's.
    """
    start, length = request.bounds(member.size)
    stop = start + length
    if (start == 0 and stop == member.size) or member.size <= _PIECE:
        whole = verify(b"".join(_pieces(data, member, member.size + 1)), member)
        return whole if stop - start == member.size else memoryview(whole)[start:stop]
    kept, size, crc = bytearray(), 0, 0
    for piece in _pieces(data, member, _PIECE):
        kept += piece[max(0, start - size) : max(0, stop - size)]
        crc = zlib.crc32(piece, crc)
        size += len(piece)
    _verify(size, crc, member)
    return memoryview(kept).toreadonly()


def _pieces(data: Buffer, member: Member, most: int) -> Iterator[bytes]:
    """Decompress a member in pieces of at most ``most`` bytes, to at most a byte more than its declared size."""
    left = member.size + 1
    if member.method == _ZIP_ZSTANDARD:
        yield bytes(zstd_decoder(member.size, left)(data, None))
        return
    if member.method == zipfile.ZIP_DEFLATED:
        inflate = zlib.decompressobj(-15)
        while left and (piece := inflate.decompress(data, min(most, left))):
            yield piece
            left, data = left - len(piece), inflate.unconsumed_tail
        return
    if member.method == zipfile.ZIP_BZIP2:
        decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor = bz2.BZ2Decompressor()
    elif member.method == zipfile.ZIP_LZMA:
        decompressor, data = _lzma_decompressor(memoryview(data))
    else:
        raise ValueError(f"its compression method {member.method} is not supported")
    while left and not decompressor.eof and (piece := decompressor.decompress(data, min(most, left))):
        yield piece
        left, data = left - len(piece), b""


def _lzma_decompressor(data: memoryview) -> tuple[lzma.LZMADecompressor, memoryview]:
    """Return a decompressor for the header of zip archives (version, size of the properties, properties), and the rest."""
    _, properties_size, properties, dictionary_size = _LZMA_HEADER.unpack_from(data)
    if dictionary_size > _LZMA_DICTIONARY_LIMIT:
        raise ValueError(f"its dictionary of {dictionary_size} bytes is larger than {_LZMA_DICTIONARY_LIMIT}")
    positions, literals = divmod(properties, 9 * 5)
    options = {"dict_size": dictionary_size, "lc": literals % 9, "lp": literals // 9, "pb": positions}
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1, **options}])
    return decompressor, data[4 + properties_size :]


def verify(data: Buffer, member: Member) -> Buffer:
    """Return the uncompressed data of a member after checking size and checksum.

    Raises:
        ValueError: If they differ from the directory's.
    """
    _verify(len(data), zlib.crc32(data) if len(data) == member.size else 0, member)
    return data


def _verify(size: int, crc: int, member: Member) -> None:
    if size != member.size:
        raise ValueError(f"it has {size} bytes, but {member.size} according to the directory")
    if crc != member.crc:
        raise ValueError("its checksum differs from the directory's: the member is damaged")


class FileView(io.RawIOBase):
    """A number of bytes as a read-only file. Subclasses implement ``read``."""

    def __init__(self, size: int) -> None:
        self._size, self._position = size, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = origin + offset
        if self._position < 0:
            raise OSError(errno.EINVAL, "the position is before the start of the file")
        return self._position

    def tell(self) -> int:
        return self._position


class FileHead(FileView):
    """The first bytes of a file."""

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(size)
        self._file = file

    def read(self, size: int = -1) -> bytes:
        remaining = max(0, self._size - self._position)
        self._file.seek(self._position)
        data: bytes = self._file.read(remaining if size < 0 else min(size, remaining))
        self._position += len(data)
        return data


def find_end(file: Any, size: int) -> int:
    """Return the end of the last complete directory. An interrupted writer may have left data after it.

    Args:
        file: The file.
        size: Its size in bytes.

    Raises:
        zipfile.BadZipFile: If the file has no complete directory.
    """
    stop = size
    while True:
        position = _find_last(file, _END_SIGNATURE, stop)
        if position < 0:
            raise zipfile.BadZipFile("it has no directory")
        file.seek(position)
        record = file.read(_END_SIZE)
        comment_size = int.from_bytes(record[20:22], "little")
        directory = int.from_bytes(record[16:20], "little")
        end = position + _END_SIZE + comment_size
        if len(record) == _END_SIZE and end <= size and _is_archive(file, end, directory):
            return end
        stop = position + len(_END_SIGNATURE) - 1


def _find_last(file: Any, pattern: bytes, stop: int) -> int:
    """Return the last position of a pattern that ends before ``stop``; -1 if it does not occur."""
    block = 1 << 20
    while stop >= len(pattern):
        start = max(0, stop - block)
        file.seek(start)
        offset: int = file.read(stop - start).rfind(pattern)
        if offset >= 0:
            return start + offset
        stop = start + len(pattern) - 1 if start else 0
    return -1


def _is_archive(file: Any, size: int, directory: int) -> bool:
    """Return whether the first ``size`` bytes of a file are an archive whose directory begins at a position."""
    try:
        with zipfile.ZipFile(FileHead(file, size)) as archive:
            # In an archive that is a member of this one, positions count from the member's beginning.
            return directory in (archive.start_dir, 0xFFFFFFFF)
    except (zipfile.BadZipFile, OSError, ValueError, struct.error):
        return False
