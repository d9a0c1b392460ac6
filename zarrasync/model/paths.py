"""Store keys and node paths: which are valid, and how they are joined."""

from __future__ import annotations

import re

from zarrasync.errors import InvalidKeyError

__all__ = ["check_key", "check_prefix", "is_key", "join", "normalize_path"]

# Keys that would leave the store or mean something else to a file system: empty segments, ".", ".." and NUL; and lone
# surrogates, which cannot be encoded.
_INVALID = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|//|^/|/$|\0|^$|[\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return a key if stores can safely hold it.

    Raises:
        InvalidKeyError: If it is empty, starts or ends with ``/``, or has an empty, ``.`` or ``..``
            segment, a NUL character or half of a surrogate pair.
    """
    if _INVALID.search(key):
        raise InvalidKeyError(
            f"{key!r} is not a valid store key: no empty, '.' or '..' segments, no leading or trailing '/', no NUL, no "
            "lone surrogates",
            key=key,
        )
    return key


def is_key(key: str) -> bool:
    """Return whether stores can safely hold a key."""
    return not _INVALID.search(key)


def check_prefix(prefix: str) -> str:
    """Return a prefix if it is empty, or a valid key followed by ``/``.

    Raises:
        InvalidKeyError: Otherwise.
    """
    if prefix and not prefix.endswith("/"):
        raise InvalidKeyError(f"{prefix!r} is not a valid prefix: it must be empty or end with '/'", key=prefix)
    if prefix:
        check_key(prefix[:-1])
    return prefix


def normalize_path(path: str) -> str:
    """Return a node path without leading, trailing and doubled slashes. The root is ``""``.

    Backslashes become slashes, as the v2 specification requires for logical paths.

    Raises:
        InvalidKeyError: If a segment is ``.`` or ``..``, or contains NUL or a lone surrogate.
        TypeError: If the path is not a string.
    """
    if not isinstance(path, str):
        raise TypeError(f"a path is text, found {path!r}")
    if not path:
        return ""
    segments = [segment for segment in path.replace("\\", "/").split("/") if segment]
    normalized = "/".join(segments)
    return check_key(normalized) if normalized else ""


def join(*parts: str) -> str:
    """Join path segments with ``/`` and omit empty ones."""
    return "/".join(part for part in parts if part)
