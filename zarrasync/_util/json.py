"""Reading and writing metadata documents as JSON: strict parsing, and conversion of NumPy values."""

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

__all__ = ["dump", "duplicate_names", "load", "reject_tokens", "to_plain"]

_NESTING_LIMIT = 100
"""The maximum nesting of documents, because recursive functions process them."""
_CONTENTS = {b"": "an empty document", b"<": "the document is HTML or XML, such as a page to log in; check the URL"}
"""What documents are that are not JSON, by their first byte."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


class _Token(float):
    """A ``NaN`` or ``Infinity`` token, which is not JSON, but which some writers emit."""


_decode = json.JSONDecoder(parse_constant=_Token).decode


def load(data: bytes | bytearray, key: str) -> dict[str, Any]:
    """Parse a document.

    The tokens ``NaN``, ``Infinity`` and ``-Infinity`` are not JSON. They are accepted here, because zarr-python writes
    them in attributes. ``reject_tokens`` rejects them in other members.

    Args:
        data: The document's bytes.
        key: The store key of the document, for messages.

    Raises:
        MetadataError: If the bytes are not UTF-8, not JSON, or not a JSON object.
    """
    try:
        document = _decode(str(data, "utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _problem(key, f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        reason = _CONTENTS.get(bytes(data).lstrip()[:1], f"{error.msg} at {position}")
        raise _problem(key, f"not valid JSON: {reason}") from None
    except ValueError as error:  # an integer with thousands of digits
        raise _problem(key, f"unsupported JSON: {error}") from error
    except RecursionError as error:
        raise _problem(key, "unsupported JSON: nested too deeply") from error
    except MemoryError as error:
        raise _problem(key, f"not enough memory to parse {len(data):,} bytes of JSON") from error
    if _is_deep(bytes(data)):
        raise _problem(key, f"unsupported JSON: nested deeper than {_NESTING_LIMIT} levels")
    if not isinstance(document, dict):
        raise _problem(key, f"expected a JSON object, found {type(document).__name__}")
    return document


def duplicate_names(data: bytes) -> list[str]:
    """Return the names that occur more than once in an object of a document. Readers differ in which value they use."""
    names: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        names.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)

    with suppress(ValueError, RecursionError):  # load reports invalid documents
        json.loads(data, object_pairs_hook=collect)
    return names


def _is_deep(data: bytes) -> bool:
    """Return whether brackets outside strings are nested too deeply."""
    if data.count(b"{") + data.count(b"[") <= _NESTING_LIMIT:
        return False
    characters = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    steps = np.isin(characters, list(b"{[")).astype(np.int64) - np.isin(characters, list(b"}]"))
    return int(np.cumsum(steps).max(initial=0)) > _NESTING_LIMIT


def reject_tokens(value: Any, key: str, location: str = "$") -> None:
    """Check that a value contains no ``NaN`` or ``Infinity`` token.

    Args:
        value: The value.
        key: The store key of the document, for messages.
        location: The JSON path of the value, for messages.

    Raises:
        MetadataError: If the value contains such a token.
    """
    if isinstance(value, _Token):
        raise MetadataError.from_problems(
            [Problem(key, location, f"the token {float(value)!r} is not JSON; write it as a string")]
        )
    if isinstance(value, dict):
        for name, item in value.items():
            reject_tokens(item, key, f"{location}.{name}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            reject_tokens(item, key, f"{location}[{position}]")


def _problem(key: str, message: str) -> MetadataError:
    return MetadataError.from_problems([Problem(key, "$", message)])


def dump(document: Mapping[str, Any]) -> bytes:
    """Return a document as indented UTF-8 JSON. The order of members is kept.

    Raises:
        MetadataError: If the document contains a value that JSON cannot represent.
    """
    try:
        data = json.dumps(to_plain(document), indent=2, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MetadataError(f"metadata cannot be written as JSON: {error}") from error
    if _is_deep(data):
        raise MetadataError(f"metadata must not be nested deeper than {_NESTING_LIMIT} levels")
    return data


def to_plain(value: Any) -> Any:
    """Return a value with NumPy scalars, arrays and tuples converted to JSON types.

    Non-finite floats become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, because other readers reject
    the bare tokens.

    Raises:
        MetadataError: If a name is neither a string nor an integer, or two names become equal.
    """
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        members = {name if isinstance(name, str) else _to_name(name): to_plain(item) for name, item in value.items()}
        if len(members) != len(value):
            raise MetadataError(f"two metadata names are equal as strings: {list(value)!r}")
        return members
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def _to_name(name: object) -> str:
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    raise MetadataError(f"metadata names must be strings, found {name!r}")
