"""Names of structured fields in a key."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrasync.errors import SelectionError

__all__ = ["split_fields"]


def split_fields(key: Any, dtype: np.dtype[Any]) -> tuple[str | list[str] | None, Any]:
    """Separate the names of structured fields from a key such as ``("x", slice)`` or ``["x", "y"]``.

    Returns:
        The names, and the key without them.

    Raises:
        SelectionError: If the data type does not have the field, or the key names fields more than once.
    """
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if isinstance(item, (str, list)):  # faster than a union of types, and on the path of every read
            return _split_names(key, items, dtype)
    return None, key


def _split_names(key: Any, items: tuple[Any, ...], dtype: np.dtype[Any]) -> tuple[str | list[str] | None, Any]:
    """Implement ``split_fields`` for a key with strings or lists. Lists may be index arrays."""
    names = [item for item in items if isinstance(item, str)]
    lists = [item for item in items if isinstance(item, list) and item and all(isinstance(n, str) for n in item)]
    choices = names + lists
    if not choices:
        return None, key
    if len(choices) > 1:
        raise SelectionError(f"a selection can name fields only once (a name or a list of names), found {choices!r}")
    fields = choices[0]
    for name in [fields] if isinstance(fields, str) else fields:
        if dtype.names is None or name not in dtype.names:
            reason = f"its fields are {', '.join(dtype.names)}" if dtype.names else "it has no fields"
            raise SelectionError(f"no field {name!r} in data type {dtype}; {reason}")
    if isinstance(fields, str) and dtype[fields].subdtype is not None:
        raise SelectionError(
            f"cannot select field {fields!r} alone, because it is a sub-array; read all fields and select it in the result"
        )
    return fields, tuple(item for item in items if item is not fields) or Ellipsis
