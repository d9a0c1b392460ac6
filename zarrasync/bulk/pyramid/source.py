"""The finest level of a pyramid: its array, its axes with coordinates, its place on the globe, and the arrays it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.pyramid.downsample import Factors
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError, UnsupportedOperation
from zarrasync.metadata import ArrayMetadata, NodeMetadata
from zarrasync.metadata.conventions import CRS, Axis, Meaning, axes_of, axis_names, meaning_of
from zarrasync.metadata.conventions.cf_attributes import BOUNDS, numbers_with_sign
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.meaning import Affine, is_geographic
from zarrasync.metadata.conventions.ome import interpret_ome
from zarrasync.metadata.conventions.pyramids import PyramidLevel
from zarrasync.metadata.conventions.registry import encoding_of
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of, parent_attributes
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.find import find_all
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import run_on_store

ORIGIN = "downsampling"
"""The attribute of a level with the parameters that it was computed with."""

_MOST_COORDINATES = 1_000_000
"""The most elements of a coordinate array that is read."""
_TOLERANCE = 1e-3
"""How much a step of stored coordinates may differ from the mean one, as a share of it."""
_KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


@dataclass(frozen=True, kw_only=True)
class PyramidAxes:
    """What a pyramid needs to know of the axes of an array, and its attributes do not contain.

    Attributes:
        names: The names of all axes, such as ``"czyx"``, if the array has none or others should be written.
        scale: The distances between elements by the names of axes. Default: what conventions specify, or 1.
        units: The units by the names of axes, such as ``{"x": "micrometer"}``.
        factors: The factor from each level to the next along spatial axes, or along axes by name, such as
            ``{"y": 2, "x": 2}``. A list contains one of these for each level after the finest one: ``[2, 2, 4]``. Default:
            2 along spatial axes whose step is at most 1.5 times the smallest one, so that steps become more even. If no
            axis is known to be spatial, the last two are.
    """

    names: Sequence[str] | str | None = None
    scale: Mapping[str, float] | None = None
    units: Mapping[str, str] | None = None
    factors: Factors = None

    def apply(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Return axes with the changes.

        Raises:
            MetadataError: If a name is missing or occurs twice, or a change is for an axis that does not exist.
        """
        if self.names is not None and len(self.names) != len(axes):
            raise MetadataError(f"axes must have a name for each of the {len(axes)} axes, found {list(self.names)!r}")
        if self.names is not None:
            axes = [replace(axis, name=name) for axis, name in zip(axes, self.names, strict=True)]
        names = [axis.name for axis in axes]
        if not all(names) or len({*names}) < len(names):
            found = ", ".join(name or "(unnamed)" for name in names)
            raise MetadataError(
                f"a pyramid needs different names for all axes, found {found}; pass axes, such as 'zyx'"
            )
        steps, units = self.scale or {}, self.units or {}
        unknown = [name for name in (*steps, *units) if name not in names]
        if unknown:
            raise MetadataError(f"no axis has the name {unknown[0]!r}; the axes are {', '.join(names)}")
        kinds = [axis.kind or _KINDS.get(axis.name.lower(), "") for axis in axes]
        if "space" not in kinds:  # the last two axes are the plane
            kinds[-2:] = [kind or "space" for kind in kinds[-2:]]
        return tuple(
            replace(
                axis,
                kind=kind,
                step=float(steps[axis.name]) if axis.name in steps else 1.0 if axis.step is None else axis.step,
                unit=units.get(axis.name, axis.unit),
            )
            for axis, kind in zip(axes, kinds, strict=True)
        )


