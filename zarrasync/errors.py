"""The errors of zarrasync, in one tree.

::

    ZarrError
    ├── NodeNotFoundError   (KeyError, FileNotFoundError)   no node at the path.
    ├── NodeExistsError     (FileExistsError)               a node exists at the path.
    ├── NodeTypeError       (TypeError)                     an array instead of a group, or the other way round.
    ├── MetadataError       (ValueError)                    an invalid metadata document.
    │   └── UnknownCodecError                               a codec that is not registered.
    ├── UnknownAdapterError (ValueError)                    a URL whose protocol or adapter is not installed.
    ├── UnsupportedByFormat (ValueError)                    metadata that the format cannot store.
    ├── InvalidKeyError     (ValueError)                    a key or node name that is not allowed.
    ├── CodecError          (ValueError)                    bytes that do not decode, values that do not encode.
    │   ├── ChecksumError                                   the stored and the computed checksum differ.
    │   └── EncodingError                                   a value that an encoding of CF cannot represent.
    ├── SelectionError      (IndexError)                    a selection that does not fit the array.
    ├── ShapeError          (ValueError)                    values, chunks or shards of the wrong shape.
    ├── SourceFilesError    (ValueError)                    source files that cannot be ingested.
    ├── MissingChunkError   (KeyError)                      chunks that do not exist, with missing="error".
    └── StoreError          (OSError)                       a failure of the store.
        ├── ReadOnlyError   (PermissionError)               a write to a node that was opened for reading.
        ├── UnsupportedOperation                            an operation that the store does not support.
        │   └── ConditionsUnsupported                       conditional writes that the service does not support.
        └── WriteConflictError                              another writer changed the value meanwhile.

All errors can be pickled, and have fields with the values in their messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

__all__ = [
    "ChecksumError",
    "CodecError",
    "ConditionsUnsupported",
    "EncodingError",
    "InvalidKeyError",
    "LabelError",
    "MetadataError",
    "MissingChunkError",
    "NodeExistsError",
    "NodeNotFoundError",
    "NodeTypeError",
    "Problem",
    "ReadOnlyError",
    "SelectionError",
    "ShapeError",
    "SourceFilesError",
    "StoreError",
    "UnknownAdapterError",
    "UnknownCodecError",
    "UnsupportedByFormat",
    "UnsupportedOperation",
    "WriteConflictError",
    "ZarrError",
]


class ZarrError(Exception):
    """Base class of all errors of zarrasync."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as cls(*args) by default, which loses keyword-only fields.
        fields = {name: value for name, value in self.__dict__.items() if name == "__notes__" or name[:1] != "_"}
        return _rebuild, (type(self), self.args, fields)

    def __str__(self) -> str:
        # KeyError would quote the message, and OSError would expect an error number.
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
        path: The requested path, relative to the store.
        store: The repr of the store.
        tried: The keys that were looked up and do not exist.
    """

    def __init__(self, message: str, *, path: str = "", store: str = "", tried: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path, self.store, self.tried = path, store, tuple(tried)


class NodeExistsError(ZarrError, FileExistsError):
    """A node exists at the path of a new one.

    Attributes:
        path: The path, relative to the store.
        store: The repr of the store.
    """

    def __init__(self, message: str, *, path: str = "", store: str = "") -> None:
        super().__init__(message)
        self.path, self.store = path, store


class NodeTypeError(ZarrError, TypeError):
    """The node is an array instead of a group, or the other way round, or has another data type or format.

    Attributes:
        path: The path of the node, relative to the store.
        found: Its kind (``"array"`` or ``"group"``), data type or format.
        wanted: The expected one.
    """

    def __init__(self, message: str, *, path: str = "", found: str = "", wanted: str = "") -> None:
        super().__init__(message)
        self.path, self.found, self.wanted = path, found, wanted


_LONGEST_MESSAGE = 600
"""Characters of a problem's message. Values of documents can have megabytes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a metadata document.

    Attributes:
        key: The store key of the document.
        location: The location in the document, in JSON path notation (``$.codecs[0].name``).
        message: The present value and the expected one.
    """

    key: str
    location: str
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > _LONGEST_MESSAGE:  # it quotes a value of the document
            half = _LONGEST_MESSAGE // 2
            object.__setattr__(self, "message", f"{self.message[:half]} … {self.message[-half:]}")

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.key, self.location, self.message)))


class MetadataError(ZarrError, ValueError):
    """A metadata document is invalid in its format.

    Attributes:
        problems: All problems of the document.
    """

    def __init__(self, message: str, *, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def from_problems(cls, problems: Sequence[Problem]) -> MetadataError:
        """Return an error that lists problems, one per line."""
        text = str(problems[0]) if len(problems) == 1 else "".join(f"\n  {p}" for p in problems)
        return cls(text, problems=problems)

    def locate(self, store: str) -> None:
        """Add the repr of the store with the document to the message."""
        self.args = (f"invalid metadata in {store}: {self.args[0]}",)


class UnknownCodecError(MetadataError):
    """A document names a codec that is neither built in nor registered.

    Attributes:
        codec: The name of the codec.
    """

    def __init__(self, message: str, *, codec: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, problems=problems)
        self.codec = codec


class UnsupportedByFormat(ZarrError, ValueError):
    """The requested Zarr format cannot store the array or group.

    Attributes:
        zarr_format: The format.
        feature: The feature that it does not support.
    """

    def __init__(self, message: str, *, zarr_format: object = None, feature: str = "") -> None:
        super().__init__(message)
        self.zarr_format, self.feature = zarr_format, feature


class InvalidKeyError(ZarrError, ValueError):
    """A store key, prefix or node name is not allowed.

    Attributes:
        key: The key, prefix or name.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class UnknownAdapterError(ZarrError, ValueError):
    """A URL names a protocol, or a URL pipeline an adapter, that is neither built in nor installed.

    Attributes:
        scheme: The protocol, or the scheme of the adapter.
        known: All known ones.
    """

    def __init__(self, message: str, *, scheme: str = "", known: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.scheme, self.known = scheme, known


class CodecError(ZarrError, ValueError):
    """A codec failed on a value.

    Attributes:
        codec: The name of the codec.
        direction: ``"decode"`` or ``"encode"``.
        key: The store key of the chunk, or an empty string if it is unknown.
    """

    def __init__(self, message: str, *, codec: str = "", direction: str = "decode", key: str = "") -> None:
        super().__init__(message)
        self.codec, self.direction, self.key = codec, direction, key

    def at(self, key: str, store: str = "") -> CodecError:
        """Add the key of the chunk, the repr of its store and a hint to the fields and the message, unless it has a key."""
        if not self.key:
            self.key = key
            is_damaged = self.direction == "decode" and not isinstance(self.__cause__, MemoryError)
            hint = "; restore the chunk from a copy, or write it again" if is_damaged else ""
            self.args = (f"{key}{' in ' if store else ''}{store}: {self.args[0]}{hint}",)
        return self


class ChecksumError(CodecError):
    """The stored and the computed checksum of a value differ."""


class EncodingError(CodecError):
    """A data type or an encoding of CF cannot represent a value.

    The value is out of range, missing, or rounded, or it would be read as a missing one.

    Attributes:
        variable: The name of the variable.
        index: The indices of the first such value; empty for scalars and if they are not known.
        value: The value; ``None`` if the error concerns all values.
    """

    def __init__(
        self,
        message: str,
        *,
        variable: str = "",
        index: Sequence[int] = (),
        value: Any = None,
        codec: str = "",
        direction: str = "encode",
        key: str = "",
    ) -> None:
        super().__init__(message, codec=codec, direction=direction, key=key)
        self.variable, self.index, self.value = variable, tuple(index), value


class SelectionError(ZarrError, IndexError):
    """A selection does not fit the array.

    Attributes:
        shape: The shape of the array or selection that was indexed.
    """

    def __init__(self, message: str, *, shape: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.shape = shape


class LabelError(SelectionError, KeyError):
    """A coordinate does not have a label, or cannot be selected by it.

    Attributes:
        name: The name of the coordinate or dimension.
    """

    def __init__(self, message: str, *, name: str = "", shape: tuple[int, ...] = ()) -> None:
        super().__init__(message, shape=shape)
        self.name = name


class ShapeError(ZarrError, ValueError):
    """Values, chunks or shards have the wrong shape.

    Attributes:
        found: The shape.
        wanted: The expected shape.
    """

    def __init__(self, message: str, *, found: tuple[int, ...] = (), wanted: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.found, self.wanted = found, wanted


class SourceFilesError(ZarrError, ValueError):
    """Source files of an ingestion cannot be read, or do not fit the others.

    Attributes:
        files: The reason for each such file, by its name.
    """

    def __init__(self, message: str, *, files: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.files = dict(files)


class MissingChunkError(ZarrError, KeyError):
    """Chunks do not exist, and ``missing`` is ``"error"``.

    Attributes:
        keys: The keys of the missing chunks, or of the shards that lack them (at most a hundred).
        count: The number of missing chunks; a missing shard counts as one.
    """

    def __init__(self, message: str, *, keys: Sequence[str] = (), count: int = 0) -> None:
        super().__init__(message)
        self.keys, self.count = tuple(keys), count


class StoreError(ZarrError, OSError):
    """The store failed. A key that does not exist is not a failure.

    Attributes:
        key: The key or prefix of the operation.
        attempts: How often it was tried.
    """

    def __init__(self, message: str, *, key: str = "", attempts: int = 1) -> None:
        super().__init__(message)
        self.key, self.attempts = key, attempts


class ReadOnlyError(StoreError, PermissionError):
    """A node or store that was opened for reading cannot be written to."""


class UnsupportedOperation(StoreError):
    """The store does not support the operation, such as listing, writing or conditional writes."""


class ConditionsUnsupported(UnsupportedOperation):
    """The service does not support conditional writes. The store does not use them from now on."""


class WriteConflictError(StoreError):
    """Another writer changed the value between a read and a conditional write."""
