"""JSON documents as Zarr wants them: strict in, plain out."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from zarrasync.errors import MetadataError, Problem

__all__ = ["dump", "load", "plain", "repeated"]


class _Lenient(float):
    """A ``NaN`` or ``Infinity`` token, which JSON does not have but some writers emit."""


_decode = json.JSONDecoder(parse_constant=_Lenient).decode


def load(data: bytes | bytearray, key: str) -> dict[str, Any]:
    """Parse one document.

    The tokens ``NaN``, ``Infinity`` and ``-Infinity`` are not JSON; they are tolerated inside
    ``attributes`` (zarr-python writes them there) and refused everywhere else.

    Args:
        data: The document's bytes.
        key: Its store key, for messages.

    Raises:
        MetadataError: If the bytes are not UTF-8, not JSON, not an object, or hold such tokens.
    """
    try:
        document = _decode(str(data, "utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _problem(key, f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        found = "an empty document" if not bytes(data).strip() else f"{error.msg} at {where}"
        raise _problem(key, f"not valid JSON: {found}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise _problem(key, f"not usable JSON: {error}") from error
    except RecursionError as error:
        raise _problem(key, "not usable JSON: nested too deeply") from error
    if _is_deep(bytes(data)):
        raise _problem(key, f"not usable JSON: nested deeper than {_DEEP} levels")
    if not isinstance(document, dict):
        raise _problem(key, f"expected a JSON object, found {type(document).__name__}")
    return document


def repeated(data: bytes) -> list[str]:
    """Names that stand more than once in one object of a document; readers differ in which of them counts."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)

    with suppress(ValueError, RecursionError):  # what is no JSON is somebody else's to tell
        json.loads(data, object_pairs_hook=note)
    return found


_DEEP = 100
"""Levels of nesting beyond which a document is no metadata: what walks through it does so by recursion."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def _is_deep(data: bytes) -> bool:
    """Whether brackets are nested too deeply outside of text."""
    if data.count(b"{") + data.count(b"[") <= _DEEP:
        return False
    letters = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    steps = np.isin(letters, list(b"{[")).astype(np.int64) - np.isin(letters, list(b"}]"))
    return int(np.cumsum(steps).max(initial=0)) > _DEEP


def refuse_tokens(value: Any, key: str, location: str = "$") -> None:
    """Raise if a ``NaN`` or ``Infinity`` token stands anywhere in the value."""
    if isinstance(value, _Lenient):
        raise MetadataError.from_problems(
            [Problem(key, location, f"the token {float(value)!r} is not JSON; write it as a string")]
        )
    if isinstance(value, dict):
        for name, item in value.items():
            refuse_tokens(item, key, f"{location}.{name}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            refuse_tokens(item, key, f"{location}[{position}]")


def _problem(key: str, message: str) -> MetadataError:
    return MetadataError.from_problems([Problem(key, "$", message)])


def dump(document: Mapping[str, Any]) -> bytes:
    """The document as UTF-8 JSON, indented, members in the order given.

    Raises:
        MetadataError: If it holds something that JSON can not say.
    """
    try:
        data = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MetadataError(f"metadata can not be written as JSON: {error}") from error
    if _is_deep(data):
        raise MetadataError(f"metadata nested deeper than {_DEEP} levels could not be read again")
    return data


def plain(value: Any) -> Any:
    """The value with NumPy scalars, arrays and tuples turned into what JSON has.

    Non-finite floats become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``: a document
    with bare tokens could not be read by others.
    """
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        named = {name if isinstance(name, str) else _name(name): plain(v) for name, v in value.items()}
        if len(named) != len(value):
            raise MetadataError(f"two metadata names are the same as text: {list(value)!r}")
        return named
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _name(name: object) -> str:
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    raise MetadataError(f"metadata names must be strings, found {name!r}")
