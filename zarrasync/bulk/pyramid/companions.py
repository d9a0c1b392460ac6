"""The arrays that the finest level refers to: coordinates, their bounds, and the grid mapping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

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

__all__ = ["copy_companions"]


async def copy_companions(
    source: PyramidSource,
    levels: Sequence[PyramidLevel],
    group: AsyncGroup,
    notes: list[str],
    *,
    overwrite: bool,
) -> list[str]:
    """Copy the arrays that all levels share into the group of the pyramid.

    Shared are those without axes, and along axes that do not become coarser. Coordinates of spatial axes that levels
    express as a step and an origin need no array.

    Args:
        source: The finest level.
        levels: The levels, from the finest one on.
        group: The group of the pyramid, which is not the group of the finest level.
        notes: Notes about conversions of metadata, which are added.
        overwrite: Whether to replace existing arrays. Otherwise copies of an interrupted run are completed.

    Returns:
        Messages about arrays that are left out.

    Raises:
        NodeExistsError: If another node has the name of an array.
    """
    array, coarse = source.array, levels[-1].total
    if not array.path:
        return []
    names = axis_names(array.metadata) or [None] * array.ndim
    axes = list(zip(names, source.axes, array.shape, coarse, strict=True))
    shared = {axis.name: size for name, axis, size, total in axes if name == axis.name and total == 1}
    linked = [link.path for link in meaning_of(array.metadata).links if "/" not in link.path]
    found = await _find(array, dict.fromkeys([*(name for name in names if name), *linked]))
    found |= await _find(array, [str(node.attrs[key]) for node in found.values() for key in BOUNDS if key in node.attrs])
    left_out: dict[str, str] = {}
    for name, node in found.items():
        dims = axis_names(node.metadata) or ([name] if node.ndim == 1 else [None] * node.ndim)
        own = dict(zip(dims, node.shape, strict=True))
        is_shared = None not in own and all(shared.get(str(dim)) == n for dim, n in own.items() if dim in names)
        if is_shared:  # other dimensions are such as the ends of bounds
            await _copy(node, name, group, notes, overwrite=overwrite)
        elif name in source.left_out:
            left_out[name] = source.left_out[name]
        elif name not in source.located:
            reason = "levels are coarser or named differently along its axes"
            left_out[name] = f"the coordinate {name!r} of {array.name} is left out, because {reason}"
    return [*left_out.values()]


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


async def _copy(node: AsyncArray, name: str, group: AsyncGroup, notes: list[str], *, overwrite: bool) -> None:
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
