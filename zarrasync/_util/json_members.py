"""JSON objects as the bytes of their members, so that large documents are read and changed without parsing all of them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, TypeAlias

from zarrasync._util import json as _json
from zarrasync.errors import MetadataError

__all__ = ["Members", "copied_document", "is_same_document", "join_members", "split_members", "without_member"]

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
        _json.load(data, key)  # raises an error with the reason
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
        data = _json.dump(_json.load(data, key))
    return data.removeprefix(codecs.BOM_UTF8).strip()
