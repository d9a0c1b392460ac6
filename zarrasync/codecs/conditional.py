"""``conditional`` (zarr-extensions): codecs that are applied only to chunks that they make smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zarrasync.codecs.base import BytesBytesCodec, Codec, Out
from zarrasync.codecs.configuration import check_members
from zarrasync.codecs.spec import ArraySpec, Buffer

__all__ = ["ConditionalCodec"]


@dataclass(frozen=True)
class ConditionalCodec(BytesBytesCodec):
    """``conditional``: codecs that are applied to a chunk if they make it smaller; a header lists which were applied.

    See "conditional" in zarr-extensions.

    Attributes:
        codecs: Bytes -> bytes codecs, in the order of encoding.
        header_bits: Bits of the header, a multiple of 8; ``None`` for as many as are needed.
    """

    name = "conditional"
    codecs: tuple[BytesBytesCodec, ...]
    header_bits: int | None = None

    def __post_init__(self) -> None:
        bits = self.header_bits
        if bits is not None and (type(bits) is not int or bits % 8 or not len(self.codecs) <= bits <= 1 << 16):
            raise ValueError(f"header_bits must be a multiple of 8 of at least {len(self.codecs)}, found {bits!r}")

    @classmethod
    def parse(
        cls, configuration: Mapping[str, Any], parse_codec: Callable[[Any, str], Codec | None]
    ) -> ConditionalCodec:
        """Return the codec of a document; ``parse_codec`` parses an entry of the inner list."""
        check_members(configuration, "codecs", "header_bits")
        codecs: list[BytesBytesCodec] = []
        for number, entry in enumerate(configuration["codecs"]):
            codec = parse_codec(entry, f"codecs[{number}]")
            if not isinstance(codec, BytesBytesCodec):
                raise ValueError(f"codecs must be bytes -> bytes codecs, found {entry!r}")
            codecs.append(codec)
        return cls(tuple(codecs), configuration.get("header_bits"))

    def configuration(self) -> dict[str, Any]:
        header = {} if self.header_bits is None else {"header_bits": self.header_bits}
        return {"codecs": [codec.to_json() for codec in self.codecs], **header}

    def settle(self, spec: ArraySpec) -> Codec:
        settled = tuple(codec.settle(spec) for codec in self.codecs)
        return ConditionalCodec(settled, self.header_bits)  # type: ignore[arg-type]  # settled codecs keep their kind

    @property
    def _header_size(self) -> int:
        return (self.header_bits or 8 * -(-len(self.codecs) // 8)) // 8

    def encode(self, data: Buffer) -> Buffer:
        applied = 0
        for number, codec in enumerate(self.codecs):
            encoded = codec.encode(data)
            if len(encoded) < len(data):
                data, applied = encoded, applied | 1 << number
        return b"".join((applied.to_bytes(self._header_size, "little"), data))

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        view = memoryview(data)
        if len(view) < self._header_size:
            raise self.fail(f"a value of {len(view)} bytes is shorter than the header of {self._header_size} bytes")
        applied = int.from_bytes(view[: self._header_size], "little")
        if applied >> len(self.codecs):
            raise self.fail(f"its header refers to more than the {len(self.codecs)} configured codecs")
        content: Buffer = view[self._header_size :]
        applied_codecs = [codec for number, codec in enumerate(self.codecs) if applied >> number & 1]
        for codec in reversed(applied_codecs):
            content = codec.decode(content, size if codec is applied_codecs[0] else None, limit, None)
        if size is not None and len(content) != size:
            raise self.fail(f"the result has {len(content)} bytes, expected {size}")
        return content
