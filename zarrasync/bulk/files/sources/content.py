"""Whether a file is what its name promises, and complete: libraries report other causes, or return zeros for a missing end."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import BinaryIO

from zarrasync.bulk.files.sources.netcdf3 import complete_size
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
    reasons = {name: getattr(error, "files", {}).get(name, str(error)) for name, error in bad.items()}
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return SourceFilesError(
        f"{len(bad):,} of {counted(count, 'file')} cannot be ingested: {listed}; {hint}", files=reasons
    )


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
