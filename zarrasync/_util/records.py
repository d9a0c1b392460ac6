"""Dataclasses and named tuples as JSON values. Their annotations are the schema by which they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import repeat
from types import UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from zarrasync.errors import MetadataError

T = TypeVar("T")
_Read: TypeAlias = Callable[[Any], Any]
TRANSIENT = {"transient": True}
"""The metadata of fields that documents do not contain, such as open stores."""


class _Damage(Exception):
    """A value that does not have its type. The arguments are the members that lead to it, and a message."""


def to_json(record: Any) -> dict[str, Any]:
    """Return the members of a dataclass as JSON values. Values with a method ``to_json`` describe themselves by it."""
    own = (item.name for item in fields(record) if not item.metadata.get("transient"))
    return {name: _plain(getattr(record, name)) for name in own}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    return to_json(value) if is_dataclass(value) else value


def from_json(kind: type[T], value: Any, what: str, **others: Any) -> T:
    """Return the record that ``to_json`` has described. Lists of values in the order of the fields are accepted as well.

    Args:
        kind: The class of the record.
        value: The JSON values.
        what: What the document describes, for messages.
        **others: The values of fields that documents do not contain.

    Raises:
        MetadataError: If a member is missing, unknown, or has another type.
    """
    try:
        record: T = _read_record(kind, value, **others)
    except _Damage as damage:
        place = "".join(f".{part}" if str(part).isidentifier() else f"[{part!r}]" for part in damage.args[0])
        raise MetadataError(f"the {what} is damaged: {place.lstrip('.') or 'it'} {damage.args[1]}") from damage
    return record


def _read_record(kind: Any, value: Any, **others: Any) -> Any:
    readers = _readers(kind)
    if isinstance(value, list) and len(value) <= len(readers):
        members = dict(zip(readers, _each(readers.values(), value, readers), strict=False))
    else:
        members = _check(dict, value)
        if unknown := members.keys() - readers.keys():
            raise _Damage((), f"has the unknown member {min(unknown)!r}")
        items = _each([readers[name] for name in members], members.values(), members)
        members = dict(zip(members, items, strict=True))
    try:
        return kind(**members, **others)
    except (TypeError, ValueError) as error:
        raise _Damage((), f"is incomplete or inconsistent: {error}") from error


@cache
def _readers(kind: Any) -> dict[str, _Read]:
    """Return a function for each member of a record, which reads it."""
    hints = get_type_hints(kind)
    names = (
        [item.name for item in fields(kind) if not item.metadata.get("transient")]
        if is_dataclass(kind)
        else kind._fields
    )
    return {name: _reader(hints[name]) for name in names}


@cache
def _reader(kind: Any) -> _Read:
    """Return a function that reads a value of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return partial(_read_record, kind)
    if origin in (Union, UnionType):
        return partial(_read_any, [_reader(item) for item in arguments])
    if origin in (tuple, Sequence):
        is_fixed = origin is tuple and arguments[-1] is not ...
        readers = [_reader(item) for item in arguments[: len(arguments) if is_fixed else 1]]
        return partial(_read_list, readers, tuple if origin is tuple else list, is_fixed=is_fixed)
    if origin is Mapping:
        item = repeat(_reader(arguments[1]))
        return lambda value: dict(zip(_check(dict, value), _each(item, value.values(), value), strict=True))
    return partial(_check, type(arguments[0]) if origin is Literal else kind)  # whose choices the class checks


def _read_any(readers: Sequence[_Read], value: Any) -> Any:
    """Read a value of one of several types. The message about a value of none of them names the first one."""
    for read in readers[:0:-1]:
        with suppress(_Damage):
            return read(value)
    return readers[0](value)


def _read_list(readers: Sequence[_Read], make: Callable[[list[Any]], Any], value: Any, *, is_fixed: bool) -> Any:
    _check(list, value)
    if is_fixed and len(value) != len(readers):
        raise _Damage((), f"must have {len(readers)} items, found {len(value)}")
    return make(_each(readers if is_fixed else repeat(readers[0]), value, range(len(value))))


def _each(readers: Iterable[_Read], values: Iterable[Any], members: Iterable[str | int]) -> list[Any]:
    """Read values, each with a function. The names or numbers of the values are for messages."""
    results: list[Any] = []
    try:
        for read, value in zip(readers, values, strict=False):
            results.append(read(value))  # its length shows which value is damaged
    except _Damage as damage:
        raise _Damage(([*members][len(results)], *damage.args[0]), damage.args[1]) from damage
    return results


def _check(kind: type, value: Any) -> Any:
    """Return a value of a type. Numbers without a fraction are valid floats, but ``true`` is not a number."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _Damage((), f"must be of type {kind.__name__}, found {value!r:.80}")
    return value
