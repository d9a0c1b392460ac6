"""Creating nodes: look up the nodes at and above the path, raise errors for conflicts, then write the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import formats, transfer
from zarrasync._concurrency import bridge
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.display.text import counted
from zarrasync.errors import (
    ConditionsUnsupported,
    NodeExistsError,
    NodeTypeError,
    UnsupportedOperation,
    WriteConflictError,
)
from zarrasync.formats import CANDIDATES, EntryPointFound, Format
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import check_options, plan_array
from zarrasync.model.paths import ancestors
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.decoded import AsyncDecodedArray
from zarrasync.nodes.documents import Metadata, put_documents
from zarrasync.nodes.erase import erase_node, is_of_job, leftover_chunks
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.stores import ABSENT


async def create_node(
    handle: NodeHandle, metadata: Metadata, *, overwrite: bool = False, erase_leftovers: bool = False
) -> NodeHandle:
    """Store the documents of a new node and of the missing groups above it.

    Args:
        handle: The location and the format of the new node.
        metadata: The metadata of the new node.
        overwrite: Erase an existing node and all nodes below it first. Files that are not part of a Zarr node are kept.
        erase_leftovers: Erase chunks that remain from an array if a process was killed while erasing it.

    Returns:
        The handle of the new node.

    Raises:
        NodeExistsError: If a node exists and ``overwrite`` is not set, or files of unclear origin would be erased.
        NodeTypeError: If a node above the path is an array, or a group of another format.
        UnsupportedByFormat: If the format cannot store the metadata. Nothing is written in this case.
        UnsupportedOperation: If ``erase_leftovers`` is set and the store cannot list. Nothing is written in this case.
    """
    handle.format.check_path(handle.path)
    documents = _new_documents(handle, metadata, overwrite=overwrite)
    while True:
        is_conditional = handle.store.conditional and not overwrite
        creation = _Creation(handle, metadata, documents, overwrite, erase_leftovers, is_conditional)
        missing, is_empty = await _refuse_conflicts(creation)
        try:
            await _write(creation, missing, is_empty=is_empty)
        except ConditionsUnsupported:
            if handle.store.conditional:
                raise
            continue  # the store no longer uses conditional writes, so that more nodes must be looked up first
        return replace(handle, format=handle.format.for_written_store(), is_format_known=True)


async def check_creatable(handle: NodeHandle, metadata: Metadata, *, overwrite: bool = False) -> None:
    """Raise the errors about existing nodes and values that ``create_node`` raises. Nothing is written."""
    handle.format.check_path(handle.path)
    creation = _Creation(handle, metadata, {}, overwrite, erase_leftovers=False, is_conditional=False)
    await _refuse_conflicts(creation)


def _new_documents(handle: NodeHandle, metadata: Metadata, *, overwrite: bool) -> dict[str, bytes]:
    """Return the documents of a new node by key, including the entry point document if the format has one."""
    replaces_store = overwrite and not handle.path
    entry = handle.format.root_documents() if replaces_store or handle.format.unread_entry_point is not None else {}
    return {**entry, **handle.format.render(handle.path, metadata)}


@dataclass(frozen=True)
class _Creation:
    """An attempt to create a node.

    Attributes:
        handle: The location and the format of the new node.
        metadata: The metadata of the new node.
        documents: The documents of the new node by key.
        overwrite: Whether to erase an existing node first.
        erase_leftovers: Whether to erase the remaining chunks of an array that no longer exists first.
        is_conditional: Whether documents are stored only if their keys do not exist, so that two writers cannot create
            the same node.
    """

    handle: NodeHandle
    metadata: Metadata
    documents: Mapping[str, bytes]
    overwrite: bool
    erase_leftovers: bool
    is_conditional: bool

    @property
    def is_found_by_writing(self) -> bool:
        """Whether the conditional write of the only possible document detects an existing node without a lookup."""
        handle = self.handle
        return self.is_conditional and handle.is_format_known and len(handle.format.document_keys(handle.path)) == 1

    @property
    def formats(self) -> list[Format]:
        """The formats of existing nodes that may conflict with the new node."""
        handle = self.handle
        is_single = len(handle.format.document_keys(handle.path)) == 1
        if handle.is_format_known and (handle.ancestor_group is not None or is_single):
            return [handle.format]
        return _possible_formats(handle.format)

    @property
    def ancestors(self) -> list[str]:
        """The paths above the node, except groups that are known to exist."""
        paths, existing = ancestors(self.handle.path), self.handle.ancestor_group
        return paths if existing is None else paths[: paths.index(existing)] if existing in paths else paths[:-1]


def _possible_formats(format_: Format) -> list[Format]:
    """Return a format and all other formats that can be used in the same store."""
    others = [other for other in CANDIDATES if other.unread_entry_point is None and not other.is_same(format_)]
    return [format_, *(other for other in others if format_.entry_point not in other.document_keys(""))]


# ------------------------------------------------------------------ look for conflicts


async def _refuse_conflicts(creation: _Creation) -> tuple[list[str], bool]:
    """Look up the nodes at and above the path, with one batch of requests.

    Returns:
        The paths above the node at which no node exists, and whether no keys are below the path of a replaced node.

    Raises:
        NodeExistsError: If a node exists that must not be replaced, or values that may not remain from a Zarr node.
        NodeTypeError: If a node cannot be created below one of those above.
    """
    handle, ancestors, is_empty = creation.handle, creation.ancestors, False
    paths = ancestors if creation.is_found_by_writing else [handle.path, *ancestors]
    try:
        nodes = await find_all(handle.without_consolidated(), paths, creation.formats, strict=False)
    except EntryPointFound:  # of another format
        if handle.path or not creation.overwrite:
            raise
        nodes = [None]
    occupant = None if creation.is_found_by_writing else nodes.pop(0)
    if occupant is not None and not creation.overwrite:
        raise _occupied(handle, occupant)
    if occupant is None and creation.overwrite:
        is_empty = await _refuse_unclear_keys(handle)
    elif occupant is None and isinstance(creation.metadata, ArrayMetadata) and handle.format.implicit_groups:
        with suppress(UnsupportedOperation):
            if await handle.children():
                message = f"{handle.place} is a group: nodes exist below it; pass overwrite=True to replace it"
                raise handle.exists_error(message)
    found = dict(zip(ancestors, nodes, strict=True))
    for path, node in found.items():
        if node is not None:
            _refuse_ancestor(handle, path, node)
    return [path for path, node in found.items() if node is None], is_empty


async def _refuse_unclear_keys(handle: NodeHandle) -> bool:
    """Raise an error about keys below a path without a node if it is unclear whether they belong to Zarr.

    If keys exist that are not part of any Zarr node, other keys may also belong to the user, even if they look like
    chunk keys. Returns whether a listing found no keys.
    """
    try:
        keys = sorted(key for key in await handle.list_keys() if not is_of_job(key))
    except UnsupportedOperation:
        return False
    other_files = [key for key in keys if not formats.may_be_zarr(key)]
    unclear = [key for key in keys if formats.may_be_zarr(key)]
    if other_files and unclear:
        raise handle.exists_error(
            f"cannot overwrite {handle.place}: no Zarr node exists there, and "
            f"{counted(len(unclear), 'value')} would be erased ({', '.join(unclear[:3])}), which may belong to other files "
            f"({', '.join(other_files[:3])}); erase or move them, or use another path"
        )
    return not keys


def _refuse_ancestor(handle: NodeHandle, path: str, node: FoundNode) -> None:
    """Raise an error if a node cannot be created below an existing one."""
    if not node.format.is_same(handle.format):
        raise NodeTypeError(
            f"{handle.name} cannot be created in Zarr format {handle.format.zarr_format!r}: the group /{path} has format "
            f"{node.format.zarr_format!r}, and its readers would not find the new node; "
            f"pass zarr_format={node.format.zarr_format!r}",
            path=path,
            found=str(node.format.zarr_format),
            wanted=str(handle.format.zarr_format),
        )
    if isinstance(node.metadata, ArrayMetadata):
        raise NodeTypeError(
            f"{handle.name} cannot be created: /{path} is an array, not a group",
            path=path,
            found="array",
            wanted="group",
        )


def _occupied(handle: NodeHandle, occupant: FoundNode) -> NodeExistsError:
    kind = "an array" if isinstance(occupant.metadata, ArrayMetadata) else "a group"
    if not occupant.format.is_same(handle.format):
        kind += f" of Zarr format {occupant.format.zarr_format!r}"
    return handle.exists_error(f"{kind} exists at {handle.name} in {handle.store!r}; pass overwrite=True to replace it")


# ------------------------------------------------------------------ write


async def _write(creation: _Creation, missing: Sequence[str], *, is_empty: bool) -> None:
    """Erase the replaced node, then store the documents of the new node and of missing groups above it."""
    handle, documents = creation.handle, dict(creation.documents)
    if creation.overwrite and (not is_empty or handle.consolidated is not None):
        await erase_node(handle)
    elif creation.erase_leftovers and isinstance(creation.metadata, ArrayMetadata):
        await _erase_leftovers(handle, creation.metadata)
    if not handle.format.implicit_groups:
        documents.update(await _create_groups(handle, missing))
    await _put_new(creation)
    await update_copies(handle, documents, new_groups=missing)


async def _erase_leftovers(handle: NodeHandle, metadata: ArrayMetadata) -> None:
    keys = await leftover_chunks(handle, metadata)
    if keys:
        await _refuse_occupant(handle, _possible_formats(handle.format))
        await handle.chunk_store(metadata).erase_values(keys)


async def _create_groups(handle: NodeHandle, paths: Sequence[str]) -> dict[str, bytes]:
    """Store the documents of missing groups above a new node. Return the documents by key.

    The groups are stored one after the other from the root down, and before the node. So an interruption leaves no node
    below a path where another process could create an array.

    Raises:
        NodeTypeError: If another process has created an array at one of the paths.
    """
    store, stored = handle.store, dict[str, bytes]()
    for path in sorted(paths):
        documents = handle.format.render(path, GroupMetadata())
        try:
            await put_documents(store, documents, dict.fromkeys(documents, ABSENT) if store.conditional else {})
        except WriteConflictError:
            (node,) = await find_all(handle.without_consolidated(), [path], [handle.format], strict=False)
            if node is None:
                raise
            _refuse_ancestor(handle, path, node)
        stored.update(documents)
    return stored


async def _put_new(creation: _Creation) -> None:
    """Store the documents of a new node. The document that makes it exist is stored last, after its attributes."""
    handle, documents, is_conditional = creation.handle, creation.documents, creation.is_conditional
    marker = handle.format.document_keys(handle.path, type(creation.metadata))[0]
    others = {key: documents[key] for key in handle.format.document_keys(handle.path) if key in documents}
    last = {key: data for key, data in documents.items() if key == marker or key not in others}
    del others[marker]
    try:
        await put_documents(handle.store, others, dict.fromkeys(others, ABSENT) if is_conditional else {})
    except WriteConflictError:
        await _refuse_occupant(handle, [handle.format])
        await put_documents(handle.store, others, {})  # they remain from a process that was interrupted
    try:
        await put_documents(handle.store, last, {marker: ABSENT} if is_conditional else {})
    except WriteConflictError:
        await _refuse_occupant(handle, [handle.format])
        raise


async def _refuse_occupant(handle: NodeHandle, candidates: Sequence[Format]) -> None:
    """Raise an error if another writer has created a node at the path."""
    (node,) = await find_all(handle.without_consolidated(), [handle.path], candidates, strict=False)
    if node is not None:
        raise _occupied(handle, node) from None


async def bind_format(handle: NodeHandle, *, overwrite: bool) -> NodeHandle:
    """Return a handle with the format that its store specifies, unless the whole store will be replaced.

    Raises:
        MetadataError: If the store uses another format.
    """
    is_bound = handle.format.unread_entry_point is None or (overwrite and not handle.path)
    return handle if is_bound else await run_on_store(handle.bind, handle.store)


async def create_array_at(handle: NodeHandle, *, overwrite: bool = False, **options: Any) -> AsyncArray:
    """Create an array and write its ``data``, if any. The data is read before anything is replaced.

    Args:
        handle: The location and the format of the new array.
        overwrite: Replace an existing node.
        **options: As for ``create_array``.
    """
    handle, metadata, data = await plan_array_at(handle, overwrite=overwrite, **options)
    return await create_planned_array(handle, metadata, data, overwrite=overwrite)


async def plan_array_at(
    handle: NodeHandle, *, overwrite: bool = False, **options: Any
) -> tuple[NodeHandle, ArrayMetadata, npt.NDArray[Any] | None]:
    """Plan an array without writing anything.

    Args:
        handle: The location and the format of the new array.
        overwrite: Whether an existing node will be replaced.
        **options: As for ``create_array``.

    Returns:
        The handle with the format that its store specifies, the metadata, and the data as it will be stored.
    """
    handle = await bind_format(handle, overwrite=overwrite)
    metadata, data = await plan_with_data(handle, options)
    return handle, metadata, data


async def plan_with_data(handle: NodeHandle, options: dict[str, Any]) -> tuple[ArrayMetadata, npt.NDArray[Any] | None]:
    """Return the metadata of an array and its data as it will be stored, or raise an error if either is invalid.

    Lazy data in ``options`` is replaced by its values.
    """
    check_options(options)
    options["data"] = data = await _read_lazy(options.get("data"))
    metadata = plan_array(handle.format, **options)
    if data is None:
        return metadata, None
    convert = partial(_storable, data, metadata)
    return metadata, await transfer.run_conversion(convert, data, metadata.dtype.numpy, casts_numbers=True)


def _storable(data: Any, metadata: ArrayMetadata) -> npt.NDArray[Any]:
    exact = transfer.as_exact_array(data, metadata.dtype.numpy, metadata.spec.fill_value)
    return transfer.as_storable(exact, metadata)


async def create_planned_array(
    handle: NodeHandle,
    metadata: ArrayMetadata,
    data: npt.NDArray[Any] | None,
    *,
    overwrite: bool = False,
    erase_leftovers: bool = False,
) -> AsyncArray:
    """Create an array that was planned with ``plan_array_at``, and write its data, if any.

    Args:
        handle: The location and the format of the new array.
        metadata: The metadata.
        data: The values to write, or ``None``.
        overwrite: Replace an existing node.
        erase_leftovers: Erase chunks that remain from an array if a process was killed while erasing it.
    """
    create = partial(create_node, handle, metadata, overwrite=overwrite, erase_leftovers=erase_leftovers)
    array = AsyncArray(await run_on_store(create, handle.store), metadata)
    if data is not None:
        await array.view.write(data)
    return array


async def _read_lazy(data: Any) -> Any:
    """Read lazy arrays and selections. Other data is returned unchanged."""
    lazy = getattr(data, "async_", data)  # an object of the synchronous API
    if isinstance(lazy, AsyncArray | AsyncDecodedArray | AsyncSelection):
        whole = lazy[...]
        return bridge.run(whole.read(), blocking=whole.array.store.blocking) if driven() else await whole.read()
    if not hasattr(data, "shape") or isinstance(data, np.ndarray):
        return data
    return await run_in_new_thread(partial(np.asanyarray, data))
