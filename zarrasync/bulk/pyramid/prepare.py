"""What a pyramid consists of: the finest level, the levels to compute, and their group, whose attributes publish it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from zarrasync import formats
from zarrasync._util.records import TRANSIENT
from zarrasync.bulk.copy.functions import copy
from zarrasync.bulk.overwrite_guard import overlap
from zarrasync.bulk.pyramid.downsample import check_method, plan_levels
from zarrasync.bulk.pyramid.source import ORIGIN, PyramidAxes, PyramidSource, find_companions, find_source
from zarrasync.errors import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import Meaning, Violation, axis_names, meaning_of
from zarrasync.metadata.conventions.cf_attributes import inherited_attributes
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.ome import is_version_for
from zarrasync.metadata.conventions.pyramids import (
    Method,
    PyramidLevel,
    geo_level_attributes,
    geo_pyramid_attributes,
    ome_pyramid_attributes,
)
from zarrasync.metadata.conventions.xarray_properties import DIMENSIONS
from zarrasync.metadata.convert import LayoutChanges, convert_metadata
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import handle_of, replace_attributes
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import create_node
from zarrasync.nodes.documents import Metadata
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.functions import open_group
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Store

_ERASED = "erased"
"""The member of an attribute of the group that names the levels of an earlier pyramid while they are erased."""
_FIRST = "0"
"""The name of the finest level in a new group."""
Convention: TypeAlias = Literal["auto", "ome", "ome-0.4", "ome-0.5", "ome-0.6", "zarr-conventions"]
"""The conventions that describe pyramids."""


@dataclass(frozen=True)
class PyramidRequest:
    """What to compute; see ``pyramid``."""

    axes: PyramidAxes = field(default_factory=PyramidAxes)
    levels: int | Literal["auto"] = "auto"
    method: Method | Literal["auto"] = "auto"
    missing: Any = "auto"
    convention: str = "auto"
    overwrite: bool = False
    changes: LayoutChanges = field(default_factory=LayoutChanges, metadata=TRANSIENT)

    def __post_init__(self) -> None:
        if self.convention not in get_args(Convention):
            known = ", ".join(map(repr, get_args(Convention)))
            raise ValueError(f"convention must be one of {known}; found {self.convention!r}")

    @property
    def version(self) -> str | None:
        """The requested version of OME-Zarr."""
        return self.convention.removeprefix("ome-") if self.convention.startswith("ome-") else None


@dataclass(frozen=True)
class Pyramid:
    """A pyramid whose levels can be computed.

    Attributes:
        request: What to compute.
        source: The array to compute levels of, and what conventions specify about it.
        group: The group of the levels.
        levels: The levels, from the finest one on.
        is_geo: Whether zarr-conventions describe the pyramid, and not OME-Zarr.
        version: The version of OME-Zarr.
        method: How elements become one.
        encoding: The meaning of the stored numbers.
        shared: The arrays that belong to all levels, by name, which are copied into the group with the finest level; ``None``
            if that is a member of the group.
        left_out: Coordinates that the levels lack, with the reason.
    """

    request: PyramidRequest
    source: PyramidSource
    group: AsyncGroup
    levels: Sequence[PyramidLevel]
    is_geo: bool
    version: str
    method: Method
    encoding: CFEncoding
    shared: Mapping[str, AsyncArray] | None
    left_out: Sequence[str]

    @property
    def is_copied(self) -> bool:
        """Whether the finest level is copied into the group. Otherwise it is a member of it."""
        return self.shared is not None

    @property
    def convention(self) -> str:
        """``"ome"`` or ``"zarr-conventions"``."""
        return "zarr-conventions" if self.is_geo else "ome"

    @property
    def written(self) -> Sequence[PyramidLevel]:
        """The levels to write: all of them, or all but the finest one."""
        return self.levels[0 if self.is_copied else 1 :]

    def check(self) -> list[str]:
        """Check that the pyramid follows its convention, before anything is written.

        Returns:
            Notes about deviations that the group has already.

        Raises:
            MetadataError: If the axes or the chunk keys are not those that OME-Zarr allows, or another convention describes the
                levels to replace.
        """
        before, planned = meaning_of(self.group.metadata), self._meaning()
        is_ome = any(title.startswith("OME-Zarr") for title in before.titles)
        if self.request.overwrite and before.levels and is_ome == self.is_geo:
            other = "ome" if is_ome else "zarr-conventions"
            raise MetadataError(
                f"the group {self.group.name} describes its levels in another convention, which would not describe the new ones; "
                f"pass convention={other!r}, or dest for a new group"
            )
        present, array = {violation.location for violation in before.violations}, self.source.array
        for violation in self._errors(present):
            ways = ["axes with other names"] if 2 <= array.ndim <= 5 else []  # as OME-Zarr has
            if not self.is_geo and not replace(self, is_geo=True)._errors(present):  # noqa: SLF001  # another pyramid
                ways.append("convention='zarr-conventions'")
            hint = f"; pass {', or '.join(ways)}" if ways else ""
            raise MetadataError(
                f"the pyramid of {array.name} would not be valid: {violation.message} ({violation.location}){hint}"
            )
        is_unnamed = not self.is_copied and handle_of(self.group).format.has_dimension_names
        if self.is_geo and is_unnamed and axis_names(array.metadata) is None:
            raise MetadataError(
                f"the pyramid of {array.name} would not be valid, because the array has no dimension names; pass dest, to which it "
                "is copied with names"
            )
        separator = planned.key_separator
        if separator and not self.is_copied and array.metadata.keys.separator != separator:
            message = (
                f"OME-Zarr {self.version} requires chunk keys with the separator {separator!r}, but {array.name} has "
                f"{array.metadata.keys.separator!r}; pass dest, to which the array is copied with other keys"
            )
            if before.key_separator != separator:
                raise MetadataError(f"{message}, or convention='zarr-conventions'")
            return [message]
        return []

    def _errors(self, present: Collection[str]) -> list[Violation]:
        """Return where the planned pyramid violates its convention, except for locations that the group has already."""
        violations = self._meaning().violations
        return [item for item in violations if item.severity == "error" and item.location not in present]

    def _meaning(self) -> Meaning:
        return meaning_of(GroupMetadata(attributes=self._group_attributes()))

    async def make_levels(self, notes: list[str]) -> set[str]:
        """Create the arrays of the levels, unless an interrupted run has. Return the paths of new ones.

        Arrays that belong to all levels are copied, and levels of an earlier pyramid that this one does not have are erased.

        Args:
            notes: Notes about conversions of metadata, which are added.

        Raises:
            NodeExistsError: If other nodes exist.
        """
        group, overwrite = self.group, self.request.overwrite
        if overwrite:
            await self._withdraw()
        for name, node in (self.shared or {}).items():
            report = await copy(
                node,
                group.store,
                dest_path=join(group.path, name),
                zarr_format=group.zarr_format,
                overwrite=overwrite,
                resume=not overwrite,
                config=node.config,
            )
            notes += report.notes
        return {level.path for level in self.written if await self._make_level(level)}

    async def _withdraw(self) -> None:
        """Erase the levels of an earlier pyramid that this one does not have, after their description.

        Readers of a description find no level that is erased or unfinished. The attributes name the levels meanwhile, so that
        a repeated call erases them if this process is killed.
        """
        described, noted = meaning_of(self.group.metadata).levels, self.group.attrs.get(ORIGIN)
        names = noted.get(_ERASED) if isinstance(noted, Mapping) else None
        left = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        kept, left = {level.path for level in self.levels}, [*left, *(level.path for level in described[1:])]
        erased = [path for path in dict.fromkeys(left) if path not in kept]
        if described or erased:
            rest = [level for level in self.levels if level not in self.written]
            attributes = replace(self, levels=rest)._group_attributes()  # noqa: SLF001  # of the same class
            await _update(self.group, {**attributes, **({ORIGIN: {_ERASED: erased}} if erased else {})})
            await self._erase(erased)

    async def drop(self) -> None:
        """Erase the levels, which are not described."""
        await self._erase(level.path for level in self.written)
        await _update(self.group, _without_note(self.group.attrs))

    async def _erase(self, paths: Iterable[str]) -> None:
        """Erase the arrays of levels at paths relative to the group."""
        for path in paths:
            handle = handle_of(self.group).child(path)
            await run_on_store(partial(erase_node, handle), handle.store)

    async def _make_level(self, level: PyramidLevel) -> bool:
        """Create the array of a level. Return whether it is new."""
        handle, planned = handle_of(self.group).child(level.path), self.plan(level, [])
        existing = await self._find(level)
        if existing is not None and not self.request.overwrite:
            if self._is_same(planned, existing.metadata):
                return False
            raise handle.exists_error(
                f"{handle.name} in {handle.store!r} exists and was not computed with the same parameters; pass "
                "overwrite=True to replace the levels of the pyramid, or remove it"
            )
        create = partial(create_node, handle, planned, overwrite=existing is not None, erase_leftovers=existing is None)
        await run_on_store(create, handle.store)
        return True

    async def _find(self, level: PyramidLevel) -> FoundNode | None:
        handle = handle_of(self.group).child(level.path)
        find = partial(find_all, handle.without_consolidated(), [handle.path], (handle.format,))
        (found,) = await run_on_store(find, handle.store)
        return found

    async def check_levels(self, planned: Mapping[str, Metadata]) -> None:
        """Check that the arrays of the levels still exist, before they are described.

        Args:
            planned: Their metadata by path.

        Raises:
            NodeNotFoundError: If one does not.
        """
        for level in self.written:
            found = await self._find(level)
            if found is None or not self._is_same(planned[level.path], found.metadata):
                path = join(self.group.path, level.path)
                raise NodeNotFoundError(
                    f"the level /{path} in {self.group.store!r} is not the planned array any more; abandon the plan, and make a "
                    "new one",
                    path=path,
                )

    def plan(self, level: PyramidLevel, notes: list[str]) -> ArrayMetadata:
        """Return the metadata of a level: the metadata of the finest array, with another shape and layout.

        Notes about conversions of metadata are added.
        """
        changes = self.request.changes
        array, target = self.source.array, handle_of(self.group).format
        finest, is_finest = array.metadata, level == self.levels[0]
        chunks = finest.chunks if changes.chunks == "keep" else changes.chunks
        shards = changes.shards
        if shards == "keep":
            is_kept = finest.shards is not None and changes.chunks == "keep"
            shards = finest.shards if is_kept else "auto" if target.has_shards and not is_finest else None
        if isinstance(chunks, tuple):
            chunks = tuple(min(chunk, max(n, 1)) for chunk, n in zip(chunks, level.shape, strict=True))
            if isinstance(shards, tuple):  # whole chunks that cover at most the array
                sizes = zip(shards, chunks, level.shape, strict=True)
                counts = (min(shard // chunk, -(-n // chunk)) for shard, chunk, n in sizes)
                shards = tuple(chunk * max(count, 1) for chunk, count in zip(chunks, counts, strict=True))
        if not is_finest or finest.edges is None:
            changes = LayoutChanges(chunks, shards, changes.compressors)
        plain = finest if is_finest else replace(finest, shape=level.shape, edges=None)
        planned = convert_metadata(plain, array.name, handle_of(array).format, target, changes, notes)
        if separator := self._meaning().key_separator:
            planned = replace(planned, keys=replace(planned.keys, separator=separator))
        names = tuple(axis.name or None for axis in self.source.axes)
        if target.has_dimension_names and any(names):
            planned = replace(planned, dimension_names=names)
        return replace(planned, attributes=self._attributes(level, planned.attributes), source=None)

    def _attributes(self, level: PyramidLevel, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of a level."""
        values = inherited_attributes(attributes, self.source.parent)  # bounds without their coordinate
        if self.shared is not None:
            values = _with_coordinates(values, self.shared)
        if self.is_geo:
            names = [axis.name for axis in self.source.axes]
            if not handle_of(self.group).format.has_dimension_names and all(names):
                values = {DIMENSIONS: names, **values}
            values = geo_level_attributes(values, names[-2:], self.source.affine, self.source.crs, level)
        if level == self.levels[0]:
            return values
        return {**values, ORIGIN: {**self._origin, "factors": list(level.factors)}}

    def _is_same(self, planned: Metadata, existing: Metadata) -> bool:
        """Return whether an existing node is the result of an interrupted run."""

        def comparable(metadata: Metadata) -> Any:
            origin = metadata.attributes.get(ORIGIN)
            plain = replace(metadata, attributes={ORIGIN: origin} if origin else {}, source=None)
            return handle_of(self.group).format.render("", plain)

        return bool(comparable(planned) == comparable(existing))

    def is_published(self) -> bool:
        """Return whether the attributes of the group describe the levels."""
        return dict(self.group.attrs) == self._group_attributes()

    async def publish(self) -> None:
        """Write the attributes of the finest array and of the group, after which readers find all levels."""
        if self.is_geo:
            finest = await self.group.getitem(self.levels[0].path) if self.is_copied else self.source.array
            await _update(finest, self._attributes(self.levels[0], finest.attrs))
        await _update(self.group, self._group_attributes())

    @property
    def _origin(self) -> dict[str, Any]:
        """The parameters of the computation, by which later calls recognize the same one."""
        missing = [_as_json(number) for number in self.encoding.missing]
        valid = [None if limit is None else _as_json(limit) for limit in self.encoding.valid]
        found = {"method": self.method, "missing": missing, "valid": valid if valid != [None, None] else None}
        return {name: value for name, value in found.items() if value}

    def _group_attributes(self) -> dict[str, Any]:
        source, attributes, method = self.source, _without_note(self.group.attrs), self.method
        if not self.is_geo:
            return ome_pyramid_attributes(attributes, self.version, source.axes, self.levels, method)
        names = [axis.name for axis in source.axes[-2:]]
        return geo_pyramid_attributes(attributes, names, source.affine, source.crs, self.levels, method)


