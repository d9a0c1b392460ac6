"""The base classes of codecs, and checks of their configurations and elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync._util.advice import suggest
from zarrasync.codecs.byte_ranges import BoundArrayBytes
from zarrasync.codecs.spec import Array, ArraySpec, Buffer
from zarrasync.errors import CodecError
from zarrasync.model.dtypes import DataType
from zarrasync.model.fill_values import is_float

Out: TypeAlias = npt.NDArray[np.uint8] | None
Decoder: TypeAlias = Callable[[Buffer, Out], Buffer]
"""Decodes data, possibly into the given memory. See ``BytesBytesCodec.decode``."""
KernelStep: TypeAlias = tuple[int, ...]
"""The number of a codec in the compiled kernel, and its settings for encoding. See ``codecs.c`` for their order."""


@dataclass(frozen=True)
class Codec:
    """Base class of all codecs.

    See "Codecs" in the Zarr v3 core specification.

    Attributes:
        name: The name in Zarr v3 documents.
        brief: Whether 64 KiB decode in less than a millisecond, without calling other code that may block, so
            that an event loop may do it itself.
    """

    name: ClassVar[str] = ""
    brief: ClassVar[bool] = False

    def configuration(self) -> dict[str, Any]:
        """Return the ``configuration`` member of a v3 document. By default it contains the codec's fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        """Return the codec of a ``configuration`` member of a v3 document.

        Raises:
            TypeError, ValueError, KeyError: If the configuration is invalid. The caller adds its location.
        """
        parameters = signature(cls).parameters
        if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters.values()):
            check_members(configuration, *parameters)
        return cls(**configuration)

    def to_json(self) -> dict[str, Any]:
        """Return the codec as an entry of the ``codecs`` list of a v3 document."""
        configuration = self.configuration()
        return {"name": self.label, **({"configuration": configuration} if configuration else {})}

    @property
    def label(self) -> str:
        """The codec's name in documents and messages."""
        return self.name

    def settle(self, spec: ArraySpec) -> Codec:
        """Return this codec with open parameters, such as an element size, set for a kind of chunk."""
        return self

    def fail(self, message: str, direction: str = "decode") -> CodecError:
        """Return the error for a value that does not decode or encode.

        Args:
            message: The reason.
            direction: ``"decode"`` or ``"encode"``.
        """
        return CodecError(f"codec {self.label} cannot {direction}: {message}", codec=self.label, direction=direction)


@dataclass(frozen=True)
class ArrayArrayCodec(Codec):
    """Base class of codecs from arrays to arrays."""

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The order of the axes if the codec only reorders them, else ``None``."""
        return None

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        """Return the spec of encoded arrays for the spec of decoded ones."""
        return spec

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        """Transform a decoded array; ``spec`` describes the decoded side."""
        raise NotImplementedError

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        """Transform an encoded array back; ``spec`` describes the decoded side."""
        raise NotImplementedError


@dataclass(frozen=True)
class ArrayBytesCodec(Codec):
    """Base class of codecs from arrays to bytes."""

    def bind(self, spec: ArraySpec) -> BoundArrayBytes:
        """Bind the codec to one kind of chunk.

        Raises:
            MetadataError: If the codec does not support such chunks.
        """
        raise NotImplementedError

    def has_checksum(self) -> bool:
        """Return whether encoded bytes contain checksums of all elements, so that reading detects damage."""
        return False


@dataclass(frozen=True)
class BytesBytesCodec(Codec):
    """Base class of codecs from bytes to bytes. Codecs implement ``decode``, or ``decoder`` if chunks can share a preparation."""

    def has_checksum(self, data: Buffer | None = None) -> bool:
        """Return whether encoded bytes contain a checksum of their content, so that reading detects damage.

        Args:
            data: The encoded bytes, if known. For some codecs they show whether the value has a checksum.
        """
        return False

    @property
    def fills(self) -> bool:
        """Whether ``decode`` writes large results into the memory that it is given."""
        return False

    @property
    def kernel_step(self) -> KernelStep | None:
        """The number of the codec in the compiled kernel and its settings, or ``None`` if the kernel does not have it."""
        return None

    def encoded_size(self, size: int) -> int | None:
        """Return the number of encoded bytes for ``size`` decoded ones, or ``None`` if it depends on the data."""
        return None

    def encode(self, data: Buffer) -> Buffer:
        """Encode bytes."""
        raise NotImplementedError

    def decoder(self, size: int | None, limit: int) -> Decoder:
        """Return a function that decodes the chunks of one array. It may prepare what all calls of ``decode`` share."""
        return lambda data, out: self.decode(data, size, limit, out)

    def decode(self, data: Buffer, size: int | None, limit: int, out: Out) -> Buffer:
        """Decode bytes.

        Args:
            data: The encoded bytes.
            size: The exact number of decoded bytes, if known.
            limit: The most decoded bytes; checked before memory is allocated.
            out: Memory of exactly ``size`` bytes that may be used for the result.

        Raises:
            CodecError: If the data is damaged or has another size.
        """
        return self.decoder(size, limit)(data, out)


# ------------------------------------------------------------------ checks


def check_members(configuration: Iterable[str], *members: str) -> None:
    """Raise ``ValueError`` if a configuration has other members than these."""
    if unknown := set(configuration) - set(members):
        name = min(unknown)
        others = f"the members are {', '.join(members)}" if members else "the codec has no members"
        raise ValueError(f"unknown member {name!r}; {suggest(name, members, others)}")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ``ValueError`` if a parameter is not an integer from ``low`` to ``high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, found {value!r}")


def rejection_of(error: Exception) -> str:
    """Return why a configuration was rejected, without the name of a constructor."""
    return f"missing member {error}" if isinstance(error, KeyError) else re.sub(r"^[\w.]*__init__\(\) ", "", str(error))


def is_real_number(data_type: DataType) -> bool:
    """Return whether elements are integers or real floating-point numbers."""
    return not data_type.is_complex and (data_type.numpy.kind in "iu" or is_float(data_type.numpy))


def integer_limits(data_type: DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer data type, which may have less than 8 bits."""
    if data_type.limits is not None:
        return data_type.limits
    info = np.iinfo(data_type.numpy)
    return int(info.min), int(info.max)


def float_info(dtype: np.dtype[Any]) -> Any:
    """Return the properties of a floating-point type, also of one of ml_dtypes."""
    if dtype.type.__module__ == "ml_dtypes":
        import ml_dtypes

        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
    return np.finfo(dtype)


def check_limits(codec: Codec, array: Array, limits: tuple[int, int] | None) -> None:
    """Check that integers are representable in the bits of their data type.

    Raises:
        CodecError: If one is not.
    """
    if limits is not None and array.size and (int(array.min()) < limits[0] or int(array.max()) > limits[1]):
        low, high = limits
        raise codec.fail(f"values must be from {low} to {high}, found {array.min()} to {array.max()}", "encode")


def transform_elements(
    codec: Codec, direction: str, function: Callable[[Array], Array], array: Array, dtype: np.dtype[Any]
) -> Array:
    """Apply a function to the flat elements of an array, in native byte order, and restore its shape.

    Args:
        codec: The codec that messages name.
        direction: ``"decode"`` or ``"encode"``.
        function: The function. It may raise ``ValueError``.
        array: The array.
        dtype: The dtype of the function's argument.

    Raises:
        CodecError: If the function raises ``ValueError``.
    """
    try:
        return function(np.ascontiguousarray(array, dtype).reshape(-1)).reshape(array.shape)
    except ValueError as error:
        raise codec.fail(str(error), direction) from error
