"""The errors of zarrasync, all in one tree.

::

    ZarrError
    ├── NodeNotFoundError   (KeyError, FileNotFoundError)   nothing at this path
    ├── NodeExistsError     (FileExistsError)               something is already there
    ├── NodeTypeError       (TypeError)                     an array where a group was asked for, or back
    ├── MetadataError       (ValueError)                    a document that is not what the format asks for
    │   └── UnknownCodecError                               a codec that nobody has registered
    ├── UnsupportedByFormat (ValueError)                    the model can say it, this format can not
    ├── InvalidKeyError     (ValueError)                    a key or a node name that is not allowed
    ├── CodecError          (ValueError)                    bytes that do not decode, values that do not encode
    │   └── ChecksumError                                   stored and computed checksum differ
    ├── SelectionError      (IndexError)                    a selection that does not fit the array
    ├── ShapeError          (ValueError)                    values, chunks or shards of the wrong shape
    ├── MissingChunkError   (KeyError)                      absent chunks, where the caller asked to be told
    └── StoreError          (OSError)                       the store failed; absent is never a failure
        ├── ReadOnlyError   (PermissionError)               a write to something opened for reading
        ├── UnsupportedOperation                            the store has no such capability
        │   └── ConditionsUnsupported                       the service turned out to know no conditional writes
        └── WriteConflictError                              somebody else wrote the value meanwhile

Every class keeps what its message says in typed fields, pickles, and is raised with a
message that says what was found, where, and what can be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ChecksumError",
    "CodecError",
    "ConditionsUnsupported",
    "InvalidKeyError",
    "MetadataError",
    "MissingChunkError",
    "NodeExistsError",
    "NodeNotFoundError",
    "NodeTypeError",
    "Problem",
    "ReadOnlyError",
    "SelectionError",
    "ShapeError",
    "StoreError",
    "UnknownCodecError",
    "UnsupportedByFormat",
    "UnsupportedOperation",
    "WriteConflictError",
    "ZarrError",
]


class ZarrError(Exception):
    """The root of all errors that zarrasync raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as cls(*args) by default, which loses keyword-only fields.
        return _rebuild, (type(self), self.args, dict(self.__dict__))

    def __str__(self) -> str:
        # KeyError and OSError print themselves in ways of their own; a message is a message.
        return str(self.args[0]) if self.args else ""


def _rebuild(cls: type[ZarrError], args: tuple[Any, ...], fields: dict[str, Any]) -> ZarrError:
    notes = fields.pop("__notes__", ())
    error = cls(*args, **fields)  # the fields of each class are its parameters
    for note in notes:
        error.add_note(note)
    return error


