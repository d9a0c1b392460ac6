"""What a codec is: a plain synchronous function between arrays and bytes.

The three kinds are those of the Zarr v3 core specification ("Codecs"). A codec is a small frozen
value; what depends on the chunk (shape, data type, fill value) reaches it as an ``ArraySpec``. No
codec knows of stores or of asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.partial import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError

__all__ = [
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "BatchDecoder",
    "BytesBytesCodec",
    "Codec",
    "Decoder",
    "Out",
    "RowsDecoder",
]

Out: TypeAlias = npt.NDArray[np.uint8] | None
Decoder: TypeAlias = Callable[[Buffer, Out], Buffer]
"""``BytesBytesCodec.decode`` for values of one size: of the data, and memory that may be used for the result."""
BatchDecoder: TypeAlias = Callable[[Sequence[Buffer]], "Sequence[Buffer] | None"]
"""Decodes several values of one size in one go; ``None`` where only decoding each alone tells what is wrong."""
RowsDecoder: TypeAlias = Callable[[Sequence[Buffer], "Sequence[npt.NDArray[np.uint8]]"], bool]
"""Decodes several values of one size, each into memory of its own; ``False`` where only decoding each alone will do."""


@dataclass(frozen=True)
class Codec:
    """The base of all codecs.

    Attributes:
        name: The name in Zarr v3 documents.
        brief: Whether 64 KiB are decoded within some hundred microseconds by code that calls nobody else, so that an
            event loop may do it itself.
    """

    name: ClassVar[str] = ""
    brief: ClassVar[bool] = False

    def configuration(self) -> dict[str, Any]:
        """The ``configuration`` member of a v3 document: the codec's fields, if it says nothing else."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        """The codec of a v3 document.

        Raises:
            TypeError, ValueError, KeyError: If the configuration does not fit; the caller adds
                where it stands.
        """
        return cls(**configuration)

    def to_json(self) -> dict[str, Any]:
        """The codec as an entry of a v3 document."""
        configuration = self.configuration()
        return {"name": self.label, **({"configuration": configuration} if configuration else {})}

    @property
    def label(self) -> str:
        """The codec's name for documents and messages."""
        return self.name

    def settle(self, spec: ArraySpec) -> Codec:
        """This codec with parameters that were left open settled for the arrays it will get."""
        return self

    def fail(self, message: str, direction: str = "decode") -> CodecError:
        """The error to raise for a value that does not decode or encode."""
        return CodecError(f"codec {self.label} can not {direction}: {message}", codec=self.label, direction=direction)


@dataclass(frozen=True)
class ArrayArrayCodec(Codec):
    """A codec from arrays to arrays."""

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The order of the axes, if reordering them is all that the codec does."""
        return None

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        """What comes out for what goes in."""
        return spec

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        """Transform a decoded array; ``spec`` is that of the decoded side."""
        raise NotImplementedError

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        """Transform an encoded array back; ``spec`` is that of the decoded side."""
        raise NotImplementedError


@dataclass(frozen=True)
class ArrayBytesCodec(Codec):
    """A codec from arrays to bytes."""

    def bind(self, spec: ArraySpec) -> BoundArrayBytes:
        """The codec for one kind of chunk."""
        raise NotImplementedError


@dataclass(frozen=True)
class BytesBytesCodec(Codec):
    """A codec from bytes to bytes."""

    @property
    def unlocked(self) -> bool:
        """Whether several values are coded without the interpreter, so that threads pay however small they are."""
        return False

    @property
    def fills(self) -> bool:
        """Whether ``decode`` makes its result in the memory that it is given, if that is large."""
        return False

    def encoded_size(self, size: int) -> int | None:
        """Bytes that come out for ``size`` bytes in, or ``None`` where it depends on the data."""
        return None

    def encode(self, data: Buffer) -> Buffer:
        """Encode bytes."""
        raise NotImplementedError

    def decoder(self, size: int | None, limit: int) -> Decoder:
        """``decode`` with all settled that is alike for the chunks of an array; what this returns is called per chunk."""
        return lambda data, out: self.decode(data, size, limit, out)

    def encode_all(self, values: Sequence[Buffer]) -> Sequence[Buffer]:
        """Encode several values."""
        return [self.encode(value) for value in values]

    def batch_decoder(self, size: int | None) -> BatchDecoder | None:
        """What decodes several values in one go, where they are so small that the interpreter's part counts."""
        return None

    def rows_decoder(self, size: int | None) -> RowsDecoder | None:
        """What decodes several values into memory that is there, where that takes less of the interpreter."""
        return None

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        """Decode bytes.

        Args:
            data: The encoded bytes.
            size: How many bytes must come out, where that is known.
            limit: How many bytes may come out at most; checked before memory is taken.
            out: Memory of exactly ``size`` bytes that may be used for the result.

        Raises:
            CodecError: If the data is damaged or of another size.
        """
        raise NotImplementedError
