"""Reading metadata documents: checks that report each problem with its location, and common parts of documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from zarrasync._util import json as _json
from zarrasync._util.json import without_member
from zarrasync.codecs import Buffer
from zarrasync.errors import MetadataError, Problem, UnknownCodecError, ZarrError
from zarrasync.model.chunk_keys import ChunkKeyEncoding

P = ParamSpec("P")
T = TypeVar("T")

_MEMBERS_WITH_TOKENS = ("attributes", "consolidated_metadata", "fill_value", "metadata")
"""Members in which some writers put NaN and Infinity tokens: attributes, fill values, and copies of documents."""


class DocumentChecker:
    """Parses a document and collects its problems.

    Args:
        data: The stored document.
        key: The store key of the document, for messages.
        without: A large member to leave out of the parsed document, as for ``without_member``.

    Attributes:
        key: The store key of the document.
        data: The stored document.
        document: The parsed document.
        problems: The problems found so far.
    """

    def __init__(self, data: Buffer, key: str, *, without: Sequence[str] = ()) -> None:
        self.key = key
        self.data = data = bytes(data)
        self.document = _json.load(without_member(data, without) if without else data, key)
        self.problems: list[Problem] = []
        self._unknown_codec: UnknownCodecError | None = None
        if b"NaN" not in data and b"Infinity" not in data:
            return
        for name, value in self.document.items():
            if name not in _MEMBERS_WITH_TOKENS:
                _json.reject_tokens(value, key, f"$.{name}")

    def add(self, member: str, message: str) -> None:
        """Add a problem with a member, or with the whole document if ``member`` is empty."""
        self.problems.append(Problem(self.key, f"$.{member}" if member else "$", message))

    def add_error(self, member: str, error: Exception) -> None:
        """Add the problems of an error from the parser of a member."""
        if isinstance(error, UnknownCodecError):
            self._unknown_codec = error
        problems = getattr(error, "problems", ())
        if problems:
            self.problems.extend(problems)
        else:
            self.add(member, str(error))

    def attempt(self, member: str, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a parser of a member. If it raises an error, add its problems, and return ``None``."""
        try:
            return parse(*args, **kwargs)
        except ZarrError as error:
            self.add_error(member, error)
            return None

    def need(self, member: str, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a parser of a member, without which the rest cannot be parsed.

        Raises:
            MetadataError: If the document has problems.
        """
        result = self.attempt(member, parse, *args, **kwargs)
        self.raise_problems()
        assert result is not None
        return result

    def require(self, *members: str) -> None:
        """Add a problem for each missing member."""
        for member in members:
            if member not in self.document:
                self.add(member, "this required member is missing")

    def sizes(self, member: str, value: Any, least: int) -> tuple[int, ...]:
        """Return a list of integers that are at least ``least``."""
        if isinstance(value, list) and all(type(n) is int and least <= n < 1 << 63 for n in value):
            return tuple(value)
        self.add(member, f"expected a list of integers of at least {least}, found {value!r}")
        return ()

    def chunk_sizes(self, member: str, value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of chunks. A size of 0 along an empty axis, which some writers store, becomes 1."""
        if isinstance(value, list) and len(value) == len(shape):
            value = [c if n or type(c) is not int else c or 1 for c, n in zip(value, shape, strict=True)]
        return self.sizes(member, value, 1)

    def attributes(self, value: Any) -> dict[str, Any]:
        """Return an object of attributes."""
        if isinstance(value, dict):
            return value
        self.add("attributes", f"expected an object, found {value!r}")
        return {}

    def raise_problems(self) -> None:
        """Raise an error if the document has problems.

        Raises:
            MetadataError: If the document has problems. The error lists all of them.
        """
        if not self.problems:
            return
        error = MetadataError.from_problems(self.problems)
        if (unknown := self._unknown_codec) is not None:
            raise UnknownCodecError(str(error), codec=unknown.codec, problems=self.problems) from unknown
        raise error


def non_finite_tokens(value: Any, location: str) -> Iterator[tuple[str, str]]:
    """Yield the location and a message for each NaN and Infinity token in a parsed document."""
    if isinstance(value, float) and not math.isfinite(value):
        yield location, "NaN and Infinity are not JSON; other readers may reject the document"
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from non_finite_tokens(item, f"{location}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from non_finite_tokens(item, f"{location}[{number}]")


def with_shape(
    document: Mapping[str, Any], shape: tuple[int, ...], chunks: tuple[int, ...], *chunk_member: str
) -> dict[str, Any]:
    """Return a copy of a document with another shape.

    Args:
        document: The parsed document.
        shape: The new shape.
        chunks: The sizes of chunks. They replace the sizes in the document if one of these is 0.
        *chunk_member: The path of member names to the sizes of chunks in the document.
    """
    copy = {**document, "shape": list(shape)}
    *parents, name = chunk_member
    holder = copy
    for parent in parents:
        holder[parent] = dict(holder[parent])
        holder = holder[parent]
    if 0 in holder.get(name, ()):
        holder[name] = list(chunks)
    return copy


def document_key(path: str, name: str) -> str:
    """Return the key of a document in the directory of a node."""
    return f"{path}/{name}" if path else name


def named_extension(value: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Return the name and the configuration of an extension: an object with a name, or only a name.

    The name is ``None`` if the value is invalid. The ``separator`` of a chunk key encoding may also be a member next to
    the name, as in zarr-python's parameters.
    """
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None, {}
    configuration = value.get("configuration")
    if configuration is None:
        return value["name"], {k: v for k, v in value.items() if k == "separator"}
    return (value["name"], configuration) if isinstance(configuration, Mapping) else (None, {})


def parse_key_encoding(value: Any) -> ChunkKeyEncoding:
    """Return the chunk key encoding for a ``chunk_key_encoding`` member or parameter.

    Raises:
        MetadataError: If the value is invalid.
    """
    name, configuration = named_extension(value)
    if name not in ("default", "v2"):
        raise MetadataError(f"the chunk key encoding must be 'default' or 'v2', found {value!r}")
    return ChunkKeyEncoding(name, configuration.get("separator", "/" if name == "default" else "."))