class NodeNotFoundError(ZarrError, KeyError, FileNotFoundError):
    """No array or group exists at the path.

    Attributes:
        path: The path that was asked for, relative to the store.
        store: The store, as its repr.
        tried: The keys that were looked up and found absent.
    """

    path: str
    store: str
    tried: tuple[str, ...]

    def __init__(self, message: str, *, path: str = "", store: str = "", tried: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path, self.store, self.tried = path, store, tuple(tried)


class NodeExistsError(ZarrError, FileExistsError):
    """A node exists where one was to be created."""

    path: str
    store: str

    def __init__(self, message: str, *, path: str = "", store: str = "") -> None:
        super().__init__(message)
        self.path, self.store = path, store


class NodeTypeError(ZarrError, TypeError):
    """The node is of the other kind: an array instead of a group, or a group instead of an array."""

    path: str
    found: str
    wanted: str

    def __init__(self, message: str, *, path: str = "", found: str = "", wanted: str = "") -> None:
        super().__init__(message)
        self.path, self.found, self.wanted = path, found, wanted


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a metadata document.

    Attributes:
        key: The store key of the document.
        location: The place inside it, in JSON path notation (``$.codecs[0].name``).
        message: What was found there and what was expected.
    """

    key: str
    location: str
    message: str

    def __str__(self) -> str:
        return f"{self.key or 'metadata'}: {self.location}: {self.message}"


class MetadataError(ZarrError, ValueError):
    """A metadata document is not what its format asks for.

    Attributes:
        problems: Every problem that was found, with its place in the document.
    """

    problems: tuple[Problem, ...]

    def __init__(self, message: str, *, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def from_problems(cls, problems: Sequence[Problem]) -> MetadataError:
        """The error that lists the problems, one a line."""
        text = str(problems[0]) if len(problems) == 1 else "".join(f"\n  {p}" for p in problems)
        return cls(text, problems=problems)


class UnknownCodecError(MetadataError):
    """A document names a codec that is neither built in nor registered.

    Attributes:
        codec: The name that was found.
    """

    codec: str

    def __init__(self, message: str, *, codec: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, problems=problems)
        self.codec = codec


class UnsupportedByFormat(ZarrError, ValueError):
    """The array or group can not be said in the requested Zarr format."""

    zarr_format: object
    feature: str

    def __init__(self, message: str, *, zarr_format: object = None, feature: str = "") -> None:
        super().__init__(message)
        self.zarr_format, self.feature = zarr_format, feature


class InvalidKeyError(ZarrError, ValueError):
    """A store key, prefix or node name is not allowed."""

    key: str

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class CodecError(ZarrError, ValueError):
    """A codec failed on a value.

    Attributes:
        codec: The codec's name.
        direction: ``"decode"`` or ``"encode"``.
        key: The store key of the chunk, where it is known.
    """

    codec: str
    direction: str
    key: str

    def __init__(self, message: str, *, codec: str = "", direction: str = "decode", key: str = "") -> None:
        super().__init__(message)
        self.codec, self.direction, self.key = codec, direction, key

    def at(self, key: str, store: str = "") -> CodecError:
        """This error with the chunk's key and store in field and message (unless it has them)."""
        if not self.key:
            self.key = key
            self.args = (f"{key}{' in ' if store else ''}{store}: {self.args[0]}",)
        return self


class ChecksumError(CodecError):
    """A stored checksum and the one computed over the bytes differ."""


class SelectionError(ZarrError, IndexError):
    """A selection does not fit the array.

    Attributes:
        shape: The shape that was selected from.
    """

    shape: tuple[int, ...]

    def __init__(self, message: str, *, shape: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.shape = shape


class ShapeError(ZarrError, ValueError):
    """Values, chunks or shards have the wrong shape.

    Attributes:
        found: The shape that was given.
        wanted: The shape that was needed.
    """

    found: tuple[int, ...]
    wanted: tuple[int, ...]

    def __init__(self, message: str, *, found: tuple[int, ...] = (), wanted: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.found, self.wanted = found, wanted


class MissingChunkError(ZarrError, KeyError):
    """Chunks are absent and the read was asked not to fill them in.

    Attributes:
        keys: The absent chunks' keys, or those of the shards that they are absent from (the first hundred).
        count: How many were found absent; a shard that is absent counts as one.
    """

    keys: tuple[str, ...]
    count: int

    def __init__(self, message: str, *, keys: Sequence[str] = (), count: int = 0) -> None:
        super().__init__(message)
        self.keys, self.count = tuple(keys), count


class StoreError(ZarrError, OSError):
    """The store could not do what it was asked; never raised for a key that is just absent.

    Attributes:
        key: The key or prefix concerned.
        attempts: How often the operation was tried.
    """

    key: str
    attempts: int

    def __init__(self, message: str, *, key: str = "", attempts: int = 1) -> None:
        super().__init__(message)
        self.key, self.attempts = key, attempts


class ReadOnlyError(StoreError, PermissionError):
    """A write to a node or store that was opened for reading."""


class UnsupportedOperation(StoreError):
    """The store has no such capability (it can not list, write, or compare versions)."""


class ConditionsUnsupported(UnsupportedOperation):
    """The service turned out to know no conditional writes; the store does not claim to compare from now on."""


class WriteConflictError(StoreError):
    """The value changed between read and conditional write."""
