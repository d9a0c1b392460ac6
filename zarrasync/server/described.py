"""What conventions specify about the nodes of a served hierarchy: axes, levels of pyramids, and label images."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from zarrasync.display.presentation import Presentation
from zarrasync.errors import MetadataError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import Meaning, meaning_of
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.registry import may_be_bounds
from zarrasync.model.paths import join
from zarrasync.nodes.access import array_encoding
from zarrasync.nodes.array import AsyncArray
from zarrasync.server.hierarchy import Hierarchy

_LABELS = "labels"
"""The name of the group with the label images of an image."""


class Described:
    """Conventions of a hierarchy. The hierarchy caches the nodes.

    Args:
        hierarchy: The served hierarchy.

    Attributes:
        hierarchy: The served hierarchy.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy

    async def meaning(self, path: str) -> Meaning:
        """Return what conventions specify about a node, also those that groups above it follow.

        Raises:
            NodeNotFoundError: If the node does not exist.
        """
        path = path.strip("/")
        node = await self.hierarchy.node(path)
        own, is_array = meaning_of(node.metadata), isinstance(node, AsyncArray)
        parent, _, name = path.rpartition("/")
        if not path:
            return own
        above = await self._of_group(parent)
        if is_array and not above.axes and parent:  # the group may be the level of a pyramid
            grandparent, _, level = parent.rpartition("/")
            above = (await self._of_group(grandparent)).for_member(level, above, is_array=False)
        return above.for_member(name, own, is_array=is_array)

    async def presentation(self, array: AsyncArray, *, decode: bool = True) -> Presentation:
        """Return how the stored numbers of an array are shown."""
        key = ("encoding", self.hierarchy.version_key(array))
        return Presentation(await self.hierarchy.cached(key, partial(self._encoding, array)), decode)

    async def _encoding(self, array: AsyncArray) -> CFEncoding:
        siblings: dict[str, ArrayMetadata] = {}
        path = self.hierarchy.relative_path(array)
        if path and may_be_bounds(array.metadata):
            with suppress(NodeNotFoundError, MetadataError):  # a store may contain arrays without a group
                members = await self.hierarchy.members(path.rpartition("/")[0]) or ()
                siblings = {name: node.metadata for name, node in members if isinstance(node, AsyncArray)}
        return await array_encoding(array, siblings)

    async def levels(self, path: str) -> list[str]:
        """Return the paths of the arrays that show the same plane as a node, from its finest level on.

        A group with images, such as a well of a plate, shows its first image.

        Raises:
            NodeTypeError: If it is a group without levels and images.
        """
        node = await self.hierarchy.node(path)
        if isinstance(node, AsyncArray):
            return await self._levels_of_array(path)
        meaning = meaning_of(node.metadata)
        image = next((link.path for link in meaning.links if link.kind == "image"), "")
        if image and not meaning.levels:
            path = join(path, image)
            node = await self.hierarchy.node(path)
        paths = [join(path, level.path) for level in meaning_of(node.metadata).levels]
        if not paths:
            raise NodeTypeError(f"{node.name} is a group without multiscales", path=path, found="group", wanted="array")
        if isinstance(await self.hierarchy.node(paths[0]), AsyncArray):
            return paths
        for name, member in await self.hierarchy.members(paths[0]) or ():
            if isinstance(member, AsyncArray) and member.ndim >= 2:
                return await self._levels_of_array(join(paths[0], name))
        raise NodeTypeError(f"/{paths[0]} has no array with a plane", path=paths[0], found="group", wanted="array")

    async def dataset(self, path: str) -> tuple[str, str]:
        """Return the ``group`` with which xarray opens an array as a dataset, and the name of the variable."""
        parent, _, name = path.rpartition("/")
        above = await self._of_group(parent)
        is_level = any(level.path == name for level in above.levels)
        return (path, above.variable) if is_level else (parent, name)

    async def label_images(self, path: str) -> list[str]:
        """Return the paths of the label images of an image."""
        links = (await self._of_group(join(path.strip("/"), _LABELS))).links
        return [join(path.strip("/"), f"{_LABELS}/{link.path}") for link in links if link.kind == "label image"]

    async def _levels_of_array(self, path: str) -> list[str]:
        """Return an array, and the arrays of the same name in the other levels if its group is the first level."""
        parent, _, name = path.rpartition("/")
        above, _, level = parent.rpartition("/")
        levels = (await self._of_group(above)).levels if parent else ()
        if not levels or levels[0].path != level:
            return [path]
        paths = [join(above, f"{item.path}/{name}") for item in levels]
        return [other for other in paths if other == path or isinstance(await self.hierarchy.find(other), AsyncArray)]

    async def _of_group(self, path: str) -> Meaning:
        """Return the meaning of a group, which need not exist."""
        node = await self.hierarchy.find(path)
        return Meaning() if node is None else meaning_of(node.metadata)
