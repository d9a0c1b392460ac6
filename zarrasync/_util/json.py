"""Reading and writing metadata documents as JSON: strict parsing, and conversion of NumPy values."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, TypeAlias

import numpy as np

from zarrasync.errors import MetadataError, Problem

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


Members: TypeAlias = dict[str, Any]
"""The encoded value of each member, without the indentation of the document. Values may also be such dicts themselves."""

_INDENT = b"  "
_skip_space = re.compile(r"[ \t\n\r]*").match
_scan_value: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in the stubs


def split_members(data: bytes, key: str, *path: str) -> Members:
    """Split a document into its members.

    Args:
        data: The document.
        key: The store key of the document, for messages.
        *path: The names of members, each inside the one before. These are split as well if they are objects.

    Raises:
        MetadataError: If the document is not a JSON object.
    """
    members = _split_document(data, path)
    if members is None:
        load(data, key)  # raises an error with the reason
        raise MetadataError(f"{key} cannot be split into its members")
    return members


def _split_document(data: bytes, path: tuple[str, ...]) -> Members | None:
    """Split a document, or return ``None`` if it is not a JSON object."""
    try:
        text = str(data, "utf-8-sig")
        members, end = _split(text, _skip_space(text, 0).end(), path)  # type: ignore[union-attr]  # matches everywhere
    except (ValueError, RecursionError, StopIteration, IndexError):
        return None
    return members if not text[end:].strip() else None


def _split(text: str, position: int, path: tuple[str, ...]) -> tuple[Members, int]:
    """Split the object that starts at a position. Returns its members and the position behind it."""
    space: Any = _skip_space
    scan_value, members = _scan_value, Members()
    if text[position] != "{":
        raise ValueError
    position = space(text, position + 1).end()
    while text[position] != "}":
        if members:
            position = space(text, _behind(text, position, ",")).end()
        name, position = scan_value(text, position)
        if type(name) is not str:
            raise ValueError
        start = space(text, _behind(text, space(text, position).end(), ":")).end()
        if path and name == path[0] and text[start] == "{":
            members[name], position = _split(text, start, path[1:])
        else:
            _, position = scan_value(text, start)
            members[name] = _without_indent(text[start:position].encode())
        position = space(text, position).end()
    return members, position + 1


def _behind(text: str, position: int, character: str) -> int:
    if text[position] != character:
        raise ValueError
    return position + 1


def _without_indent(value: bytes) -> bytes:
    """Return an encoded value without the indentation of its last line, which comes from the surrounding document."""
    line_break = value[value.rfind(b"\n") : -1]
    return value.replace(line_break, b"\n") if len(line_break) > 1 and line_break.isspace() else value


def join_members(members: Mapping[str, Any], _indent: bytes = b"") -> bytes:
    """Return the document that consists of members, indented. The inverse of ``split_members``."""
    if not members:
        return b"{}"
    inner = _indent + _INDENT
    line_break = b"\n" + inner
    items = [
        b"%b%b: %b" % (inner, _quoted(name), _indented(value, inner, line_break)) for name, value in members.items()
    ]
    return b"{\n%b\n%b}" % (b",\n".join(items), _indent)


def _quoted(name: str) -> bytes:
    try:
        return encode_basestring(name).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return encode_basestring_ascii(name).encode()


def _indented(value: Any, indent: bytes, line_break: bytes) -> bytes:
    return value.replace(b"\n", line_break) if isinstance(value, bytes) else join_members(value, indent)


def is_same_document(one: bytes, other: bytes, key: str) -> bool:
    """Return whether two documents are equal but for their formatting.

    Args:
        one: A document.
        other: Another document.
        key: Their store key, for messages.
    """
    if one == other:
        return True
    members, other_members = split_members(one, key), split_members(other, key)
    return members.keys() == other_members.keys() and all(
        value == other_members[name] or _normalized(value) == _normalized(other_members[name])
        for name, value in members.items()
    )


def _normalized(value: bytes) -> str:
    return json.dumps(json.loads(value), sort_keys=True)  # as Python objects, true, 1 and 1.0 would be equal


def without_member(data: bytes, path: Sequence[str]) -> bytes:
    """Return a document without one of its members. Other documents, also invalid ones, are returned unchanged.

    Args:
        data: The document.
        path: The name of the member. If it may be large, also the name of the part of it that is large.
    """
    if f'"{path[0]}"'.encode() not in data:
        return data
    members = _split_document(data, tuple(path))
    return data if members is None or members.pop(path[0], None) is None else join_members(members)


def copied_document(data: bytes | bytearray | memoryview, key: str) -> bytes:
    """Return a document as it is embedded in another one. Tokens that are not JSON become strings.

    Args:
        data: The document.
        key: The store key of the document, for messages.

    Raises:
        MetadataError: If the document is not valid and would have to be changed.
    """
    data = bytes(data)
    if b"NaN" in data or b"Infinity" in data:
        data = dump(load(data, key))
    return data.removeprefix(codecs.BOM_UTF8).strip()
