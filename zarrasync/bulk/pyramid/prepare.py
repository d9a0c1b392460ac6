"""What a pyramid consists of: the finest level, the levels to compute, their group, and the meaning of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from zarrasync import formats
from zarrasync._util.records import TRANSIENT
from zarrasync.bulk.files.options import Layout
from zarrasync.bulk.overwrite_guard import overlap
from zarrasync.bulk.pyramid.companions import Companions, find_companions
from zarrasync.bulk.pyramid.downsample import Method, check_method
from zarrasync.bulk.pyramid.plan import plan_levels
from zarrasync.bulk.pyramid.source import PyramidAxes, PyramidSource, find_source
from zarrasync.bulk.pyramid.target import PyramidTarget
from zarrasync.errors import MetadataError, NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.ome import is_version_for
from zarrasync.metadata.conventions.pyramids import PyramidLevel
from zarrasync.metadata.convert import LayoutChanges
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.functions import open_group
from zarrasync.nodes.group import AsyncGroup
from zarrasync.stores import Store

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

    @classmethod
    def of(
        cls,
        axes: Sequence[str] | PyramidAxes | None,
        levels: Any,
        method: Any,
        missing: Any,
        convention: str,
        overwrite: bool,
        layout: Layout | None,
    ) -> PyramidRequest:
        """Return the request for the arguments of ``pyramid``.

        Raises:
            ValueError: If the convention is unknown, or the layout sets what levels take over from the finest one.
        """
        layout = layout or Layout()
        shapes = layout.options
        if others := sorted(shapes.keys() - {"chunks", "shards", "compressors"}) + ["encoding"] * bool(layout.encoding):
            raise ValueError(f"the layout of levels has chunks, shards and compressors; omit {', '.join(others)}")
        axes = axes if isinstance(axes, PyramidAxes) else PyramidAxes(names=axes)
        return cls(axes, levels, method, missing, convention, overwrite, LayoutChanges(**shapes))

    @property
    def version(self) -> str | None:
        """The requested version of OME-Zarr."""
        return self.convention.removeprefix("ome-") if self.convention.startswith("ome-") else None


@dataclass(frozen=True)
class Pyramid:
    """A pyramid whose levels can be computed.

    Attributes:
        source: The array to compute levels of, and what conventions specify about it.
        target: The group of the levels.
        encoding: The meaning of the stored numbers.
        companions: The arrays to copy into the group.
        is_copied: Whether the finest level is copied into the group. Otherwise it is a member of it.
        notes: Remarks for the report.
    """

    source: PyramidSource
    target: PyramidTarget
    encoding: CFEncoding
    companions: Companions
    is_copied: bool
    notes: Sequence[str]

    @property
    def convention(self) -> str:
        """``"ome"`` or ``"zarr-conventions"``."""
        return "zarr-conventions" if self.target.convention == "geo" else "ome"

    @property
    def method(self) -> Method:
        """How elements become one."""
        method: Method = self.target.origin["method"]
        return method

    @property
    def written(self) -> Sequence[PyramidLevel]:
        """The levels to write: all of them, or all but the finest one."""
        return self.target.levels[0 if self.is_copied else 1 :]

    @property
    def left_out(self) -> list[str]:
        """Coordinates that the levels lack, with the reason."""
        return [*(self.companions if self.is_copied else self.source).left_out.values()]


async def prepare(
    node: AsyncArray | AsyncGroup, dest: Store | None, dest_path: str, request: PyramidRequest
) -> Pyramid:
    """Return the pyramid of an array, after its group was opened or created.

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
    origin = {"method": method, **_missing_of(encoding)}
    companions = Companions() if dest is None else await find_companions(source, planned)
    target = PyramidTarget(
        group, source, planned, "geo" if is_geo else "ome", _version(group, request.version), origin, request.overwrite,
        shared=None if dest is None else companions.shared.keys(),
    )  # fmt: skip
    notes: list[str] = []
    target.check(notes)
    if dest is None:
        await _check_names(source, group)
    return Pyramid(source, target, encoding, companions, dest is not None, notes)


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
    others = [
        name for name in await group.array_keys() if name != source.path and not name.startswith(f"{source.path}_")
    ]
    if others:
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


def _missing_of(encoding: CFEncoding) -> dict[str, Any]:
    """Return which numbers are missing, as attributes by which later calls recognize the same computation."""
    numbers = [_as_json(number) for number in encoding.missing]
    valid = [None if limit is None else _as_json(limit) for limit in encoding.valid]
    return {**({"missing": numbers} if numbers else {}), **({"valid": valid} if valid != [None, None] else {})}


def _as_json(number: Any) -> Any:
    """Return a number as an attribute. Infinities and complex numbers become strings."""
    plain = number.item()
    is_plain = isinstance(plain, int) or (isinstance(plain, float) and abs(plain) < float("inf"))
    return plain if is_plain else str(plain)
