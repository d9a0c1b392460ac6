"""The state of the destination of a job: its arrays, the labels of its rows, and the journal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import formats
from zarrasync.bulk.checksum import slabs, value_checksum
from zarrasync.bulk.files.records.journal import JOURNAL, Journal, journal_places, read_sources
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.sources.conversions import with_sign
from zarrasync.bulk.files.sources.headers import VariableHeader, dtype_text, is_small
from zarrasync.errors import NodeNotFoundError, NodeTypeError, ShapeError
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import XarrayProperties, axis_names
from zarrasync.metadata.conventions.cf_attributes import FILL, inherited_attributes, parents_of_bounds
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of, with_handle
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import NodeHandle
from zarrasync.nodes.open_nodes import open_node_at


@dataclass
class Target:
    """The destination of a job.

    Attributes:
        handle: Its location and format.
        group: The group, or ``None`` if it does not exist.
        arrays: The arrays by name, as readers see them.
        dims: The dimensions of each array.
        labels: The labels of the rows, or ``None``.
        constants: The values of small arrays without rows, and digests of large ones; see ``read_constants``.
        stored_forms: The same as the destination would store variables of a file whose values differ.
        journal: The files that were ingested before.
        place: The name of the array that the journal is next to; empty without a journal.
    """

    handle: NodeHandle
    group: AsyncGroup | None = None
    arrays: Mapping[str, AsyncArray] = field(default_factory=dict)
    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    labels: npt.NDArray[Any] | None = None
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stored_forms: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    place: str = ""

    def time_attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of an array. Bounds inherit the units and the calendar of their coordinate."""
        attributes = {name: array.metadata.attributes for name, array in self.arrays.items()}
        return inherited_attributes(attributes[name], attributes.get(parents_of_bounds(attributes).get(name, "")))

    def header(self, name: str) -> VariableHeader:
        """Return the header of an array, as a file would have it."""
        metadata = self.arrays[name].metadata
        return VariableHeader(
            tuple(map(str, self.dims[name])),
            metadata.shape,
            dtype_text(metadata.dtype.numpy),
            stored_attributes(metadata, self.handle.format),
            place=f"{self.handle.name} of {self.handle.store!r}",
            is_stored=True,
            **self.constants.get(name, {}),
        )

    def length(self, dim: str) -> int:
        """Return the length of a dimension; 0 if no array has it."""
        lengths = ((name, self.arrays[name].shape[dims.index(dim)]) for name, dims in self.dims.items() if dim in dims)
        sizes = {size: name for name, size in lengths}
        if len(sizes) > 1:
            (a, one), (b, other), *_ = sizes.items()
            raise ShapeError(
                f"{one!r} of {self.handle.name} has {a} rows along {dim!r}, but {other!r} has {b}; resize() the arrays to "
                "the same length, or pass mode='w' to replace the dataset",
                found=(a,),
                wanted=(b,),
            )
        return next(iter(sizes), 0)

    def contains(self, plan: FilesPlan) -> bool:
        """Return whether the rows of all files of a plan are in the dataset."""
        length, files = self.length(plan.dim), plan.recorded.files
        planned = [(file, row) for file, row in zip(files, plan.journal, strict=True) if row is not None]
        are_recorded = all(self.journal.rows(file) == row for file, row in planned)
        return are_recorded and all(self.journal.contains(file, self.labels, length) for file, _ in planned)


async def read_target(handle: NodeHandle, dim: str) -> Target:
    """Return the state of a destination, as readers of consolidated metadata see it, without values of constants.

    Args:
        handle: The location of the group.
        dim: The dimension along which files are joined.

    Raises:
        NodeTypeError: If an array exists at the path.
        ShapeError: If arrays have different lengths along the dimension.
    """
    candidates = [format_ for format_ in formats.CANDIDATES if isinstance(format_.zarr_format, int)]
    try:
        node = await open_node_at(handle, tuple(candidates), explain=False, consolidated=None)
    except NodeNotFoundError:
        return Target(handle)
    if not isinstance(node, AsyncGroup):
        raise NodeTypeError(
            f"{handle.name} in {handle.store!r} is an array, but files become the arrays of a group; write to another "
            "path, or pass mode='w' to replace it",
            path=handle.path,
            found="array",
            wanted="group",
        )
    arrays = {name: with_handle(array, handle_of(array).without_consolidated()) for name, array in await node.arrays()}
    dims = {name: tuple(axis_names(array.metadata) or (None,) * array.ndim) for name, array in arrays.items()}
    target = Target(handle_of(node), node, arrays, dims)
    await _read_journal(target, journal_places(arrays, dim))
    if target.length(dim) and dims.get(dim) == (dim,):
        labels = np.asarray(await arrays[dim].view[...].read())
        target.labels = with_sign(labels, arrays[dim].metadata.attributes)
    return target


async def _read_journal(target: Target, names: Sequence[str]) -> None:
    """Read the journal, which usually is next to the first array."""
    for some in filter(None, (names[:1], names[1:])):
        values = await read_sources(target.handle.store, [join(target.handle.path, name) for name in some])
        for name, value in zip(some, values, strict=True):
            if JOURNAL in value:
                target.place, target.journal = name, Journal.of(value[JOURNAL])
                return


async def read_constants(target: Target, dim: str, small_bytes: int) -> None:
    """Read the values of small arrays without rows, and digests of large ones, to compare them with files.

    Args:
        target: The destination, which gets the values and digests.
        dim: The dimension along which files are joined.
        small_bytes: The largest size of a small array.
    """
    constants = {name: array for name, array in target.arrays.items() if dim not in target.dims[name]}
    limit = small_bytes if dim else sys.maxsize
    target.constants = {name: await read_constant(a, target.dims[name], limit) for name, a in constants.items()}


async def read_constant(array: AsyncArray, dims: tuple[str | None, ...], small_bytes: int) -> dict[str, Any]:
    """Return the values or the digest of an array, as members of a ``VariableHeader``."""
    if is_small(array.shape, array.dtype.itemsize, small_bytes):
        return {"values": np.asarray(await array.view[...].read())}
    digest, chunks = 0, array.chunks if array.metadata.edges is None else None
    for region, axes in slabs(dims, array.shape, array.dtype.itemsize, chunks):
        digest = value_checksum(np.asarray(await array.view[region].read()).transpose(axes), digest)
    return {"digest": digest}


def stored_attributes(metadata: ArrayMetadata, format_: Format) -> dict[str, Any]:
    """Return the attributes of an array as a file would have them: also of the number for missing values."""
    own = metadata.attributes, metadata.dimension_names, metadata.fill_value
    missing = XarrayProperties(metadata.dtype, *own, format_.has_undefined_fill).missing_value
    others = {name: value for name, value in metadata.attributes.items() if name != FILL}
    return others if missing is None else {**others, FILL: missing}
