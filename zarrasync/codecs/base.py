"""What a codec is: a plain synchronous function between arrays and bytes.

The three kinds are those of the Zarr v3 core specification ("Codecs"). A codec is a small frozen
value; what depends on the chunk (shape, data type, fill value) reaches it as an ``ArraySpec``. No
codec knows of stores or of asyncio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import CodecError
from zarrasync.indexing.chunk_selection import ChunkRun, Projection
from zarrasync.model.dtypes import DataType

if TYPE_CHECKING:
    from zarrasync.codecs.chain import BoundChain

__all__ = [
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "ArraySpec",
    "BatchDecoder",
    "BoundArrayBytes",
    "BoundWhole",
    "Buffer",
    "BytesBytesCodec",
    "Codec",
    "Decoder",
    "Out",
    "Piece",
    "Range",
    "RowsDecoder",
]

Array: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""Bytes in memory. Arrays among them are one-dimensional and contiguous."""
Out: TypeAlias = npt.NDArray[np.uint8] | None
Decoder: TypeAlias = Callable[[Buffer, Out], Buffer]
"""``BytesBytesCodec.decode`` for values of one size: of the data, and memory that may be used for the result."""
BatchDecoder: TypeAlias = Callable[[Sequence[Buffer]], "Sequence[Buffer] | None"]
"""Decodes several values of one size in one go; ``None`` where only decoding each alone tells what is wrong."""
RowsDecoder: TypeAlias = Callable[[Sequence[Buffer], "Sequence[npt.NDArray[np.uint8]]"], bool]
"""Decodes several values of one size, each into memory of its own; ``False`` where only decoding each alone will do."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What a codec must know of the arrays it gets.

    Attributes:
        shape: The chunk's shape.
        dtype: Its data type.
        fill_value: The array's fill value; zero where the array has none.
        undefined: Whether it has none. Then no chunk is one of nothing but the fill value.
    """

    shape: tuple[int, ...]
    dtype: DataType
    fill_value: Any
    undefined: bool = False

    def replace(self, **changes: Any) -> ArraySpec:
        """A copy with changes."""
        return replace(self, **changes)

    @property
    def nbytes(self) -> int | None:
        """Bytes of one chunk, or ``None`` where elements vary in size."""
        size = self.dtype.itemsize
        return None if size is None else math.prod(self.shape) * size

    def new_array(self) -> Array:
        """A chunk that holds the fill value everywhere.

        Raises:
            CodecError: If there is no memory for it.
        """
        try:
            array = np.empty(self.shape, self.dtype.numpy)
        except MemoryError as error:
            raise CodecError(f"there is no memory for a chunk: {error}") from error
        array[...] = self.scalar
        return array

    @property
    def scalar(self) -> Array:
        """The fill value as an array without dimensions; its text may end in NUL, which a NumPy scalar's may not."""
        fill = np.empty((), self.dtype.numpy)
        fill[()] = self.fill_value
        return fill


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


class Range(NamedTuple):
    """Bytes of an encoded value: ``length`` from ``start``, or the last ``length`` if suffix."""

    start: int
    length: int
    suffix: bool = False


class Piece(NamedTuple):
    """A part of an encoded value that decodes on its own, and where its elements go.

    Attributes:
        start: The first byte inside the value.
        length: The number of bytes; negative where the piece is absent and reads as fill.
        chain: What decodes it.
        part: Its elements and their places; a run for several chunks that lie one after the other.
        out: The output they are placed in.
        entries: Start (from that of the piece) and length per chunk of a run.
    """

    start: int
    length: int
    chain: BoundChain
    part: ChunkRun
    out: Array
    entries: Sequence[tuple[int, int]] = ()


Locator: TypeAlias = Generator[list[Range], list[Buffer | None], list[Piece] | None]
"""A search for pieces: yields ranges, is sent their bytes (``None``: the value is absent), returns
the pieces, or ``None`` where the value is absent."""


class BoundArrayBytes(Protocol):
    """An array -> bytes codec that is bound to a chunk's spec.

    Attributes:
        encoded_size: Bytes of an encoded chunk, where all chunks have the same.
        stored_dtype: The dtype of the elements as stored, if the bytes are just those in C order.

    It may say by ``divisible = False`` that ``locate`` never finds a part.
    """

    encoded_size: int | None
    stored_dtype: np.dtype[Any] | None

    def decode(self, data: Buffer) -> Array:
        """Bytes to an array, which may share the bytes' memory."""

    def encode(self, array: Array) -> Buffer | None:
        """An array to bytes, which may share the array's memory; ``None`` if nothing needs storing."""

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """How to find the bytes of a projection without reading the whole value; ``None`` if not possible."""

    def merge(self, data: Buffer, projection: Projection, values: Array) -> Buffer | None:
        """Encoded bytes with the elements of a projection replaced, as ``encode`` would return them."""


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


class BoundWhole:
    """A bound array -> bytes codec of which nothing is found but by decoding it whole."""

    encoded_size: int | None = None
    stored_dtype: np.dtype[Any] | None = None
    divisible = False

    def decode(self, data: Buffer) -> Array:
        """A chunk of its bytes."""
        raise NotImplementedError

    def encode(self, array: Array) -> Buffer | None:
        """The bytes of a chunk."""
        raise NotImplementedError

    def locate(self, projection: Projection, out: Array) -> Locator | None:
        """Nothing: no part can be found alone."""
        return None

    def merge(self, data: Buffer, projection: Projection, values: Array) -> Buffer | None:
        """A chunk's bytes with the elements of a projection replaced."""
        chunk = np.array(self.decode(data))
        projection.write(chunk, values)
        return self.encode(chunk)
