"""Fast compression of pictures and of responses."""

from __future__ import annotations

import zlib
from typing import Any

_LEVEL = 1
_WINDOW = 15
_GZIP = 16


def compressor(*, gzip: bool = False) -> Any:
    """Return an object with the methods ``compress`` and ``flush`` of zlib, which releases the interpreter's lock.

    Args:
        gzip: Whether to write the format of gzip, instead of zlib.
    """
    window = _WINDOW + (_GZIP if gzip else 0)
    try:
        from isal import isal_zlib
    except ImportError:  # not available on every platform
        return zlib.compressobj(_LEVEL, zlib.DEFLATED, window)
    return isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, window)
