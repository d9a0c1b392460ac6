"""The nodes of a copy: their metadata in the new format and layout, and their creation; and files that are not Zarr's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, TypeAlias

from zarrasync import formats
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.semaphores import Held, byte_budget
from zarrasync._util.advice import in_terms_of
from zarrasync.bulk.jobs.verification import difference
from zarrasync.bulk.reports import CopyReport
from zarrasync.errors import NodeExistsError, ShapeError, UnsupportedByFormat, UnsupportedOperation
from zarrasync.formats import Format
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import axis_names, meaning_of
from zarrasync.metadata.conventions.ome import convert_ome
from zarrasync.metadata.convert import LayoutChanges, convert_metadata
from zarrasync.model.paths import join
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.consolidated_updates import consolidate
from zarrasync.nodes.create import check_creatable, create_node
from zarrasync.nodes.create_hierarchy import create_levels
from zarrasync.nodes.documents import Metadata
from zarrasync.nodes.erase import erase_node, is_of_job, leftover_chunks
from zarrasync.nodes.find import find_all
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import Request, Store

Nodes: TypeAlias = Sequence[tuple[str, AsyncArray | AsyncGroup]]
"""Nodes with their paths relative to the first one."""


def plan_copies(nodes: Nodes, target: NodeHandle, changes: LayoutChanges, notes: list[str]) -> dict[str, Metadata]:
    """Return the metadata of the copies by path, and add notes about conversions.

    Raises:
        UnsupportedByFormat: If the target's format cannot express a node.
        MetadataError: If the compressors are invalid.
    """
    has_names = any(isinstance(node, AsyncArray) and node.dimension_names for _, node in nodes)
    planned = {}
    for path, node in nodes:
        target.format.check_path(join(target.path, path))
        own = changes if isinstance(node, AsyncGroup) else layout_of(changes, path or node.basename, node.metadata)
        planned[path] = _plan_copy(node, target.format, own, notes, has_names=has_names)
    if not handle_of(nodes[0][1]).format.is_same(target.format):
        _fit_images(planned, target.format)
    notes[:] = dict.fromkeys(notes)
    return planned


def _plan_copy(
    node: AsyncArray | AsyncGroup, target: Format, changes: LayoutChanges, notes: list[str], *, has_names: bool
) -> Metadata:
    """Return the metadata of one copy.

    Args:
        node: The source.
        target: The format of the copy.
        changes: Changes of chunks, shards and compressors.
        notes: Notes about conversions, which are added.
        has_names: Whether an array of the hierarchy has dimension names. Arrays without axes then count as named.
    """
    metadata, source = node.metadata, handle_of(node).format
    planned: Metadata
    if isinstance(metadata, ArrayMetadata):
        own = node.name, source, target, changes, notes
        planned = convert_metadata(metadata, *own, has_named_dimensions=has_names)
    else:
        planned = GroupMetadata(attributes=convert_ome(metadata.attributes, node.name, source, target, notes))
    target.render("", planned)  # raises an error if the format cannot express it
    return planned


def _fit_images(planned: dict[str, Metadata], target: Format) -> None:
    """Change the levels of images to what conventions require in the new format: names of axes and separators of keys."""
    groups = {path: node for path, node in planned.items() if isinstance(node, GroupMetadata)}
    for path, group in groups.items():
        meaning = meaning_of(group)
        for level in meaning.levels if meaning.is_ordered else ():
            place = join(path, level.path)
            array = planned.get(place)
            if not isinstance(array, ArrayMetadata):
                continue
            names = tuple(axis.name or None for axis in level.axes)
            is_unnamed = target.has_dimension_names and array.dimension_names is None and len(names) == array.ndim
            planned[place] = replace(
                array,
                keys=replace(array.keys, separator=meaning.key_separator or array.keys.separator),
                dimension_names=names if is_unnamed and all(names) else array.dimension_names,
            )


RESUME = "or resume=True to complete an interrupted copy"
OR_RESUME = (
    ("overwrite=True to replace it", f"overwrite=True to replace it, {RESUME}"),
    ("overwrite=True to replace them", f"overwrite=True to replace them, {RESUME}"),
)
"""What to add to messages about existing nodes."""
_INSTEAD_OF_RESUME = (("overwrite=True", "overwrite=True instead of resume=True"),)


async def create_copies(
    target: NodeHandle,
    planned: Mapping[str, Metadata],
    *,
    overwrite: bool = False,
    resume: bool = False,
    erase_leftovers: bool = False,
    at_once: bool = False,
) -> None:
    """Create the nodes of a copy.

    Args:
        target: The location and the format of the copy.
        planned: The metadata of the nodes by path.
        overwrite: Whether to replace an existing node.
        resume: Whether to open nodes that an interrupted run has created.
        erase_leftovers: Whether to erase chunks that lie at the place of a new array.
        at_once: Whether to store the documents of the copied node last, so that readers see all nodes at once. In formats
            whose groups need no documents, they see them one by one in any case.

    Raises:
        NodeExistsError: If another node exists.
    """

    async def create(handle: NodeHandle, path: str) -> AsyncArray | AsyncGroup:
        if resume:
            (existing,) = await find_all(handle, [handle.path], (handle.format,))
            if existing is not None:
                return await _reuse(handle, planned[path], existing.metadata)
        replaces = overwrite and not path
        created = await create_node(handle, planned[path], overwrite=replaces, erase_leftovers=erase_leftovers)
        return make_node(created, planned[path])

    listed = target
    if erase_leftovers:
        with suppress(UnsupportedOperation):
            listed = await run_on_store(target.with_listing, target.store)
    with in_terms_of(*(_INSTEAD_OF_RESUME if resume else OR_RESUME)):
        is_root_last = at_once and not target.format.implicit_groups
        creation = partial(create_levels, listed, planned, create, is_root_last=is_root_last)
        await run_on_store(creation, target.store)


async def clear_place(target: NodeHandle, planned: Mapping[str, Metadata], *, overwrite: bool) -> bool:
    """Make the place of a copy ready, before its documents are stored.

    Args:
        target: The location and the format of the copy.
        planned: The metadata of the nodes by path.
        overwrite: Whether to erase existing nodes. Chunks of arrays that have no document are always erased.

    Returns:
        Whether the place is known to contain no chunks. Otherwise the store cannot list.

    Raises:
        NodeExistsError: If a node exists where one of the copy will be, or values of unclear origin.
        NodeTypeError: If a node above the copy is an array, or a group of another format.
    """
    listed = target
    with suppress(UnsupportedOperation):
        listed = await target.with_listing()
    await check_creatable(listed, planned[""], overwrite=overwrite)
    if overwrite:
        await erase_node(target)
        return True
    paths = [join(target.path, path) for path in planned if path]
    for path, node in zip(paths, await find_all(listed, paths, [target.format], strict=False), strict=True):
        if node is not None:
            place = target.at(path)
            raise place.exists_error(
                f"a node exists at {place.name} in {place.store!r}; pass overwrite=True to replace it"
            )
    try:
        await erase_chunks(listed, planned)
    except UnsupportedOperation:
        return False
    return True


async def erase_chunks(target: NodeHandle, planned: Mapping[str, Metadata]) -> None:
    """Erase the chunks at the places of arrays whose documents are not stored.

    Raises:
        NodeExistsError: If values of unclear origin lie there.
        UnsupportedOperation: If the store cannot list.
    """
    for path, metadata in planned.items():
        if isinstance(metadata, ArrayMetadata):
            handle = target.at(join(target.path, path))
            if keys := await leftover_chunks(handle, metadata):
                await handle.chunk_store(metadata).erase_values(keys)


async def _reuse(handle: NodeHandle, planned: Metadata, existing: Metadata) -> AsyncArray | AsyncGroup:
    """Return a node that an interrupted run has created.

    Raises:
        NodeExistsError: If the node and the plan differ in more than attributes.
    """

    def without_attributes(metadata: Metadata) -> Mapping[str, bytes]:
        return handle.format.render("", replace(metadata, attributes={}, source=None))

    if without_attributes(planned) != without_attributes(existing):
        raise handle.exists_error(
            f"cannot resume the copy to {handle.name} in {handle.store!r}: the existing node differs from the copy in "
            "more than attributes; pass overwrite=True to replace it"
        )
    if planned.attributes != existing.attributes:  # format 2 stores them in a second document
        for key, data in handle.format.render(handle.path, planned).items():
            await handle.store.put(key, data)
    return make_node(replace(handle, is_format_known=True), planned)


async def consolidated_groups(nodes: Nodes) -> list[str]:
    """Return the paths of the groups with consolidated metadata, relative to the first node."""
    groups = {path: node for path, node in nodes if isinstance(node, AsyncGroup)}
    if not groups:
        return []
    source = handle_of(nodes[0][1]).without_consolidated()
    paths = [node.path for node in groups.values()]
    find_copies = partial(find_all, source, paths, (source.format,), consolidated=None)
    found = await run_on_store(find_copies, source.store)
    pairs = zip(groups, found, strict=True)
    return [path for path, node in pairs if node is not None and node.consolidated is not None]


async def consolidate_copies(paths: Iterable[str], target: NodeHandle, notes: list[str]) -> None:
    """Consolidate the metadata of some groups of a copy. If that is not possible, add a note."""
    for path in paths:
        copied = target.at(join(target.path, path))
        try:
            await run_on_store(partial(consolidate, copied), target.store)
        except (UnsupportedByFormat, UnsupportedOperation) as error:
            notes.append(f"{copied.name}: the copy has no consolidated metadata: {error}")


# ------------------------------------------------------------------ layouts of arrays


def layout_of(changes: LayoutChanges, path: str, metadata: ArrayMetadata) -> LayoutChanges:
    """Return the changes of one array.

    Args:
        changes: The changes of all arrays. Shapes may be mappings: sizes by dimension, and shapes by array. Compressors may
            be a mapping of arrays.
        path: The path of the array relative to the copied node, or the name of the copied array.
        metadata: Its metadata.
    """
    compressors = changes.compressors
    if _is_by_array(compressors):
        compressors = compressors.get(path, "keep")
    chunks = _shape(changes.chunks, path, metadata, metadata.chunks)
    shards = _shape(changes.shards, path, metadata, metadata.shards or metadata.chunks)
    return LayoutChanges(chunks, shards, compressors)


def check_names(changes: LayoutChanges, arrays: Mapping[str, ArrayMetadata]) -> None:
    """Check that mappings name arrays and dimensions that exist.

    Args:
        changes: The changes.
        arrays: The arrays by path.

    Raises:
        ShapeError: If a name does not exist.
    """
    dims = {name for metadata in arrays.values() for name in _names(metadata)}
    for parameter, shape in (("chunks", changes.chunks), ("shards", changes.shards)):
        if not isinstance(shape, Mapping):
            continue
        for name, value in shape.items():
            if isinstance(value, Integral):
                _check(parameter, "dimension", name, dims)
                continue
            _check(parameter, "array", name, arrays)
            if isinstance(value, Mapping):
                for dim in value:
                    _check(f"{parameter} of {name!r}", "dimension", dim, _names(arrays[name]))
    if _is_by_array(changes.compressors):
        for name in changes.compressors:
            _check("compressors", "array", name, arrays)


def _check(parameter: str, kind: str, name: Any, known: Iterable[str]) -> None:
    if name not in known:
        raise ShapeError(f"{parameter}: the source has no {kind} {name!r}; it has {', '.join(sorted(known)) or 'none'}")


def _is_by_array(compressors: Any) -> bool:
    """Return whether compressors are a mapping of arrays, and not the configuration of one codec."""
    return isinstance(compressors, Mapping) and not isinstance(compressors.get("name", compressors.get("id")), str)


def _shape(value: Any, path: str, metadata: ArrayMetadata, present: tuple[int, ...]) -> Any:
    if not isinstance(value, Mapping):
        return value
    own = value.get(path)
    if own is None and path in value:
        return None
    if own is None or isinstance(own, Integral):
        own = {dim: int(size) for dim, size in value.items() if isinstance(size, Integral)}
    if not isinstance(own, Mapping):
        return own
    names = axis_names(metadata) or ()
    if not own.keys() & set(names):
        return "keep"
    return tuple(own.get(name, size) for name, size in zip(names, present, strict=True))


def _names(metadata: ArrayMetadata) -> list[str]:
    return [name for name in axis_names(metadata) or () if name is not None]


# ------------------------------------------------------------------ files that are not part of a Zarr node


_CONCURRENT_FILES = 8


def plan_files(keys: Collection[str], source: NodeHandle, dest: NodeHandle) -> dict[str, str]:
    """Return the keys of files that are not part of a Zarr node or of a job, and their keys in the copy.

    Args:
        keys: All keys below the source.
        source: The node to copy.
        dest: The new node.

    Raises:
        NodeExistsError: If two files would have the same key in the copy.
    """
    prefixes, new_prefixes = source.format.erase_prefixes(source.path), dest.format.erase_prefixes(dest.path)
    new_keys = {}
    for key in sorted(key for key in keys if not (formats.may_be_zarr(key) or is_of_job(key))):
        number = next(number for number, prefix in enumerate(prefixes) if key.startswith(prefix))
        # In a format with several prefixes, the last one is for chunks, and files are usually next to chunks.
        new_prefix = new_prefixes[number] if len(prefixes) == len(new_prefixes) else new_prefixes[-1]
        new_keys[key] = new_prefix + key[len(prefixes[number]) :]
    if len(set(new_keys.values())) < len(new_keys):
        raise NodeExistsError(f"two files below {source.name} in {source.store!r} would have the same key in the copy")
    return new_keys


async def check_free(dest: NodeHandle, keys: Sequence[str]) -> None:
    """Check that the keys of copied files do not exist.

    Raises:
        NodeExistsError: If a key exists.
    """
    values = await run_on_store(partial(dest.store.fetch, [Request(key, 0, 1) for key in keys]), dest.store)
    existing = [key for key, value in zip(keys, values, strict=True) if value is not None]
    if existing:
        raise dest.exists_error(
            f"{existing[0]!r} exists in {dest.store!r} and would be replaced by a file of the source; pass "
            "overwrite=True to replace it, or copy without all_files"
        )


async def copy_files(
    source: Store, dest: NodeHandle, new_keys: Mapping[str, str], report: CopyReport, *, resume: bool, verify: bool
) -> None:
    """Copy whole files within the memory budget.

    Args:
        source: The store of the files.
        dest: The copy.
        new_keys: The keys of the files in the copy, by their keys in the source.
        report: The report to add counts to.
        resume: Keep existing files of the same size.
        verify: Read all files back and compare them.

    Raises:
        ChecksumError: If ``verify`` is set and a file differs.
    """
    budget = byte_budget(dest.config)

    async def copy_file(key: str) -> None:
        stat = await run_on_store(partial(source.stat, key), source)
        if stat is None:  # another process has erased it
            return
        new_key, size = new_keys[key], stat.size or 0
        existing = await run_on_store(partial(dest.store.stat, new_key), dest.store) if resume else None
        is_kept = existing is not None and existing.size == stat.size
        if is_kept and not verify:
            report.skipped += 1
            return
        async with Held(budget, size):
            (value,) = await run_on_store(partial(source.fetch, [Request(key)]), source)
            if value is None:
                return
            if not is_kept:
                await run_on_store(partial(dest.store.put, new_key, value.data), dest.store)
            if verify:
                (copied,) = await run_on_store(partial(dest.store.fetch, [Request(new_key)]), dest.store)
                if copied is None or bytes(copied.data) != bytes(value.data):
                    raise difference(repr(new_key), dest.store, f"{key!r} in {source!r}")
        report.skipped += is_kept
        report.files += not is_kept

    is_blocking = source.blocking and dest.store.blocking
    await for_each(copy_file, list(new_keys), 1 if is_blocking else _CONCURRENT_FILES)
