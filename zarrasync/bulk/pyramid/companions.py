"""The arrays that the finest level refers to: coordinates, their bounds, and the grid mapping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from zarrasync.bulk.copy.functions import copy
from zarrasync.bulk.pyramid.source import PyramidSource
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import axis_names, meaning_of
from zarrasync.metadata.conventions.cf_attributes import BOUNDS
from zarrasync.metadata.conventions.pyramids import PyramidLevel
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.find import find_all
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.node import run_on_store


@dataclass(frozen=True)
class Companions:
    """The arrays that the finest level refers to.

    Attributes:
        shared: The arrays that belong to all levels, by name.
        left_out: Messages about other coordinates, also about those that levels cannot express, by name.
    """

    shared: Mapping[str, AsyncArray] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


async def find_companions(source: PyramidSource, levels: Sequence[PyramidLevel]) -> Companions:
    """Return the arrays that the finest level refers to.

    Arrays without axes, and along axes that do not become coarser, belong to all levels. Coordinates of spatial axes that
    levels express as a step and an origin need no array.
    """
    array, coarsest = source.array, levels[-1].total
    if not array.path:
        return Companions()
    names = axis_names(array.metadata) or [None] * array.ndim
    axes = zip(names, source.axes, array.shape, coarsest, strict=True)
    kept = {axis.name: size for name, axis, size, total in axes if name == axis.name and total == 1}
    linked = [link.path for link in meaning_of(array.metadata).links if "/" not in link.path]
    found = await _find(array, dict.fromkeys([*(name for name in names if name), *linked]))
    found |= await _find(
        array, [str(node.attrs[key]) for node in found.values() for key in BOUNDS if key in node.attrs]
    )
    shared: dict[str, AsyncArray] = {}
    left_out: dict[str, str] = {}
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
    return Companions(shared, left_out | others)


async def copy_companions(companions: Companions, group: AsyncGroup, notes: list[str], *, overwrite: bool) -> None:
    """Copy the arrays that belong to all levels into the group of the pyramid.

    Args:
        companions: The arrays.
        group: The group of the pyramid, which is not the group of the finest level.
        notes: Notes about conversions of metadata, which are added.
        overwrite: Whether to replace existing arrays. Otherwise copies of an interrupted run are completed.

    Raises:
        NodeExistsError: If another node has the name of an array.
    """
    for name, node in companions.shared.items():
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


def with_coordinates(attributes: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return attributes that refer to no other coordinates than those with some names."""
    result, text = dict(attributes), attributes.get("coordinates")
    if isinstance(text, str):
        result["coordinates"] = " ".join(name for name in text.split() if name in names)
        if not result["coordinates"]:
            del result["coordinates"]
    return result


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
