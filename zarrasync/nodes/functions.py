"""Opening and creating nodes: the functions of the package.

Opening asks for all documents that could be at a path in one batch; neither opening nor creating
lists, unless something is to be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from zarrasync import formats
from zarrasync._concurrency.gather import gather
from zarrasync.errors import InvalidKeyError, NodeExistsError, NodeNotFoundError, NodeTypeError
from zarrasync.metadata.create import ChunksLike, ShapeLike, attributes_of, check_options, check_same
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.consolidated import refresh
from zarrasync.nodes.group import (
    AsyncGroup,
    as_node,
    create_array_at,
    create_group_at,
    create_levels,
    find_or_create,
    plan_with_data,
)
from zarrasync.nodes.node import NodeHandle, document_bytes, run_on_store
from zarrasync.nodes.opening import ConfigLike, Mode, open_array_at, open_node_at, open_or_create_array_at, resolve_node
from zarrasync.stores import Request, StoreLike

__all__ = [
    "check_arrays",
    "consolidate_metadata",
    "create",
    "create_array",
    "create_group",
    "create_hierarchy",
    "list_nodes",
    "load",
    "open",
    "open_array",
    "open_group",
    "save",
]

CodecsLike: TypeAlias = Any
_UNSET: Any = object()


async def open(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    use_consolidated: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncArray | AsyncGroup:
    """Open the array or group at a path. Never creates.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The node's path in the store.
        mode: ``"r"`` to read, ``"r+"`` to change.
        zarr_format: The format, if known; found out otherwise.
        use_consolidated: Whether members of a group are found in its consolidated metadata, see ``open_group``.
        storage_options: Options for the filesystem of a URL.
        config: Settings for this node.

    Raises:
        NodeNotFoundError: If there is no node; says which keys were looked up.
        MetadataError: If its documents are wrong; lists every problem.
        StoreError: If the store failed.
    """
    if mode not in ("r", "r+"):
        raise ValueError(f"open() takes mode 'r' or 'r+', found {mode!r}; use open_array, open_group or create_*")
    node, candidates = resolve_node(store, path, zarr_format, storage_options, config, mode)
    return await run_on_store(partial(open_node_at, node, candidates, consolidated=use_consolidated), node.store)


async def open_array(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **options: Any,
) -> AsyncArray:
    """Open an array, or create it if the mode says so.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The array's path in the store.
        mode: ``"r"`` reads, ``"r+"`` changes, ``"a"`` creates if absent, ``"w"`` replaces, ``"w-"`` creates only.
        zarr_format: The format, if known; found out otherwise.
        storage_options: Options for the filesystem of a URL.
        config: Settings for this array.
        **options: For creating, as for ``create_array``. The number of axes, data type, chunks and
            shards must agree with those of an array that is there.

    Raises:
        NodeNotFoundError: If there is no node and the mode does not create.
        NodeTypeError: If there is a group, or an array of another data type.
        ShapeError: If there is an array of another number of axes, or with other chunks or shards.
        NodeExistsError: If there is a node and the mode is ``"w-"``.
    """
    check_options(options)
    node, candidates = resolve_node(store, path, zarr_format, storage_options, config, mode)
    if mode in ("w", "w-"):
        return await create_array_at(node, overwrite=mode == "w", **options)
    if mode == "a":
        # Nothing of these formats may be there; of another there may be something.
        found, made = await open_or_create_array_at(replace(node, is_format_known=False), candidates, lambda: options)
        if made:
            return found
    else:
        found = await open_array_at(node, candidates)
    check_same(found.metadata, found.name, **options)
    return found


async def open_group(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    use_consolidated: bool | None = None,
    attributes: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncGroup:
    """Open a group, or create it if the mode says so.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The group's path in the store.
        mode: ``"r"`` reads, ``"r+"`` changes, ``"a"`` creates if absent, ``"w"`` replaces, ``"w-"`` creates only.
        zarr_format: The format, if known; found out otherwise.
        use_consolidated: Whether members are found in the group's consolidated metadata; ``None`` where it has
            some, and what is not in there is looked for in the store.
        attributes: Attributes of a group that is created.
        storage_options: Options for the filesystem of a URL.
        config: Settings for this group and what is opened through it.

    Raises:
        NodeNotFoundError: If there is no node and the mode does not create.
        NodeNotFoundError: If consolidated metadata is insisted on and absent.
        NodeTypeError: If there is an array.
        NodeExistsError: If there is a node and the mode is ``"w-"``.
    """
    node, candidates = resolve_node(store, path, zarr_format, storage_options, config, mode)
    if mode in ("w", "w-"):
        return await create_group_at(node, attributes=attributes, overwrite=mode == "w")

    async def look() -> AsyncArray | AsyncGroup | None:
        search = partial(
            open_node_at, node, candidates, explain=mode != "a", consolidated=use_consolidated, kind=GroupMetadata
        )
        try:
            return await run_on_store(search, node.store)
        except NodeNotFoundError:
            if mode != "a":
                raise
            return None

    create = partial(create_group_at, replace(node, is_format_known=False), attributes=attributes)
    found = await find_or_create(look, create)
    if not isinstance(found, AsyncGroup):
        raise NodeTypeError(
            f"{node.name} in {node.store!r} is an array; open_array or open opens it",
            path=node.path,
            found="array",
            wanted="group",
        )
    return found


async def create_array(
    store: StoreLike,
    *,
    name: str | None = None,
    path: str = "",
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | DataType | None = None,
    data: npt.ArrayLike | None = None,
    chunks: ChunksLike | Literal["auto"] | bool | None = "auto",
    shards: ChunksLike | Literal["auto"] | None = None,
    filters: CodecsLike = "auto",
    serializer: CodecsLike = "auto",
    compressors: CodecsLike = "auto",
    fill_value: Any = _UNSET,
    order: Literal["C", "F"] = "C",
    zarr_format: int | str | None = None,
    attributes: Mapping[str, Any] | None = None,
    chunk_key_encoding: Any = None,
    dimension_names: Sequence[str | None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    config: ConfigLike = None,
) -> AsyncArray:
    """Create an array.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        name: The array's path in the store (the same as ``path``).
        path: The array's path in the store; missing groups above it are made.
        shape: Elements along each axis.
        dtype: The data type: what NumPy takes, ``str`` for text, or a Zarr v3 name. Default: float64.
        data: Values to write; gives shape and data type where these are not given.
        chunks: The shape of the parts that can be read alone; ``"auto"`` for about 4 MiB (256 KiB in shards).
        shards: The shape of what is stored in one value, a multiple of ``chunks``; ``None`` for no shards.
        filters: Array -> array codecs (v2: filters).
        serializer: The array -> bytes codec.
        compressors: Bytes -> bytes codecs; ``"auto"`` is zstd, ``None`` none. A codec is one of
            ``zarrasync.codecs``, a name, a v3 entry or a numcodecs codec or configuration.
        fill_value: What absent elements read as. Default: zero, false or empty. ``None`` leaves it undefined
            where the format can say that (v2).
        order: The order of elements inside a chunk.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        attributes: The attributes.
        chunk_key_encoding: How chunks are named, as in a v3 document.
        dimension_names: A name or ``None`` per axis.
        storage_options: Options for the filesystem of a URL.
        overwrite: Replace what is there.
        config: Settings for this array.

    Raises:
        NodeExistsError: If a node is there and ``overwrite`` is not set.
        ShapeError: If shapes, chunks and shards do not fit each other.
        MetadataError: If a type, codec or fill value is wrong.
        UnsupportedByFormat: If the format can not say it; nothing is written then.
    """
    if name is not None and path:
        raise TypeError("give name or path, not both")
    node, _ = resolve_node(store, name or path, zarr_format, storage_options, config)
    fill = {} if fill_value is _UNSET else {"fill_value": fill_value}
    return await create_array_at(
        node,
        overwrite=overwrite,
        shape=shape,
        dtype=dtype,
        data=data,
        chunks=chunks,
        shards=shards,
        filters=filters,
        serializer=serializer,
        compressors=compressors,
        order=order,
        attributes=attributes,
        chunk_key_encoding=chunk_key_encoding,
        dimension_names=dimension_names,
        **fill,
    )


create = create_array


async def create_group(
    store: StoreLike,
    *,
    path: str = "",
    zarr_format: int | str | None = None,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncGroup:
    """Create a group; missing groups above it are made.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The group's path in the store.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        attributes: The attributes.
        overwrite: Replace what is there.
        storage_options: Options for the filesystem of a URL.
        config: Settings for this group and what is opened through it.

    Raises:
        NodeExistsError: If a node is there and ``overwrite`` is not set.
    """
    node, _ = resolve_node(store, path, zarr_format, storage_options, config)
    return await create_group_at(node, attributes=attributes, overwrite=overwrite)


async def create_hierarchy(
    store: StoreLike,
    nodes: Mapping[str, Mapping[str, Any] | None],
    *,
    zarr_format: int | str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> dict[str, AsyncArray | AsyncGroup]:
    """Create many nodes, those of one level side by side.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        nodes: By path: parameters of ``create_array`` for an array; ``None`` or ``{"attributes": …}`` alone for
            a group. Missing groups above are made.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        overwrite: Replace nodes that are there.
        storage_options: Options for the filesystem of a URL.
        config: Settings for these nodes.

    Returns:
        The nodes that were asked for, by path.

    Raises:
        NodeExistsError: If a node is there and ``overwrite`` is not set, or one lies below an array.
        NodeTypeError: If a group above is an array, or of another format.
        MetadataError: If JSON can not say an attribute, or a parameter of an array is wrong.
    """
    root, _ = resolve_node(store, "", zarr_format, storage_options, config)
    if not isinstance(nodes, Mapping):
        raise TypeError(f"nodes are a mapping from paths to parameters, found {type(nodes).__name__}")
    for path, options in nodes.items():
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(
                f"{path!r} is described by a mapping of parameters, or None for a group, found {type(options).__name__}"
            )
    wanted = {normalize_path(path): dict(options or {}) for path, options in nodes.items()}
    if len(wanted) != len(nodes):
        raise NodeExistsError("two of the paths mean the same node")
    for path in list(wanted):
        above = path
        while above:  # groups that are not named but needed
            above = above.rpartition("/")[0]
            if _is_array(wanted.setdefault(above, {})):
                raise NodeExistsError(f"{path!r} can not be below {above!r}, which is an array", path=path)
    named = {normalize_path(path) for path in nodes}
    for path, own in wanted.items():  # before anything is replaced
        root.format.check_path(path)
        if _is_array(own):
            await plan_with_data(root, own)
        else:
            attributes_of(own.get("attributes"))

    async def create(node: NodeHandle, path: str) -> AsyncArray | AsyncGroup:
        return await _create_one(node, wanted[path], overwrite, path in named)

    made = await create_levels(root, wanted, create)
    return {normalize_path(path): made[normalize_path(path)] for path in nodes}


def check_arrays(group: NodeHandle, paths: Iterable[str]) -> None:
    """Complain about arrays that can not be below a group because of their paths, before anything is stored.

    Raises:
        InvalidKeyError: If one is no path of a node.
        NodeExistsError: If one is below another one, or two mean the same.
    """
    taken = set[str]()
    for path in paths:
        own = normalize_path(path)
        if not own:
            raise InvalidKeyError(f"an array in a group needs a name, found {path!r}")
        group.format.check_path(join(group.path, own))
        if own in taken:
            raise NodeExistsError(f"two of the paths mean {own!r}", path=own)
        taken.add(own)
    for own in taken:
        above = own
        while above := above.rpartition("/")[0]:
            if above in taken:
                raise NodeExistsError(f"{own!r} can not be below {above!r}, which is an array", path=own)


def _is_array(options: dict[str, Any]) -> bool:
    """Whether parameters are those of an array; a group has attributes alone."""
    return bool(set(options) - {"attributes"})


async def _create_one(
    node: NodeHandle, options: dict[str, Any], overwrite: bool, named: bool
) -> AsyncArray | AsyncGroup:
    if _is_array(options):
        return await create_array_at(node, overwrite=overwrite, **options)
    try:
        return await create_group_at(node, attributes=options.get("attributes"), overwrite=overwrite and named)
    except NodeExistsError:
        if named:
            raise
        try:
            found = as_node(replace(node, is_format_known=True), await run_on_store(node.load, node.store))
        except NodeNotFoundError as error:
            raise NodeTypeError(
                f"nodes of Zarr format {node.format.zarr_format!r} can not be created below {node.name} in {node.store!r}, which "
                "is of another format; pass its zarr_format",
                path=node.path,
            ) from error
        if not isinstance(found, AsyncGroup):
            raise NodeTypeError(f"there is an array at {node.name}, a group is needed", path=node.path) from None
        return found


async def consolidate_metadata(
    store: StoreLike,
    *,
    path: str = "",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncGroup:
    """Keep copies of all metadata below a group in one document of it, so that one request opens everything.

    In format 3 the group's own document holds them, in format 2 a ``.zmetadata`` document beside it.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The group.
        zarr_format: The format, if known; found out otherwise.
        storage_options: Options for the filesystem of a URL.
        config: Settings for the group.

    Returns:
        The group, opened with its consolidated metadata.

    Raises:
        NodeNotFoundError: If there is no node.
        NodeTypeError: If there is an array.
        UnsupportedByFormat: If the format has no such thing.
        UnsupportedOperation: If the store can not list.
    """
    node, candidates = resolve_node(store, path, zarr_format, storage_options, config)
    found = await run_on_store(partial(open_node_at, node, candidates), node.store)
    if not isinstance(found, AsyncGroup):
        raise NodeTypeError(f"{found.name} is an array", path=found.path, found="array", wanted="group")
    await run_on_store(partial(_consolidate, found._handle), node.store)
    opened = await run_on_store(
        partial(open_node_at, found._handle, (found._handle.format,), consolidated=True), node.store
    )
    assert isinstance(opened, AsyncGroup)
    return opened


async def save(
    store: StoreLike,
    *args: npt.ArrayLike,
    path: str = "",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **arrays: Any,
) -> None:
    """Write arrays in one call, replacing what is there.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        *args: One array is stored at the path itself; several become ``arr_0``, ``arr_1``, … in a group.
        path: Where to.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        storage_options: Options for the filesystem of a URL.
        config: Settings for this call.
        **arrays: Arrays by name, stored in a group.
    """
    if not args and not arrays:
        raise TypeError("save() needs at least one array")
    node, _ = resolve_node(store, path, zarr_format, storage_options, config)
    if len(args) == 1 and not arrays:
        await create_array_at(node, data=args[0], overwrite=True)
        return
    unnamed = {f"arr_{number}": value for number, value in enumerate(args)}
    if twice := sorted(unnamed.keys() & arrays.keys()):
        raise TypeError(f"{twice[0]!r} is what an array without a name is called, and given as one's name, too")
    named = {**unnamed, **arrays}
    check_arrays(node, named)
    planned = {name: {"data": value} for name, value in named.items()}
    for own in planned.values():  # before anything is replaced
        await plan_with_data(node, own)
    group = await create_group_at(node, overwrite=True)
    await gather([partial(group.create_array, name, **own) for name, own in planned.items()])


async def load(
    store: StoreLike,
    *,
    path: str = "",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> Any:
    """Read a whole array, or all arrays below a group.

    Returns:
        A NumPy array, or a dict of them by path below the group.

    Raises:
        NodeNotFoundError: If there is nothing at the path.
    """
    found = await open(store, path=path, zarr_format=zarr_format, storage_options=storage_options, config=config)
    if isinstance(found, AsyncArray):
        return await found[...].read()
    members = await found.members(max_depth=None)
    arrays = [(name, node) for name, node in members if isinstance(node, AsyncArray)]
    values = await gather([array[...].read for _, array in arrays])
    return {name: value for (name, _), value in zip(arrays, values, strict=True)}


async def list_nodes(
    store: StoreLike,
    *,
    path: str = "",
    max_depth: int | None = None,
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> tuple[tuple[str, Literal["array", "group"]], ...]:
    """The paths and kinds of all nodes at and below a path, sorted.

    Raises:
        NodeNotFoundError: If there is nothing at the path.
        UnsupportedOperation: If the store can not list.
    """
    found = await open(store, path=path, zarr_format=zarr_format, storage_options=storage_options, config=config)
    if isinstance(found, AsyncArray):
        return ((found.path, "array"),)
    below = await run_on_store(partial(found._walk, max_depth), found.store)
    nodes: list[tuple[str, Literal["array", "group"]]] = [(found.path, "group")]
    for name, metadata in below:
        nodes.append((found._handle.child(name).path, "array" if isinstance(metadata, ArrayMetadata) else "group"))
    return tuple(nodes)


async def _consolidate(node: NodeHandle) -> None:
    """Store copies of all documents below a group in one of it."""
    own, copies = node.format.document_keys(node.path), node.format.consolidated_key(node.path)
    async with node.store.lock(copies or own[0]):  # what others change meanwhile they note after this
        documents = await _documents_below(node)
        values = await node.store.fetch([Request(key) for key in own])
        present = {key: bytes(v.data) for key, v in zip(own, values, strict=True) if v is not None}
        await refresh(node.store, node.format, node.path, present, documents)


async def _documents_below(node: NodeHandle) -> dict[str, bytes]:
    """All documents below a group by key, with one batch of requests per level."""
    format_, found = node.format, dict[str, bytes]()
    level = [node]
    while level:
        listed = await gather([partial(place.children, None) for place in level])
        below = [place.child(name) for place, own in zip(level, listed, strict=True) for name in own]
        keys = [format_.document_keys(place.path) for place in below]
        values = iter(await node.store.fetch([Request(key) for own in keys for key in own]))
        level = []
        for place, own in zip(below, keys, strict=True):
            documents = {key: document_bytes(node, key, next(values)) for key in own}
            found.update({key: data for key, data in documents.items() if data is not None})
            is_group = isinstance(formats.parse(format_, place.path, documents), GroupMetadata)
            if is_group and not format_.separates_metadata:
                level.append(place)
    return found