@dataclass(frozen=True)
class PyramidSource:
    """The finest level of a pyramid.

    Attributes:
        array: The array.
        axes: Its axes, with the coordinates of its elements.
        affine: The affine transformation of the last two axes from the corner of the first cell, if it is known.
        crs: The coordinate reference system, if it is known.
        meaning: What conventions specify about the group of the array.
        path: The path of the array relative to the group.
        located: The names of axes whose stored coordinates levels express.
        left_out: Messages about stored coordinates that levels cannot express, by the name of the axis.
        parent: The attributes of the coordinate whose bounds the array contains; ``None`` if it contains no bounds.
    """

    array: AsyncArray
    axes: tuple[Axis, ...]
    affine: Affine | None
    crs: CRS | None
    meaning: Meaning
    path: str
    located: frozenset[str] = frozenset()
    left_out: Mapping[str, str] = field(default_factory=dict)
    parent: Mapping[str, Any] | None = None

    @property
    def is_image(self) -> bool:
        """Whether the group of the array is in OME-Zarr."""
        return _is_image(self.meaning)

    @property
    def is_geographic(self) -> bool:
        """Whether the array is a geographic grid, and not an image. Coordinates of images do not descend."""
        is_grid = self.affine is not None or self.crs is not None or "multiscales" in self.meaning.titles
        is_grid |= any(axis.name in self.located and (axis.step or 0) < 0 for axis in self.axes)
        return is_grid and not self.is_image

    def as_grid(self) -> PyramidSource:
        """Return the source with an affine transformation, if the coordinates of the last two axes are known."""
        is_located = len(self.axes) > 1 and all(axis.name in self.located for axis in self.axes[-2:])
        return replace(self, affine=_affine(*self.axes[-2:])) if self.affine is None and is_located else self

    def as_image(self) -> PyramidSource:
        """Return the source without coordinates that OME-Zarr cannot express."""
        falling = [axis.name for axis in self.axes if (axis.step or 0) < 0 and not self.is_image]
        reason = "OME-Zarr has no descending ones; the levels have only their distances (or pass convention='zarr-conventions')"
        messages = {name: f"the coordinates of {name!r} are left out, because {reason}" for name in falling}
        rising = {axis.name: replace(axis, step=-(axis.step or 0), origin=0.0) for axis in self.axes}
        axes = tuple(rising[axis.name] if axis.name in falling else axis for axis in self.axes)
        return replace(self, axes=axes, left_out={**self.left_out, **messages})

    def encoding(self, missing: Any, *, has_named_axes: bool) -> CFEncoding:
        """Return the meaning of the stored numbers.

        Args:
            missing: The numbers of missing elements: one or several, ``None`` for none but NaN, or ``"auto"`` for what the
                attributes and the format specify.
            has_named_axes: Whether the axes count as named, so that a defined fill value of format 2 marks missing
                values. The fill values of images have no meaning.

        Raises:
            ValueError: If the data type cannot represent a number.
        """
        metadata = self.array.metadata
        if has_named_axes:
            metadata = replace(metadata, dimension_names=tuple(axis.name for axis in self.axes))
        encoding = encoding_of(metadata, handle_of(self.array).format, self.parent)
        if isinstance(missing, str) and missing == "auto":
            return encoding
        if missing is None:
            return replace(encoding, missing=(), valid=(None, None))
        numbers = numbers_with_sign(missing, encoding.dtype, encoding.number_dtype)
        if not numbers or encoding.dtype.kind not in "biufc":
            raise ValueError(f"missing: no element of the data type {encoding.dtype} is equal to {missing!r}")
        return replace(encoding, missing=tuple(number for number in numbers if number == number))  # NaN


async def find_source(node: AsyncArray | AsyncGroup, changes: PyramidAxes) -> PyramidSource:
    """Return the finest level of a node: the array itself, the first level of a pyramid, or the only array of a group.

    Raises:
        NodeTypeError: If a group contains no such array, or several.
        MetadataError: If the coordinates of the first level cannot be expressed in other levels.
    """
    handle = handle_of(node)
    if isinstance(node, AsyncArray):
        above, _, name = handle.path.rpartition("/")
        array, metadata = node, await _metadata_at(node, above) if handle.path else None
    else:
        array, metadata = await _finest_of(node), node.metadata
        name = array.path[len(handle.path) :].strip("/")
    meaning = meaning_of(metadata) if metadata is not None else Meaning()
    context = meaning.for_member(name, meaning_of(array.metadata), is_array=True)
    axes = axes_of(array.metadata, context.axes)
    if (
        _is_image(meaning)
        and any(level.path == name for level in meaning.levels)
        and any(axis.step is None for axis in axes)
    ):
        raise MetadataError(
            f"the coordinates of {array.name} are not a scale and an offset along each axis, so coarser levels cannot be "
            "described"
        )
    own_axes = _without_common_transformations(metadata, name, array) or axes
    axes = changes.apply(own_axes)
    located, left_out = set(changes.scale or ()), dict[str, str]()
    described = {new.name for old, new in zip(own_axes, axes, strict=True) if old.step is not None}
    axes, crs = await _with_stored_coordinates(array, axes, context, located, left_out)
    are_known = {axis.name for axis in axes[-2:]} <= described | located
    affine = context.affine or (_affine_of(axes, context) if are_known else None)
    parent = await parent_attributes(array)
    return PyramidSource(array, axes, affine, crs, meaning, name, frozenset(located), left_out, parent)


