"""``CodecChain``: the codecs of an array in order, checked once and bound to each kind of chunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from zarrasync.codecs.bound_chain import BoundChain
from zarrasync.codecs.spec import ArraySpec, Buffer
from zarrasync.errors import MetadataError

__all__ = ["CodecChain"]


@dataclass(frozen=True, slots=True)
class CodecChain:
    """Codecs in the order of encoding.

    See "Codecs" in the Zarr v3 core specification.

    Attributes:
        array_array: The array -> array codecs.
        array_bytes: The array -> bytes codec.
        bytes_bytes: The bytes -> bytes codecs.
    """

    array_array: tuple[ArrayArrayCodec, ...]
    array_bytes: ArrayBytesCodec
    bytes_bytes: tuple[BytesBytesCodec, ...]

    @classmethod
    def of(cls, codecs: Iterable[Codec]) -> CodecChain:
        """Return the chain of a list of codecs.

        Raises:
            MetadataError: If they are out of order or there is not exactly one array -> bytes codec.
        """
        codecs = tuple(codecs)
        names = ", ".join(codec.label for codec in codecs) or "none"
        serializers = [codec for codec in codecs if isinstance(codec, ArrayBytesCodec)]
        if len(serializers) != 1:
            raise MetadataError(
                f"codecs need exactly one array -> bytes codec (such as 'bytes'), found {len(serializers)} in: {names}"
            )
        position = codecs.index(serializers[0])
        before, after = codecs[:position], codecs[position + 1 :]
        array_array = tuple(codec for codec in before if isinstance(codec, ArrayArrayCodec))
        bytes_bytes = tuple(codec for codec in after if isinstance(codec, BytesBytesCodec))
        if len(array_array) != len(before) or len(bytes_bytes) != len(after):
            raise MetadataError(
                f"codecs are out of order: array -> array, then {serializers[0].label}, then bytes -> bytes; "
                f"found {names}"
            )
        return cls(array_array, serializers[0], bytes_bytes)

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """All codecs, in order."""
        return (*self.array_array, self.array_bytes, *self.bytes_bytes)

    def settle(self, spec: ArraySpec) -> CodecChain:
        """Return the chain with open parameters of its codecs, such as an element size, set for a kind of chunk."""
        settled: list[Codec] = []
        for codec in self.codecs:
            settled_codec = codec.settle(spec)
            settled.append(settled_codec)
            if isinstance(settled_codec, ArrayArrayCodec):
                spec = settled_codec.encoded_spec(spec)
        return CodecChain.of(settled)

    def has_checksum(self, data: Buffer | None = None) -> bool:
        """Return whether encoded bytes contain checksums of all elements, so that reading detects damage.

        Args:
            data: The encoded bytes, if they are known.
        """
        if not self.bytes_bytes:
            return self.array_bytes.has_checksum()
        *inner, outer = self.bytes_bytes
        others: tuple[ArrayBytesCodec | BytesBytesCodec, ...] = (self.array_bytes, *inner)
        return outer.has_checksum(data) or any(codec.has_checksum() for codec in others)

    def bind(self, spec: ArraySpec) -> BoundChain:
        """Bind the chain to one kind of chunk.

        Raises:
            MetadataError: If a codec does not support the arrays it would receive.
        """
        return BoundChain(self.array_array, self.array_bytes, self.bytes_bytes, spec)
