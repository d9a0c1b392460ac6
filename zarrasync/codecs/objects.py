"""Arrays of Python objects, as numcodecs stores them in format 2: JSON, MessagePack, nested arrays, pickles."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarrasync.codecs.base import Array, ArrayBytesCodec, ArraySpec, Buffer, Locator
from zarrasync.codecs.numcodecs import numcodecs_codec
from zarrasync.errors import MetadataError
from zarrasync.regions import Region

__all__ = ["OBJECT_CODECS", "ObjectCodec"]

OBJECT_CODECS = ("json2", "msgpack2", "vlen-array", "categorize", "pickle")
"""The numcodecs ids. Reading pickles runs code that they name: a store must be trusted for that."""


@dataclass(frozen=True)
class ObjectCodec(ArrayBytesCodec):
    """Objects as bytes, by a numcodecs codec.

    Attributes:
        config: Its numcodecs configuration.
    """

    config: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        if self.config.get("id") not in OBJECT_CODECS:
            raise MetadataError(
                f"{self.config.get('id')!r} is no codec of objects; known are {', '.join(OBJECT_CODECS)}"
            )
        numcodecs_codec(self.config)  # refuses a wrong configuration

    @property
    def label(self) -> str:
        return str(self.config["id"])

    @property
    def runs_code(self) -> bool:
        """Whether decoding runs code that the data names."""
        return self.label == "pickle"

    def bind(self, spec: ArraySpec) -> _BoundObjects:
        kinds = "OSU" if self.label == "categorize" else "O"
        if spec.dtype.numpy.kind not in kinds:
            raise MetadataError(f"codec {self.label!r} stores objects, the array has data type {spec.dtype.name!r}")
        return _BoundObjects(self, spec)


class _BoundObjects:
    encoded_size: int | None = None
    stored_dtype: np.dtype[Any] | None = None

    def __init__(self, codec: ObjectCodec, spec: ArraySpec) -> None:
        self._codec, self._spec = codec, spec

    def decode(self, data: Buffer) -> Array:
        shape, codec = self._spec.shape, self._codec
        try:
            # Whether pickles may be read was asked when the array was opened (config.allow_pickle).
            found = (
                pickle.loads(bytes(data))  # noqa: S301
                if codec.runs_code
                else numcodecs_codec(codec.config).decode(bytes(data))
            )
            if self._spec.dtype.numpy.kind != "O":
                return np.asarray(found, self._spec.dtype.numpy).reshape(shape)
            found = np.asarray(found, dtype=object)
        except Exception as error:  # whatever a third party's codec raises is a failure of that codec
            raise codec.fail(f"{type(error).__name__}: {error}") from error
        # JSON and MessagePack keep the shape they were given, which may be that of a list of lists.
        if math.prod(found.shape[: len(shape)]) != math.prod(shape) and found.size != math.prod(shape):
            raise self._codec.fail(f"the value has {found.size} elements, the chunk {math.prod(shape)}")
        out = np.empty(math.prod(shape), object)
        if found.size == out.size:
            out[:] = found.reshape(-1)
        else:  # elements that are lists of one length were made an axis of their own
            out[:] = [item.tolist() for item in found.reshape(len(out), -1)]
        return out.reshape(shape)

    def encode(self, array: Array) -> Buffer:
        try:
            data: bytes = bytes(
                numcodecs_codec(self._codec.config).encode(np.array(array, dtype=self._spec.dtype.numpy, order="C"))
            )
        except Exception as error:
            raise self._codec.fail(f"{type(error).__name__}: {error}", "encode") from error
        return data

    def locate(self, region: Region, out: Array) -> Locator | None:
        return None

    def merge(self, data: Buffer, region: Region, values: Array) -> Buffer:
        chunk = self.decode(data)
        region.write(chunk, values)
        return self.encode(chunk)
