"""Places in stores: finding the node that is there, and making an array where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias

from zarrasync import config as settings
from zarrasync import formats
from zarrasync.config import Config
from zarrasync.errors import NodeExistsError, NodeNotFoundError, NodeTypeError, StoreError, ZarrError
from zarrasync.metadata.types import ArrayMetadata
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.explain_missing import why_absent
from zarrasync.nodes.group import AsyncGroup, as_node, create_planned_array, plan_array_at
from zarrasync.nodes.node import NodeHandle, find, run_on_store
from zarrasync.stores import ReadOnlyStore, Store, StoreLike, resolve

__all__ = ["ConfigLike", "Mode", "open_array_at", "open_node_at", "open_or_create_array_at", "resolve_node"]

Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-"]
ConfigLike: TypeAlias = Config | Mapping[str, Any] | None
_MODES = ("r", "r+", "a", "w", "w-")


def resolve_node(
    store: StoreLike,
    path: str,
    zarr_format: int | str | None,
    storage_options: Mapping[str, Any] | None,
    config: ConfigLike,
    mode: str = "w",
) -> tuple[NodeHandle, tuple[formats.Format, ...]]:
    """A place in a store, and the formats that may be spoken there."""
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}; found {mode!r}")
    values = settings.resolve(config)
    target: Store = resolve(store, storage_options, values)
    if mode == "r":
        target = ReadOnlyStore(target)
    chosen = formats.by_name(values.zarr_format if zarr_format is None else zarr_format)
    candidates = formats.CANDIDATES if zarr_format is None else (chosen,)
    return NodeHandle(target, normalize_path(path), chosen, values, is_format_known=zarr_format is not None), candidates


async def open_node_at(
    node: NodeHandle,
    candidates: tuple[formats.Format, ...],
    *,
    explain: bool = True,
    consolidated: bool | None = False,
    kind: formats.Kind | None = None,
    brief: bool = False,
) -> AsyncArray | AsyncGroup:
    """The node at a place.

    Args:
        node: The place.
        candidates: The formats that may be spoken there.
        explain: Whether to look around if there is none, and to say why.
        consolidated: As for ``node.find``, as are ``kind`` and ``brief``.
        kind: What is expected.
        brief: Whether one batch of requests will do.

    Raises:
        NodeNotFoundError: If there is none, or no consolidated metadata that was asked for.
    """
    try:
        found = await find(node, candidates, consolidated=consolidated, kind=kind, brief=brief)
    except NodeNotFoundError as error:
        why = await why_absent(node) if explain else ""
        if why:
            error.args = (f"{error}; {why}",)
        raise
    if consolidated and found.consolidated is None:
        raise NodeNotFoundError(
            f"{node.name} in {node.store!r} has no consolidated metadata; consolidate_metadata() makes some",
            path=node.path,
            store=repr(node.store),
        )
    place = NodeHandle(
        node.store, node.path, found.format, node.config, is_format_known=True, consolidated=found.consolidated
    )
    return as_node(place, found.metadata)


async def open_array_at(
    node: NodeHandle,
    candidates: tuple[formats.Format, ...],
    *,
    explain: bool = True,
    kind: formats.Kind | None = ArrayMetadata,
    brief: bool = False,
) -> AsyncArray:
    """The array at a place; see ``open_node_at``.

    Raises:
        NodeTypeError: If there is a group.
    """
    look = partial(open_node_at, node, candidates, explain=explain, kind=kind, brief=brief)
    found = await run_on_store(look, node.store)
    if not isinstance(found, AsyncArray):
        raise NodeTypeError(
            f"{node.name} in {node.store!r} is a group; open_group or open opens it",
            path=node.path,
            found="group",
            wanted="array",
        )
    return found


async def open_or_create_array_at(
    node: NodeHandle,
    candidates: tuple[formats.Format, ...],
    options: Callable[[], dict[str, Any]],
    *,
    clear: bool = False,
) -> tuple[AsyncArray, bool]:
    """The array at a place, or a new one; and whether it is new.

    One batch of requests finds the array that is there, another one all that could be in the way of a new one.

    Args:
        node: The place; if its format is sure, others are looked for here, but not above it.
        candidates: The formats that may be spoken there.
        options: Tells what to create it with, as for ``create_array``; formats are those of the place.
        clear: Erase chunks first that lie there without an array.
    """
    with suppress(NodeNotFoundError):
        kind = None if node.is_format_known else ArrayMetadata
        return await open_array_at(node, candidates, explain=False, kind=kind, brief=True), False
    try:
        planned = {name: value for name, value in options().items() if name != "zarr_format"}
        plan = await plan_array_at(node, **planned)
    except StoreError:
        raise
    except (ZarrError, TypeError, ValueError) as error:  # which matters if there is to be a new one
        refused: Exception = error
    else:
        try:
            return await create_planned_array(*plan, clear=clear), True
        except (NodeExistsError, formats.EntryPointFound) as error:
            refused = error
    try:
        return await open_array_at(node, candidates, explain=False), False
    except NodeNotFoundError:
        raise refused from None
