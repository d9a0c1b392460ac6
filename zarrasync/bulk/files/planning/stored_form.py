"""Variables without rows as the destination would store them, to compare them with stored values.

The destination may store values with loss: with another data type, or with codecs that pack or round them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge
from zarrasync.bulk.checksum import value_checksum
from zarrasync.bulk.files.planning.compare import is_equal
from zarrasync.bulk.files.records.target import Target, stored_attributes
from zarrasync.bulk.files.sources.conversions import check_strings, convert_values
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.errors import CodecError, ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_times import duration_units, units_of
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.node import NodeHandle
from zarrasync.stores import MemoryStore

_Read: TypeAlias = Callable[[Region], npt.NDArray[Any]]


def add_stored_forms(target: Target, header: FileHeader, read: Callable[[str, Region], npt.NDArray[Any]]) -> None:
    """Find out how the destination would store the variables of a file that it has, but with other values.

    Args:
        target: The destination with its constants, which gets the stored forms.
        header: The header of the file.
        read: Returns a region of one of its variables, by the name.
    """
    for name in [*target.values, *target.digests]:
        variable = header.variables.get(name)
        if variable is None or not _may_be_lossy(variable, target, name):
            continue
        axes = variable.order_of(target.dims[name])
        if axes is None or variable.transpose(axes).shape != target.arrays[name].shape:
            continue
        with suppress(CodecError, ShapeError):  # the comparison names the variable
            target.stored_forms[name] = _stored_form(
                target, name, _reader(variable, name, axes, target.arrays[name].dtype, read)
            )


def _may_be_lossy(variable: VariableHeader, target: Target, name: str) -> bool:
    """Return whether the values of a variable differ from the stored ones, as far as they are known."""
    if variable.values is None and variable.digest is None:
        return False
    array = target.arrays[name]
    own, others = variable.attributes, stored_attributes(array.metadata, target.handle.format)
    if (units_of(own), duration_units(own)) != (units_of(others), duration_units(others)):
        return False  # times and durations are compared when they have the same units
    axes, stored = variable.order_of(target.dims[name]), target.values.get(name)
    if variable.values is not None and stored is not None and axes is not None:
        return not is_equal(variable.values.transpose(axes), stored)
    return variable.digest is None or variable.digest != target.digests.get(name)


def _reader(
    variable: VariableHeader,
    name: str,
    axes: tuple[int, ...],
    dtype: np.dtype[Any],
    read: Callable[[str, Region], npt.NDArray[Any]],
) -> _Read:
    """Return a function that returns a region of a variable with its axes in the order of the destination."""

    def read_in_order(region: Region) -> npt.NDArray[Any]:
        own = tuple(part for _, part in sorted(zip(axes, region, strict=True)))
        values = read(name, own) if variable.values is None else variable.values[own]
        check_strings(name, values, "", dtype)  # they would be cut
        return convert_values(values, dtype, name).transpose(axes)

    return read_in_order


def _stored_form(target: Target, name: str, read: _Read) -> dict[str, Any]:
    array, dims = target.arrays[name], target.dims[name]
    if name in target.values:
        whole = tuple(slice(0, n) for n in array.shape)
        return {"values": _store(array, whole, read(whole)), "digest": None}
    digest, axes = 0, tuple(sorted(range(array.ndim), key=lambda axis: str(dims[axis])))
    for region in _rows_of_chunks(array, axes[0]):
        digest = value_checksum(_store(array, region, read(region)).transpose(axes), digest)
    return {"values": None, "digest": digest}


def _rows_of_chunks(array: AsyncArray, axis: int) -> Iterator[Region]:
    """Yield regions of whole stored chunks, because codecs may depend on all values of a chunk."""
    length, size = array.shape[axis], array.shape[axis]
    if array.metadata.edges is None:
        size = array.metadata.write_chunks[axis]
    for start in range(0, length, max(size, 1)):
        rows = slice(start, min(start + size, length))
        yield tuple(rows if number == axis else slice(0, n) for number, n in enumerate(array.shape))


def _store(array: AsyncArray, region: Region, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values as an array with the same metadata contains them."""
    handle, dtype, fill = handle_of(array), array.dtype, array.metadata.spec.fill_value
    place = NodeHandle(MemoryStore(), "", handle.format, handle.config, is_format_known=True)
    own = AsyncArray(place, array.metadata).view[region]

    async def write_and_read() -> Any:
        await own.write(transfer.as_array(values, dtype, fill))
        return await own.read()

    return np.asarray(transfer.as_array(bridge.run(write_and_read(), blocking=True), dtype, fill))
