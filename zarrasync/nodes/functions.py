"""The public functions that open and create nodes.

Opening fetches all documents that may exist at a path with one batch of requests. Keys are listed only to overwrite
existing nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, overload

import numpy.typing as npt

from zarrasync._concurrency.gather import gather
from zarrasync._util.advice import OVERWRITE_BY_MODE, in_terms_of
from zarrasync.errors import NodeNotFoundError
from zarrasync.formats import Format
from zarrasync.metadata import GroupMetadata
from zarrasync.metadata.create import (
    DEFAULT,
    ChunksLike,
    ShapeLike,
    ShardsLike,
    array_parameters,
    check_matches,
    check_options,
)
from zarrasync.model.dtypes import DataType
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.access import all_members, handle_of, parent_attributes
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.consolidated_updates import consolidate
from zarrasync.nodes.create import create_array_at, plan_with_data
from zarrasync.nodes.create_hierarchy import check_array_paths, create_all, plan_hierarchy
from zarrasync.nodes.decoded import AsyncDecodedArray
from zarrasync.nodes.documents import kind_name
from zarrasync.nodes.group import AsyncGroup, create_group_at, expect, find_or_create
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.open_nodes import (
    ConfigLike,
    Mode,
    open_array_at,
    open_node_at,
    open_or_create_array_at,
    resolve_node,
)
from zarrasync.nodes.walk import walk, warn_of_failures
from zarrasync.stores import StoreLike

CodecsLike: TypeAlias = Any


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
    """Open an existing array or group.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the node in the store.
        mode: ``"r"`` to read, ``"r+"`` to read and change.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        use_consolidated: Whether to look up members of a group in its consolidated metadata; see ``open_group``.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this node.

    Returns:
        The array or group.

    Raises:
        NodeNotFoundError: If no node exists at the path. Its field ``tried`` contains the keys that were looked up.
        MetadataError: If the documents are invalid. Its field ``problems`` lists all problems.
        StoreError: If the store failed.

    Example:
        >>> store = {}
        >>> array = await za.create_array(store, path="a", data=np.arange(3))
        >>> node = await za.open(store, path="a")
        >>> await node[1:]
        array([1, 2])
    """
    if mode not in ("r", "r+"):
        raise ValueError(f"open() takes mode 'r' or 'r+', found {mode!r}; use open_array, open_group or create_*")
    handle, candidates = resolve_node(store, path, zarr_format, storage_options, config, mode)
    return await run_on_store(partial(open_node_at, handle, candidates, consolidated=use_consolidated), handle.store)


@overload
async def open_array(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    decode: Literal[False] = False,
    **options: Any,
) -> AsyncArray: ...


@overload
async def open_array(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    decode: Literal[True],
    **options: Any,
) -> AsyncDecodedArray: ...


@overload
async def open_array(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    decode: bool,
    **options: Any,
) -> AsyncArray | AsyncDecodedArray: ...


async def open_array(
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "r",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    decode: bool = False,
    **options: Any,
) -> AsyncArray | AsyncDecodedArray:
    """Open an array, or create it if the mode allows that.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the array in the store.
        mode: ``"r"``: read; ``"r+"``: read and change; ``"a"``: read and change, create if missing; ``"w"``: replace;
            ``"w-"``: create, and fail if a node exists.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this array.
        decode: Return the array with decoded values, as ``AsyncArray.decoded``. The units of bounds are looked up in the
            coordinate of their group, for which the group is listed if the array may contain bounds.
        **options: Options of a new array, as for ``create_array``. An existing array must have the same number of axes,
            data type, chunks and shards.

    Returns:
        The array, or its decoded values.

    Raises:
        NodeNotFoundError: If no node exists at the path and the mode does not create one.
        NodeTypeError: If the node is a group, or an array with a different data type.
        ShapeError: If the array has a different number of axes, or different chunks or shards.
        NodeExistsError: If a node exists and the mode is ``"w-"``.
        MetadataError: If the documents are invalid. Its field ``problems`` lists all problems.
        StoreError: If the store failed.

    Example:
        >>> array = await za.open_array({}, mode="a", shape=(4, 4), dtype="i4", chunks=(2, 2))
        >>> array.shape
        (4, 4)
    """
    check_options(options)
    array = await _open_array(*resolve_node(store, path, zarr_format, storage_options, config, mode), mode, options)
    return AsyncDecodedArray(array, handle_of(array).format, await parent_attributes(array)) if decode else array


async def _open_array(
    handle: NodeHandle, candidates: tuple[Format, ...], mode: Mode, options: dict[str, Any]
) -> AsyncArray:
    if mode in ("w", "w-"):
        with in_terms_of(OVERWRITE_BY_MODE):
            return await create_array_at(handle, overwrite=mode == "w", **options)
    if mode == "a":
        # Nodes of formats that are not candidates may exist. They are looked up before an array is created.
        handle = replace(handle, is_format_known=False)
        with in_terms_of(OVERWRITE_BY_MODE):
            array, is_new = await open_or_create_array_at(handle, candidates, lambda: options)
        if is_new:
            return array
    else:
        array = await open_array_at(handle, candidates)
    if options:
        check_matches(array.metadata, f"{array.name} in {array.store!r}", **options)
    return array


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
    """Open a group, or create it if the mode allows that.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the group in the store.
        mode: ``"r"``: read; ``"r+"``: read and change; ``"a"``: read and change, create if missing; ``"w"``: replace;
            ``"w-"``: create, and fail if a node exists.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        use_consolidated: ``True``: look up members in the group's consolidated metadata. ``False``: look them up in the
            store. ``None``: use the consolidated metadata if it exists.
        attributes: Attributes of a new group.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this group and its members.

    Returns:
        The group.

    Raises:
        NodeNotFoundError: If no node exists at the path and the mode does not create one, or ``use_consolidated`` is
            true and the group has no consolidated metadata.
        NodeTypeError: If the node is an array.
        NodeExistsError: If a node exists and the mode is ``"w-"``.
        MetadataError: If the documents are invalid. Its field ``problems`` lists all problems.
        StoreError: If the store failed.

    Example:
        >>> group = await za.open_group({}, mode="a", attributes={"title": "test"})
        >>> group.attrs["title"]
        'test'
    """
    handle, candidates = resolve_node(store, path, zarr_format, storage_options, config, mode)
    if mode in ("w", "w-"):
        with in_terms_of(OVERWRITE_BY_MODE):
            return await create_group_at(handle, attributes=attributes, overwrite=mode == "w")
    open_existing = partial(
        open_node_at, handle, candidates, explain=mode != "a", consolidated=use_consolidated, kind=GroupMetadata
    )

    async def find_existing() -> AsyncArray | AsyncGroup | None:
        try:
            return await run_on_store(open_existing, handle.store)
        except NodeNotFoundError:
            if mode != "a":
                raise
            return None

    create = partial(create_group_at, replace(handle, is_format_known=False), attributes=attributes)
    group = await find_or_create(find_existing, create)
    return expect(group, AsyncGroup, "; open it with open_array or open", shows_store=True)


async def create_array(
    store: StoreLike,
    *,
    name: str | None = None,
    path: str = "",
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | DataType | None = None,
    data: npt.ArrayLike | None = None,
    chunks: ChunksLike | Literal["auto"] | bool | None = "auto",
    shards: ShardsLike | Literal["auto"] | None = None,
    filters: CodecsLike = "auto",
    serializer: CodecsLike = "auto",
    compressors: CodecsLike = "auto",
    fill_value: Any = DEFAULT,
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
        name: The path of the array in the store. An alias of ``path``.
        path: The path of the array in the store. Missing groups above it are created.
        shape: The number of elements along each axis.
        dtype: The data type: anything that NumPy accepts, ``str`` for variable-length strings, or a Zarr v3 name.
            Default: float64.
        data: Values to write. They determine the shape and the data type unless ``shape`` and ``dtype`` are given.
        chunks: The shape of chunks (inner chunks if the array is sharded). ``"auto"``: about 4 MiB (256 KiB in
            shards). A list of sizes for an axis makes a rectilinear grid.
        shards: The shape of shards, a multiple of ``chunks``. ``None``: the array is not sharded. A mapping
            ``{"shape": ..., "index_location": "start"}`` also sets the location of the index in shards.
        filters: Array -> array codecs (Zarr v2: filters).
        serializer: The array -> bytes codec.
        compressors: Bytes -> bytes codecs. ``"auto"``: zstd, ``None``: no compression. A codec is an instance of a class
            of ``zarrasync.codecs``, a name, a v3 metadata object, or a numcodecs codec or its configuration.
        fill_value: The value of elements in chunks that do not exist. Default: zero, false or empty. ``None``:
            undefined (Zarr v2 only).
        order: The memory order of elements inside a chunk, ``"C"`` or ``"F"``.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        attributes: The attributes. JSON must be able to represent them.
        chunk_key_encoding: The encoding of chunk keys, as in v3 metadata: ``"default"``, ``"v2"``, or an object with
            its name and configuration (section "Chunk key encoding" of the Zarr v3 specification).
        dimension_names: A name or ``None`` for each axis.
        storage_options: Options of the filesystem or object store of a URL.
        overwrite: Replace an existing node.
        config: Settings for this array.

    Returns:
        The new array.

    Raises:
        NodeExistsError: If a node exists and ``overwrite`` is not set.
        NodeTypeError: If a node above the path is an array, or a group of another format.
        ShapeError: If the shapes of the array, its chunks and its shards are inconsistent.
        MetadataError: If the data type, a codec or the fill value is invalid.
        EncodingError: If ``dtype`` does not represent a value of ``data``. Floating-point numbers may be rounded.
        UnsupportedByFormat: If the format cannot store the array. Nothing is written in this case.
        StoreError: If the store failed.

    Example:
        >>> array = await za.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
        >>> await array.view[1:3].write(7)
        >>> await array[:, 0]
        array([0, 7, 7, 0], dtype=int32)
    """
    given = dict(locals())
    if name is not None and path:
        raise TypeError("create_array() takes name or path, not both")
    handle, _ = resolve_node(store, path if name is None else name, zarr_format, storage_options, config)
    return await create_array_at(handle, overwrite=overwrite, **{name: given[name] for name in array_parameters()})


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
    """Create a group and missing groups above it.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the group in the store.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        attributes: The attributes. JSON must be able to represent them.
        overwrite: Replace an existing node.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this group and its members.

    Returns:
        The new group.

    Raises:
        NodeExistsError: If a node exists and ``overwrite`` is not set.
        NodeTypeError: If a node above the path is an array, or a group of another format.
        MetadataError: If JSON cannot represent an attribute.
        StoreError: If the store failed.

    Example:
        >>> group = await za.create_group({}, path="model/run1", attributes={"title": "test"})
        >>> group.name
        '/model/run1'
    """
    handle, _ = resolve_node(store, path, zarr_format, storage_options, config)
    return await create_group_at(handle, attributes=attributes, overwrite=overwrite)


