"""Whether a file is what its name promises, and complete: libraries report other causes, or return zeros for a missing end."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import BinaryIO

from zarrasync.display.text import counted
from zarrasync.errors import SourceFilesError

FETCH_AGAIN = "fetch the file again from its source"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_SHOWN = 80
_SKIP = "pass on_bad_file='skip' to leave such files out"


def check_content(path: str) -> None:
    """Check that a file is not empty, not a document of a web server, and not truncated.

    Raises:
        ValueError: If it is.
    """
    try:
        with open(path, "rb") as file:
            start, found = file.read(512), os.fstat(file.fileno()).st_size
            if not found:
                raise ValueError(f"the file is empty (0 bytes); {FETCH_AGAIN}")
            text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
            if re.match(rb"<[!?A-Za-z]", text):
                kind = "a web page (HTML)" if b"html" in text.lower() else "a document (XML)"
                shown = " ".join(text[:_SHOWN].decode("utf-8", "replace").split())
                raise ValueError(f"the file contains {kind} instead of data: {shown!r}; {FETCH_AGAIN}")
            expected = _hdf5_size(start) if start.startswith(HDF5_MAGIC) else _netcdf3_size(file, start)
    except OSError:  # the library reports it
        return
    if found < expected:
        raise ValueError(
            f"the file is truncated: its header describes {expected:,} bytes, but it has {found:,}; {FETCH_AGAIN}"
        )


def bad_files_error(bad: Mapping[str, Exception | str], count: int, hint: str = _SKIP) -> Exception:
    """Return the error for files that cannot be ingested. It names all of them.

    Args:
        bad: The error or the reason for each one, by name.
        count: The number of files of the job.
        hint: What to do about them.
    """
    errors = [error for error in bad.values() if isinstance(error, Exception)]
    if len(bad) == 1 and errors:
        if count > 1:
            errors[0].add_note(hint)
        return errors[0]
    reasons = {name: reason_of(name, error) for name, error in bad.items()}
    listed = [f"{name}: {reason.removeprefix(f'{name} ')}" for name, reason in reasons.items()]
    if len(bad) < count or hint != _SKIP:  # a job without any file is of no use
        listed.append(hint)
    return SourceFilesError(
        f"{len(bad):,} of {counted(count, 'file')} cannot be ingested: {'; '.join(listed)}", files=reasons
    )


def reason_of(name: str, error: Exception | str) -> str:
    """Return why a file cannot be ingested, from its name and its error."""
    return str(getattr(error, "files", {}).get(name, error))


def _netcdf3_size(file: BinaryIO, start: bytes) -> int:
    if start[:3] != b"CDF" or start[3:4] not in (b"\1", b"\2", b"\5"):
        return 0
    try:
        file.seek(4)
        return complete_size(file, start[3])
    except (KeyError, IndexError) as error:
        raise ValueError(f"the header of the file is damaged: unknown number {error}; {FETCH_AGAIN}") from error


def _hdf5_size(start: bytes) -> int:
    """Return the address of the end of an HDF5 file according to its superblock."""
    if len(start) < 48:
        return 48  # no superblock is shorter
    version = start[8]
    width, addresses = (start[13], 24 + 4 * version) if version < 2 else (start[9], 12)
    at = addresses + 2 * width
    return int.from_bytes(start[at : at + width], "little")


# ------------------------------------------------------------------ netCDF-3


_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
"""The bytes of an element by the code of its data type."""
_STREAMED = (1 << 32) - 1, (1 << 64) - 1
"""The number of records if it was not known when the header was written."""
_LARGEST_HEADER = 256 << 20


def complete_size(file: BinaryIO, version: int) -> int:
    """Return the smallest size of the complete file, according to its header.

    Args:
        file: The file, after its first four bytes.
        version: The version of the format: 1, 2 with long offsets, or 5 with long sizes.

    Raises:
        ValueError: If the header is not complete.
        KeyError: If it is damaged; or an ``IndexError``.
    """

    def read(nbytes: int = 8 if version == 5 else 4) -> int:
        data = file.read(nbytes)
        if len(data) < nbytes or file.tell() > _LARGEST_HEADER:
            raise ValueError(f"the file is truncated, or damaged: its header is not complete; {FETCH_AGAIN}")
        return int.from_bytes(data, "big")

    def skip(nbytes: int) -> None:
        """Skip bytes and their padding."""
        file.seek(-(-nbytes // 4) * 4, os.SEEK_CUR)

    def items() -> range:
        """Return the numbers of the items of a list, after its tag."""
        read(4)
        return range(read())

    def skip_attributes() -> None:
        for _ in items():
            skip(read())
            size = _SIZES[read(4)]
            skip(read() * size)

    records, lengths = read(), list[int]()
    for _ in items():
        skip(read())
        lengths.append(read())
    skip_attributes()
    ends, of_records = list[int](), list[tuple[int, int]]()
    for _ in items():
        skip(read())
        shape = [lengths[read()] for _ in range(read())]
        skip_attributes()
        size = _SIZES[read(4)]
        read()  # the size of large variables is not correct
        begin, is_record = read(4 if version == 1 else 8), bool(shape) and shape[0] == 0
        nbytes = math.prod(shape[is_record:]) * size
        if is_record:
            of_records.append((begin, nbytes))
        else:
            ends.append(begin + nbytes)
    if records and records not in _STREAMED:
        are_padded = len(of_records) > 1
        sizes = [-(-nbytes // 4) * 4 if are_padded else nbytes for _, nbytes in of_records]
        ends += [begin + (records - 1) * sum(sizes) + nbytes for begin, nbytes in of_records]
    return max(file.tell(), *ends) if ends else file.tell()
