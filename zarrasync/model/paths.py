"""Store keys and node paths: validation, normalization and joining."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from zarrasync.errors import InvalidKeyError

TEMPORARY_SUFFIX = ".zarrasync-partial"
"""Reserved suffix of the names of incomplete files and directories, which are not values."""

# Keys that would leave the store or that file systems interpret: empty segments, ".", ".." and NUL. Lone surrogates cannot
# be encoded. On Windows, a backslash separates directories and a colon follows the name of a drive.
_WINDOWS = r"|\\|\A[A-Za-z]:" if sys.platform == "win32" else ""
_INVALID = re.compile(rf"(?:\A|/)\.{{0,2}}(?:/|\Z)|{re.escape(TEMPORARY_SUFFIX)}(?:/|\Z)|[\0\ud800-\udfff]{_WINDOWS}")


def check_key(key: str) -> str:
    """Return a key if it is safe in all stores.

    Raises:
        InvalidKeyError: If the key is empty, starts or ends with ``/``, or contains an empty, ``.`` or ``..`` segment,
            a name that ends in the reserved suffix, a NUL character or a lone surrogate.
    """
    if _INVALID.search(key):
        raise InvalidKeyError(
            f"{key!r} is not a valid store key: keys must not have empty, '.' or '..' segments, a leading or trailing "
            f"'/', NUL characters, lone surrogates, or names that end in the reserved suffix {TEMPORARY_SUFFIX!r}",
            key=key,
        )
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Check several keys as ``check_key`` does. Stores do this before they fetch values.

    Raises:
        InvalidKeyError: If one is not valid.
    """
    # An invalid key makes the joined keys invalid. These tests are much faster than the regular expression.
    joined = "/".join(keys)
    if (
        joined.isascii()
        and "//" not in joined
        and "/." not in joined
        and ".z" not in joined
        and "\0" not in joined
        and joined[:1] not in "/."
        and joined[-1:] != "/"
        and not _WINDOWS
    ):
        return
    for key in keys:
        check_key(key)


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


def ancestors(path: str) -> list[str]:
    """Return the paths above a path, from its parent to the root, ``""``."""
    above: list[str] = []
    while path:
        path = path.rpartition("/")[0]
        above.append(path)
    return above


def join(*parts: str) -> str:
    """Join path segments with ``/`` and omit empty ones."""
    return "/".join([part for part in parts if part])