def _is_image(group: Meaning) -> bool:
    return any(title.startswith("OME-Zarr") for title in group.titles)


def _without_common_transformations(
    metadata: NodeMetadata | None, name: str, array: AsyncArray
) -> tuple[Axis, ...] | None:
    """Return the axes of an OME-Zarr level before the transformations of all levels, which stay in the document."""
    if metadata is None:
        return None
    ome = metadata.attributes.get("ome")
    holder = ome if isinstance(ome, Mapping) else metadata.attributes
    pyramids = holder.get("multiscales")
    first = pyramids[0] if isinstance(pyramids, list) and pyramids else None
    if not isinstance(first, Mapping) or "coordinateTransformations" not in first:
        return None
    own = {key: value for key, value in first.items() if key != "coordinateTransformations"}
    changed = {**holder, "multiscales": [own]}
    meaning = interpret_ome({"ome": changed} if holder is ome else changed)
    levels = meaning.levels if meaning is not None else ()
    return next((axes_of(array.metadata, level.axes) for level in levels if level.path == name), None)


async def _finest_of(group: AsyncGroup) -> AsyncArray:
    handle = handle_of(group)
    levels = meaning_of(group.metadata).levels
    if levels:
        try:
            node = await group.getitem(levels[0].path)
        except NodeNotFoundError as error:
            raise NodeNotFoundError(f"the finest level of the pyramid {handle.name} does not exist: {error}") from error
        if isinstance(node, AsyncArray):
            return node
        raise NodeTypeError(
            f"the levels of {handle.name} are groups; pass the path of an array in the first one, and a destination",
            path=handle.path,
            found="group",
            wanted="array",
        )
    arrays = [(name, array) for name, array in await group.arrays() if ORIGIN not in array.attrs]
    if len(arrays) == 1:  # others may be levels of an interrupted run
        return arrays[0][1]
    names = ", ".join(name for name, _ in arrays[:20]) or "none"
    message = f"{handle.name} in {handle.store!r} is a group with {len(arrays)} arrays; pass the path of one: {names}"
    raise NodeTypeError(message, path=handle.path, found="group", wanted="array")


async def _metadata_at(node: AsyncArray, path: str) -> NodeMetadata | None:
    """Return the metadata of a node in the same store, or ``None`` if it does not exist."""
    handle = handle_of(node)
    (found,) = await run_on_store(partial(find_all, handle, [path], (handle.format,)), handle.store)
    return None if found is None else found.metadata


# ------------------------------------------------------------------ geographic grids


def _affine_of(axes: Sequence[Axis], context: Meaning) -> Affine | None:
    """Return the affine transformation of regular coordinates that are on the globe or on a map."""
    if len(axes) < 2:
        return None
    rows, columns = axes[-2:]
    is_map = context.crs is not None or is_geographic(rows, columns) or {"axis"} <= rows.attributes.keys()
    return _affine(rows, columns) if is_map and rows.step and columns.step else None


def _affine(rows: Axis, columns: Axis) -> Affine:
    down, across = rows.step or 0.0, columns.step or 0.0
    return (across, 0.0, columns.origin - across / 2, 0.0, down, rows.origin - down / 2)


async def _with_stored_coordinates(
    array: AsyncArray, axes: tuple[Axis, ...], context: Meaning, located: set[str], left_out: dict[str, str]
) -> tuple[tuple[Axis, ...], CRS | None]:
    """Return the last two axes with coordinates that are stored in arrays with their names, and the CRS of a grid mapping.

    Args:
        array: The array.
        axes: Its axes.
        context: What conventions specify about the array and its group.
        located: The names of axes that the caller has located. Those with stored coordinates are added.
        left_out: Messages about coordinates that levels cannot express, which are added by the name of the axis.
    """
    above = array.path.rpartition("/")[0]
    if not array.path or len(axes) < 2 or any(axis.kind for axis in context.axes):
        return axes, context.crs
    pairs = zip(axes[-2:], array.shape[-2:], strict=True)
    plane = [axis if axis.name in located else await _locate(array, axis, size, left_out) for axis, size in pairs]
    located |= {new.name for new, old in zip(plane, axes[-2:], strict=True) if new is not old}
    crs = context.crs
    for link in context.links:
        if crs is None and link.kind == "grid mapping":
            metadata = await _metadata_at(array, join(above, link.path))
            crs = meaning_of(metadata).crs if metadata is not None else None
    return (*axes[:-2], *plane), crs


