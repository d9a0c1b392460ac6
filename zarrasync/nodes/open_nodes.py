"""Opening nodes by store and path: resolving the arguments of users, and finding the existing node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from zarrasync import config as settings
from zarrasync import formats
from zarrasync.config import Config
from zarrasync.errors import NodeExistsError, NodeNotFoundError, StoreError, ZarrError
from zarrasync.formats import EntryPointFound, Format, Kind
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import create_planned_array, plan_array_at
from zarrasync.nodes.find import add_reason, find
from zarrasync.nodes.group import AsyncGroup, expect, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import ReadOnlyStore, Store, StoreLike, resolve

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-"]
"""How to open: read, change, create if absent, replace, create only."""
ConfigLike: TypeAlias = Config | Mapping[str, Any] | None


def resolve_node(
    store: StoreLike,
    path: str,
    zarr_format: int | str | None,
    storage_options: Mapping[str, Any] | None,
    config: ConfigLike,
    mode: str = "w",
) -> tuple[NodeHandle, tuple[Format, ...]]:
    """Return the node handle for the arguments of a public function, and the formats to look for.

    Args:
        store: The store as users pass it.
        path: The path of the node.
        zarr_format: The format. ``None``: detect it, and create nodes in ``config.zarr_format``.
        storage_options: Options for the filesystem of a URL.
        config: The settings as users pass them.
        mode: The mode. With ``"r"`` the store of the handle is read-only.

    Raises:
        ValueError: If the mode or the format is unknown.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}; found {mode!r}")
    resolved_config = settings.resolve(config)
    resolved_store: Store = resolve(store, storage_options, resolved_config)
    zarr_format = resolved_store.choose_format(zarr_format)
    if mode == "r":
        resolved_store = ReadOnlyStore(resolved_store)
    format_ = formats.by_name(resolved_config.zarr_format if zarr_format is None else zarr_format)
    candidates = formats.CANDIDATES if zarr_format is None else (format_,)
    is_format_known = zarr_format is not None
    handle = NodeHandle(resolved_store, normalize_path(path), format_, resolved_config, is_format_known)
    return handle, candidates


async def open_node_at(
    handle: NodeHandle,
    candidates: tuple[Format, ...],
    *,
    explain: bool = True,
    consolidated: bool | None = False,
    kind: Kind | None = None,
    brief: bool = False,
) -> AsyncArray | AsyncGroup:
    """Open the node at a path.

    Args:
        handle: The location.
        candidates: The formats to look for.
        explain: If no node exists, look for nodes near the path and name them in the error message.
        consolidated: As for ``find``.
        kind: As for ``find``.
        brief: As for ``find``.

    Raises:
        NodeNotFoundError: If no node exists, or if it has no consolidated metadata and ``consolidated`` is true.
    """
    if not handle.store.supports_consolidated_metadata:
        consolidated = False
    try:
        node = await find(handle, candidates, consolidated=consolidated, kind=kind, brief=brief)
    except NodeNotFoundError as error:
        if explain:
            await add_reason(error, handle)
        raise
    if consolidated and node.consolidated is None:
        raise handle.not_found_error(
            f"{handle.place} has no consolidated metadata; create it with consolidate_metadata()"
        )
    opened = NodeHandle(
        handle.store, handle.path, node.format, handle.config, is_format_known=True, consolidated=node.consolidated
    )
    return make_node(opened, node.metadata)


async def open_array_at(
    handle: NodeHandle,
    candidates: tuple[Format, ...],
    *,
    explain: bool = True,
    kind: Kind | None = ArrayMetadata,
    brief: bool = False,
) -> AsyncArray:
    """Open the array at a path; see ``open_node_at``.

    Raises:
        NodeTypeError: If the node is a group.
    """
    open_node = partial(open_node_at, handle, candidates, explain=explain, kind=kind, brief=brief)
    node = await run_on_store(open_node, handle.store)
    return expect(node, AsyncArray, "; open it with open_group or open", shows_store=True)


async def open_or_create_array_at(
    handle: NodeHandle,
    candidates: tuple[Format, ...],
    options: Callable[[], dict[str, Any]],
    *,
    erase_leftovers: bool = False,
) -> tuple[AsyncArray, bool]:
    """Open the array at a path, or create it if it does not exist.

    One batch of requests finds an existing array. Another one finds all nodes that conflict with a new array.

    Args:
        handle: The location. If its format is known, nodes of other formats are looked for at the path, but not above.
        candidates: The formats to look for.
        options: A function that returns the options of a new array, as for ``create_array``. It is not called if the
            array exists.
        erase_leftovers: Erase chunks that remain from an array if a process was killed while erasing it.

    Returns:
        The array, and whether it is new.
    """
    with suppress(NodeNotFoundError):
        kind = None if handle.is_format_known else ArrayMetadata
        return await open_array_at(handle, candidates, explain=False, kind=kind, brief=True), False
    try:
        plan = await plan_array_at(handle, **{k: v for k, v in options().items() if k != "zarr_format"})
    except StoreError:
        raise
    except (ZarrError, TypeError, ValueError) as error:  # raised only if the array does not exist
        refusal: Exception = error
    else:
        try:
            return await create_planned_array(*plan, erase_leftovers=erase_leftovers), True
        except (NodeExistsError, EntryPointFound) as error:
            refusal = error
    try:
        return await open_array_at(handle, candidates, explain=False), False
    except NodeNotFoundError:
        raise refusal from None
