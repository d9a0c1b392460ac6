"""The group of a pyramid: its arrays, which are created or continued, and the attributes that publish it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zarrasync.bulk.pyramid.companions import with_coordinates
from zarrasync.bulk.pyramid.source import ORIGIN, PyramidSource
from zarrasync.errors import MetadataError, NodeExistsError
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import Meaning, Violation, axis_names, meaning_of
from zarrasync.metadata.conventions.cf_attributes import inherited_attributes
from zarrasync.metadata.conventions.pyramids import (
    PyramidLevel,
    geo_level_attributes,
    geo_pyramid_attributes,
    ome_pyramid_attributes,
)
from zarrasync.metadata.conventions.xarray_properties import DIMENSIONS
from zarrasync.metadata.convert import LayoutChanges, convert_metadata
from zarrasync.nodes.access import handle_of, replace_attributes
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import create_node
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.find import find_all
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.node import run_on_store


@dataclass(frozen=True)
class PyramidTarget:
    """The group of a pyramid.

    Attributes:
        group: The group.
        source: The finest level, and what conventions specify about it.
        levels: The levels, from the finest one on.
        convention: ``"ome"`` or ``"geo"``.
        version: The version of OME-Zarr.
        origin: The parameters of the computation.
        overwrite: Whether to replace levels.
        shared: The names of arrays that are copied into the group with the finest level; ``None`` if that is a member of it.
    """

    group: AsyncGroup
    source: PyramidSource
    levels: Sequence[PyramidLevel]
    convention: str
    version: str
    origin: Mapping[str, Any]
    overwrite: bool
    shared: Collection[str] | None = None

    def check(self, notes: list[str]) -> None:
        """Check that the pyramid follows its convention, before anything is written.

        Args:
            notes: A list, to which a note is added about a deviation that the group has already.

        Raises:
            MetadataError: If the axes or the chunk keys are not those that OME-Zarr allows.
        """
        before, planned = meaning_of(self.group.metadata), self._meaning()
        present, array = {violation.location for violation in before.violations}, self.source.array
        for violation in self._errors(present):
            ways = ["axes with other names"] if 2 <= array.ndim <= 5 else []  # as OME-Zarr has
            if self.convention == "ome" and not replace(self, convention="geo")._errors(present):  # noqa: SLF001  # another target
                ways.append("convention='zarr-conventions'")
            hint = f"; pass {', or '.join(ways)}" if ways else ""
            raise MetadataError(
                f"the pyramid of {array.name} would not be valid: {violation.message} ({violation.location}){hint}"
            )
        is_unnamed = self.shared is None and handle_of(self.group).format.has_dimension_names
        if self.convention == "geo" and is_unnamed and axis_names(array.metadata) is None:
            raise MetadataError(
                f"the pyramid of {array.name} would not be valid, because the array has no dimension names; pass dest, to which it "
                "is copied with names"
            )
        separator = planned.key_separator
        if separator and self.shared is None and array.metadata.keys.separator != separator:
            message = (
                f"OME-Zarr {self.version} requires chunk keys with the separator {separator!r}, but {array.name} has "
                f"{array.metadata.keys.separator!r}; pass dest, to which the array is copied with other keys"
            )
            if before.key_separator != separator:
                raise MetadataError(f"{message}, or convention='zarr-conventions'")
            notes.append(message)

    def _errors(self, present: Collection[str]) -> list[Violation]:
        """Return where the planned pyramid violates its convention, except for locations that the group has already."""
        violations = self._meaning().violations
        return [item for item in violations if item.severity == "error" and item.location not in present]

    def _meaning(self) -> Meaning:
        return meaning_of(GroupMetadata(attributes=self._group_attributes()))

    async def make_level(
        self, level: PyramidLevel, changes: LayoutChanges, notes: list[str]
    ) -> tuple[AsyncArray, bool]:
        """Create the array of a level, or open the one of an interrupted run. Also return whether it is new.

        Raises:
            NodeExistsError: If another node exists.
        """
        handle = handle_of(self.group).child(level.path)
        planned = self.plan(level, changes, notes)
        find = partial(find_all, handle.without_consolidated(), [handle.path], (handle.format,))
        (existing,) = await run_on_store(find, handle.store)
        if existing is not None and not self.overwrite:
            array = make_node(replace(handle, is_format_known=True), existing.metadata)
            if isinstance(array, AsyncArray) and self._is_same(planned, array.metadata):
                return array, False
            raise NodeExistsError(
                f"{handle.name} in {handle.store!r} exists and was not computed with the same parameters; pass "
                "overwrite=True to replace the levels of the pyramid, or remove it",
                path=handle.path,
                store=repr(handle.store),
            )
        create = partial(create_node, handle, planned, overwrite=existing is not None, erase_leftovers=existing is None)
        created = make_node(await run_on_store(create, handle.store), planned)
        assert isinstance(created, AsyncArray)
        return created, True

    def plan(self, level: PyramidLevel, changes: LayoutChanges, notes: list[str]) -> ArrayMetadata:
        """Return the metadata of a level: the metadata of the finest array, with another shape and layout."""
        array, target = self.source.array, handle_of(self.group).format
        finest, source_format = array.metadata, handle_of(array).format
        chunks = finest.chunks if changes.chunks == "keep" else changes.chunks
        shards = changes.shards
        if shards == "keep":
            is_kept = finest.shards is not None and changes.chunks == "keep"
            shards = finest.shards if is_kept else "auto" if target.has_shards and level != self.levels[0] else None
        if isinstance(chunks, tuple):
            chunks = tuple(min(chunk, max(n, 1)) for chunk, n in zip(chunks, level.shape, strict=True))
            if isinstance(shards, tuple):  # whole chunks that cover at most the array
                counts = (
                    min(shard // chunk, -(-n // chunk))
                    for shard, chunk, n in zip(shards, chunks, level.shape, strict=True)
                )
                shards = tuple(chunk * max(count, 1) for chunk, count in zip(chunks, counts, strict=True))
        is_finest = level == self.levels[0]
        layout = (
            changes if is_finest and finest.edges is not None else LayoutChanges(chunks, shards, changes.compressors)
        )
        plain = replace(finest, shape=level.shape, edges=None) if not is_finest else finest
        planned = convert_metadata(plain, array.name, source_format, target, layout, notes)
        if self._meaning().key_separator:
            planned = replace(planned, keys=replace(planned.keys, separator=self._meaning().key_separator))
        names = tuple(axis.name or None for axis in self.source.axes)
        if target.has_dimension_names and any(names):
            planned = replace(planned, dimension_names=names)
        return replace(planned, attributes=self._attributes(level, planned.attributes), source=None)

    def _attributes(self, level: PyramidLevel, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of a level."""
        values = inherited_attributes(attributes, self.source.parent)  # bounds without their coordinate
        if self.shared is not None:
            values = with_coordinates(values, self.shared)
        if self.convention == "geo":
            all_names = [axis.name for axis in self.source.axes]
            names = all_names[-2:]
            if not handle_of(self.group).format.has_dimension_names and all(all_names):
                values = {DIMENSIONS: all_names, **values}
            values = geo_level_attributes(values, names, self.source.affine, self.source.crs, level)
        if level == self.levels[0]:
            return values
        return {**values, ORIGIN: {**self.origin, "factors": list(level.factors)}}

    def _is_same(self, planned: ArrayMetadata, existing: ArrayMetadata) -> bool:
        """Return whether an existing array is the result of an interrupted run."""

        def comparable(metadata: ArrayMetadata) -> Any:
            origin = metadata.attributes.get(ORIGIN)
            plain = replace(metadata, attributes={ORIGIN: origin} if origin else {}, source=None)
            return handle_of(self.group).format.render("", plain)

        return bool(comparable(planned) == comparable(existing))

    # -------------------------------------------------------------- attributes of the group

    async def remove_other_levels(self) -> None:
        """Erase the levels that an earlier pyramid in the group had, and this one does not have."""
        kept = {level.path for level in self.levels}
        for level in meaning_of(self.group.metadata).levels[1:]:
            if level.path not in kept:
                handle = handle_of(self.group).child(level.path)
                await run_on_store(partial(erase_node, handle), handle.store)

    async def erase_levels(self, *, is_copied: bool) -> None:
        """Erase the arrays of the levels, except for a finest one that was not copied."""
        for level in self.levels[0 if is_copied else 1 :]:
            handle = handle_of(self.group).child(level.path)
            await run_on_store(partial(erase_node, handle), handle.store)

    def is_published(self) -> bool:
        """Return whether the attributes of the group describe the levels."""
        return dict(self.group.attrs) == self._group_attributes()

    async def publish(self, finest: AsyncArray) -> None:
        """Write the attributes of the finest array and of the group, after which readers find all levels."""
        if self.convention == "geo":
            await _update(finest, self._attributes(self.levels[0], finest.attrs))
        await _update(self.group, self._group_attributes())

    def _group_attributes(self) -> dict[str, Any]:
        source, attributes, method = self.source, self.group.attrs, self.origin["method"]
        if self.convention == "ome":
            return ome_pyramid_attributes(attributes, self.version, source.axes, self.levels, method)
        names = [axis.name for axis in source.axes[-2:]]
        return geo_pyramid_attributes(attributes, names, source.affine, source.crs, self.levels, method)


async def _update(node: AsyncArray | AsyncGroup, attributes: Mapping[str, Any]) -> None:
    """Replace the attributes of a node unless they are equal."""
    if dict(node.attrs) != attributes:
        await replace_attributes(node, attributes)
