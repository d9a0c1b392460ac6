"""Fast compression of pictures and of responses."""

from __future__ import annotations

import zlib
from typing import Any

from zarrasync.codecs.gzip import GZIP_WINDOW, ZLIB_WINDOW, fastest_zlib


def compressor(*, gzip: bool = False) -> Any:
    """Return an object with the methods ``compress`` and ``flush`` of zlib, which releases the interpreter's lock.

    Args:
        gzip: Whether to write the format of gzip, instead of zlib.
    """
    return fastest_zlib("isal.isal_zlib").compressobj(1, zlib.DEFLATED, GZIP_WINDOW if gzip else ZLIB_WINDOW)
