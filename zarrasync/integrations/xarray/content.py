"""The arrays of a dataset, and what conventions specify about them. Levels of pyramids are datasets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from zarrasync import sync
from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather
from zarrasync.errors import NodeTypeError
from zarrasync.metadata.conventions import Axis, Meaning, axes_of, meaning_of
from zarrasync.model.paths import join
from zarrasync.nodes.access import parent_metadata

__all__ = ["Content", "open_content", "tree_contents"]


@dataclass(frozen=True)
class Content:
    """The arrays of a dataset.

    Attributes:
        group: The group that contains the arrays.
        arrays: The arrays by the name of the variable.
        meanings: What conventions specify about each array, also those that its group follows.
        attributes: The attributes of the dataset.
    """

    group: sync.Group
    arrays: Mapping[str, sync.Array]
    meanings: Mapping[str, Meaning]
    attributes: Mapping[str, Any]

    def axes(self, name: str) -> tuple[Axis, ...]:
        """Return the axes of an array, or an empty tuple if no convention specifies them."""
        axes = self.meanings[name].axes
        return axes_of(self.arrays[name].metadata, axes) if axes else ()


def group_content(group: sync.Group, arrays: Mapping[str, sync.Array], meaning: Meaning) -> Content:
    """Return the content of a dataset with all arrays of a group.

    Args:
        group: The group.
        arrays: Its arrays by name.
        meaning: What conventions specify about the group, also those that the group above it follows.
    """
    meanings = {
        name: meaning.for_member(name, meaning_of(array.metadata), is_array=True) for name, array in arrays.items()
    }
    return Content(group, arrays, meanings, group.attrs)


def level_content(group: sync.Group, array: sync.Array, path: str, meaning: Meaning) -> Content:
    """Return the content of a dataset with one array of a group, such as a level of a pyramid.

    The attributes of the group describe all levels, so the dataset does not have them.

    Args:
        group: The group.
        array: The array.
        path: The path of the array relative to the group.
        meaning: What conventions specify about the group.
    """
    is_level = any(level.path == path for level in meaning.levels)
    name = meaning.variable if is_level else array.basename
    own = meaning.for_member(path, meaning_of(array.metadata), is_array=True)
    return Content(group, {name: array}, {name: own}, {})


def open_content(
    open_group: Callable[[str], sync.Group], path: str, level: int | None, dropped: Collection[str]
) -> Content:
    """Open the content of a dataset.

    Args:
        open_group: Opens the group at a path.
        path: The path of the group or array.
        level: The level of a pyramid; ``None`` for the finest level if the levels are arrays, otherwise the group itself.
        dropped: Names of variables that are left out.

    Raises:
        NodeNotFoundError: If the node or the level does not exist.
        ValueError: If the group does not have the level.
    """
    try:
        group = open_group(path)
    except NodeTypeError:
        if not path or level is not None:
            raise
        parent, _, name = path.rpartition("/")
        group = open_group(parent)
        array = group[name]
        assert isinstance(array, sync.Array)
        return level_content(group, array, name, meaning_of(group.metadata))
    meaning = meaning_of(group.metadata)
    if level is not None:
        return _level(group, _path_of_level(group, meaning, level), meaning, dropped)
    member = group.get(meaning.levels[0].path) if meaning.levels else None
    if isinstance(member, sync.Array):
        return level_content(group, member, meaning.levels[0].path, meaning)
    blocking = group.store.blocking
    calls: list[Callable[[], Awaitable[Any]]] = [group.async_.arrays, partial(parent_metadata, group.async_)]
    arrays, parent_found = bridge.run(gather(calls), blocking=blocking)
    if parent_found is not None:
        meaning = meaning_of(parent_found).for_member(group.basename, meaning, is_array=False)
    kept = {name: sync.Array(array) for name, array in arrays if name not in dropped}
    return group_content(group, kept, meaning)


def _path_of_level(group: sync.Group, meaning: Meaning, level: int) -> str:
    """Return the path of a level of a pyramid.

    Raises:
        ValueError: If the group does not have it.
    """
    count = len(meaning.levels)
    if not count:
        raise ValueError(f"level={level} was requested, but no convention specifies levels of the group {group.name}")
    if not -count <= level < count:
        raise ValueError(f"level={level} is out of range: {group.name} has {count} levels, 0 to {count - 1}")
    return meaning.levels[level].path


def _level(group: sync.Group, path: str, meaning: Meaning, dropped: Collection[str]) -> Content:
    """Return the content of a level, which is an array or a group."""
    member = group[path]
    if isinstance(member, sync.Array):
        return level_content(group, member, path, meaning)
    arrays = {name: array for name, array in member.arrays() if name not in dropped}
    return group_content(member, arrays, meaning.for_member(path, meaning_of(member.metadata), is_array=False))


def tree_contents(
    root: sync.Group, members: Mapping[str, sync.Array | sync.Group], dropped: Collection[str]
) -> dict[str, Content]:
    """Return the contents of datasets by path: of all groups, and of the levels of pyramids that are arrays.

    Args:
        root: The root of the tree.
        members: All nodes below the root by relative path.
        dropped: Names of variables that are left out.
    """
    groups = {"": root, **{path: node for path, node in members.items() if isinstance(node, sync.Group)}}
    arrays: dict[str, dict[str, sync.Array]] = {path: {} for path in groups}
    for path, node in members.items():
        parent, _, name = path.rpartition("/")
        if isinstance(node, sync.Array) and name not in dropped:
            arrays[parent][name] = node
    contents: dict[str, Content] = {}
    meanings: dict[str, Meaning] = {}
    for path, group in groups.items():
        own = meanings.setdefault(path, meaning_of(group.metadata))
        for level in own.levels:
            place = join(path, level.path)
            parent, _, name = place.rpartition("/")
            if place in groups:
                inner = meaning_of(groups[place].metadata)
                meanings[place] = own.for_member(level.path, inner, is_array=False)
            elif name in arrays.get(parent, {}):
                contents[place] = level_content(group, arrays[parent].pop(name), level.path, own)
    return {path: group_content(groups[path], arrays[path], meanings[path]) for path in groups} | contents
