"""Decoded arrays: the values that stored numbers stand for, with the interface of arrays for reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync.display.info import Info, decoded_info
from zarrasync.errors import ShapeError
from zarrasync.indexing.labels import LabelMethod
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions.cf_attributes import parents_of_bounds
from zarrasync.metadata.conventions.cf_encode import encode
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_flags import STRINGS
from zarrasync.metadata.conventions.registry import encoding_of, may_be_bounds, parent_of
from zarrasync.metadata.format import Format
from zarrasync.nodes.base import MetadataCell
from zarrasync.nodes.node import NodeHandle
from zarrasync.nodes.selection import AsyncSelection, SelectedArray


@dataclass(frozen=True)
class Decoding:
    """How stored numbers become values.

    Attributes:
        encoding: The meaning of the numbers.
        masked: Whether values are masked arrays. By default, missing values are NaN or NaT.
        flag_names: Whether flags are strings.
    """

    encoding: CFEncoding
    masked: bool = False
    flag_names: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of values; see ``CFEncoding.value_dtype``."""
        if self.flag_names:
            return STRINGS
        return self.encoding.masked_dtype if self.masked else self.encoding.value_dtype

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values for stored numbers.

        Raises:
            CodecError: If times have invalid units, or a calendar that needs cftime, and it is not installed.
        """
        if self.flag_names:
            return self.encoding.flag_names(stored)
        return self.encoding.decode_masked(stored) if self.masked else self.encoding.decode(stored)

    def decode_into(self, stored: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Decode into an array of the same shape.

        Raises:
            CodecError: As ``decode``.
            ShapeError: If times are not exact in the unit of ``out``.
        """
        values = self.decode(stored)
        if values.dtype == out.dtype or values.dtype.kind not in "mM" or out.dtype.kind not in "mM":
            out[...] = values
            return
        out[...] = values.astype(out.dtype)
        if ((out.astype(values.dtype) != values) & ~np.isnat(values)).any():
            raise ShapeError(f"some times are not exact in the dtype {out.dtype} of out; use {values.dtype}")

    def check_out(self, out: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        """Check that values can be stored in an array. Times fit in any unit that represents them.

        Raises:
            ShapeError: If it has another shape or dtype.
        """
        dtype = self.dtype
        is_time = dtype.kind in "mM" and out.dtype.kind == dtype.kind
        if self.masked and not isinstance(out, np.ma.MaskedArray):
            raise TypeError("out must be a masked array, because masked values are read")
        if out.shape != shape or not (is_time or out.dtype == dtype) or not out.flags.writeable:
            raise ShapeError(
                f"out has shape {out.shape} and dtype {out.dtype}{'' if out.flags.writeable else ' and is read-only'}, the "
                f"selection of decoded values {shape} and {dtype}",
                found=out.shape,
                wanted=shape,
            )

    def encode(self, values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
        """Return the numbers that stand for values.

        Raises:
            EncodingError: If the encoding cannot represent a value.
            TypeError: If values are the names of flags.
        """
        if self.flag_names:
            raise TypeError(f"names of flags cannot be written to {name}; write their numbers")
        return encode(values, self.encoding, variable=name, hint="write stored numbers to the array itself")


class AsyncDecodedArray(SelectedArray):
    """The physical values of an array: with scale and offset, missing ones as NaN, encoded times as dates.

    Attributes specify what stored numbers mean, by the conventions of CF: ``scale_factor``, ``add_offset``, ``_FillValue``,
    ``missing_value``, ``valid_range``, ``units`` and ``calendar`` of times, flags. ``array.decoded`` and
    ``open_array(decode=True)`` return decoded arrays. Indexing returns a lazy selection, whose read takes the same requests
    as one of stored numbers. Written values are encoded, and an error names the first value that cannot be represented.

    Times are ``datetime64`` in a unit that can represent them, and objects of cftime in other calendars than the Gregorian
    one.

    Example:
        >>> attributes = {"scale_factor": 0.5, "_FillValue": -1, "units": "K"}
        >>> array = await za.create_array({}, data=np.array([546, -1], "i2"), attributes=attributes)
        >>> await array.decoded[:]
        array([273.,  nan])
    """

    def __init__(
        self,
        stored: SelectedArray,
        format_: Format,
        parent: Mapping[str, Any] | None = None,
        *,
        masked: bool = False,
        flag_names: bool = False,
    ) -> None:
        self._stored: Any = stored
        self._format, self._parent, self._masked, self._flag_names = format_, parent, masked, flag_names
        self._cached: tuple[ArrayMetadata, Decoding] | None = None

    @property
    def _cell(self) -> MetadataCell[ArrayMetadata]:  # type: ignore[override]  # the one of the stored array
        return self.stored._cell  # type: ignore[no-any-return]  # it may be of any class

    @property
    def _decoding(self) -> Decoding:
        """How numbers become values, by the present attributes."""
        metadata = self.metadata
        if self._cached is None or self._cached[0] is not metadata:
            encoding = encoding_of(metadata, self._format, self._parent)
            self._cached = metadata, Decoding(encoding, self._masked, self._flag_names)
        return self._cached[1]

    @property
    def _chunks(self) -> transfer.Chunks:
        return self.stored._chunks  # type: ignore[no-any-return]  # it may be of any class

    def with_options(self, *, masked: bool = False, flag_names: bool = False) -> AsyncDecodedArray:
        """Return the array with other kinds of values.

        Args:
            masked: Return masked arrays. Integers without a scale then remain integers. By default, missing values are NaN
                or NaT, and such integers become floating-point numbers.
            flag_names: Return the meanings of flags as strings. Several meanings are separated by spaces.

        Raises:
            CodecError: If ``flag_names`` is true, and the attributes do not specify the meanings of flags.

        Example:
            >>> attributes = {"flag_values": [0, 1], "flag_meanings": "sea land"}
            >>> array = await za.create_array({}, data=np.array([1, 0], "i1"), attributes=attributes)
            >>> names = await array.decoded.with_options(flag_names=True)[:]
            >>> names.tolist()
            ['land', 'sea']
        """
        if flag_names:
            self._decoding.encoding.flag_names(np.empty(0, self.metadata.dtype.numpy))
        return AsyncDecodedArray(self.stored, self._format, self._parent, masked=masked, flag_names=flag_names)

    # -------------------------------------------------------------- properties

    @property
    def stored(self) -> Any:
        """The array of stored numbers."""
        return self._stored

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of values, which is the one that xarray decodes to. For times, it has no unit."""
        return self._decoding.dtype

    @property
    def unit(self) -> str:
        """The unit of values; empty for dates and without one."""
        return self._decoding.encoding.unit

    @property
    def info(self) -> Info:
        """A summary of the metadata. Makes no requests."""
        return decoded_info(self.stored.info, self.dtype, self.unit)

    def __repr__(self) -> str:
        unit = f" unit={self.unit!r}" if self.unit else ""
        stored = self.metadata.dtype.numpy
        return f"<{type(self).__name__} {self.name} shape={self.shape} dtype={self.dtype} from {stored}{unit} {self.store!r}>"

    # -------------------------------------------------------------- selecting

    async def sel(
        self,
        mapping: Mapping[str, Any] | None = None,
        *,
        points: Mapping[str, Any] | None = None,
        method: LabelMethod | None = None,
        tolerance: Any = None,
        **coordinates: Any,
    ) -> AsyncSelection:
        """Select a part of the values by the coordinates in the group of the array.

        Takes the arguments of ``AsyncArray.sel``, and raises the same errors.

        Example:
            >>> group = await za.create_group({})
            >>> _ = await group.create_array("x", data=[10, 20], dimension_names=["x"])
            >>> attributes = {"scale_factor": 0.5}
            >>> array = await group.create_array("v", data=[1, 2], dimension_names=["x"], attributes=attributes)
            >>> await (await array.decoded.sel(x=20)).read()
            np.float64(1.0)
        """
        part = await self.stored.sel(
            mapping, points=points, method=method, tolerance=tolerance, decode=False, **coordinates
        )
        return AsyncSelection(self, part._transform)


def decoded_members(arrays: Mapping[str, Any], format_: Format) -> dict[str, AsyncDecodedArray]:
    """Return the arrays of a group with decoded values. Bounds inherit the attributes of their coordinates."""
    metadata = {name: array.metadata for name, array in arrays.items()}
    parents = parents_of_bounds({name: array.attributes for name, array in metadata.items()})
    return {
        name: AsyncDecodedArray(array, format_, metadata[parents[name]].attributes)
        if name in parents
        else array.decoded
        for name, array in arrays.items()
    }


def decoded_at(stored: SelectedArray, handle: NodeHandle) -> AsyncDecodedArray:
    """Return an array with decoded values. Bounds inherit attributes if the metadata of their group is consolidated."""
    copies, parent = handle.consolidated, None
    if handle.path and copies is not None and may_be_bounds(stored.metadata):
        members = copies.members(handle.path.rpartition("/")[0]) or ()
        siblings = {name: metadata for name, metadata in members if isinstance(metadata, ArrayMetadata)}
        parent = parent_of(handle.basename, siblings)
    return AsyncDecodedArray(stored, handle.format, parent)
