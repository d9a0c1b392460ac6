"""Store keys and node paths: validation, normalization and joining."""

from __future__ import annotations

import re

from zarrasync.errors import InvalidKeyError

__all__ = ["check_key", "check_prefix", "is_key", "join", "normalize_path"]

# Keys that would leave the store or that file systems interpret: empty segments, ".", ".." and NUL. Lone surrogates cannot
# be encoded.
_INVALID = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|//|^/|/$|\0|^$|[\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return a key if it is safe in all stores.

    Raises:
        InvalidKeyError: If the key is empty, starts or ends with ``/``, or contains an empty, ``.`` or ``..`` segment,
            a NUL character or a lone surrogate.
    """
    if _INVALID.search(key):
        raise InvalidKeyError(
            f"{key!r} is not a valid store key: keys must not have empty, '.' or '..' segments, a leading or trailing "
            "'/', NUL characters or lone surrogates",
            key=key,
        )
    return key


def is_key(key: str) -> bool:
    """Return whether a key is safe in all stores."""
    return not _INVALID.search(key)


def check_prefix(prefix: str) -> str:
    """Return a prefix if it is empty, or a valid key followed by ``/``.

    Raises:
        InvalidKeyError: If the prefix is neither empty nor a valid key followed by ``/``.
    """
    if prefix and not prefix.endswith("/"):
        raise InvalidKeyError(f"{prefix!r} is not a valid prefix: it must be empty or end with '/'", key=prefix)
    if prefix:
        check_key(prefix[:-1])
    return prefix


def normalize_path(path: str) -> str:
    """Return a node path without leading, trailing and repeated slashes. The root is ``""``.

    Backslashes become slashes, as the v2 specification requires for logical paths.

    Raises:
        InvalidKeyError: If a segment is ``.`` or ``..``, or contains NUL or a lone surrogate.
        TypeError: If the path is not a string.
    """
    if not isinstance(path, str):
        raise TypeError(f"path must be a string, found {path!r}")
    if not path:
        return ""
    segments = [segment for segment in path.replace("\\", "/").split("/") if segment]
    normalized = "/".join(segments)
    return check_key(normalized) if normalized else ""


def join(*parts: str) -> str:
    """Join path segments with ``/`` and omit empty ones."""
    return "/".join(part for part in parts if part)
