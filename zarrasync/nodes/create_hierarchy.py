"""Creating many nodes, one level of the hierarchy after another. The nodes of a level are created concurrently."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from zarrasync._concurrency.cancel import run_cleanup
from zarrasync._concurrency.gather import gather
from zarrasync.errors import InvalidKeyError, NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata.create import checked_attributes
from zarrasync.model.paths import ancestors, join, normalize_path
from zarrasync.nodes.access import handle_of, with_handle
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.create import create_array_at, plan_with_data
from zarrasync.nodes.find import load_node
from zarrasync.nodes.group import AsyncGroup, create_group_at, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store


async def create_levels(
    root: NodeHandle,
    paths: Iterable[str],
    create: Callable[[NodeHandle, str], Coroutine[Any, Any, AsyncArray | AsyncGroup]],
    *,
    replaced: Iterable[str] = (),
    is_root_last: bool = False,
) -> dict[str, AsyncArray | AsyncGroup]:
    """Create nodes level by level. Groups that were just created are not looked up again, and copies are updated once.

    Args:
        root: The node that paths are relative to.
        paths: The paths of the nodes, including all groups above them.
        create: A function that creates a node, called with its handle and its relative path.
        replaced: The paths of nodes that are erased first, if they exist.
        is_root_last: Whether to create the deepest level first, so that readers see all nodes at once. No other process may
            create a node at the same place.

    Returns:
        The nodes by relative path.
    """
    created: dict[str, AsyncArray | AsyncGroup] = {}
    without_copies, places = root.without_consolidated(), list[str]()

    def handle_at(path: str) -> NodeHandle:
        parent_path, _, name = path.rpartition("/")
        if path and is_root_last:
            return without_copies.at(join(root.path, parent_path)).child(name)
        parent = created.get(parent_path) if path else None
        if isinstance(parent, AsyncGroup):
            return handle_of(parent).child(name)
        return without_copies.at(join(root.path, path))

    async def update() -> None:
        keys = [key for place in places for key in root.format.document_keys(place)]
        erased = [prefix for path in replaced for prefix in root.format.erase_prefixes(join(root.path, path))]
        await update_copies(root, keys, erased, paths=places)

    levels: dict[int, list[str]] = {}
    for path in paths:
        levels.setdefault(path.count("/") + bool(path), []).append(path)
    try:
        for _, level in sorted(levels.items(), reverse=is_root_last):
            places += [join(root.path, path) for path in level]
            nodes = await gather([partial(create, handle_at(path), path) for path in level])
            created.update(zip(level, nodes, strict=True))
    except BaseException:
        await run_cleanup(update)
        raise
    await update()
    return {path: _with_copies(node, root) for path, node in created.items()} if root.keeps_copies else created


def _with_copies(node: AsyncArray | AsyncGroup, root: NodeHandle) -> AsyncArray | AsyncGroup:
    """Return a node whose changes update the copies again."""
    return with_handle(node, replace(handle_of(node), consolidated=root.consolidated, keeps_copies=True))


# ------------------------------------------------------------------ create_hierarchy


async def plan_hierarchy(root: NodeHandle, nodes: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """Check the nodes of a hierarchy before any is created.

    Args:
        root: The root of the hierarchy.
        nodes: The options of each array or group by path, as for ``zarrasync.create_hierarchy``.

    Returns:
        The options of all nodes by normalized path, including missing groups above them.

    Raises:
        NodeExistsError: If a node lies below an array, or two paths refer to the same node.
        MetadataError: If the options of a node are invalid.
    """
    if not isinstance(nodes, Mapping):
        raise TypeError(f"nodes must be a mapping from paths to parameters, found {type(nodes).__name__}")
    for path, options in nodes.items():
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(
                f"nodes[{path!r}] must be a mapping of parameters, or None for a group, found {type(options).__name__}"
            )
    plan = {normalize_path(path): dict(options or {}) for path, options in nodes.items()}
    if len(plan) != len(nodes):
        raise NodeExistsError("two of the paths refer to the same node")
    for path in list(plan):
        for parent in ancestors(path):
            if _is_array(plan.setdefault(parent, {})):
                raise NodeExistsError(f"{path!r} cannot be created below the array {parent!r}", path=path)
    for path, options in plan.items():
        root.format.check_path(path)
        if _is_array(options):
            await plan_with_data(root, options)
        else:
            checked_attributes(options.get("attributes"))
    return plan


async def create_all(
    root: NodeHandle, plan: Mapping[str, dict[str, Any]], requested_paths: set[str], *, overwrite: bool
) -> dict[str, AsyncArray | AsyncGroup]:
    """Create the nodes of a plan.

    Args:
        root: The root of the hierarchy.
        plan: The options of all nodes by path, from ``plan_hierarchy``.
        requested_paths: The paths of nodes that must not exist. All other nodes are groups, which may exist.
        overwrite: Replace existing nodes at the requested paths.
    """

    async def create(handle: NodeHandle, path: str) -> AsyncArray | AsyncGroup:
        options = plan[path]
        if _is_array(options):
            return await create_array_at(handle, overwrite=overwrite, **options)
        if path in requested_paths:
            return await create_group_at(handle, attributes=options.get("attributes"), overwrite=overwrite)
        return await _require_group(handle)

    return await create_levels(root, plan, create, replaced=requested_paths if overwrite else ())


def _is_array(options: Mapping[str, Any]) -> bool:
    """Return whether options describe an array. A group has only attributes."""
    return bool(options.keys() - {"attributes"})


async def _require_group(handle: NodeHandle) -> AsyncGroup:
    """Return the group at a path. Create it if it does not exist."""
    try:
        return await create_group_at(handle)
    except NodeExistsError:
        pass
    try:
        metadata = (await run_on_store(partial(load_node, handle), handle.store)).metadata
    except NodeNotFoundError as error:
        raise NodeTypeError(
            f"nodes of Zarr format {handle.format.zarr_format!r} cannot be created below {handle.name} in "
            f"{handle.store!r}: it has another Zarr format; pass that one as zarr_format",
            path=handle.path,
        ) from error
    group = make_node(replace(handle, is_format_known=True), metadata)
    if not isinstance(group, AsyncGroup):
        raise NodeTypeError(f"expected a group at {handle.name}, found an array", path=handle.path)
    return group


# ------------------------------------------------------------------ paths


def check_array_paths(group: NodeHandle, paths: Iterable[str]) -> None:
    """Check the paths of new arrays below a group.

    Raises:
        InvalidKeyError: If a path is empty or not allowed.
        NodeExistsError: If an array lies below another array, or two paths refer to the same node.
    """
    checked = set[str]()
    for path in paths:
        normalized = normalize_path(path)
        if not normalized:
            raise InvalidKeyError(f"an array in a group needs a name, found {path!r}")
        group.format.check_path(join(group.path, normalized))
        if normalized in checked:
            raise NodeExistsError(f"two of the paths refer to {normalized!r}", path=normalized)
        checked.add(normalized)
    for path in checked:
        if (parent := next((above for above in ancestors(path) if above in checked), None)) is not None:
            raise NodeExistsError(f"{path!r} cannot be created below the array {parent!r}", path=path)