def _without_note(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != ORIGIN}


async def _update(node: AsyncArray | AsyncGroup, attributes: Mapping[str, Any]) -> None:
    """Replace the attributes of a node unless they are equal."""
    if dict(node.attrs) != attributes:
        await replace_attributes(node, attributes)


def _with_coordinates(attributes: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return attributes that refer to no other coordinates than those with some names."""
    text = attributes.get("coordinates")
    if not isinstance(text, str):
        return dict(attributes)
    result = {**attributes, "coordinates": " ".join(name for name in text.split() if name in names)}
    return {name: own for name, own in result.items() if own or name != "coordinates"}


def _as_json(number: Any) -> Any:
    """Return a number as an attribute. Infinities and complex numbers become strings."""
    plain = number.item()
    is_plain = isinstance(plain, int) or (isinstance(plain, float) and abs(plain) < float("inf"))
    return plain if is_plain else str(plain)


async def prepare(
    node: AsyncArray | AsyncGroup, dest: Store | None, dest_path: str, request: PyramidRequest
) -> tuple[Pyramid, list[str]]:
    """Return the pyramid of an array, after its group was opened or created, and notes for the report.

    Args:
        node: The array, or a group with a pyramid or one array.
        dest: The store of another group for the pyramid; ``None`` for the group of the array.
        dest_path: The path of that group.
        request: What to compute.
    """
    source = await find_source(node, request.axes)
    is_geo = source.is_geographic if request.convention == "auto" else request.convention == "zarr-conventions"
    source = source.as_grid() if is_geo else source.as_image()
    encoding = source.encoding(request.missing, has_named_axes=is_geo)
    has_codes = source.meaning.labels is not None or encoding.flags is not None
    usual: Method = "mode" if has_codes else "nearest" if encoding.is_direction else "mean"
    method = usual if request.method == "auto" else request.method
    check_method(method, encoding)
    path = source.path if dest is None else _FIRST
    planned = plan_levels(path, source.array.shape, source.axes, request.levels, request.axes.factors, method)
    group = await _open_target(source, dest, dest_path, request.version)
    shared, left_out = (None, source.left_out) if dest is None else await find_companions(source, planned)
    pyramid = Pyramid(
        request, source, group, planned, is_geo, _version(group, request.version), method, encoding, shared,
        [*left_out.values()],
    )  # fmt: skip
    notes = pyramid.check()
    if dest is None:
        await _check_names(source, group)
    return pyramid, notes


# ------------------------------------------------------------------ places


async def _open_target(source: PyramidSource, dest: Store | None, dest_path: str, version: str | None) -> AsyncGroup:
    """Open or create the group of the pyramid, in format 2 for version 0.4 of OME-Zarr, or as others in the store."""
    handle = handle_of(source.array)
    if dest is not None:
        path = normalize_path(dest_path)
        if overlap(handle.store, handle.path, dest, path):
            raise NodeExistsError(
                f"cannot write the pyramid of {source.array.name} to /{path} in {dest!r}: one contains the other; omit dest "
                "to add levels to the group of the array",
                path=path,
            )
        try:
            return await open_group(dest, path=path, mode="r+", config=handle.config)
        except NodeNotFoundError:
            format_ = handle.format.zarr_format if dest is handle.store else 2 if version == "0.4" else None
            return await open_group(dest, path=path, mode="a", zarr_format=format_, config=handle.config)
    if not handle.path:
        raise NodeTypeError(
            f"{source.array.name} in {handle.store!r} is the root of its store and has no group for more levels; pass dest, "
            "to which the array is copied",
            path="",
            found="array",
            wanted="group",
        )
    path = handle.path[: len(handle.path) - len(source.path)].rstrip("/")
    return await open_group(handle.store, path=path, mode="r+", config=handle.config)


async def _check_names(source: PyramidSource, group: AsyncGroup) -> None:
    """Check that levels can be members of the group: it must not be a dataset, whose arrays share dimensions.

    Raises:
        NodeTypeError: If the group contains other arrays.
    """
    if source.meaning.levels or source.path.endswith("0"):
        return
    names = [name for name in await group.array_keys() if name != source.path]
    if others := [name for name in names if not name.startswith(f"{source.path}_")]:
        raise NodeTypeError(
            f"the group of {source.array.name} contains other arrays ({', '.join(others[:5])}), so levels of other shapes "
            "would make it unreadable for xarray; pass dest, such as another path of the same store",
            path=group.path,
            found="group",
            wanted="group",
        )


def _version(group: AsyncGroup, requested: str | None) -> str:
    """Return the version of OME-Zarr to write.

    Raises:
        MetadataError: If the format of the group does not allow it.
    """
    ome, format_ = group.attrs.get("ome"), formats.by_name(group.zarr_format)
    present = ome.get("version") if isinstance(ome, Mapping) else None
    version = requested or (present if isinstance(present, str) else format_.ome_version)
    if not is_version_for(version, format_):
        raise MetadataError(
            f"OME-Zarr {version} cannot be written in Zarr format {group.zarr_format}: version 0.4 needs format 2, and later "
            "ones need format 3"
        )
    if isinstance(present, str) and present[:3] != version[:3]:
        raise MetadataError(
            f"the group contains OME-Zarr {present}, not {version}; the convention 'ome' keeps its version"
        )
    return version