async def create_hierarchy(
    store: StoreLike,
    nodes: Mapping[str, Mapping[str, Any] | None],
    *,
    zarr_format: int | str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> dict[str, AsyncArray | AsyncGroup]:
    """Create many nodes. The nodes of each level of the hierarchy are created concurrently.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        nodes: The nodes by path: a mapping of parameters of ``create_array`` for an array, or ``None`` or
            ``{"attributes": …}`` for a group. Missing groups above them are created.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        overwrite: Replace existing nodes.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for these nodes.

    Returns:
        The new nodes by normalized path.

    Raises:
        NodeExistsError: If a node exists and ``overwrite`` is not set, or a path is below an array.
        NodeTypeError: If a node above a path is an array, or a group of another format.
        MetadataError: If JSON cannot represent an attribute, or a parameter of an array is invalid.
        StoreError: If the store failed.

    Example:
        >>> nodes = {"model": None, "model/t2m": {"shape": (4, 4), "dtype": "f4"}}
        >>> created = await za.create_hierarchy({}, nodes)
        >>> created["model/t2m"].shape
        (4, 4)
    """
    root, _ = resolve_node(store, "", zarr_format, storage_options, config)
    plan = await plan_hierarchy(root, nodes)
    paths = [normalize_path(path) for path in nodes]
    created = await create_all(root, plan, set(paths), overwrite=overwrite)
    return {path: created[path] for path in paths}


async def consolidate_metadata(
    store: StoreLike,
    *,
    path: str = "",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncGroup:
    """Store copies of all metadata documents below a group in one document, so that one request opens the hierarchy.

    In Zarr v3 the copies are part of the group's ``zarr.json``, in Zarr v2 of the document ``.zmetadata``.
    Nodes that cannot be read are left out, with a warning that names them.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the group in the store.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for the group.

    Returns:
        The group, opened with its consolidated metadata.

    Raises:
        NodeNotFoundError: If no node exists at the path.
        NodeTypeError: If the node is an array.
        UnsupportedByFormat: If the format does not support consolidated metadata.
        UnsupportedOperation: If the store cannot list.
        StoreError: If the store failed, or the request for each node of a remote store.

    Example:
        >>> store = {}
        >>> _ = await za.create_array(store, path="t2m", shape=(4, 4), dtype="f4")
        >>> group = await za.consolidate_metadata(store)
        >>> await group.array_keys()
        ('t2m',)
    """
    handle, candidates = resolve_node(store, path, zarr_format, storage_options, config)
    group = await run_on_store(partial(open_node_at, handle, candidates), handle.store)
    handle = handle_of(expect(group, AsyncGroup))
    await run_on_store(partial(consolidate, handle), handle.store)
    opened = await run_on_store(partial(open_node_at, handle, (handle.format,), consolidated=True), handle.store)
    return expect(opened, AsyncGroup)


async def save(
    store: StoreLike,
    *args: npt.ArrayLike,
    path: str = "",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **arrays: Any,
) -> None:
    """Write one or more arrays in one call, replacing existing nodes.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        *args: Arrays without a name. A single array is stored at the path itself. Several arrays are stored in a group
            as ``arr_0``, ``arr_1``, …
        path: The path in the store.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: ``config.zarr_format``.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.
        **arrays: Arrays by name, stored in a group.

    Raises:
        TypeError: If no array is given, or an array is named like an unnamed one (``arr_0``).
        InvalidKeyError: If a name is not allowed.
        StoreError: If the store failed.

    Example:
        >>> store = {}
        >>> await za.save(store, t2m=np.arange(3), lat=np.array([0.5, 1.5]))
        >>> await za.load(store, path="lat")
        array([0.5, 1.5])
    """
    if not args and not arrays:
        raise TypeError("save() needs at least one array")
    handle, _ = resolve_node(store, path, zarr_format, storage_options, config)
    async with handle.store.in_use():
        if len(args) == 1 and not arrays:
            await create_array_at(handle, data=args[0], overwrite=True)
            return
        unnamed = {f"arr_{number}": value for number, value in enumerate(args)}
        if duplicates := sorted(unnamed.keys() & arrays.keys()):
            raise TypeError(f"{duplicates[0]!r} is the name of an unnamed array; rename the keyword argument")
        await _save_arrays(handle, {name: {"data": value} for name, value in {**unnamed, **arrays}.items()})


async def _save_arrays(handle: NodeHandle, options: Mapping[str, dict[str, Any]]) -> None:
    """Create a group with arrays by name, after checking that all can be created."""
    check_array_paths(handle, options)
    for array_options in options.values():  # before anything is replaced
        await plan_with_data(handle, array_options)
    group = await create_group_at(handle, overwrite=True)
    await gather([partial(group.create_array, name, **array_options) for name, array_options in options.items()])


async def load(
    store: StoreLike,
    *,
    path: str = "",
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> Any:
    """Read a whole array, or all arrays below a group.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the array or group in the store.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.

    Returns:
        A NumPy array, or a dict of NumPy arrays by relative path.

    Raises:
        NodeNotFoundError: If no node exists at the path.
        UnsupportedOperation: If the node is a group and the store cannot list.
        CodecError: If a chunk is damaged.
        StoreError: If the store failed.

    Example:
        >>> store = {}
        >>> await za.save(store, np.arange(3))
        >>> await za.load(store)
        array([0, 1, 2])
    """
    node = await open(store, path=path, zarr_format=zarr_format, storage_options=storage_options, config=config)
    if isinstance(node, AsyncArray):
        return await node[...].read()
    arrays = [(name, member) for name, member in await all_members(node) if isinstance(member, AsyncArray)]
    values = await gather([array[...].read for _, array in arrays])
    return {name: array_values for (name, _), array_values in zip(arrays, values, strict=True)}


async def list_nodes(
    store: StoreLike,
    *,
    path: str = "",
    max_depth: int | None = None,
    zarr_format: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> tuple[tuple[str, Literal["array", "group"]], ...]:
    """Return the paths and kinds of all nodes at and below a path.

    Nodes that cannot be read are omitted, with a warning that names them.

    Args:
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of an array or group in the store.
        max_depth: The number of levels of groups below this one to descend into; ``None`` for all.
        zarr_format: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``. Default: detected.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.

    Returns:
        Pairs of the path in the store and the kind of node, sorted by path.

    Raises:
        NodeNotFoundError: If no node exists at the path.
        UnsupportedOperation: If the store cannot list.
        StoreError: If the store failed, or the request for each node of a remote store.

    Example:
        >>> store = {}
        >>> _ = await za.create_array(store, path="model/t2m", shape=(4, 4), dtype="f4")
        >>> await za.list_nodes(store)
        (('', 'group'), ('model', 'group'), ('model/t2m', 'array'))
    """
    node = await open(store, path=path, zarr_format=zarr_format, storage_options=storage_options, config=config)
    if isinstance(node, AsyncArray):
        return ((node.path, "array"),)
    handle = handle_of(node)
    below, failures = await run_on_store(partial(walk, handle, max_depth), handle.store)
    warn_of_failures(handle, failures)
    return ((node.path, "group"), *((handle.child(name).path, kind_name(metadata)) for name, metadata in below))
