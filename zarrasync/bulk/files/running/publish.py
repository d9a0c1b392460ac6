"""Publishing a job: small arrays and documents of arrays, then the journal, then the group's document, which shows all at once.

The group's document contains copies of the documents of all arrays, with their new shapes. Readers of consolidated
metadata, such as xarray, see the dataset before or after the job, and nothing between. If a job ends between the journal
and the group's document, the journal contains rows beyond the dataset's, which count as not ingested.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from zarrasync._concurrency.gather import gather
from zarrasync.bulk.files.records.journal import JOURNAL, Journal, change_sources, read_sources
from zarrasync.bulk.files.records.plan import ArrayPlan, FilesPlan, Part
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.verification import compare_values, has_values
from zarrasync.display.text import counted
from zarrasync.errors import MetadataError, NodeNotFoundError, ShapeError
from zarrasync.indexing.regions import Region
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.create import checked_attributes
from zarrasync.model.paths import ancestors, join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.base import MetadataCell
from zarrasync.nodes.consolidated import ConsolidatedCopies, replace_copies
from zarrasync.nodes.consolidated_updates import update_copies
from zarrasync.nodes.documents import document_bytes, fetch_documents, put_documents
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.node import NodeHandle, run_blocking
from zarrasync.nodes.walk import documents_below
from zarrasync.stores import ABSENT

_log = logging.getLogger(__name__)


async def write_inline(plan: FilesPlan, handle: NodeHandle, *, verify: bool = False) -> None:
    """Write the arrays whose values are part of the plan.

    Args:
        plan: The plan.
        handle: The location of the group.
        verify: Whether to read the values back and compare them.

    Raises:
        ChecksumError: If the values read back differ.
    """

    async def write(array: ArrayPlan) -> None:
        target = plan.open(array, handle.store, replace(handle.config, unaligned="allow"))
        for region, values in _inline_parts(plan, array, target):
            await target.view[region].write(values)
            if verify:
                await compare_values(target, region, values, "the files")

    await gather([partial(write, array) for array in plan.arrays if array.kind == "inline"])


async def is_inline_stored(plan: FilesPlan, array: ArrayPlan, handle: NodeHandle) -> bool:
    """Return whether the values that the plan contains of an array are stored; true for other arrays.

    Args:
        plan: The plan.
        array: One of its arrays.
        handle: The location of the group.
    """
    if array.kind != "inline":
        return True
    target = plan.open(array, handle.store, handle.config)
    for region, values in _inline_parts(plan, array, target):
        if not await has_values(target, region, values):
            return False
    return True


def _inline_parts(plan: FilesPlan, array: ArrayPlan, target: AsyncArray) -> Iterator[tuple[Region, Any]]:
    """Yield the regions of an array whose values are part of the plan, with their values."""
    values, region, done = array.values(target.dtype), [slice(0, n) for n in target.shape], 0
    if array.axis is None:
        yield tuple(region), values
        return
    inner = (slice(None),) * array.axis
    for start, stop in array.rows or [(run.start, run.stop) for run in plan.runs_of(Part(0, plan.length))]:
        rows = slice(done, done + stop - start)
        region[array.axis], done = slice(start, stop), rows.stop
        yield tuple(region), np.ascontiguousarray(values[(*inner, rows)])


async def unchanged_arrays(plan: FilesPlan, handle: NodeHandle) -> dict[str, ArrayMetadata]:
    """Return the metadata of the arrays that will get another shape, by name, before anything is published.

    Raises:
        ShapeError: If another writer has changed the shape of an array since the job was planned.
    """
    growing = [array for array in plan.arrays if array.shape is not None and _is_growing(plan, array, handle)]
    paths = [join(handle.path, array.name) for array in growing]
    nodes = await find_all(handle.without_consolidated(), paths, (handle.format,)) if paths else []
    found: dict[str, ArrayMetadata] = {}
    for array, node in zip(growing, nodes, strict=True):
        if node is None or not isinstance(node.metadata, ArrayMetadata):
            raise NodeNotFoundError(
                f"/{join(handle.path, array.name)} in {handle.store!r} was replaced by a group or removed; nothing was "
                "published. Make a new plan, or repeat the call",
                path=join(handle.path, array.name),
            )
        if node.metadata.shape != tuple(array.shape or ()):
            raise _changed_shape(f"/{join(handle.path, array.name)}", node.metadata, array, handle)
        found[array.name] = node.metadata
    return found


def _is_growing(plan: FilesPlan, array: ArrayPlan, handle: NodeHandle) -> bool:
    return plan.open(array, handle.store, handle.config).shape != array.shape


def _changed_shape(name: str, present: ArrayMetadata, array: ArrayPlan, handle: NodeHandle) -> ShapeError:
    return ShapeError(
        f"another writer changed the shape of {name} in {handle.store!r} from {array.shape} to {present.shape}; nothing was "
        "published. Repeat the call, or drop the plan and make a new one; if that fails in the same way, the consolidated "
        "metadata of the group are outdated: consolidate them with consolidate_metadata()",
        found=present.shape,
        wanted=tuple(array.shape or ()),
    )


async def publish_arrays(
    plan: FilesPlan, handle: NodeHandle, present: Mapping[str, ArrayMetadata] = MappingProxyType({})
) -> None:
    """Store the documents of new arrays, and the new shapes of others.

    Labels and other small arrays come first, so that readers without consolidated metadata find no variable that is longer
    than its labels.

    Args:
        plan: The plan.
        handle: The location of the group.
        present: The metadata of arrays as ``unchanged_arrays`` has read them. Others are read again, and may have the new
            shape already, because an earlier call has published them.

    Raises:
        ShapeError: If another writer has changed the shape of an array.
    """
    for is_label in (True, False):
        arrays = [array for array in plan.arrays if (array.name == plan.dim or array.kind == "inline") == is_label]
        await gather([partial(_publish_array, plan, array, handle, present.get(array.name)) for array in arrays])


async def _publish_array(plan: FilesPlan, array: ArrayPlan, handle: NodeHandle, known: ArrayMetadata | None) -> None:
    target = plan.open(array, handle.store, handle.config)
    if array.shape is None:
        await _put_new_array(array, target.path, handle)
        return
    if array.shape == target.shape:
        return
    expected, shape = tuple(array.shape), target.shape

    async def grow(present: ArrayMetadata) -> ArrayMetadata:
        if present.shape not in (expected, shape):
            raise _changed_shape(target.name, present, array, handle)
        return present.with_shape(shape)

    place = handle.without_consolidated().at(target.path)  # the copies follow at the end
    await MetadataCell(place, known or target.metadata).change(grow, fresh=known is None)


async def _put_new_array(array: ArrayPlan, path: str, handle: NodeHandle) -> None:
    """Store the documents of a new array. If it exists, an earlier call has stored it, and others may have changed it."""
    store, format_ = handle.store, handle.format
    keys = list(array.documents)
    values = dict(zip(keys, await fetch_documents(store, keys, handle.config), strict=True))
    exists = format_.parse(path, {key: document_bytes(value) for key, value in values.items()}) is not None
    missing = {key: text.encode() for key, text in array.documents.items() if values[key] is None or not exists}
    versions = {key: ABSENT for key in missing if values[key] is None and store.conditional}
    await put_documents(store, missing, versions)


async def publish_group(
    plan: FilesPlan,
    handle: NodeHandle,
    *,
    is_complete: bool = True,
    is_independent: bool = False,
) -> None:
    """Store the journal, then copies of all documents in the document of the group. Create groups above a new one.

    Args:
        plan: The plan.
        handle: The location of the group.
        is_complete: Whether the journal shall contain the files of the plan. It keeps all others in any case.
        is_independent: Whether the journal shall contain the plan, because its tasks were independent.
    """
    place = handle.without_consolidated()
    (group,) = await find_all(place, [handle.path], (handle.format,), consolidated=None)

    def change(present: Mapping[str, Any]) -> dict[str, Any]:
        """Return the journal after the job. The files of other jobs remain in it, even if this one is late."""
        is_first = plan.is_new and group is None  # such a value describes an earlier dataset
        journal = Journal() if is_first else Journal.of(present.get(JOURNAL))
        files, rows, added = (plan.files, plan.journal, plan.added) if is_complete else ((), (), (0, 0))
        journal = journal.with_files(plan.dim, plan.parameters, files, rows, added)
        if is_complete:
            journal = journal.with_rows(dict(plan.moved_files), plan.empty)
        journal = journal.with_plan(plan.digest, is_finished=is_complete and is_independent)
        return {JOURNAL: journal.to_json()}

    await change_sources(NodeHandle(handle.store, join(handle.path, plan.place), handle.format, handle.config), change)
    above = ancestors(handle.path)[::-1]
    nodes = await find_all(place, above, (handle.format,), consolidated=None) if above else []
    for path, node in zip(above, nodes, strict=True):
        if node is None:
            await put_documents(handle.store, handle.format.render(path, GroupMetadata()), {})
    copies_key = handle.format.consolidated_key(handle.path)
    keys = handle.format.document_keys(handle.path, GroupMetadata)
    if copies_key not in keys or not handle.store.supports_consolidated_metadata:
        await _put_group(plan, handle, group)
    if copies_key is not None and handle.store.supports_consolidated_metadata:
        make = partial(_copies, plan, handle)
        await replace_copies(handle.store, handle.format, handle.path, make, handle.config)
    changed = [key for array in plan.arrays for key in array.documents]
    changed += [key for path in (*above, handle.path) for key in handle.format.document_keys(path, GroupMetadata)]
    await update_copies(NodeHandle(handle.store, handle.path, handle.format, handle.config), changed)


async def _put_group(plan: FilesPlan, handle: NodeHandle, group: FoundNode | None) -> None:
    """Store the documents of the group, in formats and stores that keep copies elsewhere or not at all."""
    if group is None:
        metadata = GroupMetadata(attributes=_attributes(plan, {}))
        await put_documents(handle.store, handle.format.render(handle.path, metadata), {})
    elif plan.is_new:

        async def change(present: GroupMetadata) -> GroupMetadata:
            return replace(present, attributes=_attributes(plan, present.attributes))

        await MetadataCell(handle.without_consolidated(), GroupMetadata()).change(change, fresh=True)


def _attributes(plan: FilesPlan, present: Mapping[str, Any]) -> dict[str, Any]:
    return checked_attributes({**(plan.attributes or {}), **present})


async def _copies(plan: FilesPlan, handle: NodeHandle, group_documents: Mapping[str, bytes]) -> ConsolidatedCopies:
    """Return the documents of the group, and copies of all documents below."""
    format_, path = handle.format, handle.path
    keys = format_.document_keys(path)
    found = format_.parse(path, {key: group_documents.get(key) for key in keys})
    metadata = found if isinstance(found, GroupMetadata) else GroupMetadata()
    metadata = replace(metadata, attributes=_attributes(plan, metadata.attributes))
    rendered: Mapping[str, Any] = format_.render(path, metadata)
    below = format_.parse_consolidated(path, group_documents) if found is not None else {}
    if below is None:  # the group had no copies
        below, _ = await documents_below(handle.without_consolidated())
    changed = [key for array in plan.arrays for key in array.documents]
    values = await fetch_documents(handle.store, changed, handle.config)  # others may have changed attributes
    stored = {key: bytes(value.data) for key, value in zip(changed, values, strict=True) if value is not None}
    copied = {key: format_.copied_document(key, data) for key, data in {**below, **stored}.items()}
    return ConsolidatedCopies(format_.own_documents(path, rendered), copied)


# ------------------------------------------------------------------ after an interruption


def publication_record(plan: FilesPlan, handle: NodeHandle, *, is_independent: bool) -> dict[str, Any]:
    """Return what ``publish_again`` needs to know.

    Args:
        plan: The plan whose result is published next.
        handle: The location of the group.
        is_independent: Whether other processes have run the tasks of the plan.
    """
    # The journal may contain the same files, if their rows were removed from the arrays.
    was_recorded = not plan.is_new and run_blocking(handle.store, _is_recorded(plan, handle))
    return {"plan": plan.recorded.to_json(), "was_recorded": was_recorded, "is_independent": is_independent}


def publish_again(claim: Claim, handle: NodeHandle) -> list[str]:
    """Publish what an earlier owner of the claim has begun to publish. Without a record, all is published.

    Arrays are not changed if the journal contains the files since, because all arrays were published before it.

    Args:
        claim: The claim, which this process has.
        handle: A location in the store of the destination.

    Returns:
        A message if another writer has changed the dataset so that the result does not fit any more. Nothing is changed
        then.

    Raises:
        StoreError: If the record is damaged.
    """
    record = claim.folder.record()
    if record is None:
        return []
    try:
        plan = FilesPlan.from_json(record.get("plan", {}))
    except MetadataError as error:
        raise claim.folder.damaged_record(error) from error
    place = plan.handle(handle.store, handle.config)

    paths = [plan.path, *(join(plan.path, array.name) for array in plan.arrays)]
    group, *nodes = run_blocking(handle.store, find_all(place, paths, (place.format,), strict=False))
    if group is None or record.get("was_recorded", False) or not run_blocking(handle.store, _is_recorded(plan, place)):
        changes = [_change(plan, array, node, place) for array, node in zip(plan.arrays, nodes, strict=True)]
        if not plan.is_new and group is None:
            changes.insert(0, "the group does not exist any more")
        if not any(changes):
            checks = [partial(is_inline_stored, plan, array, place) for array in plan.arrays]
            are_stored = run_blocking(handle.store, gather(checks))
            others = [array.name for array, is_stored in zip(plan.arrays, are_stored, strict=True) if not is_stored]
            changes += [f"{name!r} has other values" for name in others]
        if found := next(filter(None, changes), ""):
            note = (
                f"{counted(len(plan.files), 'file')} of an interrupted job not added to {place.name}, because another "
                f"writer has changed it since: {found}"
            )
            _log.warning("%s", note)
            return [note]
        run_blocking(handle.store, publish_arrays(plan, place))
        claim.check()
    run_blocking(handle.store, publish_group(plan, place, is_independent=record.get("is_independent", False)))
    return []


async def _is_recorded(plan: FilesPlan, handle: NodeHandle) -> bool:
    """Return whether the journal contains the files of a plan. Others may have removed their rows since."""
    (value,) = await read_sources(handle.store, [join(handle.path, plan.place)])
    journal = Journal.of(value.get(JOURNAL))
    return all(row is None or journal.rows(file) == row for file, row in zip(plan.files, plan.journal, strict=True))


def _change(plan: FilesPlan, array: ArrayPlan, node: FoundNode | None, place: NodeHandle) -> str:
    """Return how an array differs from both its state before and after the publication; empty if it does not."""
    target = plan.open(array, place.store, place.config)
    if node is None:
        return "" if array.shape is None else f"{array.name!r} does not exist any more"
    if not isinstance(node.metadata, ArrayMetadata):
        return f"{array.name!r} is a group"
    shapes = {target.shape} if array.shape is None else {tuple(array.shape), target.shape}
    if node.metadata.shape in shapes:
        return ""
    return f"{array.name!r} has the shape {node.metadata.shape}, not {' or '.join(map(str, sorted(shapes)))}"