async def _locate(array: AsyncArray, axis: Axis, size: int, left_out: dict[str, str]) -> Axis:
    """Return an axis with regular coordinates that are stored in an array. Others are left out, with a message."""
    try:
        node = (await _find(array, [axis.name])).get(axis.name)
    except UnsupportedOperation:
        return axis
    if node is None or node.shape != (size,):
        return axis
    reason, values, step = "", np.zeros(0), 0.0
    if size < 2:
        reason = "a single element has no step"
    elif size > _MOST_COORDINATES:
        reason = f"there are more than {_MOST_COORDINATES:,}"
    elif node.dtype.kind not in "iuf":
        reason = f"their data type is {node.dtype}"
    else:
        values = _unpack(np.asarray(await node.view[:].read()), node)
        steps = np.diff(values)
        step = float(values[-1] - values[0]) / len(steps)
        if not step or not np.isfinite(values).all() or np.abs(steps - step).max() > _TOLERANCE * abs(step):
            reason = "their steps differ"
    if reason:
        left_out[axis.name] = (
            f"the coordinates of {axis.name!r} are left out, because {reason}; the levels count elements instead"
        )
        return axis
    unit, letter = node.attrs.get("units"), node.attrs.get("axis")
    is_map = letter in ("X", "Y") or "projection" in str(node.attrs.get("standard_name"))
    attributes = {**axis.attributes, **({"axis": letter or ""} if is_map else {})}
    unit = unit if isinstance(unit, str) else ""
    return replace(axis, step=step, origin=float(values[0]), unit=unit, attributes=attributes)


def _unpack(values: npt.NDArray[Any], node: AsyncArray) -> npt.NDArray[np.float64]:
    """Return the numbers that stored coordinates mean, with NaN for missing ones."""
    encoding = encoding_of(node.metadata, handle_of(node).format)
    return np.where(encoding.is_missing(values), np.nan, encoding.unpack(values).astype(np.float64))


# ------------------------------------------------------------------ coordinates, their bounds, and the grid mapping


async def find_companions(
    source: PyramidSource, levels: Sequence[PyramidLevel]
) -> tuple[Mapping[str, AsyncArray], Mapping[str, str]]:
    """Return the arrays that belong to all levels, and messages about coordinates that the levels lack, by name.

    Arrays without axes, and along axes that do not become coarser, belong to all levels. Coordinates of spatial axes that
    levels express as a step and an origin need no array.
    """
    array, coarsest = source.array, levels[-1].total
    if not array.path:
        return {}, {}
    names = axis_names(array.metadata) or [None] * array.ndim
    axes = zip(names, source.axes, array.shape, coarsest, strict=True)
    kept = {axis.name: size for name, axis, size, total in axes if name == axis.name and total == 1}
    linked = [link.path for link in meaning_of(array.metadata).links if "/" not in link.path]
    found = await _find(array, dict.fromkeys([*(name for name in names if name), *linked]))
    bounds = [str(node.attrs[key]) for node in found.values() for key in BOUNDS if key in node.attrs]
    found |= await _find(array, bounds)
    shared, left_out = dict[str, AsyncArray](), dict[str, str]()
    for name, node in found.items():
        if name in source.located and name not in source.left_out:
            continue
        dims = axis_names(node.metadata) or ([name] if node.ndim == 1 else [None] * node.ndim)
        sizes = dict(zip(dims, node.shape, strict=True))
        if None not in sizes and all(kept.get(str(dim)) == n for dim, n in sizes.items() if dim in names):
            shared[name] = node  # along other dimensions are such as the ends of bounds
        elif name not in source.left_out:
            reason = "levels are coarser or named differently along its axes"
            left_out[name] = f"the coordinate {name!r} of {array.name} is left out, because {reason}"
    others = {name: text for name, text in source.left_out.items() if name not in shared}
    return shared, left_out | others


async def _find(array: AsyncArray, names: Iterable[str]) -> dict[str, AsyncArray]:
    """Return the arrays with names in the group of an array."""
    handle, above = handle_of(array), array.path.rpartition("/")[0]
    paths = {name: path for name in names if name and (path := join(above, name)) != array.path}
    find = partial(find_all, handle, list(paths.values()), (handle.format,))
    nodes = await run_on_store(find, handle.store) if paths else []
    pairs = zip(paths.items(), nodes, strict=True)
    return {
        name: AsyncArray(handle.at(path), node.metadata)
        for (name, path), node in pairs
        if node is not None and isinstance(node.metadata, ArrayMetadata)
    }
